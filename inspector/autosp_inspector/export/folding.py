"""Repeated layers: which neighbouring modules are the same program, so that one is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autosp_inspector.export.module_tree import Scope
from autosp_inspector.rows import CollectiveRow, NodeRow


@dataclass(frozen=True, slots=True)
class Repeat:
    """Neighbouring modules with the same operators, shapes, placements and collectives."""

    first: Scope
    """The one that is drawn: the first to run."""
    members: tuple[Scope, ...]

    @property
    def label(self) -> str:
        """``layers.0–31`` (indices in ascending order, also where they run backward)."""
        indexed = [member.container_index for member in self.members]
        indices = sorted(pair[1] for pair in indexed if pair is not None)
        container = self.first.label.rpartition(".")[0]
        prefix = f"{container}." if container else ""
        return f"{prefix}{indices[0]}–{indices[-1]}"

    @property
    def count(self) -> int:
        return len(self.members)


def find_repeats(
    children: Iterable[Scope],
    *,
    collectives: Mapping[str, CollectiveRow],
    keep_apart: frozenset[str],
) -> tuple[Repeat, ...]:
    """Runs of at least two equal neighbours among the modules of one parent.

    Args:
        children: modules in the order they run.
        collectives: by the name of their node.
        keep_apart: paths that are never folded, because the reader asked to see them.
    """
    repeats: list[Repeat] = []
    run: list[Scope] = []
    run_signature: object = None
    for child in children:
        signature = None if child.path in keep_apart else _signature(child, collectives)
        if run and signature is not None and signature == run_signature and _follows(run, child):
            run.append(child)
            continue
        _close(run, repeats)
        run = [child] if signature is not None else []
        run_signature = signature
    _close(run, repeats)
    return tuple(repeats)


def _close(run: list[Scope], repeats: list[Repeat]) -> None:
    if len(run) > 1:
        repeats.append(Repeat(first=run[0], members=tuple(run)))


def _follows(run: list[Scope], child: Scope) -> bool:
    """Whether the index goes on counting in the run's direction (backward counts down)."""
    last, this = run[-1].container_index, child.container_index
    if last is None or this is None or last[0] != this[0]:
        return False
    step = this[1] - last[1]
    if len(run) == 1:
        return step in (1, -1)
    first = run[0].container_index
    return first is not None and step == (1 if last[1] > first[1] else -1)


def _signature(scope: Scope, collectives: Mapping[str, CollectiveRow]) -> object | None:
    """What must be equal for two modules to be drawn as one; None for unindexed ones."""
    if scope.container_index is None:
        return None
    nodes = scope.subtree_nodes()
    local_index = {node.name: index for index, node in enumerate(nodes)}
    return tuple(
        (
            _node_signature(node, scope.path),
            tuple(local_index.get(name, -1) for name in node.inputs),
            _collective_signature(collectives.get(node.name)),
        )
        for node in nodes
    )


def _node_signature(node: NodeRow, path: str) -> tuple[object, ...]:
    return (
        node.module[len(path) :],
        node.op,
        node.target if node.op == "call_function" else "",
        node.role,
        node.dtype,
        node.global_shape,
        node.local_shape,
        node.placement,
    )


def _collective_signature(row: CollectiveRow | None) -> tuple[object, ...]:
    if row is None:
        return ()
    return (row.kind, row.axis, row.bytes, row.source_placement, row.target_placement)


def align_members(repeat: Repeat) -> dict[str, str]:
    """Node name in any member -> name of the node that is drawn for it."""
    drawn = [node.name for node in repeat.first.subtree_nodes()]
    aligned: dict[str, str] = {}
    for member in repeat.members[1:]:
        names = (node.name for node in member.subtree_nodes())
        aligned.update(zip(names, drawn, strict=True))
    return aligned
