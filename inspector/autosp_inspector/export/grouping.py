"""Which nodes of a graph share a box of the drawing.

Nodes of a closed module share its box. In an opened module a collective stands alone
(with its wait and the copies around it), and the module's own operators share a box as
long as nothing else runs between them: two operators are apart if a module, a collective
or another module's operators lie on a path from one to the other, so the drawing of a
program without loops has no loops either (but for modules that are called twice).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from autosp_inspector.export.module_tree import Scope
from autosp_inspector.export.operators import is_layout_only
from autosp_inspector.rows import CollectiveRow, NodeRow

TRANSPORT_ROLES = frozenset({"collective", "wait", "pack", "unpack"})

GroupKind = Literal["module", "operators", "collective", "input", "output"]


@dataclass(slots=True, eq=False)
class Group:
    """Nodes that are drawn as one box. ``scope`` is the module, or the one around it."""

    kind: GroupKind
    scope: Scope
    nodes: list[NodeRow] = field(default_factory=list)
    hidden: bool = False
    """Rearranges tensors only: links lead past it."""


@dataclass(frozen=True, slots=True)
class GroupingRequest:
    """``nodes`` in graph order; ``scope_of`` gives the visible scope of a node."""

    nodes: Sequence[NodeRow]
    inputs_of: Callable[[NodeRow], Sequence[str]]
    scope_of: Callable[[NodeRow], Scope]
    is_open: Callable[[Scope], bool]
    is_detailed: Callable[[Scope], bool]
    """Modules in which every operator gets a box of its own."""
    collectives: Mapping[str, CollectiveRow]


def group_nodes(request: GroupingRequest) -> dict[str, Group]:
    """Node name -> its group. Groups come in the order of their first nodes."""
    anchors = _anchor_transport(request)
    levels: dict[str, int] = {}
    keys: dict[str, tuple[object, ...]] = {}
    groups: dict[tuple[object, ...], Group] = {}
    for node in request.nodes:
        scope = request.scope_of(node)
        inputs = [name for name in request.inputs_of(node) if name in keys]
        kind = _kind(node, scope, request, anchors)
        family = _family(node, kind, scope, request, anchors)
        levels[node.name] = max(
            (
                levels[name] + _is_crossing(name, node.name, keys[name][0], family, anchors)
                for name in inputs
            ),
            default=0,
        )
        keys[node.name] = (family, levels[node.name])
    for name, anchor in anchors.items():
        # A copy may come a level before its collective, and must still share its box.
        keys[name] = (keys[name][0], levels[anchor])
    by_name: dict[str, Group] = {}
    components = _components(request, keys)
    for node in request.nodes:
        scope = request.scope_of(node)
        kind = _kind(node, scope, request, anchors)
        key = _group_key(node, kind, keys[node.name], components)
        group = groups.setdefault(key, Group(kind=kind, scope=scope))
        group.nodes.append(node)
        by_name[node.name] = group
    for group in groups.values():
        group.hidden = _is_hidden(group, request)
    return by_name


def _is_crossing(
    source: str,
    target: str,
    source_family: object,
    target_family: object,
    anchors: Mapping[str, str],
) -> bool:
    """Whether a step leads out of a box, even if both ends could share one."""
    return source_family != target_family or anchors.get(source) != anchors.get(target)


def _kind(
    node: NodeRow, scope: Scope, request: GroupingRequest, anchors: Mapping[str, str]
) -> GroupKind:
    if node.op == "placeholder":
        return "input"
    if node.op == "output":
        return "output"
    if not request.is_open(scope):
        return "module"
    return "collective" if node.name in anchors else "operators"


def _family(
    node: NodeRow,
    kind: GroupKind,
    scope: Scope,
    request: GroupingRequest,
    anchors: Mapping[str, str],
) -> tuple[object, ...]:
    """Nodes of one family may share a box if their level is the same too."""
    if kind == "module":
        return ("module", scope.path)
    if kind == "collective":
        row = request.collectives.get(anchors[node.name])
        if row is None or request.is_detailed(scope):
            return ("collective", anchors[node.name])
        route = (row.kind, row.axis, row.source_placement, row.target_placement)
        return ("collective", scope.path, *route)
    if kind == "operators" and not request.is_detailed(scope):
        return ("operators", scope.path)
    return (kind, node.name)


def _group_key(
    node: NodeRow,
    kind: GroupKind,
    key: tuple[object, ...],
    components: Mapping[str, str],
) -> tuple[object, ...]:
    family, level = key
    if kind == "module":
        return (family,)
    if kind == "operators":
        return (family, level, components[node.name])
    return (family, level)


def _components(request: GroupingRequest, keys: Mapping[str, tuple[object, ...]]) -> dict[str, str]:
    """Name of the first node of each connected piece of equal keys."""
    parent: dict[str, str] = {node.name: node.name for node in request.nodes}

    def find(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for node in request.nodes:
        for name in request.inputs_of(node):
            if name in keys and keys[name] == keys[node.name]:
                parent[find(node.name)] = find(name)
    return {name: find(name) for name in parent}


def _anchor_transport(request: GroupingRequest) -> dict[str, str]:
    """Collectives, and the waits and copies around them -> the collective's name.

    In a module that is drawn operator by operator, only the collective itself and its
    wait count, so that the copies can be seen.
    """
    anchors: dict[str, str] = {}
    movable = [node for node in request.nodes if _is_transport(node, request)]
    for node in movable:
        if node.role == "collective":
            anchors[node.name] = node.name
            continue
        carried = [name for name in request.inputs_of(node) if name in anchors]
        if carried:
            anchors[node.name] = anchors[carried[0]]
    users: dict[str, list[str]] = {}
    for node in request.nodes:
        for name in request.inputs_of(node):
            users.setdefault(name, []).append(node.name)
    for node in reversed(movable):
        carried = [name for name in users.get(node.name, []) if name in anchors]
        if carried and node.name not in anchors:
            anchors[node.name] = anchors[carried[0]]
    return anchors


def _is_transport(node: NodeRow, request: GroupingRequest) -> bool:
    scope = request.scope_of(node)
    if not request.is_open(scope):
        return False
    shown_apart = request.is_detailed(scope) and node.role in ("pack", "unpack")
    return node.role in TRANSPORT_ROLES and not shown_apart


def _is_hidden(group: Group, request: GroupingRequest) -> bool:
    if group.kind != "operators" or request.is_detailed(group.scope):
        return False
    return not any(is_telling(node) for node in group.nodes)


def is_telling(node: NodeRow) -> bool:
    """Whether a node does more than move a tensor's elements within one rank."""
    if node.role in TRANSPORT_ROLES:
        return node.role == "collective"
    return node.role == "slice" or not is_layout_only(node.target)
