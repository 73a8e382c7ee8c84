"""Which nodes of a graph share a box of the drawing.

Nodes of a closed module share its box, one box a call. In an opened module a collective
stands alone (with its wait and the copies around it), and the module's own operators share
a box as long as nothing else runs between them: two operators are apart if a module, a
collective or another module's operators lie on a path from one to the other. So the
drawing of a program has no loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from autosp_inspector.export.module_tree import Scope
from autosp_inspector.export.pieces import connected_pieces, merge_independent
from autosp_inspector.export.transport import anchor_transport, is_telling
from autosp_inspector.rows import CollectiveRow, NodeRow

GroupKind = Literal["module", "operators", "collective", "input", "output"]
_Family = tuple[object, ...]


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
    """Node name -> its group."""
    return _Grouping(request).run()


class _Grouping:
    def __init__(self, request: GroupingRequest) -> None:
        self.request = request
        self.names = [node.name for node in request.nodes]
        known = set(self.names)
        self.inputs_of = {
            node.name: [name for name in request.inputs_of(node) if name in known]
            for node in request.nodes
        }
        self.users_of: dict[str, list[str]] = {}
        for name, sources in self.inputs_of.items():
            for source in sources:
                self.users_of.setdefault(source, []).append(name)
        self.anchors = anchor_transport(
            request.nodes,
            inputs_of=self.inputs_of,
            users_of=self.users_of,
            is_movable=self._joins_a_collective,
        )
        self.family_of = {node.name: self._family(node) for node in request.nodes}
        self.level_of = self._levels()

    def run(self) -> dict[str, Group]:
        pieces = self._pieces()
        by_piece: dict[object, Group] = {}
        by_name: dict[str, Group] = {}
        for node in self.request.nodes:
            scope = self.request.scope_of(node)
            piece = pieces[node.name]
            group = by_piece.setdefault(piece, Group(self._kind(node), scope))
            group.nodes.append(node)
            by_name[node.name] = group
        for group in by_piece.values():
            group.hidden = self._is_hidden(group)
        return by_name

    def _joins_a_collective(self, node: NodeRow) -> bool:
        """In a module drawn operator by operator, the copies can be seen."""
        scope = self.request.scope_of(node)
        is_copy = node.role in ("pack", "unpack")
        return self.request.is_open(scope) and not (is_copy and self.request.is_detailed(scope))

    def _kind(self, node: NodeRow) -> GroupKind:
        if node.op == "placeholder":
            return "input"
        if node.op == "output":
            return "output"
        if not self.request.is_open(self.request.scope_of(node)):
            return "module"
        return "collective" if node.name in self.anchors else "operators"

    def _family(self, node: NodeRow) -> _Family:
        """Only nodes of one family can share a box."""
        scope = self.request.scope_of(node)
        match self._kind(node):
            case "module":
                return ("module", scope.path, node.recomputed)
            case "collective":
                return self._collective_family(self.anchors[node.name], scope)
            case "operators" if not self.request.is_detailed(scope):
                return ("operators", scope.path)
            case kind:
                return (kind, node.name)

    def _collective_family(self, anchor: str, scope: Scope) -> _Family:
        row = self.request.collectives.get(anchor)
        if row is None or self.request.is_detailed(scope):
            return ("collective", anchor)
        route = (row.kind, row.axis, row.source_placement, row.target_placement)
        return ("collective", scope.path, *route)

    def _levels(self) -> dict[str, int]:
        """How many boxes lie before a node on the longest way to it."""
        levels: dict[str, int] = {}
        for name in self.names:
            before = (levels[s] + self._leaves_a_box(s, name) for s in self.inputs_of[name])
            levels[name] = max(before, default=0)
        return levels

    def _leaves_a_box(self, source: str, target: str) -> bool:
        if self.family_of[source] != self.family_of[target]:
            return True
        return self.anchors.get(source) != self.anchors.get(target)

    def _pieces(self) -> dict[str, object]:
        """A key for each box."""
        connected = connected_pieces(self.names, self.inputs_of, self._may_share)
        pieces: dict[str, object] = {}
        modules: dict[_Family, dict[str, list[str]]] = {}
        for name in self.names:
            family = self.family_of[name]
            if family[0] == "module":
                modules.setdefault(family, {}).setdefault(connected[name], []).append(name)
            elif family[0] == "collective":
                # A copy may come a level before its collective, and still shares its box.
                pieces[name] = (family, self.level_of[self.anchors[name]])
            else:
                pieces[name] = (family, connected[name])
        for family, found in modules.items():
            pieces.update(self._calls(family, found.values()))
        return pieces

    def _calls(self, family: _Family, found: Iterable[Sequence[str]]) -> dict[str, object]:
        """A module that is called twice is two boxes."""
        calls = merge_independent(tuple(found), self.users_of, self.level_of)
        return {name: (family, index) for index, call in enumerate(calls) for name in call}

    def _may_share(self, source: str, target: str) -> bool:
        family = self.family_of[source]
        if family != self.family_of[target]:
            return False
        # Inside a module's box, levels do not matter.
        return family[0] == "module" or self.level_of[source] == self.level_of[target]

    def _is_hidden(self, group: Group) -> bool:
        if group.kind != "operators" or self.request.is_detailed(group.scope):
            return False
        return not any(is_telling(node) for node in group.nodes)
