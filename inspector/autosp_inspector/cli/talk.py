"""What the program says to a person: errors, notes and progress, all on stderr."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from autosp_inspector.report.visible import visible

PROGRESS_DELAY_S = 1.0
"""Nothing is shown for what is over before."""


def stderr_console() -> Console:
    """Colours only in a terminal, and never with NO_COLOR."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def say_error(message: str) -> None:
    """One line."""
    line = Text("error: ", style="bold red").append(Text(visible(message), style="default"))
    stderr_console().print(line)


def say_note(message: str) -> None:
    """One line of information."""
    stderr_console().print(Text(visible(message)))


def say_lines(lines: Sequence[str]) -> None:
    """Lines as they are, such as those of a traceback of the user's program."""
    for line in lines:
        sys.stderr.write(visible(line.rstrip("\n")) + "\n")


@contextlib.contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yields what to call with the name of each stage.

    Shown on stderr if that is a terminal and the work takes longer than a second.
    """
    console = stderr_console()
    if quiet or not console.is_terminal:
        yield _ignore
        return
    display = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    task = display.add_task("starting", total=None)
    timer = threading.Timer(PROGRESS_DELAY_S, display.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda stage: display.update(task, description=visible(stage))
    finally:
        timer.cancel()
        timer.join()
        display.stop()


def _ignore(_stage: str) -> None:
    """Progress nobody watches."""
