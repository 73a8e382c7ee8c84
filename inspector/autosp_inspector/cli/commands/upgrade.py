"""``upgrade``: bring older traces to the current schema."""

from __future__ import annotations

from pathlib import Path

import click

from autosp_inspector.cli.talk import say_note
from autosp_inspector.schema import SCHEMA_VERSION
from autosp_inspector.trace import upgrade_trace


def command() -> click.Command:
    traces = click.Argument(
        ["traces"], nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TRACE..."
    )
    return click.Command(
        "upgrade",
        params=[traces],
        callback=_run,
        help="Bring traces of an older version to the current schema, in place. An interrupted "
        "upgrade leaves the file as it was.",
        short_help="Bring older traces to the current schema.",
    )


def _run(traces: tuple[Path, ...]) -> None:
    for path in traces:
        before = upgrade_trace(path)
        if before == SCHEMA_VERSION:
            say_note(f"{path}: already schema {SCHEMA_VERSION}")
        else:
            say_note(f"{path}: schema {before} -> {SCHEMA_VERSION}")
