"""What the compiler tells an observer: plain frozen records, standard library only.

The compiler calls :meth:`Recorder.record` with these values and never looks at the
result, so recording cannot change what is compiled. The inspector turns them into rows
of a trace database; a test may simply append them to a list.

Order of a compilation::

    RunStarted
    (PassStarted  Decision* GraphSnapshot*  Finding*  PassFinished)*
    MemoryPoint* LiveTensor* TimelineEvent* NodeCost* EstimateSummary   (estimates)
    RunFinished

Records of nodes, which come by the ten thousand, are named tuples: made in a quarter of
the time.

Units are in the names: ``_bytes``, ``_ns``, ``_flops``. A value that is not known is
``None``, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

GraphName = Literal["program", "joint", "forward", "backward"]
"""``program`` is the forward graph as the user wrote it; the sharding pass turns it into
the per-rank program under the same name, so that one node can be followed through all
passes. ``joint`` is that program with its backward; ``forward``/``backward`` are its
two halves after partitioning."""

Phase = Literal["forward", "backward", "optimizer"]
DecisionStatus = Literal["applied", "missed", "failed", "analysis"]
CollectiveKind = Literal[
    "all_to_all", "all_gather", "reduce_scatter", "all_reduce", "send_recv", "broadcast"
]
CollectiveOrigin = Literal["implicit", "explicit"]
Severity = Literal["error", "warning", "info"]
NodeRole = Literal[
    "input",  # graph input: parameter, buffer or user tensor
    "compute",  # an operator of the user's program (or its derivative)
    "collective",  # starts communication
    "wait",  # waits for a collective
    "pack",  # copies or views that lay data out for a collective
    "unpack",  # copies or views that undo it
    "slice",  # replicated -> sharded, local, no communication
    "loss",  # nodes that normalise a loss over the ranks
    "constant",
    "output",
]

MEMORY_CATEGORIES: tuple[str, ...] = (
    "parameters",
    "gradients",
    "optimizer",
    "saved",
    "activations",
    "logits_loss",
    "all_to_all",
    "ring_kv",
    "gather_reduce_buckets",
    "inputs",
    "other",
)
"""Memory categories, in display order. They partition the live bytes exactly."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line of the user's program."""

    file: str
    line: int
    function: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The header of a trace. ``config`` holds every option that influenced the result."""

    autosp_version: str
    torch_version: str
    mode: Literal["dry_run", "training"]
    rank: int
    world_size: int
    mesh: Mapping[str, int]
    """Axis name -> size, outermost first, e.g. ``{"dp": 2, "sp": 4}``."""
    model: str
    """Where the model comes from: ``samples/gpt.py:build``, a class name, ..."""
    config: Mapping[str, object]
    """JSON-able options: seq, batch, dtype, zero, backend, optimizer, gpu, partitioner ..."""
    gradient_convention: str
    hardware: Mapping[str, object] | None = None
    """The device row used for the estimates, with sources; None when none was chosen."""


@dataclass(frozen=True, slots=True)
class RunFinished:
    status: Literal["ok", "failed"]
    duration_ns: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class PassStarted:
    index: int
    """0 is the capture. Consecutive; a recompilation goes on counting."""
    name: str
    description: str
    options: Mapping[str, object] = field(default_factory=dict)
    compilation: int = 0
    """Number of the compilation (a new sequence length starts another)."""


@dataclass(frozen=True, slots=True)
class PassFinished:
    index: int
    duration_ns: int
    status: Literal["ok", "failed", "skipped"] = "ok"
    message: str = ""


class NodeRecord(NamedTuple):
    """One node of one graph after one pass.

    ``placement`` is the notation of design section 3 (``S(1:seq)``, ``R``, ``P(sum)``);
    None before sharding and where it does not apply. ``global_shape`` is the shape in
    the user's model, ``local_shape`` what one rank holds; for a node that exists only
    on a rank (pack, collective) ``global_shape`` is None. A node of a derived graph has
    both where they follow from the per-rank program, else neither; a gradient's placement
    is the dual of its value's, ``P(avg)`` for a whole value.
    """

    name: str
    op: str
    """``placeholder``, ``call_function``, ``get_attr``, ``output``."""
    target: str
    """Operator name such as ``aten.linear.default``; for an input, its user-visible name."""
    inputs: tuple[str, ...]
    role: NodeRole
    phase: Phase
    dtype: str | None = None
    global_shape: tuple[int, ...] | None = None
    local_shape: tuple[int, ...] | None = None
    placement: str | None = None
    local_bytes: int | None = None
    module: str = ""
    """Module path, e.g. ``model.layers.0.self_attn.q_proj``; empty for the root."""
    module_class: str = ""
    source: SourceLocation | None = None
    origins: tuple[str, ...] = ()
    """Names of the ``program`` nodes this node comes from (lineage): the user's, then, for a
    node of a derived graph, that of the per-rank program where it has another name."""
    saved: bool = False
    """Kept from the forward for the backward."""
    recomputed: bool = False
    reason: str = ""
    """For nodes the compiler added: why it did."""


@dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """One collective of one graph; ``node`` is its start node in that graph.

    ``bytes`` is the size of this rank's input buffer for all_to_all, reduce_scatter,
    all_reduce and send_recv, and of its output buffer for all_gather (the larger one).
    """

    node: str
    kind: CollectiveKind
    phase: Phase
    origin: CollectiveOrigin
    axis: str
    """Mesh axis, e.g. ``sp``."""
    group_size: int
    bytes: int
    dtype: str
    module: str
    cause: str
    """The ``program`` node for whose sake it was inserted."""
    reason: str
    source_placement: str = ""
    target_placement: str = ""


@dataclass(frozen=True, slots=True)
class GraphSnapshot:
    """The whole of one graph after a pass; an observer stores the difference."""

    pass_index: int
    graph: GraphName
    nodes: tuple[NodeRecord, ...]
    collectives: tuple[CollectiveRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternative:
    """An option that a decision did not take."""

    name: str
    reason: str
    cost: str = ""
    """Human-readable cost, e.g. ``64.0 MiB all-gather``; empty when not priced."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice made by a pass, recorded where it is made (also the choice to do nothing)."""

    pass_index: int
    status: DecisionStatus
    topic: str
    """Short kind: ``seed``, ``redistribute``, ``mask``, ``attention``, ``loss``, ``fallback``."""
    node: str
    """The ``program`` node concerned; empty for a decision about the whole program."""
    chosen: str
    reason: str
    rule: str = ""
    """Rule and where it lives, e.g. ``attention.ulysses (autosp/sharding/attention.py:40)``."""
    alternatives: tuple[Alternative, ...] = ()
    figures: Mapping[str, Any] | None = None
    """Numbers behind the words, for programs: what JSON can hold."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something the user should know. ``code`` is stable and documented (``sxs-tensor``)."""

    code: str
    severity: Severity
    message: str
    node: str = ""
    module: str = ""
    source: SourceLocation | None = None
    hint: str = ""
    cost_bytes: int | None = None
    """Bytes on a rank that it costs, where it costs any."""
    cost_ns: int | None = None
    """Estimated time of a step that it costs."""


