"""Everything that occupies memory during a step, as spans over its moments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.fx

from autosp.cost.categories import storage_categories
from autosp.cost.liveness import CALLER, StepLiveness, step_liveness
from autosp.cost.optimizer import OptimizerModel, state_tensors, temporary_bytes
from autosp.cost.step import CompiledStep
from autosp.cost.storage import Storage
from autosp.cost.zero import ZeroModel
from autosp.events import Phase
from autosp.graph import module_path

KernelScratch = Callable[[torch.fx.Node], int]
"""Bytes that the kernel of a node allocates beside its outputs and frees before it ends."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A point of the step at which memory is looked at."""

    phase: Phase
    name: str
    module: str
    node: torch.fx.Node | None


@dataclass(frozen=True, slots=True)
class Span:
    """``size_bytes`` of one category while moments ``start`` to ``end`` (included) run."""

    start: int
    end: int
    size_bytes: int
    category: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    creator: torch.fx.Node | None = None
    last_use: int | None = None
    """The last moment that touches it; None for what no graph node uses."""
    persistent: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter that the backward gives a gradient."""

    position: int
    name: str
    value: torch.Tensor
    gradient: torch.fx.Node

    @property
    def num_elements(self) -> int:
        return int(self.value.numel())

    @property
    def element_bytes(self) -> int:
        return self.value.element_size()


@dataclass(frozen=True, slots=True)
class StepOutline:
    """What the span builders share."""

    step: CompiledStep
    liveness: StepLiveness
    zero: ZeroModel
    optimizer: OptimizerModel
    parameters: tuple[Parameter, ...]
    copied: tuple[Parameter, ...]
    """Parameters whose gradient autograd copies after the backward."""
    moments: tuple[Moment, ...]

    @property
    def last(self) -> int:
        return len(self.moments) - 1

    @property
    def first_copy(self) -> int:
        return len(self.liveness.moments)

    @property
    def first_update(self) -> int:
        return self.first_copy + len(self.copied)


def outline_step(step: CompiledStep, *, optimizer: OptimizerModel, zero: ZeroModel) -> StepOutline:
    """Lay out the moments of a step: nodes, gradient copies, optimizer updates."""
    liveness = step_liveness(step)
    parameters = tuple(_trained_parameters(step, liveness))
    copied = tuple(item for item in parameters if not _obeys_layout(item))
    graph_moments = [
        Moment(
            "forward" if index < liveness.num_forward_moments else "backward",
            node.name,
            module_path(node),
            node,
        )
        for index, node in enumerate(liveness.moments)
    ]
    copies = [
        Moment("backward", f"accumulate_grad:{item.name}", _owner(item.name), item.gradient)
        for item in copied
    ]
    updates = _update_moments(parameters, optimizer)
    return StepOutline(
        step=step,
        liveness=liveness,
        zero=zero,
        optimizer=optimizer,
        parameters=parameters,
        copied=copied,
        moments=(*graph_moments, *copies, *updates),
    )


def _trained_parameters(step: CompiledStep, liveness: StepLiveness) -> Iterator[Parameter]:
    placeholders = step.forward.graph.find_nodes(op="placeholder")
    for position, gradient in liveness.gradient_nodes.items():
        if step.input_kinds[position] == "parameter" and step.trainable[position]:
            value = placeholders[position].meta["val"]
            yield Parameter(position, step.input_names[position], value, gradient)


def _update_moments(parameters: tuple[Parameter, ...], optimizer: OptimizerModel) -> list[Moment]:
    if not parameters or optimizer.name == "none":
        return []
    if optimizer.implementation == "single_tensor":
        return [Moment("optimizer", item.name, _owner(item.name), None) for item in parameters]
    return [Moment("optimizer", "optimizer_step", "", None)]


def _owner(parameter_name: str) -> str:
    return parameter_name.rpartition(".")[0]


def _obeys_layout(parameter: Parameter) -> bool:
    """Autograd's layout contract: the gradient has its parameter's strides.

    Dims of size 1 do not count. (torch/csrc/autograd/utils/grad_layout_contract.h)
    """
    value, gradient = parameter.value, parameter.gradient.meta["val"]
    if not _is_dense(value):
        return bool(gradient.is_contiguous())
    return all(
        size == 1 or wanted == actual
        for size, wanted, actual in zip(value.shape, value.stride(), gradient.stride(), strict=True)
    )


def _is_dense(value: torch.Tensor) -> bool:
    """Whether the elements fill a block of memory without gaps, in some order of dims."""
    pairs = zip(value.shape, value.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs) == value.numel()


def step_spans(outline: StepOutline, *, kernel_scratch: KernelScratch) -> list[Span]:
    """All spans of the step."""
    return [
        *_graph_spans(outline),
        *_copy_spans(outline),
        *_scratch_spans(outline, kernel_scratch),
        *_state_spans(outline),
        *_update_spans(outline),
    ]


def _graph_spans(outline: StepOutline) -> Iterator[Span]:
    """Inputs, constants and what the nodes of the graphs allocate."""
    liveness = outline.liveness
    categories = storage_categories(outline.step, liveness)
    names = _input_names(outline)
    gathered = _parameter_uses(outline) if outline.zero.shards_parameters else {}
    storages = liveness.table.storages
    released = _released_by_copy(outline)

    def span(storage: Storage, start: int, end: int) -> Span:
        return Span(
            start=start,
            end=end,
            size_bytes=storage.size_bytes,
            category=categories[storage.index],
            name=names.get(storage.index, storage.creator.name),
            dtype=storage.dtype,
            shape=storage.shape,
            creator=storage.creator,
            last_use=liveness.last_use.get(storage.index),
            persistent=storage.persistent,
        )

    for storage in storages:
        if storage.persistent:
            whole = span(storage, 0, outline.last)
            if storage.index in gathered:
                yield from _gathered(whole, outline, gathered[storage.index])
            else:
                yield whole
    for lifetime in liveness.lifetimes:
        storage = storages[lifetime.storage]
        if lifetime.end != CALLER:
            yield span(storage, lifetime.start, lifetime.end)
            continue
        kept = span(storage, lifetime.start, released.get(storage.index, outline.last))
        if storage.index in liveness.gradients and outline.zero.shards_gradients:
            yield from _scattered(outline, kept)
        else:
            yield kept


def _input_names(outline: StepOutline) -> dict[int, str]:
    """Storage of a forward input -> its user-visible name."""
    placeholders = outline.step.forward.graph.find_nodes(op="placeholder")
    return {
        index: name
        for node, name in zip(placeholders, outline.step.input_names, strict=True)
        for index in outline.liveness.forward.of(node)
    }


def _parameter_storages(outline: StepOutline) -> set[int]:
    placeholders = outline.step.forward.graph.find_nodes(op="placeholder")
    return {
        index
        for node, kind in zip(placeholders, outline.step.input_kinds, strict=True)
        if kind == "parameter"
        for index in outline.liveness.forward.of(node)
    }


def _released_by_copy(outline: StepOutline) -> dict[int, int]:
    """Storages of gradients that autograd copies -> moment of the copy that frees them."""
    backward = outline.liveness.backward
    if backward is None:
        return {}
    copied = {item.position for item in outline.copied}
    kept = {
        index
        for position, node in outline.liveness.gradient_nodes.items()
        if position not in copied
        for index in backward.of(node)
    }
    return {
        index: outline.first_copy + order
        for order, item in enumerate(outline.copied)
        for index in backward.of(item.gradient)
        if index not in kept
    }


def _copy_spans(outline: StepOutline) -> Iterator[Span]:
    for order, item in enumerate(outline.copied):
        span = Span(
            start=outline.first_copy + order,
            end=outline.last,
            size_bytes=item.num_elements * item.element_bytes,
            category="gradients",
            name=item.gradient.name,
            dtype=_dtype(item.value),
            shape=tuple(item.value.shape),
            creator=item.gradient,
        )
        yield from _scattered(outline, span) if outline.zero.shards_gradients else (span,)


def _gathered(whole: Span, outline: StepOutline, uses: set[int]) -> Iterator[Span]:
    """ZeRO-3: a share that stays, and the full parameter wherever it is read."""
    yield replace(whole, size_bytes=outline.zero.share(whole.size_bytes))
    for moment in sorted(uses):
        yield replace(
            whole, start=moment, end=moment, category="gather_reduce_buckets", persistent=False
        )


def _parameter_uses(outline: StepOutline) -> dict[int, set[int]]:
    """Storage of a parameter -> moments at which an operator reads it.

    A view reads nothing: its readers do.
    """
    liveness = outline.liveness
    index_of = {node: index for index, node in enumerate(liveness.moments)}
    uses: dict[int, set[int]] = {index: set() for index in _parameter_storages(outline)}
    for storages in filter(None, (liveness.forward, liveness.backward)):
        for node in storages.ids:
            for storage in uses.keys() & storages.of(node):
                readers = (user for user in node.users if storage not in storages.of(user))
                uses[storage].update(index_of[user] for user in readers if user in index_of)
    return uses


def _scattered(outline: StepOutline, kept: Span) -> Iterator[Span]:
    """ZeRO-2: the full gradient until its last use in the graph, then this rank's share."""
    complete = kept.start if kept.last_use is None else kept.last_use
    yield replace(kept, end=complete)
    share = outline.zero.share(kept.size_bytes)
    if complete < kept.end:
        yield replace(kept, start=complete + 1, size_bytes=share)


