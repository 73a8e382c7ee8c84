"""Models called with several lengths, and what ranks do with one program for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import autosp
from tests.support import custom_functions as functions
from tests.support.gloo_cases import gradients_of, largest_difference, sample
from tests.support.programs import VOCABULARY, WIDTH, SmallModel, tokens

BODIES = {
    "sum": SmallModel(after=lambda m, x: x.sum(1)),
    "largest": SmallModel(after=lambda m, x: x.amax(1) + x.softmax(1).sum(1)),
    "deviation": SmallModel(after=lambda m, x: x.std(1, keepdim=True) * x.cumsum(1)),
    "divided by the length": SmallModel(after=lambda m, x: x.sum(1) / x.shape[1] ** 0.5),
    "edges": SmallModel(after=lambda m, x: x[:, 0] + x[:, -1] + x[:, :3].sum(1)),
    "shifted": SmallModel(after=lambda m, x: x[:, 1:] + x[:, :-1]),
    "token shift": SmallModel(after=lambda m, x: torch.cat([x[:, :1], x[:, :-1]], 1)),
    "half": SmallModel(after=lambda m, x: x[:, : x.shape[1] // 2]),
    "product of tokens": SmallModel(after=lambda m, x: x.mT @ x),
    "positions": SmallModel(before=lambda m, x: x + m.positions[:, : x.shape[1]]),
    "assigned": SmallModel(after=lambda m, x: assigned(x)),
    "written by index": SmallModel(after=lambda m, x: written_by_index(m, x)),
    "own backward": SmallModel(after=functions.BODIES["clipped"]),
    "dropout": SmallModel(after=lambda m, x: F.dropout(x, 0.3)),
    "explicit mask": SmallModel(attention=lambda m, q, k, v: masked(m, q, k, v, torch.tril)),
    "window": SmallModel(attention=lambda m, q, k, v: masked(m, q, k, v, window)),
    "written out": SmallModel(attention=lambda m, q, k, v: (q @ k.mT).softmax(-1) @ v),
    "shifted loss": SmallModel(loss=lambda m, x: shifted_loss(m, x)),
    "logits beside a loss": SmallModel(loss=lambda m, x: (x.pow(2).mean(), m.logits(x)[:, :-1])),
}
"""What each operator does with rows must be right at every length."""


def assigned(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1:3] = 0.5
    return y


def written_by_index(model: SmallModel, x: Tensor) -> Tensor:
    rows = x.index_put((torch.arange(len(x))[:, None], torch.tensor([[0, 3]])), model.bias)
    places = (model.ids % x.shape[1])[..., None].expand_as(x)
    largest = rows.scatter_add(1, places, x).cummax(1)
    return largest.values.sin() * largest.indices


def window(mask: Tensor) -> Tensor:
    return mask.tril().triu(-3)


def masked(model: SmallModel, q: Tensor, k: Tensor, v: Tensor, shape: Any) -> Tensor:
    length = q.shape[2]
    mask = shape(torch.ones(length, length, dtype=torch.bool, device=q.device))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def shifted_loss(model: SmallModel, x: Tensor) -> Tensor:
    scores = model.logits(x)[:, :-1].reshape(-1, VOCABULARY)
    return F.cross_entropy(scores, model.labels[:, 1:].reshape(-1))


def convolved(model: SmallModel, x: Tensor) -> Tensor:
    kernel = model.weight[:, :3].reshape(WIDTH, 1, 3)
    return F.conv1d(x.mT, kernel, padding=2, groups=WIDTH)[..., : x.shape[1]].mT


def marked(*inputs: Tensor) -> tuple[Tensor, ...]:
    """The inputs, their sequence dim marked."""
    for given in inputs:
        torch._dynamo.mark_dynamic(given, 1)
    return inputs


def small_call(batch: int, length: int) -> tuple[Any, Any]:
    return marked(*tokens(batch, length)), {}


def sample_call(name: str, batch: int, length: int) -> tuple[Any, Any]:
    subject = sample(name, batch=batch, length=length, dtype="float64")
    marked(*subject.args, *subject.kwargs.values())
    return subject.args, subject.kwargs


# ------------------------------------------------------------------ on real ranks


def one_program_for_lengths(name: str, lengths: Sequence[int]) -> dict[str, float]:
    """A sample under ``torch.compile`` with marked inputs, against the eager model."""
    model = sample(name, batch=2, length=16, dtype="float64").module
    entry = autosp.backend(inner="eager")
    compiled = torch.compile(model, backend=entry, fullgraph=True)
    errors = {}
    for length in lengths:
        _, inputs = sample_call(name, 2, length)
        errors |= _errors(model, compiled, (), inputs, str(length))
    return {**errors, "compilations": len(entry.compilations)}


def _errors(
    model: torch.nn.Module, compiled: Any, args: Any, kwargs: Any, what: str
) -> dict[str, float]:
    model.zero_grad()
    expected = loss_of(model(*args, **kwargs))
    expected.backward()
    reference = gradients_of(model)
    model.zero_grad()
    loss = loss_of(compiled(*args, **kwargs))
    loss.backward()
    autosp.average_gradients(model.parameters())
    return {
        f"loss {what}": abs(float(loss.detach() - expected.detach())),
        f"gradients {what}": largest_difference(reference, gradients_of(model)),
    }


def loss_of(output: Any) -> Tensor:
    loss: Tensor = output if isinstance(output, Tensor) else output.loss
    return loss


def logits_of_every_length() -> dict[str, float]:
    """Sharded logits that are read, compiled by ``autosp.compile(dynamic=True)``, of any batch."""
    model = BODIES["logits beside a loss"]
    compiled = autosp.compile(model, inner="eager", dynamic=True)
    errors = {}
    for batch, length in ((2, 12), (3, 9), (4, 15)):
        ids, labels = tokens(batch, length)
        expected_loss, expected = model(ids, labels)
        with torch._dynamo.config.patch(error_on_recompile=True):
            loss, logits = compiled(ids, labels)
        assert logits.shape == expected.shape
        errors[f"loss {length}"] = abs(float((loss - expected_loss).detach()))
        errors[f"logits {length}"] = float((logits.detach() - expected.detach()).abs().max())
    return errors


def parts_of_every_length() -> dict[str, float]:
    """Each rank passes its own part of the tokens, of another length each time."""
    model = SmallModel(loss=shifted_loss)
    sharded = {"ids": 1, "labels": 1}
    compiled = autosp.compile(model, inner="eager", dynamic=True, sharded_inputs=sharded)
    rank, errors = torch.distributed.get_rank(), {}
    for length in (12, 9, 14):
        whole = tokens(2, length)
        parts = [given.tensor_split(2, 1)[rank].contiguous() for given in whole]
        model.zero_grad()
        expected = model(*whole)
        expected.backward()
        reference = gradients_of(model)
        model.zero_grad()
        with torch._dynamo.config.patch(error_on_recompile=True):
            loss = compiled(*parts)
        loss.backward()
        autosp.average_gradients(model.parameters())
        errors[f"loss {length}"] = abs(float((loss - expected).detach()))
        errors[f"gradients {length}"] = largest_difference(reference, gradients_of(model))
    return errors


def function_of_every_length() -> dict[str, float]:
    """A custom function, whose backward gathers, and the loss after it."""
    model = SmallModel(after=functions.BODIES["mixing"], loss=shifted_loss)
    compiled = autosp.compile(model, inner="eager", dynamic=True)
    errors = {}
    for length in (12, 9, 14):
        with torch._dynamo.config.patch(error_on_recompile=bool(errors)):
            errors |= _errors(model, compiled, tokens(2, length), {}, str(length))
    return errors


def ring_of_a_dynamic_length() -> dict[str, float]:
    """Is refused on every rank."""
    compiled = autosp.compile(BODIES["sum"], inner="eager", dynamic=True, attention="ring")
    compiled(*tokens(2, 12))
    return {}
