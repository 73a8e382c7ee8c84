"""What leaves the compiled region: full to whoever reads it, communicated only if read.

A sharded output leaves as this rank's block, wrapped so that its first use gathers it
(:mod:`autosp.runtime.gathered`). When the program returns its own scalar loss, its other
sharded floating outputs (logits) carry no gradient: nothing then has to be kept, or
filled with zeros, for their cotangents. Backpropagating through one is an error that
names the option; it is never a silent zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils._pytree import tree_leaves

from autosp.custom_gradients import is_custom_gradient
from autosp.graph import CUSTOM_KEY, TAG_KEY, output_node, tensor_of
from autosp.pipeline import PassContext
from autosp.placement import Placement, Shard
from autosp.sharding.rank_program import ShardedProgram
from autosp.sizes import at_lengths

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class OutputLeaf:
    """One tensor that the program returns."""

    placement: Placement
    shape: tuple[int, ...]
    """Global shape."""
    differentiable: bool

    def at_lengths(self, lengths: Mapping[Any, int]) -> OutputLeaf:
        """The leaf at given lengths (symbol -> number)."""
        if not lengths or not isinstance(self.placement, Shard):
            return self
        shape = tuple(at_lengths(size, lengths) for size in self.shape)
        return replace(self, placement=self.placement.at_lengths(lengths), shape=shape)


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """Per leaf of the output; None for what is not a tensor."""

    leaves: tuple[OutputLeaf | None, ...]

    @property
    def any_sharded(self) -> bool:
        return any(leaf is not None and isinstance(leaf.placement, Shard) for leaf in self.leaves)


def plan_outputs(sharded: ShardedProgram, context: PassContext) -> OutputPlan:
    """Decide how each output leaves; detaches logits beside a loss (changes the program)."""
    output = output_node(sharded.program.graph)
    returned = tree_leaves(output.args[0])
    # What a piece of a broken program returns beside a scalar is read by the next piece.
    has_loss = not context.allow_breaks and any(
        isinstance(leaf, Node) and _is_scalar_loss(leaf) for leaf in returned
    )
    with_history = _with_history(sharded.program.graph)
    placed = iter(zip(sharded.output_placements, sharded.output_shapes, strict=True))
    leaves: list[OutputLeaf | None] = []
    for node in returned:
        placement, shape = next(placed) if isinstance(node, Node) else (None, None)
        tensor = tensor_of(node) if isinstance(node, Node) else None
        if placement is None or shape is None or tensor is None:
            leaves.append(None)
            continue
        is_block = isinstance(placement, Shard) and tensor.is_floating_point()
        differentiable = not (has_loss and is_block and node in with_history)
        if is_block:
            _announce(node, placement, context, differentiable)
        if not differentiable:
            _detach(sharded, node, output)
        leaves.append(OutputLeaf(placement, shape, differentiable))
    sharded.program.recompile()
    return OutputPlan(tuple(leaves))


def _with_history(graph: Graph) -> set[Node]:
    """The nodes through which a gradient would reach something that is trained."""
    found: set[Node] = set()
    enabled = True
    for node in graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            enabled = bool(node.args[0])
        if node.op == "placeholder":
            given = node.meta.get("autosp_input")
            carries = given is not None and given.trainable
        else:
            sources: Any = node.args[2] if is_custom_gradient(node.target) else node.all_input_nodes
            carries = enabled and any(source in found for source in sources)
        tensor = tensor_of(node)
        floating = tensor is None or tensor.is_floating_point()  # several tensors: ask each
        if carries and floating and node.target is not aten.detach.default:
            found.add(node)
    return found


def _is_scalar_loss(node: Node) -> bool:
    tensor = tensor_of(node)
    return tensor is not None and tensor.dim() == 0 and tensor.is_floating_point()


def _detach(sharded: ShardedProgram, node: Node, output: Node) -> None:
    graph = sharded.program.graph
    with graph.inserting_before(output):
        detached = graph.call_function(aten.detach.default, (node,))
    detached.meta.update(node.meta)
    detached.meta["custom"] = {CUSTOM_KEY: detached.name}
    output.replace_input_with(node, detached)


def _announce(node: Node, placement: Placement, context: PassContext, differentiable: bool) -> None:
    tag = node.meta.get(TAG_KEY)
    reason = "outputs that nobody reads are not gathered"
    if not differentiable:
        reason += "; the program returns its own loss, so this output carries no gradient"
    context.decide(
        "applied",
        "output",
        tag.origin if tag else node.name,
        f"leaves as {placement}, gathered when read",
        reason,
        rule="outputs.plan_outputs",
    )
