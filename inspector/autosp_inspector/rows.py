"""What queries return: frozen rows that the command line, the exporters and the TUI share.

Fields have the meaning of the records in :mod:`autosp.events`; ``None`` is "unknown".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BUFFER_ROLES = ("pack", "collective", "wait", "unpack", "slice")
"""Around a redistribution: only what comes out at the end is a tensor of the user's program."""


@dataclass(frozen=True, slots=True)
class Source:
    file: str
    line: int
    function: str
    text: str


@dataclass(frozen=True, slots=True)
class RunRow:
    path: str
    schema_version: int
    autosp_version: str
    torch_version: str
    mode: str
    rank: int
    world_size: int
    mesh: Mapping[str, int]
    model: str
    config: Mapping[str, object]
    gradient_convention: str
    hardware: Mapping[str, object] | None
    status: str
    """``ok``, ``failed`` or ``unfinished``."""
    message: str
    duration_ns: int | None


@dataclass(frozen=True, slots=True)
class PassRow:
    index: int
    name: str
    description: str
    options: Mapping[str, object]
    compilation: int
    duration_ns: int | None
    status: str
    nodes_added: int
    nodes_removed: int
    nodes_changed: int
    decisions: int
    message: str = ""
    """Why the pass failed or was skipped."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One version of a node: it lives from ``born_pass`` until before ``died_pass``."""

    id: int
    graph: str
    position: int
    """Order in the graph, 0-based."""
    name: str
    op: str
    target: str
    inputs: tuple[str, ...]
    role: str
    phase: str
    dtype: str | None
    global_shape: tuple[int, ...] | None
    local_shape: tuple[int, ...] | None
    placement: str | None
    local_bytes: int | None
    module: str
    module_class: str
    source: Source | None
    origins: tuple[str, ...]
    saved: bool
    recomputed: bool
    reason: str
    born_pass: int
    died_pass: int | None


@dataclass(frozen=True, slots=True)
class NodeChange:
    """One line of a before/after view, aligned by node name."""

    mark: str
    """``+`` added, ``-`` removed, ``~`` changed, ``=`` unchanged."""
    before: NodeRow | None
    after: NodeRow | None


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """A module of the user's model with the totals of everything below it."""

    path: str
    module_class: str
    depth: int
    num_nodes: int
    num_collectives: int
    collective_bytes: int
    has_children: bool
    placements: tuple[str, ...]
    """Distinct placements of the compute nodes at any depth inside, most frequent first."""


@dataclass(frozen=True, slots=True)
class AlternativeRow:
    name: str
    reason: str
    cost: str


@dataclass(frozen=True, slots=True)
class DecisionRow:
    id: int
    pass_index: int
    pass_name: str
    status: str
    topic: str
    node: str
    module: str
    chosen: str
    reason: str
    rule: str
    alternatives: tuple[AlternativeRow, ...]


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    name: str
    graph: str
    kind: str
    phase: str
    module: str
    origin: str
    axis: str
    group_size: int
    bytes: int
    dtype: str
    cause: str
    reason: str
    source_placement: str
    target_placement: str
    start_ns: int | None
    duration_ns: int | None
    exposed_ns: int | None
    piece: int | None = None
    """Number of the piece it is in; None: the program is in one piece."""
    runs: int = 1
    """How often it runs in a step."""

    @property
    def step_bytes(self) -> int:
        """Of all its runs in a step."""
        return self.bytes * self.runs


@dataclass(frozen=True, slots=True)
class AttentionRow:
    node: str
    module: str
    chosen: str
    reason: str
    form: str
    """``Ulysses``, ``ring`` or ``Ulysses 2 x ring 4``."""
    mask: str
    """``causal``, ``none``, ``a tensor``, or a predicate over vectors."""
    num_ulysses: int
    num_ring: int
    ring_rank: int
    """The place in the ring of the rank that wrote the trace."""
    num_heads: int
    num_kv_heads: int
    heads_per_rank: int
    query_length: int
    key_length: int
    pairs_of_a_block: int
    """Pairs of a query and a key in a tile of which the mask leaves all."""
    work: tuple[tuple[int, ...], ...]
    """Pairs that are computed for one head: of each ring rank, at each step."""
    tokens: tuple[int, ...]
    """Queries of each ring rank, without padding."""
    kept_bytes: int
    """On a rank, for the backward: queries, keys, values, output and log-sum-exp."""
    in_flight_bytes: int
    """On a rank: the block it computes with and the one that arrives."""
    order: str = ""
    """How tokens are dealt out to a ring: ``zigzag`` or ``contiguous``."""
    other_order: str = ""
    other_work: tuple[tuple[int, ...], ...] = ()
    """``work`` in the other order; empty where the order changes nothing."""
    other_tokens: tuple[int, ...] = ()
    piece: int | None = None
    """Number of the piece it is in; None: the program is in one piece."""

    @property
    def num_skipped(self) -> int:
        """Tiles of the rank's own row that it does not compute."""
        return sum(pairs == 0 for pairs in self.work[self.row])

    @property
    def row(self) -> int:
        """Index into ``work`` of the rank that wrote the trace."""
        return min(self.ring_rank, len(self.work) - 1)


@dataclass(frozen=True, slots=True)
class FindingRow:
    code: str
    severity: str
    message: str
    node: str
    module: str
    source: Source | None
    hint: str
    cost_bytes: int | None = None
    cost_ns: int | None = None


@dataclass(frozen=True, slots=True)
class CostRow:
    graph: str
    node: str
    flops: int | None
    memory_bytes: int | None
    duration_ns: int | None
    source: str


@dataclass(frozen=True, slots=True)
class TimelineRow:
    index: int
    stream: str
    phase: str
    node: str
    label: str
    start_ns: int
    duration_ns: int
    exposed_ns: int | None
    module: str


@dataclass(frozen=True, slots=True)
class MemoryRow:
    index: int
    phase: str
    node: str
    module: str
    live_bytes: int
    categories: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LiveTensorRow:
    node: str
    phase: str
    category: str
    bytes: int
    dtype: str
    shape: tuple[int, ...]
    module: str
    created_by: Source | None
    last_used_by: str


@dataclass(frozen=True, slots=True)
class EstimateRow:
    """The estimate of a rank's step; ``fits`` is None without a device, or too close to say."""

    peak_live_bytes: int
    peak_phase: str
    peak_node: str
    peak_module: str
    peak_source: Source | None
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

    @property
    def is_close(self) -> bool:
        """Whether what is not modelled decides if the step fits the device."""
        return self.fits is None and self.capacity_bytes is not None
