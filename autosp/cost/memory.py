"""Live bytes of one rank through forward, backward and optimizer step.

Each thing that occupies memory becomes one or more spans: bytes, one category, first and
last moment. The curve is the sum of the spans alive at each moment, so the categories add
up to the live bytes exactly.

Assumptions, all of them those of a plain training loop::

    parameters, buffers, inputs   exist throughout
    optimizer state               exists throughout (every step after the first)
    user's outputs                held by the caller until the step ends
    gradients                     none before the backward; kept until the step ends
    accumulation                  a gradient whose strides are not its parameter's is copied
                                  (torch/csrc/autograd/functions/accumulate_grad.h)

ZeRO (Rajbhandari et al. 2020, section 5) divides over all ranks: stage 1 the optimizer
state, stage 2 also the gradients, once they are complete, stage 3 also the parameters,
which then exist in full (``gather_reduce_buckets``) only while an operator uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.fx

from autosp.cost.liveness import StepLiveness
from autosp.cost.optimizer import OptimizerModel
from autosp.cost.spans import KernelScratch, Moment, Span, outline_step, step_spans
from autosp.cost.step import CompiledStep
from autosp.cost.zero import ZeroModel
from autosp.events import MEMORY_CATEGORIES, LiveTensor, MemoryPoint
from autosp.graph import module_path, source_location


def no_scratch(node: torch.fx.Node) -> int:
    """Kernels that need no memory of their own."""
    del node
    return 0


@dataclass(frozen=True, slots=True)
class StepMemory:
    """The memory curve, its peak, and what is alive there (largest first)."""

    points: tuple[MemoryPoint, ...]
    peak: MemoryPoint
    peak_node: torch.fx.Node | None
    """None at a peak inside the optimizer."""
    live_at_peak: tuple[LiveTensor, ...]
    persistent_bytes: int
    """What exists before the forward starts: parameters, state, inputs, constants."""
    saved_bytes: dict[torch.fx.Node, int]
    """Node -> bytes it made that are kept for the backward."""


def step_memory(
    step: CompiledStep,
    *,
    optimizer: OptimizerModel,
    zero: ZeroModel,
    kernel_scratch: KernelScratch = no_scratch,
) -> StepMemory:
    """Estimate the live bytes of one rank at every moment of a training step.

    The step must run at least one node.
    """
    outline = outline_step(step, optimizer=optimizer, zero=zero)
    spans = step_spans(outline, kernel_scratch=kernel_scratch)
    points = _curve(spans, outline.moments)
    peak = max(points, key=lambda point: point.live_bytes)
    return StepMemory(
        points=points,
        peak=peak,
        peak_node=outline.moments[peak.index].node,
        live_at_peak=_live_tensors(spans, outline.moments, peak.index),
        persistent_bytes=sum(span.size_bytes for span in spans if span.persistent),
        saved_bytes=_saved_bytes(outline.liveness),
    )


def _curve(spans: Sequence[Span], moments: Sequence[Moment]) -> tuple[MemoryPoint, ...]:
    changes: list[dict[str, int]] = [{} for _ in range(len(moments) + 1)]
    for span in spans:
        begin, after = changes[span.start], changes[span.end + 1]
        begin[span.category] = begin.get(span.category, 0) + span.size_bytes
        after[span.category] = after.get(span.category, 0) - span.size_bytes
    current = dict.fromkeys(MEMORY_CATEGORIES, 0)
    points: list[MemoryPoint] = []
    for index, moment in enumerate(moments):
        for category, change in changes[index].items():
            current[category] += change
        points.append(
            MemoryPoint(
                index=index,
                phase=moment.phase,
                node=moment.name,
                module=moment.module,
                live_bytes=sum(current.values()),
                categories=dict(current),
            )
        )
    return tuple(points)


def _live_tensors(
    spans: Sequence[Span], moments: Sequence[Moment], index: int
) -> tuple[LiveTensor, ...]:
    alive = [span for span in spans if span.start <= index <= span.end and span.size_bytes]
    alive.sort(key=lambda span: -span.size_bytes)
    return tuple(_live_tensor(span, moments) for span in alive)


def _live_tensor(span: Span, moments: Sequence[Moment]) -> LiveTensor:
    made_by = span.creator
    return LiveTensor(
        node=span.name,
        phase=moments[span.start].phase,
        category=span.category,
        bytes=span.size_bytes,
        dtype=span.dtype,
        shape=span.shape,
        module=module_path(made_by) if made_by is not None else "",
        created_by=source_location(made_by) if made_by is not None else None,
        last_used_by=moments[span.last_use].name if span.last_use is not None else "",
    )


def _saved_bytes(liveness: StepLiveness) -> dict[torch.fx.Node, int]:
    saved: dict[torch.fx.Node, int] = {}
    for index in sorted(liveness.saved):
        storage = liveness.table.storages[index]
        if not storage.persistent:
            saved[storage.creator] = saved.get(storage.creator, 0) + storage.size_bytes
    return saved
