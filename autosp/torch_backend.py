"""The entries for training: ``torch.compile(model, backend=autosp.backend(...))`` and
``autosp.compile(model, ...)``, on unmodified models and full inputs on each rank."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.fx import GraphModule
from torch.nn.parallel import DistributedDataParallel

import autosp
from autosp.attention_choice import AttentionChoice, attention_choice
from autosp.capture import GraphInput, InputKind, computes_from_nothing, graph_break_after
from autosp.collective_order import collective_list
from autosp.compilation import (
    GRADIENT_CONVENTION,
    PARTITIONERS,
    compile_graphs,
    unprinted_graphs,
)
from autosp.deepspeed_engine import engine_mesh, install, is_engine
from autosp.dynamic_sizes import trace_again_with_constant_numbers
from autosp.dynamo import compiled_region, teach_dynamo
from autosp.errors import AutoSPError
from autosp.events import Recorder, RunStarted, SilentRecorder
from autosp.findings import check_compilation
from autosp.graph import WRAPPER_ATTRIBUTE
from autosp.inner import InnerCompiler, inner_compiler
from autosp.loggers import skip_warnings_once
from autosp.lowering import RankCompilation, lower_to_rank
from autosp.mesh import Mesh
from autosp.output_hooks import install_output_hooks
from autosp.outputs import OutputLeaf
from autosp.pipeline import PassContext
from autosp.placement import Shard
from autosp.runtime.agreement import agree_on_collectives
from autosp.runtime.gathered import GatheredOnUse, block_for_a_region, block_of
from autosp.runtime.groups import RankGroup, join_mesh
from autosp.runtime.same_inputs import SameInputs
from autosp.runtime.sharded_inputs import ShardedInputs
from autosp.runtime.step_meter import measuring, meter_for
from autosp.training_estimate import estimate_training, with_assumptions


class Backend:
    """A ``torch.compile`` backend; one object serves all compilations of a model.

    A second sequence length is a second compilation, unless that size is marked with
    ``torch._dynamo.mark_dynamic`` or the model is compiled with ``dynamic=True``: one program
    then serves every length (see :mod:`autosp.dynamic_sizes`).
    """

    def __init__(
        self,
        group: RankGroup,
        *,
        inner: str | InnerCompiler,
        partitioner: str,
        recorder: Recorder,
        padding_fill: str,
        attention: AttentionChoice = "auto",
        allow_breaks: bool = False,
    ) -> None:
        self._group = group
        self._inner = inner_compiler(inner) if isinstance(inner, str) else inner
        self._partitioner = partitioner
        self._context = PassContext(
            group.mesh,
            recorder,
            group_name=group.name,
            padding_fill=padding_fill,
            attention=attention,
            allow_breaks=allow_breaks,
        )
        self.compilations: list[RankCompilation] = []
        self._request = measuring(recorder)
        self._meter = meter_for(recorder)
        self._is_estimated = False
        started = _run_started(
            group, self._inner.name, partitioner, attention, allow_breaks=allow_breaks
        )
        recorder.record(with_assumptions(started, self._request))

    @property
    def rank_group(self) -> RankGroup:
        """This rank's place in the mesh."""
        return self._group

    @property
    def group(self) -> Any:
        """The process group of the SP axis."""
        return self._group.group

    def __call__(self, module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        trace_again_with_constant_numbers(module)
        if self._context.allow_breaks and computes_from_nothing(module):
            return module
        index = self._context.compilation = len(self.compilations)
        meter = self._meter
        with unprinted_graphs():
            compilation = lower_to_rank(module, self._context)
            self.compilations.append(compilation)
            with torch.random.fork_rng(devices=[]):  # only its shape counts
                keys = compilation.draw_random_keys()
            compiled = compile_graphs(
                compilation,
                [*map(block_of, example_inputs), *map(_of_fixed_size, keys)],
                inner=self._inner if meter is None else meter.around(self._inner, index),
                partitioner=self._partitioner,
                derived=lambda: self._graphs_derived(compilation),
            )
        self._context.in_pieces |= bool(self._context.allow_breaks and graph_break_after(module))
        if self._context.wants_graphs:
            self._check(compilation)
        leaves, group = compilation.outputs.leaves, self._group.group
        same_inputs = SameInputs(group, self._context.mesh.sp)
        given = compilation.captured.inputs[: len(example_inputs)]  # random keys come after
        lengths_in = compilation.captured.lengths_in

        def run(*arguments: Any) -> Any:
            if meter is not None:
                meter.begin_forward(arguments)
            if same_inputs.is_due:
                same_inputs.check(
                    _whole_tensors(given, arguments, "input"),
                    _whole_tensors(given, arguments, "parameter"),
                )
            results = compiled(*map(block_for_a_region, arguments), *compilation.draw_random_keys())
            lengths = lengths_in(arguments)
            return [
                _leave(result, leaf and leaf.at_lengths(lengths), group)
                for result, leaf in zip(results, leaves, strict=True)
            ]

        return run

    def _graphs_derived(self, compilation: RankCompilation) -> None:
        if self._request is not None and not self._is_estimated:
            self._is_estimated = estimate_training(compilation, self._context, self._request)
        self._agree(compilation)

    def _agree(self, compilation: RankCompilation) -> None:
        """All ranks of the SP group are about to issue the same collectives."""
        graphs, context = compilation.graphs, self._context
        if context.mesh.sp == 1 or graphs.forward is None:
            return
        entries = collective_list(graphs.forward, graphs.backward, self._group.name)
        inputs = compilation.captured.fake_inputs
        device = next(value.device for value in inputs if isinstance(value, torch.Tensor))
        agree_on_collectives(entries, self._group.group, device)
        context.decide(
            "analysis", "collective-order", "",
            f"{len(entries)} collectives, the same on all {context.mesh.sp} ranks",
            "the ranks compared their lists", rule="runtime.agreement",
        )  # fmt: skip

    def _check(self, compilation: RankCompilation) -> None:
        """Tell an observer what the checks find; those that need an estimate have none."""
        description = "did sequence parallelism happen, and is it right"
        with self._context.running("check", description, {}), self._context.sizes.reading():
            for finding in check_compilation(compilation, None):
                self._context.find(finding)


def _whole_tensors(
    given: Sequence[GraphInput], arguments: Sequence[Any], kind: InputKind
) -> dict[str, torch.Tensor]:
    """Those that every rank of a group must hold alike, by the user's names."""
    return {
        each.name: argument
        for each, argument in zip(given, arguments, strict=True)
        if each.kind == kind
        and each.cut is None
        and isinstance(argument, torch.Tensor)
        and not isinstance(argument, GatheredOnUse)
    }


def _of_fixed_size(keys: torch.Tensor) -> torch.Tensor:
    """As AOTAutograd is to see the keys: dynamo did not see them and can guard no size of them."""
    tracing = torch._guards.TracingContext.try_get()
    fake_mode = None if tracing is None else tracing.fake_mode
    if fake_mode is None:
        return keys
    fixed: torch.Tensor = fake_mode.from_tensor(keys, static_shapes=True)
    return fixed


def _leave(result: Any, leaf: OutputLeaf | None, group: Any) -> Any:
    if leaf is None or not isinstance(leaf.placement, Shard):
        return result
    differentiable = leaf.differentiable or not torch.is_grad_enabled()  # then none is asked for
    return GatheredOnUse.wrap(
        result, leaf.placement, leaf.shape, group, differentiable=differentiable
    )


def _run_started(
    group: RankGroup,
    inner: str,
    partitioner: str,
    attention: AttentionChoice,
    *,
    allow_breaks: bool,
) -> RunStarted:
    return RunStarted(
        autosp_version=autosp.__version__,
        torch_version=torch.__version__,
        mode="training",
        rank=group.mesh.rank,
        world_size=group.mesh.world_size,
        mesh=group.mesh.axes,
        model="",
        config={
            "backend": inner,
            "partitioner": partitioner,
            "attention": attention,
            "allow_breaks": allow_breaks,
            "started_ns": time.time_ns(),
        },
        gradient_convention=GRADIENT_CONVENTION,
    )


def backend(
    mesh: Mesh | DeviceMesh | None = None,
    *,
    inner: str | InnerCompiler = "inductor",
    partitioner: str = "min-cut",
    recorder: Recorder | None = None,
    padding_fill: str = "last",
    attention: str = "auto",
    allow_breaks: bool = False,
) -> Backend:
    """A backend for ``torch.compile``. Every rank must call it.

    Args:
        mesh: an :class:`autosp.Mesh`, a ``DeviceMesh`` with dims named ``dp`` and ``sp``,
            or None: all ranks are one SP group.
        inner: ``inductor``, ``eager`` or an :class:`autosp.inner.InnerCompiler`: what
            compiles the forward and the backward graph.
        partitioner: ``min-cut`` (saves what moves the fewest bytes) or ``default``
            (recomputes nothing).
        recorder: receives every decision and graph; see :mod:`autosp.events`.
        padding_fill: ``last`` or ``first``: which valid row fills padding rows. The result
            does not depend on it.
        attention: ``ulysses`` deals the heads out to the ranks, ``ring`` passes keys and
            values round them, ``hybrid`` does both on a split of the ranks; ``auto`` takes
            Ulysses where the heads allow it, else what sends least.
        allow_breaks: where dynamo breaks the program, compile each piece; sharded tensors
            go from piece to piece as blocks, and code between that reads one gathers it.

    Raises:
        MeshError: the mesh does not match the processes that run.
        AutoSPError: an unknown inner compiler, partitioner or form of attention.
    """
    if partitioner not in PARTITIONERS:
        raise AutoSPError(
            f"unknown partitioner {partitioner!r}", hint=f"Choose {' or '.join(PARTITIONERS)}"
        )
    form = attention_choice(attention)
    skip_warnings_once()  # dynamo traces before it calls a backend
    teach_dynamo()
    return Backend(
        join_mesh(mesh),
        inner=inner,
        partitioner=partitioner,
        recorder=recorder or SilentRecorder(),
        padding_fill=padding_fill,
        attention=form,
        allow_breaks=allow_breaks,
    )


class _WithLoss(torch.nn.Module):
    """The model and its loss as one region."""

    def __init__(self, model: torch.nn.Module, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        setattr(self, WRAPPER_ATTRIBUTE, model)
        self._loss = loss

    def forward(self, *args: Any, targets: Any = None, **kwargs: Any) -> torch.Tensor:
        return self._loss(getattr(self, WRAPPER_ATTRIBUTE)(*args, **kwargs), targets)


def compile(  # noqa: A001  the name users expect beside torch.compile
    model: torch.nn.Module,
    mesh: Mesh | DeviceMesh | None = None,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    sharded_inputs: Mapping[str, int] | None = None,
    inner: str | InnerCompiler = "inductor",
    partitioner: str = "min-cut",
    recorder: Recorder | None = None,
    padding_fill: str = "last",
    attention: str = "auto",
    allow_breaks: bool = False,
    dynamic: bool = False,
) -> torch.nn.Module:
    """Compile a model for sequence-parallel training; call the result like the model.

    Args:
        model: any module whose forward is one graph; it is not changed.
        loss: ``loss(output, targets) -> scalar``, compiled together with the model so that
            logits are never whole on a rank. The result is then called as
            ``compiled(..., targets=targets)`` and returns the loss.
        sharded_inputs: arguments of which each rank passes only its own part, with their
            sequence dim: ``{"input_ids": 1, "labels": 1}``. They are gathered before the
            compiled region, in the order of the ranks; parts may differ in length. Inputs
            that are not named are full on each rank.
        mesh, inner, partitioner, recorder, padding_fill, attention, allow_breaks: see
            :func:`backend`.
        dynamic: one compilation serves all batch sizes and sequence lengths; by default each
            is compiled on its own, but for sizes marked with ``torch._dynamo.mark_dynamic``.

    A DeepSpeed engine keeps its loop: its module's forward becomes the compiled one, on the
    mesh that ``sequence_parallel_size`` of its config asks for, and the engine is returned.

    Raises:
        AutoSPError: as :func:`backend`, or the model is wrapped for data parallelism; errors of
            the compilation come with the first call.
    """
    if isinstance(model, DistributedDataParallel):
        raise AutoSPError(
            "a DistributedDataParallel cannot be compiled: torch does not trace its forward",
            hint="Wrap the other way round: DistributedDataParallel(autosp.compile(model))",
        )
    engine = cast(Any, model) if is_engine(model) else None
    if engine is not None:
        mesh, model = engine_mesh(engine, mesh), engine.module
        if loss is not None:
            raise AutoSPError(
                "loss= does not go together with a DeepSpeed engine",
                hint="Compute the loss in the forward of the module that the engine is made of",
            )
    entry = backend(
        mesh,
        inner=inner,
        partitioner=partitioner,
        recorder=recorder,
        padding_fill=padding_fill,
        attention=attention,
        allow_breaks=allow_breaks,
    )
    _refuse_inner_fsdp(model)
    install_output_hooks(model)
    signature = _signature(model, takes_targets=loss is not None)
    region: Any = model if loss is None else _WithLoss(model, loss)
    if engine is not None:
        region = model.forward  # the engine's own hooks stay outside
    region = compiled_region(region, entry, allow_breaks=allow_breaks, dynamic=dynamic)
    if sharded_inputs:
        region = ShardedInputs(region, signature, sharded_inputs, entry.group)
    if engine is None:
        return cast(torch.nn.Module, region)
    install(engine, region, entry.rank_group)
    return cast(torch.nn.Module, engine)


def _refuse_inner_fsdp(model: torch.nn.Module) -> None:
    """FSDP2 gathers the parameters of an inner module in hooks, which break the graph."""
    inner = [n for n, m in model.named_modules() if n and isinstance(m, FSDPModule)]
    if inner:
        raise AutoSPError(
            f"fully_shard was called on {inner[0]!r}{_and_more(inner)}, inside the model",
            hint="Call it on the whole model alone: autosp.compile(fully_shard(model)). Gradients "
            "and optimizer states are then cut over the ranks, as by ZeRO 2",
        )


def _and_more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _signature(model: torch.nn.Module, *, takes_targets: bool) -> inspect.Signature:
    signature = inspect.signature(model.forward)
    if not takes_targets:
        return signature
    parameters = list(signature.parameters.values())
    targets = inspect.Parameter("targets", inspect.Parameter.KEYWORD_ONLY, default=None)
    last = parameters[-1:] if parameters and parameters[-1].kind is targets.VAR_KEYWORD else []
    return signature.replace(
        parameters=[*parameters[: len(parameters) - len(last)], targets, *last]
    )
