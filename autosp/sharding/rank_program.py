"""The program of one rank, and where the values of the user's program are in it."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _make_graph_module

from autosp.custom_gradients import is_custom_gradient
from autosp.flex_attention import is_flex_attention
from autosp.graph import is_write
from autosp.placement import Placement
from autosp.sharding.builder import ProgramBuilder, Value


@dataclass(frozen=True, slots=True)
class LocalValue:
    """Where the value of a node of the user's program is in the per-rank program."""

    node: str
    placement: Placement
    shape: tuple[int, ...]
    """Global shape."""
    comparable: bool = True
    """Whether combining the ranks' parts gives the user's value: not inside a region that
    sorts each rank's own tokens."""


@dataclass(frozen=True, slots=True)
class ShardedProgram:
    """The program of one rank."""

    program: GraphModule
    values: dict[str, LocalValue]
    """User node name -> its value; only nodes that survive in the program."""
    more_values: dict[str, tuple[LocalValue, ...]]
    """User node name -> where else its value is: whole, and computed in blocks beside that."""
    output_placements: tuple[Placement | None, ...]
    output_shapes: tuple[tuple[int, ...] | None, ...]
    """Per leaf of the output; None for what is not a tensor."""
    num_attention_sites: int
    fallbacks: Counter[str]
    """Operator -> how often it took the all-gather path."""


def finished(root: GraphModule, graph: Graph) -> GraphModule:
    """The program of a graph without what nobody reads."""
    graph.eliminate_dead_code(is_impure_node=_must_stay)
    graph.lint()
    return _make_graph_module(root, graph, "RankProgram")


def places(
    values: Mapping[Node, Any],
    blocks: Mapping[Node, Sequence[Value]],
    builder: ProgramBuilder,
    has_own_order: Callable[[Node], bool],
) -> tuple[dict[str, LocalValue], dict[str, tuple[LocalValue, ...]]]:
    """Where the values are in a finished program: each once, and where else.

    Rows in a rank's own order, and counts of its own, have no placement: none is left on them.
    """
    alive = set(builder.graph.nodes)
    first: dict[str, LocalValue] = {}
    more: dict[str, tuple[LocalValue, ...]] = {}
    for node, whole in values.items():
        copies = [
            LocalValue(
                value.node.name,
                value.placement,
                value.shape,
                comparable=not has_own_order(node),
            )
            for value in (whole, *blocks.get(node, ()))
            if isinstance(value, Value) and value.node in alive
        ]
        if copies:
            first[node.name], more[node.name] = copies[0], tuple(copies[1:])
            if isinstance(whole, Value) and not copies[0].comparable:
                builder.amend(whole.node, placement=None, global_shape=None)
    return first, more


def _must_stay(node: Node) -> bool:
    """Collectives nobody reads are dead code here: the program is SPMD, all ranks drop them."""
    if node.op in ("placeholder", "output") or is_write(node):
        return True
    return (
        node.op == "call_function"
        and not isinstance(node.target, torch._ops.OpOverload)
        and node.target is not operator.getitem
        and not is_custom_gradient(node.target)
        and not is_flex_attention(node.target)
    )
