"""Matrix products: the cut follows its letter in ``m k, k n -> m n``.

A cut of a dim that the result has stays there and the other operand is whole along it; a
cut of the dim that is summed over gives a partial result, without padding rows. Weights
are whole, so that products of activations and weights are local.
"""

from __future__ import annotations

from typing import Any

import torch

from autosp.placement import PARTIAL_SUM, REPLICATE, Shard
from autosp.sharding.builder import Value
from autosp.sharding.formula import Formula, RuleOrFormula
from autosp.sharding.operation import NoRule, Operation
from autosp.sharding.rows import rows_to_sum

aten = torch.ops.aten

Letters = tuple[str | None, ...]
"""A name per dim; None for a dim of one row that is broadcast."""


def linear(op: Operation) -> Value | Formula:
    """``x[..., k] @ w[n, k].T + b``: any cut of ``x`` but one of ``k``."""
    source: Value = op.args[0]
    _, *weights = op.values()
    cut = source.placement
    whole_weights = all(w.placement == REPLICATE for w in weights)
    if isinstance(cut, Shard) and whole_weights and cut.dim != len(source.shape) - 1:
        return op.result(op.same(), cut)

    def function(x: Any, weight: Any, bias: Any) -> Any:
        product = x @ weight.t()
        return product if bias is None else product + bias

    return Formula(function, (source, op.args[1], op.argument(2, "bias")))


def addmm(op: Operation) -> Value | Formula:
    bias, rows, weight = op.args[:3]
    cut = rows.placement
    plain = bias.placement == REPLICATE and weight.placement == REPLICATE and len(bias.shape) == 1
    if isinstance(cut, Shard) and cut.dim == 0 and plain:
        return op.result(op.same(), cut)
    return _sum_with_product(op)


def _sum_with_product(op: Operation) -> Formula:
    """``beta * bias + alpha * left @ right``"""
    beta, alpha = op.kwargs.get("beta", 1), op.kwargs.get("alpha", 1)

    def function(bias: Any, left: Any, right: Any) -> Any:
        product = left @ right
        product = product if alpha == 1 else product * alpha
        return product + (bias if beta == 1 else bias * beta)

    return Formula(function, op.args[:3])


def baddbmm(op: Operation) -> Formula:
    return _sum_with_product(op)


def matmul(op: Operation) -> Value:
    """Products of two tensors: matmul, mm, bmm, mv and dot."""
    operands = list(op.args[:2])
    letters = _letters(*(value.shape for value in operands))
    result = _result_letters(*letters)
    letter, cut = _chosen(operands, letters, result)
    aligned: list[Any] = []
    for value, own in zip(operands, letters, strict=True):
        if letter not in own:
            aligned.append(op.replicate(value, "the other operand is cut along another dim"))
            continue
        moved = op.redistribute(
            value, cut.on_dim(own.index(letter)), "cut like the other operand of the product"
        )
        aligned.append(moved)
    if letter in result:
        return op.result(op.emit(op.target, *aligned), cut.on_dim(result.index(letter)))
    rows = [
        rows_to_sum(op, value, value.placement) if isinstance(value.placement, Shard) else value
        for value in aligned
    ]
    op.decide(
        "applied",
        "reduction",
        "local product, summed over the ranks where it is used",
        "the product sums over the sharded dim",
        rule="linear_algebra.matmul",
    )
    return op.result(op.emit(op.target, *rows), PARTIAL_SUM)


def _letters(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[Letters, Letters]:
    batch = max(len(left), len(right)) - 2

    def of(shape: tuple[int, ...], last: list[str]) -> Letters:
        own = len(shape) - len(last)
        names = [f"batch{batch - own + dim}" for dim in range(own)]
        return (*(n if shape[i] > 1 else None for i, n in enumerate(names)), *last)

    return (
        of(left, ["m", "k"] if len(left) > 1 else ["k"]),
        of(right, ["k", "n"] if len(right) > 1 else ["k"]),
    )


def _result_letters(left: Letters, right: Letters) -> Letters:
    batches = [letters[: max(len(letters) - 2, 0)] for letters in (left, right)]
    longest = max(batches, key=len)
    start = [len(longest) - len(batch) for batch in batches]
    merged = [
        next((b[i - s] for b, s in zip(batches, start, strict=True) if i >= s and b[i - s]), None)
        for i in range(len(longest))
    ]
    return (*merged, *(["m"] if "m" in left else []), *(["n"] if "n" in right else []))


def _chosen(
    operands: list[Value], letters: tuple[Letters, Letters], result: Letters
) -> tuple[str, Shard]:
    """The letter that stays cut: one of the result if there is one."""
    found: list[tuple[str, Shard]] = []
    for value, own in zip(operands, letters, strict=True):
        cut = value.placement
        if isinstance(cut, Shard):
            letter = own[cut.dim]
            if letter is not None:
                found.append((letter, cut))
    if not found:
        raise NoRule("a product of partial tensors, or along a dim of one row")
    return next((item for item in found if item[0] in result), found[0])


PRODUCTS = (
    aten.mm.default,
    aten.bmm.default,
    aten.matmul.default,
    aten.mv.default,
    aten.dot.default,
)

RULES: dict[Any, RuleOrFormula] = {
    **dict.fromkeys(PRODUCTS, matmul),
    aten.linear.default: linear,
    aten.addmm.default: addmm,
    aten.baddbmm.default: baddbmm,
}
