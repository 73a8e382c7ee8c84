"""Training under a DeepSpeed engine beside one process, on real ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.fx import GraphModule, Interpreter, Node

import autosp
from autosp.graph import collective_kind
from autosp.inner import Compiled, Eager
from tests.support.gloo_cases import sample_model
from tests.support.without_native_operators import use_none

LENGTH = 21
"""Not divisible by the numbers of ranks: padding rows are included."""
PADDED = {2: 22, 4: 24}
BATCH = 3
"""Rows of a micro batch."""
WIDTH = 64
"""Of the tiny samples."""


@dataclass(frozen=True)
class Training:
    """What is trained, and how; one description serves the engine and the single process."""

    sp: int = 2
    model: str = "gpt"
    stage: int = 0
    steps: int = 20
    micro_steps: int = 1
    optimizer: str = "SGD"
    clipping: float = 0.0
    bf16: bool = False
    offload: bool = False

    @property
    def dp(self) -> int:
        return dist.get_world_size() // self.sp


@dataclass(frozen=True)
class Comparison:
    """Of rank 0's engine with the single process."""

    loss_error: float
    """The largest relative error of a step's loss."""
    parameter_error: float
    """The largest error of a parameter, relative to the largest parameter."""
    norms: tuple[tuple[float, float], ...]
    """Global gradient norm before clipping of each step: the engine's, the single process's."""
    num_all_to_alls: int
    """That really ran on this rank."""
    whole_activations: tuple[str, ...]
    """Values that had the whole sequence at the whole width."""


class Watching(Eager):
    """The inner compiler ``eager``, which looks at every value that is computed."""

    def __init__(self, whole: tuple[int, int], sequence: tuple[int, ...]) -> None:
        self.num_all_to_alls = 0
        self.whole_activations: list[str] = []
        self._whole_size, self._sequence = whole[0] * whole[1], sequence

    def compile_forward(self, module: GraphModule, inputs: Sequence[Any]) -> Compiled:
        return self._watched(module)

    def compile_backward(self, module: GraphModule, inputs: Sequence[Any]) -> Compiled:
        return self._watched(module)

    def _watched(self, module: GraphModule) -> Compiled:
        def run(arguments: list[Any]) -> Any:
            return _Watch(module, self.look).boxed_run(arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def look(self, node: Node, value: Any) -> None:
        self.num_all_to_alls += collective_kind(node) == "all_to_all"
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return
        if set(value.shape) & set(self._sequence) and value.numel() >= self._whole_size:
            self.whole_activations.append(f"{node.name} {tuple(value.shape)}")


class _Watch(Interpreter):
    def __init__(self, module: GraphModule, look: Callable[[Node, Any], None]) -> None:
        super().__init__(module)
        self._look = look

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        self._look(n, value)
        return value


def new_model(training: Training) -> torch.nn.Module:
    torch.manual_seed(0)
    return sample_model(training.model, tiny=True)


def batches(training: Training) -> list[list[torch.Tensor]]:
    """Micro batches by step; a data-parallel group takes its row of each."""
    generator = torch.Generator().manual_seed(1)
    shape = (BATCH * training.dp, LENGTH)
    return [
        [torch.randint(0, 128, shape, generator=generator) for _ in range(training.micro_steps)]
        for _ in range(training.steps)
    ]


def config(training: Training) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": training.stage}
    if training.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": training.micro_steps,
        "sequence_parallel_size": training.sp,
        "zero_optimization": zero,
        "gradient_clipping": training.clipping,
        "bf16": {"enabled": training.bf16},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def new_optimizer(training: Training, model: torch.nn.Module) -> torch.optim.Optimizer:
    kind = getattr(torch.optim, training.optimizer)
    optimizer: torch.optim.Optimizer = kind(
        model.parameters(), lr=0.05 if kind is torch.optim.SGD else 1e-3
    )
    return optimizer


def new_engine(training: Training, model: torch.nn.Module, **changes: Any) -> Any:
    """``changes`` of the config; None takes a key out."""
    os.environ.setdefault("LOCAL_RANK", str(dist.get_rank()))
    import deepspeed

    use_none()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=new_optimizer(training, model),
        config={k: v for k, v in {**config(training), **changes}.items() if v is not None},
        dist_init_required=False,
    )
    return engine


