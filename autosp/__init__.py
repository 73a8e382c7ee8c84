"""AutoSP: a compiler that gives unmodified PyTorch training code sequence parallelism.

    compiled = torch.compile(model, backend=autosp.backend(mesh=autosp.Mesh(sp=8)))
    compiled = autosp.compile(model, autosp.Mesh(sp=8))

Importing this package does not import torch; the names below load it when first used, so
that viewers of recorded traces start quickly.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from autosp.errors import AutoSPError
from autosp.mesh import Mesh

if TYPE_CHECKING:
    from autosp.backend import backend, compile
    from autosp.runtime.groups import average_gradients

__version__ = "0.1.0"

__all__ = ["AutoSPError", "Mesh", "average_gradients", "backend", "compile"]

_HOMES = {
    "backend": "autosp.backend",
    "compile": "autosp.backend",
    "average_gradients": "autosp.runtime.groups",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'autosp' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """Importing the submodule ``autosp.backend`` must not shadow the function of that name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
