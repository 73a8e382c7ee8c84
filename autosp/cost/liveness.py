"""When each storage of a compiled step exists, from its graphs run in program order.

The runner is assumed to free values as early as Python can: the boxed calling convention
(arguments are released at their last use) and FX's generated code (a variable is deleted
after the statement that uses it last). A storage dies with the last of its aliases.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.fx

from autosp.cost.step import CompiledStep
from autosp.cost.storage import (
    GraphStorages,
    StorageIds,
    StorageTable,
    assign_storages,
)
from autosp.graph import collective_kind, is_unclassified_collective, is_wait, output_node

CALLER = -1
"""``Lifetime.end`` of what outlives the two graphs: gradients and the user's outputs."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A storage exists while moments ``start`` to ``end`` (included) run."""

    storage: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StepLiveness:
    """Storages and lifetimes of a step.

    ``moments`` are the nodes that run, forward then backward; indices count in it.
    ``last_use`` gives, for any storage, the last moment that touches it in the graphs,
    also for what the caller keeps alive longer.
    """

    table: StorageTable
    forward: GraphStorages
    backward: GraphStorages | None
    moments: tuple[torch.fx.Node, ...]
    num_forward_moments: int
    lifetimes: tuple[Lifetime, ...]
    last_use: dict[int, int]
    saved: frozenset[int]
    gradients: dict[int, int]
    """Storage of a gradient -> position of its forward placeholder."""
    gradient_nodes: dict[int, torch.fx.Node]
    """Position of a forward placeholder -> backward node that returns its gradient."""


def step_liveness(step: CompiledStep) -> StepLiveness:
    """Find every storage of the step and when it is born and freed."""
    table = StorageTable()
    forward = assign_storages(step.forward.graph, table, in_backward=False)
    _mark_persistent(step.forward.graph, forward, table, all_placeholders=True)
    forward_moments = _moments(step.forward.graph)
    last_use = _last_uses(step.forward.graph, forward, forward_moments, offset=0)
    user_outputs, saved_outputs = _forward_outputs(step)
    kept = {index for node in user_outputs for index in forward.of(node)}
    saved = {index for node in saved_outputs for index in forward.of(node)}

    backward: GraphStorages | None = None
    backward_moments: list[torch.fx.Node] = []
    gradient_nodes: dict[int, torch.fx.Node] = {}
    if step.backward is not None:
        known = _saved_placeholders(step.backward.graph, saved_outputs, forward)
        backward = assign_storages(step.backward.graph, table, in_backward=True, known=known)
        _mark_persistent(step.backward.graph, backward, table, all_placeholders=False)
        backward_moments = _moments(step.backward.graph)
        offset = len(forward_moments)
        uses = _last_uses(step.backward.graph, backward, backward_moments, offset=offset)
        last_use |= uses
        gradient_nodes = _gradient_nodes(step, step.backward.graph)
    gradients = _gradient_storages(gradient_nodes, backward, table)
    return StepLiveness(
        table=table,
        forward=forward,
        backward=backward,
        moments=(*forward_moments, *backward_moments),
        num_forward_moments=len(forward_moments),
        lifetimes=tuple(
            _lifetimes(
                table,
                last_use,
                starts=_starts(forward_moments, backward_moments),
                backward_start=len(forward_moments),
                caller_keeps=kept | gradients.keys(),
            )
        ),
        last_use=last_use,
        saved=frozenset(saved),
        gradients=gradients,
        gradient_nodes=gradient_nodes,
    )


def _moments(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    skipped = ("placeholder", "get_attr", "output")
    return [node for node in graph.nodes if node.op not in skipped]


def _mark_persistent(
    graph: torch.fx.Graph, storages: GraphStorages, table: StorageTable, *, all_placeholders: bool
) -> None:
    operations = ("placeholder", "get_attr") if all_placeholders else ("get_attr",)
    for node in graph.nodes:
        if node.op in operations:
            for index in storages.of(node):
                table.storages[index].persistent = True


def _forward_outputs(step: CompiledStep) -> tuple[list[torch.fx.Node], list[torch.fx.Node]]:
    """User outputs and saved values; constants and None are dropped."""
    returned = _returned(step.forward.graph)
    users = [item for item in returned[: step.num_forward_outputs] if _is_node(item)]
    saved = [item for item in returned[step.num_forward_outputs :] if _is_node(item)]
    return users, saved  # type: ignore[return-value]


def _returned(graph: torch.fx.Graph) -> tuple[object, ...]:
    """What the graph returns, flat; None keeps its place."""
    returned = output_node(graph).args[0]
    return tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)


