"""Every rank must issue the same collectives in the same order, or all wait for ever.

The programs of the ranks have the same nodes but not the same numbers: where a slice of one
rank holds no padding, two of its sums may be the same expression, while on the last rank
they are not. Merging common subexpressions is therefore safe for anything but collectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch._functorch import compile_utils
from torch.fx import GraphModule

from autosp.graph import COLLECTIVE_KINDS, RING_BACKWARD_KEY


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


def keep_ring_in_backward(joint: GraphModule) -> None:
    """Blocks that a ring sends again in the backward are not sent, and kept, in the forward.

    They do not depend on cotangents, so that a partitioner may move them there: every rank
    would keep all keys and values.
    """
    for node in joint.graph.nodes:
        if RING_BACKWARD_KEY in (node.meta.get("custom") or {}):
            node.meta["partitioner_tag"] = "must_be_in_backward"
