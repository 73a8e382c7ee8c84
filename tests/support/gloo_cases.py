"""What the ranks of the verification tests run; every rank calls the same functions.

Processes start slowly, so all cases of one number of ranks share one start. A case returns
plain numbers on rank 0; the tests judge them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

import autosp
from autosp.events import ListRecorder, PassStarted
from autosp.verification import VerifyRequest, verify_on_this_rank
from tests.support.programs import VOCABULARY, SmallModel, tokens

SAMPLES = Path(__file__).parents[2] / "samples"


@dataclass(frozen=True)
class Subject:
    module: torch.nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def sample(name: str, *, batch: int, length: int, dtype: str) -> Subject:
    """A tiny sample model; ignored labels cross the shard edges and fill the last shard."""
    torch.manual_seed(0)
    model = sample_model(name, tiny=True).to(getattr(torch, dtype))
    ids = torch.randint(0, 128, (batch, length))
    labels = ids.clone()
    middle = length // 2
    labels[0, middle - 2 : middle + 2] = -100
    labels[:, -(length // 4 + 1) :] = -100
    return Subject(model, kwargs={"input_ids": ids, "labels": labels})


def sample_model(name: str, **options: Any) -> torch.nn.Module:
    specification = importlib.util.spec_from_file_location(name, SAMPLES / f"{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # dynamo looks up there what an inner module's code refers to
    specification.loader.exec_module(module)
    model: torch.nn.Module = module.build(**options)
    return model


def small(*, batch: int, length: int, num_kv_heads: int = 12) -> Subject:
    return Subject(SmallModel(loss=mean_loss, num_kv_heads=num_kv_heads), tokens(batch, length))


def mean_loss(model: SmallModel, x: torch.Tensor) -> torch.Tensor:
    logits = model.logits(x)
    return F.cross_entropy(logits.view(-1, VOCABULARY), model.labels.view(-1))


def logits_of(model: SmallModel, x: torch.Tensor) -> torch.Tensor:
    return model.logits(x)


def loss_and_logits(model: SmallModel, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return mean_loss(model, x), model.logits(x)


def loss_and_shifted_logits(
    model: SmallModel, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return mean_loss(model, x), model.logits(x)[:, :-1]


def outer_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


Case = Callable[[], Any]


def run_cases(cases: Mapping[str, Case]) -> dict[str, Any]:
    """All cases in order; an exception becomes the result of its case."""
    results: dict[str, Any] = {}
    for name, case in cases.items():
        try:
            results[name] = case()
        except Exception as error:  # reported by the test of this case
            results[name] = f"{type(error).__name__}: {error}"
        torch._dynamo.reset()
        dist.barrier()
    return results


def verification(build: Callable[[], Subject], **options: Any) -> Case:
    request = VerifyRequest(build=build, **options)
    return partial(verify_on_this_rank, request)


def assert_gradients_and_loss_equal(report: Any, *, more_than: int = 3) -> None:
    """The report of a :func:`verification`, or the message that its case ended with."""
    assert not isinstance(report, str), report
    wrong = [g for g in report.gradients if not g.rel_error <= report.tolerance]
    assert not wrong, (wrong, report.first_wrong_detail)
    assert report.loss_error <= report.loss_tolerance
    assert len(report.gradients) > more_than


# ------------------------------------------------------------------ the entries for training


def gradients_of(model: torch.nn.Module) -> list[torch.Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


def largest_difference(left: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    assert len(left) == len(right)
    return max((float((a - b).abs().max()) for a, b in zip(left, right, strict=True)), default=0.0)


def backend_entry_at_two_lengths() -> dict[str, float]:
    """``torch.compile(model, backend=...)`` without any other option, at two lengths."""
    model = SmallModel(loss=mean_loss)
    entry = autosp.backend(inner="eager")
    compiled = torch.compile(model, backend=entry)
    errors = {}
    for length in (8, 11, 8):
        ids, labels = tokens(2, length, seed=length)
        model.zero_grad()
        expected = model(ids, labels)
        expected.backward()
        reference = gradients_of(model)
        model.zero_grad()
        loss = compiled(ids, labels)
        loss.backward()
        autosp.average_gradients(model.parameters())
        errors[f"loss {length}"] = abs(float(loss - expected))
        errors[f"gradients {length}"] = largest_difference(reference, gradients_of(model))
    errors["compilations"] = len(entry.compilations)
    return errors


def logits_are_whole_when_read(**options: Any) -> dict[str, Any]:
    model = SmallModel(loss=loss_and_logits)
    ids, labels = tokens(2, 7)
    _, expected = model(ids, labels)
    _, logits = autosp.compile(model, inner="eager", **options)(ids, labels)
    shape = tuple(logits.shape)
    return {"shape": shape, "error": float((logits - expected).abs().max().detach())}


def shifted_logits_are_whole_when_read() -> dict[str, Any]:
    model = SmallModel(loss=loss_and_shifted_logits)
    ids, labels = tokens(2, 8)
    _, expected = model(ids, labels)
    _, logits = autosp.compile(model, inner="eager")(ids, labels)
    return {"shape": tuple(logits.shape), "equal": bool(torch.allclose(logits, expected))}


def backward_through_detached_logits() -> str:
    model = SmallModel(loss=loss_and_logits)
    ids, labels = tokens(2, 7)
    loss, logits = autosp.compile(model, inner="eager")(ids, labels)
    try:
        (loss + (logits * logits).mean()).backward()
    except autosp.AutoSPError as error:
        return str(error)
    return "no error"


def loss_outside_on_gathered_logits(**options: Any) -> float:
    return _loss_outside(lambda model: autosp.compile(model, inner="eager", **options))


def _loss_outside(compile_model: Callable[[torch.nn.Module], Any]) -> float:
    model = SmallModel(loss=logits_of)
    ids, labels = tokens(2, 7)
    outer_loss(model(ids, labels), labels).backward()
    reference = gradients_of(model)
    model.zero_grad()
    outer_loss(compile_model(model)(ids, labels), labels).backward()
    autosp.average_gradients(model.parameters())
    return largest_difference(reference, gradients_of(model))


def loss_compiled_inside() -> dict[str, float]:
    model = SmallModel(loss=logits_of)
    ids, labels = tokens(2, 7)
    expected = outer_loss(model(ids, labels), labels)
    expected.backward()
    reference = gradients_of(model)
    model.zero_grad()
    compiled = autosp.compile(model, loss=outer_loss, inner="eager")
    loss = compiled(ids, labels, targets=labels)
    loss.backward()
    autosp.average_gradients(model.parameters())
    difference = largest_difference(reference, gradients_of(model))
    return {"loss": abs(float(loss - expected)), "gradients": difference}


def evaluation_without_gradients(**options: Any) -> float:
    model = SmallModel(loss=logits_of)
    ids, labels = tokens(2, 7)
    compiled = autosp.compile(model, inner="eager", **options)
    with torch.no_grad():
        return float((compiled(ids, labels) - model(ids, labels)).abs().max())


def parts_of_the_sequence_on_each_rank() -> dict[str, float]:
    """Each rank passes its own tokens; the ranks' parts differ in length."""
    model = SmallModel(loss=logits_of)
    ids, labels = tokens(2, 7)
    expected = outer_loss(model(ids, labels), labels)
    expected.backward()
    reference = gradients_of(model)
    model.zero_grad()
    compiled = autosp.compile(
        model,
        loss=outer_loss,
        inner="eager",
        sharded_inputs={"ids": 1, "labels": 1, "targets": -1},
    )
    own = slice(0, 4) if dist.get_rank() == 0 else slice(4, 7)
    loss = compiled(ids[:, own], labels=labels[:, own], targets=labels[:, own])
    loss.backward()
    autosp.average_gradients(model.parameters())
    difference = largest_difference(reference, gradients_of(model))
    return {"loss": abs(float(loss - expected)), "gradients": difference}


