"""``hardware``: the devices and where their figures come from."""

from __future__ import annotations

import click

from autosp.hardware import DEVICES, find_device
from autosp_inspector.cli.output_options import format_parameters, print_report, take_format
from autosp_inspector.report.hardware import hardware_report


def command() -> click.Command:
    return click.Command(
        "hardware",
        params=[click.Argument(["name"], required=False), *format_parameters()],
        callback=click.pass_context(lambda ctx, **_: _run(ctx)),
        help="The devices that estimates can be made for, every figure with its source; with "
        "NAME, one of them.",
        short_help="The device table, with sources.",
    )


def _run(ctx: click.Context) -> None:
    chosen_format = take_format(ctx)
    name: str | None = ctx.params["name"]
    devices = DEVICES if name is None else (find_device(name),)
    print_report(hardware_report(devices), chosen_format)
