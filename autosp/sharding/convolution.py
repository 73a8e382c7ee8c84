"""Convolutions along the sequence: each rank fetches the rows that its outputs look at."""

from __future__ import annotations

from typing import Any

import torch

from autosp.placement import REPLICATE
from autosp.sharding.builder import Value
from autosp.sharding.formula import Formula, RuleOrFormula
from autosp.sharding.halo import Fill, Window
from autosp.sharding.operation import NoRule, Operation
from autosp.sharding.rows import cut_of
from autosp.sharding.shifts import block_for, blocks_of, check_plain, fetched
from autosp.sizes import divided_up

aten = torch.ops.aten


def convolution(op: Operation) -> Value:
    """``conv1d`` and ``conv2d`` of ``[batch, channels, ...]`` with zero padding."""
    source, weight = op.args[:2]
    cut, num_spatial = cut_of(source), len(weight.shape) - 2
    bias = op.argument(2, "bias")
    if any(v is not None and v.placement != REPLICATE for v in (weight, bias)):
        raise NoRule("convolution with a sharded weight")
    if len(source.shape) != num_spatial + 2 or cut.dim == 1:
        raise NoRule("convolution over sharded channels, or without a batch dim")
    if cut.dim == 0:
        return op.result(op.same(), cut)
    strides, paddings, dilations = (
        _per_dim(op.argument(index, name, [default]), num_spatial)
        for index, name, default in ((3, "stride", 1), (4, "padding", 0), (5, "dilation", 1))
    )
    check_plain(source)
    place = cut.dim - 2
    stride, padding = strides[place], paddings[place]
    reach = dilations[place] * (weight.shape[cut.dim] - 1)
    size, num_ranks = op.shape[cut.dim], op.num_ranks
    block = block_for(cut, size, num_ranks) if stride == 1 else divided_up(size, num_ranks)
    window = Window(-padding, block * stride, (block - 1) * stride + reach + 1)
    fill = Fill(0, source.shape[cut.dim] + padding)
    with op.builder.role("pack", f"each output looks at {reach + 1} rows"):
        rows = fetched(op, source, window, fill)
    paddings[place] = 0
    groups = op.argument(6, "groups", 1)
    node = op.emit(op.target, rows, weight, bias, strides, paddings, dilations, groups)
    op.decide(
        "applied",
        "convolution",
        f"{reach} rows of the neighbours, then local",
        "a convolution along the sharded dim looks at the rows around",
        rule="convolution",
    )
    return op.result(node, blocks_of(cut, size, block, num_ranks))


def named_padding(op: Operation) -> Formula:
    """``padding="same"`` and ``"valid"`` in numbers, as ``conv1d`` has them."""
    kernel, dilation = op.args[1].shape[2], _per_dim(op.argument(5, "dilation", [1]), 1)[0]
    total = dilation * (kernel - 1) if op.argument(4, "padding", "valid") == "same" else 0
    stride, groups = op.argument(3, "stride", 1), op.argument(6, "groups", 1)

    def function(x: Any, weight: Any, bias: Any) -> Any:
        front, back = total // 2, total - total // 2
        if front != back:
            x = torch.nn.functional.pad(x, (0, back - front))
        return torch.nn.functional.conv1d(x, weight, bias, stride, front, dilation, groups)

    return Formula(function, (op.args[0], op.args[1], op.argument(2, "bias")))


def _per_dim(given: Any, num_spatial: int) -> list[int]:
    values = [given] if isinstance(given, int) else list(given)
    return values * num_spatial if len(values) == 1 else values


RULES: dict[Any, RuleOrFormula] = {
    aten.conv1d.default: convolution,
    aten.conv2d.default: convolution,
    aten.conv1d.padding: named_padding,
}
