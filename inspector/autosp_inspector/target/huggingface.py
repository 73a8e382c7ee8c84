"""Models described by a ``config.json`` of the transformers library, without a network."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosp_inspector.target.arguments import convert
from autosp_inspector.target.errors import TargetError

if TYPE_CHECKING:
    from torch import nn

TINY_LAYERS = 2
TINY_VOCABULARY = 128
TINY_HEAD_DIM = 8
TINY_POSITIONS = 1024
MAX_TINY_KV_HEADS = 8
MAX_TINY_EXPERTS = 4


def build_from_config(
    path: Path, overrides: Mapping[str, str], *, dtype: Any = None, tiny: bool = False
) -> nn.Module:
    """The causal language model that ``path`` describes, with its own dtype by default.

    Raises:
        TargetError: transformers is missing, does not know the model, or refuses the
            configuration.
    """
    values = _read(path)
    with _offline():
        config = _make_config(values, overrides, path)
        if tiny:
            shrink(config)
        return _make_model(config, values, path, dtype=dtype)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TargetError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except ValueError as error:
        raise TargetError(f"is not valid JSON: {error}", where=str(path)) from error
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise TargetError("names no model_type", where=str(path))
    return values


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    saved = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if saved is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = saved


def _make_config(values: dict[str, Any], overrides: Mapping[str, str], path: Path) -> Any:
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError as error:
        raise TargetError(
            "needs the transformers library, which is not installed",
            where=str(path),
            hint="pip install transformers",
        ) from error
    model_type = values["model_type"]
    if model_type not in CONFIG_MAPPING:
        close = get_close_matches(model_type, list(CONFIG_MAPPING.keys()), n=3)
        raise TargetError(
            f"model_type {model_type!r} is unknown to the installed transformers",
            where=str(path),
            hint=f"Closest: {', '.join(close)}" if close else "",
        )
    merged = {**values, **_typed_overrides(values, overrides, path)}
    try:
        config = CONFIG_MAPPING[model_type].from_dict(merged)
    except Exception as error:  # transformers validates with many exception types
        raise TargetError(
            f"is refused by transformers: {_one_line(error)}", where=str(path)
        ) from error
    config.use_cache = False
    return config


def _typed_overrides(
    values: Mapping[str, Any], overrides: Mapping[str, str], path: Path
) -> dict[str, Any]:
    """``--arg`` values, typed like the field they replace."""
    typed: dict[str, Any] = {}
    for name, text in overrides.items():
        if name not in values:
            close = get_close_matches(name, values, n=3)
            hint = f"Did you mean {' or '.join(close)}?" if close else "See the fields in the file"
            raise TargetError(
                f"has no field {name!r} to set with --arg", where=str(path), hint=hint
            )
        current = values[name]
        try:
            typed[name] = convert(text, Any if current is None else type(current))
        except ValueError as error:
            raise TargetError(f"--arg {name}={text}: {error}", where=str(path)) from error
    return typed


def _make_model(config: Any, values: Mapping[str, Any], path: Path, *, dtype: Any) -> nn.Module:
    import torch
    from transformers import AutoModelForCausalLM

    chosen = dtype or getattr(config, "dtype", None) or torch.float32
    try:
        model: nn.Module = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=chosen, attn_implementation="sdpa"
        )
    except Exception as error:  # a wrong configuration fails anywhere inside transformers
        raise TargetError(
            f"transformers cannot build the model: {_one_line(error)}", where=str(path)
        ) from error
    return model.train()


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return " ".join(line.strip() for line in lines[:2]) if lines else type(error).__name__


def shrink(config: Any) -> None:
    """Make ``config`` small enough to train on a CPU: the ratio of heads stays the same."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    tiny_kv_heads = _largest_divisor(kv_heads, MAX_TINY_KV_HEADS)
    tiny_heads = heads // kv_heads * tiny_kv_heads
    hidden = tiny_heads * TINY_HEAD_DIM
    head_dim = getattr(config, "head_dim", None)
    is_decoupled = head_dim is not None and head_dim * heads != config.hidden_size
    _assign(
        config,
        num_hidden_layers=TINY_LAYERS,
        num_attention_heads=tiny_heads,
        num_key_value_heads=tiny_kv_heads,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        moe_intermediate_size=hidden,
        ffn_dim=2 * hidden,
        vocab_size=TINY_VOCABULARY,
        max_position_embeddings=min(
            getattr(config, "max_position_embeddings", 1024), TINY_POSITIONS
        ),
        max_window_layers=TINY_LAYERS,
    )
    if head_dim is not None:
        config.head_dim = 2 * TINY_HEAD_DIM if is_decoupled else TINY_HEAD_DIM
    if getattr(config, "n_inner", None):
        config.n_inner = 2 * hidden
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:TINY_LAYERS]
    if getattr(config, "sliding_window", None):
        config.sliding_window = 16
    _shrink_experts(config)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        _assign(config, **{name: None})


def _shrink_experts(config: Any) -> None:
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        count = getattr(config, name, None)
        if count:
            setattr(config, name, min(count, MAX_TINY_EXPERTS))
    if getattr(config, "num_experts_per_tok", None):
        config.num_experts_per_tok = min(config.num_experts_per_tok, 2)


def _assign(config: Any, **values: Any) -> None:
    """Set the fields that this kind of configuration has."""
    for name, value in values.items():
        if hasattr(config, name):
            setattr(config, name, value)


def _largest_divisor(number: int, limit: int) -> int:
    return max(d for d in range(1, min(number, limit) + 1) if number % d == 0)
