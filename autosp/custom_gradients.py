"""A custom ``torch.autograd.Function`` in a program: its forward in place, its backward beside it.

The operators of the forward are operators of the program like any others, on inputs that are
detached. One node then gives their results a history: ``values, saved, inputs -> values``.
Going back through it runs the function's own backward, a program that takes the cotangents
of the values and what was saved, and returns gradients for the inputs. The derivative of the
forward's operators is never asked for: a function whose backward differs from it
(straight-through estimators) keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter


@dataclass(frozen=True, eq=False)
class CustomGradient:
    """The target of such a node; two calls of one function are two targets."""

    backward: GraphModule
    """Sizes, cotangents of the values, saved tensors -> a gradient or None for each input."""
    differentiable: tuple[bool, ...]
    """Per value."""

    # What torch.fx asks of the target of a node.
    __name__ = "custom_gradient"

    def __call__(
        self,
        values: Sequence[Tensor],
        saved: Sequence[Tensor],
        inputs: Sequence[Tensor],
        sizes: Sequence[Any] = (),
    ) -> list[Tensor]:
        """The values, whose gradients reach ``inputs`` through the backward.

        Args:
            sizes: the lengths on which the backward depends, where they stay dynamic.
        """
        applied = _Applied.apply(self, values, saved, sizes, *inputs)  # type: ignore[no-untyped-call]
        return list(applied)


class _Applied(torch.autograd.Function):
    """Neither ``values`` nor ``saved`` are its inputs: they carry no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        target: CustomGradient,
        values: Sequence[Tensor],
        saved: Sequence[Tensor],
        sizes: Sequence[Any],
        *inputs: Tensor,
    ) -> tuple[Tensor, ...]:
        del inputs
        ctx.backward_program, ctx.saved, ctx.sizes = target.backward, saved, sizes
        return with_a_history(ctx, values, target.differentiable)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        # An interpreter, so that what is known of the program's nodes reaches a trace of it.
        gradients = Interpreter(ctx.backward_program).run(*ctx.sizes, *cotangents, *ctx.saved)
        return None, None, None, None, *gradients


def with_a_history(
    ctx: Any, values: Sequence[Tensor], differentiable: Sequence[bool]
) -> tuple[Tensor, ...]:
    """Tensors of their own, for a function to return; marks those without a gradient."""
    results = tuple(value.detach() for value in values)
    flags = zip(results, differentiable, strict=True)
    ctx.mark_non_differentiable(*(result for result, wanted in flags if not wanted))
    return results


def is_custom_gradient(target: Any) -> TypeGuard[CustomGradient]:
    """Whether the target of a node is one."""
    return isinstance(target, CustomGradient)
