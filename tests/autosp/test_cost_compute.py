"""Operations, bytes and roofline times of single nodes, against the formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from autosp.cost.compute import compute_cost, is_free, node_bytes
from autosp.cost.flops import node_flops
from autosp.errors import HardwareError
from autosp.hardware import A100_80GB

aten = torch.ops.aten
BF16 = torch.bfloat16


def _node(
    function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = BF16
) -> torch.fx.Node:
    """The last operator that ``function`` calls."""
    with FakeTensorMode():
        graph = make_fx(function)(*(torch.empty(shape, dtype=dtype) for shape in shapes)).graph
    operators: list[torch.fx.Node] = [node for node in graph.nodes if _is_operator(node)]
    return operators[-1]


def _is_operator(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload)


def test_a_matrix_product_takes_two_operations_per_multiply_add() -> None:
    assert node_flops(_node(aten.mm, (128, 256), (256, 64))) == 2 * 128 * 256 * 64


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_forward_and_backward(is_causal: bool) -> None:
    shape = (2, 8, 1024, 64)
    full = 4 * 2 * 8 * 1024 * 1024 * 64
    expected = full // 2 if is_causal else full

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal)[0]

    def backward(g: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        sums = torch.empty(2, 8, 1024)
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            g, q, k, v, q, sums, 0.0, is_causal
        )[0]

    assert node_flops(_node(forward, shape, shape, shape)) == expected
    assert node_flops(_node(backward, shape, shape, shape, shape)) == 2.5 * expected


def test_element_wise_operators_have_no_matrix_operations() -> None:
    assert node_flops(_node(aten.gelu, (128, 256))) is None


def test_bytes_are_inputs_read_and_outputs_written() -> None:
    assert node_bytes(_node(aten.mm, (128, 256), (256, 64))) == 2 * (
        128 * 256 + 256 * 64 + 128 * 64
    )
    assert node_bytes(_node(lambda x: x + x, (1000,))) == 2 * 2 * 1000


def test_an_expanded_input_is_read_from_what_is_behind_it() -> None:
    node = _node(lambda x, y: x.expand(1000, 8) + y, (1, 8), (1000, 8))
    assert node_bytes(node) == 2 * (8 + 8000 + 8000)


def test_a_lookup_reads_what_it_returns_and_not_the_table() -> None:
    def lookup(table: torch.Tensor) -> Any:
        return aten.embedding(table, torch.empty(16, dtype=torch.int64))

    assert node_bytes(_node(lookup, (50_000, 64))) == 2 * (2 * 16 * 64) + 8 * 16


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(-1),
        lambda x: x.t(),
        lambda x: x[:, 1:],
        lambda x: aten._unsafe_view(x, [64, 32]),
        lambda x: torch.ops._c10d_functional.wait_tensor(x),
    ],
)
def test_views_and_waits_are_free(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    node = _node(view, (32, 64))
    cost = compute_cost(node, graph="forward", device=A100_80GB)
    assert is_free(node)
    assert (cost.memory_bytes, cost.duration_ns) == (0, 0)


def test_a_large_product_is_compute_bound() -> None:
    cost = compute_cost(
        _node(aten.mm, (8192, 8192), (8192, 8192)), graph="forward", device=A100_80GB
    )
    seconds = 2 * 8192**3 / 271.2e12
    assert cost.duration_ns == round(3_000 + seconds * 1e9)
    assert cost.source == (
        "roofline: compute bound, bfloat16 2.71e+14 FLOP/s (87% of peak), a100-80gb"
    )


def test_an_element_wise_operator_is_memory_bound() -> None:
    cost = compute_cost(_node(aten.gelu, (8192, 8192)), graph="forward", device=A100_80GB)
    assert cost.duration_ns == round(3_000 + 2 * 2 * 8192**2 / 1.70e12 * 1e9)
    assert cost.source == "roofline: memory bound, 1.7e+12 B/s, a100-80gb"


def test_without_a_device_there_is_no_time() -> None:
    cost = compute_cost(_node(aten.mm, (2, 2), (2, 2)), graph="forward", device=None)
    assert (cost.flops, cost.memory_bytes, cost.duration_ns) == (16, 24, None)


def test_a_device_without_a_fraction_refuses() -> None:
    device = replace(A100_80GB, matmul_fraction=None)
    with pytest.raises(HardwareError, match="matmul_fraction"):
        compute_cost(_node(aten.mm, (2, 2), (2, 2)), graph="forward", device=device)
