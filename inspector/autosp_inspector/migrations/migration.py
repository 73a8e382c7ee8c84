"""What one schema step is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Migration:
    """Brings a trace from schema ``number - 1`` to ``number``."""

    number: int
    name: str
    statements: tuple[str, ...]
