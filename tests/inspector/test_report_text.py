"""Reports as text: quantities, tables fitted to a width, facts."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from autosp_inspector.report.quantities import (
    bytes_text,
    count_text,
    fraction_text,
    mesh_text,
    place_text,
    share_text,
    time_text,
)
from autosp_inspector.report.report import Facts, Report, Table, left, right, wrapped
from autosp_inspector.report.table_layout import lay_out
from autosp_inspector.report.text_format import print_text
from autosp_inspector.report.verification import verification_report
from autosp_inspector.report.visible import visible
from autosp_inspector.rows import Source


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (bytes_text(None), "-"),
        (bytes_text(0), "0 B"),
        (bytes_text(1023), "1023 B"),
        (bytes_text(1536), "1.5 KiB"),
        (bytes_text(80 * 1024**3), "80 GiB"),
        (time_text(None), "-"),
        (time_text(0), "0 ns"),
        (time_text(999), "999 ns"),
        (time_text(1_500_000), "1.5 ms"),
        (time_text(2_000_000_000), "2 s"),
        (fraction_text(0.985), "98.5 %"),
        (share_text(1, 4), "25.0 %"),
        (share_text(1, 0), "-"),
        (count_text(1, "node"), "1 node"),
        (count_text(12345, "pass", "passes"), "12,345 passes"),
        (mesh_text({"dp": 1, "sp": 4}), "sp 4"),
        (mesh_text({"dp": 2, "sp": 4}), "dp 2 x sp 4"),
        (mesh_text({"dp": 1, "sp": 1}), "dp 1 x sp 1"),
        (visible("a\x1b[0m\nb\u202ec"), r"a\x1b[0m b\u202ec"),
    ],
)
def test_quantities(text: str, expected: str) -> None:
    assert text == expected


TABLE = Table(
    (left("name"), right("bytes", dropped=1), left("module", dropped=2), wrapped("reason")),
    (
        ("all_to_all", "1 MiB", "layers.0.attention", "because the heads are dealt out to ranks"),
        ("all_reduce", "4 B", "", "the loss"),
    ),
)


def test_without_a_width_everything_is_on_one_line_per_row() -> None:
    assert lay_out(TABLE, None).lines == (
        "name        bytes  module              reason",
        "all_to_all  1 MiB  layers.0.attention  because the heads are dealt out to ranks",
        "all_reduce    4 B                      the loss",
    )


def test_sentences_move_below_their_row_where_there_is_no_room() -> None:
    assert lay_out(TABLE, 46).lines == (
        "name        bytes  module",
        "all_to_all  1 MiB  layers.0.attention",
        "      because the heads are dealt out to ranks",
        "all_reduce    4 B",
        "      the loss",
    )


def test_columns_are_dropped_in_their_order_and_named() -> None:
    narrow = lay_out(TABLE, 20)
    assert narrow.dropped == ("module",)
    assert narrow.lines[1] == "all_to_all  1 MiB"
    narrower = lay_out(TABLE, 12)
    assert narrower.dropped == ("bytes", "module")
    assert narrower.lines[1] == "all_to_all"


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, lay_out(TABLE, width).lines)) <= width


def test_long_names_keep_both_ends() -> None:
    table = Table((left("node"), left("role")), (("l_self_modules_layers_0_weight", "input"),))
    assert lay_out(table, 25).lines[1] == "l_self_mo…0_weight  input"


def test_facts_wrap_beside_their_labels() -> None:
    report = Report((Facts((("at", "one two three four five six seven eight"),), "Peak"),), {})
    output = io.StringIO()
    print_text(report, Console(file=output, width=30, force_terminal=True, no_color=True))
    lines = output.getvalue().splitlines()
    assert lines[1:] == ["  at  one two three four five", "        six seven eight"]


def test_in_a_pipe_nothing_is_wrapped() -> None:
    report = Report((Facts((("at", "word " * 50),)), TABLE), {})
    output = io.StringIO()
    print_text(report, Console(file=output, width=30))
    assert max(map(len, output.getvalue().splitlines())) > 200


def test_places_are_short() -> None:
    library = Source("/usr/lib/python3/site-packages/transformers/loss.py", 42, "", "")
    assert place_text(library) == "transformers/loss.py:42"
    assert place_text(Source(str(Path.cwd() / "model.py"), 3, "", "")) == "model.py:3"
    assert place_text(Source("/elsewhere/model.py", 3, "", "")) == "/elsewhere/model.py:3"
    assert place_text(None) == ""


def test_a_failed_verification_shows_the_first_wrong_node() -> None:
    wrong = {
        "node": "linear",
        "quantity": "value",
        "operator": "aten.linear.default",
        "placement": "S(1:seq)",
        "module": "out",
        "source": "model.py:12",
        "source_text": "y = self.out(x)",
        "rel_error": 0.01,
        "expected": [1.0, 2.0],
        "actual": [1.01, 2.02],
        "padding_fill": "last",
        "detail": "",
    }
    data = {
        "ok": False,
        "ranks": 2,
        "dtype": "float64",
        "loss": {"compiled": 2.0, "reference": 1.0, "rel_error": 1.0},
        "gradients": [],
        "max_rel_error": 0.0,
        "first_wrong_node": "linear",
        "first_wrong_detail": "one line",
        "first_wrong": wrong,
    }
    output = io.StringIO()
    print_text(verification_report(data), Console(file=output, width=80))
    text = output.getvalue()
    for expected in ("linear, its value", "placed S(1:seq)", "model.py:12  y = self.out(x)"):
        assert expected in text
    assert "1, 2" in text and "1.01, 2.02" in text
    assert "one line" not in text
