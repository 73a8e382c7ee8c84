"""Option types with messages of their own."""

from __future__ import annotations

import re
from typing import Any

import click

from autosp_inspector.target.dtypes import DTYPE_NAMES, full_dtype_name

MAX_SEQUENCE = 2**27
MAX_BATCH = 2**16
MAX_RANKS = 2**16
_SUFFIXES = {"": 1, "k": 1024, "m": 1024**2}


class CountType(click.ParamType[Any]):
    """A whole number of at least 1; ``128k`` is 131072."""

    name = "N"

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"([+-]?\d+)([kKmM]?)", str(value).strip().replace("_", ""))
        if match is None:
            self.fail(f"{value!r} is not a whole number such as 4096 or 128k.", param, ctx)
        number = int(match[1]) * _SUFFIXES[match[2].lower()]
        if not 1 <= number <= self.maximum:
            self.fail(f"{value} is not between 1 and {self.maximum}.", param, ctx)
        return number


class DtypeType(click.ParamType[Any]):
    """A floating dtype, by its short or its full name."""

    name = "DTYPE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return full_dtype_name(str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        del ctx, param
        return [
            click.shell_completion.CompletionItem(name)
            for name in DTYPE_NAMES
            if name.startswith(incomplete)
        ]


class GpuType(click.ParamType[Any]):
    """A device of the table, by name or alias."""

    name = "NAME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from autosp.hardware import find_device

        del param, ctx
        return find_device(str(value)).name

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        from autosp.hardware import DEVICES

        del ctx, param
        return [
            click.shell_completion.CompletionItem(device.name)
            for device in DEVICES
            if device.name.startswith(incomplete.lower())
        ]
