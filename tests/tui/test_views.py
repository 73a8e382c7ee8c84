"""What each view answers, driven by keys."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from autosp_inspector.rows import CollectiveRow, NodeChange, NodeRow
from autosp_tui.widgets.curve import Curve
from autosp_tui.widgets.lanes import Lanes
from autosp_tui.widgets.module_tree import ModuleTree
from autosp_tui.widgets.tree_items import TreeItem
from tests.support.odd_traces import node, write_trace
from tests.support.terminal import Terminal, terminal


def current_node(driver: Terminal) -> str:
    item = driver.rows("#tree").current
    assert isinstance(item, TreeItem) and item.node is not None
    return item.node.name


async def test_the_overview_says_whether_it_fits_and_where_the_peak_is(
    synthetic_trace: Path,
) -> None:
    async with terminal(synthetic_trace) as driver:
        text = driver.detail("#facts")
        assert "✔ FITS" in text
        assert "of 80.0 GiB" in text
        assert "samples/gpt.py:70" in text
        assert "exposed" in text
        assert driver.rows("#findings").row_count == 1
        assert driver.rows("#next").row_count >= 3


async def test_a_peak_near_the_capacity_is_neither_a_fit_nor_a_miss(
    synthetic_trace: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(synthetic_trace, tmp_path))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE estimate SET fits = NULL")
    async with terminal(path) as driver:
        assert "▲ TOO CLOSE TO SAY" in driver.detail("#facts")
        await driver.press("6")
        assert "too close to say" in driver.screen_text()


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("2", "graph"),
        ("3", "passes"),
        ("4", "collectives"),
        ("5", "timeline"),
        ("6", "memory"),
        ("7", "attention"),
    ],
)
async def test_number_keys_open_views_and_escape_returns(
    synthetic_trace: Path, key: str, name: str
) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press(key)
        assert driver.app.view is not None and driver.app.view.NAME == name
        await driver.press("escape")
        assert driver.app.view.NAME == "overview"


async def test_a_collective_leads_to_the_node_that_caused_it(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("4", "j")
        row = driver.rows("#rows").current
        assert isinstance(row, CollectiveRow)
        assert row.reason in driver.detail()
        await driver.press("enter")
        assert driver.app.view is not None and driver.app.view.NAME == "graph"
        assert current_node(driver) == row.cause
        text = driver.detail()
        assert "samples/gpt.py:23" in text
        assert "k = self.k_proj(x)" in text
        assert "redistribute" in text
        assert "all-to-all" in text
        await driver.press("escape")
        assert driver.app.view.NAME == "collectives"


async def test_collectives_sort_and_filter(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("4")
        rows = driver.rows("#rows")
        everything = rows.row_count
        await driver.press("f")
        phases = {row.phase for row in await rows.all_rows() if isinstance(row, CollectiveRow)}
        assert phases == {"forward"}
        await driver.press("f", "f", "s")
        sizes = [row.bytes for row in await rows.all_rows() if isinstance(row, CollectiveRow)]
        assert len(sizes) == everything
        assert sizes == sorted(sizes, reverse=True)
        await driver.press("slash")
        await driver.type("all-reduce")
        await driver.press("enter")
        kinds = {row.kind for row in await rows.all_rows() if isinstance(row, CollectiveRow)}
        assert kinds == {"all_reduce"}
        await driver.press("escape")
        assert rows.row_count == everything


async def test_the_module_tree_opens_and_shuts(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("2")
        tree = driver.app.screen.query_one(ModuleTree)
        names = [item.module.path for item in tree.items if item.module is not None]
        assert names == ["embed", "layers", "lm_head"]
        shut = len(tree.items)
        await driver.press("j", "l")
        assert [i.module.path for i in tree.items if i.module and i.depth == 1] == [
            "layers.0",
            "layers.1",
        ]
        assert "16" not in driver.detail()
        await driver.press("h")
        assert len(tree.items) == shut


async def test_the_flat_list_and_the_tree_keep_the_node(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("4", "enter")
        name = current_node(driver)
        await driver.press("m")
        row = driver.rows("#nodes").current
        assert isinstance(row, NodeRow) and row.name == name
        await driver.press("m")
        assert current_node(driver) == name


async def test_the_graph_can_be_seen_after_earlier_passes(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("2", "m")
        latest = driver.rows("#nodes").row_count
        await driver.press(*["left_square_bracket"] * 9)
        assert "after pass 0 capture" in driver.screen_text()
        first = driver.rows("#nodes").row_count
        assert 0 < first < latest
        await driver.press("f")
        assert driver.rows("#nodes").row_count == 0


async def test_searching_the_tree_lists_matches_and_returns_to_the_tree(
    synthetic_trace: Path,
) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("2", "slash")
        await driver.type("sdpa_1")
        await driver.press("enter", "n")
        row = driver.rows("#nodes").current
        assert isinstance(row, NodeRow) and "sdpa_1" in row.name
        await driver.press("N")
        first = driver.rows("#nodes").current
        assert isinstance(first, NodeRow) and first.name == "sdpa_1"
        await driver.press("escape")
        assert current_node(driver) == "sdpa_1"


async def test_a_node_tells_its_history_over_the_passes(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("4", "enter")
        text = driver.detail()
        assert "+ pass 0 capture" in text
        assert "~ pass 3 shard" in text
        assert "placement none → S(2:seq)" in text


async def test_unchanged_nodes_are_hidden_until_asked_for(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("3", "j", "j", "d")
        changes = driver.rows("#changes")

        async def marks() -> set[str]:
            return {row.mark for row in await changes.all_rows() if isinstance(row, NodeChange)}

        assert await marks() == {"-", "~"}
        few = changes.row_count
        await driver.press("c")
        assert await marks() == {"-", "~", "="}
        assert changes.row_count > few
        await driver.press("c")
        assert changes.row_count == few


async def test_passes_are_stepped_through_with_their_decisions(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("3")
        assert "no decision" in driver.detail("#decisions")
        await driver.press("right_square_bracket", "right_square_bracket", "right_square_bracket")
        assert "pass 3 shard" in driver.screen_text()
        text = driver.detail("#decisions")
        assert "attention: ulysses" in text
        assert "not     ring" in text
        await driver.press("left_square_bracket")
        assert "pass 2 causal-mask" in driver.screen_text()


async def test_a_pass_without_changes_says_so_and_keeps_the_keys_in_the_list(
    tmp_path: Path,
) -> None:
    path = tmp_path / "idle.autosp"
    write_trace(path, (node("a"),), idle_pass=True)
    async with terminal(path) as driver:
        await driver.press("3", "right_square_bracket", "d")
        assert driver.rows("#changes").row_count == 0
        assert "idle changed no node; [ ] another pass" in driver.screen_text()
        assert driver.rows("#passes").has_focus
        await driver.press("left_square_bracket", "d")
        assert driver.rows("#changes").has_focus


async def test_nodes_sort_by_bytes_and_by_time(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("2", "s")
        nodes = driver.rows("#nodes")
        assert "by bytes" in driver.screen_text()
        by_bytes = [row for row in await nodes.all_rows() if isinstance(row, NodeRow)]
        sizes = [row.local_bytes or 0 for row in by_bytes]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1]
        await driver.press("f", "f", "s")
        assert "by time" in driver.screen_text()
        by_time = [row for row in await nodes.all_rows() if isinstance(row, NodeRow)]
        assert [row.position for row in by_time] != sorted(row.position for row in by_time)
        await driver.press("s")
        in_order = [row for row in await nodes.all_rows() if isinstance(row, NodeRow)]
        assert [row.position for row in in_order] == list(range(len(in_order)))


async def test_a_finding_leads_to_its_node_and_is_shown_there(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        assert "Enter opens the node" in driver.screen_text()
        await driver.press("enter")
        assert driver.app.view is not None and driver.app.view.NAME == "graph"
        assert "Findings" in driver.detail()


async def test_a_node_shows_the_way_back_to_its_seed(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("4", "j", "enter")
        assert "Why it is placed so" in driver.detail()


async def test_the_passes_view_opens_at_the_pass_shown_in_the_graph(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("2", "left_square_bracket", "left_square_bracket", "d")
        assert driver.app.view is not None and driver.app.view.NAME == "passes"
        assert "pass 3 shard" in driver.screen_text()


async def test_the_memory_view_opens_at_the_peak(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("6")
        text = driver.screen_text()
        assert "▲ peak" in text
        assert "live at the peak" in driver.detail()
        assert "samples/gpt.py:70" in driver.detail()
        curve = driver.app.screen.query_one(Curve)
        assert curve.position == curve.peak
        await driver.press("h")
        assert curve.position < curve.peak
        assert "at the cursor" in driver.detail()
        await driver.press("p")
        assert curve.position == curve.peak
        peak_node = curve.rows[curve.peak].node
        await driver.press("enter")
        assert current_node(driver) == peak_node


async def test_a_tensor_alive_at_the_peak_leads_to_its_node(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("6")
        driver.rows("#live").focus()
        await driver.press("enter")
        assert current_node(driver) == "linear_head"


async def test_the_timeline_moves_zooms_and_leads_to_nodes(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("5")
        lanes = driver.app.screen.query_one(Lanes)
        text = driver.screen_text()
        assert "communication: hidden" in text
        assert "╳" in text
        whole = lanes.window.span
        await driver.press("j", "l")
        event = lanes.current
        assert event is not None and event.stream == "comm:sp"
        await driver.press("plus", "plus")
        assert lanes.window.span == whole / 4
        assert lanes.window.start <= event.start_ns <= lanes.window.end
        await driver.press("0")
        assert lanes.window.span == whole
        await driver.press("enter")
        assert current_node(driver) == event.node


async def test_help_shows_the_keys_of_the_focused_pane(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("5", "question_mark")
        assert "the lane below" in driver.detail("#dialog")
        await driver.press("escape", "2", "question_mark")
        assert "collapse, or go out" in driver.detail("#dialog")
        await driver.press("escape", "q")
        assert driver.app.return_code == 0


async def test_a_view_is_exported_as_picture_and_text(
    synthetic_trace: Path, tmp_path: Path
) -> None:
    async with terminal(synthetic_trace, export_folder=tmp_path) as driver:
        await driver.press("4", "x", "x")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "autosp-collectives-2.svg",
        "autosp-collectives-2.txt",
        "autosp-collectives.svg",
        "autosp-collectives.txt",
    ]
    text = (tmp_path / "autosp-collectives.txt").read_text(encoding="utf-8")
    assert text.count("⇄ all-to-all") >= 16
    assert "<svg" in (tmp_path / "autosp-collectives.svg").read_text(encoding="utf-8")


async def test_an_export_that_cannot_be_written_is_one_message(
    synthetic_trace: Path, tmp_path: Path
) -> None:
    async with terminal(synthetic_trace, export_folder=tmp_path / "missing") as driver:
        await driver.press("x")
        assert "cannot write autosp-overview.svg" in driver.screen_text()
        await driver.press("escape")
        assert driver.app.view is not None and driver.app.view.NAME == "overview"


async def test_copy_takes_the_row_under_the_cursor(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("4", "enter", "y")
        assert driver.app.clipboard == current_node(driver)


async def test_the_palette_finds_nodes_by_name(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("ctrl+p")
        await driver.type("gelu_1")
        await driver.press("enter")
        assert driver.app.view is not None and driver.app.view.NAME == "graph"
        assert current_node(driver) == "gelu_1"
