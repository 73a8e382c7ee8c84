"""One choice of what a drawing opens, and the boxes, frames and links that follow from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autosp_inspector.export.grouping import Group, GroupingRequest, group_nodes
from autosp_inspector.export.labels import kind_text
from autosp_inspector.export.layer_folds import Folds, fold_layers
from autosp_inspector.export.module_graph import Box, CollectiveTotal, Frame, Link
from autosp_inspector.export.module_tree import Scope, matched_paths, opened_paths
from autosp_inspector.export.operators import describe_operators, short_name
from autosp_inspector.export.transport import is_telling
from autosp_inspector.rows import CollectiveRow, NodeRow

MOST_LINKS_FROM_A_BOX = 6
"""A value used in more places (a rotary table) is named there instead of drawn."""


@dataclass(frozen=True, slots=True)
class Canvas:
    """Everything that one choice of depth and pattern decides."""

    root: Scope
    depth: int
    opened: frozenset[str]
    folds: Folds
    nodes: tuple[NodeRow, ...]
    """Those that are drawn, each for all its repetitions."""
    group_of: Mapping[str, Group]
    collectives: Mapping[str, CollectiveRow]

    @classmethod
    def lay_out(
        cls,
        nodes: Sequence[NodeRow],
        root: Scope,
        collectives: Mapping[str, CollectiveRow],
        *,
        depth: int,
        module: str,
    ) -> Canvas:
        matched = matched_paths(root, module)
        wanted = opened_paths(root, depth=depth, pattern=module)
        opened = frozenset(
            scope.path
            for scope in root.walk()
            if scope.path in matched or (scope.path in wanted and _has_insides(scope))
        )
        folds = fold_layers(
            root,
            is_open=lambda scope: scope.path in opened,
            collectives=collectives,
            keep_apart=opened_paths(root, depth=0, pattern=module),
        )
        visible = _visible_scope_by_path(root, opened)
        kept = tuple(node for node in nodes if node.name not in folds.drawn_for)
        request = GroupingRequest(
            nodes=kept,
            inputs_of=folds.inputs_of,
            scope_of=lambda node: visible[node.module],
            is_open=lambda scope: scope.path in opened,
            is_detailed=lambda scope: scope.path in matched,
            collectives=collectives,
        )
        return cls(
            root=root,
            depth=depth,
            opened=opened,
            folds=folds,
            nodes=kept,
            group_of=group_nodes(request),
            collectives=collectives,
        )

    @property
    def num_boxes(self) -> int:
        return sum(not group.hidden for group in self._groups())

    def _groups(self) -> tuple[Group, ...]:
        return tuple(dict.fromkeys(self.group_of[node.name] for node in self.nodes))

    def _drawn_groups(self) -> dict[Group, str]:
        visible = [group for group in self._groups() if not group.hidden]
        return {group: f"box{index}" for index, group in enumerate(visible)}

    def _frame_ids(self) -> dict[str, str]:
        """Opened modules that hold something drawn -> frame id, parents first."""
        needed: set[str] = set()
        for group in self._drawn_groups():
            current = group.scope if group.scope.path in self.opened else group.scope.parent
            while current is not None and current.path not in needed:
                needed.add(current.path)
                current = current.parent
        ordered = [scope.path for scope in self.root.walk() if scope.path and scope.path in needed]
        return {path: f"frame{index}" for index, path in enumerate(ordered)}

    def frames(self) -> tuple[Frame, ...]:
        ids = self._frame_ids()
        scopes = {scope.path: scope for scope in self.root.walk()}
        return tuple(
            self._frame(scopes[path], frame_id=frame_id, ids=ids) for path, frame_id in ids.items()
        )

    def _frame(self, scope: Scope, *, frame_id: str, ids: Mapping[str, str]) -> Frame:
        repeat = self.folds.repeats.get(scope.path)
        parent = scope.parent.path if scope.parent is not None else ""
        return Frame(
            id=frame_id,
            parent=ids.get(parent, ""),
            title=repeat.label if repeat else scope.label,
            module_class=scope.module_class,
            path=scope.path,
            repeat=repeat.count if repeat else 1,
            collectives=self._collectives_in(scope.subtree_nodes()),
        )

    def _collectives_in(self, nodes: Iterable[NodeRow]) -> tuple[CollectiveTotal, ...]:
        rows = (self.collectives.get(node.name) for node in nodes)
        return collective_totals(row for row in rows if row is not None)

    def boxes(self) -> tuple[Box, ...]:
        ids = self._drawn_groups()
        frames = self._frame_ids()
        leaving = self._nodes_with_outside_users()
        notes = self._hub_notes()
        return tuple(
            self._box(
                group,
                box_id=box_id,
                frames=frames,
                leaving=[node for node in group.nodes if node.name in leaving],
                notes=(*_recomputation_note(group), *notes.get(group, ())),
            )
            for group, box_id in ids.items()
        )

    def _box(
        self,
        group: Group,
        *,
        box_id: str,
        frames: Mapping[str, str],
        leaving: Sequence[NodeRow],
        notes: tuple[str, ...],
    ) -> Box:
        is_module = group.kind == "module"
        frame_scope = group.scope.parent if is_module else group.scope
        repeat = self.folds.repeats.get(group.scope.path) if is_module else None
        result = _representative(leaving or group.nodes)
        placement = result.placement if result is not None else None
        totals = self._collectives_in(group.nodes)
        title, subtitle = self._names(group, repeat_label=repeat.label if repeat else "")
        if group.kind == "collective":
            placement = self._target_placement(group) or placement
        return Box(
            id=box_id,
            kind=group.kind,
            frame=frames.get(frame_scope.path, "") if frame_scope is not None else "",
            title=title,
            subtitle=subtitle,
            placement=placement,
            inner_placements=_other_placements(group.nodes, placement) if is_module else (),
            dtype=result.dtype if result is not None else None,
            global_shape=result.global_shape if result is not None else None,
            local_shape=result.local_shape if result is not None else None,
            collectives=totals,
            repeat=self.folds.multiplicity(group.scope),
            own_repeat=repeat.count if repeat else 1,
            notes=notes,
            tooltip=self._tooltip(group),
        )

    def _names(self, group: Group, *, repeat_label: str) -> tuple[str, str]:
        first = group.nodes[0]
        if group.kind == "module":
            return repeat_label or group.scope.label or "model", group.scope.module_class
        if group.kind == "input":
            return first.target or first.name, "input"
        if group.kind == "output":
            return "output", ""
        if group.kind == "collective":
            return self._collective_names(group)
        return _operator_title(group), ""

    def _collective_names(self, group: Group) -> tuple[str, str]:
        rows = self._rows_of(group)
        if not rows:
            return short_name(group.nodes[0].target), ""
        row = rows[0]
        route = f"{row.source_placement} → {row.target_placement}"
        amount = f"{len(rows)} " if len(rows) > 1 else ""
        title = f"{amount}{kind_text(row.kind)} over {row.axis}"
        return title, route if row.target_placement else ""

    def _rows_of(self, group: Group) -> list[CollectiveRow]:
        rows = (self.collectives.get(node.name) for node in group.nodes)
        return [row for row in rows if row is not None]

    def _target_placement(self, group: Group) -> str | None:
        rows = self._rows_of(group)
        return (rows[0].target_placement or None) if rows else None

    def _tooltip(self, group: Group) -> str:
        if group.kind == "collective":
            reasons = dict.fromkeys(row.reason for row in self._rows_of(group) if row.reason)
            return "\n".join(reasons)
        if group.kind == "module":
            return f"{group.scope.path} ({len(group.nodes)} nodes)"
        return "\n".join(node.name for node in group.nodes[:20])

    def _nodes_with_outside_users(self) -> frozenset[str]:
        return frozenset(
            name
            for node in self.nodes
            for name in self.folds.inputs_of(node)
            if name in self.group_of and self.group_of[name] is not self.group_of[node.name]
        )

    def _edges(self) -> dict[tuple[Group, Group], str | None]:
        """Between drawn groups; those that only rearrange are passed through."""
        direct: dict[Group, dict[Group, str | None]] = {}
        rows = {node.name: node for node in self.nodes}
        for node in self.nodes:
            target = self.group_of[node.name]
            for name in self.folds.inputs_of(node):
                source = self.group_of.get(name)
                if source is not None and source is not target:
                    direct.setdefault(source, {}).setdefault(target, rows[name].placement)
        edges: dict[tuple[Group, Group], str | None] = {}
        for source, targets in direct.items():
            if source.hidden:
                continue
            for target, placement in _past_hidden(targets, direct):
                if target is not source:
                    edges.setdefault((source, target), placement)
        return edges

    def _hubs(self) -> frozenset[Group]:
        uses = Counter(source for source, _ in self._edges())
        return frozenset(g for g, count in uses.items() if count > MOST_LINKS_FROM_A_BOX)

    def _hub_notes(self) -> dict[Group, list[str]]:
        hubs = self._hubs()
        notes: dict[Group, list[str]] = {}
        for source, target in self._edges():
            if source in hubs:
                title, _ = self._names(source, repeat_label="")
                notes.setdefault(target, []).append(f"uses {title}")
        return notes

    def links(self) -> tuple[Link, ...]:
        ids = self._drawn_groups()
        hubs = self._hubs()
        return tuple(
            Link(source=ids[source], target=ids[target], placement=placement)
            for (source, target), placement in self._edges().items()
            if source not in hubs
        )


def _past_hidden(
    targets: Mapping[Group, str | None], direct: Mapping[Group, Mapping[Group, str | None]]
) -> list[tuple[Group, str | None]]:
    reached: dict[Group, str | None] = {}
    waiting = list(targets.items())
    seen: set[Group] = set()
    while waiting:
        target, placement = waiting.pop()
        if not target.hidden:
            reached.setdefault(target, placement)
        elif target not in seen:
            seen.add(target)
            waiting.extend(direct.get(target, {}).items())
    return list(reached.items())


def _has_insides(scope: Scope) -> bool:
    """Opening a module of a single operator would only put a frame around a box."""
    if scope.children or not scope.path:
        return True
    return any(node.role == "collective" for node in scope.own_nodes)


def _visible_scope_by_path(root: Scope, opened: frozenset[str]) -> dict[str, Scope]:
    """Module path -> the opened module itself, or the closed one that hides it."""
    visible: dict[str, Scope] = {}

    def visit(scope: Scope, hidden_by: Scope | None) -> None:
        shown = hidden_by or scope
        visible[scope.path] = shown
        closed = hidden_by or (None if scope.path in opened else scope)
        for child in scope.children:
            visit(child, closed)

    visit(root, None)
    return visible


def _recomputation_note(group: Group) -> tuple[str, ...]:
    is_again = all(node.recomputed for node in group.nodes)
    return ("recomputed forward",) if is_again else ()


def _representative(nodes: Sequence[NodeRow]) -> NodeRow | None:
    """A node with the most frequent placement, the last of the largest ones."""
    sized = [node for node in nodes if node.local_shape is not None]
    if not sized:
        return nodes[-1] if nodes else None
    placed = [node.placement for node in sized if node.placement is not None]
    placement = Counter(placed).most_common(1)[0][0] if placed else None
    same = [node for node in sized if node.placement == placement]
    return max(same, key=lambda node: (node.local_bytes or 0, node.position))


def _other_placements(nodes: Iterable[NodeRow], main: str | None) -> tuple[str, ...]:
    counts = Counter(
        node.placement for node in nodes if node.placement is not None and node.placement != main
    )
    return tuple(placement for placement, _ in counts.most_common() if placement is not None)


def _operator_title(group: Group) -> str:
    slices = [node for node in group.nodes if node.role == "slice"]
    computing = [node for node in group.nodes if node.role != "slice" and is_telling(node)]
    named = list(describe_operators(node.target for node in computing or group.nodes))
    if slices:
        if not computing:
            named = []
        named.insert(0, "local slice")
    return ", ".join(named)


def collective_totals(rows: Iterable[CollectiveRow]) -> tuple[CollectiveTotal, ...]:
    """Count and bytes by kind, in order of first appearance."""
    by_kind: dict[str, list[int]] = {}
    for row in rows:
        by_kind.setdefault(row.kind, []).append(row.bytes)
    return tuple(
        CollectiveTotal(kind=kind, count=len(sizes), bytes=sum(sizes))
        for kind, sizes in by_kind.items()
    )
