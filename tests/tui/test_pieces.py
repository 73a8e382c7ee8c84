"""A program in pieces: every view says what it counts or which piece it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosp_inspector.rows import CollectiveRow
from tests.support.pieces import write_pieces
from tests.support.terminal import terminal


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pieces(tmp_path_factory.mktemp("pieces") / "run.autosp")


async def test_the_graph_view_goes_round_the_pieces(pieces: Path) -> None:
    async with terminal(pieces) as driver:
        await driver.press("2", "m")
        assert "piece 1 of 2" in driver.screen_text()
        assert driver.rows("#nodes").row_count == 3
        await driver.press("p")
        assert "piece 2 of 2" in driver.screen_text()
        assert driver.rows("#nodes").row_count == 2
        await driver.press("left_square_bracket", "left_square_bracket")
        assert "after pass 3 capture" in driver.screen_text()
        await driver.press("p")
        assert "piece 1 of 2" in driver.screen_text()


async def test_a_program_in_one_piece_says_so(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace) as driver:
        await driver.press("2", "p")
        (notice,) = driver.app._notifications
        assert notice.message == "the program is in one piece"


async def test_collectives_of_all_pieces_are_counted_and_lead_to_their_piece(
    pieces: Path,
) -> None:
    async with terminal(pieces) as driver:
        await driver.press("4")
        assert "7 collectives" in driver.screen_text()
        assert "in 2 pieces" in driver.screen_text()
        await driver.press("j")
        row = driver.rows("#rows").current
        assert isinstance(row, CollectiveRow) and row.piece == 2
        await driver.press("enter")
        assert "piece 2 of 2" in driver.screen_text()


@pytest.mark.parametrize("key", ["1", "5", "6"])
async def test_views_of_the_estimate_say_why_there_is_none(pieces: Path, key: str) -> None:
    async with terminal(pieces) as driver:
        await driver.press(key)
        words = " ".join(driver.screen_text().split())
        assert "the program is compiled in 2 pieces" in words


async def test_the_passes_view_says_which_piece_a_pass_changed(pieces: Path) -> None:
    async with terminal(pieces) as driver:
        await driver.press("3", "G", "k")
        assert "of piece 2" in driver.screen_text()
