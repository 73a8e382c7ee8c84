"""One-row bars: the tabs on top, a view's state, the keys at the bottom."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from autosp_tui.bindings import VIEWS, Command
from autosp_tui.present import Span, clean, fit
from autosp_tui.theme import Tones


class Bar(Widget):
    """A row of toned text, cut at the edge; ``right`` is shown only where it fits."""

    ALLOW_SELECT = False
    DEFAULT_CSS = "Bar { height: 1; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.tones = Tones(self)
        self.spans: tuple[Span, ...] = ()
        self.right = ""

    def show(self, spans: Sequence[Span], *, right: str = "") -> None:
        self.spans, self.right = tuple(spans), right
        self.refresh()

    @property
    def plain_text(self) -> str:
        return "".join(clean(text) for text, _ in self.spans)

    def render_line(self, y: int) -> Strip:
        base = Style(bgcolor=self.rich_style.bgcolor)
        width = self.size.width
        segments = [Segment(clean(t), self._style(tone) + base) for t, tone in self.spans]
        used = sum(segment.cell_length for segment in segments)
        if used > width:
            cut = Strip(segments).crop(0, width - 1)
            return Strip([*cut, Segment("…", self.tones["muted"] + base)])
        right = clean(self.right)
        free = width - used - 2
        if right and free >= 12:
            text = fit(right, min(free, cell_len(right)), keep="end")
            gap = width - used - cell_len(text)
            segments += [Segment(" " * gap, base), Segment(text, self.tones["muted"] + base)]
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def _style(self, tone: str) -> Style:
        return self.tones[tone]


class TopBar(Bar):
    """The views with their numbers; the one that is open is underlined and in brackets."""

    class Chosen(Message):
        """A click on a view's name."""

        def __init__(self, view: str) -> None:
            self.view = view
            super().__init__()

    def __init__(self, active: str) -> None:
        super().__init__()
        self._active = active
        spans: list[Span] = []
        for view in VIEWS:
            text = f"{view.key} {view.title}"
            here = view.name == active
            spans.append((f"[{text}]" if here else f" {text} ", "active" if here else "muted"))
        self.spans = tuple(spans)

    def show_label(self, text: str) -> None:
        """What is shown at the right: the run."""
        self.right = text
        self.refresh()

    def _style(self, tone: str) -> Style:
        if tone == "active":
            return self.tones["strong"] + Style(underline=True)
        return super()._style(tone)

    def on_click(self, event: events.Click) -> None:
        position = 0
        for view, (text, _) in zip(VIEWS, self.spans, strict=True):
            position += cell_len(text)
            if event.x < position:
                self.post_message(self.Chosen(view.name))
                return


class KeyLine(Bar):
    """As many of the keys as fit, the most specific first; help and quit always."""

    def __init__(self) -> None:
        super().__init__()
        self._commands: tuple[Command, ...] = ()

    def show_commands(self, commands: Sequence[Command]) -> None:
        self._commands = tuple(commands)
        self._fill()

    def on_resize(self, _event: events.Resize) -> None:
        self._fill()

    def _fill(self) -> None:
        always = [command for command in self._commands if command.action in ("help", "quit")]
        others = [command for command in self._commands if command not in always]
        width = self.size.width - sum(map(_cells, always))
        self.spans = tuple(_keys(_fitting(others, width, _cells) + always))
        self.refresh()


def _fitting(
    commands: Sequence[Command], width: int, cells: Callable[[Command], int]
) -> list[Command]:
    chosen = []
    for command in commands:
        width -= cells(command)
        if width < 0:
            break
        chosen.append(command)
    return chosen


def _cells(command: Command) -> int:
    return cell_len(command.shown) + cell_len(command.label) + 3


def _keys(commands: Sequence[Command]) -> list[Span]:
    spans: list[Span] = []
    for command in commands:
        spans += [(f" {command.shown}", "heading"), (f" {command.label.lower()} ", "muted")]
    return spans
