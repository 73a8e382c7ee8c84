"""``verify``: run the compiled program for real and compare."""

from __future__ import annotations

import click

from autosp_inspector.cli.layout_options import layout_parameters
from autosp_inspector.cli.number_types import MAX_BATCH, MAX_SEQUENCE, CountType
from autosp_inspector.cli.output_options import (
    format_parameters,
    print_report,
    quiet_parameter,
    take_format,
)
from autosp_inspector.cli.talk import progress
from autosp_inspector.cli.verification import run_verification
from autosp_inspector.cli.view import EXIT_FINDINGS, target_parameter
from autosp_inspector.report.verification import verification_report
from autosp_inspector.target.errors import TargetError
from autosp_inspector.target.specification import TraceFiles, recognise

MAX_PROCESSES = 16
_LAYOUT_OPTIONS = ("backend", "partitioner", "attention", "allow_breaks", "arguments")
"""Layout options that mean something for a small run on the CPU."""


def command() -> click.Command:
    own = [
        click.Option(
            ["--ranks"],
            type=CountType(MAX_PROCESSES),
            default=2,
            show_default=True,
            help="Processes to start: --dp groups of sequence-parallel ones.",
        ),
        click.Option(
            ["--dp"],
            type=CountType(MAX_PROCESSES),
            default=1,
            show_default=True,
            help="Data-parallel groups; the batch is divided among them.",
        ),
        click.Option(
            ["--seq"],
            type=CountType(MAX_SEQUENCE),
            default=64,
            show_default=True,
            help="Sequence length.",
        ),
        click.Option(
            ["--batch"],
            type=CountType(MAX_BATCH),
            default=2,
            show_default=True,
            help="Sequences.",
        ),
        click.Option(
            ["--dtype"],
            type=click.Choice(["float64", "float32"]),
            default="float64",
            show_default=True,
            help="Precision of the comparison.",
        ),
        click.Option(
            ["--ignored-labels"],
            is_flag=True,
            help="Set labels to -100 across the borders of shards, and for one whole shard.",
        ),
        click.Option(
            ["--steps"],
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="Compare also the parameters after so many steps of SGD.",
        ),
        click.Option(
            ["--seed"],
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="Seed of the parameters and inputs.",
        ),
    ]
    layout = [option for option in layout_parameters() if option.name in _LAYOUT_OPTIONS]
    return click.Command(
        "verify",
        params=[target_parameter(), *own, *format_parameters(), *layout, quiet_parameter()],
        callback=click.pass_context(lambda ctx, **_: _run(ctx)),
        help="Run the compiled program on real processes (gloo, CPU) at a reduced size, and "
        "compare the loss and every gradient with the single-process model.\n\n"
        "A factory with a parameter `tiny` is called with tiny=True, a Hugging Face config.json "
        "is shrunk, other models must be small. The exit status is 1 if anything differs.",
        short_help="Run the compiled program and compare loss and gradients.",
    )


def _run(ctx: click.Context) -> None:
    chosen_format = take_format(ctx)
    values = ctx.params
    target = recognise(values["target"])
    if isinstance(target, TraceFiles):
        raise TargetError("is a trace, which cannot be run", where=target.text, hint="Give a model")
    with progress(quiet=values["quiet"]) as report_progress:
        data = run_verification(target, values, progress=report_progress)
    print_report(verification_report(data), chosen_format)
    if not data["ok"]:
        ctx.exit(EXIT_FINDINGS)
