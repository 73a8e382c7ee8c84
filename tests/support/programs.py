"""Small models around one attention, so that a sharding rule can be proved by the oracle.

``embedding -> before -> attention -> after -> loss``: ``before`` and ``after`` hold the
operators under test. The embedding's output is where the sequence is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autosp.capture import CapturedProgram
from autosp.oracle import OracleReport, check_program
from autosp.oracle.check import with_captured

VOCABULARY = 17
NUM_HEADS = 12
"""Fits 2, 3 and 4 ranks."""
HEAD_SIZE = 2
WIDTH = NUM_HEADS * HEAD_SIZE

Case = tuple[int, int, int]
"""Batch, length, number of ranks."""
CASES: tuple[Case, ...] = ((1, 8, 2), (2, 5, 4))
"""No padding; rows of padding, and a rank that holds nothing else."""
ALL_CASES: tuple[Case, ...] = ((1, 12, 2), (2, 5, 2), (2, 5, 3), (2, 5, 4), (2, 7, 4))

Body = Callable[["SmallModel", Tensor], Any]
"""The operators under test: ``body(model, x[batch, length, WIDTH]) -> tensor(s)``."""


class SmallModel(nn.Module):
    """One attention between two bodies; the loss is a nonlinear sum of what comes out."""

    def __init__(
        self,
        *,
        before: Body | None = None,
        after: Body | None = None,
        loss: Callable[[SmallModel, Tensor], Any] | None = None,
        num_kv_heads: int = NUM_HEADS,
        attention: Callable[..., Tensor] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def parameter(*shape: int) -> nn.Parameter:
            values = torch.randn(*shape, generator=generator, dtype=torch.float64)
            return nn.Parameter((values / shape[-1] ** 0.5).to(dtype))

        self.before, self.after, self.loss = before, after, loss
        self.attention = attention
        self.num_kv_heads = num_kv_heads
        self.embedding = parameter(VOCABULARY, WIDTH)
        self.query = parameter(WIDTH, WIDTH)
        self.key = parameter(num_kv_heads * HEAD_SIZE, WIDTH)
        self.value = parameter(num_kv_heads * HEAD_SIZE, WIDTH)
        self.weight = parameter(WIDTH, WIDTH)
        self.bias = parameter(WIDTH)
        self.positions = parameter(1, 64, WIDTH)
        self.ids: Tensor
        self.labels: Tensor

    def forward(self, ids: Tensor, labels: Tensor) -> Any:
        self.ids, self.labels = ids, labels
        x = F.embedding(ids, self.embedding)
        if self.before is not None:
            x = self.before(self, x)
        x = x + self.attend(x)
        if self.after is not None:
            x = self.after(self, x)
        if self.loss is not None:
            return self.loss(self, x)
        parts = x if isinstance(x, tuple) else (x,)
        return sum(nonlinear_sum(part) for part in parts)

    def attend(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape

        def heads(weight: Tensor, number: int) -> Tensor:
            return F.linear(x, weight).view(batch, length, number, HEAD_SIZE).transpose(1, 2)

        q = heads(self.query, NUM_HEADS)
        k, v = heads(self.key, self.num_kv_heads), heads(self.value, self.num_kv_heads)
        if self.attention is not None:
            y = self.attention(self, q, k, v)
        else:
            grouped = self.num_kv_heads != NUM_HEADS
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return y.transpose(1, 2).reshape(batch, length, WIDTH)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embedding)


class FourHeads(SmallModel):
    """As many heads as eight ranks cannot share out."""

    NUM_HEADS = 4

    def __init__(self, num_kv_heads: int = 4, **options: Any) -> None:
        super().__init__(**options)
        size = WIDTH // self.NUM_HEADS
        self.key = nn.Parameter(self.key[: num_kv_heads * size].detach().clone())
        self.value = nn.Parameter(self.value[: num_kv_heads * size].detach().clone())

    def attend(self, x: Tensor) -> Tensor:
        def heads(weight: Tensor) -> Tensor:
            return F.linear(x, weight).unflatten(-1, (-1, WIDTH // self.NUM_HEADS)).transpose(1, 2)

        q, k, v = heads(self.query), heads(self.key), heads(self.value)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return y.transpose(1, 2).reshape(x.shape)


def nonlinear_sum(x: Tensor) -> Tensor:
    """A loss whose cotangents differ from element to element."""
    return torch.sin(x.to(torch.float64) + 0.3).sum()


def tokens(batch: int, length: int, *, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Random ids and labels; some labels are ignored.

    The ids of a sequence differ: equal tokens side by side would give equal rows, and the
    choice of a maximum among those is up to rounding.
    """
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack(
        [torch.randperm(VOCABULARY, generator=generator)[:length] for _ in range(batch)]
    )
    labels = torch.randint(0, VOCABULARY, (batch, length), generator=generator)
    labels[torch.rand(batch, length, generator=generator) < 0.25] = -100
    return ids, labels


@dataclass(frozen=True)
class Proof:
    """The verdict for one number of ranks on one input."""

    num_ranks: int
    batch: int
    length: int
    report: OracleReport

    def __str__(self) -> str:
        return f"P={self.num_ranks} batch={self.batch} length={self.length}: {self.report}"


def prove(
    model: nn.Module,
    *,
    inputs: Callable[[int, int], tuple[Any, ...]] = tokens,
    cases: Sequence[Case] = CASES,
    **options: Any,
) -> list[Proof]:
    """Capture ``model`` at each shape and run the oracle for each number of ranks."""
    proofs: list[Proof] = []
    for batch, length in dict.fromkeys(case[:2] for case in cases):

        def check(
            captured: CapturedProgram,
            real: Sequence[Any],
            batch: int = batch,
            length: int = length,
        ) -> None:
            for num_ranks in [c[2] for c in cases if c[:2] == (batch, length)]:
                report = check_program(
                    captured.program, real, num_ranks=num_ranks, captured=captured, **options
                )
                proofs.append(Proof(num_ranks, batch, length, report))

        with_captured(model, inputs(batch, length), {}, check)
    return proofs


def assert_right(model: nn.Module, *, max_fallbacks: int | None = 0, **options: Any) -> None:
    """Every value and cotangent is right on every number of ranks.

    ``max_fallbacks``: how many operators may take the all-gather path; None: any number.
    """
    for proof in prove(model, **options):
        assert proof.report.ok, f"{proof.report.first_wrong} ({proof})"
        assert proof.report.num_cotangents_checked > 5, proof
        if max_fallbacks is not None:
            assert proof.report.num_fallbacks <= max_fallbacks, proof
