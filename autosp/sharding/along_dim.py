"""Operators that work along some dims and leave the others alone: norms and softmax."""

from __future__ import annotations

from typing import Any

import torch

from autosp.sharding.builder import Value
from autosp.sharding.formula import Formula, RuleOrFormula
from autosp.sharding.operation import NoRule, Operation, normalise_dim
from autosp.sharding.reductions import named_argument
from autosp.sharding.rows import cut_of

aten = torch.ops.aten


def normalisation(op: Operation) -> Value | Formula:
    """layer_norm and rms_norm over the last dims."""
    source: Value = op.args[0]
    cut = cut_of(source)
    dims = list(range(len(source.shape) - len(op.args[1]), len(source.shape)))
    if cut.dim not in dims:
        return op.result(op.same(), cut)
    weight = op.argument(2, "weight")
    if op.target is aten.rms_norm.default:
        limit = torch.finfo(source.dtype).eps
        eps = op.argument(3, "eps")
        return Formula(_rms_norm, (source, dims, weight, limit if eps is None else eps))
    bias, eps = op.argument(3, "bias"), op.argument(4, "eps", 1e-5)
    return Formula(_layer_norm, (source, dims, weight, bias, eps))


def _layer_norm(x: Any, dims: list[int], weight: Any, bias: Any, eps: float) -> Any:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    variance, mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
    result = (wide - mean) * (variance + eps).rsqrt()
    result = result if weight is None else result * weight
    return (result if bias is None else result + bias).to(x.dtype)


def _rms_norm(x: Any, dims: list[int], weight: Any, eps: float) -> Any:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    result = wide * (wide.square().mean(dims, keepdim=True) + eps).rsqrt()
    return (result if weight is None else result * weight).to(x.dtype)


def group_norm(op: Operation) -> Formula:
    """Over the channels of a group and everything after them, the sequence perhaps."""
    source, groups = op.args[:2]
    weight, bias, eps = (
        named_argument(op, name, default)
        for name, default in (("weight", None), ("bias", None), ("eps", 1e-5))
    )

    def function(x: Any, weight: Any, bias: Any) -> Any:
        batch, channels, *rest = x.shape
        split = x.reshape(batch, groups, channels // groups, *rest)
        result = _layer_norm(split, list(range(2, split.dim())), None, None, eps)
        result = result.reshape(x.shape)
        per_channel = [1, channels, *[1] * len(rest)]
        result = result if weight is None else result * weight.reshape(per_channel)
        return result if bias is None else result + bias.reshape(per_channel)

    return Formula(function, (source, weight, bias))


def batch_norm(op: Operation) -> Formula:
    """Over all but the channels: by given statistics, or by those of the batch."""
    source, weight, bias, mean, variance, training, _, eps = op.args[:8]
    if training and mean is not None:
        raise NoRule("batch normalisation that updates running statistics")

    def function(x: Any, weight: Any, bias: Any, mean: Any, variance: Any) -> Any:
        dims = [dim for dim in range(x.dim()) if dim != 1]
        per_channel = [1, -1, *[1] * (x.dim() - 2)]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if training:
            variance, mean = torch.var_mean(wide, dims, correction=0)
        scale = (variance + eps).rsqrt()
        result = (wide - mean.reshape(per_channel)) * scale.reshape(per_channel)
        result = result if weight is None else result * weight.reshape(per_channel)
        return (result if bias is None else result + bias.reshape(per_channel)).to(x.dtype)

    return Formula(function, (source, weight, bias, mean, variance))


def softmax(op: Operation) -> Value | Formula:
    """Along a cut dim: the global maximum and the global sum, both small."""
    source: Value = op.args[0]
    cut, dim = cut_of(source), normalise_dim(op.argument(1, "dim"), len(op.shape))
    if dim != cut.dim:
        return op.result(op.same(), cut)
    result_type, is_log = op.output.dtype, "log" in op.target._schema.name

    def function(x: Any) -> Any:
        wide = x.to(torch.promote_types(result_type, torch.float32))
        top = wide.detach().amax(dim, keepdim=True)
        shifted = wide - torch.where(top.isfinite(), top, 0.0)
        powers = shifted.exp()
        summed = powers.sum(dim, keepdim=True)
        return (shifted - summed.log() if is_log else powers / summed).to(result_type)

    return Formula(function, (source,))


RULES: dict[Any, RuleOrFormula] = {
    aten.layer_norm.default: normalisation,
    aten.rms_norm.default: normalisation,
    aten.group_norm.default: group_norm,
    aten.batch_norm.default: batch_norm,
    aten.softmax.int: softmax,
    aten._softmax.default: softmax,
    aten.log_softmax.int: softmax,
    aten._log_softmax.default: softmax,
}
