"""The verdict on one architecture: is it right, and is it sharded."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import nn
from torch._guards import TracingContext, tracing
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.node import map_aggregate

from autosp.capture import CapturedProgram
from autosp.compilation import compiled_step, derive_graphs, unprinted_graphs
from autosp.dry_run import quiet_loggers, rarely_collected
from autosp.errors import AutoSPError
from autosp.estimate import estimate_step
from autosp.graph import collective_kind, local_tag, module_path, output_node, tensor_of
from autosp.loss_of import LossOfOutput
from autosp.lowering import lower_captured
from autosp.mesh import Mesh
from autosp.oracle import OracleReport, check_program
from autosp.oracle.check import with_captured
from autosp.oracle.compare import difference, largest
from autosp.oracle.lockstep import run_whole
from autosp.pipeline import PassContext
from autosp.torch_refusals import data_dependent, graph_break
from tests.support.architectures import ARCHITECTURES, Architecture, Verdict

BATCH = 2
LENGTH = 45
"""Neither 2 nor 4 divides it."""
RANKS = (2, 4)
FILLS = {2: "last", 4: "first"}
"""Number of ranks -> how padding rows are filled."""
EXACT = 1e-12
"""Of a gradient, relative to its own largest magnitude (see the oracle's report)."""
LOSS_ERROR = 1e-6
NOISE_FACTOR = 3
ENOUGH = 0.95
_IN_A_LAYER = re.compile(r"\.\d+(\.|$)")


@dataclass(frozen=True)
class Outcome:
    """What was found for one architecture."""

    verdict: Verdict
    detail: str = ""
    """Why it was refused, or what is wrong."""
    sharded_flops: float | None = None
    sharded_saved_bytes: float | None = None
    fallbacks: dict[str, int] = field(default_factory=dict)
    """Operator -> how often it ran on gathered inputs."""
    gathers_in_layers: dict[str, int] = field(default_factory=dict)
    """Module -> all-gathers that belong to it, for modules inside a repeated layer."""
    gradient_error: float = 0.0
    noise: float | None = None
    """The model's own error under another order of the batch; None where it is exact."""


class OwnLoss(nn.Module):
    """The forward of a training step: only the loss leaves it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return LossOfOutput()(self.model(**inputs))


@cache
def outcome_of(name: str, ranks: tuple[int, ...] = RANKS) -> Outcome:
    """The outcome for the architecture of that name, found once."""
    return judge(next(row for row in ARCHITECTURES if row.name == name), ranks)


def judge(architecture: Architecture, ranks: Sequence[int] = RANKS) -> Outcome:
    """Capture the architecture as the compiler does, prove it, and measure its shards."""
    module = OwnLoss(architecture.build())
    outcomes: list[Outcome] = []

    def check(captured: CapturedProgram, inputs: Sequence[Any]) -> None:
        outcomes.append(_judge_captured(captured, inputs, ranks))

    try:
        with quiet_loggers(), rarely_collected(), unprinted_graphs():
            with_captured(module, (), architecture.inputs(BATCH, LENGTH), check)
    except torch._dynamo.exc.Unsupported as why:
        return Outcome("refused", str(graph_break(why)))
    except (torch._dynamo.exc.UserError, GuardOnDataDependentSymNode) as why:
        return Outcome("refused", str(data_dependent(why)))
    except AutoSPError as why:
        return Outcome("refused", str(why))
    return outcomes[0]


def _judge_captured(
    captured: CapturedProgram, inputs: Sequence[Any], ranks: Sequence[int]
) -> Outcome:
    reports, error = _prove(captured, inputs, ranks)
    noise = None
    if error > EXACT and _computes_in_float32(captured):
        noise = reordered_batch_noise(captured, inputs)
        if error > NOISE_FACTOR * noise:
            reports, error = _prove_wide(captured, inputs, ranks)
    wrong = _what_is_wrong(reports, error, noise)
    if wrong:
        return Outcome("wrong", wrong, gradient_error=error, noise=noise)
    return _measure(captured, error, noise)


def _prove(
    captured: CapturedProgram, inputs: Sequence[Any], ranks: Sequence[int]
) -> tuple[list[OracleReport], float]:
    reports = [
        check_program(
            captured.program,
            inputs,
            num_ranks=num_ranks,
            captured=captured,
            fills=(FILLS[num_ranks],),
        )
        for num_ranks in ranks
    ]
    return reports, max(report.gradient_error for report in reports)


def _prove_wide(
    captured: CapturedProgram, inputs: Sequence[Any], ranks: Sequence[int]
) -> tuple[list[OracleReport], float]:
    """The proof for the same program with float64 where it asks for float32.

    A sum over the sequence in float32 rounds differently when it is a sum of sums, and no
    order of the batch shows that. In float64 the difference has to vanish.
    """
    graph = copy.deepcopy(captured.program.graph)
    with torch._guards.tracing(None), captured.fake_mode, torch.no_grad():
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            node.args, node.kwargs = map_aggregate((node.args, node.kwargs), _widened)
            args, kwargs = map_aggregate(
                (node.args, node.kwargs), lambda a: a.meta.get("val") if isinstance(a, Node) else a
            )
            node.meta["val"] = node.target(*args, **kwargs)
    return _prove(replace(captured, program=GraphModule(captured.program, graph)), inputs, ranks)


def _widened(argument: Any) -> Any:
    return torch.float64 if argument is torch.float32 else argument


def _what_is_wrong(reports: Sequence[OracleReport], error: float, noise: float | None) -> str:
    for report in reports:
        if not report.ok:
            return str(report.first_wrong)
        if report.loss_error > LOSS_ERROR:
            return f"the loss is off by {report.loss_error:.1e}"
    allowed = EXACT if noise is None else max(EXACT, NOISE_FACTOR * noise)
    return f"a gradient is off by {error:.1e}, allowed {allowed:.1e}" if error > allowed else ""


def _computes_in_float32(captured: CapturedProgram) -> bool:
    tensors = (tensor_of(node) for node in captured.program.graph.nodes)
    return any(tensor is not None and tensor.dtype == torch.float32 for tensor in tensors)


def reordered_batch_noise(captured: CapturedProgram, inputs: Sequence[Any]) -> float:
    """How far the gradients of the user's program move when the rows of the batch trade places.

    In exact arithmetic they do not move at all.
    """
    reference, moved = (
        _gradients(captured, given) for given in (inputs, _reordered(captured, inputs))
    )
    scale = largest(reference)
    pairs = zip(reference, moved, strict=True)
    return max(difference(left, right, scale=scale).max_rel for left, right in pairs)


def _reordered(captured: CapturedProgram, inputs: Sequence[Any]) -> list[Any]:
    return [
        value.flip(0)
        if given.kind == "input" and isinstance(value, torch.Tensor) and value.dim() > 0
        else value
        for given, value in zip(captured.inputs, inputs, strict=True)
    ]


def _gradients(captured: CapturedProgram, inputs: Sequence[Any]) -> list[torch.Tensor]:
    values = run_whole(captured.program, inputs)
    names = [node.name for node in captured.program.graph.find_nodes(op="placeholder")]
    leaves = [values[n] for n in names if getattr(values[n], "requires_grad", False)]
    returned = torch.utils._pytree.tree_leaves(values[output_node(captured.program.graph).name])
    (loss,) = (leaf for leaf in returned if leaf.dim() == 0)  # others are states of modules
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [gradient for gradient in found if gradient is not None]


def _measure(captured: CapturedProgram, error: float, noise: float | None) -> Outcome:
    """How much of a step is sharded; the captured program is changed."""
    mesh = Mesh(sp=RANKS[0])
    with torch.enable_grad():
        compilation = lower_captured(lambda: captured, PassContext(mesh))
        with tracing(TracingContext(captured.fake_mode)), captured.fake_mode:
            derive_graphs(compilation, captured.fake_inputs, partitioner="min-cut")
    summary = estimate_step(
        compiled_step(compilation),
        device=None,
        mesh=mesh,
        is_sharded=compilation.view.is_sharded,
    ).summary
    gathers = Counter(
        module_path(node)
        for node in compilation.sharded.program.graph.nodes
        if collective_kind(node) == "all_gather"
        and local_tag(node) is not None
        and _IN_A_LAYER.search(module_path(node))
    )
    flops, saved = summary.sharded_flops_fraction, summary.sharded_saved_bytes_fraction
    sharded = min(flops or 0.0, saved or 0.0) >= ENOUGH and not gathers
    return Outcome(
        "pass" if sharded else "correct but replicated",
        sharded_flops=flops,
        sharded_saved_bytes=saved,
        fallbacks=dict(compilation.sharded.fallbacks),
        gathers_in_layers=dict(gathers),
        gradient_error=error,
        noise=noise,
    )
