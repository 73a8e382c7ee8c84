"""The group of commands: what is not a command is a target of the main command."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

DEFAULT_COMMAND = "inspect"
"""The main command; it is typed without its name."""


class InspectGroup(click.Group):
    """Sends ``autosp-inspect TARGET ...`` to the main command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and not self._names_command(ctx, args):
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)

    def _names_command(self, ctx: click.Context, args: list[str]) -> bool:
        """Whether the first word is for the group itself."""
        first = args[0]
        if first in ("--help", "-h", "--version") or first in self.commands:
            return True
        if first.startswith("-"):
            return False
        if _looks_like_target(first):
            return False
        close = get_close_matches(first, self.list_commands(ctx), n=1, cutoff=0.6)
        if close:
            raise click.UsageError(
                f"No such command or file {first!r}. Did you mean {close[0]}?", ctx
            )
        return False

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Commands in the order of the table, without the one that is not typed."""
        return [name for name in self.commands if name != DEFAULT_COMMAND]

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        name = ctx.command_path
        formatter.write_usage(name, "TARGET [OPTIONS]")
        formatter.write_usage(name, "COMMAND TARGET [OPTIONS]")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The main command's options are the group's as far as a reader is concerned."""
        main = self.commands[DEFAULT_COMMAND]
        records = [
            record
            for parameter in main.get_params(ctx)
            if isinstance(parameter, click.Option)
            and (record := parameter.get_help_record(ctx)) is not None
        ]
        version = next(p for p in self.params if p.name == "version").get_help_record(ctx)
        if version is not None:
            records.append(version)
        self.format_commands(ctx, formatter)
        with formatter.section("Options"):
            formatter.write_dl(list(dict(records).items()))


def _looks_like_target(word: str) -> bool:
    if any(mark in word for mark in "./:\\"):
        return True
    try:
        return Path(word).exists()
    except OSError:  # too long a name: recognising the target says so
        return True


def context_settings() -> dict[str, Any]:
    """Settings of every command."""
    return {"help_option_names": ["-h", "--help"], "max_content_width": 100}
