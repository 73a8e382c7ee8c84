"""Loading a model: fake for a dry run, real and small for verification."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from autosp_inspector.target.cuda import cuda_on_cpu
from autosp_inspector.target.dtypes import torch_dtype
from autosp_inspector.target.errors import TargetError
from autosp_inspector.target.factory import BuiltModel, Factory, call_factory, find_factory
from autosp_inspector.target.factory import run_user_code as _run
from autosp_inspector.target.fake_build import (
    cast_floating,
    fake_build,
    fake_inputs,
    make_fake,
    new_fake_mode,
)
from autosp_inspector.target.huggingface import build_from_config
from autosp_inspector.target.inputs import (
    Inputs,
    cast_inputs,
    choose_sequence,
    ignore_labels,
    inputs_from_signature,
    inputs_from_user,
)
from autosp_inspector.target.loaded import LoadedTarget, RealTarget, TargetRecipe
from autosp_inspector.target.source_file import (
    forget_target_modules,
    import_source,
    importable_folder,
    script_environment,
    source_folder,
)
from autosp_inspector.target.specification import HuggingFaceConfig

MAX_REAL_PARAMETERS = 100_000_000
"""A model above this is not built for real on the user's machine."""


def load_target(recipe: TargetRecipe) -> LoadedTarget:
    """Build the model under fake tensors and make its inputs.

    Raises:
        TargetError: the target cannot be used; :class:`UserCodeError` if its code raised.
    """
    fake_mode = new_fake_mode()
    with _loading_environment(recipe):
        source = _Source.of(recipe)
        with fake_build(fake_mode):
            built = source.build(tiny=False)
        make_fake(built.module, fake_mode)
        if recipe.dtype is not None:
            cast_floating(built.module, torch_dtype(recipe.dtype), fake_mode)
        seq = choose_sequence(built.module, recipe.seq, where=source.description)
        with fake_build(fake_mode):
            inputs = source.inputs(built, batch=recipe.batch, seq=seq)
            if recipe.dtype is not None:
                inputs = cast_inputs(inputs, torch_dtype(recipe.dtype))
    return LoadedTarget(
        module=built.module,
        args=fake_inputs(inputs.args, fake_mode),
        kwargs=fake_inputs(inputs.kwargs, fake_mode),
        description=source.description,
        source_file=source.file,
        fake_mode=fake_mode,
        batch=recipe.batch,
        seq=seq,
        dtype_name=_dtype_name(built.module),
        recipe=recipe,
    )


def build_real(
    recipe: TargetRecipe,
    *,
    seed: int,
    dtype: str,
    batch: int,
    seq: int,
    ignored_shards: int = 0,
) -> RealTarget:
    """Build a small model with real numbers, the same in every process for one ``seed``.

    A factory with a ``tiny`` parameter is called with ``tiny=True``, a Hugging Face
    configuration is shrunk, another model is built as it is if it is small. With
    ``ignored_shards`` some labels are -100 (:func:`ignore_labels`).

    Raises:
        TargetError: as for :func:`load_target`, or the model is too large.
    """
    with _loading_environment(recipe):
        source = _Source.of(recipe)
        if not source.can_shrink:
            _check_small(source)
        torch.manual_seed(seed)
        built = source.build(tiny=True)
        cast_floating(built.module, torch_dtype(dtype), None)
        seq = choose_sequence(built.module, seq, where=source.description)
        torch.manual_seed(seed + 1)
        inputs = cast_inputs(source.inputs(built, batch=batch, seq=seq), torch_dtype(dtype))
        if ignored_shards:
            ignore_labels(inputs, num_shards=ignored_shards)
    return RealTarget(
        built.module, inputs.args, inputs.kwargs, source.description, source.can_shrink
    )


@contextlib.contextmanager
def _loading_environment(recipe: TargetRecipe) -> Iterator[None]:
    """Everything the user's code may rely on while it is imported and called."""
    target = recipe.target
    with contextlib.ExitStack() as stack:
        stack.enter_context(script_environment(target.text))
        if not isinstance(target, HuggingFaceConfig):
            forget_target_modules()
            stack.enter_context(importable_folder(source_folder(target)))
        stack.enter_context(cuda_on_cpu())
        yield


