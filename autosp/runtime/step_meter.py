"""Measures some steps of a real training: their wall time, then one under the profiler.

A step begins with the first forward with gradients after an optimizer step, or after a backward
where no optimizer of torch steps; it ends with its last optimizer step or backward. Micro-batches
of an accumulated gradient are one step so. Steps in which something is compiled do not count.
When all is measured, the compiled graphs run as if nothing had been.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, Protocol, cast

import torch
from torch.fx import GraphModule
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_leaves

from autosp.events import Recorder
from autosp.inner import Compiled, Eager, InnerCompiler
from autosp.measurements import MeasuredStep, Measurement, MeasureRequest
from autosp.runtime.measured_device import MeasuredDevice
from autosp.runtime.step_profile import Half, MeasuredGraph, StepProfile

_Part = Literal["forward", "backward", "optimizer"]


@dataclass(slots=True)
class _Step:
    """The step that runs."""

    began_ns: int
    ended_ns: int = 0
    part_ns: dict[_Part, int] = field(default_factory=dict)
    last: _Part | None = None
    compiled: bool = False
    compilations: set[int] = field(default_factory=set)


class MeasuringRecorder(Recorder, Protocol):
    """A recorder that also wants measurements."""

    @property
    def measuring(self) -> MeasureRequest: ...

    def before_end(self, action: Callable[[], None], /) -> None:
        """Call ``action`` when the training has ended; it may record more."""


def measuring(recorder: Recorder) -> MeasureRequest | None:
    """What ``recorder`` wants to be measured; None: nothing."""
    request = getattr(recorder, "measuring", None)
    return request if isinstance(request, MeasureRequest) else None


def meter_for(recorder: Recorder) -> StepMeter | None:
    """A meter, if ``recorder`` wants steps to be measured."""
    request = measuring(recorder)
    if request is None or request.steps == 0:
        return None
    meter = StepMeter(recorder, request)
    cast(MeasuringRecorder, recorder).before_end(meter.finish)
    return meter


class StepMeter:
    """Follows the steps of one training until it has measured as many as asked for."""

    def __init__(self, recorder: Recorder, request: MeasureRequest) -> None:
        self._recorder = recorder
        self._request = request
        self._steps: list[MeasuredStep] = []
        self._num_steps = 0
        self._num_warm = 0
        self._step: _Step | None = None
        self._profile: StepProfile | None = None
        self._device: MeasuredDevice | None = None
        self._compilations: set[int] = set()
        self._is_ignored = False
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._hooks: list[Any] = [
            register_optimizer_step_pre_hook(self._optimizer_begins),
            register_optimizer_step_post_hook(self._optimizer_ends),
        ]
        self._notes: list[str] = []
        self._optimizer_began_ns = 0
        self.is_done = False

    def around(self, inner: InnerCompiler, compilation: int) -> InnerCompiler:
        """``inner``, so that what it compiles can be measured."""
        return inner if self.is_done else _MeasuredInner(inner, self, compilation)

    def compiles(self) -> None:
        """Something is compiled in this step: it is none to measure."""
        if self._step is not None:
            self._step.compiled = True

    def begin_forward(self, arguments: Sequence[Any]) -> None:
        """The compiled region is called; ``arguments`` are what it reads."""
        self._is_ignored = not torch.is_grad_enabled()
        if self.is_done or self._is_ignored or (self._step and not self._is_over(self._step)):
            return
        self._end_step()
        if not self.is_done:
            self._begin_step(arguments)

    def finish(self) -> None:
        """The training ends: what was measured so far is recorded."""
        if not self.is_done:
            self._end_step()
        if not self.is_done:
            self._report(None)

    def run(self, graph: MeasuredGraph, compiled: Compiled, arguments: list[Any]) -> Any:
        """A compiled half of the step, timed if this step is measured."""
        step, profile = self._step, self._profile
        if step is None or (self._is_ignored and graph.half == "forward"):
            return compiled(arguments)
        step.compilations.add(graph.compilation)
        began = time.perf_counter_ns()
        if profile is None:
            results = compiled(arguments)
        else:
            results = profile.run(graph, compiled, arguments)
        self._part_ends(step, graph.half, began)
        return results

    def _is_over(self, step: _Step) -> bool:
        return step.last == ("optimizer" if self._optimizers else "backward")

    def _begin_step(self, arguments: Sequence[Any]) -> None:
        if self._device is None:
            self._device = MeasuredDevice(_device_type(arguments))
        if len(self._steps) == self._request.steps:
            if torch.autograd.profiler._is_profiler_enabled:
                self._notes.append("a profiler of the script's own was running: no times of nodes")
                self._report(None)
                return
            self._profile = StepProfile(self._device, self._bytes_before(arguments))
            self._profile.start()
        self._device.finish_work()
        self._step = _Step(time.perf_counter_ns())

    def _bytes_before(self, arguments: Sequence[Any]) -> int:
        """What the step's inputs, their gradients and the optimizers' states occupy."""
        given = [each for each in arguments if isinstance(each, torch.Tensor)]
        gradients = [each.grad for each in given if each.is_leaf and each.grad is not None]
        states = (leaf for each in self._optimizers.values() for leaf in tree_leaves(each.state))
        return _unique_bytes((*given, *gradients, *states))

    def _part_ends(self, step: _Step, part: _Part, began_ns: int) -> None:
        if self._device is not None and self._num_warm >= self._request.warmup:
            self._device.finish_work()
        now = time.perf_counter_ns()
        step.part_ns[part] = step.part_ns.get(part, 0) + now - began_ns
        step.last, step.ended_ns = part, now

    def _optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        self._optimizers[id(optimizer)] = optimizer
        self._optimizer_began_ns = time.perf_counter_ns()

    def _optimizer_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del optimizer, args, kwargs
        if self._step is not None:
            self._part_ends(self._step, "optimizer", self._optimizer_began_ns)

    def _end_step(self) -> None:
        step, self._step = self._step, None
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.stop()
        if step is None:
            return
        index, self._num_steps = self._num_steps, self._num_steps + 1
        if step.compiled:
            self._num_warm = 0
            self._steps.clear()
        elif "backward" not in step.part_ns:
            return
        elif self._num_warm < self._request.warmup:
            self._num_warm += 1
            self._compilations = step.compilations
        elif step.compilations != self._compilations:  # of another length
            return
        elif profile is None:
            self._steps.append(_measured(index, step))
        else:
            self._report(profile)

    def _report(self, profile: StepProfile | None) -> None:
        """Record what is known, and let go of everything."""
        self.is_done = True
        for hook in self._hooks:
            hook.remove()
        if self._steps and self._device is not None:
            for step in self._steps:
                self._recorder.record(step)
            for node in profile.nodes if profile else ():
                self._recorder.record(node)
            self._recorder.record(self._measurement(self._device, profile))
        self._optimizers.clear()

    def _measurement(self, device: MeasuredDevice, profile: StepProfile | None) -> Measurement:
        steps = self._steps
        optimizer = [step.optimizer_ns for step in steps if step.optimizer_ns is not None]
        if profile is None and not self._notes:
            self._notes.append("the training ended before a step ran under the profiler")
        if profile is not None and profile.detail != "nodes":
            self._notes.append("the inner compiler fuses operators: no time of single nodes")
        return Measurement(
            device_type=device.type,
            device=device.name,
            compilation=min(self._compilations),
            num_steps=len(steps),
            step_ns=_median(step.step_ns for step in steps),
            forward_ns=_median(step.forward_ns for step in steps),
            backward_ns=_median(step.backward_ns for step in steps),
            optimizer_ns=_median(optimizer) if optimizer else None,
            detail="steps" if profile is None else profile.detail,
            peak_bytes=None if profile is None else profile.peak_bytes,
            base_bytes=None if profile is None else profile.base_bytes,
            peak_source=None if profile is None else "profiler" if device.is_cpu else "allocator",
            notes=(*self._notes, *(profile.notes if profile else ())),
        )


class _MeasuredInner:
    """An inner compiler whose callables tell a meter when they run."""

    def __init__(self, inner: InnerCompiler, meter: StepMeter, compilation: int) -> None:
        self.name = inner.name
        self.decompositions = inner.decompositions
        self.prepare_joint = inner.prepare_joint
        self._inner = inner
        self._meter = meter
        self._compilation = compilation

    def compile_forward(self, module: GraphModule, inputs: Sequence[Any]) -> Compiled:
        return self._compile(self._inner.compile_forward, "forward", module, inputs)

    def compile_backward(self, module: GraphModule, inputs: Sequence[Any]) -> Compiled:
        return self._compile(self._inner.compile_backward, "backward", module, inputs)

    def _compile(
        self,
        compile_half: Callable[[GraphModule, Sequence[Any]], Compiled],
        half: Half,
        module: GraphModule,
        inputs: Sequence[Any],
    ) -> Compiled:
        meter = self._meter
        meter.compiles()
        graph = MeasuredGraph.of(
            self._compilation, half, module, runs_node_by_node=isinstance(self._inner, Eager)
        )
        compiled = compile_half(module, inputs)

        def run(arguments: list[Any]) -> Any:
            if meter.is_done:
                return compiled(arguments)
            return meter.run(graph, compiled, arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def _measured(index: int, step: _Step) -> MeasuredStep:
    parts = step.part_ns
    return MeasuredStep(
        index,
        step.ended_ns - step.began_ns,
        parts.get("forward", 0),
        parts.get("backward", 0),
        parts.get("optimizer"),
    )


def _median(values: Iterable[int]) -> int:
    return round(median(values))


def _device_type(arguments: Sequence[Any]) -> str:
    devices = (each.device.type for each in arguments if isinstance(each, torch.Tensor))
    return next((kind for kind in devices if kind != "cpu"), "cpu")


def _unique_bytes(values: Iterable[Any]) -> int:
    """Bytes of the distinct memory blocks behind the tensors among ``values``."""
    blocks = (each.untyped_storage() for each in values if isinstance(each, torch.Tensor))
    return sum({block.data_ptr(): block.nbytes() for block in blocks}.values())
