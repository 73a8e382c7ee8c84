"""What the ranks run for failures that need real processes: engines, meshes, regions in a row."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

import autosp
from tests.support.gloo_cases import gradients_of, largest_difference, mean_loss, outer_loss
from tests.support.programs import WIDTH, SmallModel, nonlinear_sum, tokens


def _reference(model: SmallModel, ids: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    model(ids, labels).backward()
    gradients = gradients_of(model)
    model.zero_grad()
    return gradients


def engine_averages() -> dict[str, float]:
    """Gradients of the ranks averaged, as engines do, and summed."""
    model = SmallModel(loss=mean_loss)
    ids, labels = tokens(2, 8)
    reference = _reference(model, ids, labels)
    autosp.compile(model, inner="eager")(ids, labels).backward()
    summed = gradients_of(model)
    for gradient in summed:
        dist.all_reduce(gradient)
    num_ranks = dist.get_world_size()
    averaged = [gradient / num_ranks for gradient in summed]
    largest = max(float(gradient.abs().max()) for gradient in reference)
    return {
        "averaged": largest_difference(reference, averaged),
        "summed": largest_difference(reference, summed) / largest,
    }


def data_parallel_engine() -> dict[str, float]:
    """DDP around the compiled model, and the compilation of a DDP."""
    errors = {}
    for order in ("ddp outside", "ddp inside"):
        torch._dynamo.reset()
        model = SmallModel(loss=mean_loss)
        ids, labels = tokens(2, 8)
        reference = _reference(model, ids, labels)
        if order == "ddp outside":
            engine: torch.nn.Module = DistributedDataParallel(
                autosp.compile(model, inner="eager"), find_unused_parameters=True
            )
        else:
            engine = torch.compile(  # type: ignore[assignment]
                DistributedDataParallel(model, find_unused_parameters=True),
                backend=autosp.backend(inner="eager"),
            )
        engine(ids, labels).backward()
        errors[order] = largest_difference(reference, gradients_of(model))
    return errors


def another_mesh() -> list[float]:
    """One model compiled for three meshes in one process: each uses its own group."""
    model = SmallModel(loss=mean_loss)
    ids, labels = tokens(2, 8)
    reference = _reference(model, ids, labels)
    errors = []
    for mesh in (autosp.Mesh(sp=2), autosp.Mesh(sp=1, dp=2), autosp.Mesh(sp=2)):
        model.zero_grad()
        autosp.compile(model, mesh, inner="eager")(ids, labels).backward()
        autosp.average_gradients(model.parameters())
        errors.append(largest_difference(reference, gradients_of(model)))
    return errors


def unfit_meshes() -> dict[str, str]:
    """What is said of meshes that do not cover the processes."""
    meshes = {
        "too large": autosp.Mesh(sp=4),
        "too small": autosp.Mesh(sp=1),
        "device mesh of one rank": DeviceMesh("cpu", [0], mesh_dim_names=("sp",)),
    }
    said = {}
    for name, mesh in meshes.items():
        try:
            autosp.backend(mesh, inner="eager")
            said[name] = "accepted"
        except autosp.AutoSPError as error:
            said[name] = str(error)
    return said


class Block(SmallModel):
    """A region without an embedding: activations in, activations out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x + self.attend(x)


def regions_in_a_row() -> float:
    """The gathered output of one compiled region, read by replicated code, enters another."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64, generator=generator).requires_grad_()
    first, second = Block(), Block()
    parameters = [*first.parameters(), *second.parameters()]
    nonlinear_sum(second(first(x).sin())).backward()
    reference = [*gradients_of(first), *gradients_of(second)]
    for parameter in parameters:
        parameter.grad = None
    one, two = (autosp.compile(block, inner="eager") for block in (first, second))
    nonlinear_sum(two(one(x).sin())).backward()
    autosp.average_gradients(parameters)
    return largest_difference(reference, [*gradients_of(first), *gradients_of(second)])


def lengths_of_a_run() -> dict[str, float]:
    """Five steps, three lengths, labels shifted inside: as many compilations as lengths."""

    def shifted(model: SmallModel, x: torch.Tensor) -> torch.Tensor:
        labels = F.pad(model.labels, (0, 1), value=-100)[:, 1:]
        return outer_loss(model.logits(x), labels)

    model = SmallModel(loss=shifted)
    entry = autosp.backend(inner="eager")
    compiled = torch.compile(model, backend=entry, fullgraph=True, dynamic=False)
    worst = 0.0
    for length in (16, 16, 8, 16, 11):
        ids, labels = tokens(2, length, seed=length)
        reference = _reference(model, ids, labels)
        compiled(ids, labels).backward()
        autosp.average_gradients(model.parameters())
        worst = max(worst, largest_difference(reference, gradients_of(model)))
    return {"gradients": worst, "compilations": len(entry.compilations)}
