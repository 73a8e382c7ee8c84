"""Help: the keys of the focused pane, of the view, and those that always work."""

from __future__ import annotations

from collections.abc import Sequence

from autosp_tui.bindings import Command, commands_of
from autosp_tui.present import Line, heading, line

_KEY_CELLS = 10


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
