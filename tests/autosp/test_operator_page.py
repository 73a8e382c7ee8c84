"""The page of operators lists the rule table as it is."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_current():
    printed = runpy.run_path(str(ROOT / "scripts" / "list_operators.py"))["page"]()
    assert (ROOT / "docs" / "operators.md").read_text(encoding="utf-8") == printed
