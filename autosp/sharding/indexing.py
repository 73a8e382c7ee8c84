"""Lookups whose rows follow their indices."""

from __future__ import annotations

import torch

from autosp.placement import REPLICATE
from autosp.sharding.builder import Value
from autosp.sharding.operation import NoRule, Operation, RuleTable

aten = torch.ops.aten


def embedding(op: Operation) -> Value:
    """``table[indices]``: the result is cut like the indices; the table stays whole.

    This is where sharding usually begins: the walk hands sharded indices to the lookups
    that it found behind the attention sites.
    """
    table, indices = op.args[:2]
    if table.placement != REPLICATE:
        raise NoRule("lookup in a sharded table")
    return op.result(op.same(), indices.placement)


RULES: RuleTable = {aten.embedding.default: embedding}
