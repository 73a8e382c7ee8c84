"""Every rank must issue the same collectives in the same order, or all wait for ever.

The programs of the ranks have the same nodes but not the same numbers: where a slice of one
rank holds no padding, two of its sums may be the same expression, while on the last rank
they are not. Merging common subexpressions is therefore safe for anything but collectives.

Whatever else may go wrong, the ranks compare what they are about to issue before they do
(:mod:`autosp.runtime.agreement`): a difference is an error instead of a hang.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest

from torch._functorch import compile_utils
from torch.fx import GraphModule, Node

from autosp.errors import CollectiveOrderError
from autosp.graph import (
    COLLECTIVE_KINDS,
    RING_BACKWARD_KEY,
    collective_kind,
    is_unclassified_collective,
    tensor_of,
)
from autosp.sizes import examples


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


def collective_list(
    forward: GraphModule, backward: GraphModule | None, group_name: str
) -> tuple[str, ...]:
    """Every collective of a step in order: phase, operator, group, what is sent, reduction.

    How many rows go to which rank is left out: with neighbours it differs from rank to rank.
    Sizes that stay dynamic are what they are at the length of the trace: the names of lengths,
    and the nodes that compute sizes, may differ between ranks.
    """
    phases = (("forward", forward), ("backward", backward))
    return tuple(
        f"{phase} {_described(node, group_name)}"
        for phase, module in phases
        if module is not None
        for node in module.graph.nodes
        if collective_kind(node) is not None or is_unclassified_collective(node)
    )


def _described(node: Node, group_name: str) -> str:
    sent = node.args[0] if node.args else None
    tensor = tensor_of(sent) if isinstance(sent, Node) else None
    what = ""
    if tensor is not None:
        sizes = list(examples(tensor.shape))
        what = f" of {tensor.dtype} {[None, *sizes[1:]] if _sends_unequal(node) else sizes}"
    names = [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, str)]
    group = "sp" if group_name in names else "another group"
    reduction = "".join(f", {name}" for name in names[:-1])
    return f"{collective_kind(node) or node.target}{what} over {group}{reduction}"


def _sends_unequal(node: Node) -> bool:
    """Whether an all-to-all sends more to some ranks than to others: then it need not send as
    much from each."""
    splits = [size for sizes in node.args[1:3] if isinstance(sizes, list) for size in sizes]
    return len({size for size in splits if size}) > 1


def check_same_collectives(lists: Sequence[Sequence[str]]) -> None:
    """Compare what the ranks of a group issue; ``lists`` has one entry a rank.

    Raises:
        CollectiveOrderError: names the first rank that differs from rank 0, and the first
            collective.
    """
    for rank, entries in enumerate(lists):
        for position, pair in enumerate(zip_longest(lists[0], entries)):
            expected, found = (entry or "no more" for entry in pair)
            if expected != found:
                raise CollectiveOrderError(
                    f"the ranks would wait for each other for ever: collective {position + 1} of "
                    f"the step is {found} on SP rank {rank}, but {expected} on SP rank 0",
                    hint="Build the same model on all ranks and pass inputs of the same shapes; "
                    "if you do, this is a mistake in the compiler: please report it",
                )
