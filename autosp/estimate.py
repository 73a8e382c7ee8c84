"""Memory and time of one rank's training step, from its compiled graphs alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast, get_args

import torch
import torch.fx

from autosp.cost.blockwise_scratch import blockwise_scratch
from autosp.cost.collectives import Group, LinkRates, collective_ns, link_rates
from autosp.cost.compute import compute_cost
from autosp.cost.kernel_scratch import cpu_kernel_scratch
from autosp.cost.memory import StepMemory, step_memory
from autosp.cost.optimizer import OptimizerModel, OptimizerName, step_bytes
from autosp.cost.step import CompiledStep
from autosp.cost.timeline import Timeline, Work, simulate
from autosp.cost.zero import ZeroModel
from autosp.errors import AutoSPError
from autosp.events import (
    CollectiveKind,
    EstimateSummary,
    Event,
    GraphName,
    NodeCost,
    Phase,
)
from autosp.graph import (
    collective_kind,
    is_unclassified_collective,
    is_wait,
    module_path,
    source_location,
)
from autosp.hardware import Device
from autosp.mesh import Mesh

ZERO_STAGES = (0, 1, 2, 3)
SAFE_PART_OF_CAPACITY = 0.8
"""Live bytes below this part of a GPU's memory never ran out of it in 454 measured runs
(Fujii et al. 2024, arXiv 2411.06465). Above it what is not modelled decides."""

NOT_MODELLED: tuple[str, ...] = (
    "allocator rounding and fragmentation (allocated and reserved bytes)",
    "CUDA or HIP context, NCCL or RCCL buffers",
    "kernel workspaces on GPUs (cuBLAS, attention)",
    "averaging of gradients over the ranks: its time and its buckets",
    "ZeRO's communication time, prefetch and bucket buffers",
    "fusion of operators: every ATen node is a kernel of its own",
    "code outside the compiled step: data loading, gradient clipping, logging",
)

ShardedPredicate = Callable[[torch.fx.Node], bool]


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """What :func:`estimate_step` found. ``events`` are in the order a trace expects."""

    events: tuple[Event, ...]
    summary: EstimateSummary
    memory: StepMemory
    timeline: Timeline | None
    """None without a device."""


@dataclass(frozen=True, slots=True)
class _Graph:
    name: GraphName
    phase: Phase
    nodes: tuple[torch.fx.Node, ...]


def estimate_step(
    step: CompiledStep,
    *,
    device: Device | None,
    mesh: Mesh,
    zero: int = 0,
    optimizer: str | OptimizerModel = "adamw",
    axis_of_group: Callable[[str], str] | None = None,
    is_sharded: ShardedPredicate | None = None,
) -> StepEstimate:
    """Estimate one training step of one rank: forward, backward, optimizer.

    Without a device the memory is that of a CPU run (kernel scratch included) and there
    are no times. ``axis_of_group`` maps a process group's name to its mesh axis; every
    group counts as ``sp`` without it. ``is_sharded`` tells which nodes of the two graphs
    work on a part of the sequence; without it the sharded fractions stay unknown.

    Raises:
        HardwareError: the device lacks a constant that the times need.
        AutoSPError: unknown optimizer or ZeRO stage.
    """
    if zero not in ZERO_STAGES:
        raise AutoSPError(f"--zero is {zero}; stages are 0, 1, 2 and 3")
    model = optimizer_model(optimizer, on_gpu=device is not None)
    zero_model = ZeroModel(stage=zero, world_size=mesh.world_size)
    scratch = (
        blockwise_scratch if device else cpu_kernel_scratch(num_threads=torch.get_num_threads())
    )
    memory = step_memory(step, optimizer=model, zero=zero_model, kernel_scratch=scratch)
    graphs = _graphs(step)
    pricing = _Pricing(device=device, mesh=mesh, axis_of_group=axis_of_group or _sequence_axis)
    costs = {node: pricing.cost(node, graph.name) for graph in graphs for node in graph.nodes}
    timeline: Timeline | None = None
    if device is not None:
        program = [
            *_program(graphs, costs, pricing),
            *_update(step, model, zero_model, device),
        ]
        timeline = simulate(program)
    summary = _summary(memory, timeline, device, costs, is_sharded)
    events: tuple[Event, ...] = (
        *memory.points,
        *memory.live_at_peak,
        *(timeline.events if timeline else ()),
        *costs.values(),
        summary,
    )
    return StepEstimate(events, summary, memory, timeline)


def optimizer_model(optimizer: str | OptimizerModel, *, on_gpu: bool) -> OptimizerModel:
    """The optimizer of that name, run the way torch runs it by default there.

    Raises:
        AutoSPError: unknown name.
    """
    if isinstance(optimizer, OptimizerModel):
        return optimizer
    known = get_args(OptimizerName)
    if optimizer not in known:
        raise AutoSPError(f"unknown optimizer {optimizer!r}; known: {', '.join(known)}")
    return OptimizerModel(
        name=cast(OptimizerName, optimizer),
        implementation="foreach" if on_gpu else "single_tensor",
        weight_decay=optimizer == "adamw",
    )


def _sequence_axis(group_name: str) -> str:
    """The compiler's own collectives all run over the sequence-parallel group."""
    del group_name
    return "sp"


