"""Running a file that was written for CUDA on a machine without a GPU.

While a file is imported and its factory called, every CUDA device that a program names
becomes the CPU, and the functions of ``torch.cuda`` that a training script calls answer as
on a machine with one GPU (:func:`cuda_on_cpu`). Everything is restored afterwards. Only the
*user's* code is told that CUDA is available: torch and other libraries must go on knowing
the truth.

:mod:`autosp_inspector.target.cuda_source` does the same for what is traced later.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from autosp_inspector.target.user_traceback import is_user_file

CPU = torch.device("cpu")

_A100_MULTIPROCESSORS = 108
"""NVIDIA A100 data sheet; only what a script may print or choose a kernel by."""
_A100_MEMORY_BYTES = 80 * 1024**3
_A100_CAPABILITY = (8, 0)


def is_cuda_device(value: object) -> bool:
    """Whether ``value`` names a CUDA device (``"cuda:1"``, ``torch.device("cuda")``)."""
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


def _mapped(value: Any) -> Any:
    """The CPU for a CUDA device, as a string or a device as ``value`` is."""
    if not is_cuda_device(value):
        return value
    return "cpu" if isinstance(value, str) else CPU


def _mapped_device_keyword(value: Any) -> Any:
    """As a ``device=`` keyword also a bare number is a CUDA device."""
    if isinstance(value, int) and not isinstance(value, bool):
        return CPU
    return _mapped(value)


def _made_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """What ``torch.device(...)`` makes: a program never sees a CUDA device."""
    first = args[0] if args else kwargs.get("type", kwargs.get("device"))
    if is_cuda_device(first) or isinstance(first, int):
        return CPU
    return torch.device(*args, **kwargs)


class CudaOnCpuMode(TorchFunctionMode):
    """Rewrites device arguments of every torch function."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        if func is torch.device:
            return _made_device(args, dict(kwargs or {}))
        keywords = dict(kwargs or {})
        if "device" in keywords:
            keywords["device"] = _mapped_device_keyword(keywords["device"])
        if keywords.get("pin_memory"):
            keywords["pin_memory"] = False
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], CPU, *args[2:])
        args = tuple(_mapped(value) for value in args)
        return func(*args, **keywords)


class _IdleStream:
    """A stream or an event on which nothing ever runs."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        self.cuda_stream = 0
        self.device = CPU

    def __enter__(self) -> _IdleStream:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def query(self) -> bool:
        return True

    def elapsed_time(self, _end: object) -> float:
        return 0.0

    def record_event(self, event: object = None) -> object:
        return event if event is not None else _IdleStream()

    def synchronize(self) -> None:
        return None

    record = wait = wait_event = wait_stream = lambda self, *_args, **_kwargs: None


def _nothing(*_args: object, **_kwargs: object) -> None:
    return None


def _constant(value: object) -> Callable[..., object]:
    def answer(*_args: object, **_kwargs: object) -> object:
        return value

    return answer


def _idle_context(*_args: object, **_kwargs: object) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _device_properties(*_args: object, **_kwargs: object) -> SimpleNamespace:
    major, minor = _A100_CAPABILITY
    return SimpleNamespace(
        name="NVIDIA A100-SXM4-80GB",
        major=major,
        minor=minor,
        total_memory=_A100_MEMORY_BYTES,
        multi_processor_count=_A100_MULTIPROCESSORS,
    )


def _for_user_code(replacement: Callable[..., Any], original: Callable[..., Any]) -> Any:
    """``replacement`` for calls from the user's files, ``original`` for libraries."""

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        function = replacement if is_user_file(caller) else original
        return function(*args, **kwargs)

    # torch.compile must not look inside: the caller's frame means nothing to it.
    dispatch._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return dispatch


