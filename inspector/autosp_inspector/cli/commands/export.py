"""``export``: files to look at elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autosp_inspector.cli.compile import check_writable
from autosp_inspector.cli.graph_options import chosen_piece, piece_parameter
from autosp_inspector.cli.layout_options import layout_parameters, take_layout
from autosp_inspector.cli.output_options import quiet_parameter
from autosp_inspector.cli.source import OpenedSource, open_source
from autosp_inspector.cli.talk import say_note
from autosp_inspector.cli.view import (
    TARGET_HELP,
    output_parameter,
    rank_parameter,
    target_parameter,
)
from autosp_inspector.queries.pieces import by_piece


def command() -> click.Command:
    file = click.Path(path_type=Path)
    own = [
        click.Option(["--svg"], type=file, metavar="FILE", help="Draw the modules as SVG."),
        click.Option(["--dot"], type=file, metavar="FILE", help="The same as Graphviz text."),
        click.Option(
            ["--depth"],
            type=click.IntRange(0, 100),
            help="Levels of modules to unfold.  [default: as fits a page]",
        ),
        click.Option(
            ["--module"],
            default="",
            metavar="PATTERN",
            help="Only modules that match, such as 'layers.0' or 'layers.*.mlp'.",
        ),
        click.Option(
            ["--phase"],
            type=click.Choice(["forward", "backward"]),
            default="forward",
            show_default=True,
            help="Which half of the step to draw.",
        ),
        piece_parameter(),
        rank_parameter(),
    ]
    return click.Command(
        "export",
        params=[
            target_parameter(),
            *own,
            *layout_parameters(),
            output_parameter(),
            quiet_parameter(),
        ],
        callback=click.pass_context(lambda ctx, **_: _run(ctx)),
        help=f"Write drawings of the modules, with placements and collectives.\n\n{TARGET_HELP}",
        short_help="Write drawings: SVG or DOT.",
    )


def _run(ctx: click.Context) -> None:
    layout = take_layout(ctx)
    values: dict[str, Any] = ctx.params
    files = [values[name] for name in ("svg", "dot") if values[name] is not None]
    if not files:
        raise click.UsageError("Nothing to write: give --svg FILE or --dot FILE.", ctx)
    for path in files:
        check_writable(path)
    source: OpenedSource
    with open_source(
        values["target"], layout, output=values["output"], quiet=values["quiet"]
    ) as source:
        _write(source, values)
    if not values["quiet"]:
        for path in files:
            say_note(f"wrote {path}")


def _write(source: OpenedSource, values: dict[str, Any]) -> None:
    # Only here: drawing needs more than the other commands.
    from autosp_inspector.export.dot import export_dot
    from autosp_inspector.export.svg import export_svg

    trace = by_piece(chosen_piece(source.trace(values["rank"]), values["piece"]))[0]
    choices = {name: values[name] for name in ("depth", "module", "phase")}
    if values["svg"] is not None:
        export_svg(trace, values["svg"], **choices)
    if values["dot"] is not None:
        export_dot(trace, values["dot"], **choices)
