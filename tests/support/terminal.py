"""Driving the terminal interface without a terminal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path

from rich.console import Console
from textual.pilot import Pilot

from autosp_tui.app import InspectorApp
from autosp_tui.widgets.detail import Detail
from autosp_tui.widgets.virtual_list import VirtualList


class Terminal:
    """A running application, with its keys and what it shows."""

    def __init__(self, app: InspectorApp, pilot: Pilot[None]) -> None:
        self.app = app
        self._pilot = pilot

    async def settle(self) -> None:
        """Wait until nothing is being read and everything read is shown."""
        quiet = 0
        while quiet < 2:
            running = [worker for worker in self.app.workers if not worker.is_finished]
            quiet = 0 if running else quiet + 1
            await self.app.workers.wait_for_complete(running)
            await self._pilot.pause()

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self._pilot.press(key)
            await self.settle()

    async def type(self, text: str) -> None:
        await self.press(*text)

    def screen_text(self) -> str:
        """What is on the screen, as lines of plain text."""
        width, height = self.app.size
        console = Console(
            file=StringIO(), width=width, height=height, color_system=None, legacy_windows=False
        )
        with console.capture() as capture:
            console.print(
                self.app.screen._compositor.render_update(
                    full=True, screen_stack=self.app._background_screens
                )
            )
        return capture.get()

    def rows(self, selector: str) -> VirtualList[object]:
        """A list of the open view."""
        return self.app.screen.query_one(selector, VirtualList)

    def detail(self, selector: str = "#detail") -> str:
        """The whole text of a detail pane."""
        return self.app.screen.query_one(selector, Detail).plain_text


@asynccontextmanager
async def terminal(
    path: Path, *, size: tuple[int, int] = (120, 40), export_folder: Path | None = None
) -> AsyncIterator[Terminal]:
    """The application on a trace, ready for keys."""
    app = InspectorApp(path, export_folder=export_folder)
    async with app.run_test(size=size) as pilot:
        driver = Terminal(app, pilot)
        await driver.settle()
        yield driver
