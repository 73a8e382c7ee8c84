"""The lock-step oracle: P per-rank programs run together in one process, on real tensors.

For every tensor of the user's program, and for every cotangent, combining what the ranks
hold by its placement must give the value of the user's program. The oracle names the
first tensor for which it does not, which is where the compiler went wrong.
"""

from __future__ import annotations

from autosp.oracle.check import check_module, check_program
from autosp.oracle.lengths import LengthsReport, check_lengths
from autosp.oracle.report import OracleReport, WrongNode

__all__ = [
    "LengthsReport",
    "OracleReport",
    "WrongNode",
    "check_lengths",
    "check_module",
    "check_program",
]
