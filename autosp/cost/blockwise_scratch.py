"""Memory that attention block by block takes beside its outputs, on any device.

One masked block at a time exists in the type in which blocks are merged, float32 at least
(measured: three of its size in the forward, the scores before and after the mask and the
probabilities; five in the backward), with a few tensors of its rows. The backward sums all
gradients in that type.
"""

from __future__ import annotations

import torch
import torch.fx

from autosp.cost.flops import argument
from autosp.runtime.block_attention import wide_type
from autosp.runtime.block_plan import BLOCK_ROWS
from autosp.runtime.blockwise_attention import BLOCKWISE_ATTENTION, BLOCKWISE_ATTENTION_BACKWARD

FORWARD_BLOCKS, FORWARD_ROWS = 3, 2
BACKWARD_BLOCKS, BACKWARD_ROWS = 5, 5


def blockwise_scratch(node: torch.fx.Node) -> int:
    """Bytes that the node allocates beside its outputs; 0 for other operators."""
    target = node.target
    if target is BLOCKWISE_ATTENTION:
        return _block_bytes(node, FORWARD_BLOCKS, FORWARD_ROWS)
    if target is BLOCKWISE_ATTENTION_BACKWARD:
        return _block_bytes(node, BACKWARD_BLOCKS, BACKWARD_ROWS) + _sum_bytes(node)
    return 0


def _block_bytes(node: torch.fx.Node, num_blocks: int, num_rows: int) -> int:
    query, key, value = _operands(node)
    batch, heads, queries, size = map(int, query.shape)
    rows, columns = min(BLOCK_ROWS, queries), min(BLOCK_ROWS, int(key.shape[2]))
    elements = num_blocks * rows * columns + num_rows * rows * max(size, int(value.shape[-1]))
    at_a_time = 1 if _differs_by_row(node) else batch
    return at_a_time * heads * elements * wide_type(query.dtype).itemsize


def _sum_bytes(node: torch.fx.Node) -> int:
    """Sums of the gradients that are converted at the end."""
    operands = _operands(node)
    wide = wide_type(operands[0].dtype)
    if wide == operands[0].dtype:
        return 0
    return sum(int(tensor.numel()) for tensor in operands) * wide.itemsize


def _operands(node: torch.fx.Node) -> list[torch.Tensor]:
    assert isinstance(node.target, torch._ops.OpOverload)
    given = (argument(node, node.target, name) for name in ("query", "key", "value"))
    return [source.meta["val"] for source in given if isinstance(source, torch.fx.Node)]


def _differs_by_row(node: torch.fx.Node) -> bool:
    """Whether batch rows have masks of their own."""
    vectors: list[torch.fx.Node] = []
    for name in ("query_vectors", "key_vectors"):
        vectors += node.kwargs[name]  # type: ignore[arg-type]
    return any(vector.meta["val"].shape[0] != 1 for vector in vectors)
