"""``record``: a dry run to a trace file."""

from __future__ import annotations

from pathlib import Path

import click

from autosp_inspector.cli.compile import compile_to_trace
from autosp_inspector.cli.layout_options import layout_parameters, take_layout
from autosp_inspector.cli.output_options import quiet_parameter
from autosp_inspector.cli.talk import progress, say_note
from autosp_inspector.cli.view import target_parameter
from autosp_inspector.schema import TRACE_SUFFIX
from autosp_inspector.target.errors import TargetError
from autosp_inspector.target.specification import TraceFiles, recognise


def command() -> click.Command:
    output = click.Option(
        ["-o", "--output"],
        type=click.Path(path_type=Path),
        metavar="FILE",
        required=True,
        help=f"The trace to write, usually *{TRACE_SUFFIX}; an older one is replaced.",
    )
    return click.Command(
        "record",
        params=[target_parameter(), output, *layout_parameters(), quiet_parameter()],
        callback=click.pass_context(lambda ctx, **_: _run(ctx)),
        help="Compile TARGET without a GPU and write the trace.\n\n"
        "The other commands take the trace in place of the model and then answer at once.",
        short_help="Compile a model and keep the trace.",
    )


def _run(ctx: click.Context) -> None:
    layout = take_layout(ctx)
    target = recognise(ctx.params["target"])
    if isinstance(target, TraceFiles):
        raise TargetError("is a trace already", where=target.text, hint="Give a model")
    quiet: bool = ctx.params["quiet"]
    with progress(quiet=quiet) as report_progress:
        written = compile_to_trace(target, layout, ctx.params["output"], progress=report_progress)
    if not quiet:
        say_note(f"wrote {written}; look at it with: autosp-inspect show {written}")
