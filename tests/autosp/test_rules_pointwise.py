"""Pointwise operators: broadcasting against whole operands, and partial inputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.support.programs import HEAD_SIZE, NUM_HEADS, WIDTH, SmallModel, assert_right


def test_whole_operands_are_cut_where_they_meet_the_sequence():
    def body(model, x):
        length = x.shape[1]
        return (
            x * model.bias + model.positions[:, :length],
            x + torch.arange(length)[None, :, None],
            x * (model.ids[..., None] > 5),
            torch.where(model.ids[..., None] > 5, x, model.bias),
            x.masked_fill(model.ids[..., None] > 5, 0.5),
            x + (model.ids > 5).cumsum(1)[..., None],
            x * torch.linspace(0, 1, length, dtype=x.dtype)[:, None],
        )

    assert_right(SmallModel(after=body))


def test_composite_activations():
    def body(model, x):
        left, right = x.chunk(2, -1)
        return (
            F.gelu(x) + F.silu(x) + F.softplus(x) + F.relu(x) + F.gelu(x, approximate="tanh"),
            F.silu(left) * right,
            torch.lerp(x, x.sin(), 0.3) + torch.addcmul(x, x, model.bias, value=0.5),
            x.clamp(-0.5, 0.5) + x**2 + 2**x,
        )

    assert_right(SmallModel(after=body))


def test_casts_and_factories_like_another_tensor():
    def body(model, x):
        ones = torch.ones_like(x)
        return (
            x.float().sin().double(),
            x * (x * 3).long(),
            x + torch.zeros_like(x) + ones + torch.full_like(x, 2.0),
            x.sum() / ones.sum(),
        )

    assert_right(SmallModel(after=body))


def test_shapes_read_in_the_forward_are_global():
    def body(model, x):
        batch, length, _ = x.shape
        return x.sum() / x.numel(), x.sum(1) / length, x.sum() / (batch * x.size(1))

    assert_right(SmallModel(after=body))


def test_partial_sums_pass_through_linear_operators_only():
    def body(model, x):
        partial = x.sum(1)
        return (
            (partial * 3 / 2).neg(),
            (partial + x.sin().mean(1)).tanh(),
            (partial + model.bias).tanh(),
            partial / x.mean((1, 2))[:, None],
            torch.div(partial, 2.0, rounding_mode="floor") + partial,
            partial.exp() * partial,
            2.0 - partial,
            partial * partial,
        )

    assert_right(SmallModel(after=body))


def test_partial_sums_pass_through_views():
    def body(model, x):
        partial = x.sum(1)
        heads = partial.view(x.shape[0], NUM_HEADS, HEAD_SIZE).transpose(1, 2)
        return (
            heads.unsqueeze(0).squeeze(0)[:, 1:].sin(),
            torch.cat([part.sin() for part in partial.split(8, -1)], -1),
            partial[:, : WIDTH // 2].cos(),
        )

    assert_right(SmallModel(after=body))


def test_a_partial_sum_scales_the_sequence():
    def body(model, x):
        return x * x.mean(1, keepdim=True), x + x.sum(1)[:, None], x / (1 + x.square().sum())

    assert_right(SmallModel(after=body))


def test_gradient_does_not_flow_where_the_program_stops_it():
    def body(model, x):
        with torch.no_grad():
            centre = x.mean(1, keepdim=True)
        return x * centre, x * x.detach().mean(1, keepdim=True) + x.detach()

    assert_right(SmallModel(after=body))


def test_autocast_inside_the_forward():
    def body(model, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.linear(x.float(), model.weight.float()).float().sin()

    assert_right(SmallModel(after=body))


def test_complex_rotary_positions():
    def body(model, x):
        batch, length, _ = x.shape
        angles = torch.arange(length, dtype=x.dtype)[:, None] * model.bias.detach()[:NUM_HEADS]
        turned = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.view_as_complex(x.view(batch, length, NUM_HEADS, 2))
        return torch.view_as_real(pairs * turned).flatten(-2).sin()

    assert_right(SmallModel(after=body), max_fallbacks=None)


def test_a_cast_to_the_type_of_a_sharded_tensor_does_not_cut():
    def body(model, x):
        length, width = x.shape[1:]
        rows = torch.linspace(0, 1, length, dtype=torch.float32).type_as(x)
        columns = torch.linspace(0, 1, width, dtype=torch.float32).type_as(x)
        return x * rows[:, None], x * columns, x.sum(1).type_as(rows).sin(), x.type_as(columns)

    assert_right(SmallModel(after=body))


def test_an_operator_with_two_results_takes_the_gather_path():
    def body(model, x):
        mantissa, _ = torch.frexp(x)
        return mantissa.detach() * x

    assert_right(SmallModel(after=body), max_fallbacks=1)
