"""Reports as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from autosp_inspector.report.report import SCHEMA, Report


def render_json(report: Report) -> str:
    """One object with ``"schema"``; numbers in base units, unknown values null.

    So are numbers that are infinite or not a number, which JSON does not have.
    """
    data = _finite({"schema": SCHEMA, **report.data})
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
