"""The estimates of the synthetic run: costs, timeline, memory. Plausible, not computed."""

from __future__ import annotations

from autosp.events import (
    MEMORY_CATEGORIES,
    EstimateSummary,
    GraphName,
    LiveTensor,
    MemoryPoint,
    NodeCost,
    NodeRecord,
    Recorder,
    TimelineEvent,
)
from tests.support.synthetic_program import BATCH, SEQ, WIDTH, Program, source_of


def record_estimates(recorder: Recorder, forward: Program, backward: Program, sp: int) -> None:
    events, times = _timeline(forward, backward)
    graphs: tuple[tuple[GraphName, Program], ...] = (("forward", forward), ("backward", backward))
    for graph, program in graphs:
        for node in program.nodes:
            if node.role == "compute":
                size = node.local_bytes or 0
                recorder.record(
                    NodeCost(
                        graph,
                        node.name,
                        size * WIDTH,
                        3 * size,
                        _duration(node),
                        "roofline: memory bound, 2.0e12 B/s (A100 data sheet)",
                    )
                )
    for event in events:
        recorder.record(event)
    points = _memory_curve(forward, backward)
    for point in points:
        recorder.record(point)
    peak = max(points, key=lambda point: point.live_bytes)
    for tensor in _live_tensors(forward, peak):
        recorder.record(tensor)
    recorder.record(_estimate(peak, times, sp))


def _duration(node: NodeRecord) -> int:
    return 2_000 + (node.local_bytes or 0) // 500


def _timeline(forward: Program, backward: Program) -> tuple[list[TimelineEvent], dict[str, int]]:
    """Two lanes in program order: compute idles for the first half of each collective."""
    events: list[TimelineEvent] = []
    busy_ns = {"compute": 0, "comm:sp": 0}
    now = communication_end = exposed_total = 0
    for node in [*forward.nodes, *backward.nodes]:
        if node.role in ("input", "output", "slice", "wait"):
            continue
        duration = _duration(node)
        is_collective = node.role == "collective"
        stream = "comm:sp" if is_collective else "compute"
        start = max(now, communication_end) if is_collective else now
        exposed = duration - duration // 2 if is_collective else None
        events.append(
            TimelineEvent(
                index=len(events),
                stream=stream,
                phase=node.phase,
                node=node.name,
                label=node.target,
                start_ns=start,
                duration_ns=duration,
                exposed_ns=exposed,
                module=node.module,
            )
        )
        busy_ns[stream] += duration
        if exposed is None:
            now = start + duration
        else:
            now = start + exposed
            communication_end = start + duration
            exposed_total += exposed
    times = {
        "compute": busy_ns["compute"],
        "communication": busy_ns["comm:sp"],
        "exposed": exposed_total,
        "step": max(now, communication_end),
    }
    return events, times


def _memory_curve(forward: Program, backward: Program) -> list[MemoryPoint]:
    """Saved tensors pile up, peak at the loss, and go in the backward."""
    parameters = sum(n.local_bytes or 0 for n in forward.nodes if n.target.endswith(".weight"))
    saved = 0
    gradients = 0
    points: list[MemoryPoint] = []
    total_saved = sum(n.local_bytes or 0 for n in forward.nodes if n.saved)
    num_backward = sum(1 for n in backward.nodes if n.op != "placeholder")
    for node in [*forward.nodes, *backward.nodes]:
        if node.op in ("placeholder", "output"):
            continue
        size = node.local_bytes or 0
        live = dict.fromkeys(MEMORY_CATEGORIES, 0)
        if node.phase == "forward":
            saved += size if node.saved else 0
        else:
            saved = max(saved - total_saved // num_backward, 0)
            gradients += parameters // num_backward
        live |= {
            "parameters": parameters,
            "optimizer": 4 * parameters,
            "inputs": 2 * BATCH * SEQ * 8,
            "saved": saved,
            "gradients": gradients,
        }
        kind = _memory_kind(node)
        live[kind] += 0 if node.saved else size
        points.append(
            MemoryPoint(len(points), node.phase, node.name, node.module, sum(live.values()), live)
        )
    return points


def _memory_kind(node: NodeRecord) -> str:
    if node.role in ("collective", "pack", "wait", "unpack"):
        return "all_to_all"
    if "linear_head" in node.name or "cross_entropy" in node.name or "flatten" in node.name:
        return "logits_loss"
    return "activations"


def _live_tensors(forward: Program, peak: MemoryPoint) -> list[LiveTensor]:
    tensors = []
    for node in forward.nodes:
        if not (node.saved or node.target.endswith(".weight") or node.name == peak.node):
            continue
        category = "parameters" if node.role == "input" else "saved"
        tensors.append(
            LiveTensor(
                node.name,
                node.phase,
                "logits_loss" if "head" in node.name and node.saved else category,
                node.local_bytes or 0,
                node.dtype or "",
                node.local_shape or (),
                node.module,
                node.source,
                f"grad_{node.name}",
            )
        )
    return tensors


def _estimate(peak: MemoryPoint, times: dict[str, int], sp: int) -> EstimateSummary:
    allocated = peak.live_bytes + peak.live_bytes // 50
    return EstimateSummary(
        peak_live_bytes=peak.live_bytes,
        peak_phase=peak.phase,
        peak_node=peak.node,
        peak_module=peak.module,
        peak_source=source_of("loss"),
        peak_categories=peak.categories,
        peak_index=peak.index,
        allocated_bytes=allocated,
        reserved_bytes=None,
        device_bytes=None,
        capacity_bytes=80 * 1024**3,
        fits=True,
        step_ns=times["step"],
        compute_ns=times["compute"],
        communication_ns=times["communication"],
        exposed_ns=times["exposed"],
        hidden_ns=times["communication"] - times["exposed"],
        sharded_flops_fraction=0.998 if sp > 1 else 0.0,
        sharded_saved_bytes_fraction=0.97 if sp > 1 else 0.0,
        not_modelled=("reserved", "device"),
    )