def _cuda_functions() -> dict[str, Callable[..., Any]]:
    """Replacements in ``torch.cuda``, by name."""
    zero = _constant(0)
    return {
        "is_available": _constant(True),
        "is_initialized": _constant(True),
        "is_bf16_supported": _constant(True),
        "device_count": _constant(1),
        "current_device": zero,
        "set_device": _nothing,
        "synchronize": _nothing,
        "init": _nothing,
        "empty_cache": _nothing,
        "ipc_collect": _nothing,
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "initial_seed": torch.initial_seed,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "get_device_name": _constant("NVIDIA A100-SXM4-80GB"),
        "get_device_capability": _constant(_A100_CAPABILITY),
        "get_device_properties": _device_properties,
        "mem_get_info": _constant((_A100_MEMORY_BYTES, _A100_MEMORY_BYTES)),
        "memory_allocated": zero,
        "max_memory_allocated": zero,
        "memory_reserved": zero,
        "max_memory_reserved": zero,
        "memory_stats": _constant({}),
        "memory_summary": _constant(""),
        "reset_peak_memory_stats": _nothing,
        "set_per_process_memory_fraction": _nothing,
        "current_stream": _IdleStream,
        "default_stream": _IdleStream,
        "stream": _idle_context,
    }


def _idle_stream_new(_cls: type, *_args: object, **_kwargs: object) -> _IdleStream:
    return _IdleStream()


_TORCH_GENERATOR = torch.Generator


class _GeneratorType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _TORCH_GENERATOR)


class _CpuGenerator(metaclass=_GeneratorType):
    """``torch.Generator`` that makes CPU generators of CUDA ones."""

    def __new__(cls, device: object = "cpu") -> Any:
        return _TORCH_GENERATOR(_mapped_device_keyword(device))


def _patched_autocast(original: Callable[..., None]) -> Callable[..., None]:
    """``autocast("cuda")`` acts on CPU operators, with CUDA's default dtype."""

    def __init__(
        self: Any,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if is_cuda_device(device_type):
            device_type = "cpu"
            dtype = dtype or torch.float16
        original(self, device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    return __init__


def _with_mapped_first(original: Callable[..., Any]) -> Callable[..., Any]:
    def mapped(*args: Any, **kwargs: Any) -> Any:
        if args and is_cuda_device(args[0]):
            args = ("cpu", *args[1:])
        return original(*args, **kwargs)

    return mapped


def _device_context_init(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, device: object) -> None:
        original(self, _mapped_device_keyword(device))

    return __init__


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    original = inspect.getattr_static(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def _default_device_restored() -> Iterator[None]:
    """A default device that the user's file sets does not outlive the context."""
    before = torch.get_default_device()
    dtype = torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        # Also when it names the same device: the mode that keeps it would stop dynamo.
        torch.set_default_device(None if before == CPU else before)


@contextlib.contextmanager
def cuda_on_cpu() -> Iterator[None]:
    """Within it, code written for CUDA runs on the CPU. Nests; restores everything.

    Not rewritten: ``tensor.is_cuda`` and ``tensor.device``, which tell the truth, and
    custom CUDA kernels, which cannot run.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_default_device_restored())
        for name, replacement in _cuda_functions().items():
            original = getattr(torch.cuda, name)
            value = _for_user_code(replacement, original)
            stack.enter_context(_replaced(torch.cuda, name, value))
        stack.enter_context(_replaced(torch, "Generator", _CpuGenerator))
        for handle in (torch.cuda.Stream, torch.cuda.Event):
            stack.enter_context(_replaced(handle, "__new__", _idle_stream_new))
        for method in ("__init__", "__enter__", "__exit__"):
            stack.enter_context(_replaced(torch.cuda.device, method, _nothing))
        patches: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
            (torch.amp.autocast_mode.autocast, "__init__", _patched_autocast),
            (DeviceContext, "__init__", _device_context_init),
            (torch, "is_autocast_enabled", _with_mapped_first),
            (torch, "get_autocast_dtype", _with_mapped_first),
        )
        for owner, name, make in patches:
            stack.enter_context(_replaced(owner, name, make(getattr(owner, name))))
        with CudaOnCpuMode():
            yield
