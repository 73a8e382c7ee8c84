"""Custom autograd functions as users write them, each with a body for a small model."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.support.gloo_cases import Subject, mean_loss
from tests.support.programs import NUM_HEADS, Body, SmallModel, tokens


class Gelu(torch.autograd.Function):
    """The true derivative, from a saved input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        t = torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))
        slope = 0.5 * x * ((1 - t * t) * (0.79788456 + 0.1070322243 * x * x)) + 0.5 * (1 + t)
        return slope * cotangents[0]


class RoundStraightThrough(torch.autograd.Function):
    """A forward without a derivative; a backward that pretends it was a clamp."""

    @staticmethod
    def forward(x: Tensor, limit: float) -> Tensor:
        return torch.round(x * 4) / 4

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.limit = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return torch.where(x.abs() <= ctx.limit, cotangents[0], 0.0), None


class Reversed(torch.autograd.Function):
    """As in adversarial training of domains: forward the identity, backward the opposite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return -ctx.strength * cotangents[0], None


class ScaleAndChoose(torch.autograd.Function):
    """Several outputs, one of them of integers; arguments of all kinds; asks what is needed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, mode: str, table: Tensor | None) -> Any:
        ctx.save_for_backward(x, scale)
        ctx.mode, ctx.halves = mode, x * 0.5
        chosen = x.argmax(-1)
        ctx.mark_non_differentiable(chosen)
        return x * scale, (x * x).mean(-1, keepdim=True), chosen

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        x, scale = ctx.saved_tensors
        of_product, of_mean, _ = cotangents
        of_x = of_scale = None
        if ctx.needs_input_grad[0]:
            of_x = of_product * scale + 4 * ctx.halves * of_mean / x.shape[-1]
        if ctx.needs_input_grad[1]:
            of_scale = (of_product * x).sum((0, 1)) * (2.0 if ctx.mode == "twice" else 1.0)
        assert not ctx.needs_input_grad[3]
        return of_x, of_scale, None, None


class Mixing(torch.autograd.Function):
    """Forward and backward move data along the sequence, and not as derivatives do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Any:
        ctx.save_for_backward(x, weight)
        return torch.cumsum(x, 1) @ weight, x.sum()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        of_rows, of_sum = cotangents
        of_x = torch.flip(of_rows @ weight.mT, [1]).cumsum(1) + of_sum
        return of_x, x.flatten(0, 1).mT @ of_rows.flatten(0, 1)


class Clipped(torch.autograd.Function):
    """A backward that is not linear: the gradient of all tokens has norm 1, and an offset."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        return x.sin() + bias

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        clipped = cotangents[0] / cotangents[0].norm()
        return clipped + 0.01, clipped.sum((0, 1)).sign()


class EditedInPlace(torch.autograd.Function):
    """A backward that writes to a copy, and returns a gradient of fewer rows and another type."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        y = x.clone()
        y[..., 0] = 0
        return y.mul_(2) + bias

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        edited = cotangents[0].clone()
        edited[:, 1:3] = 0
        edited.mul_(2)
        return edited, cotangents[0].sign().float()


class Attention(torch.autograd.Function):
    """Attention with a backward written by hand, from ``q, k, v [B, H, S, D]``."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        return F.scaled_dot_product_attention(q, k, v, scale=1.0)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        q, k, v = ctx.saved_tensors
        weights = torch.softmax(q @ k.mT, -1)
        of_weights = cotangents[0] @ v.mT
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
        return of_scores @ k, of_scores.mT @ q, weights.mT @ cotangents[0]


class InLowPrecision(torch.autograd.Function):
    """With the decorators for autocast."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return cotangents[0] @ weight.mT, x.flatten(0, 1).mT @ cotangents[0].flatten(0, 1)


class Transformed(torch.autograd.Function):
    """A backward with an operator that has no rule for a cut sequence."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return torch.fft.fft(cotangents[0], dim=1).real


def gelu(model: SmallModel, x: Tensor) -> Tensor:
    return Gelu.apply(F.linear(x, model.weight))


def straight_through(model: SmallModel, x: Tensor) -> Tensor:
    """Of activations and of a weight."""
    weight = RoundStraightThrough.apply(model.weight, 0.3)
    return RoundStraightThrough.apply(F.linear(x, weight), 1.0)


def reversed_gradient(model: SmallModel, x: Tensor) -> Tensor:
    return x + F.linear(Reversed.apply(x, 0.5), model.weight)


def scale_and_choose(model: SmallModel, x: Tensor) -> Any:
    product, mean, chosen = ScaleAndChoose.apply(x, model.bias, "twice", None)
    frozen, _, _ = ScaleAndChoose.apply(x, model.bias.detach(), "once", None)
    return product.sin() + frozen * mean + chosen[..., None]


def mixing(model: SmallModel, x: Tensor) -> Any:
    rows, total = Mixing.apply(x, model.weight)
    return rows.tanh() * total.cos()


def clipped(model: SmallModel, x: Tensor) -> Tensor:
    return F.linear(Clipped.apply(x, model.bias), model.weight)


def edited_in_place(model: SmallModel, x: Tensor) -> Tensor:
    return EditedInPlace.apply(x, model.bias)


def own_attention(model: SmallModel, x: Tensor) -> Tensor:
    batch, length, width = x.shape
    q, k, v = (
        F.linear(x, weight).view(batch, length, NUM_HEADS, -1).transpose(1, 2)
        for weight in (model.query, model.key, model.value)
    )
    return Attention.apply(q, k, v).transpose(1, 2).reshape(batch, length, width)


def of_a_sum(model: SmallModel, x: Tensor) -> Tensor:
    """Its input is a sum over the sequence."""
    return x + Gelu.apply(x.sum(1, keepdim=True)) + Reversed.apply(x.mean((0, 1)), 2.0)


def under_autocast(model: SmallModel, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = InLowPrecision.apply(x, model.weight)
    return y.float()


@torch.library.custom_op("autosp_tests::square", mutates_args=())
def square(x: Tensor) -> Tensor:
    """An operator of a library, whose backward is not twice the input either."""
    return x * x


@square.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


square.register_autograd(
    lambda ctx, cotangent: 3 * cotangent * ctx.saved,
    setup_context=lambda ctx, inputs, output: setattr(ctx, "saved", inputs[0]),
)


def in_a_region(model: SmallModel, x: Tensor) -> Any:
    return checkpoint(lambda y: gelu(model, y).sin(), x, use_reentrant=False)


def twice(model: SmallModel, x: Tensor) -> Tensor:
    """Between dropouts, and one function on another's result."""
    x = F.dropout(Gelu.apply(x), 0.25)
    return Clipped.apply(Reversed.apply(x, 0.5), model.bias)


BODIES = {
    body.__name__: body
    for body in (
        gelu,
        straight_through,
        reversed_gradient,
        scale_and_choose,
        mixing,
        clipped,
        edited_in_place,
        own_attention,
        of_a_sum,
        in_a_region,
    )
}


def everything(model: SmallModel, x: Tensor) -> Tensor:
    for body in BODIES.values():
        x = x + 0.1 * body(model, x)
    return x


def some(model: SmallModel, x: Tensor) -> Tensor:
    return clipped(model, straight_through(model, x))


def subject(after: Body, *, batch: int, length: int) -> Subject:
    """A model for real processes."""
    model = SmallModel(before=gelu, after=after, loss=mean_loss)
    return Subject(model, tokens(batch, length))
