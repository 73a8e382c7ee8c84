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
from tests.support.masks import FACTORED, KEPT, packed_positions, sample_ids

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


# ---------------------------------------------------------------------- positions in documents


def numbers_of(place, step=1):
    """As transformers numbers documents, of places that go on by ``step``."""
    return (torch.diff(place, prepend=place[:, :1] - 1, dim=-1) != step).cumsum(-1)


def tied(ids, *, number, place, join=torch.logical_and):
    """Within a document of ``number``, keys up to the query by ``place``."""
    same = number[:, None, :, None] == number[:, None, None, :]
    return join(same, place[:, None, None, :] <= place[:, None, :, None])


def place_and_more(ids):
    return packed_positions(ids) + 3


KNOWN = {
    "positions": (lambda ids: tied(ids, number=numbers_of(p := packed_positions(ids)), place=p)),
    "started elsewhere": (
        lambda ids: tied(ids, number=numbers_of(p := place_and_more(ids)), place=p)
    ),
    "any numbers": (lambda ids: tied(ids, number=numbers_of(ids), place=ids)),
    "a window": lambda ids: (
        tied(ids, number=numbers_of(ids), place=ids)
        & (ids[:, None, None, :] > ids[:, None, :, None] - 3)
    ),
}
UNKNOWN = {
    "steps of two": lambda ids: tied(ids, number=numbers_of(2 * ids, 2), place=ids),
    "other positions": lambda ids: tied(ids, number=numbers_of(ids), place=ids.flip(-1)),
    "either": lambda ids: tied(ids, number=numbers_of(ids), place=ids, join=torch.logical_or),
    "twice": lambda ids: tied(ids, number=numbers_of(ids).cumsum(-1), place=ids),
}


@pytest.mark.parametrize("name", [*KNOWN, *UNKNOWN])
def test_positions_in_documents_count_like_indices_only_where_that_is_proved(name):
    inputs = operands()
    inputs[3] = packed_positions(inputs[3]) if name in KNOWN else inputs[3]
    attention = attention_with((KNOWN | UNKNOWN)[name])
    program, (decision,) = factored(attention, inputs)
    (site,) = program.graph.find_nodes(op="call_function", target=MASKED_ATTENTION)
    assert site.kwargs["is_causal"] is (name in KNOWN), decision
    torch.testing.assert_close(program(*inputs), attention(*inputs), rtol=1e-12, atol=1e-12)
    inputs[3] = torch.randint(-4, 4, inputs[3].shape, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(program(*inputs), attention(*inputs), rtol=1e-12, atol=1e-12)
