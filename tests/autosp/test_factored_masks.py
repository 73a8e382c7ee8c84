"""Masks become predicates over vectors, in every spelling, and mean the same afterwards."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from autosp.graph import shape_of, tensor_of
from autosp.mesh import Mesh
from autosp.passes.factor_masks import FactorMasks
from autosp.pipeline import PassContext
from autosp.runtime.masked_attention import MASKED_ATTENTION
from tests.support import mask_page
from tests.support.masks import FACTORED, KEPT, sample_ids

LENGTH = 13


def attention_with(build):
    def attention(q, k, v, ids):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=build(ids))

    return attention


def operands(length=LENGTH, batch=2):
    generator = torch.Generator().manual_seed(length)
    tensors = [
        torch.randn(batch, 3, length, 4, generator=generator, dtype=torch.float64) for _ in range(3)
    ]
    return [*tensors, sample_ids(batch, length)]


def factored(attention, inputs):
    """The program after the pass, and its decisions."""
    program = make_fx(attention, tracing_mode="fake", pre_dispatch=True)(*inputs)
    context = PassContext(Mesh(sp=1))
    program = FactorMasks().run(program, context)
    program.recompile()
    return program, context.decisions


def squares(program, length=LENGTH):
    return [
        node
        for node in program.graph.nodes
        if tensor_of(node) is not None and shape_of(node).count(length) > 1
    ]


IN_PLACE = "written in place"
"""Made functional by the capture, which is not used here."""


@pytest.mark.parametrize("name", [name for name in FACTORED if name != IN_PLACE])
def test_the_same_attention_without_a_square(name):
    inputs = operands()
    attention = attention_with(FACTORED[name])
    program, (decision,) = factored(attention, inputs)
    assert decision.status == "applied", decision
    assert squares(program) == []
    torch.testing.assert_close(program(*inputs), attention(*inputs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", KEPT)
def test_other_masks_stay_and_the_decision_says_why(name):
    build, why = KEPT[name]
    program, (decision,) = factored(attention_with(build), operands())
    assert decision.status == "missed" and why in decision.reason, decision.reason
    assert not program.graph.find_nodes(op="call_function", target=MASKED_ATTENTION)


# ---------------------------------------------------------------------- the matrix


def test_every_mask_is_right_under_every_form_and_the_page_says_so():
    page = mask_page.PAGE.read_text(encoding="utf-8")
    assert page == mask_page.render(mask_page.rows()), (
        "write the page again: python -m tests.support.mask_page"
    )