def _is_node(value: object) -> bool:
    return isinstance(value, torch.fx.Node)


def _holds_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _saved_placeholders(
    graph: torch.fx.Graph, saved: list[torch.fx.Node], forward: GraphStorages
) -> dict[torch.fx.Node, StorageIds]:
    """Backward placeholders that stand for saved forward values.

    AOTAutograd passes saved numbers first, then the saved tensors in the order in which
    the forward returns them, then the cotangents.
    """
    numbers = [node for node in saved if not _holds_tensor(node)]
    tensors = [node for node in saved if _holds_tensor(node)]
    placeholders = graph.find_nodes(op="placeholder")
    assert len(placeholders) >= len(saved), "the backward takes every saved value"
    return {
        placeholder: forward.ids[source]
        for placeholder, source in zip(placeholders, [*numbers, *tensors], strict=False)
    }


def _gradient_nodes(step: CompiledStep, graph: torch.fx.Graph) -> dict[int, torch.fx.Node]:
    return {
        position: node
        for position, node in enumerate(_returned(graph)[: len(step.input_kinds)])
        if isinstance(node, torch.fx.Node)
    }


def _gradient_storages(
    nodes: dict[int, torch.fx.Node], storages: GraphStorages | None, table: StorageTable
) -> dict[int, int]:
    if storages is None:
        return {}
    return {
        index: position
        for position, node in nodes.items()
        for index in storages.of(node)
        if not table.storages[index].persistent
    }


def _last_uses(
    graph: torch.fx.Graph,
    storages: GraphStorages,
    moments: list[torch.fx.Node],
    *,
    offset: int,
) -> dict[int, int]:
    """Storage -> index of the last moment of this graph that an alias of it survives."""
    index_of = {node: offset + index for index, node in enumerate(moments)}
    last: dict[int, int] = {}
    for node in graph.nodes:
        if node.op == "output":
            continue
        end = max(
            [index_of.get(node, offset)]
            + [_release(user, index_of) for user in node.users if user.op != "output"]
        )
        for storage in storages.of(node):
            last[storage] = max(end, last.get(storage, end))
    return last


def _release(user: torch.fx.Node, index_of: dict[torch.fx.Node, int]) -> int:
    """When ``user`` no longer needs its input.

    A collective holds its input until it has been waited for: the process group's work
    object owns it.
    """
    if collective_kind(user) is None and not is_unclassified_collective(user):
        return index_of[user]
    waits = [index_of[follower] for follower in _with_items(user.users) if is_wait(follower)]
    return max([index_of[user], *waits])


def _with_items(nodes: Iterable[torch.fx.Node]) -> Iterable[torch.fx.Node]:
    """The nodes and, one level down, their users (a coalesced collective returns a list)."""
    for node in nodes:
        yield node
        yield from node.users


def _starts(
    forward_moments: list[torch.fx.Node], backward_moments: list[torch.fx.Node]
) -> dict[torch.fx.Node, int]:
    return {node: index for index, node in enumerate([*forward_moments, *backward_moments])}


def _lifetimes(
    table: StorageTable,
    last_use: dict[int, int],
    *,
    starts: dict[torch.fx.Node, int],
    backward_start: int,
    caller_keeps: set[int],
) -> Iterable[Lifetime]:
    for storage in table.storages:
        if storage.persistent:
            continue
        default = backward_start if storage.in_backward else 0
        start = starts.get(storage.creator, default)
        end = CALLER if storage.index in caller_keeps else last_use.get(storage.index, start)
        yield Lifetime(storage=storage.index, start=start, end=end)
