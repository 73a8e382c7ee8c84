"""How meanings look: the two themes, the tones of text and the fills of memory categories.

Nothing is said by colour alone: marks (``+ - ~``), words and fill glyphs carry the same
information, colour only makes it quicker to see.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.style import Style
from textual.theme import Theme
from textual.widget import Widget

DARK_THEME: Final = "autosp-dark"
LIGHT_THEME: Final = "autosp-light"

_TONES_DARK: Final[Mapping[str, str]] = {
    "text": "#d8dee9",
    "muted": "#8c96a8",
    "faint": "#5c667a",
    "strong": "#f4f6fa",
    "heading": "#8fb8f6",
    "good": "#8fce9b",
    "warning": "#ecc46a",
    "bad": "#f28b82",
    "added": "#8fce9b",
    "removed": "#f28b82",
    "changed": "#ecc46a",
    "module": "#8fb8f6",
    "operator": "#b9c6da",
    "sharded": "#6fd0d6",
    "partial": "#d6a3f0",
    "replicated": "#b9c6da",
    "collective": "#f5a76c",
    "compute": "#6f9fe8",
    "compute_alternate": "#4f7fc8",
    "hidden": "#8c96a8",
    "exposed": "#f28b82",
    "source": "#c9d3a0",
    "category_parameters": "#5b8fe0",
    "category_gradients": "#8fce9b",
    "category_optimizer": "#9a8fe8",
    "category_saved": "#6fd0d6",
    "category_activations": "#ecc46a",
    "category_logits_loss": "#f28b82",
    "category_all_to_all": "#f5a76c",
    "category_ring_kv": "#e58fc6",
    "category_gather_reduce_buckets": "#c9d3a0",
    "category_inputs": "#b9c6da",
    "category_other": "#8c96a8",
}
_TONES_LIGHT: Final[Mapping[str, str]] = {
    "text": "#2c3440",
    "muted": "#5f6b7c",
    "faint": "#98a2b0",
    "strong": "#0b1220",
    "heading": "#1f5fbf",
    "good": "#1c7a3a",
    "warning": "#8a5a00",
    "bad": "#b3261e",
    "added": "#1c7a3a",
    "removed": "#b3261e",
    "changed": "#8a5a00",
    "module": "#1f5fbf",
    "operator": "#46546a",
    "sharded": "#00707a",
    "partial": "#8430a8",
    "replicated": "#46546a",
    "collective": "#b04a00",
    "compute": "#2f6fd0",
    "compute_alternate": "#6f9fe8",
    "hidden": "#7b8698",
    "exposed": "#c0322a",
    "source": "#5a6410",
    "category_parameters": "#2f6fd0",
    "category_gradients": "#2f9050",
    "category_optimizer": "#6a5bd0",
    "category_saved": "#168a94",
    "category_activations": "#b07a10",
    "category_logits_loss": "#c0322a",
    "category_all_to_all": "#d06a1a",
    "category_ring_kv": "#b8438f",
    "category_gather_reduce_buckets": "#7a8420",
    "category_inputs": "#5a6a80",
    "category_other": "#7b8698",
}
_BOLD: Final = frozenset(
    {"strong", "heading", "added", "removed", "changed", "collective", "exposed", "bad"}
)

CATEGORY_FILLS: Final[Mapping[str, str]] = {
    "parameters": "█",
    "gradients": "▓",
    "optimizer": "▒",
    "saved": "░",
    "activations": "▞",
    "logits_loss": "╳",
    "all_to_all": "▚",
    "ring_kv": "╱",
    "gather_reduce_buckets": "╲",
    "inputs": "═",
    "other": "·",
}
"""Fill glyph of each memory category, so that the curve reads without colour."""


def _variables(tones: Mapping[str, str]) -> dict[str, str]:
    return {_variable(tone): colour for tone, colour in tones.items()}


def _variable(tone: str) -> str:
    return f"tone-{tone.replace('_', '-')}"


DEFAULT_VARIABLES: Final[Mapping[str, str]] = _variables(_TONES_DARK)

THEMES: Final = (
    Theme(
        name=DARK_THEME,
        dark=True,
        primary="#8fb8f6",
        secondary="#6fd0d6",
        accent="#f5a76c",
        success="#8fce9b",
        warning="#ecc46a",
        error="#f28b82",
        foreground="#d8dee9",
        background="#14181f",
        surface="#14181f",
        panel="#232a36",
        variables={
            **_variables(_TONES_DARK),
            "row-cursor": "#2f4468",
            "row-cursor-blurred": "#242c3a",
            "row-marked": "#3a3420",
            "bar": "#1d2330",
        },
    ),
    Theme(
        name=LIGHT_THEME,
        dark=False,
        primary="#1f5fbf",
        secondary="#00707a",
        accent="#b04a00",
        success="#1c7a3a",
        warning="#8a5a00",
        error="#b3261e",
        foreground="#2c3440",
        background="#fbfbf9",
        surface="#fbfbf9",
        panel="#e3e7ee",
        variables={
            **_variables(_TONES_LIGHT),
            "row-cursor": "#c9dcf8",
            "row-cursor-blurred": "#e6eaf0",
            "row-marked": "#f4ecc8",
            "bar": "#edf0f4",
        },
    ),
)
EXTRA_DEFAULTS: Final[Mapping[str, str]] = {
    "row-cursor": "#2f4468",
    "row-cursor-blurred": "#242c3a",
    "row-marked": "#3a3420",
    "bar": "#1d2330",
}
"""Values for themes that are not ours (a user can pick any of Textual's)."""


class Tones:
    """Rich styles of tones for one widget, in the theme of the moment."""

    def __init__(self, widget: Widget) -> None:
        self._widget = widget
        self._theme = ""
        self._styles: dict[str, Style] = {}

    def __getitem__(self, tone: str) -> Style:
        app = self._widget.app
        if app.theme != self._theme:
            self._theme, self._styles = app.theme, {}
        style = self._styles.get(tone)
        if style is None:
            colour = app.theme_variables.get(_variable(tone))
            style = Style(color=colour, bold=tone in _BOLD or None)
            self._styles[tone] = style
        return style


def category_tone(category: str) -> str:
    """The tone of a memory category."""
    return f"category_{category}" if category in CATEGORY_FILLS else "category_other"


def category_fill(category: str) -> str:
    """The fill glyph of a memory category."""
    return CATEGORY_FILLS.get(category, CATEGORY_FILLS["other"])
