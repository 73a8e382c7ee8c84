"""Ring attention: queries stay, blocks of keys and values go round the ranks.

Liu, Zaharia and Abbeel 2023, arXiv:2310.01889. The send of a block starts before the rank
computes with it, so that communication can hide behind the tile. Results of the tiles are
merged by their log-sum-exp in float32 (float64 for float64). The backward sends the blocks
round again and computes the probabilities anew from the log-sum-exp of the forward; gradients
of a block travel one step behind it and arrive at its owner after the last, who adds its own
part: ``n - 1`` sends each.

The operator is a composite whose derivative is defined here: AOTAutograd takes it apart, so
that the graphs hold every tile, every copy and every send. What a rank does is written as a
*dialogue*: a generator that yields what it wants to have sent and gets back what arrives.
The runtime answers with collectives, the oracle by passing tensors between ranks that it runs
in one process.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from autosp.graph import RING_BACKWARD_KEY, RING_KEY, functional, noted
from autosp.ring_schedule import RingSchedule, Tile
from autosp.runtime.block_attention import attend, attend_backward, wide_type
from autosp.runtime.blockwise_attention import merge
from autosp.runtime.keyed_random import LIBRARY
from autosp.runtime.ring_mask import RingMask


@dataclass(frozen=True, slots=True)
class Start:
    """Send this flat tensor to the next rank. The answer is a handle."""

    tensor: Tensor
    note: str


@dataclass(frozen=True, slots=True)
class Wait:
    """The answer is what the previous rank sent at the :class:`Start` with this handle."""

    handle: Any
    note: str


Dialogue = Generator[Start | Wait, Any, tuple[Tensor, ...]]


@dataclass(slots=True)
class _Merged:
    """Output and log-sum-exp so far, for each piece of the queries."""

    schedule: RingSchedule
    pieces: list[tuple[Tensor, Tensor] | None] = field(default_factory=list)

    def add(self, tile: Tile, out: Tensor, lse: Tensor) -> None:
        before = self.pieces or [None] * self.schedule.num_pieces
        rows = self.schedule.query_rows // len(before)
        first = tile.query_start // rows
        self.pieces = list(before[:first])
        for index, piece in enumerate(before[first:]):
            own = slice(index * rows, (index + 1) * rows)
            part = out[:, :, own], lse[:, :, own]
            self.pieces.append(
                (part[0].to(lse.dtype), part[1]) if piece is None else merge(piece, *part)
            )

    def result(self) -> tuple[Tensor, Tensor]:
        pieces = [piece for piece in self.pieces if piece is not None]
        outs, lses = zip(*pieces, strict=True)
        return _joined(outs), _joined(lses)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), 2)


def _packed(key: Tensor, value: Tensor) -> Tensor:
    """Both in one flat tensor; in one copy where their shapes are the same."""
    if key.shape == value.shape:
        return torch.stack([key, value]).view(-1)
    return torch.cat([key.reshape(-1), value.reshape(-1)])


def _unpacked(block: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Views of a packed block, shaped like ``key`` and ``value``."""
    return block[: key.numel()].view(key.shape), block[key.numel() :].view(value.shape)


def forward_dialogue(
    schedule: RingSchedule,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    mask: RingMask | None = None,
) -> Dialogue:
    """Output, in the type of the query, and log-sum-exp over all keys."""
    merged = _Merged(schedule)
    block = _packed(key, value)
    for step in range(schedule.size):
        handle = None
        if step < schedule.size - 1:
            handle = yield Start(block, _note(schedule, step, "keys and values go on"))
        tile = schedule.tile(step)
        if tile is not None:
            keys, values = (key, value) if step == 0 else _unpacked(block, key, value)
            with noted(_tile_note(schedule, step, tile)):
                own = (
                    query[:, :, tile.query_start :],
                    keys[:, :, : tile.key_end],
                    values[:, :, : tile.key_end],
                )
                if mask is None:
                    part = attend(*own, is_causal=tile.is_causal, scale=scale)
                else:
                    part = mask.attend(schedule, step, own, scale=scale)
                merged.add(tile, *part)
        if handle is not None:
            block = yield Wait(handle, _note(schedule, step + 1, "keys and values arrive"))
    out, lse = merged.result()
    out = out.to(query.dtype)
    return out if tile is not None else AFTER(out, block), lse


