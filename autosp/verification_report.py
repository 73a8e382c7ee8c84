"""What a verification found; plain data with the fields of the JSON output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TOLERANCES = {"float64": 1e-12, "float32": 1e-5}
"""Largest relative error of gradients, and of the loss."""

UPCAST_TOLERANCE = 1e-6
"""For a float64 run of a model that computes in float32 on its own account."""

PARAMETER_TOLERANCES = {"float64": 1e-10, "float32": 1e-4}
"""For the parameters after the optimizer steps."""

EAGER_REFERENCE = "the eager model in one process"
COMPILED_REFERENCE = (
    "the compiled program on one rank with the same seed: the model draws random numbers "
    "(dropout), and those of eager operators depend on the order of the draws"
)

GRADIENT_FLOOR = 1e-3
"""A gradient smaller than this share of the model's largest is compared with the share."""


@dataclass(frozen=True, slots=True)
class GradientError:
    name: str
    rel_error: float
    """``max|difference| / max(max|gradient|, GRADIENT_FLOOR * max over all gradients)``."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The compiled program on real processes against a single process."""

    ranks: int
    dtype: str
    loss_reference: float
    loss_compiled: float
    gradients: tuple[GradientError, ...]
    tolerance: float
    loss_tolerance: float
    parameter_error: float | None = None
    """After the optimizer steps, relative to the largest parameter; None without steps."""
    first_wrong_node: str | None = None
    """From the oracle, if something is wrong and the oracle sees it."""
    first_wrong_detail: str | None = None
    first_wrong: Mapping[str, Any] | None = None
    """The same field by field: quantity, operator, placement, place in the source, values."""
    reference: str = EAGER_REFERENCE
    """What ``loss_reference`` and the gradients are compared with."""

    @property
    def loss_error(self) -> float:
        difference = abs(self.loss_compiled - self.loss_reference)
        if difference == 0 or self.loss_compiled != self.loss_compiled:
            both_nan = self.loss_reference != self.loss_reference
            return 0.0 if difference == 0 or both_nan else float("inf")
        return difference / max(abs(self.loss_reference), 1e-30)

    @property
    def max_rel_error(self) -> float:
        return max((gradient.rel_error for gradient in self.gradients), default=0.0)

    @property
    def ok(self) -> bool:
        parameters = self.parameter_error
        return (
            self.loss_error <= self.loss_tolerance
            and all(gradient.rel_error <= self.tolerance for gradient in self.gradients)
            and (parameters is None or parameters <= PARAMETER_TOLERANCES[self.dtype])
        )

    def as_dict(self) -> Mapping[str, Any]:
        """The fields of ``verify --json``."""
        return {
            "ranks": self.ranks,
            "dtype": self.dtype,
            "reference": self.reference,
            "loss": {
                "reference": self.loss_reference,
                "compiled": self.loss_compiled,
                "rel_error": self.loss_error,
            },
            "gradients": [{"name": g.name, "rel_error": g.rel_error} for g in self.gradients],
            "max_rel_error": self.max_rel_error,
            "tolerance": self.tolerance,
            "loss_tolerance": self.loss_tolerance,
            "parameter_error": self.parameter_error,
            "first_wrong_node": self.first_wrong_node,
            "first_wrong_detail": self.first_wrong_detail,
            "first_wrong": self.first_wrong,
            "ok": self.ok,
        }
