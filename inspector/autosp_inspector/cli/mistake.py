"""A mistake of our own: the traceback goes to a file, one line to the person."""

from __future__ import annotations

import platform
import sys
import tempfile
import traceback
from pathlib import Path

from autosp import __version__
from autosp_inspector.cli.talk import say_error, say_lines

EXIT_MISTAKE = 70
"""``EX_SOFTWARE`` of ``sysexits.h``."""


def report_mistake(error: Exception, arguments: list[str]) -> None:
    """Say what happened and where the rest is; the traceback itself if no file can be written."""
    lines = traceback.format_exception(error)
    what = f"internal error: {_first_line(error)}"
    try:
        place = f"with {_write(lines, arguments)}"
    except OSError:
        say_lines("".join(lines).splitlines())
        place = "with the lines above"
    say_error(
        f"{what}. This is a mistake of autosp-inspect, not of your input: please report it {place}"
    )


def _first_line(error: BaseException) -> str:
    """The innermost reason: torch.compile wraps what a backend raises, others chain it."""
    while (inner := _wrapped_by(error)) is not None:
        error = inner
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    name = type(error).__name__
    return f"{name}: {text}".rstrip(".:") if text else name


def _wrapped_by(error: BaseException) -> BaseException | None:
    inner = getattr(error, "inner_exception", None)
    return inner if isinstance(inner, BaseException) else error.__cause__


def _write(lines: list[str], arguments: list[str]) -> Path:
    with tempfile.NamedTemporaryFile(
        "w",
        prefix="autosp-inspect-",
        suffix=".txt",
        delete=False,
        encoding="utf-8",
        errors="backslashreplace",
    ) as file:
        file.write(f"autosp {__version__}, Python {platform.python_version()}, {sys.platform}\n")
        file.write(f"autosp-inspect {' '.join(arguments)}\n\n")
        file.writelines(lines)
    return Path(file.name)
