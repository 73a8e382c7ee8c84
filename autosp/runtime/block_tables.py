"""Which blocks of queries and keys ``flex_attention`` computes, counted when the program runs.

Torch's ``create_block_mask`` evaluates ``mask_mod`` for all pairs at once. Here a strip of it
exists at a time. The tables are those of a ``BlockMask``: for each block of queries how many
blocks of keys are partly masked, and which; the same of blocks that are not masked at all; and
both for each block of keys.

One operator, opaque to compilers because it loops over strips::

    autosp::block_tables(buffers, mask, batch, heads, num_queries, num_keys, query_block,
                         key_block) -> 8 tables

``mask`` names the function by a digest of what it computes, so that a compiled graph which is
kept for later runs cannot meet another function under the same name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.fx import GraphModule
from torch.nn.attention.flex_attention import _dense_to_ordered, _vmap_for_bhqkv

from autosp.runtime.keyed_random import LIBRARY

NUM_TABLES = 8
STRIP = 1 << 13
"""Keys of which the mask exists at a time, for one block of queries."""
MOST_BLOCKS = 1024
"""Blocks a side: tables have the square of this many elements, for each head of its own mask."""

_VMAP_KEYS = (
    torch._C.DispatchKey.FuncTorchBatched,
    torch._C.DispatchKey.FuncTorchVmapMode,
    torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode,
    torch._C.DispatchKey.FuncTorchDynamicLayerBackMode,
)
"""A mode that calls an operator switches them off."""

_MASKS: dict[str, GraphModule] = {}


def name_of(mask_mod: GraphModule) -> str:
    """The name under which the operator finds a function."""
    digest = hashlib.sha256(mask_mod.code.encode())
    for name, constant in sorted(mask_mod.state_dict().items()):
        digest.update(f"{name} {constant.tolist()}".encode())
    name = digest.hexdigest()
    _MASKS[name] = mask_mod
    return name


def block_rows(length: int, rows: int) -> int:
    """Rows of a block: a multiple of ``rows`` that leaves no more than :data:`MOST_BLOCKS`."""
    return rows * max(1, -(-length // (rows * MOST_BLOCKS)))


def _counted(
    buffers: Sequence[Tensor],
    mask: str,
    batch: int,
    heads: int,
    num_queries: int,
    num_keys: int,
    query_block: int,
    key_block: int,
    device: torch.device,
) -> list[Tensor]:
    allowed = _vmap_for_bhqkv(_MASKS[mask], prefix=(), suffix=(None,) * len(buffers))
    shape = (batch, heads, -(-num_queries // query_block), -(-num_keys // key_block))
    pairs = torch.zeros(shape, dtype=torch.int64, device=device)
    strip = max(STRIP // key_block, 1) * key_block
    rows, columns = (torch.arange(count, device=device) for count in (batch, heads))
    for row in range(shape[2]):
        queries = _range(row * query_block, query_block, num_queries, device)
        for start in range(0, num_keys, strip):
            keys = _range(start, strip, num_keys, device)
            with TransformGetItemToIndex(), _vmap_allowed():
                seen = allowed(rows, columns, queries, keys, *buffers).sum(2)
            seen = torch.nn.functional.pad(seen, (0, -len(keys) % key_block))
            counts = seen.reshape(batch, heads, -1, key_block).sum(-1)
            first = start // key_block
            pairs[:, :, row, first : first + counts.shape[-1]] = counts
    full = pairs == query_block * key_block
    partial = (pairs > 0) & ~full
    tables: list[Tensor] = []
    for blocks in (partial, full, partial.transpose(-2, -1), full.transpose(-2, -1)):
        tables.extend(_dense_to_ordered(blocks))
    return tables


def _vmap_allowed() -> AbstractContextManager[object]:
    """``vmap`` works inside, also where a dispatch mode has called the operator."""
    local = torch._C._dispatch_tls_local_exclude_set()
    for key in _VMAP_KEYS:
        local = local.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), local)


def _range(start: int, count: int, end: int, device: torch.device) -> Tensor:
    return torch.arange(start, min(start + count, end), device=device)


def _fake(
    buffers: Sequence[Tensor],
    mask: str,
    batch: int,
    heads: int,
    num_queries: int,
    num_keys: int,
    query_block: int,
    key_block: int,
    device: torch.device,
) -> list[Tensor]:
    del buffers, mask
    queries, keys = -(-num_queries // query_block), -(-num_keys // key_block)
    sizes = [(queries, keys), (queries, keys), (keys, queries), (keys, queries)]
    return [
        torch.empty((batch, heads, *shape), dtype=torch.int32, device=device)
        for own, others in sizes
        for shape in ((own,), (own, others))
    ]


LIBRARY.define(  # type: ignore[no-untyped-call]
    "block_tables(Tensor[] buffers, str mask, int batch, int heads, int num_queries, "
    "int num_keys, int query_block, int key_block, Device device) -> Tensor[]"
)
LIBRARY.impl("block_tables", _counted, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("autosp::block_tables", _fake, lib=LIBRARY)

BLOCK_TABLES: torch._ops.OpOverload = torch.ops.autosp.block_tables.default