class NodeCost(NamedTuple):
    """Estimated cost of one execution of a node on the target device."""

    graph: GraphName
    node: str
    flops: int | None
    memory_bytes: int | None
    """Bytes read plus written."""
    duration_ns: int | None
    source: str
    """Where the time comes from, e.g. ``roofline: memory bound, 2.0e12 B/s (A100 data sheet)``."""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One bar on one stream. ``exposed_ns`` is given for communication only."""

    index: int
    stream: str
    """``compute``, or ``comm:<axis>``."""
    phase: Phase
    node: str
    label: str
    start_ns: int
    duration_ns: int
    exposed_ns: int | None = None
    module: str = ""


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """Live bytes of one rank while ``node`` runs; the categories sum to ``live_bytes``."""

    index: int
    phase: Phase
    node: str
    module: str
    live_bytes: int
    categories: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """A tensor that is alive at the peak."""

    node: str
    phase: Phase
    category: str
    bytes: int
    dtype: str
    shape: tuple[int, ...]
    module: str
    created_by: SourceLocation | None
    last_used_by: str


@dataclass(frozen=True, slots=True)
class EstimateSummary:
    """The figures a report starts with. None means: this level is not modelled."""

    peak_live_bytes: int
    peak_phase: Phase
    peak_node: str
    peak_module: str
    peak_source: SourceLocation | None
    peak_categories: Mapping[str, int]
    peak_index: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    device_bytes: int | None
    capacity_bytes: int | None
    fits: bool | None
    step_ns: int | None
    compute_ns: int | None
    communication_ns: int | None
    exposed_ns: int | None
    hidden_ns: int | None
    sharded_flops_fraction: float | None
    sharded_saved_bytes_fraction: float | None
    not_modelled: tuple[str, ...]


Event = (
    RunStarted
    | RunFinished
    | PassStarted
    | PassFinished
    | GraphSnapshot
    | Decision
    | Finding
    | NodeCost
    | TimelineEvent
    | MemoryPoint
    | LiveTensor
    | EstimateSummary
)


class Recorder(Protocol):
    """Whoever wants to see what the compiler does."""

    def record(self, event: Event, /) -> None: ...


class SilentRecorder:
    """The default: nothing is observed and no record is even built.

    The compiler checks :attr:`wants_graphs` before it converts a graph to records, so
    that an unobserved compilation pays nothing.
    """

    wants_graphs = False

    def record(self, event: Event, /) -> None:
        del event


class ListRecorder:
    """Keeps every event in memory, in order: for tests and for in-process reports."""

    wants_graphs = True

    def __init__(self) -> None:
        self.events: list[Event] = []

    def record(self, event: Event, /) -> None:
        self.events.append(event)
