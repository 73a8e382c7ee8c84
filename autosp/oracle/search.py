"""The search for the first wrong tensor of one run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from autosp.graph import module_path, source_location
from autosp.oracle.combine import combine_cotangents, combine_values
from autosp.oracle.compare import Difference, difference, largest
from autosp.oracle.report import Quantity, WrongNode
from autosp.oracle.runs import RankRun, Reference
from autosp.placement import REPLICATE, Placement
from autosp.sharding.rank_program import LocalValue


@dataclass(slots=True)
class Errors:
    """The largest errors of what a training step uses, over all runs."""

    gradient: float = 0.0
    loss: float = 0.0


@dataclass(slots=True)
class Search:
    """Looks for the first wrong tensor of one run."""

    reference: Reference
    run: RankRun
    fill: str
    tolerance: float
    errors: Errors
    counts: Counter[Quantity] = field(default_factory=Counter)

    def values(self) -> WrongNode | None:
        """The first wrong value, in program order."""
        losses = {output.node for output in self.reference.outputs}
        for node in self.reference.nodes:
            local = self.run.sharded.values.get(node.name)
            expected = self.reference.values.get(node.name)
            if local is None or not local.comparable or not isinstance(expected, torch.Tensor):
                continue
            self.counts["value"] += 1
            for copy in (local, *self.run.sharded.more_values[node.name]):
                parts = self.run.values[copy.node]
                for actual in combine_values(parts, copy.placement, copy.shape):
                    found = difference(expected, actual, scale=1.0)
                    if node in losses:
                        self.errors.loss = max(self.errors.loss, found.max_rel)
                    if found.exceeds(self.tolerance):
                        return self._wrong(node, "value", copy.placement, found)
        return None

    def cotangents(self) -> WrongNode | None:
        """The first wrong cotangent, from the loss backwards."""
        known = self.reference.cotangents
        scale = largest(c for c in known.values() if c is not None)
        parameters = self._parameters()
        parameter_scale = largest(c for n in parameters if (c := known.get(n)) is not None)
        shared = self._shared_nodes()
        for node in reversed(self.reference.nodes):
            if node.name not in known:
                continue
            for parts, local in self._cotangent_parts(node, shared):
                self.counts["cotangent"] += 1
                expected = known[node.name]
                if expected is None:
                    expected = torch.zeros_like(self.reference.values[node.name])
                elsewhere = self._cotangent_elsewhere(node)
                for actual in combine_cotangents(parts, local.placement, local.shape):
                    whole = actual if elsewhere is None else actual + elsewhere
                    if node.name in parameters:
                        of_gradient = difference(expected, whole, scale=parameter_scale)
                        self.errors.gradient = max(self.errors.gradient, of_gradient.max_rel)
                    found = difference(expected, whole, scale=scale)
                    if found.exceeds(self.tolerance):
                        return self._wrong(node, "cotangent", local.placement, found)
        return None

    def _parameters(self) -> set[str]:
        inputs = {n: n.meta.get("autosp_input") for n in self.reference.nodes}
        return {node.name for node, given in inputs.items() if given and given.kind == "parameter"}

    def _cotangent_parts(
        self, node: Node, shared: set[str]
    ) -> list[tuple[list[torch.Tensor], LocalValue]]:
        local = self.run.sharded.values.get(node.name)
        if local is None or not local.comparable or node.name in shared:
            return []
        if local.node not in self.run.cotangents:
            return []
        found = [(self._filled(local.node), local)]
        if node.op == "placeholder" and local.node != node.name:
            # An input that is cut at once: its own cotangent counts as well.
            whole = LocalValue(node.name, REPLICATE, local.shape)
            if node.name in self.run.cotangents:
                found.append((self._filled(node.name), whole))
        return found

    def _cotangent_elsewhere(self, node: Node) -> torch.Tensor | None:
        """What flows back through other copies of a value that exists more than once."""
        parts = [
            combine_cotangents(self._filled(copy.node), copy.placement, copy.shape)[0]
            for copy in self.run.sharded.more_values[node.name]
            if copy.node in self.run.cotangents
        ]
        return torch.stack(parts).sum(0) if parts else None

    def _filled(self, name: str) -> list[torch.Tensor]:
        return [
            torch.zeros_like(value) if part is None else part
            for part, value in zip(self.run.cotangents[name], self.run.values[name], strict=True)
        ]

    def _shared_nodes(self) -> set[str]:
        """User nodes that reuse the tensor of an earlier one: it has that one's cotangent."""
        owners: set[str] = set()
        shared: set[str] = set()
        for node in self.reference.nodes:
            local = self.run.sharded.values.get(node.name)
            if local is not None and local.node in owners:
                shared.add(node.name)
            elif local is not None:
                owners.add(local.node)
        return shared

    def _wrong(
        self, node: Node, quantity: Quantity, placement: Placement, found: Difference
    ) -> WrongNode:
        return WrongNode(
            name=node.name,
            quantity=quantity,
            operator=str(node.target),
            placement=str(placement),
            module=module_path(node),
            source=source_location(node),
            padding_fill=self.fill,
            max_abs_error=found.max_abs,
            max_rel_error=found.max_rel,
            expected=found.expected,
            actual=found.actual,
            detail=found.detail,
        )
