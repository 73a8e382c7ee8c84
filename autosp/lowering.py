"""From the user's graph to the program of one rank: capture, passes, sharding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch.fx import GraphModule

from autosp.capture import CapturedProgram, capture, graph_break_after
from autosp.events import Finding, GraphSnapshot
from autosp.outputs import OutputPlan, plan_outputs
from autosp.passes import PROGRAM_PASSES
from autosp.passes.keyed_randomness import random_keys
from autosp.passes.shard import Shard
from autosp.pipeline import PassContext, run_passes
from autosp.records import (
    ProgramView,
    snapshot_rank_program,
    snapshot_user_program,
)
from autosp.runtime.keyed_random import draw_keys
from autosp.sharding.rank_program import ShardedProgram
from autosp.verify import verify_program


@dataclass(slots=True)
class RankCompilation:
    """The per-rank program with what it came from."""

    captured: CapturedProgram
    sharded: ShardedProgram
    outputs: OutputPlan
    view: ProgramView
    context: PassContext
    graphs: Graphs = field(default_factory=lambda: Graphs())

    def draw_random_keys(self) -> tuple[torch.Tensor, ...]:
        """The inputs of one step that the user does not give: none, or its random keys."""
        keys = random_keys(self.captured.program.graph)
        if keys is None:
            return ()
        fake, mesh = keys.meta["val"], self.context.mesh
        return (draw_keys(len(fake), dp_rank=mesh.dp_rank, device=fake.device),)


@dataclass(slots=True)
class Graphs:
    """The graphs torch derived, in the order in which they come into being."""

    joint: GraphModule | None = None
    forward: GraphModule | None = None
    backward: GraphModule | None = None
    num_forward_outputs: int = 0


def lower_to_rank(module: GraphModule, context: PassContext) -> RankCompilation:
    """Capture the user's graph and rewrite it for one rank.

    Raises:
        AutoSPError: a graph break, an unfit head count, nothing to shard ...
    """
    return lower_captured(
        lambda: capture(module, allow_breaks=context.allow_breaks), context, module
    )


def lower_captured(
    captured_program: Callable[[], CapturedProgram],
    context: PassContext,
    module: GraphModule | None = None,
) -> RankCompilation:
    """Rewrite what a capture yields for one rank; its program is changed.

    ``module`` is the graph that was captured, if it may be a piece of a broken program.

    Raises:
        AutoSPError: what the capture raises, an unfit head count, nothing to shard ...
    """
    with context.running("capture", "trace the model to a pre-dispatch forward graph", {}) as index:
        captured = captured_program()
        context.sizes = captured.sizes
        context.sizes.check("the capture")
        verify_program(captured.program, "capture")
        snapshot = cache(lambda: snapshot_user_program(captured.program, index))
        context.snapshot(snapshot)
    _report_functionalisation(captured, context, snapshot)
    if context.allow_breaks and module is not None:
        _report_break(module, context)
    program = run_passes(
        captured.program,
        PROGRAM_PASSES,
        context,
        snapshot=lambda p, c: snapshot_user_program(p, c.current_pass),
        verify=lambda p, name: verify_program(p, name),
    )
    context.sizes.check("a pass")
    return _shard(_with_random_keys(captured, program), program, context)


def _report_dynamic_sizes(context: PassContext) -> None:
    for symbol, name in context.sizes.names.items():
        if symbol in context.sizes.env.replacements:  # another one stands for it
            continue
        shortest = context.sizes.shortest.get(symbol, 2)
        context.decide(
            "applied", "dynamic-sizes", "", f"{name} stays dynamic",
            f"this program serves every size from {shortest} up; what is recorded of it is at "
            f"{int(context.sizes.env.backed_var_to_val[symbol])}",
            rule="dynamic_sizes",
        )  # fmt: skip


def _with_random_keys(captured: CapturedProgram, program: GraphModule) -> CapturedProgram:
    """The input that the passes added for random numbers, if they did."""
    keys = random_keys(program.graph)
    if keys is None:
        return captured
    return replace(
        captured,
        inputs=(*captured.inputs, keys.meta["autosp_input"]),
        fake_inputs=(*captured.fake_inputs, keys.meta["val"]),
    )


def _report_break(module: GraphModule, context: PassContext) -> None:
    found = graph_break_after(module)
    if found is not None:
        context.find(
            Finding(
                code="graph-break",
                severity="warning",
                message=f"piece {context.compilation + 1} of the program ends at a graph break: "
                f"{found.reason}",
                source=found.source,
                hint="Each piece is compiled on its own, and memory and time of the whole step "
                "are not estimated: remove the construct or move it out of the forward",
            )
        )


def _report_functionalisation(
    captured: CapturedProgram, context: PassContext, snapshot: Callable[[], GraphSnapshot]
) -> None:
    """The capture makes in-place operators functional; say which."""
    description = "in-place operators become functional ones"
    with context.running("functionalise", description, {}) as index:
        for mutation in captured.mutations:
            context.decide(
                "applied", "functionalise", "", "written as a new tensor", mutation,
                rule="capture.capture",
            )  # fmt: skip
        if not captured.mutations:
            context.decide(
                "analysis", "functionalise", "", "nothing to do", "no operator writes in place",
                rule="capture.capture",
            )  # fmt: skip
        context.snapshot(lambda: replace(snapshot(), pass_index=index))


def _shard(
    captured: CapturedProgram, program: GraphModule, context: PassContext
) -> RankCompilation:
    step = Shard()
    with (
        context.running(step.name, step.description, {"sp": context.mesh.sp}) as index,
        torch._guards.tracing(None),
        captured.fake_mode,
        torch.no_grad(),
    ):
        sharded = step.run_sharding(program, context)
        outputs = plan_outputs(sharded, context)
        verify_program(sharded.program, step.name, num_ranks=context.mesh.sp)
        _report_dynamic_sizes(context)
        view = ProgramView.of(program, sharded.program, sharded.values, context.mesh.sp)
        context.snapshot(lambda: snapshot_rank_program(sharded.program, view, index))
    return RankCompilation(captured, sharded, outputs, view, context)
