"""The check: every value and every cotangent of the user's program against the ranks'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from autosp.attention_choice import AttentionChoice
from autosp.capture import CapturedProgram, capture
from autosp.dynamo import teach_dynamo
from autosp.errors import AutoSPError
from autosp.loggers import quiet_loggers
from autosp.oracle.compare import Difference, coarsest_tolerance, difference, largest
from autosp.oracle.rank_programs import (
    compile_ranks,
    fake_mode_of,
    fill_all_padding,
    with_keyed_randomness,
)
from autosp.oracle.report import OracleReport, Quantity, WrongNode
from autosp.oracle.runs import RankRun, Reference
from autosp.oracle.search import Errors, Search
from autosp.output_hooks import install_output_hooks
from autosp.passes import PROGRAM_PASSES
from autosp.pipeline import Pass
from autosp.placement import Shard
from autosp.sharding.rank_program import ShardedProgram

FILLS = ("last", "first")


def check_program(
    program: GraphModule,
    inputs: Sequence[Any],
    *,
    num_ranks: int,
    captured: CapturedProgram | None = None,
    passes: Sequence[Pass] = PROGRAM_PASSES,
    fills: Sequence[str] = FILLS,
    tolerance: float | None = None,
    attention: AttentionChoice = "auto",
) -> OracleReport:
    """Compile ``program`` for ``num_ranks`` ranks and prove it against itself.

    The passes run too: the reference is the program *before* them, but for random operators,
    which are in their keyed form in both. ``program`` is not changed.

    Args:
        program: the captured pre-dispatch graph; its nodes carry fake values.
        inputs: real tensors, one a placeholder.
        captured: what the capture returned; only its fake mode is used.
        passes: the rewrites that run before sharding.
        fills: padding fills to run.
        tolerance: relative error allowed; by default that of the program's coarsest
            floating type.
        attention: the form that attention takes.

    Raises:
        AutoSPError: the program cannot be sharded.
    """
    tolerance = coarsest_tolerance(program) if tolerance is None else tolerance
    fake_mode = fake_mode_of(program, captured)
    program, inputs = with_keyed_randomness(program, inputs)
    ranks = compile_ranks(program, num_ranks, passes, fake_mode, attention)
    return check_ranks(program, inputs, ranks, fills=fills, tolerance=tolerance)


def check_ranks(
    program: GraphModule,
    inputs: Sequence[Any],
    ranks: Sequence[ShardedProgram],
    *,
    fills: Sequence[str],
    tolerance: float,
) -> OracleReport:
    """Prove the programs of the ranks against ``program``.

    Args:
        program: with random operators in their keyed form.
        inputs: real tensors, one a placeholder.
        ranks: the programs of all ranks; their padding is filled in place.
        fills, tolerance: see :func:`check_program`.
    """
    reference = Reference.of(program, inputs)
    by_fill: dict[str, RankRun] = {}
    counts: Counter[Quantity] = Counter()
    errors = Errors()
    num_fallbacks = 0
    for fill in fills:
        fill_all_padding(ranks, fill)
        run = by_fill[fill] = RankRun.of(ranks, inputs, reference)
        num_fallbacks = sum(ranks[0].fallbacks.values())
        search = Search(reference, run, fill, tolerance, errors)
        wrong = search.values() or search.cotangents()
        counts = search.counts
        if wrong is not None:
            return _report(counts, tuple(by_fill), num_fallbacks, wrong, errors)
        if not _has_padding(ranks[0]):
            break
    wrong = _changes_with_fill(by_fill, tolerance)
    return _report(counts, tuple(by_fill), num_fallbacks, wrong, errors)


def _has_padding(sharded: ShardedProgram) -> bool:
    """Without padding rows all fills give the same program."""
    placements = (value.placement for value in sharded.values.values())
    return any(isinstance(placement, Shard) and placement.is_padded for placement in placements)


def _report(
    counts: Counter[Quantity],
    fills: Sequence[str],
    num_fallbacks: int,
    wrong: WrongNode | None,
    errors: Errors,
) -> OracleReport:
    return OracleReport(
        ok=wrong is None,
        first_wrong=wrong,
        num_values_checked=counts["value"],
        num_cotangents_checked=counts["cotangent"],
        fills=tuple(fills),
        num_fallbacks=num_fallbacks,
        gradient_error=errors.gradient,
        loss_error=errors.loss,
    )


def check_module(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_ranks: int,
    **options: Any,
) -> OracleReport:
    """Capture ``module`` on real inputs and :func:`check_program` it.

    Raises:
        AutoSPError: as the compiler would raise.
    """
    reports: list[OracleReport] = []

    def check(captured: CapturedProgram, inputs: Sequence[Any]) -> None:
        reports.append(
            check_program(
                captured.program, inputs, num_ranks=num_ranks, captured=captured, **options
            )
        )

    with_captured(module, args, kwargs or {}, check)
    return reports[0]


Call = tuple[Sequence[Any], Mapping[str, Any]]
"""Arguments of one call of a model."""


def with_captured(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    use: Callable[[CapturedProgram, Sequence[Any]], None],
) -> None:
    """Capture ``module`` as the compiler does; hand the program and its real inputs to ``use``.

    Raises:
        AutoSPError: the forward is not one graph, or ``use`` raised one.
    """
    with_captured_calls(module, [(args, kwargs)], use)


def with_captured_calls(
    module: torch.nn.Module,
    calls: Sequence[Call],
    use: Callable[[CapturedProgram, Sequence[Any]], None],
) -> None:
    """:func:`with_captured` for several calls; those that share a program are given the same."""

    def backend(graph: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        del example_inputs
        captured = capture(graph)

        def run(*inputs: Any) -> Any:
            use(captured, inputs)
            return graph(*inputs)

        return run

    install_output_hooks(module)
    teach_dynamo()
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=backend, fullgraph=True, dynamic=False)
    try:
        with quiet_loggers():
            for args, kwargs in calls:
                compiled(*args, **kwargs)
    except torch._dynamo.exc.BackendCompilerFailed as failure:
        if isinstance(failure.inner_exception, AutoSPError):
            raise failure.inner_exception from None
        raise
    finally:
        torch._dynamo.reset()


def _changes_with_fill(by_fill: Mapping[str, RankRun], tolerance: float) -> WrongNode | None:
    """Outputs and gradients that depend on what padding rows hold."""
    runs = list(by_fill.values())
    for run in runs[1:]:
        scale = largest(runs[0].results)
        for expected, actual in zip(runs[0].results, run.results, strict=True):
            found = difference(expected, actual, scale=scale)
            if found.exceeds(tolerance):
                return _fill_dependent(found)
    return None


def _fill_dependent(found: Difference) -> WrongNode:
    return WrongNode(
        "output", "output", "output", "", "", None, "", found.max_abs, found.max_rel,
        found.expected, found.actual, "the results depend on how padding rows are filled",
    )  # fmt: skip