def _graphs(step: CompiledStep) -> tuple[_Graph, ...]:
    skipped = ("placeholder", "get_attr", "output")

    def calls(module: torch.fx.GraphModule) -> tuple[torch.fx.Node, ...]:
        return tuple(node for node in module.graph.nodes if node.op not in skipped)

    forward = _Graph("forward", "forward", calls(step.forward))
    if step.backward is None:
        return (forward,)
    return (forward, _Graph("backward", "backward", calls(step.backward)))


# --- price of a node ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pricing:
    device: Device | None
    mesh: Mesh
    axis_of_group: Callable[[str], str]

    def cost(self, node: torch.fx.Node, graph: GraphName) -> NodeCost:
        kind = collective_kind(node)
        if kind is None:
            return compute_cost(node, graph=graph, device=self.device)
        payload = payload_bytes(node, kind)
        if self.device is None:
            return NodeCost(graph, node.name, None, payload, None, "no device chosen")
        group = self.group(node)
        rates = link_rates(self.device, group)
        duration_ns = collective_ns(kind, payload, group=group, rates=rates)
        return NodeCost(
            graph, node.name, None, payload, duration_ns, _source(group, rates, self.device)
        )

    def axis(self, node: torch.fx.Node) -> str:
        name = node.args[-1] if node.args else node.kwargs.get("group_name")
        return self.axis_of_group(str(name))

    def _members(self, node: torch.fx.Node) -> int | None:
        """Ranks that exchange equal parts with this one, where they are not all of the group."""
        if collective_kind(node) != "all_to_all" or len(node.args) < 3:
            return None
        splits = node.args[2]
        assert isinstance(splits, (list, tuple))
        own = splits[self.mesh.sp_rank] if len(splits) == self.mesh.sp else 0
        is_subset = bool(own) and 0 in splits and {*splits} == {0, own}
        return sum(1 for size in splits if size) if is_subset else None

    def group(self, node: torch.fx.Node) -> Group:
        """The collective's ranks. ``sp`` is innermost, so its ranks are neighbours."""
        assert self.device is not None
        axis = self.axis(node)
        size = self._members(node) or self.mesh.axes.get(axis, self.mesh.world_size)
        stride = self.mesh.sp if axis == "dp" else 1
        per_node = int(self.device.require("gpus_per_node")) // stride
        return Group(size=size, ranks_per_node=min(size, max(1, per_node)))


def payload_bytes(node: torch.fx.Node, kind: CollectiveKind) -> int:
    """Input bytes of a collective; of an all-gather, the larger output's."""
    source = node if kind == "all_gather" else node.all_input_nodes[0]
    value = source.meta["val"]
    assert isinstance(value, torch.Tensor), f"{node} communicates one tensor"
    return int(value.numel()) * value.element_size()


def _source(group: Group, rates: LinkRates, device: Device) -> str:
    where = "over nodes" if group.spans_nodes else "in one node"
    return (
        f"alpha-beta: {group.size} ranks {where}, {rates.all_to_all:.3g} B/s all-to-all, "
        f"{rates.ring:.3g} B/s ring, {rates.latency_ns / 1e3:.1f} us, {device.name}"
    )


# --- the program on its streams -----------------------------------------------------


