"""``torch.nn.attention.flex_attention`` in a program: one node that holds its functions.

Torch writes a call as a higher-order operator with the graphs of ``score_mod`` and ``mask_mod``
and the tensors these read. While a program is traced an opaque operator stands for it; after
that the target of the node is a :class:`FlexAttention`, which makes the higher-order operator
again when it is called: AOTAutograd derives its backward, inductor compiles it, and on a CPU it
is computed as torch computes it there. A rank that has some of the heads counts them from its
first one.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import _permute_strides, flex_attention
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.nn.attention import flex_attention as torch_flex

from autosp.errors import AutoSPError
from autosp.graph import meta_of
from autosp.runtime.block_tables import BLOCK_TABLES, NUM_TABLES, block_rows, name_of
from autosp.runtime.keyed_random import LIBRARY

aten = torch.ops.aten

FLEX_ATTENTION = flex_attention
"""Torch's higher-order operator."""

NUM_LENGTHS, NUM_BLOCK_SIZES = 2, 2
"""Numbers in torch's block mask before its tables, and between these and ``mask_mod``."""

WHOLE_BLOCK = 1 << 30
"""Rows of the only block of a mask without tables; torch writes it so, too."""

COUNTED_KEY = "autosp_counted"
"""Key in ``node.meta`` of a call whose tables are counted when the program runs."""


@dataclass(frozen=True, eq=False)
class FlexAttention:
    """``(query, key, value, tables, score_buffers, mask_buffers) -> (out, lse, max_scores)``.

    Queries are ``[B, H, S, D]``, keys and values ``[B, Hkv, Sk, D]``. ``tables`` are those of the
    block mask, whose block sizes and lengths are here.
    """

    score_mod: GraphModule
    mask_mod: GraphModule
    lengths: tuple[int, ...]
    block_sizes: tuple[int, ...]
    scale: float
    kernel_options: dict[str, Any]
    first_head: int = 0
    """Number of the first of the given heads among all heads of the user's program."""

    # What torch.fx asks of the target of a node.
    __name__ = "flex_attention"

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        tables: Sequence[Tensor | None],
        score_buffers: Sequence[Tensor],
        mask_buffers: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        mask = (*self.lengths, *tables, *self.block_sizes, self._mask)
        results: tuple[Tensor, Tensor, Tensor] = FLEX_ATTENTION(
            query,
            key,
            value,
            self._score,
            mask,
            self.scale,
            self.kernel_options,
            tuple(score_buffers),
            tuple(mask_buffers),
        )
        return results

    def _score(
        self, score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor, *read: Tensor
    ) -> Tensor:
        result: Tensor = self.score_mod(score, batch, head + self.first_head, query, key, *read)
        return result

    def _mask(
        self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor, *read: Tensor
    ) -> Tensor:
        result: Tensor = self.mask_mod(batch, head + self.first_head, query, key, *read)
        return result


def is_flex_attention(target: Any) -> TypeGuard[FlexAttention]:
    """Whether the target of a node is one."""
    return isinstance(target, FlexAttention)


# ---------------------------------------------------------------------- while it is traced

LIBRARY.define(  # type: ignore[no-untyped-call]
    "flex_call(Tensor query, Tensor key, Tensor value, Tensor?[] tables, Tensor[] score_buffers, "
    "Tensor[] mask_buffers, int call) -> (Tensor, Tensor, Tensor)"
)


def _results(
    query: Tensor, key: Tensor, value: Tensor, *rest: object
) -> tuple[Tensor, Tensor, Tensor]:
    del key, rest
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    out = _permute_strides(out, query.stride())
    lse, largest = (query.new_empty(query.shape[:-1], dtype=torch.float32) for _ in range(2))
    return out, lse, largest


torch.library.register_fake("autosp::flex_call", _results, lib=LIBRARY)

STAND_IN = torch.ops.autosp.flex_call.default
"""Stands for a :class:`FlexAttention` while a program is traced; ``call`` counts the calls."""


