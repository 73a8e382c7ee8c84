"""Random masks: what the analysis makes of them is what they are, or they stay."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from autosp.runtime.masked_attention import MASKED_ATTENTION
from tests.autosp.test_factored_masks import factored, operands
from tests.support.masks import documents, float_mask, packed_positions, positions

LENGTH = 11

SIDES = {
    "q": lambda ids: positions(ids)[0],
    "k": lambda ids: positions(ids)[1],
    "q - k": lambda ids: positions(ids)[0] - positions(ids)[1],
    "2k - q": lambda ids: 2 * positions(ids)[1] - positions(ids)[0] + 1,
    "|q - k|": lambda ids: (positions(ids)[0] - positions(ids)[1]).abs(),
    "q // 3": lambda ids: positions(ids)[0] // 3,
    "k // 3": lambda ids: positions(ids)[1] // 3,
    "document of q": lambda ids: documents(ids)[:, None, :, None],
    "document of k": lambda ids: documents(ids)[:, None, None, :],
    "place of q": lambda ids: packed_positions(ids)[:, None, :, None],
    "place of k, reversed": lambda ids: packed_positions(ids).flip(-1)[:, None, None],
    "token of k less place of q": lambda ids: (
        ids[:, None, None] - packed_positions(ids)[:, None, :, None]
    ),
    "number": lambda ids: 4,
    "first token": lambda ids: ids[:, :1, None, None],
}
COMPARISONS = (torch.le, torch.lt, torch.ge, torch.gt, torch.eq, torch.ne)
PAIRS = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "equal": lambda a, b: a == b,
    "where": lambda a, b: torch.where(a, b, a.logical_not()),
    "fill": lambda a, b: b.masked_fill(a, False),
    "product": lambda a, b: (a.int() * b.int()).bool(),
}
FORMS = {
    "boolean": lambda mask: mask,
    "-inf": float_mask,
    "where": lambda mask: torch.where(mask, 0.0, -torch.inf).double(),
    "expanded": lambda mask: mask.expand(2, 3, LENGTH, LENGTH),
}


def as_tensor(side, ids):
    value = SIDES[side](ids)
    return value if isinstance(value, torch.Tensor) else torch.full_like(positions(ids)[0], value)


comparisons = st.tuples(
    st.sampled_from(COMPARISONS), st.sampled_from(list(SIDES)), st.sampled_from(list(SIDES))
)
trees = st.recursive(
    comparisons,
    lambda inner: (
        st.tuples(st.sampled_from(list(PAIRS)), inner, inner) | st.tuples(st.just("not"), inner)
    ),
    max_leaves=4,
)


def mask_of(tree, ids):
    match tree:
        case "not", inner:
            return ~mask_of(inner, ids)
        case str(name), left, right:
            return PAIRS[name](mask_of(left, ids), mask_of(right, ids))
        case compare, left, right:
            return compare(as_tensor(left, ids), as_tensor(right, ids))


@settings(max_examples=25, deadline=None)
@given(tree=trees, form=st.sampled_from(list(FORMS)))
def test_attention_is_the_same(tree, form):
    def attention(q, k, v, ids):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=FORMS[form](mask_of(tree, ids)))

    inputs = operands(LENGTH)
    program, (decision,) = factored(attention, inputs)
    found = program.graph.find_nodes(op="call_function", target=MASKED_ATTENTION)
    torch.testing.assert_close(program(*inputs), attention(*inputs), rtol=1e-12, atol=1e-12)
    if found and found[0].kwargs["is_causal"]:
        allowed = mask_of(tree, inputs[3]).expand(2, 1, LENGTH, LENGTH)
        assert not allowed.triu(1).any(), decision
