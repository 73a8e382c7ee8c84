"""Writing a view to files: a picture (SVG) and its text."""

from __future__ import annotations

from pathlib import Path

from autosp_tui.errors import ExportError


def free_path(folder: Path, stem: str, suffix: str) -> Path:
    """``stem.suffix`` in ``folder``, with a number where that exists already."""
    path = folder / f"{stem}{suffix}"
    number = 2
    while path.exists():
        path = folder / f"{stem}-{number}{suffix}"
        number += 1
    return path


def write_view(folder: Path, view: str, *, picture: str, text: str) -> tuple[Path, Path]:
    """Write ``autosp-<view>.svg`` and ``.txt`` without replacing anything.

    Raises:
        ExportError: the folder cannot be written to.
    """
    stem = f"autosp-{view}"
    picture_path = free_path(folder, stem, ".svg")
    text_path = free_path(folder, stem, ".txt")
    try:
        picture_path.write_text(picture, encoding="utf-8")
        text_path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ExportError(
            f"cannot write {picture_path.name} in {folder}: {error.strerror}; "
            "start the inspector in a folder you can write to"
        ) from error
    return picture_path, text_path
