"""Names close to one that does not exist, for "did you mean"."""

from __future__ import annotations

import difflib

from autosp_inspector.trace import Trace

_NUM_SUGGESTIONS = 5
_NUM_COMPARED = 2_000
"""Names compared letter by letter (about 20 us each)."""


def similar_names(trace: Trace, name: str) -> tuple[str, ...]:
    """Up to five node names that ``name`` may have meant, closest first."""
    names = trace.cached(
        "node names",
        lambda: [
            text
            for (text,) in trace.fetch(
                "SELECT value FROM text WHERE id IN (SELECT name_text FROM node) ORDER BY id"
            )
        ],
    )
    wanted = name.lower()
    if not wanted:
        return ()
    containing = [known for known in names if wanted in known.lower()]
    containing.sort(key=len)
    head = wanted[:2]
    nearby = [known for known in names if known.lower().startswith(head)]
    pool = _closest_lengths(nearby or names, len(name))
    close = difflib.get_close_matches(name, pool, n=_NUM_SUGGESTIONS, cutoff=0.6)
    return tuple(dict.fromkeys([*close, *containing]))[:_NUM_SUGGESTIONS]


def _closest_lengths(names: list[str], length: int) -> list[str]:
    return sorted(names, key=lambda known: abs(len(known) - length))[:_NUM_COMPARED]
