"""What a TARGET on the command line is: a model or a trace, told apart by content.

Nothing here imports torch or runs the user's code.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from autosp_inspector.schema import TRACE_SUFFIX
from autosp_inspector.target.errors import TargetError

SQLITE_MAGIC = b"SQLite format 3\x00"
"""First bytes of every SQLite file (https://www.sqlite.org/fileformat.html#magic_header_string)."""

CONFIG_NAME = "config.json"


@dataclass(frozen=True, slots=True)
class PythonFile:
    """``model.py`` or ``model.py:factory``."""

    path: Path
    factory: str | None
    text: str


@dataclass(frozen=True, slots=True)
class PythonModule:
    """``package.module`` or ``package.module:factory``."""

    name: str
    factory: str | None
    text: str


@dataclass(frozen=True, slots=True)
class HuggingFaceConfig:
    """A ``config.json`` of the transformers library."""

    path: Path
    text: str


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """One trace file, or the files of a run of several ranks."""

    path: Path
    text: str


ModelTarget = PythonFile | PythonModule | HuggingFaceConfig
Target = ModelTarget | TraceFiles


def recognise(text: str) -> Target:
    """What ``text`` denotes.

    Raises:
        TargetError: it is none of the things a command can work on.
    """
    if not text.strip():
        raise TargetError("the target is empty", hint="Give a model file or a trace")
    try:
        location, factory = _split_factory(text)
        path = Path(location)
        if path.is_dir():
            return _recognise_folder(path, factory, text)
        if path.exists():
            return _recognise_file(path, factory, text)
        is_link = path.is_symlink()
    except OSError as error:
        raise TargetError(f"cannot be read: {error.strerror}", where=_abbreviated(text)) from error
    if is_link:
        raise TargetError(f"is a link to {path.readlink()}, which does not exist", where=location)
    if _looks_like_path(location):
        raise TargetError("no such file", where=location, hint=_similar_files(path))
    return _recognise_module(location, factory, text)


_MAX_SHOWN_CHARACTERS = 200


def _abbreviated(text: str) -> str:
    """A name too long for the file system is too long for one line as well."""
    if len(text) <= _MAX_SHOWN_CHARACTERS:
        return text
    return f"{text[:_MAX_SHOWN_CHARACTERS]}..."


def _split_factory(text: str) -> tuple[str, str | None]:
    """``model.py:build`` -> (``model.py``, ``build``); a path with a colon stays whole."""
    if Path(text).exists():
        return text, None
    location, colon, factory = text.rpartition(":")
    if not colon or not location:
        return text, None
    if not factory.isidentifier():
        if "/" in factory or "\\" in factory:
            return text, None
        raise TargetError(
            f"{factory!r} is not the name of a factory",
            where=text,
            hint="Write model.py:name_of_a_function",
        )
    return location, factory


def _recognise_folder(path: Path, factory: str | None, text: str) -> Target:
    if factory is not None:
        raise TargetError("is a folder, which has no factory", where=str(path))
    if (path / CONFIG_NAME).is_file():
        return HuggingFaceConfig(path / CONFIG_NAME, text)
    if any(TRACE_SUFFIX in file.suffixes or is_sqlite(file) for file in sorted(path.iterdir())):
        return TraceFiles(path, text)
    raise TargetError(
        f"holds neither traces (*{TRACE_SUFFIX}) nor a Hugging Face {CONFIG_NAME}",
        where=f"folder {path}",
    )


def _recognise_file(path: Path, factory: str | None, text: str) -> Target:
    with path.open("rb") as file:
        start = file.read(4096)
    if path.suffix == ".py":
        return PythonFile(path, factory, text)
    if factory is not None:
        raise TargetError("is not a Python file, so it has no factory", where=str(path))
    if start.startswith(SQLITE_MAGIC):
        return TraceFiles(path, text)
    if start.lstrip()[:1] == b"{":
        return HuggingFaceConfig(_checked_config(path), text)
    raise TargetError(
        "is neither a trace, a Python file nor a Hugging Face config.json",
        where=str(path),
        hint="An empty file is an interrupted recording" if not start else "",
    )


def _checked_config(path: Path) -> Path:
    """``path``, if it is JSON that names a model type."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise TargetError(f"is not valid JSON: {error}", where=str(path)) from error
    if "model_type" not in content:
        raise TargetError(
            "has no model_type, so it is not a Hugging Face model configuration",
            where=str(path),
        )
    return path


def is_sqlite(path: Path) -> bool:
    """Whether ``path`` is a SQLite file, hence perhaps a trace."""
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except OSError:
        return False


def _looks_like_path(location: str) -> bool:
    return (
        "/" in location
        or "\\" in location
        or location.endswith((".py", ".json", TRACE_SUFFIX))
        or not all(part.isidentifier() for part in location.split("."))
    )


def _similar_files(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"The folder {folder} does not exist either"
    names = sorted(file.name for file in folder.iterdir() if not file.name.startswith("."))
    close = get_close_matches(path.name, names, n=3, cutoff=0.7)
    if not close:
        return ""
    return "Did you mean " + " or ".join(str(folder / name) for name in close) + "?"


def _recognise_module(name: str, factory: str | None, text: str) -> PythonModule:
    if not _module_exists(name):
        raise TargetError(
            "no file, folder or importable module of that name",
            where=name,
            hint="A target is model.py, model.py:factory, package.module:factory, "
            "a Hugging Face config.json or a trace",
        )
    return PythonModule(name, factory, text)


def _module_exists(name: str) -> bool:
    """Whether ``name`` can be imported, from the current folder too; runs no submodule."""
    relative = Path(*name.split("."))
    if relative.with_suffix(".py").is_file() or relative.is_dir():
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
