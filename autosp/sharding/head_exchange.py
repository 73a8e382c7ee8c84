"""All-to-alls among ``U`` neighbouring ranks of the SP group: sequence shards <-> head shards.

After it a rank has ``H / U`` heads and the rows of its ``U`` neighbours, in their order in the
sequence: a block of a ring, or with ``U`` the whole group the whole sequence. Contiguous blocks
of neighbours follow each other. In zigzag order their first chunks do, and their last chunks in
reverse; together they are the two chunks of a zigzag over the groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Node

from autosp.graph import CollectiveTag, functional
from autosp.placement import BlockOrder
from autosp.sharding.builder import ProgramBuilder
from autosp.sharding.redistribute import natural_order, zigzag_order

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class HeadExchange:
    """The exchange for one attention. ``num_ulysses`` = 1 exchanges nothing."""

    builder: ProgramBuilder
    num_ulysses: int

    def to_heads(self, node: Node, order: BlockOrder) -> Node:
        """``[B, H, b, D]`` -> ``[B, H/U, U b, D]``."""
        if self.num_ulysses == 1:
            return node
        batch, heads, rows, size = node.meta["val"].shape
        count, emit = self.num_ulysses, self.builder.emit
        with self.builder.role("pack"):
            split = [batch, count, heads // count, rows, size]
            node = emit(aten.reshape.default, node, split)
            node = emit(aten.permute.default, node, [1, 3, 0, 2, 4])
            node = emit(aten.contiguous.default, node)
        node = self._exchanged(node, "sequence", "heads")
        with self.builder.role("unpack"):
            whole = [count * rows, batch, heads // count, size]
            node = emit(aten.reshape.default, node, whole)
            if order == "zigzag":
                node = natural_order(self.builder, node, 0, count)
            return emit(aten.permute.default, node, [1, 2, 0, 3])

    def to_rows(self, node: Node, order: BlockOrder) -> Node:
        """``[B, H/U, U b, D]`` -> ``[B, H, b, D]``."""
        if self.num_ulysses == 1:
            return node
        batch, heads, rows, size = node.meta["val"].shape
        count, emit = self.num_ulysses, self.builder.emit
        with self.builder.role("pack"):
            if order == "zigzag":
                node = zigzag_order(self.builder, node, 2, count)
            split = [batch, heads, count, rows // count, size]
            node = emit(aten.reshape.default, node, split)
            node = emit(aten.permute.default, node, [2, 1, 0, 3, 4])
            node = emit(aten.contiguous.default, node)
        node = self._exchanged(node, "heads", "sequence")
        with self.builder.role("unpack"):
            own = [count * heads, batch, rows // count, size]
            node = emit(aten.reshape.default, node, own)
            return emit(aten.permute.default, node, [1, 0, 2, 3])

    def _exchanged(self, packed: Node, source: str, target: str) -> Node:
        builder = self.builder
        first = builder.rank - builder.rank % self.num_ulysses
        members = range(first, first + self.num_ulysses)
        splits = [1 if rank in members else 0 for rank in range(builder.num_ranks)]
        axis = "ulysses" if self.num_ulysses < builder.num_ranks else "sp"
        tag = CollectiveTag("all_to_all", axis, self.num_ulysses, source, target)
        return builder.collective(
            tag, functional.all_to_all_single.default, packed, splits, splits, builder.group_name
        )
