"""Lookups whose rows follow their indices."""

from __future__ import annotations

import torch

from autosp.placement import REPLICATE, Shard
from autosp.sharding.builder import Value
from autosp.sharding.operation import NoRule, Operation, RuleTable

aten = torch.ops.aten


def embedding(op: Operation) -> Value:
    """``table[indices]``: the result is cut like the indices; the table stays whole.

    This is where sharding usually begins: the walk hands sharded indices to the lookups
    that it found behind the attention sites.
    """
    table, indices = op.args[:2]
    if table.placement != REPLICATE or not isinstance(indices.placement, Shard):
        raise NoRule("lookup in a sharded table, or of indices that are not sharded")
    if op.argument(3, "scale_grad_by_freq", False):
        raise NoRule("scale_grad_by_freq counts how often an index occurs in the whole sequence")
    return op.result(op.same(), indices.placement)


RULES: RuleTable = {aten.embedding.default: embedding}
