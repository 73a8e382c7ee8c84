"""What a training run tells an observer about its steps: plain frozen records.

The observer asks for them with an attribute ``measuring`` of its own, a
:class:`MeasureRequest`; without one nothing is measured. Times are nanoseconds; ``None`` is
"not known".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from autosp.hardware import Device

Detail = Literal["nodes", "collectives", "steps"]
"""What the times of the profiled step belong to: every node of the two graphs; collectives
alone, where an inner compiler fuses the rest; or nothing but the step."""
PeakSource = Literal["allocator", "profiler"]


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """What to measure in a training run, and what to estimate beside it."""

    steps: int = 3
    """Steps to time; one more runs under the profiler. 0: nothing is measured."""
    warmup: int = 2
    """Steps before them. A step in which something is compiled starts the count again."""
    device: Device | None = None
    """Device to estimate times for; None: the memory of a run on a CPU is all."""
    optimizer: str = "adamw"
    """``adamw``, ``sgd`` or ``none``: what the estimate assumes."""
    zero: int = 0
    """ZeRO stage that the estimate assumes."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """Wall time of one step, first forward to last backward or optimizer step.

    Forward and backward are those of the compiled graphs alone, of all micro-batches.
    """

    index: int
    """Number of the step in the run, from 0."""
    step_ns: int
    forward_ns: int
    backward_ns: int
    optimizer_ns: int | None
    """None: no optimizer of torch was seen."""


class MeasuredNode(NamedTuple):
    """A node in the profiled step."""

    compilation: int
    graph: Literal["forward", "backward"]
    node: str
    runs: int
    start_ns: int
    """Of its first run, from the begin of the step."""
    duration_ns: int
    """Of all its runs: on a CPU its own wall time, on an accelerator that of its kernels."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The figures of a run's measured steps: medians of the steps without a profiler."""

    device_type: str
    """``cpu``, ``cuda``, ..."""
    device: str
    """The device's own name."""
    compilation: int
    """The compilation whose step was profiled."""
    num_steps: int
    step_ns: int
    forward_ns: int
    backward_ns: int
    optimizer_ns: int | None
    detail: Detail
    peak_bytes: int | None
    """Most bytes alive on this rank in the profiled step, what was alive before it included."""
    base_bytes: int | None
    """Of them, alive when the step began."""
    peak_source: PeakSource | None
    notes: tuple[str, ...] = ()
    """What was not measured, and why."""
