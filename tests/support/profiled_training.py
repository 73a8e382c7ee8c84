"""A training step of an unsharded model, as its estimate sees it and as it really runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch.partitioners import (
    default_partition,
    min_cut_rematerialization_partition,
)

from autosp.cost.kernel_scratch import cpu_kernel_scratch
from autosp.cost.memory import StepMemory, step_memory
from autosp.cost.optimizer import OptimizerModel
from autosp.cost.step import CompiledStep, InputKind
from autosp.cost.zero import ZeroModel
from tests.support.allocation_profile import AllocationPeak, measure_peak, unique_bytes

Partitioner = Literal["min_cut", "default"]
PARTITIONERS = {"min_cut": min_cut_rematerialization_partition, "default": default_partition}


@dataclass(frozen=True)
class ProfiledTraining:
    """A compiled step beside the peak that one real step reached."""

    step: CompiledStep
    base_bytes: int
    """Parameters, buffers, inputs and optimizer state: alive before the step."""
    measured: AllocationPeak


def predicted_excess_bytes(step: CompiledStep, *, optimizer: OptimizerModel) -> int:
    """The estimated peak above parameters, inputs and optimizer state, on this CPU."""
    memory = predict_memory(step, optimizer=optimizer)
    return memory.peak.live_bytes - memory.persistent_bytes


def predict_memory(step: CompiledStep, *, optimizer: OptimizerModel) -> StepMemory:
    """The estimate of a step run here by the inner compiler ``eager``."""
    scratch = cpu_kernel_scratch(num_threads=torch.get_num_threads())
    return step_memory(step, optimizer=optimizer, zero=ZeroModel(), kernel_scratch=scratch)


class _Capture:
    """A torch.compile backend that runs ATen graphs as they are and keeps them."""

    def __init__(self, partitioner: Partitioner) -> None:
        self._partition = PARTITIONERS[partitioner]
        self._forward: torch.fx.GraphModule | None = None
        self._backward: torch.fx.GraphModule | None = None
        self._kinds: list[InputKind] = []
        self._names: list[str] = []
        self._trainable: list[bool] = []
        self._num_outputs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        assert self._forward is None, "the model compiles to one graph"
        for node, value in zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True):
            kind: InputKind = "parameter" if isinstance(value, nn.Parameter) else "input"
            self._kinds.append(kind)
            self._names.append(node.name)
            self._trainable.append(value.requires_grad)
        self._num_outputs = len(next(iter(reversed(graph.graph.nodes))).args[0])
        return aot_autograd(
            fw_compiler=self._keep_forward,
            bw_compiler=self._keep_backward,
            partition_fn=self._partition,
        )(graph, inputs)

    def _keep_forward(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        self._forward = graph
        return boxed_nop(graph, inputs)

    def _keep_backward(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        self._backward = graph
        return boxed_nop(graph, inputs)

    def step(self) -> CompiledStep:
        assert self._forward is not None
        return CompiledStep(
            forward=self._forward,
            backward=self._backward,
            input_kinds=tuple(self._kinds),
            input_names=tuple(self._names),
            trainable=tuple(self._trainable),
            num_forward_outputs=self._num_outputs,
        )


def profile_training(
    model: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    *,
    loss_of: Callable[[Any], torch.Tensor],
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer | None],
    partitioner: Partitioner,
) -> ProfiledTraining:
    """Compile ``model``, train one step to warm up, and measure the second one."""
    torch._dynamo.reset()
    capture = _Capture(partitioner)
    compiled = torch.compile(model, backend=capture, fullgraph=True, dynamic=False)
    parameters = list(model.parameters())
    optimizer = make_optimizer(parameters)

    def train() -> Any:
        output = compiled(**inputs)
        loss_of(output).backward()  # type: ignore[no-untyped-call]
        if optimizer is not None:
            optimizer.step()
        return output

    def clear() -> None:
        for parameter in parameters:
            parameter.grad = None

    train()
    clear()
    states = [] if optimizer is None else _state_tensors(optimizer)
    alive = [*parameters, *model.buffers(), *inputs.values(), *states]
    measured = measure_peak(train)
    clear()
    return ProfiledTraining(step=capture.step(), base_bytes=unique_bytes(alive), measured=measured)


def _state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
