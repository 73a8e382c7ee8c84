"""The documentation's table of keys is the declaration's."""

from __future__ import annotations

from pathlib import Path

from autosp_tui.bindings import COMMANDS

DOCUMENT = Path(__file__).parents[2] / "docs" / "tui.md"
SCOPES = {
    "list": "lists",
    "tree": "module tree",
    "detail": "text panes",
    "lanes": "timeline lanes",
    "curve": "memory curve",
    "view": "every view",
    "app": "everywhere",
}


def key_table() -> str:
    rows = ["| where | key | does |", "|---|---|---|"]
    for command in COMMANDS:
        where = SCOPES.get(command.scope, f"{command.scope} view")
        keys = " ".join(f"`{key}`" for key in command.shown.split())
        rows.append(f"| {where} | {keys} | {command.help} |")
    return "\n".join(rows)


def test_the_documented_keys_are_the_keys() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    documented = text.split("<!-- keys: begin -->\n")[1].split("<!-- keys: end -->")[0]
    assert documented.strip() == key_table()
