"""In-place edits made functional: assignment to a part of a tensor, and writes to inputs."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch.fx import Node

from autosp.placement import REPLICATE, Shard, padding_of
from autosp.sharding.builder import Value
from autosp.sharding.operation import NoRule, Operation, RuleTable, normalise_dim
from autosp.sizes import examples, is_symbolic, same_size

aten = torch.ops.aten


def scatter_slice(op: Operation) -> Value:
    """``x[..., i:j:k] = y`` and ``x[..., i] = y`` made functional."""
    target, part = op.args[:2]
    dim = normalise_dim(op.argument(2, "dim", 0), len(target.shape))
    is_select = op.target is aten.select_scatter.default
    cut = _cut_of_result(op, target, part, dim, is_select)
    if cut.dim == dim:
        return _along_the_cut(op, target, part, cut, is_select)
    reason = "assigned to a part of a sharded tensor"
    part = op.redistribute(part, cut.on_dim(cut.dim - (is_select and dim < cut.dim)), reason)
    target = op.redistribute(target, cut, reason)
    return op.result(op.emit(op.target, target, part, *op.args[2:], **op.kwargs), cut)


def _cut_of_result(op: Operation, target: Value, part: Value, dim: int, is_select: bool) -> Shard:
    """The target's cut, or the part's where the target is whole.

    Raises:
        NoRule: the part alone is sharded, and on the very dim of which it is a part.
    """
    if isinstance(target.placement, Shard):
        return target.placement
    _, own = op.sharded()
    if part.placement != own:
        raise NoRule("assignment of a sharded tensor to part of a partial one")
    cut = own.on_dim(own.dim + (is_select and dim <= own.dim))
    if cut.dim != dim:
        return cut
    if not (same_size(own.outer, 1) and same_size(own.atom, part.shape[own.dim])):
        raise NoRule("assignment of a strided cut to a part of a whole tensor")
    size = target.shape[dim]
    pad = padding_of(size, op.num_ranks, own.order)
    return Shard(dim, size, 1, pad, own.order, own.label)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows ``start, start + step, ...`` of a dim, as many as ``count``."""

    start: int
    step: int
    count: int

    def on_rank(self, rank: int, block: int) -> tuple[_Rows, int]:
        """Those in a rank's block, counted from its begin, and the first's number."""
        first, last = (self._before(edge) for edge in (rank * block, (rank + 1) * block))
        start = self.start + first * self.step - rank * block
        return _Rows(start if last > first else 0, self.step, last - first), first

    def _before(self, row: int) -> int:
        return min(max(-((self.start - row) // self.step), 0), self.count)

    @property
    def end(self) -> int:
        return self.start + (self.count - 1) * self.step + 1 if self.count else self.start


def _along_the_cut(op: Operation, target: Value, part: Value, cut: Shard, select: bool) -> Value:
    """Each rank assigns the rows that lie in its block.

    Padding rows take an assigned row: what they held may be what the user overwrites.
    """
    size = target.shape[cut.dim]
    if is_symbolic(cut.atom):
        raise NoRule("assignment along the sharded dim, whose length stays dynamic")
    if cut.outer != 1 or cut.atom != size or cut.order != "contiguous":
        raise NoRule("assignment along a strided cut")
    reason = "each rank assigns the rows of its own block"
    target = op.redistribute(target, cut, reason)
    part = op.replicate(part, f"assigned along the sharded dim: {reason}")
    source = _unsqueezed(op, part, cut.dim) if select else part.node
    rows = _assigned_rows(op, size, select)
    node = _assign(op, target.node, source, cut, rows)
    if cut.is_padded and rows.count:
        with op.builder.role("slice", "padding rows take an assigned row"):
            last = op.emit(aten.slice.Tensor, source, cut.dim, rows.count - 1, rows.count)
            sizes = list(last.meta["val"].shape)
            sizes[cut.dim] = cut.pad
            last = op.emit(aten.expand.default, last, sizes)
        node = _assign(op, node, last, cut, _Rows(size, 1, cut.pad))
    op.decide(
        "applied", "assignment", reason, f"rows of the sharded dim {cut.dim} are assigned",
        rule="mutation.scatter_slice",
    )  # fmt: skip
    return op.result(node, cut)


def _unsqueezed(op: Operation, part: Value, dim: int) -> Node:
    with op.builder.role("slice"):
        return op.emit(aten.unsqueeze.default, part, dim)


def _assign(op: Operation, target: Node, source: Node, cut: Shard, rows: _Rows) -> Node:
    """Assign ``source`` to ``rows`` of the whole, those of them that this rank holds."""
    own, first = rows.on_rank(op.builder.rank, cut.block(op.num_ranks))
    with op.builder.role("slice", "the rows of this rank's block"):
        local = op.emit(aten.slice.Tensor, source, cut.dim, first, first + own.count)
    return op.emit(aten.slice_scatter.default, target, local, cut.dim, own.start, own.end, own.step)


def _assigned_rows(op: Operation, size: int, select: bool) -> _Rows:
    if select:
        return _Rows(op.argument(3, "index") % size, 1, 1)
    start, end, step = (
        op.argument(3 + i, name, default)
        for i, (name, default) in enumerate((("start", None), ("end", None), ("step", 1)))
    )
    chosen = range(*slice(start, end, step).indices(size))
    return _Rows(chosen.start, step, len(chosen))


def write(op: Operation) -> Value:
    """The end of a program: an input takes a value that must be the same on all ranks."""
    value: Value = op.args[1]
    whole = op.replicate(value, "written to an input of the model: all ranks keep the whole")
    if whole is not value:
        size = prod(examples(value.shape)) * value.dtype.itemsize
        op.decide(
            "applied", "write", f"{value.placement} -> R before it is written",
            f"every rank keeps the same {op.node.args[0]}: {size / 2**20:.1f} MiB whole",
            rule="mutation.write",
        )  # fmt: skip
    placeholders = op.builder.graph.find_nodes(op="placeholder")
    name = str(op.node.args[0])
    given = next(node for node in placeholders if node.name == name)
    return op.result(op.emit(aten.copy_.default, given, whole), REPLICATE)


RULES: RuleTable = {
    aten.slice_scatter.default: scatter_slice,
    aten.select_scatter.default: scatter_slice,
    aten.copy_.default: write,
}
