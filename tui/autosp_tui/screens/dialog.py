"""Text in front of a view: help, a finding in full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen

from autosp_tui.present import Line
from autosp_tui.widgets.detail import Detail


class Dialog(ModalScreen[None]):
    """Lines that scroll; any of Esc, ?, q and Enter closes them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,f1,q,enter", "dismiss", "Close", show=False)
    ]

    def __init__(self, title: str, lines: Sequence[Line]) -> None:
        super().__init__()
        self._title = title
        self._lines = tuple(lines)

    def compose(self) -> ComposeResult:
        yield Detail(id="dialog")

    def on_mount(self) -> None:
        pane = self.query_one(Detail)
        pane.border_title = Content(f" {self._title} ")
        pane.border_subtitle = Content(" Esc closes ")
        pane.show(self._lines)
