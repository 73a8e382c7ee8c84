"""``query``: read-only SQL on a trace."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from autosp_inspector.cli.output_options import format_parameters, print_report, take_format
from autosp_inspector.queries.sql import run_sql
from autosp_inspector.report.sql import sql_report
from autosp_inspector.trace import open_trace


def command() -> click.Command:
    own = [
        click.Argument(["trace"], type=click.Path(path_type=Path)),
        click.Argument(["sql"]),
        click.Option(["--limit"], type=click.IntRange(min=0), help="At most so many rows."),
    ]
    return click.Command(
        "query",
        params=[*own, *format_parameters()],
        callback=click.pass_context(lambda ctx, **_: _run(ctx)),
        help="Run one SELECT on TRACE; `-` reads it from stdin.\n\n"
        "Nothing can be written or attached. docs/trace-schema.md lists the tables.",
        short_help="Read-only SQL on a trace.",
    )


def _run(ctx: click.Context) -> None:
    chosen_format = take_format(ctx)
    statement: str = ctx.params["sql"]
    if statement == "-":
        statement = sys.stdin.read()
    with open_trace(ctx.params["trace"]) as trace:
        result = run_sql(trace, statement, limit=ctx.params["limit"])
    print_report(sql_report(result.columns, result.rows), chosen_format)
