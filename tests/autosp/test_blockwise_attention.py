"""Attention block by block against a softmax written out in float64, and what it skips."""

from __future__ import annotations

import math

import pytest
import torch

from autosp.mask_predicate import ALWAYS, NEVER, Range, bounds, evaluate, parse
from autosp.runtime import blockwise_attention
from autosp.runtime.block_plan import allowed_pairs, plan_blocks
from autosp.runtime.blockwise_attention import attend_blockwise, attend_blockwise_backward

LENGTH = 37
SCALE = 0.4


def positions():
    return torch.arange(LENGTH)[None]


def documents():
    """Two rows of documents with other ends."""
    index = torch.arange(LENGTH)
    return torch.stack([(index > 9).long() + (index > 20), (index > 30).long()])


MASKS = {
    "q0 >= k0": ([positions()], [positions()]),
    "q0 >= k0 and q1 == k1": ([positions(), documents()], [positions(), documents()]),
    "q0 >= k0 and q1 < k0 and k1": ([positions(), positions() - 6], [positions(), documents()]),
    "(q0 >= k0 or k1) and not k2": ([positions()], [positions(), positions() < 11, documents()]),
    "q0 == k0": ([positions() // 8], [positions() // 8]),
    "q0 != k0": ([documents()], [documents()]),
    "True": ([positions()], [positions()]),
}


def plain_attention(query, key, value, allowed):
    """softmax(Q K^T) V in float64; 0 for a query without keys."""
    key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * SCALE
    weights = torch.exp(scores) * allowed
    total = weights.sum(-1, keepdim=True)
    return torch.einsum("bhqk,bhkd->bhqd", weights / total.where(total > 0, 1.0), value)


def operands(dtype=torch.float64, value_size=8):
    generator = torch.Generator().manual_seed(1)
    sizes = ((4, 8), (2, 8), (2, value_size))
    tensors = [
        torch.randn(2, heads, LENGTH, size, generator=generator, dtype=torch.float64)
        for heads, size in sizes
    ]
    return [tensor.to(dtype).requires_grad_() for tensor in tensors]


def assert_equal_to_plain(text, tensors, *, rows, tolerance):
    predicate, (queries, keys) = parse(text), MASKS[text]
    allowed = allowed_pairs(predicate, queries, keys).expand(-1, LENGTH, LENGTH).unsqueeze(1)
    wide = [t.detach().double().requires_grad_() for t in tensors]
    expected = plain_attention(*wide, allowed)
    cotangent = torch.randn(expected.shape, dtype=torch.float64).to(tensors[0].dtype)
    wanted = torch.autograd.grad(expected, wide, cotangent.double())
    given = [t.detach() for t in tensors]
    options = {"scale": SCALE, "rows": rows}
    out, lse = attend_blockwise(*given, queries, keys, predicate, **options)
    found = attend_blockwise_backward(
        cotangent, *given, out, lse, queries, keys, predicate, **options
    )
    for one, other in zip((expected, *wanted), (out, *found), strict=True):
        assert other.dtype == tensors[0].dtype
        assert (one - other).abs().max() <= tolerance * one.abs().max(), (text, rows)


@pytest.mark.parametrize("text", MASKS)
def test_output_and_gradients(text):
    for rows in (4, 8, 512):
        assert_equal_to_plain(text, operands(), rows=rows, tolerance=1e-13)


def test_types_and_values_of_another_size():
    text = "q0 >= k0 and q1 == k1"
    assert_equal_to_plain(text, operands(torch.bfloat16), rows=8, tolerance=3e-2)
    assert_equal_to_plain(text, operands(torch.float32), rows=8, tolerance=3e-6)
    assert_equal_to_plain(text, operands(value_size=6), rows=8, tolerance=1e-13)


def test_a_query_without_keys_is_zero_and_says_so():
    tensors = [t.detach() for t in operands()]
    hidden = torch.ones(1, LENGTH, dtype=torch.bool)
    hidden[:, :5] = False
    out, lse = attend_blockwise(*tensors, [hidden], [], parse("q0"), scale=SCALE, rows=8)
    assert torch.equal(out[:, :, :5], torch.zeros_like(out[:, :, :5]))
    assert (lse[:, :, :5] == -math.inf).all() and lse[:, :, 5:].isfinite().all()


def blocks(text, queries, keys, rows=8):
    return list(plan_blocks(parse(text), queries, keys, LENGTH, LENGTH, rows))


def test_one_document_is_one_causal_kernel():
    """What the user gives as positions need not restart: seen in the vectors."""
    alone = torch.zeros(1, LENGTH, dtype=torch.int64)
    text = "q0 >= k0 and q1 == k1"
    (block,) = blocks(text, [positions(), alone], [positions(), alone])
    assert block.is_causal and block.allowed is None
    assert (block.query, block.key) == (slice(0, LENGTH), slice(0, LENGTH))


def test_blocks_that_the_mask_leaves_nothing_of_are_skipped():
    window = blocks("q0 >= k0 and q1 < k0", [positions(), positions() - 8], [positions()])
    assert all(block.query.start - block.key.start <= 8 for block in window)
    assert len(window) == 9
    packed = documents()[:1]
    found = blocks("q0 >= k0 and q1 == k1", [positions(), packed], [positions(), packed])
    assert (32, 0) not in {(block.query.start, block.key.start) for block in found}


def test_whole_blocks_have_no_mask_and_are_joined():
    whole = [b for b in blocks("q0 >= k0 or k1", [positions()], [positions(), positions() < 3])
             if b.allowed is None and not b.is_causal]  # fmt: skip
    assert {(b.query.start, b.key.stop) for b in whole} == {(n, n) for n in (8, 16, 24, 32)}


@pytest.mark.parametrize("text", MASKS)
def test_bounds_never_claim_more_than_holds(text):
    predicate, (queries, keys) = parse(text), MASKS[text]
    allowed = allowed_pairs(predicate, queries, keys).expand(-1, LENGTH, LENGTH)
    always = torch.ones((), dtype=torch.bool)
    for row in range(allowed.shape[0]):
        for q, k in ((0, 0), (8, 5), (20, 3), (5, 30), (30, 30)):

            def ranges(vectors, start, row=row):
                own = [v[min(row, v.shape[0] - 1), start : start + 4].long() for v in vectors]
                return [Range(v.min(), v.max()) for v in own]

            surely, maybe = bounds(predicate, ranges(queries, q), ranges(keys, k), always)
            block = allowed[row, q : q + 4, k : k + 4]
            assert block.all() or not surely
            assert maybe or not block.any()


@pytest.mark.parametrize("text", [*MASKS, "False", "not (q0 <= k0) and (k1 or q1)"])
def test_the_text_of_a_predicate_is_read_as_it_was_written(text):
    assert parse(str(parse(text))) == parse(text)
    assert parse("True") == ALWAYS and parse("False") == NEVER


@pytest.mark.parametrize("text", ["k0 < q0", "q0 + 1 < k0", "x0", "q", "q0 < k0 < q1", "1", ""])
def test_other_texts_are_no_predicates(text):
    with pytest.raises(ValueError, match="is no predicate"):
        parse(text)


def test_numbers_that_are_none_are_left_to_the_mask_itself():
    vector = torch.tensor([[math.nan, 1.0, 2.0]])
    predicate, always = parse("q0 >= k0"), torch.ones((), dtype=torch.bool)
    nothing = Range(vector.amin(), vector.amax())
    surely, maybe = bounds(predicate, [nothing], [nothing], always)
    assert not surely and maybe
    held = evaluate(predicate, [vector[0, :, None]], [vector], always)
    assert held.sum() == 3


def test_the_operator_is_what_compilers_believe_it_is():
    tensors = [t.detach() for t in operands()]
    mask = {"query_vectors": [positions()], "key_vectors": [positions()]}
    options = {"predicate": "q0 >= k0", "scale": SCALE, "density": 0.5}
    tests = ("test_schema", "test_faketensor")
    forward, backward = (
        blockwise_attention.BLOCKWISE_ATTENTION,
        blockwise_attention.BLOCKWISE_ATTENTION_BACKWARD,
    )
    torch.library.opcheck(forward, tensors, {**mask, **options}, test_utils=tests)
    out, lse = forward(*tensors, **mask, **options)
    given = (out, *tensors, out, lse)
    torch.library.opcheck(backward, given, {**mask, **options}, test_utils=tests)
