"""Runs Graphviz: the system's ``dot``, or the ``graphviz-pure`` that comes with this package."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from autosp_inspector.errors import ExportError

DEFAULT_TIME_LIMIT_S = 20.0


class LayoutError(ExportError):
    """No layout program could draw the graph in the time it had."""


def layout_commands() -> tuple[Path, ...]:
    """Layout programs of this machine, the preferred one first."""
    beside_python = Path(sys.executable).parent / "graphviz-pure"
    found = [
        shutil.which("dot"),
        str(beside_python) if beside_python.exists() else None,
        shutil.which("graphviz-pure"),
    ]
    return tuple(Path(command) for command in dict.fromkeys(found) if command is not None)


def draw_svg(
    dot_source: str,
    *,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
    commands: Sequence[Path] | None = None,
) -> str:
    """The SVG text of a drawing, from the first program that manages it.

    Raises:
        LayoutError: none is installed, all failed, or the time is over.
    """
    candidates = tuple(commands) if commands is not None else layout_commands()
    if not candidates:
        raise LayoutError(
            "no Graphviz program found", hint="Install one: pip install graphviz-pure"
        )
    failures: list[str] = []
    for command in candidates:
        try:
            return _run(command, dot_source, time_limit_s)
        except subprocess.TimeoutExpired:
            failures.append(f"{command.name} was stopped after {time_limit_s:g} s")
        except (OSError, subprocess.CalledProcessError) as error:
            failures.append(f"{command.name} failed ({_reason(error)})")
    raise LayoutError(
        f"the graph could not be laid out: {'; '.join(failures)}",
        hint="Open fewer modules with a smaller --depth",
    )


def _run(command: Path, dot_source: str, time_limit_s: float) -> str:
    finished = subprocess.run(
        [str(command), "-Tsvg"],
        input=dot_source.encode(),
        capture_output=True,
        timeout=time_limit_s,
        check=True,
    )
    return finished.stdout.decode()


def _reason(error: OSError | subprocess.CalledProcessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {error.returncode}"
    return error.strerror or str(error)
