"""SVG and DOT files of a recorded trace."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from autosp_inspector.errors import ExportError
from autosp_inspector.export.dot import export_dot
from autosp_inspector.export.layout import LayoutError, draw_svg, layout_commands
from autosp_inspector.export.svg import export_svg
from autosp_inspector.trace import open_trace
from tests.support.synthetic import write_synthetic_trace


@pytest.fixture(scope="module")
def trace_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "model.autosp"
    write_synthetic_trace(path, num_layers=4, sp=4)
    return path


def svg_words(path: Path) -> str:
    return "\n".join(ElementTree.parse(path).getroot().itertext())


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_svg_shows_layers_placements_and_collectives(
    trace_path: Path, tmp_path: Path, phase: str
) -> None:
    with open_trace(trace_path) as trace:
        export_svg(trace, tmp_path / "graph.svg", phase=phase)

    words = svg_words(tmp_path / "graph.svg")
    assert "layers.0–3 ×4" in words
    assert "S(1:seq)" in words
    assert "all-to-all over sp" in words
    assert "sharded over the sequence" in words
    assert "sp 4" in words


def test_svg_holds_no_script_link_or_outer_reference(trace_path: Path, tmp_path: Path) -> None:
    with open_trace(trace_path) as trace:
        export_svg(trace, tmp_path / "graph.svg")

    text = (tmp_path / "graph.svg").read_text(encoding="utf-8")
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()}
    assert tags <= {"svg", "g", "title", "path", "polygon", "polyline", "ellipse", "text"}
    assert "DOCTYPE" not in text
    assert "href" not in text


def test_svg_keeps_tooltips_as_titles(trace_path: Path, tmp_path: Path) -> None:
    with open_trace(trace_path) as trace:
        export_svg(trace, tmp_path / "graph.svg", depth=1)

    assert "layers.0 (" in svg_words(tmp_path / "graph.svg")


def test_dot_limits_the_layout_and_never_colours_without_words(
    trace_path: Path, tmp_path: Path
) -> None:
    with open_trace(trace_path) as trace:
        graph = export_dot(trace, tmp_path / "graph.dot")

    text = (tmp_path / "graph.dot").read_text(encoding="utf-8")
    for limit in ("nslimit=1", "nslimit1=1", "mclimit=0.1"):
        assert limit in text
    for box in graph.boxes:
        if box.placement:
            assert box.placement in text


def test_both_layout_programs_that_may_be_there_are_found() -> None:
    names = [command.name for command in layout_commands()]
    assert "graphviz-pure" in names


def test_without_a_layout_program_the_dot_is_still_written(
    trace_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with open_trace(trace_path) as trace, pytest.raises(LayoutError, match="no Graphviz") as error:
        export_svg(trace, tmp_path / "graph.svg")

    assert str(tmp_path / "graph.dot") in str(error.value)
    assert (tmp_path / "graph.dot").read_text(encoding="utf-8").startswith("digraph")
    assert not (tmp_path / "graph.svg").exists()


def test_a_layout_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    slow = executable(tmp_path / "slow-dot", "#!/bin/sh\nexec sleep 60\n")

    with pytest.raises(LayoutError, match=r"slow-dot was stopped after 0\.1 s.*--depth"):
        draw_svg("digraph {}", time_limit_s=0.1, commands=[slow])


def test_a_failing_program_leaves_the_work_to_the_next(tmp_path: Path) -> None:
    broken = executable(tmp_path / "broken-dot", "#!/bin/sh\necho no fonts >&2\nexit 3\n")
    working = executable(tmp_path / "dot", "#!/bin/sh\ncat >/dev/null\necho '<svg/>'\n")

    assert draw_svg("digraph {}", commands=[broken, working]).strip() == "<svg/>"
    with pytest.raises(LayoutError, match=r"broken-dot failed \(no fonts\)"):
        draw_svg("digraph {}", commands=[broken])


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("depth", [0, -3])
def test_a_depth_below_one_is_refused(trace_path: Path, tmp_path: Path, depth: int) -> None:
    with open_trace(trace_path) as trace, pytest.raises(ExportError, match=f"--depth is {depth}"):
        export_dot(trace, tmp_path / "graph.dot", depth=depth)


def test_an_unknown_phase_names_the_recorded_graphs(trace_path: Path, tmp_path: Path) -> None:
    with open_trace(trace_path) as trace, pytest.raises(ExportError, match="recorded: .*program"):
        export_dot(trace, tmp_path / "graph.dot", phase="optimizer")


def test_a_file_that_cannot_be_written_is_one_clear_line(trace_path: Path, tmp_path: Path) -> None:
    target = tmp_path / "missing" / "graph.dot"
    with open_trace(trace_path) as trace, pytest.raises(ExportError) as error:
        export_dot(trace, target)

    assert str(error.value) == (
        f"{target}: cannot write the file (No such file or directory). Choose another place"
    )
