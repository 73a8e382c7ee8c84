"""A graph of 100,000 nodes: only what is on the screen is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from autosp_inspector.queries.nodes import list_nodes
from autosp_inspector.rows import NodeRow
from autosp_inspector.trace import Trace
from autosp_tui.widgets.virtual_list import PAGE_ROWS
from tests.support.odd_traces import node, write_trace
from tests.support.terminal import terminal

NUM_NODES = 100_000


@pytest.fixture(scope="module")
def large_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large.autosp"
    nodes = tuple(
        node(f"node_{number}", module=f"layers.{number // 1000}.mlp") for number in range(NUM_NODES)
    )
    write_trace(path, nodes)
    return path


async def test_a_list_of_100000_nodes_reads_only_pages_in_view(
    large_trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, int]] = []

    def counted(
        trace: Trace, *, offset: int = 0, limit: int | None = None, **filters: object
    ) -> Sequence[NodeRow]:
        rows = list_nodes(trace, offset=offset, limit=limit, **filters)  # type: ignore[arg-type]
        read.append((offset, len(rows)))
        return rows

    monkeypatch.setattr("autosp_tui.snapshots.list_nodes", counted)
    monkeypatch.setattr("autosp_tui.screens.graph.list_nodes", counted)
    async with terminal(large_trace, size=(80, 24)) as driver:
        await driver.press("2")
        tree = driver.rows("#tree")
        assert tree.row_count < 150
        await driver.press("m")
        nodes = driver.rows("#nodes")
        assert nodes.row_count == NUM_NODES
        assert nodes.rows_in_memory <= 2 * PAGE_ROWS
        await driver.press("G")
        last = nodes.current
        assert isinstance(last, NodeRow) and last.name == f"node_{NUM_NODES - 1}"
        await driver.press("pageup", "pageup")
        assert sum(count for _, count in read) <= 5 * PAGE_ROWS
        assert max(count for _, count in read) <= PAGE_ROWS
        row = nodes.current
        assert isinstance(row, NodeRow) and row.name in driver.screen_text()


async def test_pages_left_behind_are_forgotten(large_trace: Path) -> None:
    async with terminal(large_trace, size=(80, 24)) as driver:
        await driver.press("2", "m")
        nodes = driver.rows("#nodes")
        for start in range(0, 35 * PAGE_ROWS, PAGE_ROWS):
            nodes.cursor = start
            await driver.settle()
        assert nodes.rows_in_memory <= 32 * PAGE_ROWS
