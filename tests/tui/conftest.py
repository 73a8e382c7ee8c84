"""Traces and a driver for the tests of the terminal interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.synthetic import write_synthetic_trace


@pytest.fixture(scope="session")
def synthetic_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trace with every kind of event."""
    path = tmp_path_factory.mktemp("traces") / "synthetic.autosp"
    write_synthetic_trace(path, num_layers=2, sp=4)
    return path
