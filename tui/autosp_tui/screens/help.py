"""Help: the keys of the focused pane, of the view, and those that always work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen

from autosp_tui.bindings import Command, commands_of
from autosp_tui.present import Line, heading, line
from autosp_tui.widgets.detail import Detail

_KEY_CELLS = 10


class HelpScreen(ModalScreen[None]):
    """A list of keys with a sentence each; any of Esc, ?, q and Enter closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,f1,q,enter", "dismiss", "Close", show=False)
    ]

    def __init__(self, view: str, pane_title: str, pane_scopes: Sequence[str]) -> None:
        super().__init__()
        self._view = view
        self._pane_title = pane_title
        self._pane_scopes = tuple(pane_scopes)

    def compose(self) -> ComposeResult:
        yield Detail(id="help")

    def on_mount(self) -> None:
        pane = self.query_one(Detail)
        pane.border_title = Content("Keys")
        pane.border_subtitle = Content("Esc closes")
        pane.show(help_lines(self._view, self._pane_title, self._pane_scopes))


def help_lines(view: str, pane_title: str, pane_scopes: Sequence[str]) -> list[Line]:
    """All keys that work now, most specific first."""
    sections = [
        (f"This pane: {pane_title}", commands_of(*pane_scopes)),
        (f"This view: {view}", commands_of(view)),
        ("Every view", commands_of("view")),
        ("Everywhere", commands_of("app")),
    ]
    lines: list[Line] = []
    for title, commands in sections:
        if commands:
            lines += [heading(title), *(_describe(command) for command in commands), line()]
    lines += [_row("ctrl+p", "palette: every command, the theme, and nodes by name")]
    lines += [_row("Tab", "next pane")]
    return lines


def _describe(command: Command) -> Line:
    return _row(command.shown, command.help)


def _row(keys: str, text: str) -> Line:
    return line((f"  {keys:<{_KEY_CELLS}}", "strong"), (text, "text"), indent=_KEY_CELLS + 2)
