"""``torch.nn.attention.flex_attention`` in a program: one node that holds its functions.

Torch writes a call as a higher-order operator with the graphs of ``score_mod`` and ``mask_mod``
and the tensors these read. While a program is traced an opaque operator stands for it; after
that the target of the node is a :class:`FlexAttention`, which makes the higher-order operator
again when it is called: AOTAutograd derives its backward, inductor compiles it, and on a CPU it
is computed as torch computes it there. A rank that has some of the heads counts them from its
first one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import _permute_strides, flex_attention
from torch.fx import GraphModule
from torch.nn.attention import flex_attention as torch_flex

from autosp.errors import AutoSPError
from autosp.runtime.keyed_random import LIBRARY

FLEX_ATTENTION = flex_attention
"""Torch's higher-order operator."""

NUM_LENGTHS, NUM_BLOCK_SIZES = 2, 2
"""Numbers in torch's block mask before its tables, and between these and ``mask_mod``."""


@dataclass(frozen=True, eq=False)
class FlexAttention:
    """``(query, key, value, tables, score_buffers, mask_buffers) -> (out, lse, max_scores)``.

    Queries are ``[B, H, S, D]``, keys and values ``[B, Hkv, Sk, D]``. ``tables`` are those of the
    block mask, whose block sizes and lengths are here.
    """

    score_mod: Callable[..., Tensor]
    mask_mod: Callable[..., Tensor]
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
        return self.score_mod(score, batch, head + self.first_head, query, key, *read)

    def _mask(
        self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor, *read: Tensor
    ) -> Tensor:
        return self.mask_mod(batch, head + self.first_head, query, key, *read)


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


def stand_in(calls: list[FlexAttention], where: str, *args: Any) -> Any:
    """Call the operator that stands for a call of :data:`FLEX_ATTENTION` with ``args``.

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
    return STAND_IN(query, key, value, tables, score_buffers, mask_buffers, len(calls) - 1)


def attach_flex_attention(program: GraphModule, calls: Sequence[FlexAttention]) -> None:
    """Put the attentions where operators stand for them."""
    for node in program.graph.find_nodes(op="call_function", target=STAND_IN):
        *args, index = node.args
        node.target, node.args = calls[index], tuple(args)
    program.recompile()


# ---------------------------------------------------------------------- training on a CPU


def allow_training_on_cpu() -> None:
    """Let dynamo trace calls of ``flex_attention`` on CPU tensors that require a gradient.

    Torch refuses them because inductor has no backward for a CPU. The higher-order operator has
    one, which other compilers run.
    """
    refuse = torch_flex._validate_device
    if refuse is _validate_device_outside_compilers:
        return
    global _torch_refuses
    _torch_refuses = refuse
    torch_flex._validate_device = _validate_device_outside_compilers


_torch_refuses: Callable[[Tensor, Tensor, Tensor], None] = torch_flex._validate_device


def _validate_device_outside_compilers(query: Tensor, key: Tensor, value: Tensor) -> None:
    if not torch.compiler.is_compiling():
        _torch_refuses(query, key, value)
