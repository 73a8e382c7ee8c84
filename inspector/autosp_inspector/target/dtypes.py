"""Names of floating dtypes on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

DTYPE_NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
}
"""Short name -> torch's name."""

_ALIASES = {"half": "float16", "float": "float32", "double": "float64"}


def full_dtype_name(text: str) -> str:
    """``bf16``, ``bfloat16`` or ``torch.bfloat16`` -> ``bfloat16``.

    Raises:
        ValueError: no floating dtype of that name.
    """
    name = text.strip().removeprefix("torch.")
    name = DTYPE_NAMES.get(name, _ALIASES.get(name, name))
    if name not in DTYPE_NAMES.values():
        expected = ", ".join([*DTYPE_NAMES, *DTYPE_NAMES.values()])
        raise ValueError(f"expected one of {expected}, not {text!r}")
    return name


def torch_dtype(text: str) -> torch.dtype:
    """The torch dtype called ``text``."""
    import torch

    dtype = getattr(torch, full_dtype_name(text))
    assert isinstance(dtype, torch.dtype)
    return dtype
