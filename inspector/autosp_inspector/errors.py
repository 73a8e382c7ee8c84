"""Errors that a user of the inspector can cause. Each message is one clear line."""

from __future__ import annotations

from autosp.errors import AutoSPError


class TraceError(AutoSPError):
    """A trace cannot be opened, read or written: the message says which file and why."""


class ExportError(AutoSPError):
    """A file cannot be made from a trace: nothing to draw, a name that matches nothing."""
