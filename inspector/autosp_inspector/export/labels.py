"""Text for drawings: names from a trace made safe, and shapes and sizes made readable.

Names come from the user's program or from a file of unknown origin. They may hold any
character; none may end a label, open a tag or make the XML of an SVG file invalid.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from autosp_inspector.export.module_graph import CollectiveTotal

_SHORT_DTYPES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "int64": "i64",
    "int32": "i32",
}
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\\": r"\\"}
# Control, surrogate, private and unassigned characters, and those that reorder text.
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cs", "Co", "Cn"})
_REORDERING = frozenset(chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A)))


def visible_text(text: str) -> str:
    """``text`` with every character that cannot be shown written as its code."""
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in "\t\n\r\u2028\u2029":
        return " "
    if character in _REORDERING or unicodedata.category(character) in _UNSAFE_CATEGORIES:
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    return character


def html_text(text: str) -> str:
    """``text`` for the inside of an HTML-like label.

    A backslash is doubled: Graphviz replaces sequences like backslash-G even there.
    """
    return "".join(_ENTITIES.get(character, character) for character in visible_text(text))


def wrap_name(name: str, *, width: int = 26, most_lines: int = 4) -> tuple[str, ...]:
    """Lines of at most ``width`` characters, broken after a separator where there is one."""
    lines: list[str] = []
    rest = " ".join(visible_text(name).split())
    while rest and len(lines) < most_lines:
        if len(rest) <= width:
            lines.append(rest)
            rest = ""
            break
        cut = _last_break(rest, width)
        lines.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    if rest:
        lines[-1] = f"{lines[-1][: width - 2].rstrip(', ')} …"
    return tuple(lines)


def _last_break(text: str, width: int) -> int:
    for separators in (" ", "._-/"):
        cut = max(text.rfind(separator, 0, width) for separator in separators) + 1
        if cut > width // 3:
            return cut
    return width


def short_dtype(dtype: str | None) -> str:
    """``torch.bfloat16`` -> ``bf16``."""
    if not dtype:
        return ""
    name = dtype.rpartition(".")[2]
    return _SHORT_DTYPES.get(name, name)


def shape_text(global_shape: tuple[int, ...] | None, local_shape: tuple[int, ...] | None) -> str:
    """``[1, 8192→2048, 768]``: the user's size, and one rank's where it differs."""
    shape = local_shape if local_shape is not None else global_shape
    if shape is None:
        return ""
    if global_shape is None or local_shape is None or len(global_shape) != len(local_shape):
        return f"[{', '.join(str(size) for size in shape)}]"
    pairs = zip(global_shape, local_shape, strict=True)
    return f"[{', '.join(str(a) if a == b else f'{a}→{b}' for a, b in pairs)}]"


def size_text(size_bytes: int) -> str:
    """Binary units with one decimal: ``36.0 MiB``."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def kind_text(kind: str) -> str:
    """``all_to_all`` -> ``all-to-all``."""
    return kind.replace("_", "-")


def totals_text(totals: Iterable[CollectiveTotal], *, repeat: int = 1) -> str:
    """``4 all-to-all (36.0 MiB), 1 all-reduce (4 B)``, each times ``repeat``."""
    return ", ".join(
        f"{total.count * repeat} {kind_text(total.kind)} ({size_text(total.bytes * repeat)})"
        for total in totals
    )
