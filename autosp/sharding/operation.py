"""What a sharding rule sees: one operator of the user's program with placed inputs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from autosp.events import Alternative, DecisionStatus
from autosp.placement import REPLICATE, Placement, Shard
from autosp.sharding.builder import ProgramBuilder, Value
from autosp.sizes import plain


class NoRule(Exception):
    """The rule has no sharded form for these placements: take the recorded all-gather path."""


class CannotRedistribute(Exception):
    """There is no direct way between two placements."""


Redistribute = Callable[[Value, Placement, str, int | None], Value]
Decide = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator; ``args``/``kwargs`` hold :class:`Value` where the user's had tensors."""

    node: Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    builder: ProgramBuilder
    _redistribute: Redistribute
    _decide: Decide

    @property
    def target(self) -> Any:
        return self.node.target

    @property
    def output(self) -> torch.Tensor:
        """The global fake result."""
        value: torch.Tensor = self.node.meta["val"]
        return value

    @property
    def outputs(self) -> Sequence[torch.Tensor]:
        """The global fake results of an operator that returns several tensors."""
        values: Sequence[torch.Tensor] = self.node.meta["val"]
        return values

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(plain, self.output.shape))

    @property
    def num_ranks(self) -> int:
        return self.builder.num_ranks

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        """An argument by position or by name, as the operator's schema allows."""
        if len(self.args) > index:
            return self.args[index]
        return self.kwargs.get(name, default)

    def values(self) -> Iterator[Value]:
        """All placed inputs, in order."""
        found: list[Value] = []
        map_aggregate((self.args, self.kwargs), lambda a: _collect(found, a))
        return iter(found)

    def with_values(self, change: Callable[[Value], Any]) -> Operation:
        """The operation with each placed input replaced by ``change`` of it."""
        args, kwargs = map_aggregate(
            (self.args, self.kwargs), lambda a: change(a) if isinstance(a, Value) else a
        )
        return replace(self, args=args, kwargs=kwargs)

    def sharded(self) -> tuple[Value, Shard]:
        """The first sharded input with its placement.

        Raises:
            NoRule: an input is partial, or none is sharded.
        """
        for value in self.values():
            if isinstance(value.placement, Shard):
                return value, value.placement
        raise NoRule("no rule for a partial input")

    def redistribute(
        self, value: Value, placement: Placement, reason: str, *, fill: int | None = None
    ) -> Value:
        return self._redistribute(value, placement, reason, fill)

    def replicate(self, value: Value, reason: str) -> Value:
        return self._redistribute(value, REPLICATE, reason, None)

    def decide(
        self,
        status: DecisionStatus,
        topic: str,
        chosen: str,
        reason: str,
        *,
        rule: str = "",
        alternatives: tuple[Alternative, ...] = (),
        figures: Mapping[str, Any] | None = None,
    ) -> None:
        self._decide(
            status,
            topic,
            self.node.name,
            chosen,
            reason,
            rule=rule,
            alternatives=alternatives,
            figures=figures,
        )

    def emit(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Emit an operator of the program; values are replaced by their local nodes."""
        local_args, local_kwargs = map_aggregate((args, kwargs), _local_node)
        return self.builder.emit(target, *local_args, **local_kwargs)

    def same(self) -> Node:
        """Emit the user's operator on the local inputs, arguments unchanged."""
        return self.emit(self.target, *self.args, **self.kwargs)

    def result(self, node: Node, placement: Placement) -> Value:
        return Value(node, placement, self.shape)

    def results(self, node: Node, placements: Sequence[Placement]) -> list[Value]:
        """Unpack the outputs of an operator that returns several tensors."""
        return [
            Value(self.emit(operator.getitem, node, i), placement, tuple(map(plain, output.shape)))
            for i, (placement, output) in enumerate(zip(placements, self.outputs, strict=True))
        ]


Rule = Callable[[Operation], "Value | list[Value]"]
"""Emits the local form of one operator and says how its result is placed."""

RuleTable = dict[Any, Rule]


def normalise_dim(dim: int, num_dims: int) -> int:
    return dim % num_dims if num_dims else 0


def _collect(found: list[Value], argument: Any) -> Any:
    if isinstance(argument, Value):
        found.append(argument)
    return argument


def _local_node(argument: Any) -> Any:
    return argument.node if isinstance(argument, Value) else argument
