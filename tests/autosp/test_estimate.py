"""The whole estimate of a step: events, summary, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from autosp.cost.step import CompiledStep
from autosp.errors import AutoSPError, HardwareError
from autosp.estimate import estimate_step, fits, payload_bytes
from autosp.events import EstimateSummary, LiveTensor, MemoryPoint, NodeCost, TimelineEvent
from autosp.hardware import A100_80GB, H100, MI300X
from autosp.mesh import Mesh
from tests.support.traced_step import matmul_step, traced_step

collectives = torch.ops._c10d_functional
aten = torch.ops.aten
MIB = 2**20


def _all_to_all_step(*, elements: int) -> CompiledStep:
    def forward(x: torch.Tensor) -> Any:
        parts = [elements // 8] * 8
        started = collectives.all_to_all_single(aten.sin(x), parts, parts, "group")
        return aten.cos(collectives.wait_tensor(started))

    return traced_step(forward, inputs=[("input", (elements,))])


def _costs(events: tuple[Any, ...]) -> dict[str, NodeCost]:
    return {event.node: event for event in events if isinstance(event, NodeCost)}


def test_events_come_in_the_order_of_a_trace() -> None:
    events = estimate_step(matmul_step(), device=A100_80GB, mesh=Mesh(sp=1)).events
    kinds = list(dict.fromkeys(type(event) for event in events))
    assert kinds == [MemoryPoint, LiveTensor, TimelineEvent, NodeCost, EstimateSummary]


def test_the_summary_repeats_the_peak() -> None:
    estimate = estimate_step(matmul_step(), device=None, mesh=Mesh(sp=1), optimizer="none")
    summary = estimate.summary
    assert (summary.peak_phase, summary.peak_node) == ("backward", "mm")
    assert summary.peak_live_bytes == 128 + 32 + 4 + 64 + 128
    assert summary.peak_live_bytes == sum(summary.peak_categories.values())
    assert estimate.memory.points[summary.peak_index] == estimate.memory.peak


def test_without_a_device_there_is_memory_and_no_time() -> None:
    estimate = estimate_step(matmul_step(), device=None, mesh=Mesh(sp=1))
    summary = estimate.summary
    assert estimate.timeline is None
    assert (summary.step_ns, summary.capacity_bytes, summary.fits) == (None, None, None)
    assert all(cost.duration_ns in (None, 0) for cost in _costs(estimate.events).values())


def test_levels_above_live_bytes_are_unknown_and_said_to_be() -> None:
    summary = estimate_step(matmul_step(), device=A100_80GB, mesh=Mesh(sp=1)).summary
    assert summary.allocated_bytes is summary.reserved_bytes is summary.device_bytes is None
    assert any("fragmentation" in item for item in summary.not_modelled)


def test_figures_taken_from_another_device_are_named() -> None:
    summary = estimate_step(matmul_step(), device=MI300X, mesh=Mesh(sp=1)).summary
    assert any("no measurement on mi300x of network_fraction, launch_ns" in item
               for item in summary.not_modelled)  # fmt: skip


def test_an_all_to_all_is_priced_and_exposed() -> None:
    elements = 512 * MIB // 4
    estimate = estimate_step(_all_to_all_step(elements=elements), device=H100, mesh=Mesh(sp=8))
    expected_ns = round(33_500 + 512 * MIB * 7 / 8 / 370e9 * 1e9)
    cost = _costs(estimate.events)["all_to_all_single"]
    assert (cost.duration_ns, cost.memory_bytes) == (expected_ns, 512 * MIB)
    assert "8 ranks in one node" in cost.source
    assert estimate.summary.communication_ns == estimate.summary.exposed_ns == expected_ns
    bar = next(e for e in estimate.events if isinstance(e, TimelineEvent) and e.exposed_ns)
    assert (bar.stream, bar.label) == ("comm:sp", "all_to_all")


def test_a_group_over_two_nodes_pays_the_network() -> None:
    step = _all_to_all_step(elements=512 * MIB // 4)
    inside = estimate_step(step, device=H100, mesh=Mesh(sp=8)).summary.communication_ns
    outside = estimate_step(
        step, device=H100.with_gpus_per_node(4), mesh=Mesh(sp=8)
    ).summary.communication_ns
    assert outside == round(33_500 + 256 * MIB / 48.5e9 * 1e9)
    assert inside is not None and outside > 4 * inside


def test_the_axis_of_a_group_can_be_given() -> None:
    estimate = estimate_step(
        _all_to_all_step(elements=1024),
        device=H100,
        mesh=Mesh(sp=2, dp=4),
        axis_of_group=lambda name: "dp" if name == "group" else "sp",
    )
    cost = _costs(estimate.events)["all_to_all_single"]
    assert cost.source.startswith("alpha-beta: 4 ranks in one node")
    assert {e.stream for e in estimate.events if isinstance(e, TimelineEvent)} == {
        "compute", "comm:dp",
    }  # fmt: skip


def test_payload_is_the_output_of_an_all_gather_and_else_the_input() -> None:
    def forward(x: torch.Tensor) -> Any:
        return collectives.all_gather_into_tensor(x, 4, "group")

    graph = traced_step(forward, inputs=[("input", (8, 2))]).forward.graph
    node = next(n for n in graph.nodes if n.op == "call_function")
    assert payload_bytes(node, "all_gather") == 4 * 8 * 2 * 4


def test_the_optimizer_is_one_bar_bound_by_memory() -> None:
    step = matmul_step(rows=64, width=1024, columns=1024)
    estimate = estimate_step(step, device=A100_80GB, mesh=Mesh(sp=1), optimizer="adamw")
    bar = [e for e in estimate.events if isinstance(e, TimelineEvent) and e.phase == "optimizer"]
    size = 1024 * 1024 * 4
    assert len(bar) == 1
    assert bar[0].duration_ns == round(3_000 + (2 * (3 * size + 4) + size) / 1.70e12 * 1e9)


def test_sharded_fractions_follow_the_predicate() -> None:
    step = matmul_step()
    unknown = estimate_step(step, device=None, mesh=Mesh(sp=1)).summary
    assert unknown.sharded_flops_fraction is None
    summary = estimate_step(
        step, device=None, mesh=Mesh(sp=1), is_sharded=lambda node: node.graph is step.forward.graph
    ).summary
    assert summary.sharded_flops_fraction == 0.5
    assert summary.sharded_saved_bytes_fraction == 1.0


def test_a_device_without_a_needed_constant_refuses() -> None:
    device = replace(A100_80GB, collective_latency_ns=None)
    estimate_step(matmul_step(), device=device, mesh=Mesh(sp=1))
    with pytest.raises(HardwareError, match="collective_latency_ns"):
        estimate_step(_all_to_all_step(elements=64), device=device, mesh=Mesh(sp=8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"zero": 4}, "--zero is 4"),
        ({"optimizer": "lion"}, "unknown optimizer 'lion'; known: adamw, sgd, none"),
    ],
)
def test_unknown_options_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(AutoSPError, match=message):
        estimate_step(matmul_step(), device=None, mesh=Mesh(sp=1), **arguments)


@pytest.mark.parametrize(
    ("live_bytes", "expected"), [(800, True), (801, None), (1000, None), (1001, False)]
)
def test_fits_only_claims_what_is_known(live_bytes: int, expected: bool | None) -> None:
    assert fits(live_bytes, 1000) is expected
    assert fits(live_bytes, None) is None
