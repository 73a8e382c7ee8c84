"""One program for many lengths, proved by the oracle at each of them.

The program of a rank is made once, with sizes that are expressions of the length. At a given
length the expressions are numbers: what is left is a program that the oracle can run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate

from autosp.attention_choice import AttentionChoice
from autosp.capture import CapturedProgram
from autosp.custom_gradients import is_custom_gradient
from autosp.graph import TAG_KEY, local_tag
from autosp.oracle.check import (
    FILLS,
    Call,
    check_ranks,
    with_captured_calls,
)
from autosp.oracle.compare import coarsest_tolerance
from autosp.oracle.rank_programs import compile_ranks, with_keyed_randomness
from autosp.oracle.report import OracleReport
from autosp.passes import PROGRAM_PASSES
from autosp.placement import Placement, Shard
from autosp.sharding.padding_rows import NUM_VALID_ROWS_KEY
from autosp.sharding.rank_program import LocalValue, ShardedProgram
from autosp.sizes import at_lengths

Lengths = Mapping[Any, int]


@dataclass(frozen=True, slots=True)
class LengthsReport:
    """What the oracle found for each call of a model."""

    reports: tuple[OracleReport, ...]
    num_programs: int
    """How often the model was compiled."""

    @property
    def ok(self) -> bool:
        return all(report.ok for report in self.reports)


def check_lengths(
    module: torch.nn.Module,
    calls: Sequence[Call],
    *,
    num_ranks: int,
    fills: Sequence[str] = FILLS,
    attention: AttentionChoice = "auto",
) -> LengthsReport:
    """Call ``module`` with inputs of several lengths; prove each program at the lengths it serves.

    Args:
        calls: inputs, whose sizes are marked with ``torch._dynamo.mark_dynamic``.
        fills: padding fills to run.
        attention: the form that attention takes.

    Raises:
        AutoSPError: as the compiler would raise.
    """
    programs: dict[int, _Program] = {}
    reports: list[OracleReport] = []

    def check(captured: CapturedProgram, inputs: Sequence[Any]) -> None:
        program = programs.setdefault(id(captured), _Program(captured, num_ranks, attention))
        reports.append(program.check(inputs, fills))

    with_captured_calls(module, calls, check)
    return LengthsReport(tuple(reports), len(programs))


class _Program:
    """One capture, with the programs of all ranks."""

    def __init__(
        self, captured: CapturedProgram, num_ranks: int, attention: AttentionChoice
    ) -> None:
        self._captured, self._num_ranks, self._attention = captured, num_ranks, attention
        self._ranks: list[ShardedProgram] = []

    def check(self, inputs: Sequence[Any], fills: Sequence[str]) -> OracleReport:
        lengths = self._captured.lengths_in(inputs)
        keyed, inputs = with_keyed_randomness(self._captured.program, inputs)

        if not self._ranks:
            self._ranks = compile_ranks(
                keyed,
                self._num_ranks,
                PROGRAM_PASSES,
                self._captured.fake_mode,
                self._attention,
                self._captured.sizes,
            )
        ranks = [ranks_at(rank, lengths) for rank in self._ranks]
        tolerance = coarsest_tolerance(keyed)
        program = program_at(keyed, lengths)
        return check_ranks(program, inputs, ranks, fills=fills, tolerance=tolerance)


def ranks_at(sharded: ShardedProgram, lengths: Lengths) -> ShardedProgram:
    """The program of a rank at given lengths, with its placements."""
    return replace(
        sharded,
        program=program_at(sharded.program, lengths),
        values={name: _value_at(value, lengths) for name, value in sharded.values.items()},
        more_values={
            name: tuple(_value_at(value, lengths) for value in values)
            for name, values in sharded.more_values.items()
        },
        output_placements=tuple(
            placement and _placement_at(placement, lengths)
            for placement in sharded.output_placements
        ),
        output_shapes=tuple(shape and _shape_at(shape, lengths) for shape in sharded.output_shapes),
    )


def program_at(program: GraphModule, lengths: Lengths) -> GraphModule:
    """A copy of a program with numbers for its sizes; nodes that computed them are gone."""
    graph, copies = Graph(), dict[Node, Node]()

    def number(argument: Any) -> Any:
        size = argument.meta.get("val") if isinstance(argument, Node) else argument
        if isinstance(size, torch.SymInt):
            return at_lengths(size, lengths)
        return copies[argument] if isinstance(argument, Node) else argument

    for node in program.graph.nodes:
        if node.op == "call_function" and isinstance(node.meta.get("val"), torch.SymInt):
            continue
        args, kwargs = map_aggregate((node.args, node.kwargs), number)
        target = node.target
        if is_custom_gradient(target):
            target = replace(target, backward=program_at(target.backward, lengths))
        copies[node] = graph.create_node(node.op, target, args, kwargs, name=node.name)
        copies[node].meta = _meta_at(node, lengths)
    return GraphModule(program, graph)


def _meta_at(node: Node, lengths: Lengths) -> dict[str, Any]:
    tag, meta = local_tag(node), dict(node.meta)
    if NUM_VALID_ROWS_KEY in meta:
        meta[NUM_VALID_ROWS_KEY] = at_lengths(meta[NUM_VALID_ROWS_KEY], lengths)
    if tag is not None and tag.global_shape is not None:
        placement = tag.placement and _placement_at(tag.placement, lengths)
        shape = _shape_at(tag.global_shape, lengths)
        meta[TAG_KEY] = replace(tag, placement=placement, global_shape=shape)
    return meta


def _value_at(value: LocalValue, lengths: Lengths) -> LocalValue:
    return replace(
        value,
        placement=_placement_at(value.placement, lengths),
        shape=_shape_at(value.shape, lengths),
    )


def _placement_at(placement: Placement, lengths: Lengths) -> Placement:
    return placement.at_lengths(lengths) if isinstance(placement, Shard) else placement


def _shape_at(shape: Sequence[Any], lengths: Lengths) -> tuple[int, ...]:
    return tuple(at_lengths(size, lengths) for size in shape)
