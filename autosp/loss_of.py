"""Which scalar a training step differentiates: the model's own loss, or its output's sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class LossOfOutput:
    """Finds the loss in what a model returns; plain Python, so that dynamo can trace it.

    A scalar floating tensor; ``.loss`` or ``["loss"]``; the first scalar of a tuple.
    Otherwise the sum of all floating outputs, which stands for a loss outside the model.
    """

    def __call__(self, output: Any) -> torch.Tensor:
        own = own_loss(output)
        return own if own is not None else sum_of_outputs(output)


def own_loss(output: Any) -> torch.Tensor | None:
    """The loss that the model computed itself, or None."""
    if isinstance(output, torch.Tensor):
        return output if _is_scalar(output) else None
    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    if isinstance(output, Mapping):
        loss = output.get("loss")
        return loss if isinstance(loss, torch.Tensor) else None
    if isinstance(output, (tuple, list)):
        for item in output:
            if isinstance(item, torch.Tensor) and _is_scalar(item):
                return item
    return None


def sum_of_outputs(output: Any) -> torch.Tensor:
    """Sum of the floating tensors of an output, in at least float32.

    Raises:
        TypeError: the output has no floating tensor.
    """
    parts = [t for t in _tensors(output) if t.is_floating_point()]
    if not parts:
        raise TypeError("the model returns no floating-point tensor: there is nothing to train")
    total = parts[0].sum(dtype=_wide(parts[0]))
    for part in parts[1:]:
        total = total + part.sum(dtype=_wide(part))
    return total


def _is_scalar(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 0 and tensor.is_floating_point()


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _tensors(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output]
    if hasattr(output, "logits") and isinstance(output.logits, torch.Tensor):
        return [output.logits]
    items = list(output.values()) if isinstance(output, Mapping) else output
    if isinstance(items, (tuple, list)):
        return [tensor for item in items for tensor in _tensors(item)]
    return []