class OfEmbeddings(torch.nn.Module):
    """Takes embeddings instead of tokens."""

    def __init__(self, inner: SmallModel) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs_embeds: torch.Tensor) -> torch.Tensor:
        x = inputs_embeds + self.inner.attend(inputs_embeds)
        return torch.sin(self.inner.logits(x)).mean()


def parts_of_embeddings_on_each_rank() -> float:
    """The embedding is looked up outside, per rank; its gradient must be right as well."""
    inner = SmallModel()
    model, ids = OfEmbeddings(inner), tokens(2, 8)[0]
    model(F.embedding(ids, inner.embedding)).backward()
    reference = gradients_of(model)
    model.zero_grad()
    compiled = autosp.compile(model, inner="eager", sharded_inputs={"inputs_embeds": 1})
    own = ids.chunk(dist.get_world_size(), 1)[dist.get_rank()]
    compiled(F.embedding(own, inner.embedding)).backward()
    autosp.average_gradients(model.parameters())
    return largest_difference(reference, gradients_of(model))


def parts_that_do_not_fit_together() -> str:
    compiled = autosp.compile(SmallModel(), inner="eager", sharded_inputs={"ids": 1})
    ids, labels = tokens(2 + dist.get_rank(), 7)
    try:
        compiled(ids, labels)
    except autosp.AutoSPError as error:
        return str(error)
    return "no error"


