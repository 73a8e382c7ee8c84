"""Small compiled steps written by hand: a forward and a backward function, traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from autosp.cost.step import CompiledStep, InputKind

Shape = tuple[int, ...]


def traced_step(
    forward: Callable[..., Any],
    *,
    inputs: Sequence[tuple[InputKind, Shape]],
    num_outputs: int = 1,
    backward: Callable[..., Any] | None = None,
    backward_inputs: Sequence[Shape] = (),
    dtype: torch.dtype = torch.float32,
) -> CompiledStep:
    """A step whose parameters are named ``p0``, ``p1`` and whose inputs ``i0`` ..."""
    mode = FakeTensorMode()
    kinds = tuple(kind for kind, _ in inputs)
    return CompiledStep(
        forward=_trace(forward, [shape for _, shape in inputs], mode, dtype),
        backward=_trace(backward, backward_inputs, mode, dtype) if backward else None,
        input_kinds=kinds,
        input_names=tuple(f"{kind[0]}{position}" for position, kind in enumerate(kinds)),
        trainable=tuple(kind == "parameter" for kind in kinds),
        num_forward_outputs=num_outputs,
    )


def _trace(
    function: Callable[..., Any], shapes: Sequence[Shape], mode: FakeTensorMode, dtype: torch.dtype
) -> torch.fx.GraphModule:
    with mode:
        values = [torch.empty(shape, dtype=dtype) for shape in shapes]
        traced: torch.fx.GraphModule = make_fx(function)(*values)
    for node in traced.graph.find_nodes(op="placeholder"):
        assert "val" in node.meta
    return traced


def matmul_step(*, rows: int = 2, width: int = 4, columns: int = 8) -> CompiledStep:
    """``loss = sum(sin(x @ w))``; the forward keeps ``x`` and ``x @ w``."""

    def forward(w: torch.Tensor, x: torch.Tensor) -> Any:
        y = torch.ops.aten.mm(x, w)
        return torch.ops.aten.sum(torch.ops.aten.sin(y)), x, y

    def backward(x: torch.Tensor, y: torch.Tensor, cotangent: torch.Tensor) -> Any:
        grad_y = torch.ops.aten.mul(cotangent.expand(rows, columns), torch.ops.aten.cos(y))
        return torch.ops.aten.mm(x.t(), grad_y), None

    return traced_step(
        forward,
        inputs=[("parameter", (width, columns)), ("input", (rows, width))],
        backward=backward,
        backward_inputs=[(rows, width), (rows, columns), ()],
    )
