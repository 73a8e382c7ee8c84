"""Building a model under fake tensors, so that nothing is allocated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

CPU = torch.device("cpu")


def new_fake_mode() -> FakeTensorMode:
    """A mode in which also real constants of the user's module may take part."""
    return FakeTensorMode(allow_non_fake_inputs=True)


@contextlib.contextmanager
def fake_build(fake_mode: FakeTensorMode) -> Iterator[None]:
    """Within it, modules are built fake and ``module.to(...)`` works on them."""
    original = nn.Module._apply
    nn.Module._apply = _replacing_apply()  # type: ignore[method-assign]
    try:
        with fake_mode:
            yield
    finally:
        nn.Module._apply = original  # type: ignore[method-assign]


def _replacing_apply() -> Callable[..., nn.Module]:
    """``Module._apply`` that puts new parameters in place of the old ones.

    Torch's own swaps the contents of fake tensors, which it refuses when anything holds
    a weak reference. Tied parameters stay tied: one conversion per parameter and call.
    """
    converted: dict[int, tuple[Tensor, Tensor]] = {}
    depth = 0

    def convert(tensor: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
        if id(tensor) not in converted:
            with torch.no_grad():
                result = fn(tensor)
            if isinstance(tensor, nn.Parameter) and result is not tensor:
                attributes = tensor.__dict__ if not isinstance(tensor, FakeTensor) else {}
                result = nn.Parameter(result.detach(), requires_grad=tensor.requires_grad)
                result.__dict__.update(attributes)
            converted[id(tensor)] = (tensor, result)  # keeps the id alive
        return converted[id(tensor)][1]

    def apply(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        nonlocal depth
        depth += 1
        try:
            if recurse:
                for child in module.children():
                    apply_to_tensors(child, fn)
            stores: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for tensors in stores:
                for name, tensor in tensors.items():
                    if tensor is not None:
                        tensors[name] = convert(tensor, fn)
        finally:
            depth -= 1
            if depth == 0:
                converted.clear()
        return module

    return apply


def apply_to_tensors(module: nn.Module, fn: Callable[[Tensor], Tensor]) -> None:
    """``module._apply(fn)``: ``fn`` on every parameter and buffer, in place."""
    module._apply(fn)  # type: ignore[no-untyped-call]


def make_fake(module: nn.Module, fake_mode: FakeTensorMode) -> nn.Module:
    """Replace what is real or on the meta device by fake CPU tensors, in place."""

    def convert(tensor: Tensor) -> Tensor:
        if isinstance(tensor, FakeTensor) and tensor.fake_mode is fake_mode:
            return tensor if tensor.device == CPU else _on_cpu(tensor)
        if tensor.is_meta:
            return _on_cpu(tensor)
        return fake_mode.from_tensor(tensor.detach(), static_shapes=True)

    with fake_build(fake_mode):
        apply_to_tensors(module, convert)
    return module


def _on_cpu(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=CPU)


def cast_floating(module: nn.Module, dtype: torch.dtype, fake_mode: FakeTensorMode | None) -> None:
    """Cast the floating parameters, and the floating buffers that are saved with them.

    Buffers outside the state dict (rotary frequencies) keep the precision they were
    made with, as they do when a checkpoint is loaded in ``dtype``.
    """
    keep = {id(b) for m in module.modules() for b in _unsaved_buffers(m)}

    def convert(tensor: Tensor) -> Tensor:
        if id(tensor) in keep or not tensor.is_floating_point():
            return tensor
        return tensor.to(dtype)

    if fake_mode is None:
        apply_to_tensors(module, convert)
        return
    with fake_build(fake_mode):
        apply_to_tensors(module, convert)


def _unsaved_buffers(module: nn.Module) -> list[Tensor]:
    names = module._non_persistent_buffers_set
    return [b for n, b in module._buffers.items() if n in names and b is not None]


def fake_inputs(value: Any, fake_mode: FakeTensorMode) -> Any:
    """``value`` (tensors in tuples, lists and dicts) with every tensor fake and on the CPU."""
    if isinstance(value, Tensor):
        if isinstance(value, FakeTensor) and value.fake_mode is fake_mode:
            return value
        return fake_mode.from_tensor(value, static_shapes=True)
    if isinstance(value, dict):
        return {key: fake_inputs(item, fake_mode) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(fake_inputs(item, fake_mode) for item in value)
    return value
