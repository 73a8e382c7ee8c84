"""Runs the compiled program on real gloo processes and compares it with the eager model.

    request = VerifyRequest(build=partial(build_subject, "samples/gpt.py"), ranks=2)
    report = verify(request)
    report.ok, report.as_dict()

``build`` is called once in each process, with the same random numbers everywhere; what it
returns has ``module``, ``args`` and ``kwargs`` (the inputs of the *whole* batch). It must
be picklable: a function of a module, or a ``functools.partial`` of one.

A model that draws random numbers (dropout) is compared with its compiled program on one rank,
for torch's own numbers depend on the order in which they are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from autosp.attention_choice import AttentionChoice
from autosp.dynamo import compiled_region
from autosp.errors import AutoSPError, MeshError
from autosp.events import SilentRecorder
from autosp.graph import tensor_of
from autosp.loggers import quiet_loggers
from autosp.loss_of import own_loss, sum_of_outputs
from autosp.mesh import Mesh
from autosp.oracle import check_module
from autosp.output_hooks import install_output_hooks
from autosp.runtime.groups import RankGroup, average_gradients
from autosp.torch_backend import Backend, backend
from autosp.torch_refusals import refusals_in_our_words
from autosp.verification_processes import TIMEOUT_S, run_on_ranks
from autosp.verification_report import (
    COMPILED_REFERENCE,
    EAGER_REFERENCE,
    GRADIENT_FLOOR,
    TOLERANCES,
    UPCAST_TOLERANCE,
    GradientError,
    VerifyReport,
)

LEARNING_RATE = 0.05


class Subject(Protocol):
    """A real model with real inputs."""

    @property
    def module(self) -> torch.nn.Module: ...

    @property
    def args(self) -> Sequence[Any]: ...

    @property
    def kwargs(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What to compare.

    ``ranks`` processes are ``dp`` groups of ``ranks / dp`` sequence-parallel ones; with
    ``dp > 1`` the batch (dim 0 of the tensor inputs) is divided among the groups.
    """

    build: Callable[[], Subject]
    ranks: int = 2
    dp: int = 1
    dtype: Literal["float64", "float32"] = "float64"
    """What ``build`` makes; chooses the tolerances."""
    inner: str = "eager"
    partitioner: str = "min-cut"
    attention: AttentionChoice = "auto"
    allow_breaks: bool = False
    steps: int = 0
    """SGD steps after which the parameters are compared, too."""
    regulariser: float = 0.0
    """Times the sum of squared parameters: added to the loss outside the compiled model."""
    random_seed: int = 0
    """Of dropout and other random operators."""

    def __post_init__(self) -> None:
        if self.dtype not in TOLERANCES:
            raise AutoSPError(
                f"cannot verify in {self.dtype}", hint=f"Choose {' or '.join(TOLERANCES)}"
            )
        if self.dp < 1 or self.ranks % self.dp:
            raise MeshError(f"{self.ranks} ranks cannot form {self.dp} data-parallel groups")

    def seed_of(self, step: int) -> int:
        """Seed of torch's generator before a forward, for random operators."""
        return self.random_seed + step

    @property
    def mesh(self) -> Mesh:
        return Mesh(sp=self.ranks // self.dp, dp=self.dp)


def verify(
    request: VerifyRequest,
    progress: Callable[[str], None] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> VerifyReport:
    """Start the processes and compare; the oracle looks for the node if something differs.

    Raises:
        RankError: the model cannot be compiled, or a process failed; one clear line.
    """
    if progress is not None:
        progress(f"run the compiled program on {request.ranks} processes")
    report: VerifyReport = run_on_ranks(
        _Verification(request), num_ranks=request.ranks, timeout_s=timeout_s
    )
    return report


@dataclass(frozen=True, slots=True)
class _Verification:
    request: VerifyRequest

    def __call__(self) -> VerifyReport | None:
        return verify_on_this_rank(self.request)


def verify_on_this_rank(request: VerifyRequest) -> VerifyReport | None:
    """The part of one process; every rank of the process group must call it.

    Returns:
        The report on rank 0, None elsewhere.
    """
    compiled, entry = _train_compiled(request)
    if dist.get_rank() != 0:
        return None
    is_random = any(compilation.draw_random_keys() for compilation in entry.compilations)
    reference = _train_reference(request, compiled=is_random)
    tolerance = TOLERANCES[request.dtype]
    upcasts = request.dtype == "float64" and _computes_in_float32(entry)
    wrong_gradients = _gradient_errors(reference, compiled)
    report = VerifyReport(
        ranks=request.ranks,
        dtype=request.dtype,
        loss_reference=reference.loss,
        loss_compiled=compiled.loss,
        gradients=wrong_gradients,
        tolerance=tolerance,
        loss_tolerance=UPCAST_TOLERANCE if upcasts else tolerance,
        parameter_error=_parameter_error(reference, compiled) if request.steps else None,
        reference=COMPILED_REFERENCE if is_random else EAGER_REFERENCE,
    )
    return report if report.ok else _explained(report, request)


@dataclass(frozen=True, slots=True)
class _Training:
    """The first loss and gradients, and the parameters after the steps."""

    loss: float
    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]


def _train_compiled(request: VerifyRequest) -> tuple[_Training, Backend]:
    subject = request.build()
    entry = backend(
        request.mesh,
        inner=request.inner,
        partitioner=request.partitioner,
        attention=request.attention,
        allow_breaks=request.allow_breaks,
    )
    install_output_hooks(subject.module)
    torch._dynamo.reset()
    compiled = compiled_region(subject.module, entry, allow_breaks=request.allow_breaks)
    group = dist.get_rank() // request.mesh.sp
    args, kwargs = _share_of_batch(subject, group, request.dp)

    def backward(step: int) -> float:
        torch.manual_seed(request.seed_of(step))
        with refusals_in_our_words():
            loss = _loss(compiled(*args, **kwargs), subject.module, request)
        loss.backward()  # type: ignore[no-untyped-call]
        average_gradients(subject.module.parameters())
        total = loss.detach().double()
        dist.all_reduce(total)
        return float(total / request.ranks)

    return _train(subject.module, backward, request.steps), entry


def _train_reference(request: VerifyRequest, *, compiled: bool) -> _Training:
    """Train in this process alone.

    Args:
        compiled: as the program of one rank instead of the eager model: random operators draw
            other numbers there, and only keyed ones can be compared.
    """
    subject = request.build()
    torch._dynamo.reset()
    shares = [_share_of_batch(subject, group, request.dp) for group in range(request.dp)]
    models = [
        _compiled_on_one_rank(subject.module, request, group) if compiled else subject.module
        for group in range(request.dp)
    ]

    def backward(step: int) -> float:
        total = 0.0
        for model, (args, kwargs) in zip(models, shares, strict=True):
            torch.manual_seed(request.seed_of(step))
            loss = _loss(model(*args, **kwargs), subject.module, request)
            (loss / request.dp).backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach()) / request.dp
        return total

    return _train(subject.module, backward, request.steps)


