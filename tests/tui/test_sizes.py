"""Nothing essential is lost on a small terminal, in either theme."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widget import Widget

from autosp_tui.theme import DARK_THEME, LIGHT_THEME
from tests.support.terminal import terminal

ESSENTIAL = {
    "1": ("FITS", "gpt.py:70", "exposed", "warning", "memory", "Findings"),
    "2": ("Modules", "layers", "S(1:seq)", "⇄", "placements"),
    "3": ("capture", "shard", "before", "after", "Decisions"),
    "4": ("all-to-all", "forward", "1.00 MiB", "exposed", "why", "cause"),
    "5": (
        "compute",
        "comm:sp",
        "╳",
        "communication: hidden",
        "partly exposed",
        "forward",
        "backward",
    ),
    "6": ("peak", "▲ peak", "optimizer", "Alive at the peak", "linear_head"),
    "7": ("Ulysses", "causal", "attention", "kept for the backward", "pairs per head"),
}


@pytest.mark.parametrize("theme", [DARK_THEME, LIGHT_THEME])
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_every_view_shows_what_matters(
    synthetic_trace: Path, size: tuple[int, int], theme: str
) -> None:
    async with terminal(synthetic_trace, size=size) as driver:
        driver.app.theme = theme
        for key, words in ESSENTIAL.items():
            await driver.press(key)
            text = driver.screen_text()
            missing = [word for word in words if word not in text]
            assert missing == [], (key, text)
            assert "? help" in text and "q quit" in text


async def test_every_pane_is_on_a_small_screen(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace, size=(80, 24)) as driver:
        for key in ESSENTIAL:
            await driver.press(key)
            assert driver.app.view is not None
            for pane in driver.app.view.panes():
                assert isinstance(pane, Widget)
                if pane.display:
                    region = pane.region
                    assert region.height >= 2, (key, pane)
                    assert region.right <= 80 and region.bottom <= 23, (key, pane)


async def test_the_cursor_stays_in_sight(synthetic_trace: Path) -> None:
    async with terminal(synthetic_trace, size=(80, 24)) as driver:
        await driver.press("4", "enter")
        lines = driver.screen_text().splitlines()
        assert any(line.startswith("▌") and "transpose_q_0" in line for line in lines)
        await driver.press("m", "G")
        assert any(line.startswith("▌") for line in driver.screen_text().splitlines())
