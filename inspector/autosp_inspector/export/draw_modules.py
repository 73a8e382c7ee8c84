"""Builds the module-level drawing of a trace: :func:`module_graph_of`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from autosp_inspector.errors import ExportError
from autosp_inspector.export.adoption import adopt_orphans
from autosp_inspector.export.canvas import Canvas, collective_totals
from autosp_inspector.export.module_graph import Box, CollectiveTotal, ModuleGraph
from autosp_inspector.export.module_tree import (
    Scope,
    build_module_tree,
    deepest_level,
    matched_paths,
)
from autosp_inspector.export.placement_style import legend_rank
from autosp_inspector.queries.collectives import list_collectives
from autosp_inspector.queries.nodes import graph_names, list_nodes
from autosp_inspector.rows import CollectiveRow, NodeRow, RunRow
from autosp_inspector.trace import Trace

MOST_BOXES_BY_DEFAULT = 60
"""A drawing is opened as deep as it stays below this: about one readable page."""

_SWITCHES = frozenset({"_set_grad_enabled", "_enter_autocast", "_exit_autocast"})
"""Modes turned on or off: no data goes in or out."""


def module_graph_of(
    trace: Trace, *, depth: int | None = None, module: str = "", phase: str = "forward"
) -> ModuleGraph:
    """The module-level drawing of one phase.

    Args:
        trace: an open trace.
        depth: levels of modules to draw, at least 1; None opens as much as is readable.
        module: a glob of modules to open down to their operators, such as ``layers.0.*``.
        phase: ``forward`` or ``backward``.

    Raises:
        ExportError: no such graph in the trace, a depth below 1, or a pattern that
            matches nothing.
    """
    if depth is not None and depth < 1:
        raise ExportError(f"--depth is {depth}", hint="Give 1 or more")
    graph = _graph_for(trace, phase)
    nodes = list_nodes(trace, graph=graph)
    collectives = list_collectives(trace, graph=graph)
    step = list_collectives(trace)
    return draw_modules(
        nodes,
        collectives=collectives,
        run=trace.run,
        totals=_totals_by_phase(step),
        depth=depth,
        module=module,
        phase=phase,
    )


def draw_modules(
    nodes: Sequence[NodeRow],
    *,
    collectives: Iterable[CollectiveRow],
    run: RunRow,
    totals: dict[str, tuple[CollectiveTotal, ...]],
    depth: int | None = None,
    module: str = "",
    phase: str = "forward",
) -> ModuleGraph:
    """The same from rows: ``nodes`` of one graph, in order, and its collectives."""
    drawn = _drawn_nodes(nodes)
    if not drawn:
        raise ExportError(f"the {phase} graph has no operators to draw")
    if phase == "backward":
        drawn = adopt_orphans(drawn)
    root = build_module_tree(drawn)
    by_node = {row.name: row for row in collectives}
    _check_pattern(root, module)
    canvas = _choose_canvas(drawn, root, by_node, depth=depth, module=module)
    boxes = canvas.boxes()
    return ModuleGraph(
        phase=phase,
        title=run.model or Path(run.path).stem,
        facts=_facts(run),
        depth=canvas.depth,
        boxes=boxes,
        frames=canvas.frames(),
        links=canvas.links(),
        placements=_placements(boxes),
        totals=totals,
    )


def _graph_for(trace: Trace, phase: str) -> str:
    names = graph_names(trace)
    wanted = ("program", "forward") if phase == "forward" else (phase,)
    for name in wanted:
        if name in names:
            return name
    recorded = ", ".join(names) or "none"
    raise ExportError(
        f"the trace has no {phase} graph to draw (recorded: {recorded})",
        where=str(trace.path),
    )


def _drawn_nodes(nodes: Sequence[NodeRow]) -> tuple[NodeRow, ...]:
    """Without parameters, saved tensors and constants: long lines that say little."""
    is_backward = any(node.phase == "backward" for node in nodes)
    return tuple(node for node in nodes if _is_drawn(node, is_backward=is_backward))


def _is_drawn(node: NodeRow, *, is_backward: bool) -> bool:
    if node.op == "get_attr" or node.target in _SWITCHES:
        return False
    if node.op == "placeholder":
        if is_backward:
            return node.name.startswith("tangents")
        return node.role == "input" and "." not in node.target
    # The backward's output lists every gradient, so that everything would lead to it.
    return not (is_backward and node.op == "output")


def _check_pattern(root: Scope, module: str) -> None:
    if not module or matched_paths(root, module):
        return
    paths = [scope.path for scope in root.walk() if scope.path]
    close = get_close_matches(module, paths, n=3, cutoff=0.4) or paths[:3]
    hint = f"Some that exist: {', '.join(close)}" if close else "This program names no modules"
    raise ExportError(f"no module matches {module!r}", hint=hint)


def _totals_by_phase(
    collectives: Iterable[CollectiveRow],
) -> dict[str, tuple[CollectiveTotal, ...]]:
    by_phase: dict[str, list[CollectiveRow]] = {}
    for row in collectives:
        by_phase.setdefault(row.phase, []).append(row)
    return {phase: collective_totals(rows) for phase, rows in by_phase.items()}


def _facts(run: RunRow) -> tuple[str, ...]:
    axes = {axis: size for axis, size in run.mesh.items() if size > 1} or run.mesh
    facts = [" × ".join(f"{axis} {size}" for axis, size in axes.items())] if axes else []
    for key in ("seq", "batch", "dtype", "gpu"):
        value = run.config.get(key)
        if value is not None:
            facts.append(f"{key} {value}")
    return tuple(facts)


def _placements(boxes: Iterable[Box]) -> tuple[str, ...]:
    """In the same order in every drawing: sequence, heads, other cuts, partial, whole."""
    found = {p for box in boxes for p in (box.placement, *box.inner_placements) if p is not None}
    return tuple(sorted(found, key=lambda p: (legend_rank(p), p)))


def _choose_canvas(
    nodes: Sequence[NodeRow],
    root: Scope,
    collectives: Mapping[str, CollectiveRow],
    *,
    depth: int | None,
    module: str,
) -> Canvas:
    if depth is not None:
        return Canvas.lay_out(nodes, root, collectives, depth=depth, module=module)
    for candidate in range(deepest_level(root), 1, -1):
        canvas = Canvas.lay_out(nodes, root, collectives, depth=candidate, module=module)
        if canvas.num_boxes <= MOST_BOXES_BY_DEFAULT:
            return canvas
    return Canvas.lay_out(nodes, root, collectives, depth=1, module=module)
