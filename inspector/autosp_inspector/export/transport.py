"""Collectives with what belongs to them: the wait, and the copies that pack and unpack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autosp_inspector.export.operators import is_layout_only
from autosp_inspector.rows import NodeRow

TRANSPORT_ROLES = frozenset({"collective", "wait", "pack", "unpack"})


def anchor_transport(
    nodes: Sequence[NodeRow],
    *,
    inputs_of: Mapping[str, Sequence[str]],
    users_of: Mapping[str, Sequence[str]],
    is_movable: Callable[[NodeRow], bool],
) -> dict[str, str]:
    """Collectives, and the waits and copies around them -> the collective's name.

    ``is_movable`` says which nodes may join a collective; the rest stays where it is.
    """
    anchors: dict[str, str] = {}
    movable = [node for node in nodes if node.role in TRANSPORT_ROLES and is_movable(node)]
    for node in movable:
        if node.role == "collective":
            anchors[node.name] = node.name
            continue
        _join(node.name, inputs_of[node.name], anchors)
    for node in reversed(movable):
        if node.name not in anchors:
            _join(node.name, users_of.get(node.name, ()), anchors)
    return anchors


def _join(name: str, neighbours: Sequence[str], anchors: dict[str, str]) -> None:
    carried = next((anchors[other] for other in neighbours if other in anchors), None)
    if carried is not None:
        anchors[name] = carried


def is_telling(node: NodeRow) -> bool:
    """Whether a node does more than move a tensor's elements within one rank."""
    if node.role in TRANSPORT_ROLES:
        return node.role == "collective"
    return node.role == "slice" or not is_layout_only(node.target)
