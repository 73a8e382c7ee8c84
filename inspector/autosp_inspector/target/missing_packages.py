"""Stand-ins for GPU packages that are not installed on the machine of a dry run.

A file that imports them at its top can then be loaded; only a real call is an error. The
functions of ``flash_attn`` are AutoSP's own (:mod:`autosp.attention`) and can be called.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

from autosp_inspector.target.errors import MissingPackageError

GPU_PACKAGES = (
    "apex",
    "causal_conv1d",
    "flash_attn",
    "flash_attn_interface",
    "grouped_gemm",
    "liger_kernel",
    "mamba_ssm",
    "sageattention",
    "transformer_engine",
    "triton",
    "xformers",
)
"""Packages that need a GPU or its tool chain, and that model files import."""


ATTENTION_PACKAGES = ("flash_attn", "flash_attn_interface")
"""Of these AutoSP has the functions."""


def has_stand_in(package: str) -> bool:
    """Whether a missing ``package`` may be replaced by stand-ins."""
    return package in GPU_PACKAGES


class _StandInType(type):
    """Class of the stand-ins: attributes of one are again stand-ins."""

    def __getattr__(cls, name: str) -> _StandInType:
        if name.startswith("__"):
            raise AttributeError(name)
        return make_stand_in(f"{cls.__module__}.{cls.__qualname__}.{name}")


def make_stand_in(dotted_name: str) -> _StandInType:
    """Something that can be imported, subclassed and passed on, but not called."""
    module, _, name = dotted_name.rpartition(".")
    package = dotted_name.partition(".")[0]

    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise MissingPackageError(
            f"{dotted_name} was called, but {package} is not installed",
            hint=f"Install {package}, or let the model use torch's own operators here "
            "(F.scaled_dot_product_attention for attention)",
        )

    return _StandInType(name, (), {"__module__": module, "__new__": refuse})


class _StandInModule(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__.partition(".")[0] in ATTENTION_PACKAGES:
            functions = importlib.import_module("autosp.attention").FUNCTIONS
            if name in functions:
                return functions[name]
        return make_stand_in(f"{self.__name__}.{name}")


class _StandInFinder:
    """Finds any module below the given packages."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = packages

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name.partition(".")[0] not in self.packages or _asked_without_import():
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """A stand-in has no code of its own."""


def _asked_without_import() -> bool:
    """Whether a library only asks if the package is there (``importlib.util.find_spec``)."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        if frame.f_code.co_name == "find_spec" and "importlib.util" in frame.f_code.co_filename:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and frame.f_globals.get("__name__") == "importlib.util"


@contextlib.contextmanager
def stand_ins_for(packages: Sequence[str]) -> Iterator[None]:
    """Within it, ``packages`` can be imported although they are missing."""
    if not packages:
        yield
        return
    finder = _StandInFinder(tuple(packages))
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):
            if isinstance(module, _StandInModule):
                del sys.modules[name]
