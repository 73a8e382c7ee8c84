"""One step under ``torch.profiler``: the time of every node, and what the step allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.profiler import profile, record_function

from autosp.graph import collective_kind, is_unclassified_collective, is_wait
from autosp.measurements import Detail, MeasuredNode
from autosp.runtime.measured_device import MeasuredDevice

_PREFIX = "autosp"
_SEPARATOR = "#"
_COLLECTIVES = "_c10d_functional::"
_WAIT = "_c10d_functional::wait_tensor"
Half = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class MeasuredGraph:
    """A forward or backward graph before an inner compiler changes it."""

    compilation: int
    half: Half
    module: GraphModule
    runs_node_by_node: bool
    """Whether the inner compiler runs the graph as it is."""
    collectives: tuple[tuple[str, str], ...]
    """Node and operator of collectives and waits, in order."""

    @staticmethod
    def of(
        compilation: int, half: Half, module: GraphModule, *, runs_node_by_node: bool
    ) -> MeasuredGraph:
        talking = (node for node in module.graph.nodes if _communicates(node))
        collectives = tuple((node.name, _operator(node)) for node in talking)
        return MeasuredGraph(compilation, half, module, runs_node_by_node, collectives)

    @property
    def label(self) -> str:
        return _SEPARATOR.join((_PREFIX, str(self.compilation), self.half))


def _communicates(node: Node) -> bool:
    return collective_kind(node) is not None or is_wait(node) or is_unclassified_collective(node)


def _operator(node: Node) -> str:
    target = node.target
    return target._schema.name if isinstance(target, torch._ops.OpOverload) else str(target)


class _Named(Interpreter):
    """Runs a graph node by node, each under its own name; arguments die at their last use."""

    def __init__(self, graph: MeasuredGraph) -> None:
        super().__init__(graph.module)
        self._label = graph.label

    def run_node(self, n: Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        with record_function(f"{self._label}{_SEPARATOR}{n.name}"):
            return super().run_node(n)


class _Range(NamedTuple):
    """An operator, or a part of the step, as the profiler saw it."""

    name: str
    start_ns: int
    end_ns: int
    duration_ns: int
    """Its own length; on an accelerator that of the kernels it started."""


def _ranges(profiler: Any, *, on_device: bool) -> list[_Range]:
    if not on_device:  # the profiler's own summaries cost many times what its events do
        return [
            _Range(event.name(), event.start_ns(), event.end_ns(), event.duration_ns())
            for event in profiler.profiler.kineto_results.events()
            if event.name().startswith((_PREFIX, _COLLECTIVES))
        ]
    return [
        _Range(
            event.name,
            round(event.time_range.start * 1e3),
            round(event.time_range.end * 1e3),
            round(event.device_time_total * 1e3),
        )
        for event in profiler.events()
    ]


@dataclass(slots=True)
class StepProfile:
    """The profiler around one step; :meth:`run` stands for a compiled graph meanwhile."""

    device: MeasuredDevice
    base_bytes: int
    """Bytes that the step begins with, where no allocator of the device counts them."""
    notes: list[str] = field(default_factory=list)
    nodes: tuple[MeasuredNode, ...] = ()
    peak_bytes: int | None = None
    _graphs: dict[str, MeasuredGraph] = field(default_factory=dict)
    _profiler: Any = None

    def start(self) -> None:
        self.device.finish_work()
        self.base_bytes = self.device.start_peak() or self.base_bytes
        self._profiler = profile(activities=self.device.activities, profile_memory=True)
        self._profiler.start()

    def run(
        self, graph: MeasuredGraph, compiled: Callable[[list[Any]], Any], arguments: list[Any]
    ) -> Any:
        """The graph's results, under its label."""
        self._graphs[graph.label] = graph
        with record_function(graph.label):
            if graph.runs_node_by_node:
                return _Named(graph).boxed_run(arguments)
            return compiled(arguments)

    def stop(self) -> None:
        self.device.finish_work()
        self._profiler.stop()
        excess = _allocated(self._profiler)
        events = _ranges(self._profiler, on_device=not self.device.is_cpu)
        peak = self.device.peak()
        self.peak_bytes = self.base_bytes + excess if peak is None else peak
        begin = min((e.start_ns for e in events if e.name in self._graphs), default=0)
        self.nodes = tuple(self._times(events, begin))
        self._profiler = None

    @property
    def detail(self) -> Detail:
        if self.nodes and all(graph.runs_node_by_node for graph in self._graphs.values()):
            return "nodes"
        return "collectives" if self.nodes else "steps"

    def _times(self, events: Sequence[_Range], begin: int) -> Iterator[MeasuredNode]:
        for graph in self._graphs.values():
            ranges = [event for event in events if event.name == graph.label]
            if graph.runs_node_by_node:
                names = [node.name for node in graph.module.graph.nodes]
                start = f"{graph.label}{_SEPARATOR}"
                pairs = [(e.name[len(start) :], e) for e in events if e.name.startswith(start)]
            else:
                names = [name for name, _ in graph.collectives]
                pairs = self._collectives(graph, ranges, events)
            yield from self._of_graph(graph, names, pairs, begin)

    def _collectives(
        self, graph: MeasuredGraph, ranges: Sequence[_Range], events: Iterable[_Range]
    ) -> list[tuple[str, _Range]]:
        """Collectives by their order, if what ran is what the graph has."""
        talk = sorted(
            (event for event in events if event.name.startswith(_COLLECTIVES)),
            key=lambda event: event.start_ns,
        )
        pairs: list[tuple[str, _Range]] = []
        for outer in ranges:
            inside = [event for event in talk if _contains(outer, event)]
            matched = _matched(graph.collectives, inside) or _matched(
                [each for each in graph.collectives if each[1] != _WAIT],
                [event for event in inside if event.name != _WAIT],
            )
            if not matched and graph.collectives:
                self.notes.append(
                    f"the compiled {graph.half} issues other collectives than its graph, or in "
                    "another order: their times belong to no node"
                )
                return []
            pairs += matched
        return pairs

    def _of_graph(
        self,
        graph: MeasuredGraph,
        names: Iterable[str],
        pairs: Iterable[tuple[str, _Range]],
        begin: int,
    ) -> Iterator[MeasuredNode]:
        runs: dict[str, list[_Range]] = {}
        for name, event in pairs:
            runs.setdefault(name, []).append(event)
        for name in names:
            if name in runs:
                first = min(event.start_ns for event in runs[name])
                yield MeasuredNode(
                    graph.compilation,
                    graph.half,
                    name,
                    len(runs[name]),
                    first - begin,
                    sum(event.duration_ns for event in runs[name]),
                )


def _matched(
    expected: Sequence[tuple[str, str]], events: Sequence[_Range]
) -> list[tuple[str, _Range]]:
    """Nodes and events by their order, if the operators are the same; in place or not."""
    if [event.name.rstrip("_") for event in events] != [name for _, name in expected]:
        return []
    return [(node, event) for (node, _), event in zip(expected, events, strict=True)]


def _contains(outer: _Range, inner: _Range) -> bool:
    return outer.start_ns <= inner.start_ns and inner.end_ns <= outer.end_ns


def _allocated(profiler: Any) -> int:
    """Most bytes on the CPU above those alive when the profiler started."""
    current = peak = 0
    events = profiler.profiler.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    for event in sorted(changes, key=lambda event: event.start_ns()):
        current += event.nbytes()
        peak = max(peak, current)
    return peak
