"""Regions of ``torch.utils.checkpoint``: what the user asked to compute again is.

The capture writes the body of a region in place and marks its nodes. The mark travels with
every node that a pass or a rule makes on behalf of a marked one, through AOTAutograd, to the
joint graph. There each forward operator of a region is tagged with the region's policy, in
torch's own vocabulary, which both partitioners obey: recompute all, or what the policy
function of selective checkpointing says of each operator. Collectives are operators like
any other: a region that is computed again communicates again, as it does without a
compiler, unless its policy saves them.

What leaves a region is an ordinary tensor, which code outside may save. Operators outside
thereby never make the partition compute a part of a region again that the region's own
gradient does not need, and which collectives run again is the same on all ranks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch import partitioners
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    SelectiveCheckpointContext,
    _CachingTorchDispatchMode,
    noop_context_fn,
)

from autosp.errors import AutoSPError
from autosp.graph import REGION_KEY, is_view

CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint
TAG = "recompute"
"""Key in ``node.meta`` under which torch's partitioners look for a policy."""

RECOMPUTED = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)

Policy = Callable[..., Any]
"""``policy(context, operator, *args, **kwargs)`` of selective checkpointing."""


@dataclass(frozen=True, slots=True)
class CheckpointRegion:
    """One call of ``checkpoint``; regions inside it belong to it."""

    identity: int
    """Counts up in program order; ``node.meta[REGION_KEY]`` of the nodes of the region."""
    where: str
    """The user's line."""
    make_policy: Callable[[], Policy] | None
    """Makes the policy of one step; None recomputes everything."""


def region_of(identity: int, body: GraphModule, where: str) -> CheckpointRegion:
    """The region of a ``body`` that dynamo put under a checkpoint operator.

    Raises:
        AutoSPError: its ``context_fn`` does more than to choose what is saved.
    """
    context_fn = body.meta.get("_checkpoint_context_fn")
    if context_fn is None or context_fn is noop_context_fn:
        return CheckpointRegion(identity, where, None)

    def make_policy() -> Policy:
        forward, _ = context_fn()
        if isinstance(forward, nullcontext):
            return recompute_everything
        if not isinstance(forward, _CachingTorchDispatchMode):
            raise AutoSPError(
                f"the context_fn of a checkpoint returns a {type(forward).__name__}",
                where=where,
                hint="Only create_selective_checkpoint_contexts is understood: choose with it "
                "what is saved, or drop context_fn",
            )
        policy: Policy = forward.policy_fn
        return policy

    make_policy()
    return CheckpointRegion(identity, where, make_policy)


def recompute_everything(*args: Any, **kwargs: Any) -> CheckpointPolicy:
    """The policy of a checkpoint without ``context_fn``."""
    del args, kwargs
    return CheckpointPolicy.PREFER_RECOMPUTE


def tag_regions(joint: GraphModule, regions: Sequence[CheckpointRegion]) -> None:
    """Tag the forward operators of every region in the joint graph."""
    nodes = [node for node in joint.graph.nodes if _is_forward(node)]
    policies = {
        region.identity: region.make_policy() if region.make_policy else recompute_everything
        for region in regions
    }
    for node in nodes:
        if node.meta.get(REGION_KEY) in policies:
            node.meta[TAG] = _choice(node, policies[node.meta[REGION_KEY]])
    for node in nodes:
        if _is_recomputed(node) and _leaves_its_region(node):
            _keep(node)


def _is_forward(node: Node) -> bool:
    return node.op == "call_function" and node.meta.get("partitioner_tag") != "is_backward"


def _is_recomputed(node: Node) -> bool:
    return node.meta.get(TAG) in RECOMPUTED


def _choice(node: Node, policy: Policy) -> CheckpointPolicy:
    """What the region's policy says of one operator; softer wishes to save are firm here."""
    if node.target is operator.getitem:
        source = node.args[0]
        assert isinstance(source, Node)
        inherited: CheckpointPolicy = source.meta.get(TAG, CheckpointPolicy.PREFER_RECOMPUTE)
        return inherited
    if node.target in SAC_IGNORED_OPS:
        return CheckpointPolicy.PREFER_RECOMPUTE
    args, kwargs = map_aggregate(
        (node.args, node.kwargs), lambda a: a.meta.get("val") if isinstance(a, Node) else a
    )
    context = SelectiveCheckpointContext(is_recompute=False, op_output=node.meta.get("val"))
    chosen = policy(context, node.target, *args, **kwargs)
    if isinstance(chosen, bool):
        chosen = CheckpointPolicy.MUST_SAVE if chosen else CheckpointPolicy.PREFER_RECOMPUTE
    return chosen if chosen in RECOMPUTED else CheckpointPolicy.MUST_SAVE


def _leaves_its_region(node: Node) -> bool:
    region = node.meta[REGION_KEY]
    return any(_is_forward(user) and user.meta.get(REGION_KEY) != region for user in node.users)


def _keep(node: Node) -> None:
    """Let outside code save a tensor; a view is saved as what it views."""
    while _is_recomputed(node):
        node.meta[TAG] = CheckpointPolicy.MUST_SAVE
        source = node.args[0] if node.args else None
        if not isinstance(source, Node) or not is_view(node):
            return
        node = source


@contextmanager
def no_states_of_unused_generators() -> Iterator[None]:
    """Inside, the partitioners keep random states only for operators that draw numbers.

    They go by a tag that attention carries without dropout too, and would wrap it in a
    higher-order operator that hides it from every price.
    """
    original = partitioners.has_recomputable_rng_ops
    partitioners.has_recomputable_rng_ops = _recomputes_random_numbers
    try:
        yield
    finally:
        partitioners.has_recomputable_rng_ops = original


def _recomputes_random_numbers(fx_g: GraphModule) -> bool:
    return any(_is_recomputed(node) and _draws(node) for node in fx_g.graph.nodes)


def _draws(node: Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    for index, argument in enumerate(target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[index] if index < len(node.args) else node.kwargs.get("dropout_p")
            return bool(given)
    return True
