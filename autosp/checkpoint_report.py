"""What checkpointed regions cost: the decision of the partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch.fx import GraphModule, Node

from autosp.checkpoint_regions import CheckpointRegion
from autosp.estimate import payload_bytes
from autosp.events import Alternative
from autosp.graph import REGION_KEY, collective_kind
from autosp.pipeline import PassContext


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


SAVING_HINT = (
    "As torch.utils.checkpoint asks. To save their results instead, give it a context_fn made by "
    "create_selective_checkpoint_contexts whose policy returns MUST_SAVE for "
    "torch.ops._c10d_functional.wait_tensor.default"
)


def _counted(nodes: Sequence[Node]) -> str:
    kinds = Counter(collective_kind(node) for node in nodes)
    parts = [f"{count} {kind}" for kind, count in sorted(kinds.items(), key=str)]
    return " and ".join(parts) or "no collectives"


def _mebibytes(nodes: Sequence[Node]) -> str:
    total = sum(payload_bytes(n, kind) for n in nodes if (kind := collective_kind(n)) is not None)
    return f"{total / 2**20:.1f} MiB"
