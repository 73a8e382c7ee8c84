"""Errors of the terminal user interface."""

from __future__ import annotations


class TuiError(Exception):
    """Base class: the message is one line a user can act on."""


class ExportError(TuiError):
    """A view could not be written to a file."""
