"""How operators are named in a drawing, and which of them only rearrange a tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_LAYOUT_OPERATORS = frozenset(
    {
        "_to_copy",
        "_unsafe_view",
        "alias",
        "chunk",
        "clone",
        "contiguous",
        "detach",
        "detach_",
        "expand",
        "expand_as",
        "flatten",
        "getitem",
        "lift_fresh",
        "lift_fresh_copy",
        "narrow",
        "permute",
        "reshape",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "to",
        "transpose",
        "type_as",
        "unbind",
        "unflatten",
        "unsqueeze",
        "view",
        "view_as",
    }
)


def short_name(target: str) -> str:
    """``aten.linear.default`` -> ``linear``; ``<built-in function getitem>`` -> ``getitem``."""
    words = target.strip("<>").split()
    last = words[-1] if words else target
    parts = last.split(".")
    if len(parts) >= 3:
        return parts[-2]
    return parts[-1]


def is_layout_only(target: str) -> bool:
    """Whether an operator moves or relabels elements without computing anything."""
    return short_name(target) in _LAYOUT_OPERATORS


def describe_operators(targets: Iterable[str]) -> tuple[str, ...]:
    """Names in order of first appearance, with a count where there are several."""
    counts = Counter(short_name(target) for target in targets)
    return tuple(f"{name} ×{count}" if count > 1 else name for name, count in counts.items())
