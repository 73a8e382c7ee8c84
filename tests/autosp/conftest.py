"""Settings of the compiler's tests."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True, scope="session")
def quiet_trace_log():
    """torch writes structured traces to every handler that listens, pytest's among them."""
    logger = logging.getLogger("torch.__trace")
    before, logger.propagate = logger.propagate, False
    yield
    logger.propagate = before
