"""The entry point: runs a command and turns whatever happens into a status and a line.

Statuses: 0 fine, 1 findings or a difference, 2 bad input or an unusable file, 70 a mistake
of our own, 130 interrupted, 141 the reader of a pipe went away.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from autosp import __version__
from autosp.errors import AutoSPError
from autosp_inspector.cli.command_table import all_commands
from autosp_inspector.cli.group import InspectGroup, context_settings
from autosp_inspector.cli.mistake import EXIT_MISTAKE, report_mistake
from autosp_inspector.cli.output_options import PipeClosed, forget_stdout
from autosp_inspector.cli.talk import say_error, say_lines
from autosp_inspector.target.errors import UserCodeError

PROGRAM = "autosp-inspect"
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def make_cli() -> click.Group:
    """The group with all its commands."""
    group = InspectGroup(
        PROGRAM,
        params=[
            click.Option(
                ["--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_print_version,
                help="Print the version.",
            )
        ],
        help="Compile a PyTorch model for sequence-parallel training without a GPU, and look at "
        "everything the compiler did: where collectives were inserted and why, memory, time.\n\n"
        "TARGET is a model (model.py, model.py:factory, package.module:factory, a Hugging Face "
        "config.json) or a recorded trace.",
        context_settings=context_settings(),
        no_args_is_help=True,
        epilog="Exit status: 0 fine, 1 findings or a difference, 2 bad input, 70 internal error. "
        "`autosp-inspect COMMAND --help` describes each command.",
    )
    for command in all_commands():
        command.context_settings = context_settings()
        group.add_command(command)
    return group


def _print_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"{PROGRAM} {__version__}")
        ctx.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    try:
        status = make_cli().main(
            args=None if arguments is None else list(arguments),
            prog_name=PROGRAM,
            standalone_mode=False,
        )
        if sys.stdout is not None:  # None: closed before Python began
            sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_BAD_INPUT
    except click.ClickException as error:
        say_error(_usage_message(error))
        return EXIT_BAD_INPUT
    except UserCodeError as error:
        say_lines(error.traceback_lines)
        say_error(str(error))
        return EXIT_BAD_INPUT
    except AutoSPError as error:
        say_error(str(error))
        return EXIT_BAD_INPUT
    except (KeyboardInterrupt, click.Abort):
        say_error("interrupted")
        return EXIT_INTERRUPTED
    except (PipeClosed, BrokenPipeError):
        forget_stdout()
        return EXIT_BROKEN_PIPE
    except Exception as error:
        report_mistake(error, list(sys.argv[1:] if arguments is None else arguments))
        return EXIT_MISTAKE


def _usage_message(error: click.ClickException) -> str:
    message = error.format_message()
    ctx = getattr(error, "ctx", None)
    if ctx is None:
        return message
    return f"{message} See: {ctx.command_path.replace(' inspect', '')} --help"


if __name__ == "__main__":
    sys.exit(main())
