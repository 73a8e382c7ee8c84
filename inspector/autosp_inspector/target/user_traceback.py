"""The part of a traceback that lies in the user's own files."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from pathlib import Path

_OUR_PACKAGES = (Path(__file__).resolve().parents[1],)


def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(os.path.realpath(paths[name]) + os.sep for name in names)


def is_user_file(file: str) -> bool:
    """Whether ``file`` belongs to the user: not to Python, a library or this program."""
    if file.startswith("<"):
        return False
    real = os.path.realpath(file)
    if real.startswith(_library_folders()):
        return False
    parts = Path(real).parts
    if "site-packages" in parts or "dist-packages" in parts:
        return False
    if any(Path(real).is_relative_to(folder) for folder in _OUR_PACKAGES):
        return False
    return not _belongs_to_module(real, "autosp")


def _belongs_to_module(real: str, name: str) -> bool:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    return file is not None and Path(real).is_relative_to(Path(os.path.realpath(file)).parent)


def user_traceback_lines(error: BaseException) -> list[str]:
    """The frames of ``error`` in the user's files, formatted as Python formats them."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if is_user_file(frame.filename)
    ]
    text = "".join(traceback.StackSummary.from_list(frames).format())
    return text.splitlines()


def user_location(error: BaseException) -> str:
    """``file:line`` of the innermost frame in the user's files; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if is_user_file(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def describe_exception(error: BaseException) -> str:
    """``ValueError: message``, the first line of the message only."""
    name = type(error).__name__
    message = str(error).strip().splitlines()
    return f"{name}: {message[0]}" if message else name
