"""Running the command line inside the test's process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autosp_inspector.cli.main import main


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class CommandLine:
    """Calls :func:`main` and takes what it printed."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str | Path) -> Outcome:
        self._capture.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = self._capture.readouterr()
        return Outcome(status, captured.out, captured.err)


def assert_one_clear_line(outcome: Outcome, *parts: str) -> None:
    """Bad input: status 2, nothing on stdout, one line on stderr with all ``parts``."""
    assert outcome.status == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.err.startswith("error: ")
    assert "Traceback" not in outcome.err
    for part in parts:
        assert part in outcome.err
