"""The one place where errors are shown."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from autosp_tui.present import clean


class FailureScreen(ModalScreen[None]):
    """What went wrong, in one message.

    Args:
        message: what, where, what to do next.
        fatal: nothing can be shown; closing the message leaves.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "close", "Close", show=False)
    ]

    def __init__(self, message: str, *, fatal: bool) -> None:
        super().__init__()
        self.message = clean(message)
        self._fatal = fatal

    def compose(self) -> ComposeResult:
        yield Static(self.message, markup=False, id="failure")

    def on_mount(self) -> None:
        pane = self.query_one("#failure")
        pane.border_title = Content(
            "✖ Cannot show this trace" if self._fatal else "✖ Cannot do this"
        )
        pane.border_subtitle = Content("q leaves" if self._fatal else "Esc closes")

    def action_close(self) -> None:
        if self._fatal:
            self.app.exit(return_code=2)
        else:
            self.dismiss()
