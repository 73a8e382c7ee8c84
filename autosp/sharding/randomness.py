"""Random operators in their keyed form (:mod:`autosp.runtime.keyed_random`).

A rank draws the numbers of the positions it holds: only the vector of positions of the cut
dim is sliced. A replicated operand gets the same numbers on all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autosp.errors import RandomnessError
from autosp.graph import source_location
from autosp.placement import PARTIAL_SUM, REPLICATE, Partial, Shard
from autosp.runtime import keyed_random
from autosp.sharding.builder import Value
from autosp.sharding.operation import NoRule, Operation, RuleTable
from autosp.sizes import same_size

aten = torch.ops.aten

POSITIONS = {keyed_random.DROPOUT: 3, keyed_random.BERNOULLI: 3, keyed_random.NUMBERS: 2}
"""Which argument holds the positions, one vector a dim."""

OPERAND_FIRST = (keyed_random.DROPOUT, keyed_random.BERNOULLI)

REASON = "random numbers belong to global positions: a rank draws those it holds"


def draws_random_numbers(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator draws from torch's generators; not if it is told to drop nothing."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    given = {
        argument.name: args[index]
        if index < len(args)
        else kwargs.get(argument.name, argument.default_value)
        for index, argument in enumerate(target._schema.arguments)
    }
    if given.get("train", given.get("training")) is False:
        return False
    names = ("dropout_p", "dropout", *(("p",) if "dropout" in target._schema.name else ()))
    rates = [given[name] for name in names if name in given]
    return not rates or any(rates)


def agree(op: Operation) -> Value:
    """The keys of the group's first rank, on all its ranks."""
    keys: Value = op.args[0]
    if op.num_ranks == 1:
        return op.result(op.same(), REPLICATE)
    counts = 1 if op.builder.rank == 0 else 0
    mine = Value(op.emit(aten.mul.Scalar, keys, counts), PARTIAL_SUM, keys.shape)
    reason = "all ranks of the group draw from the keys of its first rank"
    op.decide("applied", "randomness", "keys of the first rank", reason, rule="randomness.agree")
    return op.redistribute(mine, REPLICATE, reason)


def elementwise(op: Operation) -> Value:
    """Dropout and Bernoulli draws: the numbers follow the operand."""
    operand: Value = op.args[0]
    if isinstance(operand.placement, Partial):
        operand = op.replicate(operand, "a dropped element drops the sum")
    index = POSITIONS[op.target]
    positions, size = op.args[index], op.args[index + 1]
    if isinstance(operand.placement, Shard):
        positions = held_positions(op, positions, size, operand.shape, operand.placement)
    args = [operand, *op.args[1:]]
    args[index] = positions
    return op.result(op.emit(op.target, *args), operand.placement)


def numbers(op: Operation) -> Value:
    """Numbers of the positions that this rank holds."""
    for dim, positions in enumerate(op.args[POSITIONS[op.target]]):
        if isinstance(positions.placement, Shard):
            return op.result(op.same(), positions.placement.on_dim(dim))
    return op.result(op.same(), REPLICATE)


def held_positions(
    op: Operation, positions: list[Value], size: list[int], shape: tuple[int, ...], cut: Shard
) -> list[Value]:
    """The positions with those of the cut dim sliced.

    Args:
        positions, size: of the random numbers, which may be broadcast to ``shape``.
        cut: how a tensor of ``shape`` lies.
    """
    if not same_size(size[cut.dim], shape[cut.dim]):  # all rows share their numbers
        return positions
    held = list(positions)
    held[cut.dim] = op.redistribute(positions[cut.dim], cut.on_dim(0), REASON)
    return held


def attention_dropout(op: Operation, heads: Shard) -> dict[str, Any]:
    """What keyed attention on head shards takes beside the arguments of plain attention."""
    if op.target is not keyed_random.ATTENTION:
        return {}
    size = op.kwargs["size"]
    if len(size) != 4:
        raise NoRule("attention dropout that is not [batch, heads, queries, keys]")
    positions = held_positions(op, op.kwargs["positions"], size, tuple(size), heads)
    return {
        "keys": op.kwargs["keys"],
        "draw": op.kwargs["draw"],
        "positions": positions,
        "size": size,
    }


def drops_nothing(op: Operation) -> Value:
    """Dropout that is switched off; what draws has been refused or has become keyed."""
    source: Value = op.args[0]
    if isinstance(source.placement, Partial):
        source = op.replicate(source, f"{op.target} of a partial input")
    return op.result(op.emit(op.target, source, *op.args[1:]), source.placement)


def refuse_randomness(operation: Operation) -> None:
    """Raise RandomnessError if the numbers that an operator draws would differ between ranks."""
    if not draws_random_numbers(operation.target, operation.args, operation.kwargs):
        return
    where = source_location(operation.node)
    raise RandomnessError(
        f"{operation.target} draws random numbers, which would not agree between the ranks",
        where=f"{where.file}:{where.line}" if where else "",
        hint="It has no form whose numbers depend on positions alone: leave it out of the forward, "
        "or call model.eval()",
    )


INACTIVE = (
    aten.feature_dropout.default,
    aten.alpha_dropout.default,
    aten.feature_alpha_dropout.default,
)

RULES: RuleTable = dict.fromkeys(INACTIVE, drops_nothing) | {
    keyed_random.AGREE: agree,
    keyed_random.DROPOUT: elementwise,
    keyed_random.BERNOULLI: elementwise,
    keyed_random.NUMBERS: numbers,
}
