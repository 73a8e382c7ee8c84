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

``order`` says which blocks a rank holds: ``contiguous`` (block ``r``) or ``zigzag``
(blocks ``r`` and ``2P-1-r`` of ``2P``, which balances causal ring attention).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

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

    def _key(self) -> tuple[int, int, int, int, str]:
        return (self.dim, self.atom, self.outer, self.pad, self.order)

    def __str__(self) -> str:
        name = f"{self.dim}:{self.label}" if self.label else str(self.dim)
        outer = f",outer={self.outer}" if self.outer != 1 else ""
        pad = f",pad={self.pad}" if self.pad else ""
        order = f",{self.order}" if self.order != "contiguous" else ""
        return f"S({name}{outer}{pad}{order})"

    def on_dim(self, dim: int) -> Shard:
        """The same cut, on another dim (after a transpose, unsqueeze, ...)."""
        return replace(self, dim=dim)

    def block(self, num_ranks: int) -> int:
        """Rows of the atom that one rank holds, padding included."""
        return (self.atom + self.pad) // num_ranks


Placement = Replicate | Partial | Shard
REPLICATE = Replicate()
PARTIAL_SUM = Partial("sum")
PARTIAL_AVG = Partial("avg")


def shard_dim(dim: int, size: int, num_ranks: int, *, outer: int = 1, label: str = "") -> Shard:
    """Cut a dim of ``size`` rows over ``num_ranks``, padded where it must be."""
    atom = size // outer
    return Shard(dim=dim, atom=atom, outer=outer, pad=-atom % num_ranks, label=label)


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
