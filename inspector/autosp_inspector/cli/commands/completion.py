"""``completion``: the script that makes a shell complete this command."""

from __future__ import annotations

import sys

import click
from click.shell_completion import get_completion_class

PROGRAM = "autosp-inspect"
SHELLS = ("bash", "zsh", "fish")


def command() -> click.Command:
    return click.Command(
        "completion",
        params=[click.Argument(["shell"], type=click.Choice(SHELLS))],
        callback=click.pass_context(_run),
        help="Print the completion script of a shell, for instance for\n\n"
        '    eval "$(autosp-inspect completion bash)"',
        short_help="Print the completion script of a shell.",
    )


def _run(ctx: click.Context, shell: str) -> None:
    made = get_completion_class(shell)
    assert made is not None
    root = ctx.find_root().command
    variable = f"_{PROGRAM.replace('-', '_').upper()}_COMPLETE"
    sys.stdout.write(made(root, {}, PROGRAM, variable).source() + "\n")
