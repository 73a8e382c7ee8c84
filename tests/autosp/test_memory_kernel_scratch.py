"""Scratch memory of CPU kernels: the rules against what the profiler sees one kernel take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from autosp.cost.kernel_scratch import cpu_kernel_scratch
from tests.support.allocation_profile import measure_peak, unique_bytes

aten = torch.ops.aten
SMALL_BYTES = 128
"""Python numbers and scalars that kernels wrap in tensors of their own."""


def _float(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def _bf16(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).bfloat16()


def _attention(length: int, make: Callable[..., torch.Tensor], *, layout: str) -> list[Any]:
    """Queries, keys and values [2, 4, length, 16], in memory ordered as ``layout``."""
    if layout == "bshd":
        return [make(2, length, 4, 16).transpose(1, 2) for _ in range(3)]
    return [make(2, 4, length, 16) for _ in range(3)]


def _forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)


def _backward(
    gradient: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    output: torch.Tensor,
    sums: torch.Tensor,
) -> Any:
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, q, k, v, output, sums, 0.0, True
    )


def _backward_arguments(
    length: int, make: Callable[..., torch.Tensor], *, gradient_layout: str
) -> list[Any]:
    q, k, v = _attention(length, make, layout="bshd")
    output, sums = _forward(q, k, v)
    gradient = _attention(length, make, layout=gradient_layout)[0]
    return [gradient, q, k, v, output, sums]


def _layer_norm_backward(
    gradient: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> Any:
    return aten.native_layer_norm_backward(
        gradient, x, [64], mean, rstd, WEIGHT, WEIGHT, [True, True, True]
    )


WEIGHT = torch.ones(64)
INDICES = torch.randint(0, 64, (128,))
KERNELS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "attention, short": (_forward, _attention(100, _float, layout="bhsd")),
    "attention, middle": (_forward, _attention(300, _float, layout="bshd")),
    "attention, long, bf16": (_forward, _attention(1000, _bf16, layout="bshd")),
    "attention backward": (_backward, _backward_arguments(300, _float, gradient_layout="bshd")),
    "attention backward, bf16, gradient in another order": (
        _backward,
        _backward_arguments(800, _bf16, gradient_layout="bhsd"),
    ),
    "add of two types": (aten.add.Tensor, [_bf16(128, 64), _float(128, 64)]),
    "add of one type": (aten.add.Tensor, [_float(128, 64), _float(128, 64)]),
    "mul with a row of another type": (aten.mul.Tensor, [_bf16(128, 64), _float(64)]),
    "mul with a scalar tensor": (aten.mul.Tensor, [_bf16(128, 64), torch.tensor(2.0)]),
    "comparison of two types": (
        aten.eq.Tensor,
        [torch.ones(128, 64, dtype=torch.int64), torch.ones(128, 64, dtype=torch.int32)],
    ),
    "where": (
        aten.where.self,
        [torch.ones(128, 64, dtype=torch.bool), _bf16(128, 64), _float(128, 64)],
    ),
    "root of integers": (aten.rsqrt.default, [torch.ones(128, 64, dtype=torch.int64)]),
    "conversion": (lambda x: aten._to_copy(x, dtype=torch.float32), [_bf16(128, 64)]),
    "sum of flags": (aten.sum.default, [torch.ones(128, 64, dtype=torch.bool)]),
    "sum in another type": (
        lambda x: aten.sum.dim_IntList(x, [1], dtype=torch.float32),
        [_bf16(128, 64)],
    ),
    "sum in bf16": (lambda x: aten.sum.dim_IntList(x, [0]), [_bf16(128, 64)]),
    "mean in bf16": (lambda x: aten.mean.dim(x, [-1]), [_bf16(128, 64)]),
    "mean": (lambda x: aten.mean.dim(x, [-1]), [_float(128, 64)]),
    "cumulated flags": (lambda x: aten.cumsum(x, -1), [torch.ones(128, 64, dtype=torch.bool)]),
    "log softmax": (lambda x: aten._log_softmax(x, -1, False), [_float(128, 64)]),
    "log softmax of a slice": (
        lambda x: aten._log_softmax(x, -1, False),
        [_float(128, 128)[:, ::2]],
    ),
    "product": (aten.mm.default, [_float(128, 64), _float(32, 64).t()]),
    "product with an expanded operand": (
        aten.mm.default,
        [_float(1, 64).expand(128, 64), _float(64, 32)],
    ),
    "product with every second column": (
        aten.mm.default,
        [_float(128, 128)[:, ::2], _float(64, 32)],
    ),
    "product in bf16": (aten.mm.default, [_bf16(128, 64), _bf16(32, 64).t()]),
    "product in bf16 with a bias": (aten.addmm.default, [_bf16(48), _bf16(96, 64), _bf16(64, 48)]),
    "small product in bf16": (aten.mm.default, [_bf16(16, 16), _bf16(16, 16)]),
    "batched product in bf16": (aten.bmm.default, [_bf16(4, 96, 64), _bf16(4, 64, 48)]),
    "layer norm backward": (
        _layer_norm_backward,
        [_float(128, 64), _float(128, 64), _float(128, 1), _float(128, 1)],
    ),
    "embedding backward": (
        lambda g: aten.embedding_dense_backward(g, INDICES, 300, -1, False),
        [_float(128, 64)],
    ),
    "gelu backward": (aten.gelu_backward.default, [_float(128, 64), _float(128, 64)]),
}


def _predicted_bytes(kernel: Callable[..., Any], arguments: list[Any]) -> int:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(argument) for argument in arguments]
        graph = make_fx(lambda *values: kernel(*values))(*fakes).graph
    scratch = cpu_kernel_scratch(num_threads=torch.get_num_threads())
    return max(scratch(node) for node in graph.nodes)


@pytest.mark.parametrize("name", KERNELS)
def test_scratch_is_what_the_profiler_sees(name: str) -> None:
    kernel, arguments = KERNELS[name]
    output_bytes = unique_bytes(
        item for item in tree_leaves(kernel(*arguments)) if isinstance(item, torch.Tensor)
    )
    measured = measure_peak(lambda: kernel(*arguments)).peak_bytes - output_bytes
    assert abs(_predicted_bytes(kernel, arguments) - measured) <= SMALL_BYTES
