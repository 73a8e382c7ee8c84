"""Custom autograd functions on the ranks: the backward goes through the rules like a forward.

The forward's operators are in the program and have their rules. The backward is a program of
its own that begins with cotangents. Under the mean convention a rank holds P times the
cotangent of its block of a sharded value, and of a replicated one a part of a sum that is P
times the whole. Divided by P these are an ordinary shard and an ordinary partial sum: the
rules then say where the gradients lie, and what a backward that is not linear in its
cotangents (clipping, signs) needs summed first. Gradients leave as the convention wants them
for the placement of the input they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from autosp.custom_gradients import CustomGradient
from autosp.graph import CUSTOM_KEY, TAG_KEY, LocalTag
from autosp.placement import PARTIAL_SUM, REPLICATE, Partial, Placement, Shard, local_shape
from autosp.sharding.builder import ProgramBuilder, Value
from autosp.sharding.operation import Operation
from autosp.sharding.rows import filled_padding

aten = torch.ops.aten


@dataclass(slots=True)
class Backward:
    """How the inputs of a backward arrive and its results leave."""

    origin: Node
    """The call of the function in the user's program."""
    arrivals: Sequence[Placement]
    """Of the cotangents, divided by P, then of the saved tensors."""
    departures: Sequence[Placement]
    """Of the function's inputs."""
    num_cotangents: int
    sizes: Sequence[Node] = ()
    """The inputs of the program that give lengths: the backward takes them first."""
    _num_entered: int = field(default=0, init=False)

    def enter_sizes(self, builder: ProgramBuilder) -> None:
        """Make the lengths inputs of the backward."""
        for size in self.sizes:
            local = builder.graph.placeholder(size.name)
            local.meta["val"] = size.meta["val"]
            builder.input_size(local)

    def enter(self, local: Node, shape: tuple[int, ...], builder: ProgramBuilder) -> Value:
        """The value of the next input; ``local`` is the placeholder made for it."""
        position, self._num_entered = self._num_entered, self._num_entered + 1
        placement = self.arrivals[position]
        whole = local.meta["val"]
        local.meta["val"] = whole.new_empty(local_shape(shape, placement, builder.num_ranks))
        local.meta[TAG_KEY] = LocalTag(local.name, "input", placement, shape, True)
        is_cotangent = position < self.num_cotangents
        if is_cotangent and whole.is_floating_point() and builder.num_ranks > 1:
            local = builder.emit(aten.div.Scalar, local, builder.num_ranks)
        return Value(local, placement, shape)

    def leave(self, op: Operation, value_of: Callable[[Any], Any]) -> list[Node | None]:
        """The gradients; ``op`` is the end of the program."""
        gradients: Any = op.args[0]
        pairs = zip(gradients, self.departures, strict=True)
        return [
            None if gradient is None else _as_gradient_of(placement, value_of(gradient), op)
            for gradient, placement in pairs
        ]


def emit(
    op: Operation, shard_backward: Callable[[GraphModule, Backward], GraphModule]
) -> list[Value]:
    """The node that gives the forward's results their history, and what it returns."""
    target: CustomGradient = op.target
    values, saved, inputs = op.args
    values = [_summed(op, value) for value in values]
    backward = Backward(
        op.node,
        [
            *(_cotangent_placement(op, value) for value in values),
            *(value.placement for value in saved),
        ],
        [value.placement for value in inputs],
        len(values),
        tuple(op.builder.input_sizes),
    )
    program = shard_backward(target.backward, backward)
    made = CustomGradient(program, target.differentiable)
    sizes = [list(backward.sizes)] if backward.sizes else []
    node = op.emit(made, values, saved, inputs, *sizes)
    op.builder.amend(node, placement=values[0].placement)  # what is derived from it lies alike
    for inner in program.graph.nodes:
        inner.meta["custom"] = {CUSTOM_KEY: node.name}
    return op.results(node, [value.placement for value in values])


def _summed(op: Operation, value: Value) -> Value:
    if not isinstance(value.placement, Partial):
        return value
    return op.replicate(value, "a custom function returns it: summed over the ranks")


def _cotangent_placement(op: Operation, value: Value) -> Placement:
    if not value.dtype.is_floating_point or op.num_ranks == 1:  # of integers: zeros
        return value.placement
    return value.placement if isinstance(value.placement, Shard) else PARTIAL_SUM


def _as_gradient_of(placement: Placement, gradient: Value, op: Operation) -> Node:
    """The gradient of an input that lies as ``placement`` says, under the mean convention."""
    reason = f"the gradient of an input that is placed {placement}"
    if isinstance(placement, Shard):
        block = op.redistribute(gradient, placement, reason, fill=0)
        rows = Value(filled_padding(op, block, placement, 0), placement, block.shape)
        return _times_ranks(op, rows)
    is_partial = isinstance(gradient.placement, Partial)
    if is_partial and placement == REPLICATE:
        return _times_ranks(op, gradient)
    whole = op.replicate(gradient, reason)
    return whole.node if placement == REPLICATE else _times_ranks(op, whole)


def _times_ranks(op: Operation, gradient: Value) -> Node:
    if op.num_ranks == 1:
        return gradient.node
    return op.emit(aten.mul.Scalar, gradient, op.num_ranks)
