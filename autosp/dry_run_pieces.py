"""A dry run of a program that dynamo breaks: each piece is compiled, nothing is computed.

Between pieces the user's code runs for real, on fake tensors; a sharded output of one piece
goes into the next as this rank's block, as in training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from autosp.compilation import RankCompilation, derive_graphs, lower_to_rank
from autosp.graph import output_node
from autosp.outputs import OutputLeaf
from autosp.pipeline import PassContext
from autosp.placement import Shard
from autosp.runtime.gathered import GatheredOnUse, block_of


class PieceCompiler:
    """The backend of such a dry run; what it compiled is in ``compilations``."""

    def __init__(self, context: PassContext, partitioner: str) -> None:
        self._context, self._partitioner = context, partitioner
        self.compilations: list[RankCompilation] = []

    def __call__(self, module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self._context.compilation = len(self.compilations)
        compilation = lower_to_rank(module, self._context)
        self.compilations.append(compilation)
        derive_graphs(compilation, [*map(block_of, example_inputs)], partitioner=self._partitioner)

        def run(*arguments: Any) -> list[Any]:
            trains = any(_requires_grad(argument) for argument in arguments)
            return [
                _fake_output(node, leaf, self._context.group_name, trains=trains)
                for node, leaf in zip(*_leaves(compilation), strict=True)
            ]

        return run


def _leaves(compilation: RankCompilation) -> tuple[list[Any], tuple[OutputLeaf | None, ...]]:
    returned = tree_leaves(output_node(compilation.sharded.program.graph).args[0])
    return returned, compilation.outputs.leaves


def _fake_output(node: Any, leaf: OutputLeaf | None, group_name: str, *, trains: bool) -> Any:
    value = node.meta["val"] if isinstance(node, Node) else node
    if not isinstance(value, torch.Tensor):
        return value
    result = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    result.requires_grad_(trains and value.is_floating_point())
    if leaf is None or not isinstance(leaf.placement, Shard):
        return result
    return GatheredOnUse.wrap(
        result, leaf.placement, leaf.shape, group_name, differentiable=leaf.differentiable
    )


def _requires_grad(argument: Any) -> bool:
    carrier = block_of(argument)
    return isinstance(carrier, torch.Tensor) and carrier.requires_grad
