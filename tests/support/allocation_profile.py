"""Ground truth for memory: what the torch profiler saw a step allocate and free.

Works in any process, a gloo worker included: nothing here knows about models or ranks.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True)
class AllocationPeak:
    """The most bytes alive above what existed when measuring began, and where."""

    peak_bytes: int
    operators: tuple[str, ...]
    """Names of the nested profiler events around the allocation that made the peak."""
    left_bytes: int
    """Bytes that the step allocated and did not free."""


def measure_peak(step: Callable[[], object]) -> AllocationPeak:
    """Run ``step`` once under the profiler and follow its CPU allocations.

    The step's return value is kept until measuring ends. Run the step once before, so
    that compilation and lazily made state are not part of it.
    """
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = step()
    allocations: list[tuple[int, int, tuple[str, ...]]] = []
    _collect(profiler.profiler.kineto_results.experimental_event_tree(), (), allocations)
    del result
    allocations.sort(key=lambda item: item[0])
    current = peak = 0
    operators: tuple[str, ...] = ()
    for _, size, parents in allocations:
        current += size
        if current > peak:
            peak, operators = current, parents
    return AllocationPeak(peak_bytes=peak, operators=operators, left_bytes=current)


def _collect(
    events: Iterable[Any],
    parents: tuple[str, ...],
    found: list[tuple[int, int, tuple[str, ...]]],
) -> None:
    for event in events:
        if event.tag == _EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.alloc_size, parents))
        _collect(event.children, (*parents, event.name), found)


def unique_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the distinct memory blocks behind the tensors."""
    blocks = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors
    }
    return sum(blocks.values())
