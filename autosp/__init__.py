"""AutoSP: a compiler that gives unmodified PyTorch training code sequence parallelism.

    compiled = torch.compile(model, backend=autosp.backend(mesh=autosp.Mesh(sp=8)))
    compiled = autosp.compile(model, autosp.Mesh(sp=8))

Importing this package does not import torch; the names below load it when first used, so
that viewers of recorded traces start quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from autosp.errors import AutoSPError
from autosp.mesh import Mesh

if TYPE_CHECKING:
    from autosp.runtime.groups import average_gradients
    from autosp.runtime.samplers import data_parallel_sampler
    from autosp.torch_backend import backend, compile

__version__ = "0.1.0"

__all__ = [
    "AutoSPError",
    "Mesh",
    "average_gradients",
    "backend",
    "compile",
    "data_parallel_sampler",
]

_HOMES = {
    "backend": "autosp.torch_backend",
    "compile": "autosp.torch_backend",
    "average_gradients": "autosp.runtime.groups",
    "data_parallel_sampler": "autosp.runtime.samplers",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'autosp' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    return value
