"""Operators that run on gathered inputs: what is said of them, and how the program goes on."""

from __future__ import annotations

from math import prod
from typing import Any

from torch.fx import Node

from autosp.events import Alternative, Finding
from autosp.graph import module_path, source_location
from autosp.pipeline import PassContext
from autosp.placement import REPLICATE, Shard
from autosp.sharding.builder import Value
from autosp.sharding.operation import CannotRedistribute, Operation
from autosp.sizes import examples, same_size


def report_gathered(
    context: PassContext, operation: Operation, why: str, *, inside: Node | None
) -> None:
    """Decide and find that an operator gathers its inputs.

    Args:
        inside: the custom function of whose backward the operator is a part.
    """
    node = operation.node
    gathered_bytes = sum(
        prod(examples(v.shape)) * v.dtype.itemsize
        for v in operation.values()
        if v.placement != REPLICATE
    )
    cost = f"{gathered_bytes / 2**20:.1f} MiB whole on every rank"
    operation.decide(
        "missed", "fallback", "all-gather the inputs, run replicated", why,
        rule="propagate.fallback",
        alternatives=(Alternative("keep the shards", why, cost),),
    )  # fmt: skip
    context.find(
        Finding(
            code="gathered-operator",
            severity="warning",
            message=f"{operation.target} runs replicated: {why} ({cost})",
            node=node.name if inside is None else inside.name,
            module=module_path(inside or node),
            source=source_location(node),
            hint="Correct, but memory and time of this operator do not shrink with SP",
            cost_bytes=gathered_bytes,
        )
    )


def gathered(operation: Operation, why: str) -> Operation:
    """The operation with every input whole."""
    return operation.with_values(lambda v: operation.replicate(v, f"{operation.target}: {why}"))


def cut_again(operation: Operation, whole: Any) -> Any:
    """Floating results that have the sharded dim go on sharded: what follows need not pay."""
    cuts = [value for value in operation.values() if isinstance(value.placement, Shard)]
    if not cuts:
        return whole
    source, cut = cuts[0], cuts[0].placement
    assert isinstance(cut, Shard)

    def again(value: Any) -> Any:
        is_like = (
            isinstance(value, Value)
            and value.dtype.is_floating_point
            and len(value.shape) == len(source.shape)
            and same_size(value.shape[cut.dim], source.shape[cut.dim])
        )
        if not is_like:
            return value
        operation.builder.amend(value.node, placement=REPLICATE, global_shape=value.shape)
        try:
            return operation.redistribute(value, cut, "what follows goes on sharded")
        except CannotRedistribute:  # few rows, in blocks that grow with the length
            return value

    return [again(value) for value in whole] if isinstance(whole, list) else again(whole)
