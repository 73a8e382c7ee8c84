"""What does not shrink with the number of ranks: FLOPs and saved bytes, and where they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from torch.fx import Node

from autosp.checks.subject import Subject, layer_pattern, percent, size_text
from autosp.events import Finding, GraphName

LARGE_SHARE = 0.05
"""Above this share of the step something is wrong; embeddings and norms stay below it."""

LARGE_BYTES = 64 * 2**20
"""Saved tensors below this are not worth a word."""

NUM_PLACES = 3


def check_replicated_work(subject: Subject) -> Iterator[Finding]:
    """Shares of the step that every rank repeats."""
    if subject.estimate is None:
        return
    yield from _flops(subject)
    yield from _saved(subject)


def _flops(subject: Subject) -> Iterator[Finding]:
    everything, whole = 0, Counter[Node]()
    graph_of: dict[Node, GraphName] = {}
    for name, module in subject.derived():
        for node in module.graph.nodes:
            cost = subject.costs.get((name, node.name))
            flops = (cost.flops or 0) if cost else 0
            everything += flops
            if flops and not subject.compilation.view.is_sharded(node):
                whole[node], graph_of[node] = flops, name
    repeated = whole.total()
    if repeated <= LARGE_SHARE * everything:
        return
    times = [subject.duration_ns(name, [node]) for node, name in graph_of.items()]
    known = [time for time in times if time is not None]
    yield subject.finding(
        whole.most_common(1)[0][0],
        "replicated-work",
        "warning",
        f"{percent(repeated, everything)} of the FLOPs of a step are computed on every rank "
        f"instead of shared: {_places(subject, whole, everything)}",
        "Look for gathered operators there, and for tensors that do not carry the sequence",
        cost_ns=sum(known) if known else None,
    )


def _saved(subject: Subject) -> Iterator[Finding]:
    assert subject.estimate is not None
    saved = subject.estimate.memory.saved_bytes
    everything = sum(saved.values())
    view = subject.compilation.view
    whole = Counter({node: size for node, size in saved.items() if not view.is_sharded(node)})
    repeated = whole.total()
    if repeated <= LARGE_SHARE * everything or repeated < LARGE_BYTES:
        return
    yield subject.finding(
        whole.most_common(1)[0][0],
        "replicated-saved",
        "warning",
        f"{percent(repeated, everything)} of the bytes saved for the backward "
        f"({size_text(repeated)}) are whole on every rank: "
        f"{_places(subject, whole, everything)}",
        "Look for gathered operators there, and for tensors that do not carry the sequence",
        cost_bytes=repeated,
    )


def _places(subject: Subject, amounts: Mapping[Node, int], everything: int) -> str:
    """``lm_head 30 %, layers.*.router 4 %``: the largest first."""
    by_place: Counter[str] = Counter()
    for node, amount in amounts.items():
        by_place[layer_pattern(subject.module_of(node)) or node.name] += amount
    largest = by_place.most_common(NUM_PLACES)
    shown = [f"{place} {percent(amount, everything)}" for place, amount in largest]
    rest = len(by_place) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")
