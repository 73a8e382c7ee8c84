"""What the checks look at, and how they say where something is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch.fx import Graph, GraphModule, Node

from autosp.errors import ShardingError
from autosp.estimate import StepEstimate
from autosp.events import Finding, GraphName, NodeCost, Severity
from autosp.graph import LocalTag, is_operator, local_tag
from autosp.lowering import RankCompilation
from autosp.records import tag_of
from autosp.runtime import keyed_random
from autosp.sharding.seeds import attention_sites, find_seeds
from autosp.sizes import example


@dataclass(frozen=True)
class Subject:
    """A compilation and, where one was made, the estimate of its step."""

    compilation: RankCompilation
    estimate: StepEstimate | None
    _placed_tags: dict[Node, LocalTag | None] = field(default_factory=dict)

    @property
    def user_graph(self) -> Graph:
        return self.compilation.captured.program.graph

    @property
    def rank_graph(self) -> Graph:
        return self.compilation.sharded.program.graph

    def derived(self) -> Iterator[tuple[GraphName, GraphModule]]:
        """The graphs that are executed."""
        graphs = self.compilation.graphs
        if graphs.forward is not None:
            yield "forward", graphs.forward
        if graphs.backward is not None:
            yield "backward", graphs.backward

    @cached_property
    def sequence_length(self) -> int:
        """Length of the dim that is sharded, or would be; 0 if the program has none."""
        try:
            seeds = find_seeds(self.user_graph)
        except ShardingError:
            return 0
        return max(example(seed.length) for seed in seeds)

    @cached_property
    def attention_with_dropout(self) -> list[Node]:
        """Attention sites whose dropout is drawn outside the fused kernels."""
        sites = attention_sites(self.user_graph)
        return [site for site in sites if is_operator(site, keyed_random.ATTENTION)]

    @cached_property
    def costs(self) -> Mapping[tuple[str, str], NodeCost]:
        """(Graph, node) -> its estimated cost."""
        events = self.estimate.events if self.estimate is not None else ()
        return {(e.graph, e.node): e for e in events if isinstance(e, NodeCost)}

    def tag(self, node: Node) -> LocalTag | None:
        """The tag of a node of the per-rank program or of a graph derived from it."""
        return local_tag(node) or tag_of(node, self.compilation.view)

    def duration_ns(self, graph: GraphName, nodes: Iterable[Node]) -> int | None:
        """Estimated time of some nodes of a graph; None where it is not known."""
        known = [self.costs.get((graph, node.name)) for node in nodes]
        times = [cost.duration_ns for cost in known if cost and cost.duration_ns is not None]
        return sum(times) if times else None

    def module_of(self, node: Node) -> str:
        tag = self.tag(node)
        return self.compilation.view.locations.get(tag.origin if tag else node.name, ("",))[0]

    def finding(
        self,
        node: Node,
        code: str,
        severity: Severity,
        message: str,
        hint: str,
        *,
        cost_bytes: int | None = None,
        cost_ns: int | None = None,
    ) -> Finding:
        """A finding about ``node``, or about the user's node for whose sake it exists."""
        tag = self.tag(node)
        origin = tag.origin if tag else node.name
        module, _, source = self.compilation.view.locations.get(origin, ("", "", None))
        return Finding(
            code=code,
            severity=severity,
            message=message,
            node=origin,
            module=module,
            source=source,
            hint=hint,
            cost_bytes=cost_bytes,
            cost_ns=cost_ns,
        )


def layer_pattern(module: str) -> str:
    """``model.layers.*.mlp`` for any layer of a stack."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)", "*", module)


def counted(number: int, noun: str) -> str:
    """``1 tensor``, ``2 tensors``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def percent(part: float, whole: float) -> str:
    """``12 %``."""
    return f"{100 * part / whole:.0f} %"


def size_text(size_bytes: int) -> str:
    """``1.5 GiB``: binary units, as the reports print them."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