def _compiled_on_one_rank(
    module: torch.nn.Module, request: VerifyRequest, group: int
) -> Callable[..., Any]:
    """The program of the only rank of data-parallel group ``group``; it communicates nothing."""
    alone = RankGroup(Mesh(sp=1, dp=request.dp, rank=group), dist.group.WORLD)
    entry = Backend(
        alone,
        inner=request.inner,
        partitioner=request.partitioner,
        recorder=SilentRecorder(),
        padding_fill="last",
        allow_breaks=request.allow_breaks,
    )
    compiled: Callable[..., Any] = compiled_region(module, entry, allow_breaks=request.allow_breaks)
    return compiled


def _train(module: torch.nn.Module, backward: Callable[[int], float], steps: int) -> _Training:
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    with quiet_loggers():
        loss = backward(0)
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in named.items()
    }
    for step in range(steps):
        if step:
            backward(step)
        with torch.no_grad():
            for parameter in named.values():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=LEARNING_RATE)
                parameter.grad = None
    parameters = {name: p.detach().clone() for name, p in named.items()}
    return _Training(loss, gradients, parameters)


def _loss(output: Any, module: torch.nn.Module, request: VerifyRequest) -> torch.Tensor:
    own = own_loss(output)
    loss = sum_of_outputs(output) if own is None else own
    if request.regulariser:
        squares = sum(p.square().sum() for p in module.parameters() if p.requires_grad)
        loss = loss + request.regulariser * squares
    return loss


def _share_of_batch(subject: Subject, group: int, dp: int) -> tuple[Any, Any]:
    def share(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() == 0 or dp == 1:
            return value
        if value.shape[0] % dp:
            raise MeshError(f"a batch of {value.shape[0]} cannot be divided among {dp} groups")
        return value.chunk(dp)[group]

    args, kwargs = tree_map(share, (tuple(subject.args), dict(subject.kwargs)))
    return args, kwargs


def _gradient_errors(reference: _Training, compiled: _Training) -> tuple[GradientError, ...]:
    sizes = {name: _size(gradient) for name, gradient in reference.gradients.items()}
    floor = GRADIENT_FLOOR * max(sizes.values(), default=0.0)
    return tuple(
        GradientError(
            name, _relative(_size(gradient - compiled.gradients[name]), sizes[name], floor)
        )
        for name, gradient in reference.gradients.items()
    )


def _parameter_error(reference: _Training, compiled: _Training) -> float:
    pairs = [(p, compiled.parameters[name]) for name, p in reference.parameters.items()]
    scale = max((_size(p) for p, _ in pairs), default=0.0)
    return max((_relative(_size(p - q), scale, 0.0) for p, q in pairs), default=0.0)


def _size(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _relative(error: float, size: float, floor: float) -> float:
    if error == 0:
        return 0.0
    magnitude = max(size, floor)
    return error / magnitude if magnitude else float("inf")


def _computes_in_float32(entry: Backend) -> bool:
    """Whether the model itself leaves float64 for float32 somewhere."""
    return any(
        tensor is not None and tensor.dtype == torch.float32
        for compilation in entry.compilations
        for tensor in map(tensor_of, compilation.captured.program.graph.nodes)
    )


def _explained(report: VerifyReport, request: VerifyRequest) -> VerifyReport:
    """With the first wrong node that the oracle finds, in a program that is one graph."""
    if request.allow_breaks:
        return replace(report, first_wrong_detail="no node is looked for where breaks are allowed")
    subject = request.build()
    args, kwargs = _share_of_batch(subject, 0, request.dp)
    found = check_module(
        subject.module, args, kwargs, num_ranks=request.mesh.sp, attention=request.attention
    ).first_wrong
    if found is None:
        return replace(report, first_wrong_detail="the oracle finds every node right")
    return replace(
        report,
        first_wrong_node=found.name,
        first_wrong_detail=str(found),
        first_wrong=found.as_dict(),
    )
