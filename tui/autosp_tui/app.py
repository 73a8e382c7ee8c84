"""The application: names the views, opens the traces, leads from one view to another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual import on, work
from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.command import Provider
from textual.screen import Screen

from autosp_inspector.trace import TraceError
from autosp_tui.bindings import bindings_of
from autosp_tui.export import write_view
from autosp_tui.palette import CommandProvider, NodeProvider
from autosp_tui.screens.attention import AttentionView
from autosp_tui.screens.collectives import CollectivesView
from autosp_tui.screens.failure import FailureScreen
from autosp_tui.screens.graph import GraphView
from autosp_tui.screens.memory import MemoryView
from autosp_tui.screens.overview import OverviewView
from autosp_tui.screens.passes import PassesView
from autosp_tui.screens.timeline import TimelineView
from autosp_tui.screens.view import Pane, View
from autosp_tui.session import Session, open_all
from autosp_tui.theme import DARK_THEME, DEFAULT_VARIABLES, EXTRA_DEFAULTS, LIGHT_THEME, THEMES

_VIEWS: tuple[type[View], ...] = (
    OverviewView,
    GraphView,
    PassesView,
    CollectivesView,
    TimelineView,
    MemoryView,
    AttentionView,
)


class InspectorApp(App[None]):
    """Shows one run.

    Args:
        traces: a trace file, a folder of them (one file a rank), or several of either.
        export_folder: where the export key writes; the current folder by default.
    """

    TITLE = "AutoSP Inspector"
    CSS_PATH = "inspector.tcss"
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("app")
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = App.COMMANDS | {
        CommandProvider,
        NodeProvider,
    }

    def __init__(self, traces: Sequence[Path] | Path, *, export_folder: Path | None = None) -> None:
        super().__init__()
        self.session = Session((traces,) if isinstance(traces, Path) else tuple(traces))
        self._export_folder = export_folder
        self._came_from: list[str] = []
        for theme in THEMES:
            self.register_theme(theme)
        for view in _VIEWS:
            self.add_mode(view.NAME, partial(view, self.session))
        self.theme = DARK_THEME

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return {**DEFAULT_VARIABLES, **EXTRA_DEFAULTS}

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        other = LIGHT_THEME if self.theme == DARK_THEME else DARK_THEME
        word = "Light" if other == LIGHT_THEME else "Dark"
        yield SystemCommand(f"{word} theme", "change the colours", lambda: self.set_theme(other))

    def set_theme(self, name: str) -> None:
        """Change the colours of everything."""
        self.theme = name

    # -- opening and closing

    def on_mount(self) -> None:
        self._open()

    @work(exit_on_error=False)
    async def _open(self) -> None:
        try:
            await self.session.open()
        except (TraceError, OSError) as error:
            self.push_screen(FailureScreen(str(error), fatal=True))
            return
        await self.switch_mode("overview")

    def on_unmount(self) -> None:
        self.session.close()

    # -- between views

    @property
    def view(self) -> View | None:
        """The view that is open, also under a dialogue."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, View):
                return screen
        return None

    def action_open_view(self, name: str) -> None:
        if self.view is not None:
            self._go(name)

    def _go(self, name: str, *, remember: bool = True) -> None:
        here = self.view
        if remember and here is not None and here.NAME != name:
            self._came_from.append(here.NAME)
        self.switch_mode(name)

    @on(View.OpenView)
    def _open_view(self, event: View.OpenView) -> None:
        self._go(event.view)

    @on(View.Back)
    def _back(self) -> None:
        if self._came_from:
            self._go(self._came_from.pop(), remember=False)

    @on(View.OpenNode)
    async def _open_node(self, event: View.OpenNode) -> None:
        self._go("graph")
        view = self.view
        if isinstance(view, GraphView):
            view.show_node(event.node, event.graphs, event.piece)

    @on(GraphView.ShowPass)
    async def _show_pass(self, event: GraphView.ShowPass) -> None:
        self._go("passes")
        view = self.view
        if isinstance(view, PassesView):
            view.show_pass(event.pass_index)

    def action_next_rank(self) -> None:
        if self.session.num_traces < 2:
            self.notify("this run has one trace", markup=False)
            return
        self.session.select(self.session.selected + 1)
        if self.view is not None:
            self.view.on_screen_resume()

    # -- messages

    @on(View.Failed)
    def _failed(self, event: View.Failed) -> None:
        if not isinstance(self.screen, FailureScreen):
            self.push_screen(FailureScreen(_message_of(event.error), fatal=False))

    @on(View.Export)
    def _export(self, event: View.Export) -> None:
        picture = self.export_screenshot(title=f"AutoSP Inspector: {event.view}", simplify=True)
        self._write(event.view, event.panes, picture)

    @work(group="export", exit_on_error=False)
    async def _write(self, view: str, panes: Sequence[Pane], picture: str) -> None:
        try:
            parts = [f"# {pane.pane_title}\n{await pane.export_text()}" for pane in panes]
            paths = write_view(
                self._export_folder or Path.cwd(), view, picture=picture, text="\n\n".join(parts)
            )
        except Exception as error:  # the edge of the interface: one message, one place
            self.push_screen(FailureScreen(_message_of(error), fatal=False))
            return
        names = " and ".join(path.name for path in paths)
        self.notify(f"wrote {names} in {paths[0].parent.resolve()}", markup=False)


def _message_of(error: Exception) -> str:
    text = str(error).strip() or "no further information"
    return text if isinstance(error, TraceError) else f"{type(error).__name__}: {text}"


def run(path: Path) -> int:
    """Show a trace, or a folder of traces, in the terminal.

    Returns:
        The exit status: 0, or 2 with one line on stderr when ``path`` cannot be read.
    """
    try:
        for trace in open_all((path,)):
            trace.close()
    except (TraceError, OSError) as error:
        print(f"autosp-inspect: {error}", file=sys.stderr)
        return 2
    app = InspectorApp(path)
    app.run()
    return app.return_code or 0
