"""The estimate that the trace of a training shows beside what was measured."""

from __future__ import annotations

from dataclasses import replace

from autosp.compilation import compiled_step
from autosp.estimate import estimate_step
from autosp.events import RunStarted
from autosp.lowering import RankCompilation
from autosp.measurements import MeasureRequest
from autosp.pipeline import PassContext


def estimate_training(
    compilation: RankCompilation, context: PassContext, request: MeasureRequest
) -> bool:
    """Record memory and time of the compiled step; says whether it could.

    A training goes on where its estimate fails: the trace says why instead.
    """
    if compilation.graphs.backward is None or context.allow_breaks:
        return False
    options = {"optimizer": request.optimizer, "zero": request.zero}
    try:
        with (
            context.running("estimate", "live memory and time of one step", options),
            context.sizes.reading(),
        ):
            estimate = estimate_step(
                compiled_step(compilation),
                device=request.device,
                mesh=context.mesh,
                zero=request.zero,
                optimizer=request.optimizer,
                is_sharded=compilation.view.is_sharded,
            )
            for event in estimate.events:
                context.recorder.record(event)
    except Exception as error:
        context.decide(
            "failed", "estimate", "", "no estimate", f"{type(error).__name__}: {error}",
            rule="training_estimate",
        )  # fmt: skip
        return False
    return True


def with_assumptions(started: RunStarted, request: MeasureRequest | None) -> RunStarted:
    """The header of a run with what its estimate assumes."""
    if request is None:
        return started
    config = {**started.config, "optimizer": request.optimizer, "zero": request.zero}
    hardware = None if request.device is None else request.device.as_dict()
    return replace(started, config=config, hardware=hardware)
