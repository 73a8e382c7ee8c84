"""``logger.warning_once`` in a forward, which transformers uses, is no graph break."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch._dynamo


def skip_warnings_once() -> None:
    """Let dynamo skip ``logger.warning_once`` from now on, where transformers has defined it."""
    method = getattr(logging.Logger, "warning_once", None)
    if method is not None:
        torch._dynamo.config.ignore_logging_functions.add(method)


@contextmanager
def quiet_loggers() -> Iterator[None]:
    """The same for the time of the context."""
    ignored = torch._dynamo.config.ignore_logging_functions
    before = set(ignored)
    skip_warnings_once()
    try:
        yield
    finally:
        ignored.intersection_update(before)
