"""The entries for training: ``torch.compile(model, backend=autosp.backend(...))`` and
``autosp.compile(model, ...)``, on unmodified models and full inputs on each rank."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.fx import GraphModule

import autosp
from autosp.compilation import (
    GRADIENT_CONVENTION,
    PARTITIONERS,
    RankCompilation,
    compile_graphs,
    lower_to_rank,
    unprinted_graphs,
)
from autosp.dynamic_sizes import trace_again_with_constant_numbers
from autosp.errors import AutoSPError
from autosp.events import Recorder, RunStarted, SilentRecorder
from autosp.findings import check_compilation
from autosp.graph import WRAPPER_ATTRIBUTE
from autosp.inner import InnerCompiler, inner_compiler
from autosp.loggers import skip_warnings_once
from autosp.mesh import Mesh
from autosp.outputs import OutputLeaf
from autosp.pipeline import PassContext
from autosp.placement import Shard
from autosp.runtime.gathered import GatheredOnUse, block_of
from autosp.runtime.groups import RankGroup, join_mesh
from autosp.runtime.sharded_inputs import ShardedInputs


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
            allow_breaks=allow_breaks,
        )
        self.compilations: list[RankCompilation] = []
        recorder.record(_run_started(group, self._inner.name, partitioner))

    @property
    def group(self) -> Any:
        """The process group of the SP axis."""
        return self._group.group

    def __call__(self, module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        trace_again_with_constant_numbers(module)
        self._context.compilation = len(self.compilations)
        with unprinted_graphs():
            compilation = lower_to_rank(module, self._context)
            self.compilations.append(compilation)
            with torch.random.fork_rng(devices=[]):  # only its shape counts
                keys = compilation.draw_random_keys()
            compiled = compile_graphs(
                compilation,
                [*map(block_of, example_inputs), *keys],
                inner=self._inner,
                partitioner=self._partitioner,
            )
        if self._context.wants_graphs:
            self._check(compilation)
        takes_blocks = any(given.cut is not None for given in compilation.captured.inputs)
        if not compilation.outputs.any_sharded and not takes_blocks and not keys:
            return compiled
        leaves, group = compilation.outputs.leaves, self._group.group
        lengths_in = compilation.captured.lengths_in

        def run(*arguments: Any) -> Any:
            results = compiled(*map(block_of, arguments), *compilation.draw_random_keys())
            lengths = lengths_in(arguments)
            return [
                _leave(result, leaf and leaf.at_lengths(lengths), group)
                for result, leaf in zip(results, leaves, strict=True)
            ]

        return run

    def _check(self, compilation: RankCompilation) -> None:
        """Tell an observer what the checks find; those that need an estimate have none."""
        description = "did sequence parallelism happen, and is it right"
        with self._context.running("check", description, {}), self._context.sizes.reading():
            for finding in check_compilation(compilation, None):
                self._context.find(finding)


def _leave(result: Any, leaf: OutputLeaf | None, group: Any) -> Any:
    if leaf is None or not isinstance(leaf.placement, Shard):
        return result
    return GatheredOnUse.wrap(
        result, leaf.placement, leaf.shape, group, differentiable=leaf.differentiable
    )


def _run_started(group: RankGroup, inner: str, partitioner: str) -> RunStarted:
    return RunStarted(
        autosp_version=autosp.__version__,
        torch_version=torch.__version__,
        mode="training",
        rank=group.mesh.rank,
        world_size=group.mesh.world_size,
        mesh=group.mesh.axes,
        model="",
        config={"backend": inner, "partitioner": partitioner, "started_ns": time.time_ns()},
        gradient_convention=GRADIENT_CONVENTION,
    )


def backend(
    mesh: Mesh | DeviceMesh | None = None,
    *,
    inner: str | InnerCompiler = "inductor",
    partitioner: str = "min-cut",
    recorder: Recorder | None = None,
    padding_fill: str = "last",
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
        allow_breaks: where dynamo breaks the program, compile each piece; sharded tensors
            go from piece to piece as blocks, and code between that reads one gathers it.

    Raises:
        MeshError: the mesh does not match the processes that run.
        AutoSPError: an unknown inner compiler or partitioner.
    """
    if partitioner not in PARTITIONERS:
        raise AutoSPError(
            f"unknown partitioner {partitioner!r}", hint=f"Choose {' or '.join(PARTITIONERS)}"
        )
    skip_warnings_once()  # dynamo traces before it calls a backend
    return Backend(
        join_mesh(mesh),
        inner=inner,
        partitioner=partitioner,
        recorder=recorder or SilentRecorder(),
        padding_fill=padding_fill,
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
        mesh, inner, partitioner, recorder, padding_fill, allow_breaks: see :func:`backend`.
        dynamic: one compilation serves all batch sizes and sequence lengths; by default each
            is compiled on its own, but for sizes marked with ``torch._dynamo.mark_dynamic``.

    Raises:
        AutoSPError: as :func:`backend`; errors of the compilation come with the first call.
    """
    entry = backend(
        mesh,
        inner=inner,
        partitioner=partitioner,
        recorder=recorder,
        padding_fill=padding_fill,
        allow_breaks=allow_breaks,
    )
    region = model if loss is None else _WithLoss(model, loss)
    compiled = torch.compile(region, backend=entry, fullgraph=not allow_breaks, dynamic=dynamic)
    if not sharded_inputs:
        return cast(torch.nn.Module, compiled)
    signature = _signature(model, takes_targets=loss is not None)
    return ShardedInputs(cast(torch.nn.Module, compiled), signature, sharded_inputs, entry.group)


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
