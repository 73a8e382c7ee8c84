"""A small transformer as plain data, and the module that carries it out.

``embedding -> before -> attention -> after -> loss``: the bodies are lists of steps on named
values. Everything that a test needs to know stands in the description, so that the printed
form of a failing one can be pasted into a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.generated_operators import OPERATORS

VOCABULARY = 47
"""Enough for batches of tokens that all differ: equal ones tie in every choice of a maximum."""
LONGEST = 16

MASKS = (
    "none", "causal", "causal_bool", "causal_float", "padding", "causal_padding", "window",
    "documents", "per_head",
)  # fmt: skip
INDEX_MASKS = ("none", "causal", "causal_bool", "causal_float", "window", "per_head")
"""Those that do not look at the tokens."""
INPUTS = ("ids", "ids_and_positions", "ids_and_slice", "floats")
LABELS = ("all", "random", "one", "first_block", "last_block")
LOSSES = (
    "sum", "outside", "mse", "cross_entropy", "shifted", "padded_shift", "summed", "per_token",
    "smoothed", "weighted", "by_count", "z_loss", "several", "nll",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """``r<n> = operator(*inputs, *arguments)`` of step ``n``."""

    operator: str
    inputs: tuple[str, ...]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class GeneratedProgram:
    """One model with its input, and the numbers of ranks it is cut over."""

    batch: int = 1
    length: int = 8
    ranks: tuple[int, ...] = (2,)
    """Numbers of ranks; one capture serves them all."""
    heads: int = 12
    kv_heads: int = 12
    head_size: int = 2
    mask: str = "causal"
    repeat_kv: bool = False
    """KV heads are repeated in the model; otherwise the attention is told to."""
    rotary: bool = False
    inputs: str = "ids"
    prefix: int = 0
    """Learned rows that are put before the sequence for the attention."""
    attends_again: bool = False
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    loss: str = "sum"
    labels: str = "random"
    tied: bool = True
    frozen: tuple[str, ...] = ()
    dtype: str = "float64"
    autocast: bool = False

    @property
    def width(self) -> int:
        return self.heads * self.head_size


class GeneratedModel(nn.Module):
    """Carries a description out."""

    def __init__(self, program: GeneratedProgram) -> None:
        super().__init__()
        self.program = program
        generator = torch.Generator().manual_seed(0)
        dtype = getattr(torch, program.dtype)
        width, kv_width = program.width, program.kv_heads * program.head_size
        shapes = {
            "embedding": (VOCABULARY, width),
            "query": (width, width),
            "key": (kv_width, width),
            "value": (kv_width, width),
            "weight": (width, width),
            "scale": (width,),
            "table": (LONGEST, width),
        }
        if not program.tied:
            shapes["head"] = (VOCABULARY, width)
        for name, shape in shapes.items():
            values = torch.randn(*shape, generator=generator, dtype=torch.float64)
            values = (values / shape[-1] ** 0.5 + (name == "scale")).to(dtype)
            self.register_parameter(
                name, nn.Parameter(values, requires_grad=name not in program.frozen)
            )

    def forward(self, ids: Tensor, labels: Tensor, floats: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.program.autocast):
            return self._forward(ids, labels, floats)

    def _forward(self, ids: Tensor, labels: Tensor, floats: Tensor) -> Any:
        program = self.program
        x = floats if program.inputs == "floats" else F.embedding(ids, self.embedding)
        if program.inputs == "ids_and_positions":
            x = x + F.embedding(torch.arange(ids.shape[1]), self.table)
        if program.inputs == "ids_and_slice":
            x = x + self.table[: ids.shape[1]]
        x, _ = self._body(program.before, x, ids)
        x = self._with_attention(x, ids)
        x, results = self._body(program.after, x, ids)
        if program.attends_again:
            x = self._with_attention(x, ids)
        if program.loss == "outside":
            return (x, *(r for r in results if r.is_floating_point()))
        if program.loss == "sum":
            return sum((nonlinear_sum(r) for r in results), nonlinear_sum(x))
        return self._loss(x, labels)

    def _body(self, steps: tuple[Step, ...], x: Tensor, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The results of all steps, and ``x`` with all of them mixed in."""
        values = body_inputs(x, ids, weight=self.weight, scale=self.scale, table=self.table)
        results = []
        for number, step in enumerate(steps):
            given = [values[name] for name in step.inputs]
            result = OPERATORS[step.operator].apply(*given, *step.arguments)
            values[f"r{number}"] = result
            results.append(result)
        x = values["x"]
        for result in results:
            x = absorb(x, result)
        return x, results

    def _with_attention(self, x: Tensor, ids: Tensor) -> Tensor:
        prefix = self.program.prefix
        if not prefix:
            return x + self._attend(x, ids)
        rows = self.table[:prefix].to(x.dtype).expand(x.shape[0], -1, -1)
        wide = torch.cat([rows, x], 1)
        return (wide + self._attend(wide, ids))[:, prefix:]

    def _attend(self, x: Tensor, ids: Tensor) -> Tensor:
        program = self.program
        batch, length, width = x.shape

        def heads(weight: Tensor, number: int) -> Tensor:
            rows = F.linear(x, weight).view(batch, length, number, program.head_size)
            return rows.transpose(1, 2)

        q = heads(self.query, program.heads)
        k, v = heads(self.key, program.kv_heads), heads(self.value, program.kv_heads)
        if program.rotary:
            q, k = rotate(q), rotate(k)
        grouped = program.heads != program.kv_heads
        if grouped and program.repeat_kv:
            k, v = (repeated_heads(t, program.heads // program.kv_heads) for t in (k, v))
            grouped = False
        y = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=attention_mask(program.mask, ids, length, program.heads, q.dtype),
            is_causal=program.mask == "causal",
            enable_gqa=grouped,
        )  # fmt: skip
        return y.transpose(1, 2).reshape(batch, length, width)

    def _loss(self, x: Tensor, labels: Tensor) -> Tensor:
        kind = self.program.loss
        logits = F.linear(x, self.embedding if self.program.tied else self.head)
        classes = logits.shape[-1]
        rows, targets = logits.reshape(-1, classes), labels.reshape(-1)
        match kind:
            case "mse":
                return F.mse_loss(x, self.table[: x.shape[1]].expand_as(x))
            case "shifted":
                return F.cross_entropy(
                    logits[:, :-1].reshape(-1, classes), labels[:, 1:].reshape(-1)
                )
            case "padded_shift":
                moved = F.pad(labels, (0, 1), value=-100)[:, 1:]
                return F.cross_entropy(rows.float(), moved.reshape(-1))
            case "summed":
                return F.cross_entropy(rows, targets, reduction="sum") / 7
            case "per_token":
                losses = F.cross_entropy(rows, targets, reduction="none")
                return (losses.view_as(labels) * (labels % 3 + 1)).sum() / (labels >= 0).sum()
            case "smoothed":
                return F.cross_entropy(rows, targets, label_smoothing=0.1)
            case "weighted":
                weight = torch.linspace(0.5, 1.5, classes, dtype=logits.dtype)
                return F.cross_entropy(rows, targets, weight=weight)
            case "by_count":
                total = F.cross_entropy(rows, targets, reduction="sum")
                return total / (labels != -100).sum()
            case "z_loss":
                z = torch.logsumexp(logits, -1)
                return F.cross_entropy(rows, targets) + 1e-2 * z.square().mean()
            case "several":
                return F.cross_entropy(rows, targets) + 0.1 * F.mse_loss(x, x.detach().sin())
            case "nll":
                return F.nll_loss(F.log_softmax(rows, -1), targets)
            case _:
                return F.cross_entropy(logits.transpose(1, 2), labels)


def body_inputs(
    x: Tensor, ids: Tensor, *, weight: Tensor, scale: Tensor, table: Tensor
) -> dict[str, Tensor]:
    """The values that the steps of a body can name at their start."""
    length, width = x.shape[1], x.shape[2]
    positions = torch.arange(length, device=x.device)
    angles = positions[:, None] * torch.linspace(0.1, 1.0, width, device=x.device)
    return {
        "x": x,
        "ids": ids,
        "positions": positions,
        "is_even": (ids % 2 == 0)[..., None],
        "rotary": angles.cos().to(x.dtype),
        "table": table[:length],
        "weight": weight,
        "scale": scale,
    }


def absorb(x: Tensor, result: Tensor) -> Tensor:
    """``x`` with a result of any shape mixed in."""
    part = torch.sin(result.to(x.dtype) + 0.3)
    return x + (part if fits(part, x) else part.mean())


def fits(part: Tensor, x: Tensor) -> bool:
    """Whether ``part`` broadcasts to the shape of ``x``."""
    missing = x.dim() - part.dim()
    return missing >= 0 and all(
        own in (1, size) for own, size in zip(part.shape, x.shape[missing:], strict=True)
    )


def nonlinear_sum(x: Tensor) -> Tensor:
    return torch.sin(x.to(torch.float64) + 0.3).sum()


def rotate(x: Tensor) -> Tensor:
    """Rotary embedding of ``[batch, heads, length, size]``."""
    length, size = x.shape[-2:]
    frequencies = 10.0 ** -torch.linspace(0, 1, size // 2)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    cos, sin = (torch.cat([t, t], -1).to(x.dtype) for t in (angles.cos(), angles.sin()))
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def repeated_heads(x: Tensor, times: int) -> Tensor:
    batch, heads, length, size = x.shape
    wide = x[:, :, None].expand(batch, heads, times, length, size)
    return wide.reshape(batch, heads * times, length, size)


def attention_mask(
    kind: str, ids: Tensor, length: int, heads: int, dtype: torch.dtype
) -> Tensor | None:
    """True (or 0) where a query may look; every query may look at itself."""
    index = torch.arange(length)
    q, k = index[:, None], index[None, :]
    match kind:
        case "none" | "causal":
            return None
        case "causal_bool":
            return torch.ones(length, length, dtype=torch.bool).tril()
        case "causal_float":
            return torch.full((length, length), -30.0, dtype=dtype).triu(1)
        case "padding":
            return (ids % 3 != 0)[:, None, None, :] | (q == k)
        case "causal_padding":
            return ((ids % 3 != 0)[:, None, None, :] & (k <= q)) | (q == k)
        case "window":
            return (k <= q) & (q - k < 3)
        case "documents":
            document = (ids % 4 == 0).cumsum(-1)
            return (document[:, None, :, None] == document[:, None, None, :]) & (k <= q)
        case "per_head":
            slopes = torch.linspace(0.1, 1.0, heads)[:, None, None]
            return (slopes * (k - q)).to(dtype).masked_fill(k > q, -30.0)[None]
        case _:
            raise AssertionError(kind)


def program_inputs(program: GeneratedProgram) -> tuple[Tensor, Tensor, Tensor]:
    """Ids that all differ, labels of which some are ignored, and floats."""
    generator = torch.Generator().manual_seed(1)
    shape = (program.batch, program.length)
    ids = torch.randperm(VOCABULARY, generator=generator)[: program.batch * program.length]
    labels = torch.randint(0, VOCABULARY, shape, generator=generator)
    block = -(-program.length // min(program.ranks))
    match program.labels:
        case "random":
            ignored = torch.rand(shape, generator=generator) < 0.4
            ignored[0, -1] = False
            labels[ignored] = -100
        case "one":
            kept = labels[0, -1].clone()
            labels.fill_(-100)
            labels[0, -1] = kept
        case "first_block":
            labels[:, :block] = -100
            labels[0, -1] = 3
        case "last_block":
            labels[:, -block:] = -100
            labels[0, 1] = 3
    floats = torch.randn(*shape, program.width, generator=generator, dtype=torch.float64)
    return ids.view(shape), labels, floats.to(getattr(torch, program.dtype))
