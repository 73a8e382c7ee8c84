"""The module-level drawing as an SVG file: :func:`export_svg`."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from autosp_inspector.export.dot import FONT, dot_source
from autosp_inspector.export.draw_modules import module_graph_of
from autosp_inspector.export.labels import visible_text
from autosp_inspector.export.layout import DEFAULT_TIME_LIMIT_S, LayoutError, draw_svg
from autosp_inspector.export.module_graph import ModuleGraph
from autosp_inspector.export.output_file import write_text
from autosp_inspector.trace import Trace

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_FONT_FAMILIES = f"'{FONT}', Verdana, Helvetica, Arial, sans-serif"


def export_svg(
    trace: Trace,
    path: Path,
    *,
    depth: int | None = None,
    module: str = "",
    phase: str = "forward",
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
) -> ModuleGraph:
    """Draw a trace's modules to ``path``; see :func:`module_graph_of` for the choices.

    Raises:
        LayoutError: the layout took too long or failed; the DOT text then lies beside
            ``path``, with the suffix ``.dot``.
        ExportError: nothing to draw, or the file cannot be written.
    """
    graph = module_graph_of(trace, depth=depth, module=module, phase=phase)
    source = dot_source(graph)
    try:
        drawn = draw_svg(source, time_limit_s=time_limit_s)
    except LayoutError as error:
        dot_path = path.with_suffix(".dot")
        write_text(dot_path, source)
        raise LayoutError(
            f"{error.message}; the graph itself is in {dot_path}", hint=error.hint
        ) from error
    write_text(path, finish_svg(drawn, title=graph.title))
    return graph


def finish_svg(drawn: str, *, title: str) -> str:
    """Graphviz's SVG without its outer references, with the tooltips browsers show."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    root = ElementTree.fromstring(drawn)
    for group in root.iter(f"{{{_SVG}}}g"):
        _settle_tooltip(group)
    _raise_frame_labels(root)
    for text in root.iter(f"{{{_SVG}}}text"):
        text.set("font-family", _FONT_FAMILIES)
    heading = root.find(f"./{{{_SVG}}}g/{{{_SVG}}}title")
    if heading is not None:
        heading.text = visible_text(title)
    root.set("role", "img")
    declaration = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return declaration + ElementTree.tostring(root, encoding="unicode") + "\n"


def _settle_tooltip(group: ElementTree.Element) -> None:
    """Turn Graphviz's ``<g><a xlink:title=…>`` into a ``<title>``, and drop bare ids."""
    name = group.find(f"{{{_SVG}}}title")
    tooltip = None
    for anchored in list(group):
        link = anchored.find(f"{{{_SVG}}}a") if anchored.tag == f"{{{_SVG}}}g" else None
        if link is None:
            continue
        tooltip = link.get(f"{{{_XLINK}}}title") or tooltip
        position = list(group).index(anchored)
        group.remove(anchored)
        for offset, shape in enumerate(list(link)):
            group.insert(position + offset, shape)
    if name is None:
        return
    if tooltip:
        name.text = tooltip
    elif group.get("class") in ("edge", "node", "cluster"):
        group.remove(name)


def _raise_frame_labels(root: ElementTree.Element) -> None:
    """Move the labels of frames above the lines that cross them."""
    drawing = root.find(f"{{{_SVG}}}g")
    if drawing is None:
        return
    labels = ElementTree.Element(f"{{{_SVG}}}g", {"class": "frame-labels"})
    for group in drawing.findall(f"{{{_SVG}}}g[@class='cluster']"):
        outline_seen = False
        for shape in list(group):
            if shape.tag == f"{{{_SVG}}}title":
                continue
            if outline_seen:
                group.remove(shape)
                labels.append(shape)
            outline_seen = True
    drawing.append(labels)