def rows_of_this_group(batch: torch.Tensor, training: Training) -> torch.Tensor:
    group = autosp.Mesh(training.sp, training.dp, dist.get_rank()).dp_rank
    return batch[BATCH * group : BATCH * (group + 1)]


def compare(training: Training) -> Comparison:
    """Train under the engine and in one process; every rank must call it."""
    model = new_model(training)
    watching = Watching((BATCH * LENGTH, WIDTH), (LENGTH, PADDED[training.sp]))
    engine: Any = autosp.compile(new_engine(training, model), inner=watching)
    losses, norms = [], []
    for step in batches(training):
        step_losses = []
        for batch in step:
            ids = rows_of_this_group(batch, training)
            loss = engine(ids, labels=ids)
            engine.backward(loss)
            engine.step()
            step_losses.append(_mean_over_groups(loss.detach(), training))
        losses.append(sum(step_losses) / len(step_losses))
        norms.append(engine.get_global_grad_norm())
    return _comparison(training, model, losses, norms, watching)


def compare_fsdp(training: Training) -> Comparison:
    """FSDP2 on the whole model; every rank must call it."""
    model = fully_shard(new_model(training), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    watching = Watching((BATCH * LENGTH, WIDTH), (LENGTH, PADDED[training.sp]))
    compiled: Any = autosp.compile(model, autosp.Mesh(training.sp, training.dp), inner=watching)
    optimizer = new_optimizer(training, model)
    losses, norms = [], []
    for (batch,) in batches(training):
        ids = rows_of_this_group(batch, training)
        loss = compiled(ids, labels=ids)
        loss.backward()
        limit = training.clipping or float("inf")
        norm: Any = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        norms.append(float(norm.full_tensor()))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(_mean_over_groups(loss.detach(), training))
    whole = new_model(training)
    for parameter, shard in zip(whole.parameters(), model.parameters(), strict=True):
        parameter.data = shard.full_tensor().detach()
    return _comparison(training, whole, losses, norms, watching)


def _comparison(
    training: Training,
    model: torch.nn.Module,
    losses: Sequence[float],
    norms: Sequence[Any],
    watching: Watching,
) -> Comparison:
    reference, expected_losses, expected_norms = _single_process(training)
    return Comparison(
        loss_error=max(abs(a - b) / b for a, b in zip(losses, expected_losses, strict=True)),
        parameter_error=_parameter_error(model, reference),
        norms=tuple(
            (float(found), expected)
            for found, expected in zip(norms, expected_norms, strict=True)
            if found is not None
        ),
        num_all_to_alls=watching.num_all_to_alls,
        whole_activations=tuple(watching.whole_activations),
    )


def inner_fsdp_error() -> str:
    model: Any = new_model(Training(model="llama"))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return error_of(lambda: autosp.compile(model, inner="eager"))


def _mean_over_groups(loss: torch.Tensor, training: Training) -> float:
    total = loss.double()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def _single_process(training: Training) -> tuple[torch.nn.Module, list[float], list[float]]:
    model = new_model(training)
    optimizer = new_optimizer(training, model)
    losses, norms = [], []
    for step in batches(training):
        total = 0.0
        for batch in step:
            loss = model(batch, labels=batch) / training.micro_steps
            loss.backward()
            total += float(loss.detach())
        losses.append(total)
        limit = training.clipping or float("inf")
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), limit)))
        optimizer.step()
        optimizer.zero_grad()
    return model, losses, norms


def _parameter_error(model: torch.nn.Module, reference: torch.nn.Module) -> float:
    pairs = list(zip(model.parameters(), reference.parameters(), strict=True))
    largest = max(float(expected.detach().abs().max()) for _, expected in pairs)
    return max(float((a.float() - b).detach().abs().max()) for a, b in pairs) / largest


# ------------------------------------------------------------------ what is refused


