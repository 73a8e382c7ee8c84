"""``show``: the interactive view of recorded traces."""

from __future__ import annotations

from pathlib import Path

import click

from autosp_inspector.cli.commands.inspect_target import has_terminal, open_interface
from autosp_inspector.target.errors import TargetError
from autosp_inspector.trace import open_run


def command() -> click.Command:
    traces = click.Argument(
        ["traces"], nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TRACE..."
    )
    return click.Command(
        "show",
        params=[traces],
        callback=_run,
        help="Open the interactive view on recorded traces: files, or folders with one file per "
        "rank.",
        short_help="Open the interactive view on recorded traces.",
    )


def _run(traces: tuple[Path, ...]) -> None:
    for path in traces:
        for trace in open_run(path):  # what cannot be opened is said before the screen clears
            trace.close()
    if not has_terminal():
        raise TargetError(
            "the interactive view needs a terminal", hint="Print with: autosp-inspect summary TRACE"
        )
    open_interface(list(traces))
