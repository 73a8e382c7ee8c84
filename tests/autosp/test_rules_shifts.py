"""Rows that change their position in the sequence arrive where they belong."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from autosp.sharding.halo import Window
from tests.support.programs import WIDTH, SmallModel, assert_right

LENGTHS = ((2, 5, 4), (1, 12, 3), (2, 7, 4), (1, 12, 2))
"""Blocks of one and of several rows, with and without padding."""


def test_slices_that_shift():
    def body(model, x):
        later, earlier = x[:, 1:], x[:, :-1]
        return (
            later.sin(),
            x[:, 2:-1].cos(),
            (later - earlier).sin(),
            x[:, ::2].sin(),
            x[:, 3:] * model.bias,
            torch.diff(x, dim=1).cos(),
            x.narrow(1, 1, 3).sin(),
        )

    assert_right(SmallModel(after=body), cases=LENGTHS)


def test_few_rows_reach_every_rank():
    def body(model, x):
        rows = x.flatten(0, 1)
        return (
            x[:, -1].sin(),
            x[:, 0].cos(),
            x[:, -2:].sin(),
            (x[:, :1] * x).sin(),
            rows[3].sin(),
            rows[-2:].cos(),
        )

    assert_right(SmallModel(after=body), cases=LENGTHS)


@pytest.mark.parametrize("kept", [1, 3, 5])
def test_logits_of_the_last_tokens(kept):
    assert_right(SmallModel(loss=lambda m, x: m.logits(x[:, -kept:]).logsumexp(-1).mean()))


def test_padding_of_the_sequence():
    def body(model, x):
        return (
            F.pad(x, (0, 0, 1, 0)).sin(),
            F.pad(x[:, :-1], (0, 0, 1, 0)).cos() * x,
            F.pad(x, (1, 0, 0, 3), value=2.0).sin(),
            F.pad(x, (0, 0, 2, 1), mode="replicate").cos(),
            F.pad(x, (0, 0, -1, 0)).sin(),
            F.pad(x, (0, 2)).sin(),
        )

    assert_right(SmallModel(after=body), cases=LENGTHS)


def test_a_token_shift_normalised_afterwards_has_finite_gradients():
    def body(model, x):
        shifted = torch.cat([x[:, :1], F.pad(x, (0, 0, 1, -1))[:, 1:]], 1)
        return shifted / shifted.norm(dim=-1, keepdim=True)

    assert_right(SmallModel(after=body), cases=LENGTHS)


def test_rolling_and_joining():
    def body(model, x):
        prefix = model.positions[:, :2].expand(x.shape[0], -1, -1)
        suffix = model.positions.expand(x.shape[0], -1, -1)
        return (
            x.roll(1, 1).sin() * x,
            x.roll(-2, 1).cos(),
            x.roll((1, 3), (2, 1)).sin(),
            torch.cat([x[:, :1], x[:, :-1]], 1).sin() * x,
            torch.cat([prefix, x], 1).cos(),
            torch.cat([x, x.sin()], 1).cos(),
            torch.cat([x.sin(), suffix], 1).sin(),
        )

    assert_right(SmallModel(after=body), cases=LENGTHS)


def test_splitting_and_windows():
    def body(model, x):
        parts = [*x.split(2, 1), *x.chunk(2, 1)]
        return (*[part.sin() * (i + 1) for i, part in enumerate(parts)], x.unfold(1, 3, 2).sin())

    assert_right(SmallModel(after=body), cases=LENGTHS)


def test_assigning_to_tokens():
    def body(model, x):
        changed, last = x * 1, x * 1
        changed[:, 1] = model.bias
        changed[:, 2:4] = x[:, :2].sin()
        last[:, -1] = x[:, 0]
        return changed.sin(), last.cos()

    assert_right(SmallModel(after=body), cases=LENGTHS)


def test_convolutions_along_the_sequence():
    def body(model, x):
        channels = x.mT
        depthwise = model.weight[:, :3].reshape(WIDTH, 1, 3)
        full = model.weight.reshape(WIDTH, WIDTH, 1).expand(-1, -1, 3)
        causal = F.conv1d(channels, depthwise, model.bias, padding=2, groups=WIDTH)
        return (
            causal[..., : x.shape[1]].mT.sin() * x,
            F.conv1d(channels, full, padding=1).sin(),
            F.conv1d(F.pad(channels, (2, 0)), depthwise, groups=WIDTH).cos(),
            F.conv1d(channels, depthwise, model.bias, stride=2, padding=1, groups=WIDTH).sin(),
            F.conv1d(channels, depthwise, padding="same", dilation=2, groups=WIDTH).sin(),
            F.conv1d(channels, model.weight[:, None, :4], padding="same", groups=WIDTH).sin(),
        )

    assert_right(SmallModel(after=body), cases=LENGTHS)


def test_scans_along_the_sequence():
    def body(model, x):
        return (
            x.cumsum(1).sin(),
            x.cumprod(1).sin(),
            x.logcumsumexp(1).sin(),
            x * (x > 0).cumsum(1),
            x.float().cumsum(1, dtype=torch.float64).sin(),
            x.cumsum(-1).cos() + x.logcumsumexp(2) + x.cummax(2).values,
        )

    assert_right(SmallModel(after=body), cases=LENGTHS)


def test_orderings_of_the_sequence_gather_and_go_on_sharded():
    def body(model, x):
        return (
            x.cummax(1).values.sin(),
            x.sort(1).values.cos(),
        )

    assert_right(SmallModel(after=body), max_fallbacks=2)


def test_the_sequence_reversed():
    def body(model, x):
        return (
            x.flip(1).sin(),
            x.flip(2, 1).cos() * x,
            x.flip(0).sin(),
            (x[:, 1:].flip(1) * x[:, :-1]).sin(),
            x.flip(1).cumsum(1).flip(1).tanh(),
        )

    assert_right(SmallModel(after=body), cases=LENGTHS)


def test_edges_mirrored_and_wrapped_around():
    def body(model, x):
        return (
            F.pad(x.mT, (1, 2), mode="reflect").sin(),
            F.pad(x.mT, (2, 0), mode="circular").cos(),
            F.pad(x.mT, (0, 4), mode="reflect").sin(),
        )

    assert_right(SmallModel(after=body), cases=LENGTHS)


def test_margins_are_those_of_the_neediest_rank():
    assert Window(-1, 4, 4).margins(4, 12, 3) == (1, 0)
    assert Window(2, 4, 4).margins(4, 12, 3) == (0, 2)
    assert Window(0, 3, 3).margins(4, 8, 3) == (2, 0)