def backward_dialogue(
    schedule: RingSchedule,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    cotangent: Tensor,
    *,
    scale: float,
    mask: RingMask | None = None,
) -> Dialogue:
    """Gradients of the rank's queries, keys and values."""
    of_query = _QueryGradient(schedule)
    block = _packed(key, value)
    own: Tensor | None = None
    travelling = None
    for step in range(schedule.size):
        handle = None
        if step < schedule.size - 1:
            handle = yield Start(block, _note(schedule, step, "keys and values go on"))
        tile, part = schedule.tile(step), None
        if tile is not None:
            keys, values = (key, value) if step == 0 else _unpacked(block, key, value)
            with noted(_tile_note(schedule, step, tile), key=RING_BACKWARD_KEY):
                rows = slice(tile.query_start, None)
                operands = (
                    cotangent[:, :, rows],
                    query[:, :, rows],
                    keys[:, :, : tile.key_end],
                    values[:, :, : tile.key_end],
                    out[:, :, rows],
                    lse[:, :, rows],
                )
                if mask is None:
                    gradients = attend_backward(*operands, is_causal=tile.is_causal, scale=scale)
                else:
                    gradients = mask.attend_backward(schedule, step, operands, scale=scale)
                towards_query, towards_key, towards_value = gradients
                of_query.add(tile, towards_query)
                part = _packed(_all_rows(towards_key, schedule), _all_rows(towards_value, schedule))
        if step == 0:
            own = part
        else:
            note = _note(schedule, step, "gradients of keys and values")
            if travelling is not None:
                arrived = yield Wait(travelling, f"{note} arrive")
                part = arrived if part is None else arrived + part
            if part is None:
                part = block.new_zeros(block.shape, dtype=wide_type(key.dtype))
            if tile is None and step == schedule.size - 1:
                part = AFTER(part, block)
            travelling = yield Start(part, f"{note} go on")
        if handle is not None:
            block = yield Wait(handle, _note(schedule, step + 1, "keys and values arrive"))
    total = yield Wait(travelling, "gradients of keys and values come home")
    total = total if own is None else total + own
    of_key, of_value = _unpacked(total, key, value)
    return of_query.result(query), of_key.to(key.dtype), of_value.to(value.dtype)


@dataclass(slots=True)
class _QueryGradient:
    """Sum of the tiles' parts, for each piece of the queries."""

    schedule: RingSchedule
    pieces: list[Tensor | None] = field(default_factory=list)

    def add(self, tile: Tile, gradient: Tensor) -> None:
        before = self.pieces or [None] * self.schedule.num_pieces
        rows = self.schedule.query_rows // len(before)
        first = tile.query_start // rows
        gradient = gradient.to(wide_type(gradient.dtype))
        self.pieces = list(before[:first])
        for index, piece in enumerate(before[first:]):
            own = gradient[:, :, index * rows : (index + 1) * rows]
            self.pieces.append(own if piece is None else piece + own)

    def result(self, query: Tensor) -> Tensor:
        return _joined([piece for piece in self.pieces if piece is not None]).to(query.dtype)


def _all_rows(gradient: Tensor, schedule: RingSchedule) -> Tensor:
    """In the type that travels, with zeros for the rows of the block outside the tile."""
    wide = gradient.to(wide_type(gradient.dtype))
    missing = schedule.key_rows - wide.shape[2]
    return wide if not missing else torch.nn.functional.pad(wide, (0, 0, 0, missing))


def _note(schedule: RingSchedule, step: int, what: str) -> str:
    return f"ring step {step + 1} of {schedule.size}: {what}"


def _tile_note(schedule: RingSchedule, step: int, tile: Tile) -> str:
    mask = "causal" if tile.is_causal else "nothing masked"
    what = (
        f"{tile.num_queries} queries with {tile.key_end} keys of ring rank "
        f"{schedule.source(step)}, {mask}"
    )
    return _note(schedule, step, what)


def _after(value: Tensor, arrived: Tensor) -> Tensor:
    del arrived
    return value.clone()


