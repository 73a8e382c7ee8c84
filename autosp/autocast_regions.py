"""Runs a program that is traced before dispatch with its autocast regions in effect."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Interpreter

from autosp.modes import restored_modes


class AutocastInterpreter(Interpreter):
    """Executes switches of autocast that the tracer only records.

    Dynamo has folded the dtypes of the user's regions into the program (``mask.to(q.dtype)``):
    traced without autocast, operators would meet dtypes that do not go together.
    """

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self._autocasts: list[Any] = []

    def run(self, *args: Any, **kwargs: Any) -> Any:
        with restored_modes():
            return super().run(*args, **kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        result = super().call_function(target, args, kwargs)
        with torch._C.DisableTorchFunction():
            if target is torch.amp.autocast_mode._enter_autocast:
                self._autocasts.append(super().call_function(target, args, kwargs))
            elif target is torch.amp.autocast_mode._exit_autocast:
                super().call_function(target, (self._autocasts.pop(),), {})
        return result
