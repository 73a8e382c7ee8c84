"""``logger.warning_once`` and ``warnings.warn`` in a forward are no graph breaks."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch._dynamo


def skip_warnings_once() -> None:
    """Let dynamo skip warnings from now on, and ``logger.warning_once``, which transformers adds.

    Torch itself warns in ``create_block_mask``, with a function that dynamo cannot trace.
    """
    methods = (warnings.warn, getattr(logging.Logger, "warning_once", None))
    torch._dynamo.config.ignore_logging_functions.update(m for m in methods if m is not None)


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
