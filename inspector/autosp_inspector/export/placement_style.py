"""How a placement looks: a colour and a line style, always beside its written notation."""

from __future__ import annotations

import re
from dataclasses import dataclass

_DETAILS = re.compile(r",[^)]*(?=\))")
_PART = re.compile(r"[A-Z](?:\([^)]*\))?")


@dataclass(frozen=True, slots=True)
class PlacementStyle:
    """Colours as ``#rrggbb``; ``ink`` is dark enough for text on ``fill``."""

    name: str
    """What the placement means, in the words of the legend."""
    fill: str
    line: str
    ink: str
    dashed: bool = False


SEQUENCE = PlacementStyle("sharded over the sequence", "#dbeafe", "#2563eb", "#1e3a8a")
HEADS = PlacementStyle("sharded over the heads", "#ede9fe", "#7c3aed", "#4c1d95")
OTHER_SHARD = PlacementStyle("sharded", "#ccfbf1", "#0d9488", "#115e59")
PARTIAL = PlacementStyle("partial: parts of a sum or a mean", "#ffe4e6", "#e11d48", "#881337", True)
REPLICATED = PlacementStyle("whole on every rank", "#f1f5f9", "#64748b", "#334155")
UNKNOWN = PlacementStyle("no placement", "#ffffff", "#94a3b8", "#475569")
COLLECTIVE = PlacementStyle("communication", "#fef3c7", "#b45309", "#78350f")


_LEGEND = (SEQUENCE, HEADS, OTHER_SHARD, PARTIAL, REPLICATED, UNKNOWN)


def legend_rank(placement: str) -> int:
    """Where a placement stands in every legend."""
    return _LEGEND.index(style_of(placement))


def style_of(placement: str | None) -> PlacementStyle:
    """The style of a placement; with several mesh axes, of the innermost that is cut."""
    if not placement:
        return UNKNOWN
    parts = _PART.findall(placement) or [placement]
    telling = [part for part in parts if part != "R"]
    if not telling:
        return REPLICATED
    return _style_of_part(telling[-1])


def without_details(placement: str) -> str:
    """``S(1:seq,pad=2)`` -> ``S(1:seq)``: what a legend needs."""
    return _DETAILS.sub("", placement)


def _style_of_part(part: str) -> PlacementStyle:
    if part.startswith("P"):
        return PARTIAL
    if part.startswith("S"):
        if ":seq" in part:
            return SEQUENCE
        return HEADS if ":head" in part else OTHER_SHARD
    return UNKNOWN
