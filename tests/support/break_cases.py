"""Programs that dynamo breaks, at every kind of place, on real ranks and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import autosp
from autosp.events import ListRecorder, PassStarted

WIDTH, NUM_HEADS, VOCABULARY = 16, 4, 32
LENGTH = 11
"""Not divisible by two: the last block has a padding row."""


class Layer(nn.Module):
    def __init__(self, *, inside: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(self.norm(x)).view(batch, length, 3, NUM_HEADS, -1)
        if self.inside:
            torch._dynamo.graph_break()
        q, k, v = (part.transpose(1, 2) for part in heads.unbind(2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(batch, length, -1))


def nothing(_x: Tensor) -> None:
    torch._dynamo.graph_break()


def reads(x: Tensor) -> None:
    torch._dynamo.graph_break()
    assert float(x.detach().square().sum()) > 0


def prints(_x: Tensor) -> None:
    print("layer", end="", flush=True)


def breaks_deeper(x: Tensor) -> None:
    def deeper() -> Tensor:
        torch._dynamo.graph_break()
        return x.sin()

    assert deeper().shape == x.shape


class Stack(nn.Module):
    """``num_layers`` layers in a loop; ``between`` is called after each of them."""

    def __init__(
        self,
        between: Callable[[Tensor], None] | None = None,
        *,
        inside: bool = False,
        before: bool = False,
        after: bool = False,
        num_layers: int = 3,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(Layer(inside=inside) for _ in range(num_layers))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.between, self.before, self.after = between, before, after

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        if self.before:
            torch._dynamo.graph_break()
        for layer in self.layers:
            x = layer(x)
            if self.between is not None:
                self.between(x)
        if self.after:
            torch._dynamo.graph_break()
        logits = self.head(x)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class Branching(Stack):
    """A condition on data in the loop; the forward changes its stream where it holds."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = layer(x)
            if x.abs().mean() > 0.5:
                x = x / 2
        logits = self.head(x)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class FromNothing(Stack):
    """The piece between two breaks has no tensor input."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        torch._dynamo.graph_break()
        scale = torch.arange(1, WIDTH + 1).sqrt()
        torch._dynamo.graph_break()
        for layer in self.layers:
            x = layer(x * scale)
        torch._dynamo.graph_break()
        logits = self.head(x)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class Dropping(Stack):
    """Random numbers in the pieces and between them."""

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = F.dropout(layer(x), 0.1)
            torch._dynamo.graph_break()
        logits = self.head(x)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class Wrapped(nn.Module):
    """A loop that breaks, inside a submodule that is called between other operators."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = Layer(), Stack(nothing)
        self.inner.embedding = nn.Identity()  # type: ignore[assignment]
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.first(self.embedding(input_ids))
        return self.inner(torch.sin(x), labels) * 2


PROGRAMS: dict[str, Callable[[], nn.Module]] = {
    "in the loop, read": lambda: Stack(reads),
    "print in the loop": lambda: Stack(prints),
    "nested": lambda: Stack(breaks_deeper),
    "everywhere": lambda: Stack(reads, inside=True, before=True, after=True),
    "branch on data": Branching,
    "from nothing": FromNothing,
    "in a submodule": Wrapped,
}


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, VOCABULARY, (2, LENGTH), generator=generator)
    return {"input_ids": ids, "labels": ids.roll(1, 0)}


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return PROGRAMS[name]()


@dataclass(frozen=True)
class Subject:
    """What :mod:`autosp.verification` runs."""

    module: nn.Module
    kwargs: dict[str, Tensor]
    args: tuple[Any, ...] = ()


def dropping() -> Subject:
    torch.manual_seed(0)
    return Subject(Dropping(num_layers=2).double(), batch())


def compare(name: str) -> dict[str, Any]:
    """Two steps of the pieces beside the eager model; every rank must call it."""
    model, reference = build(name).double(), build(name).double()
    recorder = ListRecorder()
    torch._dynamo.reset()
    compiled = autosp.compile(model, inner="eager", allow_breaks=True, recorder=recorder)
    errors = {"loss": 0.0, "gradients": 0.0}
    for _ in range(2):
        loss, expected = compiled(**batch()), reference(**batch())
        loss.backward()
        expected.backward()
        autosp.average_gradients(model.parameters())
        errors["loss"] = max(errors["loss"], float((loss - expected).detach().abs()))
        for mine, its in zip(model.parameters(), reference.parameters(), strict=True):
            if its.grad is None:  # averaging makes it zero
                assert mine.grad is None or not mine.grad.any()
                continue
            assert mine.grad is not None
            difference = float((mine.grad - its.grad).abs().max())
            errors["gradients"] = max(errors["gradients"], difference)
            with torch.no_grad():
                mine -= 0.1 * mine.grad
                its -= 0.1 * its.grad
            mine.grad = its.grad = None
    pieces = {event.compilation for event in recorder.events if isinstance(event, PassStarted)}
    return {**errors, "pieces": len(pieces), "ranks": dist.get_world_size()}
