"""Pooling over windows of the last dim: along the cut dim windows of rows, fetched where needed."""

from __future__ import annotations

from typing import Any

import torch

from autosp.sharding.builder import Value
from autosp.sharding.formula import Formula, RuleOrFormula
from autosp.sharding.operation import NoRule, Operation
from autosp.sharding.rows import cut_of

aten = torch.ops.aten


def average(op: Operation) -> Value | Formula:
    """``avg_pool1d``, windows of whole length, padding counted."""
    source: Value = op.args[0]
    cut = cut_of(source)
    if cut.dim != len(source.shape) - 1:
        return op.result(op.same(), cut)
    padding = _single(op.argument(3, "padding", 0))
    if op.argument(4, "ceil_mode", False) or (
        padding and not op.argument(5, "count_include_pad", True)
    ):
        raise NoRule("windows of different lengths along the sharded dim")
    length, step = _window(op)

    def function(x: Any) -> Any:
        x = torch.nn.functional.pad(x, [padding, padding]) if padding else x
        return x.unfold(-1, length, step).mean(-1)

    return Formula(function, (source,))


def largest(op: Operation) -> Value | Formula:
    """``max_pool1d``."""
    source: Value = op.args[0]
    cut = cut_of(source)
    if cut.dim != len(source.shape) - 1:
        return op.result(op.same(), cut)
    padding = _single(op.argument(3, "padding", 0))
    if op.argument(5, "ceil_mode", False) or _single(op.argument(4, "dilation", 1)) != 1:
        raise NoRule("dilated windows, or windows of different lengths, along the sharded dim")
    length, step = _window(op)

    def function(x: Any) -> Any:
        x = torch.nn.functional.pad(x, [padding, padding], value=float("-inf")) if padding else x
        return x.unfold(-1, length, step).max(-1).values

    return Formula(function, (source,))


def _window(op: Operation) -> tuple[int, int]:
    length = _single(op.argument(1, "kernel_size"))
    stride = op.argument(2, "stride", [])
    return length, _single(stride) if stride else length


def _single(number: Any) -> int:
    return int(number[0] if isinstance(number, (list, tuple)) else number)


RULES: dict[Any, RuleOrFormula] = {
    aten.avg_pool1d.default: average,
    aten.max_pool1d.default: largest,
}
