"""Every key of the interface, declared once.

Key bindings, the key line at the bottom, the command palette and the help screen are all
derived from :data:`COMMANDS`; a key that is not in this table does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from textual.binding import Binding, BindingType


@dataclass(frozen=True, slots=True)
class Command:
    """One thing the user can do.

    ``scope`` is where the key works: ``app``, ``view`` (every view), the name of one view,
    or the kind of pane that has the focus (``list``, ``tree``, ``detail``, ``lanes``,
    ``curve``).
    """

    scope: str
    keys: str
    """Textual key names, comma separated."""
    shown: str
    """The keys as a person reads them."""
    action: str
    label: str
    """One or two words for the key line and the palette."""
    help: str
    in_key_line: bool = False
    in_palette: bool = True


@dataclass(frozen=True, slots=True)
class ViewName:
    """One of the numbered views."""

    key: str
    name: str
    title: str


VIEWS: Final = (
    ViewName("1", "overview", "Overview"),
    ViewName("2", "graph", "Graph"),
    ViewName("3", "passes", "Passes"),
    ViewName("4", "collectives", "Collectives"),
    ViewName("5", "timeline", "Timeline"),
    ViewName("6", "memory", "Memory"),
    ViewName("7", "attention", "Attention"),
)

_VIEW_COMMANDS: Final = tuple(
    Command(
        "app",
        view.key,
        view.key,
        f"open_view('{view.name}')",
        view.title,
        f"open the {view.title.lower()} view",
    )
    for view in VIEWS
)

COMMANDS: Final[tuple[Command, ...]] = (
    # Panes.
    Command("list", "up,k", "↑ k", "move(-1)", "Up", "previous row", in_palette=False),
    Command("list", "down,j", "↓ j", "move(1)", "Down", "next row", in_palette=False),
    Command("list", "pageup", "PgUp", "page(-1)", "Page up", "one page up", in_palette=False),
    Command("list", "pagedown", "PgDn", "page(1)", "Page down", "one page down", in_palette=False),
    Command("list", "home,g", "g", "first", "First", "first row", in_palette=False),
    Command("list", "end,G", "G", "last", "Last", "last row", in_palette=False),
    Command("list", "enter", "Enter", "select", "Open", "open the row", in_palette=False),
    Command("tree", "right,l", "→ l", "open", "Expand", "expand, or go inside", in_palette=False),
    Command("tree", "left,h", "← h", "shut", "Collapse", "collapse, or go out", in_palette=False),
    Command("detail", "up,k", "↑ k", "scroll(-1)", "Up", "scroll up", in_palette=False),
    Command("detail", "down,j", "↓ j", "scroll(1)", "Down", "scroll down", in_palette=False),
    Command("detail", "pageup", "PgUp", "turn(-1)", "Page up", "one page up", in_palette=False),
    Command(
        "detail", "pagedown", "PgDn", "turn(1)", "Page down", "one page down", in_palette=False
    ),
    Command("detail", "home,g", "g", "top", "Top", "scroll to the top", in_palette=False),
    Command("detail", "end,G", "G", "bottom", "Bottom", "scroll to the end", in_palette=False),
    Command("lanes", "left,h", "← h", "step(-1)", "Previous", "previous event", in_palette=False),
    Command("lanes", "right,l", "→ l", "step(1)", "Next", "next event", in_palette=False),
    Command("lanes", "up,k", "↑ k", "lane(-1)", "Lane up", "the lane above", in_palette=False),
    Command("lanes", "down,j", "↓ j", "lane(1)", "Lane down", "the lane below", in_palette=False),
    Command("lanes", "home,g", "g", "first", "First", "first event", in_palette=False),
    Command("lanes", "end,G", "G", "last", "Last", "last event", in_palette=False),
    Command("lanes", "enter", "Enter", "select", "Node", "open the event's node", in_palette=False),
    Command("lanes", "plus,equals_sign", "+", "zoom(1)", "Zoom in", "zoom in at the event", True),
    Command("lanes", "minus", "-", "zoom(-1)", "Zoom out", "zoom out", True),
    Command("lanes", "0", "0", "whole", "Whole step", "show the whole step", True),
    Command("lanes", "less_than_sign,H", "<", "pan(-1)", "Pan left", "half a screen back"),
    Command("lanes", "greater_than_sign,L", ">", "pan(1)", "Pan right", "half a screen on"),
    Command("curve", "left,h", "← h", "step(-1)", "Left", "one column back", in_palette=False),
    Command("curve", "right,l", "→ l", "step(1)", "Right", "one column on", in_palette=False),
    Command("curve", "home,g", "g", "first", "First", "start of the step", in_palette=False),
    Command("curve", "end,G", "G", "last", "Last", "end of the step", in_palette=False),
    Command("curve", "enter", "Enter", "select", "Node", "open the node here", in_palette=False),
    # Views.
    Command(
        "graph",
        "m",
        "m",
        "toggle_flat",
        "Tree/flat",
        "module tree or flat list in program order",
        True,
    ),
    Command("graph", "f", "f", "next_graph", "Graph", "program, joint, forward, backward", True),
    Command(
        "graph",
        "left_square_bracket",
        "[",
        "step_pass(-1)",
        "Earlier pass",
        "the graph after the previous pass",
        True,
    ),
    Command(
        "graph",
        "right_square_bracket",
        "]",
        "step_pass(1)",
        "Later pass",
        "the graph after the next pass",
        True,
    ),
    Command("graph", "p", "p", "next_piece", "Piece", "the next piece of a program in pieces"),
    Command("graph", "d", "d", "diff", "Diff", "what the pass shown changed"),
    Command("graph", "s", "s", "sort", "Sort", "all nodes in order, by bytes or by time", True),
    Command(
        "passes", "left_square_bracket", "[", "step_pass(-1)", "Previous", "previous pass", True
    ),
    Command("passes", "right_square_bracket", "]", "step_pass(1)", "Next", "next pass", True),
    Command(
        "passes",
        "c",
        "c",
        "toggle_unchanged",
        "Unchanged",
        "hide or show nodes that the pass left alone (in the pass list: passes without changes)",
        True,
    ),
    Command("passes", "f", "f", "next_graph", "Graph", "which graph before/after shows", True),
    Command("passes", "d", "d", "diff", "Diff", "go to before/after"),
    Command("passes", "s", "s", "sort", "Sort", "sort passes by order, time or changes"),
    Command("collectives", "f", "f", "next_phase", "Phase", "forward, backward or all", True),
    Command("collectives", "s", "s", "sort", "Sort", "by order, bytes, time or exposed time", True),
    Command(
        "timeline", "f", "f", "next_phase", "Phase", "forward, backward, optimizer or all", True
    ),
    Command("timeline", "s", "s", "sort", "Sort", "the list by exposed time or by start"),
    Command("memory", "f", "f", "next_phase", "Phase", "forward, backward, optimizer or all", True),
    Command("memory", "s", "s", "sort", "Sort", "what is alive: by size, category or module", True),
    Command("memory", "p", "p", "peak", "Peak", "move to the peak", True),
    # Every view.
    Command("view", "slash", "/", "filter", "Filter", "filter or search by name", True),
    Command("view", "n", "n", "match(1)", "Next match", "next match of the filter"),
    Command("view", "N", "N", "match(-1)", "Previous match", "previous match of the filter"),
    Command("view", "y", "y", "copy", "Copy", "copy the row under the cursor to the clipboard"),
    Command("view", "x", "x", "export", "Export", "write this view as .svg and .txt files", True),
    Command(
        "view",
        "escape",
        "Esc",
        "back",
        "Back",
        "clear the filter, else return to where you came from",
        in_palette=False,
    ),
    Command("view", "question_mark,f1", "?", "help", "Help", "keys of the focused pane", True),
    *_VIEW_COMMANDS,
    Command("app", "r", "r", "next_rank", "Rank", "next rank of the run"),
    Command("app", "ctrl+z", "ctrl+z", "suspend_process", "Suspend", "suspend to the shell"),
    Command("app", "q", "q", "quit", "Quit", "leave", True),
)
"""``ctrl+p`` (palette) and Tab (next pane) are Textual's own and stay as they are."""


def commands_of(*scopes: str) -> tuple[Command, ...]:
    """The commands of some scopes, in the order of the scopes."""
    return tuple(command for scope in scopes for command in COMMANDS if command.scope == scope)


def bindings_of(*scopes: str) -> list[BindingType]:
    """Textual bindings of some scopes."""
    return [
        Binding(command.keys, command.action, command.label, show=False)
        for command in commands_of(*scopes)
    ]


def key_line(view: str, pane_scopes: Iterable[str]) -> tuple[Command, ...]:
    """What the bottom line offers, most specific first."""
    commands = commands_of(view, *pane_scopes, "view", "app")
    return tuple(command for command in commands if command.in_key_line)
