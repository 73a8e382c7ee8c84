"""A headless view as a command: open the source, query, print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from autosp_inspector.cli.layout_options import layout_parameters, take_layout
from autosp_inspector.cli.output_options import (
    format_parameters,
    print_report,
    quiet_parameter,
    take_format,
)
from autosp_inspector.cli.source import OpenedSource, open_source
from autosp_inspector.report.report import Report

EXIT_FINDINGS = 1
TARGET_HELP = (
    "TARGET is a model (model.py, model.py:factory, package.module:factory, a Hugging Face "
    "config.json), which is compiled first, or a recorded trace (a file, or a folder with one "
    "file per rank)."
)

ReportOf = Callable[..., Report]
"""``(opened source, **values of the view's own options) -> Report``."""


@dataclass(frozen=True, slots=True)
class View:
    """One view: its words, its own options, and how it makes a report."""

    name: str
    help: str
    report: ReportOf
    options: tuple[click.Parameter, ...] = ()
    fails_on_problems: bool = False
    """Whether problems in the report make the exit status 1."""


def view_command(view: View) -> click.Command:
    """The command of a view."""
    parameters: Sequence[click.Parameter] = (
        target_parameter(),
        *view.options,
        *format_parameters(),
        *layout_parameters(),
        output_parameter(),
        quiet_parameter(),
    )
    return click.Command(
        view.name,
        params=list(parameters),
        callback=click.pass_context(lambda ctx, **_: run_view(ctx, view)),
        help=f"{view.help}\n\n{TARGET_HELP}",
        short_help=view.help.partition("\n")[0],
    )


def target_parameter() -> click.Parameter:
    return click.Argument(["target"])


def output_parameter() -> click.Parameter:
    return click.Option(
        ["-o", "--output"],
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Keep the trace of a compiled model in this file.",
    )


def rank_parameter() -> click.Parameter:
    """For views of one rank."""
    return click.Option(
        ["--rank"],
        type=click.IntRange(min=0),
        help="Rank of a run with several traces.  [default: the lowest]",
    )


def run_view(ctx: click.Context, view: View) -> None:
    """Print the view; the context ends with status 1 where problems count."""
    layout = take_layout(ctx)
    chosen_format = take_format(ctx)
    values: dict[str, Any] = dict(ctx.params)
    target, quiet = values.pop("target"), values.pop("quiet")
    output = values.pop("output")
    source: OpenedSource
    with open_source(target, layout, output=output, quiet=quiet) as source:
        report = view.report(source, **values)
    print_report(report, chosen_format)
    if view.fails_on_problems and report.problems:
        ctx.exit(EXIT_FINDINGS)
