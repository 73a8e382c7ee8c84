"""Importing the user's file: as itself, beside its siblings, without leaving bytecode."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from autosp_inspector.target.cuda_source import for_cpu
from autosp_inspector.target.errors import TargetError, UserCodeError
from autosp_inspector.target.missing_packages import has_stand_in, stand_ins_for
from autosp_inspector.target.specification import PythonFile, PythonModule
from autosp_inspector.target.user_traceback import (
    describe_exception,
    user_location,
    user_traceback_lines,
)

_RELATIVE_IMPORT_HINT = (
    "The file lies in no package: import without the dot, or put an __init__.py beside it"
)


class _TargetLoader(SourceFileLoader):
    """Loads a source file as if written for the CPU, and writes no bytecode next to it."""

    def get_code(self, fullname: str) -> CodeType:
        """Always from source: bytecode that lies there was made without the replacement."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)

    def source_to_code(  # type: ignore[override]
        self, data: bytes, path: str, *, _optimize: int = -1
    ) -> CodeType:
        tree = for_cpu(bytes(data), path)
        code: CodeType = compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)
        return code


class _TargetFinder:
    """Finds the modules that lie in one folder, before the rest of ``sys.path``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        folders = [str(self.folder)] if path is None else [str(entry) for entry in path]
        for folder in folders:
            if not Path(folder).is_relative_to(self.folder) or "site-packages" in folder:
                continue
            spec = FileFinder(folder, (_TargetLoader, [".py"])).find_spec(name, target)
            if spec is not None and spec.loader is not None:
                return spec
        return None


@contextlib.contextmanager
def importable_folder(folder: Path) -> Iterator[None]:
    """Within it, modules of ``folder`` can be imported, as if a script there was run."""
    folder = folder.resolve()
    finder = _TargetFinder(folder)
    sys.meta_path.insert(0, finder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


def forget_target_modules() -> None:
    """Drop the modules of targets loaded before: another folder may use the same names."""
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if isinstance(getattr(spec, "loader", None), _TargetLoader):
            del sys.modules[name]


@contextlib.contextmanager
def script_environment(name: str) -> Iterator[None]:
    """The user's code sees its own ``sys.argv``, and what it prints goes to stderr."""
    saved = sys.argv
    sys.argv = [name]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.argv = saved


def import_source(target: PythonFile | PythonModule) -> ModuleType:
    """Import the user's module. The caller holds :func:`importable_folder`.

    A package in the list of ``missing_packages`` that is not installed is replaced by
    stand-ins, but only if the file does not handle its absence by itself.

    Raises:
        TargetError: it cannot be read, or something it imports is missing.
        UserCodeError: it raised.
    """
    stand_ins: list[str] = []
    while True:
        try:
            with stand_ins_for(stand_ins):
                return _execute(target)
        except ModuleNotFoundError as error:
            root = (error.name or "").partition(".")[0]
            if root in stand_ins or not has_stand_in(root):
                raise _missing_module(target, error) from error
            stand_ins.append(root)
        except SyntaxError as error:
            raise TargetError(
                f"is not valid Python: {error.msg}", where=_syntax_location(error, target)
            ) from error
        except OSError as error:
            if isinstance(target, PythonFile) and error.filename == str(target.path.resolve()):
                raise TargetError(f"cannot be read: {error.strerror}", where=target.text) from error
            raise _raised(target, error) from error
        except UnicodeDecodeError as error:
            raise TargetError("is not UTF-8 text", where=target.text) from error
        except (Exception, SystemExit) as error:
            raise _raised(target, error) from error


def source_folder(target: PythonFile | PythonModule) -> Path:
    """The folder whose modules the target may import."""
    if isinstance(target, PythonModule):
        return Path.cwd()
    return _package_root(target.path.resolve()).parent


def _package_root(path: Path) -> Path:
    """``path``, or the outermost package folder that contains it."""
    while (path.parent / "__init__.py").is_file():
        path = path.parent
    return path


def _execute(target: PythonFile | PythonModule) -> ModuleType:
    if isinstance(target, PythonModule):
        return importlib.import_module(target.name)
    path = target.path.resolve()
    root = _package_root(path)
    if root != path:
        relative = path.relative_to(root.parent).with_suffix("")
        parts = relative.parts[:-1] if relative.name == "__init__" else relative.parts
        return importlib.import_module(".".join(parts))
    return _execute_file(path)


def _execute_file(path: Path) -> ModuleType:
    """Run a file that is in no package, under its own name unless that one is taken."""
    name = path.stem
    if name in sys.modules or name in sys.stdlib_module_names or not name.isidentifier():
        name = f"target_{''.join(c if c.isalnum() else '_' for c in name)}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_TargetLoader(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _syntax_location(error: SyntaxError, target: PythonFile | PythonModule) -> str:
    """``file:line``; a file with null bytes has an error without a place."""
    if error.filename is None:
        return target.text
    return f"{_short(error.filename)}:{error.lineno}" if error.lineno else _short(error.filename)


def _missing_module(target: PythonFile | PythonModule, error: ModuleNotFoundError) -> TargetError:
    package = (error.name or "a module").partition(".")[0]
    return TargetError(
        f"imports {error.name}, which is not installed",
        where=_short(user_location(error)) or target.text,
        hint=f"Install it into this environment: pip install {package}",
    )


def _raised(target: PythonFile | PythonModule, error: BaseException) -> UserCodeError:
    return UserCodeError(
        f"importing the file raised {describe_exception(error)}",
        traceback_lines=user_traceback_lines(error),
        where=_short(user_location(error)) or target.text,
        hint=_RELATIVE_IMPORT_HINT if "no known parent package" in str(error) else "",
    )


def _short(location: str) -> str:
    """``location`` relative to the current folder where that is shorter."""
    relative = os.path.relpath(location) if location else ""
    return relative if relative and len(relative) < len(location) else location
