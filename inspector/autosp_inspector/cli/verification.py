"""From the options of ``verify`` to a run of the compiler's verification."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autosp_inspector.target.specification import ModelTarget


def run_verification(
    target: ModelTarget, values: Mapping[str, Any], *, progress: Callable[[str], None]
) -> Mapping[str, Any]:
    raise NotImplementedError
