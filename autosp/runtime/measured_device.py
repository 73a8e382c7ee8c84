"""The device that a training runs on, as far as measuring needs it: the one place that asks.

Everything goes through ``torch.accelerator``; without an accelerator the device is the CPU.
"""

from __future__ import annotations

import platform
from typing import Any

import torch
from torch.profiler import ProfilerActivity, supported_activities


class MeasuredDevice:
    """Clock and memory of the device of a training's inputs."""

    def __init__(self, device_type: str) -> None:
        accelerator = torch.accelerator.current_accelerator()
        self.type = device_type
        self.is_cpu = accelerator is None or accelerator.type != device_type

    @property
    def name(self) -> str:
        """``NVIDIA H100 80GB HBM3``; of a CPU its architecture."""
        if self.is_cpu:
            return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
        properties: Any = torch.get_device_module(self.type).get_device_properties()
        return str(getattr(properties, "name", self.type))

    @property
    def activities(self) -> list[ProfilerActivity]:
        """What the profiler has to watch: the CPU, and the accelerator where it can."""
        if self.is_cpu:
            return [ProfilerActivity.CPU]
        supported: set[ProfilerActivity] = supported_activities()  # type: ignore[no-untyped-call]
        return sorted(supported, key=lambda activity: activity.name)

    def finish_work(self) -> None:
        """Wait until the device has done what was asked of it."""
        if not self.is_cpu:
            torch.accelerator.synchronize()

    def start_peak(self) -> int | None:
        """Forget the peak so far; bytes alive now, None where no allocator counts them."""
        if self.is_cpu:
            return None
        torch.accelerator.reset_peak_memory_stats()
        return int(torch.accelerator.memory_allocated())

    def peak(self) -> int | None:
        """Most bytes alive since :meth:`start_peak`; None where no allocator counts them."""
        return None if self.is_cpu else int(torch.accelerator.max_memory_allocated())
