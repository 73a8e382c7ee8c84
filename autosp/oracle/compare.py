"""How far two tensors are apart, and how far they may be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.fx import GraphModule

from autosp.graph import tensor_of

TOLERANCES = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.bfloat16: 6e-2,
    torch.float16: 1e-2,
}
"""Relative to the largest magnitude; some hundred roundings of each format."""

FLOOR = 1e-3
"""Tensors smaller than this share of the scale are compared with the scale's share."""

NUM_SAMPLES = 4


@dataclass(frozen=True, slots=True)
class Difference:
    max_abs: float
    max_rel: float
    expected: tuple[float, ...]
    actual: tuple[float, ...]
    detail: str = ""

    def exceeds(self, tolerance: float) -> bool:
        return bool(self.detail) or not self.max_rel <= tolerance


def coarsest_tolerance(program: GraphModule) -> float:
    """The tolerance of the least precise floating type that occurs in the program."""
    tensors = (tensor_of(node) for node in program.graph.nodes)
    return max((TOLERANCES.get(t.dtype, 0.0) for t in tensors if t is not None), default=0.0)


def difference(expected: torch.Tensor, actual: torch.Tensor, *, scale: float) -> Difference:
    """Largest error of ``actual``; equal infinities and NaNs count as equal.

    ``scale`` is the magnitude below which (times :data:`FLOOR`) errors do not matter.
    """
    if tuple(expected.shape) != tuple(actual.shape):
        detail = f"shape {list(actual.shape)} instead of {list(expected.shape)}"
        return Difference(float("inf"), float("inf"), (), (), detail)
    if expected.numel() == 0:
        return Difference(0.0, 0.0, (), ())
    left, right = _wide(expected), _wide(actual)
    same = (left == right) | (left.isnan() & right.isnan())
    errors = torch.where(same, torch.zeros_like(left), (left - right).abs())
    errors = errors.nan_to_num(nan=float("inf"))
    worst = int(errors.argmax())
    max_abs = float(errors.flatten()[worst])
    finite = left[left.isfinite()].abs()
    magnitude = max(float(finite.max()) if finite.numel() else 0.0, FLOOR * scale)
    if not (expected.is_floating_point() or expected.is_complex()):
        magnitude = 1.0
    max_rel = 0.0 if max_abs == 0 else max_abs / magnitude if magnitude else float("inf")
    near = slice(worst, worst + NUM_SAMPLES)
    samples = [tuple(float(x) for x in side.flatten()[near]) for side in (left, right)]
    return Difference(max_abs, max_rel, samples[0], samples[1])


def largest(tensors: Iterable[torch.Tensor]) -> float:
    """The largest finite magnitude in all tensors."""
    result = 0.0
    for tensor in tensors:
        finite = _wide(tensor)
        finite = finite[finite.isfinite()]
        if finite.numel():
            result = max(result, float(finite.abs().max()))
    return result


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.to(torch.float64)
