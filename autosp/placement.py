"""Placements: how a tensor of the user's model is laid out over one mesh axis.

``Replicate``: every rank holds the whole tensor. ``Partial``: the tensor is the sum (a
gradient: the mean) of what the ranks hold. ``Shard``: a dim is cut. A tensor has one
placement per mesh axis that the compiler shards over.

A sharded dim of size ``outer * atom * inner`` is seen as ``(outer, atom, inner)``; the
*atom* is cut into ``P`` equal blocks after ``pad`` rows were appended to it. This one
form covers

* the plain shard of a sequence dim: ``outer = 1, atom = S``;
* strided shards after flattening: ``[B, S, D] -> [B*S, D]`` has ``outer = B, atom = S``;
* lengths that ``P`` does not divide: ``pad = -S mod P``;
* shifted slices: ``x[:, :-1]`` keeps the blocks where they are and turns the last token
  into padding, ``atom = S - 1, pad + 1``.

Where a program serves many lengths, ``atom`` and ``pad`` are expressions of the length. Such
a cut counts as padded at every length.

``order`` says which blocks a rank holds: ``contiguous`` (block ``r``) or ``zigzag``
(blocks ``r`` and ``2P-1-r`` of ``2P``, which balances causal ring attention).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from autosp.sizes import at_lengths, examples, is_symbolic, key_of, plain, same_size

BlockOrder = Literal["contiguous", "zigzag"]


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every rank holds the whole tensor."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True, slots=True)
class Partial:
    """The tensor is the reduction, over the axis, of what the ranks hold.

    ``avg`` is for gradients alone: under the mean convention each rank holds its part of the
    gradient of a whole tensor, and the mean over the ranks is still to come.
    """

    op: Literal["sum", "avg"] = "sum"

    def __str__(self) -> str:
        return f"P({self.op})"


@dataclass(frozen=True, slots=True)
class Shard:
    """Dim ``dim`` is cut over the axis; see the module docstring for the fields."""

    dim: int
    atom: int
    outer: int = 1
    pad: int = 0
    order: BlockOrder = "contiguous"
    label: str = ""
    """What the dim means, for display only (``seq``, ``head``); not part of equality."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shard) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return (self.dim, key_of(self.atom), key_of(self.outer), key_of(self.pad), self.order)

    def __str__(self) -> str:
        name = f"{self.dim}:{self.label}" if self.label else str(self.dim)
        outer = "" if same_size(self.outer, 1) else f",outer={self.outer}"
        pad = f",pad={self.pad_text}" if self.is_padded else ""
        order = f",{self.order}" if self.order != "contiguous" else ""
        return f"S({name}{outer}{pad}{order})"

    @property
    def is_padded(self) -> bool:
        """Whether there may be padding rows."""
        return is_symbolic(self.pad) or self.pad > 0

    @property
    def pad_text(self) -> str:
        """How many padding rows there are, in words where the length decides."""
        return "by length" if is_symbolic(self.pad) else str(self.pad)

    def on_dim(self, dim: int) -> Shard:
        """The same cut, on another dim (after a transpose, unsqueeze, ...)."""
        return replace(self, dim=dim)

    def at_lengths(self, lengths: Mapping[Any, int]) -> Shard:
        """The cut at given lengths (symbol -> number)."""
        atom, outer, pad = (at_lengths(n, lengths) for n in (self.atom, self.outer, self.pad))
        return replace(self, atom=atom, outer=outer, pad=pad)

    def block(self, num_ranks: int) -> int:
        """Rows of the atom that one rank holds, padding included."""
        return (self.atom + self.pad) // num_ranks

    def pieces(self, rank: int, num_ranks: int) -> list[range]:
        """The rows of the padded atom that a rank holds, in its order."""
        return [range(first, end) for first, end in self.bounds(rank, num_ranks)]

    def bounds(self, rank: int, num_ranks: int) -> list[tuple[int, int]]:
        """First row and end of each of :meth:`pieces`; they may be expressions of the length."""
        block = self.block(num_ranks)
        if self.order == "contiguous":
            return [(rank * block, (rank + 1) * block)]
        chunk = block // 2
        chunks = first_chunk_and_last(rank, num_ranks)
        return [(index * chunk, (index + 1) * chunk) for index in chunks]

    def num_valid(self, rank: int, num_ranks: int) -> int:
        """Rows of the atom that a rank holds without padding; they come first on it."""
        pieces = self.pieces(rank, num_ranks)
        return sum(min(max(self.atom - rows.start, 0), len(rows)) for rows in pieces)


def first_chunk_and_last(rank: int, num_ranks: int) -> tuple[int, int]:
    """The two of ``2 * num_ranks`` chunks that a rank holds in zigzag order."""
    return rank, 2 * num_ranks - 1 - rank


def padding_of(num_rows: int, num_ranks: int, order: BlockOrder = "contiguous") -> int:
    """Rows to append so that all ranks hold the same number, in zigzag order an even one."""
    multiple = rows_dealt_out(num_ranks, order)
    if is_symbolic(num_rows):  # blocks times ranks: torch can cancel it
        padded = (num_rows + multiple - 1) // multiple * multiple
        return cast(int, plain(padded - num_rows))
    return -num_rows % multiple


def rows_dealt_out(num_ranks: int, order: BlockOrder) -> int:
    """Without padding there is a multiple of this many rows."""
    return num_ranks if order == "contiguous" else 2 * num_ranks


Placement = Replicate | Partial | Shard
REPLICATE = Replicate()
PARTIAL_SUM = Partial("sum")
PARTIAL_AVG = Partial("avg")


def example_placement(placement: Placement) -> Placement:
    """The placement at the length that the program was traced with."""
    if not isinstance(placement, Shard) or not is_symbolic(placement.pad):
        return placement
    atom, outer, pad = examples((placement.atom, placement.outer, placement.pad))
    return replace(placement, atom=atom, outer=outer, pad=pad)


def shard_dim(dim: int, size: int, num_ranks: int, *, outer: int = 1, label: str = "") -> Shard:
    """Cut a dim of ``size`` rows over ``num_ranks``, padded where it must be."""
    atom = size // outer
    return Shard(dim, atom, outer, padding_of(atom, num_ranks), label=label)


def local_shape(
    global_shape: tuple[int, ...], placement: Placement, num_ranks: int
) -> tuple[int, ...]:
    """The shape one rank holds of a tensor of ``global_shape``."""
    if not isinstance(placement, Shard):
        return tuple(global_shape)
    shape = list(global_shape)
    inner_rows = shape[placement.dim] // placement.atom
    shape[placement.dim] = inner_rows * placement.block(num_ranks)
    return tuple(shape)
