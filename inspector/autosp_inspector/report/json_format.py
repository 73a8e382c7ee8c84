"""Reports as JSON."""

from __future__ import annotations

import json

from autosp_inspector.report.report import SCHEMA, Report


def render_json(report: Report) -> str:
    """One object with ``"schema"``; numbers in base units, unknown values null."""
    return json.dumps({"schema": SCHEMA, **report.data}, indent=2, ensure_ascii=False) + "\n"
