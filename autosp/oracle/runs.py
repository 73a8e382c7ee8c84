"""The two sides of the comparison: the user's program as it is, and the ranks in lock step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from autosp.blocks import cut_blocks
from autosp.graph import output_node
from autosp.oracle.combine import combine_values
from autosp.oracle.lockstep import RankValues, run_ranks, run_whole
from autosp.placement import Shard
from autosp.sharding.rank_program import ShardedProgram

COTANGENT_SEED = 20240229
"""Seed of the random cotangents of programs that return no scalar loss."""


@dataclass(frozen=True, slots=True)
class _Output:
    """An output leaf that starts the backward, with its cotangent."""

    node: Node
    leaf: int
    cotangent: torch.Tensor


@dataclass(frozen=True, slots=True)
class Reference:
    """The user's program, run as it is."""

    program: GraphModule
    nodes: tuple[Node, ...]
    values: dict[str, Any]
    cotangents: dict[str, torch.Tensor | None]
    outputs: tuple[_Output, ...]

    @staticmethod
    def of(program: GraphModule, inputs: Sequence[Any]) -> Reference:
        values = run_whole(program, inputs)
        outputs = _outputs(program, values)
        names = [name for name, value in values.items() if _has_cotangent(value)]
        cotangents = _gradients(
            [values[output.node.name] for output in outputs],
            [output.cotangent for output in outputs],
            [values[name] for name in names],
        )
        return Reference(
            program,
            tuple(program.graph.nodes),
            values,
            dict(zip(names, cotangents, strict=True)),
            outputs,
        )


@dataclass(frozen=True, slots=True)
class RankRun:
    """The P programs, run in lock step."""

    sharded: ShardedProgram
    values: RankValues
    cotangents: dict[str, list[torch.Tensor | None]]
    """Of the nodes of the per-rank program."""
    results: list[torch.Tensor]
    """What must not change with the filling of padding rows."""

    @staticmethod
    def of(ranks: Sequence[ShardedProgram], inputs: Sequence[Any], reference: Reference) -> RankRun:
        sharded, num_ranks = ranks[0], len(ranks)
        values = run_ranks([rank.program for rank in ranks], inputs)
        starts, seeds = _rank_seeds(sharded, values, reference, num_ranks)
        names = [
            name for name, parts in values.items() if all(_has_cotangent(part) for part in parts)
        ]
        flat = _gradients(starts, seeds, [part for name in names for part in values[name]])
        cotangents = {
            name: list(flat[i * num_ranks : (i + 1) * num_ranks]) for i, name in enumerate(names)
        }
        parameters = [
            gradient
            for node in sharded.program.graph.find_nodes(op="placeholder")
            for gradient in cotangents.get(node.name, ())
            if gradient is not None
        ]
        return RankRun(sharded, values, cotangents, [*_whole_outputs(sharded, values), *parameters])


def _outputs(program: GraphModule, values: Mapping[str, Any]) -> tuple[_Output, ...]:
    """A scalar loss starts the backward with 1; without one every floating output does."""
    nodes = [leaf for leaf in tree_leaves(output_node(program.graph).args[0]) if _is_node(leaf)]
    leaves = [(i, node) for i, node in enumerate(nodes) if _has_cotangent(values[node.name])]
    scalars = [(i, node) for i, node in leaves if values[node.name].dim() == 0]
    generator = torch.Generator().manual_seed(COTANGENT_SEED)
    result = []
    for i, node in scalars or leaves:
        value = values[node.name]
        random = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        cotangent = torch.ones_like(value) if scalars else random.to(value.dtype)
        result.append(_Output(node, i, cotangent.detach()))
    return tuple(result)


def _rank_seeds(
    sharded: ShardedProgram, values: RankValues, reference: Reference, num_ranks: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs of all ranks with their cotangents under the mean convention."""
    leaves = [
        leaf for leaf in tree_leaves(output_node(sharded.program.graph).args[0]) if _is_node(leaf)
    ]
    starts: list[torch.Tensor] = []
    seeds: list[torch.Tensor] = []
    for output in reference.outputs:
        placement = sharded.output_placements[output.leaf]
        starts.extend(values[leaves[output.leaf].name])
        if isinstance(placement, Shard):
            blocks = cut_blocks(output.cotangent, placement, num_ranks)
            seeds.extend(block * num_ranks for block in blocks)
        else:
            seeds.extend([output.cotangent] * num_ranks)
    return starts, seeds


def _whole_outputs(sharded: ShardedProgram, values: RankValues) -> list[torch.Tensor]:
    """Every output without padding rows.

    The shapes are the program's: an output may be some rows of what its node holds.
    """
    leaves = tree_leaves(output_node(sharded.program.graph).args[0])
    nodes = [leaf for leaf in leaves if _is_node(leaf)]
    return [
        whole.detach()
        for node, placement, shape in zip(
            nodes, sharded.output_placements, sharded.output_shapes, strict=True
        )
        if placement is not None and shape is not None
        for whole in combine_values(values[node.name], placement, shape)
    ]


def _is_node(leaf: Any) -> bool:
    return isinstance(leaf, Node)


def _has_cotangent(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _gradients(
    starts: Sequence[torch.Tensor], seeds: Sequence[torch.Tensor], of: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    if not starts or not of:
        return [None] * len(of)
    return torch.autograd.grad(starts, of, seeds, allow_unused=True)
