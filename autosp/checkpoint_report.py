"""What checkpointed regions cost: the decision of the partition and a finding about collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from autosp.checkpoint_regions import CheckpointRegion
from autosp.estimate import StepEstimate, payload_bytes
from autosp.events import Alternative, NodeCost
from autosp.graph import REGION_KEY, collective_kind
from autosp.pipeline import PassContext


def recomputed_collectives(backward: GraphModule, recomputed: frozenset[str]) -> list[Node]:
    """Collectives of the backward graph that the forward has run already."""
    return [
        node
        for node in backward.graph.nodes
        if node.name in recomputed and collective_kind(node) is not None
    ]


def decide_regions(
    regions: Sequence[CheckpointRegion],
    backward: GraphModule,
    recomputed: frozenset[str],
    context: PassContext,
) -> None:
    """Record, region by region, what is computed again."""
    again = [node for node in backward.graph.nodes if node.name in recomputed]
    for region in regions:
        nodes = [node for node in again if node.meta.get(REGION_KEY) == region.identity]
        communicated = [node for node in nodes if collective_kind(node) is not None]
        policy = "all of it" if region.make_policy is None else "what its policy does not save"
        context.decide(
            "applied", "checkpoint", "",
            f"recompute {policy}: {len(nodes)} operators, {_counted(communicated)}",
            f"torch.utils.checkpoint in the user's program ({region.where})",
            rule="checkpoint_regions.tag_regions",
            alternatives=_saving(communicated),
        )  # fmt: skip


def _saving(communicated: Sequence[Node]) -> tuple[Alternative, ...]:
    if not communicated:
        return ()
    return (
        Alternative(
            "save what the collectives return",
            "the region asks for memory; a policy that saves them asks for less communication",
            f"{_mebibytes(communicated)} more saved, {_counted(communicated)} fewer",
        ),
    )


@dataclass(frozen=True, slots=True)
class RecomputedCollectives:
    """What the ``check`` says of collectives that run twice; ``node`` is the first."""

    node: Node
    message: str


SAVING_HINT = (
    "As torch.utils.checkpoint asks. To save their results instead, give it a context_fn made by "
    "create_selective_checkpoint_contexts whose policy returns MUST_SAVE for "
    "torch.ops._c10d_functional.wait_tensor.default"
)


def find_recomputed_collectives(
    backward: GraphModule, recomputed: frozenset[str], estimate: StepEstimate | None
) -> RecomputedCollectives | None:
    """Which collectives run twice, their bytes and their time."""
    nodes = recomputed_collectives(backward, recomputed)
    if not nodes:
        return None
    return RecomputedCollectives(
        nodes[0],
        f"checkpointed regions communicate again in the backward: {_counted(nodes)}, "
        f"{_mebibytes(nodes)} a step{_time(nodes, estimate)}",
    )


def _counted(nodes: Sequence[Node]) -> str:
    kinds = Counter(collective_kind(node) for node in nodes)
    parts = [f"{count} {kind}" for kind, count in sorted(kinds.items(), key=str)]
    return " and ".join(parts) or "no collectives"


def _mebibytes(nodes: Sequence[Node]) -> str:
    total = sum(payload_bytes(n, kind) for n in nodes if (kind := collective_kind(n)) is not None)
    return f"{total / 2**20:.1f} MiB"


def _time(nodes: Sequence[Node], estimate: StepEstimate | None) -> str:
    names = {node.name for node in nodes}
    costs = [
        event.duration_ns
        for event in (estimate.events if estimate is not None else ())
        if isinstance(event, NodeCost) and event.graph == "backward" and event.node in names
    ]
    if not costs or any(cost is None for cost in costs):
        return ""
    return f", {sum(cost or 0 for cost in costs) / 1e6:.2f} ms if nothing hides them"