def _program(
    graphs: Sequence[_Graph], costs: dict[torch.fx.Node, NodeCost], pricing: _Pricing
) -> Iterator[Work]:
    for graph in graphs:
        for node in graph.nodes:
            module, kind = module_path(node), collective_kind(node)
            if is_wait(node):
                source = node.all_input_nodes[0].name
                yield Work("wait", node.name, "wait", graph.phase, waits_for=source)
                continue
            yield Work(
                kind="start" if kind else "compute",
                node=node.name,
                label=kind or _label(node),
                phase=graph.phase,
                module=module,
                stream=f"comm:{pricing.axis(node)}" if kind else "compute",
                duration_ns=costs[node].duration_ns or 0,
            )


def _label(node: torch.fx.Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target.overloadpacket.__name__)
    return str(getattr(target, "__name__", target))


def _update(
    step: CompiledStep, optimizer: OptimizerModel, zero: ZeroModel, device: Device
) -> Iterator[Work]:
    """The optimizer as one bar: bound by memory, each tensor moved once."""
    if step.backward is None or optimizer.name == "none":
        return
    total = 0
    for position, node in enumerate(step.forward.graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        trained = step.input_kinds[position] == "parameter" and step.trainable[position]
        if trained and isinstance(value, torch.Tensor):
            total += step_bytes(
                optimizer, num_elements=value.numel(), element_bytes=value.element_size()
            )
    if zero.shards_optimizer:
        total = zero.share(total)
    rate = device.require("memory_bytes_per_s") * device.require("memory_fraction")
    duration_ns = round(device.require("launch_ns") + total / rate * 1e9)
    yield Work("compute", "optimizer_step", optimizer.name, "optimizer", duration_ns=duration_ns)


# --- summary ------------------------------------------------------------------------


def _summary(
    memory: StepMemory,
    timeline: Timeline | None,
    device: Device | None,
    costs: dict[torch.fx.Node, NodeCost],
    is_sharded: ShardedPredicate | None,
) -> EstimateSummary:
    peak = memory.peak
    capacity = int(device.require("capacity_bytes")) if device else None
    flops = {node: cost.flops or 0 for node, cost in costs.items()}
    return EstimateSummary(
        peak_live_bytes=peak.live_bytes,
        peak_phase=peak.phase,
        peak_node=peak.node,
        peak_module=peak.module,
        peak_source=source_location(memory.peak_node) if memory.peak_node else None,
        peak_categories=dict(peak.categories),
        peak_index=peak.index,
        allocated_bytes=None,
        reserved_bytes=None,
        device_bytes=None,
        capacity_bytes=capacity,
        fits=fits(peak.live_bytes, capacity),
        step_ns=timeline.step_ns if timeline else None,
        compute_ns=timeline.compute_ns if timeline else None,
        communication_ns=timeline.communication_ns if timeline else None,
        exposed_ns=timeline.exposed_ns if timeline else None,
        hidden_ns=timeline.hidden_ns if timeline else None,
        sharded_flops_fraction=_fraction(flops, is_sharded),
        sharded_saved_bytes_fraction=_fraction(memory.saved_bytes, is_sharded),
        not_modelled=(*NOT_MODELLED, *_gaps(device, costs)),
    )


def fits(live_bytes: int, capacity_bytes: int | None) -> bool | None:
    """Whether a peak of live bytes fits a device; None where that cannot be told.

    More than the capacity cannot fit. Up to 80 % of it is known to. In between, what is
    not modelled decides.
    """
    if capacity_bytes is None:
        return None
    if live_bytes > capacity_bytes:
        return False
    return True if live_bytes <= SAFE_PART_OF_CAPACITY * capacity_bytes else None


def _fraction(
    amounts: dict[torch.fx.Node, int], is_sharded: ShardedPredicate | None
) -> float | None:
    total = sum(amounts.values())
    if is_sharded is None or total == 0:
        return None
    return sum(amount for node, amount in amounts.items() if is_sharded(node)) / total


def _gaps(device: Device | None, costs: dict[torch.fx.Node, NodeCost]) -> Iterator[str]:
    if device is not None and device.assumed():
        names = ", ".join(device.assumed())
        yield f"no measurement on {device.name} of {names}: taken from another device"
    unknown = {_label(node) for node in costs if is_unclassified_collective(node)}
    if unknown:
        yield f"communication of {', '.join(sorted(unknown))}"
