"""``autosp.compile(engine)``: sequence parallelism under a DeepSpeed engine, ZeRO 0 to 2.

The engine keeps its loop, its optimizer and its reduction of gradients; the forward of its
module becomes the compiled one. With ``sequence_parallel_size`` alone in its config, the
engine averages gradients over all ranks, which is AutoSP's convention. That is not taken on
trust: at the first step the gradient of one parameter is compared with the average.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from autosp.errors import AutoSPError, MeshError
from autosp.mesh import Mesh
from autosp.runtime.groups import RankGroup

DEGREE_KEY = "sequence_parallel_size"
RATIO_TOLERANCE = 0.02
"""Of the norms of the reduced and the expected gradient: bf16 has 8 bits, and a wrong divisor
is wrong by a factor of at least 2."""


class EngineError(AutoSPError):
    """A DeepSpeed engine that AutoSP cannot train with, or that treats gradients otherwise."""


def is_engine(model: Any) -> bool:
    """Whether ``model`` is a ``DeepSpeedEngine``; does not import DeepSpeed."""
    deepspeed = sys.modules.get("deepspeed")
    return deepspeed is not None and isinstance(model, deepspeed.DeepSpeedEngine)


def engine_mesh(engine: Any, mesh: Mesh | DeviceMesh | None = None) -> Mesh:
    """The mesh that the engine's config asks for.

    Args:
        engine: a ``DeepSpeedEngine``.
        mesh: what the caller of ``autosp.compile`` passed, if anything; it must agree.

    Raises:
        MeshError: the config names no degree, one that the processes do not fit, or another
            one than ``mesh``.
        EngineError: a config that does not go together with AutoSP.
    """
    config = engine._config._param_dict
    _refuse(engine, config)
    world_size = dist.get_world_size()
    degree = int(config.get(DEGREE_KEY, 1))
    wanted = degree if mesh is None else mesh.sp if isinstance(mesh, Mesh) else mesh["sp"].size()
    if wanted != degree or (DEGREE_KEY not in config and wanted == 1):
        raise MeshError(
            f"the DeepSpeed config has {DEGREE_KEY} {config.get(DEGREE_KEY, 'not set')}"
            + (f", the mesh sp {wanted}" if mesh is not None else ""),
            hint=f'Add "{DEGREE_KEY}": {wanted if wanted > 1 else world_size} to it: DeepSpeed '
            "counts batches with it",
        )
    if world_size % degree:
        raise MeshError(
            f"{world_size} processes do not make groups of {DEGREE_KEY} {degree}",
            hint="Start a multiple of it",
        )
    return Mesh(sp=degree, dp=world_size // degree)


def _refuse(engine: Any, config: Mapping[str, Any]) -> None:
    stage = engine.zero_optimization_stage()
    if stage > 2:
        raise EngineError(
            f"ZeRO stage {stage} cuts the parameters, which the compiled step reads whole",
            hint="Use stage 2: AutoSP cuts the activations, which are what long sequences fill "
            "the memory with",
        )
    if engine.is_deepcompile_enabled():
        raise EngineError(
            'the DeepSpeed config turns on DeepSpeed\'s own compiler ("compile": {"deepcompile"})',
            hint="Remove it: one compiler rewrites the model",
        )
    if engine.sequence_parallel_size != 1:
        raise EngineError(
            f"the engine has its own sequence-parallel groups ({engine.sequence_parallel_size} "
            "ranks) and divides gradients by them",
            hint=f'Leave "{DEGREE_KEY}" in the config and take out "data_parallel_size", '
            "mesh_param and mpu: AutoSP makes its groups itself",
        )
    if engine.pipeline_parallelism:
        raise EngineError(
            "the engine is a pipeline, whose stages are not one graph",
            hint="Use deepspeed.initialize with a plain module",
        )


def install(engine: Any, forward: Callable[..., Any], group: RankGroup) -> None:
    """Let the engine's module run ``forward``; watch its first reduction of gradients."""
    # Not the module itself: that would become a part of the engine's module.
    engine.module.forward = partial(forward)
    _FirstReduction(engine, group).watch()


class _FirstReduction:
    """Compares what the engine makes of one parameter's gradient with the average over ranks."""

    def __init__(self, engine: Any, group: RankGroup) -> None:
        self._engine = engine
        self._world_size = group.mesh.world_size
        self._parameter = _smallest_matrix(engine.module)
        self._local = torch.zeros_like(self._parameter, dtype=torch.float32)
        self._handle: Any = None

    def watch(self) -> None:
        self._handle = self._parameter.register_hook(self._add)  # type: ignore[no-untyped-call]
        step = self._engine.step

        def checked_step(*args: Any, **kwargs: Any) -> Any:
            if self._engine.is_gradient_accumulation_boundary():
                self._handle.remove()
                self._engine.step = step
                self._compare()
            return step(*args, **kwargs)

        self._engine.step = checked_step

    def _add(self, gradient: torch.Tensor) -> None:
        self._local += gradient.detach()

    def _compare(self) -> None:
        from deepspeed.utils import safe_get_full_grad

        reduced = safe_get_full_grad(self._parameter)
        expected = self._local
        dist.all_reduce(expected)
        expected /= self._world_size
        if reduced is None or not bool(expected.isfinite().all()):
            return  # an unused parameter; an overflow that the engine's loss scale deals with
        wanted, found = float(expected.norm()), float(reduced.float().norm())
        ratio = found / wanted if wanted else 1.0
        scale = float(getattr(self._engine.optimizer, "loss_scale", 1.0) or 1.0)
        if min(abs(ratio - 1), abs(ratio * scale - 1)) > RATIO_TOLERANCE:
            raise EngineError(
                f"DeepSpeed's gradients are {ratio:.4g} times the average over the "
                f"{self._world_size} ranks",
                hint="Its groups or its divisor (prescale_gradients, "
                "gradient_predivide_factor, mpu) do not span all ranks evenly; leave them at "
                "their defaults",
            )


def _smallest_matrix(module: torch.nn.Module) -> torch.nn.Parameter:
    """The cheapest parameter to compare. Some biases (of attention keys) have no gradient.

    Raises:
        EngineError: nothing is trained.
    """
    trainable = [p for p in module.parameters() if p.requires_grad]
    if not trainable:
        raise EngineError(
            "no parameter of the engine's module is trainable", hint="Unfreeze some of them"
        )
    matrices = [p for p in trainable if p.dim() > 1]
    return min(matrices or trainable, key=torch.numel)