def _scratch_spans(outline: StepOutline, kernel_scratch: KernelScratch) -> Iterator[Span]:
    for index, node in enumerate(outline.liveness.moments):
        size_bytes = kernel_scratch(node)
        if size_bytes:
            yield Span(
                start=index,
                end=index,
                size_bytes=size_bytes,
                category="other",
                name=f"{node.name}:scratch",
                dtype="uint8",
                shape=(size_bytes,),
                creator=node,
                last_use=index,
            )


def _state_spans(outline: StepOutline) -> Iterator[Span]:
    for item in outline.parameters:
        for state in state_tensors(
            outline.optimizer,
            num_elements=item.num_elements,
            element_bytes=item.element_bytes,
        ):
            yield Span(
                start=0,
                end=outline.last,
                size_bytes=_optimizer_share(outline, state.size_bytes),
                category="optimizer",
                name=f"{state.name}:{item.name}",
                dtype="float32" if outline.optimizer.master_weights else _dtype(item.value),
                shape=tuple(item.value.shape),
                persistent=True,
            )


def _update_spans(outline: StepOutline) -> Iterator[Span]:
    """Temporaries of the optimizer's update."""
    single = outline.optimizer.implementation == "single_tensor"
    if outline.optimizer.name == "none":
        return
    for order, item in enumerate(outline.parameters):
        size_bytes = temporary_bytes(
            outline.optimizer,
            num_elements=item.num_elements,
            element_bytes=item.element_bytes,
        )
        if size_bytes:
            moment = outline.first_update + (order if single else 0)
            yield Span(
                start=moment,
                end=moment,
                size_bytes=_optimizer_share(outline, size_bytes),
                category="optimizer",
                name=f"update:{item.name}",
                dtype=_dtype(item.value),
                shape=tuple(item.value.shape),
                last_use=moment,
            )


def _optimizer_share(outline: StepOutline, size_bytes: int) -> int:
    return outline.zero.share(size_bytes) if outline.zero.shards_optimizer else size_bytes


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
