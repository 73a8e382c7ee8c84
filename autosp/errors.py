"""Errors that a user can cause. Each message says what, where and what to do next.

``AutoSPError`` is the root: a command line catches it, prints one line and exits 2.
Mistakes of our own are ``assert`` or plain exceptions, with a traceback.
"""

from __future__ import annotations


class AutoSPError(Exception):
    """Something in the input makes the compilation impossible."""

    def __init__(self, message: str, *, hint: str = "", where: str = "") -> None:
        self.message = message
        self.hint = hint
        self.where = where
        super().__init__(self._render())

    def _render(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}. {self.hint}" if self.hint else text


class MeshError(AutoSPError):
    """The mesh cannot exist, or does not match the process group."""


class ShardingError(AutoSPError):
    """Nothing in the program can be sharded, or a required layout does not exist."""


class HeadCountError(ShardingError):
    """The numbers of attention heads do not allow this SP degree; legal ones are listed."""


class GraphBreakError(AutoSPError):
    """The program is not one graph; names the user's line that broke it."""


class MutationError(AutoSPError):
    """An in-place operation that cannot be made functional."""


class RandomnessError(AutoSPError):
    """An operator draws random numbers in a region where ranks would disagree."""


class HardwareError(AutoSPError):
    """Unknown device, or a device row that lacks a constant an estimate needs."""


class VerificationError(AutoSPError):
    """A pass left the graph in a state that contradicts its placements."""


class RankError(AutoSPError):
    """A process of a run on several ranks failed, died or hung."""


class CollectiveOrderError(AutoSPError):
    """The ranks of a group are about to issue different collectives."""
