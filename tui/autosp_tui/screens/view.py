"""What all views share: the bars, the filter, loading in the background, copy and export."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from autosp_inspector.trace import Trace
from autosp_tui.bindings import bindings_of, key_line
from autosp_tui.present import Span, clean
from autosp_tui.screens.dialog import Dialog
from autosp_tui.screens.help import help_lines
from autosp_tui.session import Session
from autosp_tui.widgets.bar import Bar, KeyLine, TopBar
from autosp_tui.widgets.virtual_list import VirtualList

Snapshot = TypeVar("Snapshot")


@runtime_checkable
class Pane(Protocol):
    """A part of a view that can have the focus."""

    PANE: ClassVar[tuple[str, ...]]
    pane_title: str

    def copy_text(self) -> str: ...

    async def export_text(self) -> str: ...


class View(Screen[None]):
    """A numbered view. Subclasses say what it is made of and how it is read.

    Reading goes through :meth:`load`: the query runs on the trace thread, its snapshot
    comes back as one value and is shown in one step.
    """

    NAME: ClassVar[str] = ""
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("view")
    HORIZONTAL_BREAKPOINTS = [
        (0, "-narrow"),
        (116, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (34, "-tall")]
    FILTER_HINT: ClassVar[str] = "filter by name; Enter keeps it, Esc clears it"

    class OpenView(Message):
        """Another view is asked for."""

        def __init__(self, view: str) -> None:
            self.view = view
            super().__init__()

    class OpenNode(Message):
        """A node is to be shown in the graph view; ``graphs`` are tried in order."""

        def __init__(self, node: str, graphs: Sequence[str], *, piece: int | None = None) -> None:
            self.node = node
            self.graphs = tuple(graphs)
            self.piece = piece
            super().__init__()

    class Back(Message):
        """Return to where the user came from."""

    class Failed(Message):
        """Something could not be read; the application says so in one place."""

        def __init__(self, error: Exception) -> None:
            self.error = error
            super().__init__()

    class Export(Message):
        """This view is to be written to files."""

        def __init__(self, view: str, panes: Sequence[Pane]) -> None:
            self.view = view
            self.panes = tuple(panes)
            super().__init__()

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.filter_text = ""
        self._shown_trace = -1

    # -- layout

    def compose(self) -> ComposeResult:
        yield TopBar(self.NAME)
        yield Bar(id="status")
        with Container(id="body"):
            yield from self.compose_body()
        yield Input(placeholder=self.FILTER_HINT, compact=True, id="filter")
        yield KeyLine()

    def compose_body(self) -> Iterable[Widget]:
        """The panes of the view."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self.query_one("#filter").display = False
        for pane in self.panes():
            self.title_pane(pane, pane.pane_title)

    def title_pane(self, pane: Pane, title: str) -> None:
        """Set the title above a pane (plain text, never markup)."""
        pane.pane_title = title
        if isinstance(pane, Widget):
            pane.border_title = Content(f" {clean(title)} ")

    def panes(self) -> list[Pane]:
        """The panes, in the order in which Tab visits them."""
        return [widget for widget in self.query("#body *") if isinstance(widget, Pane)]

    @property
    def focused_pane(self) -> Pane | None:
        return self.focused if isinstance(self.focused, Pane) else None

    def show_status(self, *spans: Span, right: str = "") -> None:
        """The row under the tabs."""
        if self.filter_text:
            spans = (*spans, ("  filter ", "muted"), (f"“{self.filter_text}”", "changed"))
        self.query_one("#status", Bar).show((("  ", "text"), *spans), right=right)

    # -- reading

    def on_screen_resume(self) -> None:
        if self._shown_trace != self.session.selected:
            self._shown_trace = self.session.selected
            self.query_one(TopBar).show_label(self.session.label)
            self.read()
        self._show_keys()

    def read(self) -> None:
        """Read everything again (first time, or another rank)."""
        raise NotImplementedError

    def load(
        self,
        query: Callable[[Trace], Snapshot],
        show: Callable[[Snapshot], None],
        *,
        group: str = "view",
    ) -> None:
        """Run a query in the background; a newer one of the same group replaces it."""

        async def run() -> None:
            try:
                snapshot = await self.session.read(query)
            except Exception as error:  # the edge of the interface: one message, one place
                self.post_message(self.Failed(error))
                return
            show(snapshot)

        job: Any = run  # not run(): a replaced job is dropped before its coroutine exists
        self.run_worker(job, group=group, exclusive=True, exit_on_error=False)

    # -- keys

    def on_descendant_focus(self) -> None:
        self._show_keys()

    def _show_keys(self) -> None:
        pane = self.focused_pane
        scopes = pane.PANE if pane is not None else ()
        self.query_one(KeyLine).show_commands(key_line(self.NAME, scopes))

    @on(TopBar.Chosen)
    def _tab_clicked(self, event: TopBar.Chosen) -> None:
        self.post_message(self.OpenView(event.view))

    def action_filter(self) -> None:
        entry = self.query_one("#filter", Input)
        entry.display = True
        entry.focus()

    @on(Input.Changed, "#filter")
    def _filter_typed(self, event: Input.Changed) -> None:
        self.set_filter(event.value.strip())

    @on(Input.Submitted, "#filter")
    def _filter_kept(self, _event: Input.Submitted) -> None:
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter").display = False
        self.main_pane().focus()

    def set_filter(self, text: str) -> None:
        """Use another filter."""
        if text != self.filter_text:
            self.filter_text = text
            self.apply_filter()

    def apply_filter(self) -> None:
        """Show what matches :attr:`filter_text`."""

    def main_pane(self) -> Widget:
        """The pane that has the focus first."""
        return self.query(VirtualList).first()

    def action_match(self, amount: int) -> None:
        """The next row that matches; a filtered list holds matches only."""
        rows = self.main_pane()
        if isinstance(rows, VirtualList) and rows.row_count:
            rows.cursor = (rows.cursor + amount) % rows.row_count

    def action_back(self) -> None:
        entry = self.query_one("#filter", Input)
        if self.filter_text or entry.display:
            entry.value = ""
            self.set_filter("")
            self._close_filter()
        else:
            self.post_message(self.Back())

    def action_help(self) -> None:
        pane = self.focused_pane
        title = pane.pane_title if pane is not None else self.NAME
        self.app.push_screen(
            Dialog("Keys", help_lines(self.NAME, title, pane.PANE if pane else ()))
        )

    def action_copy(self) -> None:
        pane = self.focused_pane
        text = pane.copy_text() if pane is not None else ""
        if not text:
            self.notify("nothing to copy here", severity="warning", markup=False)
            return
        self.app.copy_to_clipboard(text)
        self.notify(f"copied: {text.splitlines()[0]}", markup=False)

    def action_export(self) -> None:
        panes = [pane for pane in self.panes() if not isinstance(pane, Widget) or pane.display]
        self.post_message(self.Export(self.NAME, panes))


def matches(text: str, *fields: str) -> bool:
    """Whether a filter is in one of the fields, without regard to case."""
    wanted = text.casefold()
    return not wanted or any(wanted in each.casefold() for each in fields)
