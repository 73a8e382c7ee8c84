"""The interface of ``flash_attn``: against a softmax written out, and on several ranks."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from autosp.attention import flash_attn_func, flash_attn_varlen_func
from autosp.errors import AutoSPError
from autosp.runtime import block_plan, blockwise_attention
from tests.support.programs import NUM_HEADS, WIDTH, SmallModel, assert_right, prove, tokens

SLOPES = torch.tensor([2.0**-head for head in range(NUM_HEADS)])


def written_out(q, k, v, *, causal=False, window=(-1, -1), softcap=0.0, slopes=None, scale=None):
    """What the package documents, with all scores at once, in float64."""
    num_queries, num_keys = q.shape[1], k.shape[1]
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(2, 3) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    place = torch.arange(num_queries)[:, None] + num_keys - num_queries
    distance = place - torch.arange(num_keys)
    if slopes is not None:
        scores = scores - slopes.double().view(-1, slopes.shape[-1], 1, 1) * distance.abs()
    seen = torch.ones_like(distance, dtype=torch.bool)
    if causal:
        seen &= distance >= 0
    if window[0] >= 0:
        seen &= distance <= window[0]
    if window[1] >= 0:
        seen &= distance >= -window[1]
    scores = scores.masked_fill(~seen, float("-inf"))
    weights = torch.where(seen.any(-1, keepdim=True), scores, 0.0).softmax(-1) * seen
    return (weights @ v).transpose(1, 2)


def operands(num_queries, num_keys, *, heads=4, kv_heads=2, batch=2, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = [(num_queries, heads), (num_keys, kv_heads), (num_keys, kv_heads)]
    return [
        torch.randn(batch, *shape, 8, generator=generator, dtype=dtype).requires_grad_()
        for shape in shapes
    ]


@pytest.mark.parametrize("lengths", [(9, 9), (5, 9), (9, 5)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"causal": True, "window": (2, 5)},
        {"window": (3, 1)},
        {"window": (-1, 2), "softcap": 0.5},
        {"causal": True, "softcap": 2.0, "slopes": SLOPES[:4], "scale": 0.7},
        {"slopes": torch.stack([SLOPES[:4], SLOPES[4:8]])},
    ],
)
def test_equals_a_softmax_written_out(options, lengths, monkeypatch):
    monkeypatch.setattr(block_plan, "BLOCK_ROWS", 4)
    for function in (
        blockwise_attention.attend_blockwise,
        blockwise_attention.attend_blockwise_backward,
    ):
        monkeypatch.setitem(function.__kwdefaults__, "rows", 4)
    inputs = operands(*lengths)
    expected = written_out(*inputs, **options)
    renamed = {"window": "window_size", "slopes": "alibi_slopes", "scale": "softmax_scale"}
    given = {renamed.get(name, name): value for name, value in options.items()}
    actual = flash_attn_func(*inputs, **given)
    torch.testing.assert_close(actual, expected)
    towards = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(actual, inputs, towards),
        torch.autograd.grad(expected, inputs, towards),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "options", [{}, {"causal": True, "softcap": 1.0, "slopes": SLOPES[:4]}, {"window": (1, 1)}]
)
@pytest.mark.parametrize("ends", [([0, 3, 9], [0, 3, 9]), ([0, 2, 2, 9], [0, 4, 5, 9])])
def test_packed_sequences_equal_each_on_its_own(options, ends):
    inputs = [tensor[0] for tensor in operands(9, 9, batch=1)]
    parts = [
        written_out(inputs[0][None, a:b], *(t[None, c:d] for t in inputs[1:]), **options)[0]
        for a, b, c, d in zip(ends[0], ends[0][1:], ends[1], ends[1][1:], strict=False)
    ]
    renamed = {"window": "window_size", "slopes": "alibi_slopes"}
    given = {renamed.get(name, name): value for name, value in options.items()}
    of_queries, of_keys = (torch.tensor(end, dtype=torch.int32) for end in ends)
    actual = flash_attn_varlen_func(*inputs, of_queries, of_keys, 9, 9, **given)
    torch.testing.assert_close(actual, torch.cat(parts))


def test_half_precision_keeps_its_type():
    q, k, v = operands(6, 6, dtype=torch.bfloat16)
    out = flash_attn_func(q, k, v, causal=True, softcap=3.0)
    assert out.dtype == torch.bfloat16
    expected = written_out(q, k, v, causal=True, softcap=3.0)
    torch.testing.assert_close(out.double(), expected, rtol=0.02, atol=0.02)


def through_flash(**options):
    def attention(model, q, k, v):
        rows = [tensor.transpose(1, 2) for tensor in (q, k, v)]
        return flash_attn_func(*rows, **options).transpose(1, 2)

    return attention


FORMS = [("ulysses", (2, 5, 3)), ("ring", (2, 7, 4)), ("hybrid", (1, 12, 4))]


@pytest.mark.parametrize(("choice", "case"), FORMS)
def test_every_form_on_ranks(choice, case):
    options = {"causal": True, "window_size": (3, 0), "softcap": 1.5, "alibi_slopes": SLOPES}
    model = SmallModel(attention=through_flash(**options), num_kv_heads=4)
    assert_right(model, cases=(case,), attention=choice)


def test_a_plain_call_is_torchs_attention():
    assert_right(SmallModel(attention=through_flash(causal=True)), cases=((1, 10, 5),))


class Packed(SmallModel):
    """Tokens of all sequences in one dim: ``[tokens, width]``."""

    options: dict[str, object]

    def forward(self, ids, ends):
        x = F.embedding(ids, self.embedding)

        def heads(weight):
            return F.linear(x, weight).view(-1, NUM_HEADS, WIDTH // NUM_HEADS)

        q, k, v = heads(self.query), heads(self.key), heads(self.value)
        longest = ids.shape[0]
        y = flash_attn_varlen_func(q, k, v, ends, ends, longest, longest, **self.options)
        return (x + y.reshape(x.shape)).sin().sum()


def packed(batch, length):
    ids = tokens(batch, length)[0].flatten()
    return ids, torch.tensor([0, length // 3, length // 3 + 1, ids.shape[0]])


@pytest.mark.parametrize(("choice", "case"), FORMS)
def test_packed_sequences_on_ranks(choice, case):
    model = Packed()
    model.options = {"causal": True, "alibi_slopes": SLOPES}
    assert_right(model, inputs=packed, cases=(case,), attention=choice)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"dropout_p": 0.1, "softcap": 1.0}, "dropout together with a window"),
        ({"return_attn_probs": True}, "probabilities are never kept"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(options, what):
    with pytest.raises(AutoSPError, match=what) as caught:
        flash_attn_func(*operands(4, 4), **options)
    assert "\n" not in str(caught.value)


def test_calls_of_the_package_are_traced_as_ours(monkeypatch):
    package = ModuleType("flash_attn")

    def flash_attn_func(q, k, v, causal=False):
        raise AssertionError("the package's kernels need a GPU")

    package.flash_attn_func = flash_attn_func
    monkeypatch.setitem(sys.modules, "flash_attn", package)

    def attention(model, q, k, v):
        rows = [tensor.transpose(1, 2) for tensor in (q, k, v)]
        return package.flash_attn_func(*rows, causal=True).transpose(1, 2)

    (proof,) = prove(SmallModel(attention=attention), cases=((1, 6, 3),))
    assert proof.report.ok, proof
