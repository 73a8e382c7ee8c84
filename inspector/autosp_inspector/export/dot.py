"""The module-level drawing in Graphviz's language: :func:`export_dot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import graphviz

from autosp_inspector.export.draw_modules import module_graph_of
from autosp_inspector.export.labels import (
    html_text,
    kind_text,
    shape_text,
    short_dtype,
    size_text,
    totals_text,
    visible_text,
    wrap_name,
)
from autosp_inspector.export.module_graph import Box, Frame, Link, ModuleGraph
from autosp_inspector.export.output_file import write_text
from autosp_inspector.export.placement_style import (
    COLLECTIVE,
    PlacementStyle,
    style_of,
    without_details,
)
from autosp_inspector.trace import Trace

FONT = "DejaVu Sans"
"""Laid out with the widest of the common sans-serif fonts, text fits its box in any."""
_INK = "#0f172a"
_QUIET_INK = "#64748b"
_FRAME_FILLS = ("#ffffff", "#f8fafc")
_NEAR_BOXES = 3
# Without these limits dot's network simplex takes minutes on graphs with long edges.
_LAYOUT_LIMITS = {"nslimit": "1", "nslimit1": "1", "mclimit": "0.1"}


def export_dot(
    trace: Trace,
    path: Path,
    *,
    depth: int | None = None,
    module: str = "",
    phase: str = "forward",
) -> ModuleGraph:
    """Write the drawing to ``path``; see :func:`module_graph_of` for the choices.

    Raises:
        ExportError: nothing to draw, or the file cannot be written.
    """
    graph = module_graph_of(trace, depth=depth, module=module, phase=phase)
    write_text(path, dot_source(graph))
    return graph


def dot_source(graph: ModuleGraph) -> str:
    """The drawing as DOT text, whatever characters its names hold."""
    drawing = graphviz.Digraph(
        "modules",
        graph_attr={
            **_LAYOUT_LIMITS,
            "label": _heading(graph),
            "labelloc": "t",
            "labeljust": "l",
            "fontname": FONT,
            "fontcolor": _INK,
            "bgcolor": "white",
            "pad": "0.3",
            "nodesep": "0.3",
            "ranksep": "0.35",
            "splines": "spline",
        },
        node_attr={
            "shape": "box",
            "style": "rounded,filled",
            "fontname": FONT,
            "fontsize": "11",
            "margin": "0.12,0.06",
            "penwidth": "1.3",
        },
        edge_attr={"penwidth": "1.3", "arrowsize": "0.7", "color": _QUIET_INK},
    )
    _add_contents(drawing, graph, frame_id="", level=0)
    straight = _straight_links(graph)
    for link in graph.links:
        drawing.edge(
            link.source,
            link.target,
            color=style_of(link.placement).line,
            weight="8" if link in straight else "1",
        )
    return str(drawing.source)


def _straight_links(graph: ModuleGraph) -> frozenset[Link]:
    """The main line through the drawing: a box's only step to a box right after it.

    What bends then is the detours: residuals, late inputs.
    """
    order = {box.id: index for index, box in enumerate(graph.boxes)}
    near: dict[str, list[Link]] = {}
    for link in graph.links:
        if abs(order[link.target] - order[link.source]) <= _NEAR_BOXES:
            near.setdefault(link.source, []).append(link)
    return frozenset(links[0] for links in near.values() if len(links) == 1)


def _add_contents(
    drawing: graphviz.Digraph, graph: ModuleGraph, *, frame_id: str, level: int
) -> None:
    for box in graph.boxes:
        if box.frame == frame_id:
            _add_box(drawing, box)
    for frame in graph.frames:
        if frame.parent != frame_id:
            continue
        with drawing.subgraph(name=f"cluster_{frame.id}") as inner:
            inner.attr(
                id=frame.id,
                label=_frame_label(frame, fill=_FRAME_FILLS[level % 2]),
                labeljust="l",
                style="rounded,filled",
                fillcolor=_FRAME_FILLS[level % 2],
                color="#475569" if frame.repeat > 1 else "#cbd5e1",
                penwidth="2.2" if frame.repeat > 1 else "1",
                margin="12",
                tooltip=_plain(frame.path),
            )
            _add_contents(inner, graph, frame_id=frame.id, level=level + 1)


def _add_box(drawing: graphviz.Digraph, box: Box) -> None:
    style = _style_of_box(box)
    lines = ["rounded", "filled"]
    if style.dashed:
        lines.append("dashed")
    drawing.node(
        box.id,
        id=box.id,
        label=_box_label(box, style),
        shape="box",
        style=",".join(lines),
        fillcolor=style.fill,
        color=style.line,
        penwidth="2" if box.kind == "collective" else "1.3",
        peripheries="2" if box.own_repeat > 1 else "1",
        tooltip=_plain(box.tooltip or box.title),
    )


def _style_of_box(box: Box) -> PlacementStyle:
    return COLLECTIVE if box.kind == "collective" else style_of(box.placement)


def _box_label(box: Box, style: PlacementStyle) -> str:
    times = f" ×{box.own_repeat}" if box.own_repeat > 1 else ""
    rows = [_line(text, size=13, bold=True, color=_INK) for text in wrap_name(box.title + times)]
    if box.kind == "operators":
        rows = [_line(text, size=12, color=_INK) for text in wrap_name(box.title)]
    if box.kind == "collective":
        return _table([*rows, *_collective_lines(box, style)])
    if box.subtitle:
        rows += [_line(text, size=10, color=_QUIET_INK) for text in wrap_name(box.subtitle)]
    if box.placement:
        rows.append(_line(box.placement, size=11, bold=True, color=style.ink))
    shape = " ".join((short_dtype(box.dtype), shape_text(box.global_shape, box.local_shape)))
    if shape.strip() and box.kind != "output":
        rows.append(_line(shape.strip(), size=10, color=style.ink))
    if box.inner_placements:
        inner = "inside: " + ", ".join(box.inner_placements)
        rows += [_line(text, size=10, color=_QUIET_INK) for text in wrap_name(inner)]
    if box.collectives:
        text = totals_text(box.collectives, repeat=box.own_repeat)
        rows += [_line(t, size=10, color=COLLECTIVE.ink) for t in wrap_name(text)]
    rows += [_line(note, size=10, italic=True, color=_QUIET_INK) for note in box.notes]
    return _table(rows)


def _collective_lines(box: Box, style: PlacementStyle) -> list[str]:
    rows = []
    if box.subtitle:
        rows.append(_line(box.subtitle, size=11, bold=True, color=style.ink))
    for total in box.collectives:
        in_all = " in all" if total.count > 1 else ""
        rows.append(_line(f"{size_text(total.bytes)}{in_all}", size=10, color=style.ink))
    return rows


def _frame_label(frame: Frame, *, fill: str) -> str:
    times = f" ×{frame.repeat}" if frame.repeat > 1 else ""
    rows = [_line(frame.title + times, size=13, bold=True, color=_INK)]
    if frame.module_class:
        rows.append(_line(frame.module_class, size=10, color=_QUIET_INK))
    if frame.collectives:
        each = " each" if frame.repeat > 1 else ""
        text = totals_text(frame.collectives) + each
        rows.append(_line(text, size=10, color=COLLECTIVE.ink))
    # With a background, the label stays readable where a line passes behind it.
    return _table(rows, fill=fill)


def _heading(graph: ModuleGraph) -> str:
    rows = [
        _line(graph.title, size=20, bold=True, color=_INK),
        _line(" · ".join((graph.phase, *graph.facts)), size=12, color=_QUIET_INK),
    ]
    for phase, totals in graph.totals.items():
        rows.append(_line(f"{phase}: {totals_text(totals)}", size=12, color=COLLECTIVE.ink))
    return _table([*rows, f'<TR><TD ALIGN="LEFT" CELLPADDING="8">{_legend(graph)}</TD></TR>'])


def _legend(graph: ModuleGraph) -> str:
    notations: dict[PlacementStyle, dict[str, None]] = {}
    for placement in graph.placements:
        notations.setdefault(style_of(placement), {})[without_details(placement)] = None
    cells = [_swatch(", ".join(found), style) for style, found in notations.items()]
    kinds = {
        kind_text(total.kind)
        for box in graph.boxes
        if box.kind == "collective"
        for total in box.collectives
    }
    if kinds:
        cells.append(_swatch(", ".join(sorted(kinds)), COLLECTIVE))
    rows = "".join(f"<TR>{cell}</TR>" for cell in cells)
    return f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="3" CELLPADDING="3">{rows}</TABLE>'


def _swatch(text: str, style: PlacementStyle) -> str:
    notation = _font(text, size=11, bold=True, color=style.ink)
    meaning = _font(style.name, size=11, color=_QUIET_INK)
    return (
        f'<TD ALIGN="LEFT" BORDER="1" COLOR="{style.line}" BGCOLOR="{style.fill}">{notation}</TD>'
        f'<TD ALIGN="LEFT">{meaning}</TD>'
    )


def _table(rows: Sequence[str], *, fill: str = "") -> str:
    background = f' BGCOLOR="{fill}"' if fill else ""
    attributes = f'BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="1"{background}'
    return f"<<TABLE {attributes}>{''.join(rows)}</TABLE>>"


def _line(text: str, *, size: int, color: str, bold: bool = False, italic: bool = False) -> str:
    styled = _font(text, size=size, color=color, bold=bold, italic=italic)
    return f'<TR><TD ALIGN="LEFT">{styled}</TD></TR>'


def _font(text: str, *, size: int, color: str, bold: bool = False, italic: bool = False) -> str:
    # An empty element is a syntax error in HTML-like labels.
    inside = html_text(text) or " "
    if bold:
        inside = f"<B>{inside}</B>"
    if italic:
        inside = f"<I>{inside}</I>"
    return f'<FONT POINT-SIZE="{size}" COLOR="{color}">{inside}</FONT>'


def _plain(text: str) -> str:
    """``text`` for a quoted attribute: no escape sequence, entity or tag in it acts."""
    lines = (visible_text(line) for line in text.split("\n"))
    safe = "\n".join(lines).replace("&", "&amp;")
    # A subclass of str that keeps the quoting code from seeing a label in "<...>".
    escaped: str = graphviz.escape(safe)
    return escaped
