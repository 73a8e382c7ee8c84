"""Traces that are missing, broken, odd, or written to deceive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autosp.events import Finding
from autosp_tui.app import run
from autosp_tui.screens.failure import FailureScreen
from tests.support.odd_traces import ESCAPES, MARKUP, node, write_trace
from tests.support.terminal import terminal


async def test_names_are_text_and_never_markup_or_escapes(tmp_path: Path) -> None:
    path = tmp_path / "odd.autosp"
    write_trace(path, (node(MARKUP), node(ESCAPES, module="[red]m")), status="failed")
    async with terminal(path, size=(200, 40)) as driver:
        for key in "123456":
            await driver.press(key)
            shown = driver.screen_text()
            assert "\x1b" not in shown and "\x07" not in shown and "\u202e" not in shown
        await driver.press("2", "m")
        assert MARKUP[:20] in driver.screen_text()
        assert MARKUP in driver.detail()
        await driver.press("j")
        assert "\\x1b]0;title\\x07b" in driver.screen_text()
        await driver.press("y", "question_mark", "escape", "slash")
        await driver.type("[/x]")
        assert driver.rows("#nodes").row_count == 0


async def test_an_empty_run_shows_empty_views(tmp_path: Path) -> None:
    path = tmp_path / "empty.autosp"
    write_trace(path, ())
    async with terminal(path, size=(80, 24)) as driver:
        assert "NO ESTIMATE" in driver.detail("#facts")
        for key in ("2", "3", "4", "5", "6", "7"):
            await driver.press(key, "j", "l", "G", "g", "n", "enter", "y", "escape")
            assert driver.app.is_running


async def test_the_rank_key_goes_through_the_ranks_of_a_run(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_trace(tmp_path / f"{rank}.autosp", (node(f"of_rank_{rank}"),), rank=rank)
    async with terminal(tmp_path) as driver:
        await driver.press("2", "m")
        assert "of_rank_0" in driver.screen_text()
        await driver.press("r")
        assert "of_rank_1" in driver.screen_text()
        await driver.press("1")
        assert "rank 1 of 2" in driver.screen_text()


async def test_a_finding_without_a_node_opens_in_full(tmp_path: Path) -> None:
    path = tmp_path / "finding.autosp"
    finding = Finding("code", "error", "one " * 60 + MARKUP, hint="do this " * 30 + "at the end")
    write_trace(path, (node("a"),), findings=(finding,))
    async with terminal(path, size=(80, 24)) as driver:
        await driver.press("enter")
        assert MARKUP in driver.detail("#dialog")
        assert "at the end" in driver.detail("#dialog")


async def test_a_finding_with_a_node_leads_to_it(tmp_path: Path) -> None:
    path = tmp_path / "finding.autosp"
    finding = Finding("code", "warning", "look here", node="b", hint="do this")
    write_trace(path, (node("a"), node("b")), findings=(finding,))
    async with terminal(path) as driver:
        await driver.press("enter")
        assert driver.detail().startswith("b")
        assert "look here" in driver.detail()


async def test_a_name_that_no_graph_has_is_answered_with_the_closest(tmp_path: Path) -> None:
    path = tmp_path / "finding.autosp"
    finding = Finding("code", "warning", "look here", node="linear_12")
    write_trace(path, (node("linear_1"), node("linear_2")), findings=(finding,))
    async with terminal(path) as driver:
        await driver.press("enter")
        assert driver.app.view is not None and driver.app.view.NAME == "graph"
        (notice,) = driver.app._notifications
        assert "'linear_12'" in notice.message and "linear_1" in notice.message


async def test_a_failed_run_says_so_first(tmp_path: Path) -> None:
    path = tmp_path / "failed.autosp"
    write_trace(path, (node("a"),), status="failed")
    async with terminal(path) as driver:
        assert driver.detail("#facts").startswith("✖ FAILED")


@pytest.mark.parametrize("contents", [b"", b"not a trace", b"SQLite format 3\x00" + bytes(200)])
async def test_a_broken_file_is_one_clear_message(tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "broken.autosp"
    path.write_bytes(contents)
    async with terminal(path) as driver:
        assert isinstance(driver.app.screen, FailureScreen)
        assert "broken.autosp" in driver.app.screen.message
        assert "Cannot show this trace" in driver.screen_text()
        await driver.press("2", "q")
        assert driver.app.return_code == 2


def test_a_missing_file_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "nowhere.autosp") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert "nowhere.autosp" in captured.err


async def test_a_read_error_later_is_one_message_and_the_view_stays(
    synthetic_trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr("autosp_tui.screens.memory.read_memory", broken)
    async with terminal(synthetic_trace) as driver:
        await driver.press("6")
        assert "the disk is gone" in driver.screen_text()
        await driver.press("escape", "1")
        assert driver.app.view is not None and driver.app.view.NAME == "overview"


def test_the_viewer_starts_without_torch() -> None:
    script = "import sys; sys.modules['torch'] = None; import autosp_tui.app; print('started')"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "started\n", done.stderr