def error_of(action: Callable[[], Any]) -> str:
    """The message of the error that ``action`` ends with on this rank."""
    try:
        action()
    except Exception as error:  # dynamo wraps errors of the first call
        return f"{type(error).__name__}: {error}"
    return ""


def compile_error(**changes: Any) -> str:
    """What ``autosp.compile`` says of an engine with this change of its config."""
    training = Training()
    engine = new_engine(training, new_model(training), **changes)
    return error_of(lambda: autosp.compile(engine, inner="eager"))


def degree_error() -> str:
    training = Training()
    engine = new_engine(training, new_model(training))
    return error_of(lambda: autosp.compile(engine, autosp.Mesh(sp=1, dp=2), inner="eager"))


def doubled_gradients_error() -> str:
    """An engine that makes gradients twice the average is caught before its first step."""
    training = Training()
    model = new_model(training)
    engine: Any = autosp.compile(new_engine(training, model), inner="eager")
    reduce = engine.allreduce_gradients

    def reduce_and_double(*args: Any, **kwargs: Any) -> None:
        reduce(*args, **kwargs)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad *= 2

    engine.allreduce_gradients = reduce_and_double
    before = [parameter.detach().clone() for parameter in model.parameters()]
    ids = batches(training)[0][0]
    engine.backward(engine(ids, labels=ids))
    error = error_of(engine.step)
    unchanged = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    return error if unchanged else "the parameters changed"


def different_batches_error() -> str:
    training = Training()
    model = new_model(training)
    compiled: Any = autosp.compile(model, inner="eager")
    ids = batches(training)[0][0] + dist.get_rank()
    return error_of(lambda: compiled(ids % 128, labels=ids % 128))


def later_batches_error() -> str:
    """The second batch differs in one bit of one value."""
    training = Training()
    compiled: Any = autosp.compile(new_model(training), inner="eager")
    ids = batches(training)[0][0]
    compiled(ids, labels=ids)
    labels = ids.clone()
    labels[-1, 5] ^= dist.get_rank()
    return error_of(lambda: compiled(ids, labels=labels))


def different_models_error() -> str:
    torch.manual_seed(dist.get_rank())
    compiled: Any = autosp.compile(sample_model("gpt", tiny=True), inner="eager")
    ids = batches(Training())[0][0]
    return error_of(lambda: compiled(ids, labels=ids))


def gradients_not_averaged_error() -> str:
    training = Training()
    model = new_model(training)
    compiled: Any = autosp.compile(model, inner="eager")
    optimizer = new_optimizer(training, model)
    ids = batches(training)[0][0]
    compiled(ids, labels=ids).backward()
    optimizer.step()
    return error_of(lambda: compiled(ids, labels=ids))


# ------------------------------------------------------------------ data, checkpoints


def samples_of_ranks() -> list[list[int]]:
    """What each rank reads in one epoch on a mesh of 2 x 2."""
    sampler = autosp.data_parallel_sampler(range(8), autosp.Mesh(sp=2, dp=2), seed=3)  # type: ignore[arg-type]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, list(sampler))
    return gathered


def resumed(folder: str) -> tuple[list[float], list[float]]:
    """Losses after a checkpoint: of the engine that wrote it, and resumed without SP."""
    training = Training(stage=1, optimizer="AdamW", steps=4)
    steps = batches(training)
    engine: Any = autosp.compile(new_engine(training, new_model(training)), inner="eager")
    _train(engine, steps[:2])
    engine.save_checkpoint(folder)
    expected = _train(engine, steps[2:])
    torch.manual_seed(1)
    other = sample_model(training.model, tiny=True)
    resumed: Any = new_engine(training, other, sequence_parallel_size=1)
    resumed.load_checkpoint(folder)
    return expected, _train(resumed, steps[2:])


def _train(engine: Any, steps: list[list[torch.Tensor]]) -> list[float]:
    losses = []
    for (ids,) in steps:
        loss = engine(ids, labels=ids)
        engine.backward(loss)
        engine.step()
        losses.append(float(loss.detach()))
    return losses
