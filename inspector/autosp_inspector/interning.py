"""Numbers for repeated texts, shapes and source lines while a trace is written."""

from __future__ import annotations

import json
import sqlite3

from autosp.events import SourceLocation


def storable(text: str) -> str:
    """``text`` as SQLite can keep it: lone surrogates, which UTF-8 lacks, are spelled out."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


class Interning:
    """Gives each text and each source line one id; new ones wait until :meth:`flush`."""

    def __init__(self) -> None:
        self._text_ids: dict[str, int] = {}
        self._shape_ids: dict[tuple[int, ...], int] = {}
        self._source_ids: dict[SourceLocation, int] = {}
        self._num_texts = 0
        self._new_texts: list[tuple[int, str]] = []
        self._new_sources: list[tuple[int, int, int, int, int]] = []

    def text(self, value: str) -> int:
        known = self._text_ids.get(value)
        if known is not None:
            return known
        stored = storable(value)
        if stored != value:
            self._text_ids[value] = number = self.text(stored)
            return number
        self._num_texts += 1
        number = self._num_texts
        self._text_ids[value] = number
        self._new_texts.append((number, value))
        return number

    def optional_text(self, value: str | None) -> int | None:
        return None if value is None else self.text(value)

    def shape(self, shape: tuple[int, ...] | None) -> int | None:
        if shape is None:
            return None
        known = self._shape_ids.get(shape)
        if known is None:
            known = self._shape_ids[shape] = self.text(json.dumps(shape))
        return known

    def source(self, source: SourceLocation | None) -> int | None:
        if source is None:
            return None
        known = self._source_ids.get(source)
        if known is None:
            known = self._source_ids[source] = len(self._source_ids) + 1
            self._new_sources.append(
                (
                    known,
                    self.text(source.file),
                    source.line,
                    self.text(source.function),
                    self.text(source.text),
                )
            )
        return known

    def flush(self, connection: sqlite3.Connection) -> None:
        """Write what is new; inside the caller's transaction."""
        connection.executemany("INSERT INTO text VALUES (?, ?)", self._new_texts)
        connection.executemany("INSERT INTO source VALUES (?, ?, ?, ?, ?)", self._new_sources)
        self._new_texts.clear()
        self._new_sources.clear()
