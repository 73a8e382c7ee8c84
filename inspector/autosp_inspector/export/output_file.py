"""Writing an exported file, with a message instead of a traceback when it cannot be."""

from __future__ import annotations

from pathlib import Path

from autosp_inspector.errors import ExportError


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8.

    Raises:
        ExportError: the file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ExportError(
            f"cannot write the file ({error.strerror or error})",
            where=str(path),
            hint="Choose another place",
        ) from error
