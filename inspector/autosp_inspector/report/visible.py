"""Text from a trace made safe for a terminal: names in it are of unknown origin."""

from __future__ import annotations

import unicodedata

_REORDERING = frozenset(chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A)))
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """``text`` on one line, with control and reordering characters as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible_character(character) for character in text)


def _visible_character(character: str) -> str:
    if character in "\t\n\r":
        return " "
    if character in _REORDERING or unicodedata.category(character) in _UNSAFE_CATEGORIES:
        return character.encode("unicode_escape").decode("ascii")
    return character
