"""What loading a target gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosp_inspector.target.specification import ModelTarget

if TYPE_CHECKING:
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode


@dataclass(frozen=True, slots=True)
class TargetRecipe:
    """How to make the model. Plain data: another process can build it again."""

    target: ModelTarget
    arguments: tuple[tuple[str, str], ...] = ()
    """``--arg`` names and values, untyped."""
    batch: int = 1
    seq: int | None = None
    """None: a length that suits the model."""
    dtype: str | None = None
    """``bfloat16`` ...; None leaves the model as its factory made it."""


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """A model of fake tensors with fake inputs; nothing is allocated."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    description: str
    """``samples/gpt.py:build``."""
    source_file: Path | None
    fake_mode: FakeTensorMode
    batch: int
    seq: int
    dtype_name: str
    """Floating dtype of the parameters, ``bfloat16``."""
    recipe: TargetRecipe


@dataclass(frozen=True, slots=True)
class RealTarget:
    """A small model of real tensors with real inputs, for verification."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    description: str
    is_tiny: bool
    """Whether it was shrunk; otherwise it is the model as it is."""
