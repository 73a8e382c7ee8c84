"""What the oracle reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autosp.events import SourceLocation

Quantity = Literal["value", "cotangent", "output"]


@dataclass(frozen=True, slots=True)
class WrongNode:
    """The first tensor whose local parts do not combine to what the user's program has.

    Values are searched in program order, cotangents from the loss backwards.
    """

    name: str
    quantity: Quantity
    """``output``: an output that changes with the filling of padding rows."""
    operator: str
    placement: str
    module: str
    source: SourceLocation | None
    padding_fill: str
    max_abs_error: float
    max_rel_error: float
    """Relative to the largest magnitude of the expected tensor."""
    expected: tuple[float, ...]
    """A few elements around the largest error ..."""
    actual: tuple[float, ...]
    """... and what the ranks' parts give there."""
    detail: str = ""

    def as_dict(self) -> Mapping[str, Any]:
        """Plain data for a report."""
        source = self.source
        return {
            "node": self.name,
            "quantity": self.quantity,
            "operator": self.operator,
            "placement": self.placement,
            "module": self.module,
            "source": f"{source.file}:{source.line}" if source else None,
            "source_text": source.text if source else "",
            "rel_error": self.max_rel_error,
            "expected": list(self.expected),
            "actual": list(self.actual),
            "padding_fill": self.padding_fill,
            "detail": self.detail,
        }

    def __str__(self) -> str:
        line = f" at {self.source.file}:{self.source.line}" if self.source else ""
        module = f" in {self.module}" if self.module else ""
        numbers = f"expected {_numbers(self.expected)}, got {_numbers(self.actual)}"
        return (
            f"{self.quantity} of {self.name} ({self.operator}, {self.placement}){module}{line}: "
            f"relative error {self.max_rel_error:.2e}; {self.detail or numbers}"
        )


@dataclass(frozen=True, slots=True)
class OracleReport:
    """The verdict of one check."""

    ok: bool
    first_wrong: WrongNode | None
    num_values_checked: int
    num_cotangents_checked: int
    fills: tuple[str, ...]
    """Padding fills that were run."""
    num_fallbacks: int = 0
    """Operators that took the all-gather path."""
    gradient_error: float = 0.0
    """Largest over the parameters: error over the largest magnitude of the gradient, or over
    a thousandth of that of all gradients if that is more."""
    loss_error: float = 0.0
    """Largest relative error of the outputs that start the backward."""


def _numbers(values: tuple[float, ...]) -> str:
    return "[" + ", ".join(f"{value:.6g}" for value in values) + "]"
