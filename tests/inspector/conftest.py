"""Fixtures of the inspector's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.synthetic import write_synthetic_trace


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.fixture(scope="session")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded trace of two layers on four ranks; read only."""
    return write_synthetic_trace(tmp_path_factory.mktemp("synthetic") / "run.autosp")