@contextlib.contextmanager
def user_environment(loaded: LoadedTarget) -> Iterator[None]:
    """What the model's forward may rely on while it is traced.

    Not the mapping of CUDA functions: torch.compile would look into it, and the source
    was compiled for the CPU anyway.
    """
    target = loaded.recipe.target
    with contextlib.ExitStack() as stack:
        stack.enter_context(script_environment(target.text))
        if not isinstance(target, HuggingFaceConfig):
            stack.enter_context(importable_folder(source_folder(target)))
        yield


class _Source:
    """The two kinds of model sources behind one interface."""

    description: str
    file: Path | None
    can_shrink: bool

    @staticmethod
    def of(recipe: TargetRecipe) -> _Source:
        if isinstance(recipe.target, HuggingFaceConfig):
            return _ConfigSource(recipe, recipe.target)
        return _PythonSource(recipe, import_source(recipe.target))

    def build(self, *, tiny: bool) -> BuiltModel:
        raise NotImplementedError

    def inputs(self, built: BuiltModel, *, batch: int, seq: int) -> Inputs:
        raise NotImplementedError


class _ConfigSource(_Source):
    def __init__(self, recipe: TargetRecipe, target: HuggingFaceConfig) -> None:
        self._recipe = recipe
        self.file = target.path
        self.description = str(target.path)
        self.can_shrink = True

    def build(self, *, tiny: bool) -> BuiltModel:
        dtype = torch_dtype(self._recipe.dtype) if self._recipe.dtype else None
        overrides = dict(self._recipe.arguments)
        model = build_from_config(self.file or Path(), overrides, dtype=dtype, tiny=tiny)
        return BuiltModel(model, None)

    def inputs(self, built: BuiltModel, *, batch: int, seq: int) -> Inputs:
        return inputs_from_signature(built.module, batch=batch, seq=seq, where=self.description)


class _PythonSource(_Source):
    def __init__(self, recipe: TargetRecipe, module: ModuleType) -> None:
        assert not isinstance(recipe.target, HuggingFaceConfig)
        self._arguments = dict(recipe.arguments)
        self._user_module = module
        self._factory: Factory = find_factory(module, recipe.target)
        self.file = Path(module.__file__) if module.__file__ else None
        self.description = self._factory.where
        self.can_shrink = self._factory.has_tiny

    def build(self, *, tiny: bool) -> BuiltModel:
        return call_factory(self._factory, self._arguments, tiny=tiny)

    def inputs(self, built: BuiltModel, *, batch: int, seq: int) -> Inputs:
        value = built.example_inputs
        if value is None:
            value = getattr(self._user_module, "example_inputs", None)
        if value is None:
            return inputs_from_signature(built.module, batch=batch, seq=seq, where=self.description)
        if callable(value):
            value = self._call_example_inputs(value, batch, seq)
        return inputs_from_user(value, built.module, where=self.description)

    def _call_example_inputs(self, function: Any, batch: int, seq: int) -> Any:
        return _run(
            lambda: function(batch, seq),
            what=f"example_inputs({batch}, {seq})",
            where=self.description,
        )


def _check_small(source: _Source) -> None:
    """Refuse to fill the machine's memory: count the parameters of a fake model first."""
    with fake_build(new_fake_mode()):
        num_parameters = _num_parameters(source.build(tiny=True).module)
    if num_parameters > MAX_REAL_PARAMETERS:
        raise TargetError(
            f"the model has {num_parameters / 1e9:.1f} billion parameters, too many to run here",
            where=source.description,
            hint="Give the factory a parameter `tiny: bool = False` that makes it small, "
            "or shrink it with --arg",
        )


def _dtype_name(module: nn.Module) -> str:
    """Floating dtypes of the parameters: ``bfloat16``, or several."""
    dtypes = {p.dtype for p in module.parameters() if p.is_floating_point()}
    return "+".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))


def _num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
