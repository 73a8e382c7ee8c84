"""Pure formatting: numbers, tensors and names as text. Nothing here knows the screen.

A *span* is text with a tone, the name of a meaning (``muted``, ``added``, ``collective``);
:mod:`autosp_tui.theme` says how a tone looks. Text that comes from a trace is untrusted:
everything drawn goes through :func:`clean`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.cells import cell_len, set_cell_size

Span = tuple[str, str]
"""Text and the tone it is drawn in."""

Keep = Literal["start", "end", "ends"]
"""Which part of a text stays when it is too long; with ``ends`` both ends do."""

UNKNOWN = "?"
"""How a table shows a value that was not recorded."""

_BINARY_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_TIME_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_SHORT_DTYPES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "complex64": "c64",
    "complex128": "c128",
}
# Bidirectional controls reorder what the terminal shows after them.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class Line:
    """One logical line of a detail pane; ``indent`` is where its wrapped rest begins."""

    spans: tuple[Span, ...] = ()
    indent: int = 0

    @property
    def text(self) -> str:
        """The line without tones."""
        return "".join(text for text, _ in self.spans)


def line(*spans: Span, indent: int = 0) -> Line:
    """A line of the given spans."""
    return Line(spans, indent)


def heading(text: str) -> Line:
    """A line that starts a section."""
    return Line(((text, "heading"),))


def clean(text: str) -> str:
    """``text`` with control, format and line-separating characters made visible."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN_CATEGORIES:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def format_bytes(size_bytes: int | None) -> str:
    """Binary units with three significant digits: ``640 B``, ``1.50 KiB``, ``53.2 GiB``."""
    if size_bytes is None:
        return UNKNOWN
    if abs(size_bytes) < 1024:
        return f"{size_bytes} B"
    value = size_bytes / 1024
    number = 0
    while abs(value) >= 999.5 and number < len(_BINARY_UNITS) - 1:
        value, number = value / 1024, number + 1
    return f"{_three_digits(value)} {_BINARY_UNITS[number]}"


def format_duration(duration_ns: int | None) -> str:
    """Three significant digits: ``850 ns``, ``12.3 µs``, ``4.56 ms``, ``1.23 s``."""
    if duration_ns is None:
        return UNKNOWN
    for factor, unit in _TIME_UNITS:
        if abs(duration_ns) >= factor:
            return f"{_three_digits(duration_ns / factor)} {unit}"
    return f"{duration_ns} ns"


def _three_digits(value: float) -> str:
    size = abs(value)
    if size >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def format_count(count: int | None) -> str:
    """An integer with thousands separators."""
    return UNKNOWN if count is None else f"{count:,}"


def format_fraction(fraction: float | None) -> str:
    """A share in per cent; small but non-zero shares never read as 0%."""
    if fraction is None:
        return UNKNOWN
    percent = fraction * 100
    if 0 < percent < 0.1:
        return "<0.1%"
    return f"{percent:.1f}%" if percent < 10 else f"{percent:.0f}%"


def format_share(part: int | None, whole: int | None) -> str:
    """``part`` of ``whole`` in per cent, or unknown where there is no whole."""
    if part is None or not whole:
        return UNKNOWN
    return format_fraction(part / whole)


def short_dtype(dtype: str | None) -> str:
    """``torch.bfloat16`` and ``bfloat16`` as ``bf16``."""
    if dtype is None:
        return ""
    name = dtype.removeprefix("torch.")
    return _SHORT_DTYPES.get(name, name)


def format_tensor(dtype: str | None, shape: Sequence[int] | None) -> str:
    """``bf16[1,4096,4096]``; empty when nothing is known."""
    if shape is None:
        return short_dtype(dtype)
    return f"{short_dtype(dtype)}[{','.join(str(size) for size in shape)}]"


def placement_tone(placement: str | None) -> str:
    """Sharded, partial and replicated tensors each have a tone of their own."""
    if not placement:
        return "muted"
    if "S(" in placement:
        return "sharded"
    return "partial" if "P(" in placement else "replicated"


def plural(count: int, noun: str, plural_noun: str = "") -> str:
    """``1 node``, ``2 nodes``, ``2 all-to-alls``."""
    word = noun if count == 1 else plural_noun or f"{noun}s"
    return f"{count:,} {word}"


def short_target(target: str) -> str:
    """``aten.linear.default`` as ``linear``; overloads other than the default stay."""
    name = target.rsplit("::", 1)[-1].removesuffix(".default")
    for prefix in ("aten.", "torch.ops.aten.", "_c10d_functional.", "prims."):
        name = name.removeprefix(prefix)
    return name


def operator_words(op: str, target: str) -> str:
    """What a node does: its operator, or that it is an input (whose target is a long name)."""
    return "input" if op == "placeholder" else short_target(target)


def short_path(path: str) -> str:
    """A source file without the folder that packages are installed in, or the current one."""
    for folder in ("/site-packages/", "/dist-packages/"):
        before, found, inside = path.rpartition(folder)
        if found and before:
            return inside
    return path.removeprefix(f"{Path.cwd()}/")


def kind_words(kind: str) -> str:
    """``all_to_all`` as ``all-to-all``."""
    return kind.replace("_", "-")


def fit(
    text: str,
    width: int,
    *,
    align: Literal["left", "right"] = "left",
    keep: Keep = "start",
) -> str:
    """``text`` in exactly ``width`` cells; what does not fit becomes one ellipsis."""
    if width <= 0:
        return ""
    size = cell_len(text)
    if size > width:
        if keep == "end":
            return "…" + _last_cells(text, width - 1)
        if keep == "ends":
            tail = (width - 1) // 2
            return set_cell_size(text, width - 1 - tail) + "…" + _last_cells(text, tail)
        return set_cell_size(text, width - 1) + "…"
    padding = " " * (width - size)
    return padding + text if align == "right" else text + padding


def _last_cells(text: str, width: int) -> str:
    start, used = len(text), 0
    while start > 0 and used + cell_len(text[start - 1]) <= width:
        start -= 1
        used += cell_len(text[start])
    return text[start:] + " " * (width - used)


def join_words(words: Iterable[str], *, limit: int = 4) -> str:
    """``a, b, c and 3 more``."""
    known = list(words)
    if len(known) <= limit:
        return ", ".join(known)
    return f"{', '.join(known[:limit])} and {len(known) - limit} more"
