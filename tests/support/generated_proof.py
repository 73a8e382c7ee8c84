"""The proof of one generated program: eager, as captured, and on the ranks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from autosp.capture import CapturedProgram
from autosp.errors import AutoSPError, VerificationError
from autosp.graph import output_node
from autosp.oracle import check_program
from autosp.oracle.check import with_captured
from autosp.oracle.compare import coarsest_tolerance, difference, largest
from autosp.oracle.lockstep import run_whole
from tests.support.generated_program import GeneratedModel, GeneratedProgram, program_inputs


class NotAModel(Exception):
    """Eager PyTorch itself cannot run the program, or not to finite numbers."""


@dataclass(frozen=True)
class Outcome:
    refusal: str = ""
    """The compiler's message; empty when the program was compiled and is right."""
    num_fallbacks: int = 0


def prove_program(program: GeneratedProgram) -> list[Outcome]:
    """For each number of ranks: right on all of them, or refused with a reason.

    Raises:
        NotAModel: there is nothing to compare with.
        AssertionError: a wrong value or cotangent.
        Exception: whatever the compiler dies of.
    """
    model = GeneratedModel(program)
    inputs = program_inputs(program)
    eager = _eager(copy.deepcopy(model), inputs)  # a program may write its own state
    outcomes: list[Outcome] = []

    def check(captured: CapturedProgram, real: Sequence[Any]) -> None:
        _check_capture(captured, real, eager)
        outcomes.extend(_on_ranks(captured, real, number) for number in program.ranks)

    try:
        with_captured(model, inputs, {}, check)
    except AutoSPError as refusal:
        return [_refused(refusal)] * len(program.ranks)
    return outcomes


def _on_ranks(captured: CapturedProgram, real: Sequence[Any], num_ranks: int) -> Outcome:
    try:
        report = check_program(captured.program, real, num_ranks=num_ranks, captured=captured)
    except AutoSPError as refusal:
        return _refused(refusal)
    assert report.ok, f"on {num_ranks} ranks: {report.first_wrong}"
    assert report.num_values_checked > 5
    return Outcome(num_fallbacks=report.num_fallbacks)


def _refused(refusal: AutoSPError) -> Outcome:
    """A refusal names what is refused; a contradiction inside the compiler is none."""
    if isinstance(refusal, VerificationError):
        raise refusal
    assert refusal.message and refusal.hint, refusal
    return Outcome(refusal=f"{type(refusal).__name__}: {refusal.message}")


@dataclass(frozen=True)
class _Results:
    outputs: list[Tensor]
    gradients: dict[str, Tensor]


def _eager(model: GeneratedModel, inputs: tuple[Tensor, ...]) -> _Results:
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    try:
        outputs = tree_leaves(model(*inputs))
        results = _Results([o.detach() for o in outputs], _gradients(outputs, parameters))
    except RuntimeError as error:
        raise NotAModel(str(error)) from error
    every = [*results.outputs, *results.gradients.values()]
    if not all(bool(value.isfinite().all()) for value in every):
        raise NotAModel("not finite")
    if largest(every) > 1e6:
        raise NotAModel("too large to compare")
    return results


def _gradients(outputs: Sequence[Tensor], of: dict[str, Tensor]) -> dict[str, Tensor]:
    total = sum(
        (o.double() * torch.linspace(1, 2, o.numel(), dtype=torch.float64).view(o.shape)).sum()
        for o in outputs
        if o.requires_grad
    )
    if not isinstance(total, Tensor):
        raise NotAModel("nothing to train")
    found = torch.autograd.grad(total, list(of.values()), allow_unused=True)
    return {
        name: torch.zeros_like(of[name]) if gradient is None else gradient
        for name, gradient in zip(of, found, strict=True)
    }


def _check_capture(captured: CapturedProgram, real: Sequence[Any], eager: _Results) -> None:
    """The captured program, run whole, computes what the module does."""
    values = run_whole(captured.program, real)
    leaves = tree_leaves(output_node(captured.program.graph).args[0])
    outputs = [values[leaf.name] for leaf in leaves]
    nodes = captured.program.graph.find_nodes(op="placeholder")
    parameters = {
        given.name: values[node.name]
        for node, given in zip(nodes, captured.inputs, strict=True)
        if given.trainable
    }
    gradients = _gradients(outputs, parameters)
    tolerance = coarsest_tolerance(captured.program)
    for expected, actual in zip(eager.outputs, outputs, strict=True):
        found = difference(expected, actual, scale=1.0)
        assert not found.exceeds(tolerance), f"captured output: {found}"
    scale = largest(eager.gradients.values())
    for name, expected in eager.gradients.items():
        actual = gradients.get(name, torch.zeros_like(expected))
        found = difference(expected, actual, scale=scale)
        assert not found.exceeds(tolerance), f"captured gradient of {name}: {found}"
