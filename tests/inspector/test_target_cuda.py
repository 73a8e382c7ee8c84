"""Code written for CUDA runs on the CPU inside ``cuda_on_cpu``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autosp_inspector.target.cuda import cuda_on_cpu


@pytest.fixture
def cuda() -> Iterator[None]:
    with cuda_on_cpu():
        yield


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, device="cuda"),
        lambda: torch.zeros(2, device=0),
        lambda: torch.zeros(2, device=torch.device("cuda", 1)),
        lambda: torch.zeros(2).cuda(),
        lambda: torch.zeros(2).to("cuda:3"),
        lambda: torch.zeros(2).to(0),
        lambda: torch.zeros(2).to(device="cuda", dtype=torch.float16),
        lambda: torch.zeros(2).new_ones(3, device="cuda"),
        lambda: torch.zeros_like(torch.zeros(2), device="cuda"),
        lambda: torch.zeros(2, pin_memory=True).pin_memory(),
        lambda: nn.Linear(2, 2, device="cuda").weight,
        lambda: nn.Linear(2, 2).cuda().to("cuda").weight,
    ],
)
def test_tensors_end_on_the_cpu(cuda: None, make: Any) -> None:
    assert make().device == torch.device("cpu")


@pytest.mark.parametrize(
    ("context", "dtype"),
    [
        (lambda: torch.autocast("cuda", dtype=torch.bfloat16), torch.bfloat16),
        (lambda: torch.autocast(device_type="cuda"), torch.float16),
        (lambda: torch.amp.autocast("cuda", torch.bfloat16), torch.bfloat16),
        (lambda: torch.autocast("cuda", enabled=False), torch.float32),
    ],
)
def test_autocast_for_cuda_acts_on_the_cpu(cuda: None, context: Any, dtype: torch.dtype) -> None:
    linear = nn.Linear(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with context():
            assert linear(torch.zeros(1, 2)).dtype == dtype


def test_default_devices_for_cuda_mean_the_cpu(cuda: None) -> None:
    with torch.device("cuda"):
        assert torch.zeros(2).device.type == "cpu"
    torch.set_default_device("cuda")
    assert torch.zeros(2).device.type == "cpu"


def test_functions_of_torch_cuda_answer(cuda: None) -> None:
    torch.cuda.set_device(0)
    torch.cuda.synchronize()
    torch.cuda.manual_seed_all(3)
    assert torch.cuda.device_count() == 1
    assert torch.cuda.current_device() == 0
    assert torch.cuda.get_device_capability() == (8, 0)
    assert torch.cuda.get_device_properties(0).total_memory == 80 * 1024**3
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.cuda.device(0):
        stream.synchronize()
    generator = torch.Generator(device="cuda").manual_seed(5)
    assert isinstance(generator, torch.Generator)
    assert generator.device.type == "cpu"


def test_only_the_users_files_are_told_that_cuda_is_there(cuda: None, tmp_path: Path) -> None:
    assert torch.cuda.is_available()
    library = compile("import torch; seen = torch.cuda.is_available()", nn.__file__, "exec")
    names: dict[str, Any] = {}
    exec(library, names)
    assert names["seen"] is False


def test_everything_is_restored_also_after_an_error() -> None:
    watched = (
        (torch.cuda, "is_available"),
        (torch.cuda.Stream, "__new__"),
        (torch.cuda.device, "__init__"),
        (torch, "Generator"),
        (torch.autocast, "__init__"),
    )
    before = [getattr(owner, name) for owner, name in watched]
    with pytest.raises(ValueError, match="stop"), cuda_on_cpu(), cuda_on_cpu():
        torch.set_default_device("cuda")
        raise ValueError("stop")
    assert [getattr(owner, name) for owner, name in watched] == before
    assert torch.get_default_device() == torch.device("cpu")
    assert torch.overrides._get_current_function_mode_stack() == []
    assert torch.device("cuda").type == "cuda"
