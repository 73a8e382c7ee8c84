"""Errors in what the user asked to inspect."""

from __future__ import annotations

from collections.abc import Sequence

from autosp.errors import AutoSPError


class TargetError(AutoSPError):
    """The target cannot be loaded: the message says what, where and what to do next."""


class UserCodeError(TargetError):
    """The user's own code raised.

    ``traceback_lines`` are the frames of the user's files only, ready to print above
    the one-line message.
    """

    def __init__(
        self, message: str, *, traceback_lines: Sequence[str], hint: str = "", where: str = ""
    ) -> None:
        super().__init__(message, hint=hint, where=where)
        self.traceback_lines = tuple(traceback_lines)


class MissingPackageError(TargetError):
    """A stand-in for a package that is not installed was really called."""