def unknown_sharded_input() -> str:
    try:
        autosp.compile(SmallModel(), inner="eager", sharded_inputs={"input_id": 1})
    except autosp.AutoSPError as error:
        return str(error)
    return "no error"


class Broken(torch.nn.Module):
    """Two blocks with constructs between them that dynamo cannot trace."""

    def __init__(self, read: Callable[[torch.Tensor], None] | None = None) -> None:
        super().__init__()
        self.first, self.second = SmallModel(), SmallModel()
        self.read = read
        self.lengths: list[int] = []

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = F.embedding(input_ids, self.first.embedding)
        x = x + self.first.attend(x)
        torch._dynamo.graph_break()
        self.lengths.append(x.shape[1])
        if self.read is not None:
            self.read(x)
        x = torch.sin(x + self.second.attend(x))
        torch._dynamo.graph_break()
        logits = self.second.logits(x)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return loss + 0.1 * torch.logsumexp(logits, -1).square().mean()


def broken_program(
    read: Callable[[torch.Tensor], None] | None = None, **options: Any
) -> dict[str, Any]:
    """Pieces of a broken program, with how many gathers happened between them."""
    from autosp.runtime import gathered

    counted = {"gathers": 0}
    gather_blocks = gathered.gather_blocks

    def counting(*arguments: Any) -> torch.Tensor:
        counted["gathers"] += 1
        return gather_blocks(*arguments)

    model, (ids, labels) = Broken(read), tokens(2, 7)
    expected = model(ids, labels)
    expected.backward()
    reference = gradients_of(model)
    model.zero_grad()
    recorder = ListRecorder()
    compiled = autosp.compile(model, inner="eager", allow_breaks=True, recorder=recorder, **options)
    gathered.gather_blocks = counting
    try:
        loss = compiled(ids, labels)
        loss.backward()
    finally:
        gathered.gather_blocks = gather_blocks
    autosp.average_gradients(model.parameters())
    pieces = {event.compilation for event in recorder.events if isinstance(event, PassStarted)}
    return {
        "loss": abs(float(loss.detach() - expected.detach())),
        "gradients": largest_difference(reference, gradients_of(model)),
        "pieces": len(pieces),
        **counted,
    }


def read_a_sum(x: torch.Tensor) -> None:
    assert float(x.detach().sum()) != 0


def broken_program_that_reads() -> dict[str, Any]:
    return broken_program(read_a_sum)
