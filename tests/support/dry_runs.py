"""Dry runs of the samples at tiny sizes, for tests."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from autosp.dry_run import DryRunRequest, DryRunResult, dry_run
from autosp.hardware import Device
from autosp.mesh import Mesh
from autosp_inspector.recorder import TraceRecorder
from autosp_inspector.target.fake_build import fake_build, new_fake_mode

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


def sample_factory(name: str) -> Callable[..., torch.nn.Module]:
    """The ``build`` of a sample file."""
    if str(SAMPLES) not in sys.path:
        sys.path.insert(0, str(SAMPLES))
    factory: Callable[..., torch.nn.Module] = importlib.import_module(name).build
    return factory


def request_for(
    model: str | Callable[[], torch.nn.Module],
    *,
    sp: int,
    seq: int,
    dp: int = 1,
    batch: int = 1,
    device: Device | None = None,
    **options: object,
) -> DryRunRequest:
    """A request for a sample (tiny) or for the module that a callable makes."""
    fake_mode = new_fake_mode()
    with fake_build(fake_mode):
        module = sample_factory(model)(tiny=True) if isinstance(model, str) else model()
        ids = torch.randint(0, 16, (batch, seq))
        kwargs = {"input_ids": ids}
        if "labels" in inspect.signature(module.forward).parameters:
            kwargs["labels"] = ids.clone()
    return DryRunRequest(
        model=module.train(),
        args=(),
        kwargs=kwargs,
        fake_mode=fake_mode,
        mesh=Mesh(sp=sp, dp=dp),
        model_name=str(model),
        device=device,
        **options,  # type: ignore[arg-type]
    )


def dry_run_sample(name: str, *, sp: int, seq: int, **options: object) -> DryRunResult:
    return dry_run(request_for(name, sp=sp, seq=seq, **options))  # type: ignore[arg-type]


def record_sample(name: str, path: Path, *, sp: int, seq: int, **options: object) -> Path:
    """The dry run of a sample, kept as a trace."""
    with TraceRecorder(path) as recorder:
        dry_run(request_for(name, sp=sp, seq=seq, **options), recorder=recorder)
    return path