LIBRARY.define("after(Tensor value, Tensor arrived) -> Tensor")  # type: ignore[no-untyped-call]
LIBRARY.impl("after", _after, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

AFTER: torch._ops.OpOverload = torch.ops.autosp.after.default
"""``value``, but not before something has arrived. A rank that skips the last block of the ring
must receive it all the same: the others would wait for ever."""


# ------------------------------------------------------------------ on a process group


@dataclass(frozen=True, slots=True)
class Hop:
    """The way round the ring: to whom this rank sends, from whom it receives."""

    receiver: int
    sender: int
    num_ranks: int
    """Of the process group, of which the ring may be a part."""
    group_name: str

    def converse(self, dialogue: Dialogue, key: str) -> tuple[Tensor, ...]:
        """Answer a dialogue with collectives; its result. ``key``: see :func:`noted`."""
        answer: Any = None
        with noted("ring attention", key=key):
            try:
                while True:
                    request = dialogue.send(answer)
                    with noted(request.note, key=key):
                        answer = self._answer(request)
            except StopIteration as end:
                result: tuple[Tensor, ...] = end.value
                return result

    def _answer(self, request: Start | Wait) -> Tensor:
        if isinstance(request, Wait):
            arrived: Tensor = functional.wait_tensor.default(request.handle)
            return arrived
        size = request.tensor.numel()
        receives = [size if rank == self.sender else 0 for rank in range(self.num_ranks)]
        sends = [size if rank == self.receiver else 0 for rank in range(self.num_ranks)]
        handle: Tensor = functional.all_to_all_single.default(
            request.tensor, receives, sends, self.group_name
        )
        return handle


class _OnGroup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, call: Any, hop: Hop, *vectors: Tensor
    ) -> Tensor:
        dialogue = forward_dialogue(
            call.schedule, query, key, value, scale=call.scale, mask=call.mask_of(vectors)
        )
        out, lse = hop.converse(dialogue, RING_KEY)
        ctx.save_for_backward(query, key, value, out, lse, *vectors)
        ctx.details = (call, hop)
        return out

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        call, hop = ctx.details
        query, key, value, out, lse, *vectors = ctx.saved_tensors
        dialogue = backward_dialogue(
            call.schedule, query, key, value, out, lse, cotangents[0],
            scale=call.scale, mask=call.mask_of(vectors),
        )  # fmt: skip
        gradients = hop.converse(dialogue, RING_BACKWARD_KEY)
        return (*gradients, None, None, *(None for _ in vectors))


@dataclass(frozen=True, slots=True)
class RingCall:
    """The arguments of one rank's call of :data:`RING_ATTENTION`."""

    query: Tensor
    key: Tensor
    value: Tensor
    schedule: RingSchedule
    scale: float
    mask: RingMask | None = None

    def mask_of(self, vectors: Sequence[Tensor]) -> RingMask | None:
        """The mask, its vectors being these: what autograd hands to a function, or saved."""
        return None if self.mask is None else self.mask.with_tensors(vectors)

    @staticmethod
    def of(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        is_causal: bool,
        *,
        scale: float | None = None,
        key_length: int,
        order: Any,
        ring_rank: int,
        ring_size: int,
        predicate: str | None = None,
        query_vectors: Sequence[Tensor] | None = None,
        key_vectors: Sequence[Tensor] | None = None,
        densities: Sequence[float] | None = None,
        softcap: float = 0.0,
        slopes: Tensor | None = None,
    ) -> RingCall:
        device = query.device.type
        if torch.is_autocast_enabled(device):
            low = torch.get_autocast_dtype(device)
            query, key, value = query.to(low), key.to(low), value.to(low)
        schedule = RingSchedule(
            ring_rank, ring_size, query.shape[2], key.shape[2], key_length, is_causal, order
        )
        scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
        mask = None
        if predicate is not None:
            vectors = (tuple(query_vectors or ()), tuple(key_vectors or ()))
            mask = RingMask(predicate, *vectors, tuple(densities or ()), softcap, slopes)
        return RingCall(query, key, value, schedule, scale, mask)


def _ring_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    *,
    receiver: int,
    sender: int,
    num_ranks: int,
    group_name: str,
    **options: Any,
) -> Tensor:
    call = RingCall.of(query, key, value, is_causal, **options)
    hop = Hop(receiver, sender, num_ranks, group_name)
    vectors = () if call.mask is None else call.mask.tensors
    with torch.amp.autocast(query.device.type, enabled=False):
        result: Tensor = _OnGroup.apply(  # type: ignore[no-untyped-call]
            call.query, call.key, call.value, call, hop, *vectors
        )
    return result


LIBRARY.define(  # type: ignore[no-untyped-call]
    "ring_attention(Tensor query, Tensor key, Tensor value, bool is_causal, *, "
    "float? scale=None, int key_length, str order, int ring_rank, int ring_size, int receiver, "
    "int sender, int num_ranks, str group_name, str? predicate=None, "
    "Tensor[]? query_vectors=None, Tensor[]? key_vectors=None, float[]? densities=None, "
    "float softcap=0.0, Tensor? slopes=None) -> Tensor"
)
LIBRARY.impl("ring_attention", _ring_attention, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]

RING_ATTENTION: torch._ops.OpOverload = torch.ops.autosp.ring_attention.default
"""Attention of this rank's queries ``[B, H, rows, D]`` with the keys of all ranks of a ring."""
