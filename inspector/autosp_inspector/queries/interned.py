"""Texts, shapes and source lines by number, each read from the file once.

A graph of 100,000 nodes repeats a few thousand of them; looking them up here instead of
joining eleven times makes reading a whole graph three times as fast.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from autosp_inspector.rows import Source
from autosp_inspector.trace import Trace


class Interned:
    """What was read so far. :meth:`load` before looking up; None stays None."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._texts: dict[int, str] = {}
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._sources: dict[int, Source] = {}

    def load(self, *, texts: Iterable[int | None], sources: Iterable[int | None]) -> None:
        """Read those that are not known yet."""
        wanted_texts = [number for number in set(texts) if number not in self._texts]
        if wanted_texts:
            self._texts.update(
                self._trace.fetch(
                    "SELECT id, value FROM text WHERE id IN (SELECT value FROM json_each(?))",
                    (json.dumps(wanted_texts),),
                )
            )
        wanted_sources = [number for number in set(sources) if number not in self._sources]
        if wanted_sources:
            rows = self._trace.fetch(
                "SELECT source.id, file.value, source.line, function.value, line.value FROM source"
                " JOIN text AS file ON file.id = source.file_text"
                " JOIN text AS function ON function.id = source.function_text"
                " JOIN text AS line ON line.id = source.line_text"
                " WHERE source.id IN (SELECT value FROM json_each(?))",
                (json.dumps(wanted_sources),),
            )
            self._sources.update((row[0], Source(*row[1:])) for row in rows)

    def text(self, number: int) -> str:
        return self._texts[number]

    def optional_text(self, number: int | None) -> str | None:
        return None if number is None else self._texts[number]

    def shape(self, number: int | None) -> tuple[int, ...] | None:
        if number is None:
            return None
        known = self._shapes.get(number)
        if known is None:
            known = self._shapes[number] = tuple(json.loads(self._texts[number]))
        return known

    def source(self, number: int | None) -> Source | None:
        return None if number is None else self._sources[number]


def interned(trace: Trace) -> Interned:
    """The texts of ``trace``."""
    return trace.cached("interned", lambda: Interned(trace))
