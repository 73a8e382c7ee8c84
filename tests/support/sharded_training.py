"""A sequence-parallel training step on gloo ranks: its estimate beside what one rank did."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

import autosp
from autosp.compilation import compiled_step
from autosp.graph import collective_kind, is_wait
from autosp.inner import Compiled, Eager
from autosp.verification_processes import run_on_ranks
from tests.support.allocation_profile import AllocationPeak, measure_peak, unique_bytes
from tests.support.peak_cases import PeakCase
from tests.support.profiled_training import ProfiledTraining, predict_memory

PARTITIONERS = {"min_cut": "min-cut", "default": "default"}


@dataclass(frozen=True)
class PeakComparison:
    """Estimated and measured live bytes of rank 0 at the peak, and the estimate's place."""

    name: str
    num_ranks: int
    estimated_bytes: int
    measured_bytes: int
    place: str
    num_all_to_alls: int

    def __str__(self) -> str:
        error = self.estimated_bytes / self.measured_bytes - 1
        return (
            f"{self.name} (SP {self.num_ranks}): {self.estimated_bytes:,} estimated, "
            f"{self.measured_bytes:,} measured, {error:+.4%} at {self.place}"
        )


class SettledInterpreter(Interpreter):
    """Runs a graph; buffers of collectives are freed by this thread, not by gloo's.

    The profiler sees only the frees of the thread that it watches. Which thread lets go
    last of a buffer is a race, so this one keeps it until gloo has let go.
    """

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self._sent: list[tuple[torch.Tensor, int]] = []

    def run_node(self, n: Node) -> Any:
        if collective_kind(n) is not None:
            sent = self.env[n.args[0]]
            self._sent.append((sent, sent._use_count()))
        result = super().run_node(n)
        if is_wait(n):
            while self._sent:
                _wait_until_released(*self._sent.pop())
            _wait_until_released(result, 1)
        return result


def _wait_until_released(tensor: torch.Tensor, num_holders: int) -> None:
    """Until nobody holds the tensor but those who did before it was sent."""
    deadline = time.monotonic() + 30
    while tensor._use_count() > num_holders:
        assert time.monotonic() < deadline, "gloo never let go of a buffer"
        time.sleep(0)


class SettledEager(Eager):
    """The inner compiler ``eager`` with :class:`SettledInterpreter` for both graphs."""

    def compile_forward(self, module: GraphModule, inputs: Sequence[Any]) -> Compiled:
        return self._settled(module)

    def compile_backward(self, module: GraphModule, inputs: Sequence[Any]) -> Compiled:
        return self._settled(module)

    def _settled(self, module: GraphModule) -> Compiled:
        def run(arguments: list[Any]) -> Any:
            return SettledInterpreter(module).boxed_run(arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def compare_peaks(cases: Sequence[int], num_ranks: int, from_list: str) -> list[PeakComparison]:
    """Run cases (indices into a list of ``tests.support.sharded_cases``) on real ranks."""
    run = partial(_compare_chosen, list(cases), num_ranks, from_list)
    found: list[PeakComparison] = run_on_ranks(run, num_ranks=num_ranks)
    return found


def _compare_chosen(cases: list[int], num_ranks: int, from_list: str) -> list[PeakComparison]:
    from tests.support import sharded_cases

    chosen: Sequence[PeakCase] = getattr(sharded_cases, from_list)
    return [_compare(chosen[index], num_ranks) for index in cases]


def _compare(case: PeakCase, num_ranks: int) -> PeakComparison:
    training, place, count = profile_sharded_training(case, num_ranks)
    return PeakComparison(
        name=case.name,
        num_ranks=num_ranks,
        estimated_bytes=place[0],
        measured_bytes=training.measured.peak_bytes + training.base_bytes,
        place=place[1],
        num_all_to_alls=count,
    )


def profile_sharded_training(
    case: PeakCase, num_ranks: int
) -> tuple[ProfiledTraining, tuple[int, str], int]:
    """Compile for the SP group, train one step to warm up, and measure the second one."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, inputs = case.build(), case.inputs()
    backend = autosp.backend(
        autosp.Mesh(sp=num_ranks),
        inner=SettledEager(),
        partitioner=PARTITIONERS[case.partitioner],
        attention=case.attention,
    )
    compiled: Callable[..., Any] = torch.compile(
        model, backend=backend, fullgraph=True, dynamic=False
    )
    parameters = list(model.parameters())
    optimizer = case.make_optimizer(parameters)

    def train(*, average: bool = False) -> Any:
        output = compiled(**inputs)
        loss = output if isinstance(output, torch.Tensor) else output.loss
        loss.backward()
        if average:
            autosp.average_gradients(parameters)
        if optimizer is not None:
            optimizer.step()
        return output

    def clear() -> None:
        for parameter in parameters:
            parameter.grad = None

    train(average=True)  # the first calls compare the ranks' parameters
    clear()
    states = (
        []
        if optimizer is None
        else [
            value
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        ]
    )
    base = unique_bytes([*parameters, *model.buffers(), *inputs.values(), *states])
    # A free that the profiler did not see can only raise its figure: the lowest is right.
    repeats: list[AllocationPeak] = []
    for _ in range(3):
        repeats.append(measure_peak(train))
        clear()
    measured = min(repeats, key=lambda peak: peak.peak_bytes)
    step = compiled_step(backend.compilations[0])
    peak = predict_memory(step, optimizer=case.optimizer).peak
    place = (peak.live_bytes, f"{peak.phase} {peak.node} {peak.module}")
    forward_kinds = [str(node.target) for node in step.forward.graph.nodes]
    count = sum("all_to_all" in kind for kind in forward_kinds)
    return ProfiledTraining(step, base, measured), place, count
