"""Example inputs for a model whose file does not make its own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autosp_inspector.target.errors import TargetError

TOKEN_NAMES = ("input_ids", "ids", "idx", "tokens", "token_ids", "inputs", "x")
LABEL_NAMES = ("labels", "label", "targets", "target", "y", "lm_labels")
POSITION_NAMES = ("position_ids", "positions", "pos")
MASK_NAMES = ("attention_mask", "mask")

IGNORED_LABEL = -100
"""What torch's cross_entropy ignores by default."""

DEFAULT_SEQUENCE = 4096


@dataclass(frozen=True, slots=True)
class Inputs:
    """Positional and keyword arguments of ``forward``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SequenceLimit:
    """The longest sequence a model has positions for, and where that is said."""

    length: int
    where: str
    is_hard: bool
    """A longer sequence cannot run at all (learned positions)."""


def sequence_limit(module: nn.Module) -> SequenceLimit | None:
    """The limit of learned positions; otherwise what the model's configuration says."""
    for path, embedding in _embeddings(module):
        if _holds_positions(path):
            return SequenceLimit(embedding.num_embeddings, path, is_hard=True)
    length = getattr(getattr(module, "config", None), "max_position_embeddings", None)
    if isinstance(length, int):
        return SequenceLimit(length, "config.max_position_embeddings", is_hard=False)
    return None


def choose_sequence(module: nn.Module, wanted: int | None, *, where: str) -> int:
    """``wanted``, or a length that the model has positions for.

    Raises:
        TargetError: the model has too few learned positions.
    """
    limit = sequence_limit(module)
    if wanted is None:
        return min(DEFAULT_SEQUENCE, limit.length) if limit else DEFAULT_SEQUENCE
    if limit is not None and limit.is_hard and wanted > limit.length:
        raise TargetError(
            f"a sequence of {wanted} tokens is longer than the {limit.length} learned "
            f"positions of {limit.where}",
            where=where,
            hint=f"Use --seq {limit.length} or less, or build the model with more positions",
        )
    return wanted


def vocabulary_size(module: nn.Module) -> int | None:
    """Number of tokens, from the token embedding; None if the model has no embedding."""
    sizes = [e.num_embeddings for path, e in _embeddings(module) if not _holds_positions(path)]
    return max(sizes) if sizes else None


def _embeddings(module: nn.Module) -> Iterator[tuple[str, nn.Embedding]]:
    for path, child in module.named_modules():
        if isinstance(child, nn.Embedding):
            yield path, child


def _holds_positions(path: str) -> bool:
    name = path.rpartition(".")[2].lower()
    return name == "wpe" or ("pos" in name and "rel" not in name)


def inputs_from_signature(module: nn.Module, *, batch: int, seq: int, where: str) -> Inputs:
    """Random tokens and labels ``[batch, seq]``, int64, for the parameters of ``forward``.

    Raises:
        TargetError: ``forward`` needs something that is not made from tokens.
    """
    parameters = inspect.signature(_documented(module).forward).parameters
    vocabulary = vocabulary_size(module)
    kwargs: dict[str, Tensor] = {}
    unknown: list[str] = []
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        tensor = _made_for(name, vocabulary, batch, seq, has_tokens=bool(kwargs))
        is_required = parameter.default is parameter.empty
        if tensor is not None and (is_required or name in (*TOKEN_NAMES, *LABEL_NAMES)):
            kwargs[name] = tensor
        elif is_required:
            unknown.append(name)
    if unknown or not kwargs:
        raise _cannot_make(module, unknown, vocabulary, where)
    return Inputs((), kwargs)


def cast_inputs(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """With the floating tensors cast to ``dtype``, as the parameters are."""

    def cast(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(dtype) if value.is_floating_point() else value
        if type(value) in (tuple, list):
            return type(value)(cast(item) for item in value)
        if isinstance(value, dict):
            return {key: cast(item) for key, item in value.items()}
        return value

    return Inputs(cast(inputs.args), cast(inputs.kwargs))


def ignore_labels(inputs: Inputs, *, num_shards: int) -> None:
    """Set labels to -100, in place: the last shard of the sequence in every row, and in
    the first row a stretch around each border of two shards.
    """
    for name, labels in inputs.kwargs.items():
        if name not in LABEL_NAMES or not isinstance(labels, Tensor) or labels.dim() < 2:
            continue
        shard = -(-labels.shape[1] // num_shards)
        labels[:, shard * (num_shards - 1) :] = IGNORED_LABEL
        for border in range(shard, labels.shape[1], shard):
            labels[0, max(border - 2, 0) : border + 2] = IGNORED_LABEL


def _documented(module: nn.Module) -> nn.Module:
    """The module whose ``forward`` names its parameters: peft's wrapper passes all of them on."""
    inner = getattr(module, "get_base_model", None)
    kinds = {p.kind for p in inspect.signature(module.forward).parameters.values()}
    passes_all_on = kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    base = inner() if callable(inner) and passes_all_on else module
    return base if isinstance(base, nn.Module) else module


def _made_for(
    name: str, vocabulary: int | None, batch: int, seq: int, *, has_tokens: bool
) -> Tensor | None:
    if name in TOKEN_NAMES and vocabulary is not None and not has_tokens:
        return torch.randint(0, vocabulary, (batch, seq))
    if name in LABEL_NAMES and vocabulary is not None and has_tokens:
        return torch.randint(0, vocabulary, (batch, seq))
    if name in POSITION_NAMES:
        return torch.arange(seq).expand(batch, seq).contiguous()
    if name in MASK_NAMES:
        return torch.ones(batch, seq, dtype=torch.int64)
    return None


def _cannot_make(
    module: nn.Module, unknown: list[str], vocabulary: int | None, where: str
) -> TargetError:
    class_name = type(module).__name__
    if unknown:
        what = f"{class_name}.forward needs {', '.join(unknown)}, which cannot be guessed"
    else:
        what = f"{class_name}.forward takes no {TOKEN_NAMES[0]}"
    if vocabulary is None:
        what += " (the model has no embedding, hence no vocabulary size)"
    return TargetError(
        what,
        where=where,
        hint="Define example_inputs(batch, seq) in the file, or return (module, inputs)",
    )


def inputs_from_user(value: Any, module: nn.Module, *, where: str) -> Inputs:
    """What the user's ``example_inputs`` gave, as arguments of ``forward``.

    A dict is keyword arguments, a tuple or list positional ones, a tensor the only one,
    and ``(tuple, dict)`` both.

    Raises:
        TargetError: it is none of these, or ``forward`` does not take it.
    """
    if isinstance(value, dict):
        inputs = Inputs((), dict(value))
    elif isinstance(value, Tensor):
        inputs = Inputs((value,), {})
    elif _is_args_and_kwargs(value):
        inputs = Inputs(tuple(value[0]), dict(value[1]))
    elif isinstance(value, tuple | list):
        inputs = Inputs(tuple(value), {})
    else:
        raise TargetError(
            f"example_inputs gave a {type(value).__name__}",
            where=where,
            hint="Return a dict of keyword arguments, a tuple or a tensor",
        )
    try:
        inspect.signature(module.forward).bind(*inputs.args, **inputs.kwargs)
    except TypeError as error:
        raise TargetError(
            f"example_inputs does not fit {type(module).__name__}.forward: {error}", where=where
        ) from error
    return inputs


def _is_args_and_kwargs(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], tuple | list)
        and isinstance(value[1], dict)
    )
