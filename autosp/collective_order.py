"""Every rank must issue the same collectives in the same order, or all wait for ever.

The programs of the ranks have the same nodes but not the same numbers: where a slice of one
rank holds no padding, two of its sums may be the same expression, while on the last rank
they are not. Merging common subexpressions is therefore safe for anything but collectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch._functorch import compile_utils

from autosp.graph import COLLECTIVE_KINDS


@contextmanager
def collectives_stay_apart() -> Iterator[None]:
    """Inside, torch merges no collectives, as it merges no random operators."""
    before = compile_utils.rand_ops
    packets = [target.overloadpacket for target in COLLECTIVE_KINDS]
    compile_utils.rand_ops = [*before, *packets]
    try:
        yield
    finally:
        compile_utils.rand_ops = before
