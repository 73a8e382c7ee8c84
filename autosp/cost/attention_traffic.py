"""Bytes that one attention makes a rank send in a step, forward and backward. Plain numbers.

``U`` ranks exchange heads (Ulysses, arXiv:2309.14509) and ``R`` pass keys and values round a
ring (arXiv:2310.01889); together they are all ``P = U R`` ranks. A rank holds ``b = S / P``
tokens, padded. With ``h`` KV heads sent, ``max(Hkv, U)`` where one divides the other and else
those that each rank's query heads read (:mod:`autosp.head_map`), counted for every rank:

    exchange   4 B b (H D + h D_k/2 + h D_v/2) (U - 1) / U     q, k, v and the output, twice
    ring       (R - 1) B U b (h / U) (D_k + D_v)               for keys and values, twice, and
                                                               for their gradients in float32

The first is what must come from other ranks for all of a head's tokens to meet on one rank;
in the second every block passes every rank once.
"""

from __future__ import annotations

from dataclasses import dataclass

from autosp.head_map import HeadMap


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One attention: global sizes, and bytes of an element as it is and in the wide type."""

    batch: int
    num_heads: int
    num_kv_heads: int
    query_rows: int
    """Rows of queries that one rank holds."""
    key_rows: int
    key_size: int
    value_size: int
    element_bytes: int
    wide_bytes: int


def exchange_bytes(shape: AttentionShape, *, num_ulysses: int) -> int:
    """Sent to exchange heads, forward and backward: the mean over the ranks.

    Ranks differ where their query heads read different numbers of KV heads.
    """
    of_queries = shape.num_heads * shape.query_rows * (shape.key_size + shape.value_size)
    kv_heads = HeadMap(shape.num_heads, shape.num_kv_heads, num_ulysses).num_sent
    of_keys = kv_heads * shape.key_rows * (shape.key_size + shape.value_size)
    sent = shape.batch * (of_queries + of_keys) * (num_ulysses - 1) // num_ulysses
    return 2 * sent * shape.element_bytes


def ring_bytes(shape: AttentionShape, *, num_ulysses: int, num_ring: int) -> int:
    """Sent round the ring, forward and backward."""
    kv_heads = max(shape.num_kv_heads // num_ulysses, 1)
    rows = num_ulysses * shape.key_rows
    block = shape.batch * kv_heads * rows * (shape.key_size + shape.value_size)
    return (num_ring - 1) * block * (2 * shape.element_bytes + shape.wide_bytes)
