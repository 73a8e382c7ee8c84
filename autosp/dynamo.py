"""``torch.compile`` as every entry calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from autosp.attention import replace_flash_attn
from autosp.flex_attention import allow_training_on_cpu

MOST_COMPILATIONS = 256
"""Of one function, where breaks are allowed: layers that differ in a number (their index)
are compiled one by one, and dynamo runs what exceeds its limit of 8 uncompiled."""


def teach_dynamo() -> None:
    """Tell dynamo what it is to trace where it would refuse, or look into a GPU's kernels."""
    allow_training_on_cpu()
    replace_flash_attn()


def compiled_region(
    function: Any, backend: Callable[..., Any], *, allow_breaks: bool, dynamic: bool = False
) -> Any:
    """``function`` (or a module) compiled as one graph, or in pieces where breaks are allowed.

    With ``dynamic`` no size of its inputs is a constant.
    """
    teach_dynamo()
    compile_it: Any = torch.compile
    limit = {"recompile_limit": MOST_COMPILATIONS} if allow_breaks else {}
    return compile_it(
        function, backend=backend, fullgraph=not allow_breaks, dynamic=dynamic, **limit
    )
