"""A dry run: the same passes as in training, for a mesh of N ranks, in one process.

Fake tensors only: no GPU, no process group, nothing allocated. One dry run stands for all
ranks, because their programs differ in slice positions alone.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule

import autosp
from autosp.attention_choice import AttentionChoice
from autosp.capture import describe_inputs
from autosp.compilation import (
    GRADIENT_CONVENTION,
    compiled_step,
    derive_graphs,
    unprinted_graphs,
)
from autosp.cost.step import CompiledStep
from autosp.dry_run_pieces import PieceCompiler
from autosp.dynamo import compiled_region
from autosp.errors import AutoSPError
from autosp.estimate import StepEstimate, estimate_step
from autosp.events import Finding, Recorder, RunFinished, RunStarted, SilentRecorder
from autosp.findings import check_compilation
from autosp.graph import WRAPPER_ATTRIBUTE
from autosp.hardware import Device
from autosp.loggers import quiet_loggers
from autosp.loss_of import LossOfOutput
from autosp.lowering import RankCompilation, lower_to_rank
from autosp.mesh import Mesh
from autosp.output_hooks import install_output_hooks
from autosp.pipeline import PassContext, Progress
from autosp.torch_refusals import refusals_in_our_words
from autosp.unknown_values import ZeroForUnknown


@dataclass(frozen=True, slots=True)
class DryRunRequest:
    """What to compile and for whom.

    ``model`` and its inputs hold fake tensors of ``fake_mode``. ``options`` is what the
    trace shows as the configuration; it has no influence of its own.
    """

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    fake_mode: FakeTensorMode
    mesh: Mesh
    model_name: str
    options: Mapping[str, object] = field(default_factory=dict)
    device: Device | None = None
    zero: int = 0
    optimizer: str = "adamw"
    partitioner: str = "min-cut"
    backend: str = "eager"
    attention: AttentionChoice = "auto"
    allow_breaks: bool = False
    """Compile each piece of a program that dynamo breaks. Several pieces get no estimate."""


@dataclass(frozen=True, slots=True)
class DryRunResult:
    pieces: tuple[RankCompilation, ...]
    """One, unless breaks were allowed and happened."""
    step: CompiledStep | None
    estimate: StepEstimate | None
    """None for a program in several pieces."""
    findings: tuple[Finding, ...]
    duration_ns: int

    @property
    def compilation(self) -> RankCompilation:
        return self.pieces[0]


def dry_run(
    request: DryRunRequest,
    *,
    recorder: Recorder | None = None,
    progress: Progress | None = None,
) -> DryRunResult:
    """Compile ``request`` and estimate its step; every decision goes to ``recorder``.

    Raises:
        AutoSPError: a graph break, heads that do not fit the degree, nothing to shard ...
        HardwareError: the device lacks a constant that an estimate needs.
        Exception: what the user's own forward raises, unchanged.
    """
    recorder = recorder or SilentRecorder()
    started = time.perf_counter_ns()
    recorder.record(_header(request))
    try:
        with unprinted_graphs(), rarely_collected():
            result = _run(request, recorder, progress, started)
    except BaseException as error:
        elapsed = time.perf_counter_ns() - started
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        recorder.record(RunFinished("failed", elapsed, first_line))
        raise
    recorder.record(RunFinished("ok", result.duration_ns))
    return result


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Less cyclic garbage collection inside: graphs live to the end of a compilation anyway.

    Walking hundreds of thousands of live nodes again and again costs a tenth of it.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _run(
    request: DryRunRequest, recorder: Recorder, progress: Progress | None, started: int
) -> DryRunResult:
    if progress is not None:
        progress("trace the model")
    context = PassContext(
        request.mesh,
        recorder,
        progress=progress,
        allow_breaks=request.allow_breaks,
        attention=request.attention,
    )
    compile_it = _compile_pieces if request.allow_breaks else _compile_whole
    pieces = compile_it(request, context)
    context.in_pieces = len(pieces) > 1
    step = None if context.in_pieces else compiled_step(pieces[0])
    estimate = None if step is None else _estimate(request, context, pieces[0], step)
    with context.running("check", "did sequence parallelism happen, and is it right", {}):
        for piece in pieces:
            for finding in check_compilation(piece, estimate):
                context.find(finding)
    elapsed = time.perf_counter_ns() - started
    return DryRunResult(pieces, step, estimate, tuple(context.findings), elapsed)


def _compile_whole(request: DryRunRequest, context: PassContext) -> tuple[RankCompilation, ...]:
    graph = dynamo_graph(request.model, request.args, request.kwargs, request.fake_mode)
    compilation = lower_to_rank(graph, context)
    fake_mode = compilation.captured.fake_mode
    with tracing(TracingContext(fake_mode)), fake_mode:
        derive_graphs(
            compilation, compilation.captured.fake_inputs, partitioner=request.partitioner
        )
    return (compilation,)


def _compile_pieces(request: DryRunRequest, context: PassContext) -> tuple[RankCompilation, ...]:
    compiler = PieceCompiler(context, request.partitioner)
    region = _region(request.model)
    with (
        _dynamo(region, compiler, fullgraph=False) as compiled,
        request.fake_mode,
        ZeroForUnknown(compiler.report_read),
    ):
        compiled(*request.args, **request.kwargs)
    if not compiler.compilations:
        raise _nothing_compiled()
    if len(compiler.compilations) > 1:
        compiler.report_runs()
    compiler.report_hidden_breaks()
    return tuple(compiler.compilations)


def _estimate(
    request: DryRunRequest, context: PassContext, piece: RankCompilation, step: CompiledStep
) -> StepEstimate:
    with context.running("estimate", "live memory and time of one step", {}):
        estimate = estimate_step(
            step,
            device=request.device,
            mesh=request.mesh,
            zero=request.zero,
            optimizer=request.optimizer,
            is_sharded=piece.view.is_sharded,
        )
        for event in estimate.events:
            context.recorder.record(event)
    return estimate


def _header(request: DryRunRequest) -> RunStarted:
    device = request.device
    return RunStarted(
        autosp_version=autosp.__version__,
        torch_version=torch.__version__,
        mode="dry_run",
        rank=request.mesh.rank,
        world_size=request.mesh.world_size,
        mesh=request.mesh.axes,
        model=request.model_name,
        config=dict(request.options),
        gradient_convention=GRADIENT_CONVENTION,
        hardware=None if device is None else device.as_dict(),
    )


class _Captured(Exception):
    """Carries the graph out of dynamo: nothing is compiled or run there."""

    def __init__(self, graph: GraphModule) -> None:
        self.graph = graph
        super().__init__("captured")


class _LossOf(torch.nn.Module):
    """A training step's forward: the loss of the model's output is all that leaves it."""

    def __init__(self, model: torch.nn.Module, loss_of: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        setattr(self, WRAPPER_ATTRIBUTE, model)
        self._loss_of = loss_of

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._loss_of(getattr(self, WRAPPER_ATTRIBUTE)(*args, **kwargs))


def dynamo_graph(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    fake_mode: FakeTensorMode | None,
) -> GraphModule:
    """The graph that dynamo hands to a backend for ``loss = loss_of(model(...))``.

    Raises:
        GraphBreakError: with the user's line.
    """

    def hand_over(module: GraphModule, example_inputs: Sequence[Any]) -> Any:
        del example_inputs
        describe_inputs(module)
        raise _Captured(module)

    try:
        with _dynamo(_region(model), hand_over, fullgraph=True) as compiled:
            with fake_mode or nullcontext():
                compiled(*args, **kwargs)
    except _Captured as captured:
        return captured.graph
    raise _nothing_compiled()


def _region(model: torch.nn.Module) -> torch.nn.Module:
    install_output_hooks(model)
    region = _LossOf(model, LossOfOutput())
    return region.train(model.training)


@contextmanager
def _dynamo(
    region: torch.nn.Module, backend: Callable[..., Any], *, fullgraph: bool
) -> Iterator[Callable[..., Any]]:
    """``region`` compiled by dynamo; what a backend raises inside comes out as it is.

    Raises:
        GraphBreakError: dynamo needs the whole program and cannot trace it.
    """
    torch._dynamo.reset()
    try:
        with refusals_in_our_words(), quiet_loggers():
            yield compiled_region(region, backend, allow_breaks=not fullgraph)
    except BackendCompilerFailed as failure:
        if isinstance(failure.inner_exception, _Captured):
            raise failure.inner_exception from None
        raise
    finally:
        torch._dynamo.reset()


def _nothing_compiled() -> AutoSPError:
    return AutoSPError(
        "torch.compile ran the model without compiling anything",
        hint="Check that the forward computes with tensors",
    )
