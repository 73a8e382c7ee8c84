"""Values in the placements that operators ask for: moved once, or computed there at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from autosp.placement import REPLICATE, Placement, Shard
from autosp.sharding.builder import ProgramBuilder, Value
from autosp.sharding.localise import block_inputs
from autosp.sharding.operation import Decide, Operation
from autosp.sharding.redistribute import redistribute
from autosp.sharding.rules import rule_for
from autosp.sizes import same_size

_Autocast = tuple[bool, torch.dtype]


def _autocast_of(device: str) -> _Autocast:
    """What an operator that is executed now would be subject to."""
    return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)


@dataclass(slots=True)
class Moves:
    """Every value of a program in every placement in which it was needed."""

    builder: ProgramBuilder
    values: dict[Node, Any]
    """User's node -> its value, in the placement in which it came into being."""
    decide: Decide
    check: Callable[[Node, Any], None]
    blocks: dict[Node, list[Value]] = field(default_factory=dict)
    """User's node -> blocks of it that were computed instead of, or beside, the whole."""
    _moved: dict[tuple[Node, Placement, Placement, int | None], Value] = field(default_factory=dict)
    _whole: dict[Node, tuple[Node, _Autocast]] = field(default_factory=dict)
    """Local node of a value computed whole -> the user's node, and the mode it ran in."""

    def computed_whole(self, local: Node, node: Node, device: str) -> None:
        """``local`` holds the whole of ``node``; a block of it may be computed from blocks."""
        self._whole[local] = (node, _autocast_of(device))

    def redistribute(
        self, value: Value, placement: Placement, reason: str, fill: int | None
    ) -> Value:
        """The value in another placement; made once, however many ask for it."""
        if value.placement == placement:
            return value
        # A slice that only drops a tail shares the node and differs in its placement alone.
        key = (value.node, value.placement, placement, fill)
        if key not in self._moved:
            block = self._computed_block(value, placement, reason) if fill is None else None
            if block is not None:
                self._moved[key] = block
                return block
            moved = redistribute(self.builder, value, placement, reason=reason, fill=fill)
            self._moved[key] = moved
            origin = self.builder.origin
            self.decide(
                "applied", "redistribute", origin.name if origin else "",
                f"{value.placement} -> {placement} of {value.node.name}", reason,
                rule="redistribute",
            )  # fmt: skip
        return self._moved[key]

    def _computed_block(self, value: Value, placement: Placement, reason: str) -> Value | None:
        """A block of a whole value, computed from blocks of what the value comes from."""
        node, mode = self._whole.get(value.node, (None, None))
        if node is None or value.placement != REPLICATE or not isinstance(placement, Shard):
            return None
        rows = value.shape[placement.dim]
        is_plain = same_size(placement.outer, 1) and same_size(placement.atom, rows)
        rule = rule_for(node.target)
        if not is_plain or rule is None or mode != _autocast_of(value.local.device.type):
            return None
        cuts = block_inputs(node, placement.dim)
        if cuts is None or not all(is_whole(self.values[source]) for source in cuts):
            return None
        with self.builder.on_behalf_of(node, suffix="_block"):

            def read(argument: Any) -> Any:
                known = self.values[argument] if isinstance(argument, Node) else argument
                if not isinstance(argument, Node) or argument not in cuts:
                    return known
                return self.redistribute(known, placement.on_dim(cuts[argument]), reason, None)

            args, kwargs = map_aggregate((node.args, node.kwargs), read)
            block = rule(
                Operation(node, args, kwargs, self.builder, self.redistribute, self.decide)
            )
            assert isinstance(block, Value) and block.placement == placement, (node, block)
            self.check(node, block)
        self.blocks.setdefault(node, []).append(block)
        return block


def is_whole(value: Any) -> bool:
    """Whether every rank holds all of a value."""
    return isinstance(value, Value) and value.placement == REPLICATE