def stand_in(calls: list[FlexAttention], where: str, is_counted: bool, *args: Any) -> Any:
    """Call the operator that stands for a call of :data:`FLEX_ATTENTION` with ``args``.

    With ``is_counted`` the tables of the block mask are still to be counted.

    Raises:
        AutoSPError: its functions read a number that is not a tensor.
    """
    query, key, value, score_mod, mask, scale, kernel_options, *buffers = args
    score_buffers, mask_buffers = (list(group) for group in (*buffers, (), ())[:2])
    if not all(isinstance(read, Tensor) for read in (*score_buffers, *mask_buffers)):
        raise AutoSPError(
            "score_mod or mask_mod of flex_attention reads a size that stays dynamic",
            where=where,
            hint="Compile for one length, or pass the number as a tensor",
        )
    *numbers, mask_mod = mask
    lengths, block_sizes = numbers[:NUM_LENGTHS], numbers[-NUM_BLOCK_SIZES:]
    calls.append(
        FlexAttention(
            score_mod, mask_mod, tuple(lengths), tuple(block_sizes), scale, dict(kernel_options)
        )
    )
    tables = numbers[NUM_LENGTHS:-NUM_BLOCK_SIZES]
    if not all(table is None or isinstance(table, Tensor) for table in tables):
        raise AutoSPError(
            "flex_attention with a BlockMask that holds an order of writes",
            where=where,
            hint="Make the mask with create_block_mask and its defaults",
        )
    if is_counted:
        tables = [None] * len(tables)
    return STAND_IN(query, key, value, tables, score_buffers, mask_buffers, len(calls) - 1)


def attach_flex_attention(program: GraphModule, calls: Sequence[FlexAttention]) -> None:
    """Put the attentions where operators stand for them."""
    for node in program.graph.find_nodes(op="call_function", target=STAND_IN):
        arguments: Any = node.args
        query, key, value, tables, *buffers, index = arguments
        call = calls[index]
        if all(table is None for table in tables):
            call, tables = _with_tables(call, node, list(tables))
        node.target, node.args = call, (query, key, value, tables, *buffers)
    program.recompile()


def _with_tables(
    call: FlexAttention, node: Node, tables: list[Any]
) -> tuple[FlexAttention, list[Any]]:
    """The call with tables that are made before ``node``."""
    query: Any = node.args[0]
    fake: Any = query.meta["val"]
    batch, heads = fake.shape[:2]

    def emit(target: Any, *args: Any, **kwargs: Any) -> Node:
        made = node.graph.call_function(target, args, kwargs)
        made.meta.update(meta_of(node))
        values = map_aggregate(args, lambda a: a.meta["val"] if isinstance(a, Node) else a)
        with torch._guards.tracing(None), fake.fake_mode, torch.no_grad():
            made.meta["val"] = target(*values, **kwargs)
        return made

    with node.graph.inserting_before(node):
        if min(call.block_sizes) >= WHOLE_BLOCK:
            options: dict[str, Any] = {"dtype": torch.int32, "device": fake.device}
            number = emit(aten.ones.default, [1, 1, 1], **options)
            index = emit(aten.zeros.default, [1, 1, 1, 1], **options)
            tables[:2] = tables[4:6] = [number, index]
            return call, tables
        inputs = call.mask_mod.graph.find_nodes(op="placeholder")[:2]
        spread = [count if n.users else 1 for n, count in zip(inputs, (batch, heads), strict=True)]
        pairs = zip(call.lengths, call.block_sizes, strict=True)
        blocks = [block_rows(length, rows) for length, rows in pairs]
        numbers = (name_of(call.mask_mod), *spread, *call.lengths, *blocks)
        mask_buffers: Any = node.args[5]
        counted = emit(BLOCK_TABLES, list(mask_buffers), *numbers, fake.device)
        tables[:NUM_TABLES] = [emit(operator.getitem, counted, n) for n in range(NUM_TABLES)]
    return replace(call, block_sizes=tuple(blocks)), tables


# ---------------------------------------------------------------------- training on a CPU


def allow_training_on_cpu() -> None:
    """Let ``flex_attention`` take CPU tensors that require a gradient.

    Torch refuses them because inductor has no backward for a CPU. The higher-order operator has
    one, which torch runs outside compiled regions and other compilers within.
    """
    torch_flex._validate_device = _any_device


def _any_device(query: Tensor, key: Tensor, value: Tensor) -> None:
    del query, key, value
