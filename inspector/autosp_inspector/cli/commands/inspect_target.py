"""The main command: compile and look."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from autosp_inspector.cli.commands.summary import summary_of
from autosp_inspector.cli.group import DEFAULT_COMMAND
from autosp_inspector.cli.layout_options import layout_parameters, take_layout
from autosp_inspector.cli.output_options import (
    format_parameters,
    print_report,
    quiet_parameter,
    take_format,
)
from autosp_inspector.cli.source import OpenedSource, open_source
from autosp_inspector.cli.view import TARGET_HELP, output_parameter, target_parameter


def command() -> click.Command:
    """``autosp-inspect TARGET``."""
    no_tui = click.Option(["--no-tui"], is_flag=True, help="Print the summary, also in a terminal.")
    return click.Command(
        DEFAULT_COMMAND,
        params=[
            target_parameter(),
            no_tui,
            *format_parameters(),
            *layout_parameters(),
            output_parameter(),
            quiet_parameter(),
        ],
        callback=click.pass_context(lambda ctx, **_: _run(ctx)),
        help="Compile TARGET without a GPU and open the interactive view of the result; "
        f"outside a terminal, print the summary.\n\n{TARGET_HELP}",
    )


def _run(ctx: click.Context) -> None:
    layout = take_layout(ctx)
    chosen_format = take_format(ctx)
    values: dict[str, Any] = ctx.params
    source: OpenedSource
    with open_source(
        values["target"], layout, output=values["output"], quiet=values["quiet"]
    ) as source:
        if values["no_tui"] or chosen_format is not None or not has_terminal():
            print_report(summary_of(source, rank=None), chosen_format)
            return
        open_interface([source.path])


def has_terminal() -> bool:
    """Whether an interactive view can be shown."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def open_interface(paths: list[Path]) -> None:
    """Run the terminal interface on traces until the user leaves it."""
    # Only here: the views that print do not need it.
    from autosp_tui.app import InspectorApp

    InspectorApp(paths).run()
