"""The options that say how a view is printed, and the printing."""

from __future__ import annotations

import os
import sys

import click
from rich.console import Console

from autosp.errors import AutoSPError
from autosp_inspector.report.csv_format import render_csv
from autosp_inspector.report.json_format import render_json
from autosp_inspector.report.markdown_format import render_markdown
from autosp_inspector.report.report import Report
from autosp_inspector.report.text_format import print_text

FORMATS = ("json", "csv", "md")


class PipeClosed(Exception):
    """Whoever reads stdout has gone away. (click would turn a BrokenPipeError into exit 1.)"""


def format_parameters() -> list[click.Parameter]:
    """Fresh click options ``--json``, ``--csv``, ``--md``."""
    helps = {
        "json": 'Print one JSON object with "schema": "autosp-inspect/1".',
        "csv": "Print comma-separated values, one line per record.",
        "md": "Print Markdown.",
    }
    return [click.Option([f"--{name}"], is_flag=True, help=helps[name]) for name in FORMATS]


def quiet_parameter() -> click.Parameter:
    return click.Option(["-q", "--quiet"], is_flag=True, help="No progress and no notes on stderr.")


def take_format(ctx: click.Context) -> str | None:
    """The chosen format, None for text; its parameters are taken out of ``ctx.params``."""
    chosen = [name for name in FORMATS if ctx.params.pop(name, False)]
    if len(chosen) > 1:
        options = " and ".join(f"--{name}" for name in chosen)
        raise click.UsageError(f"{options} exclude each other.", ctx)
    return chosen[0] if chosen else None


def print_report(report: Report, chosen_format: str | None) -> None:
    """Print to stdout.

    Raises:
        PipeClosed: nobody reads it any more.
        AutoSPError: it is closed, or its disk is full.
    """
    if sys.stdout is None:  # closed before Python began
        raise AutoSPError("cannot write to stdout: it is closed", hint="Redirect it to a file")
    try:
        _print(report, chosen_format)
    except BrokenPipeError as error:
        raise PipeClosed from error
    except OSError as error:
        forget_stdout()
        raise AutoSPError(
            f"cannot write to stdout ({error.strerror})", hint="Choose another place"
        ) from error


def forget_stdout() -> None:
    """Drop what is not yet written: Python flushes stdout at its end, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print(report: Report, chosen_format: str | None) -> None:
    match chosen_format:
        case "json":
            sys.stdout.write(render_json(report))
        case "csv":
            sys.stdout.write(render_csv(report))
        case "md":
            sys.stdout.write(render_markdown(report))
        case _:
            print_text(report, Console(highlight=False))
    sys.stdout.flush()
