"""A ring attention on all ranks at once: their dialogues, answered in this process.

What the ranks compute is the code that runs in training; only what a send means is different.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autosp.runtime.ring_attention import (
    Dialogue,
    RingCall,
    Start,
    backward_dialogue,
    forward_dialogue,
)

NUM_SAVED = 5
"""Query, key, value, output and log-sum-exp."""


@dataclass(frozen=True, slots=True)
class _Ranks:
    """The calls of all ranks, and the rank from which each receives."""

    calls: tuple[RingCall, ...]
    senders: tuple[int, ...]

    def converse(self, dialogues: Sequence[Dialogue]) -> list[tuple[Tensor, ...]]:
        """Answer all dialogues in lock step; their results.

        Raises:
            AssertionError: the ranks do not send and wait alike: a run would hang.
        """
        answers: list[Any] = [None] * len(dialogues)
        while True:
            requests, results = [], []
            for dialogue, answer in zip(dialogues, answers, strict=True):
                try:
                    requests.append(dialogue.send(answer))
                except StopIteration as end:
                    results.append(end.value)
            if results:
                assert not requests, "some ranks go on sending when others have ended"
                return results
            assert len({type(request) for request in requests}) == 1, requests
            answers = [self._answer(requests, rank) for rank in range(len(requests))]

    def _answer(self, requests: Sequence[Any], rank: int) -> Tensor:
        if not isinstance(requests[rank], Start):
            waited: Tensor = requests[rank].handle
            return waited
        sent: Tensor = requests[self.senders[rank]].tensor
        assert sent.shape == requests[rank].tensor.shape, "ranks send blocks of different sizes"
        return sent


class _InLockStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ranks: _Ranks, *operands: Tensor) -> tuple[Tensor, ...]:
        own = _grouped(operands, 3)
        results = ranks.converse(
            [
                forward_dialogue(call.schedule, *tensors, scale=call.scale, mask=call.mask)
                for call, tensors in zip(ranks.calls, own, strict=True)
            ]
        )
        saved = [(*tensors, *result) for tensors, result in zip(own, results, strict=True)]
        ctx.save_for_backward(*(tensor for group in saved for tensor in group))
        ctx.ranks = ranks
        return tuple(out for out, _ in results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        ranks: _Ranks = ctx.ranks
        saved = _grouped(ctx.saved_tensors, NUM_SAVED)
        dialogues = [
            backward_dialogue(
                call.schedule, q, k, v, out, lse, cotangent, scale=call.scale, mask=call.mask
            )
            for call, (q, k, v, out, lse), cotangent in zip(
                ranks.calls, saved, cotangents, strict=True
            )
        ]
        gradients = ranks.converse(dialogues)
        return (None, *(gradient for group in gradients for gradient in group))


def _grouped(flat: Sequence[Tensor], size: int) -> list[Any]:
    return [flat[start : start + size] for start in range(0, len(flat), size)]


def ring_on_ranks(arguments: Sequence[tuple[Sequence[Any], Mapping[str, Any]]]) -> list[Tensor]:
    """The results of :data:`autosp.runtime.ring_attention.RING_ATTENTION` on all ranks.

    Args:
        arguments: one rank's positional and keyword arguments each.
    """
    transport = ("receiver", "sender", "num_ranks", "group_name")
    calls = [
        RingCall.of(*args, **{name: v for name, v in kwargs.items() if name not in transport})
        for args, kwargs in arguments
    ]
    senders = tuple(kwargs["sender"] for _, kwargs in arguments)
    for rank, (_, kwargs) in enumerate(arguments):
        assert senders[kwargs["receiver"]] == rank, "a rank sends to one that does not receive"
    operands = [t for call in calls for t in (call.query, call.key, call.value)]
    with torch.amp.autocast(operands[0].device.type, enabled=False):
        ranks = _Ranks(tuple(calls), senders)
        return list(_InLockStep.apply(ranks, *operands))  # type: ignore[no-untyped-call]
