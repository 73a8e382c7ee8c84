"""Graphs as plain records for an observer. Nothing here runs when nobody observes."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.fx import GraphModule, Node

from autosp.capture import GraphInput
from autosp.derived_placements import dual, placed_of
from autosp.events import (
    CollectiveRecord,
    GraphName,
    GraphSnapshot,
    NodeRecord,
    NodeRole,
    Phase,
    SourceLocation,
)
from autosp.graph import (
    LocalTag,
    collective_kind,
    is_backward,
    is_wait,
    local_origin,
    local_tag,
    module_of,
    num_bytes,
    ring_note,
    source_location,
    tensor_of,
)
from autosp.placement import (
    PARTIAL_SUM,
    REPLICATE,
    Placement,
    Replicate,
    example_placement,
)
from autosp.sharding.rank_program import LocalValue
from autosp.sizes import examples

_SWAPPED: dict[NodeRole, NodeRole] = {"pack": "unpack", "unpack": "pack"}
"""The derivative of a pack is an unpack, and the other way round."""
_DUALS = {str(p): str(dual(p)) for p in (REPLICATE, PARTIAL_SUM)}
"""Placement of a value -> that of its cotangent, where it is another one."""


@dataclass(frozen=True, slots=True)
class ProgramView:
    """What is needed to describe graphs derived from the per-rank program."""

    tags: Mapping[str, LocalTag]
    """Per-rank program's node -> tag."""
    placed: Mapping[str, tuple[Placement, tuple[int, ...]]]
    """User node -> placement and global shape of its value."""
    locations: Mapping[str, tuple[str, str, SourceLocation | None]]
    """User node -> module path, module class, source."""
    inputs: Mapping[str, tuple[str, ...]]
    """User node -> the user nodes it reads."""
    num_ranks: int

    @staticmethod
    def of(
        user_program: GraphModule,
        rank_program: GraphModule,
        values: Mapping[str, LocalValue],
        num_ranks: int,
    ) -> ProgramView:
        tags = {n.name: tag for n in rank_program.graph.nodes if (tag := local_tag(n))}
        placed = {
            name: (example_placement(v.placement), examples(v.shape)) for name, v in values.items()
        }
        for node in user_program.graph.find_nodes(op="call_function", target=operator.getitem):
            producer = node.args[0]
            if isinstance(producer, Node) and node.name in placed:
                placed.setdefault(producer.name, placed[node.name])
        locations = {n.name: _location(n) for n in user_program.graph.nodes}
        inputs = {
            n.name: tuple(i.name for i in n.all_input_nodes) for n in user_program.graph.nodes
        }
        return ProgramView(tags, placed, locations, inputs, num_ranks)

    def is_sharded(self, node: Node) -> bool:
        """Whether a node of a derived graph works on this rank's part of the sequence."""
        tag = tag_of(node, self)
        if tag is None:
            return False
        if tag.placement is not None:  # a whole result may be cut again after the operator
            return not isinstance(tag.placement, Replicate)
        placed = self.placed.get(tag.origin)
        return placed is not None and not isinstance(placed[0], Replicate)


def _location(node: Node) -> tuple[str, str, SourceLocation | None]:
    """Module path, module class and source line; a parameter belongs to its module."""
    given = node.meta.get("autosp_input")
    if isinstance(given, GraphInput):
        return given.name.rpartition(".")[0], "", None
    return (*module_of(node), source_location(node))


def snapshot_user_program(program: GraphModule, pass_index: int) -> GraphSnapshot:
    """The forward graph with global shapes, before sharding."""
    return GraphSnapshot(
        pass_index, "program", tuple(_user_node(node) for node in program.graph.nodes)
    )


def _user_node(node: Node) -> NodeRecord:
    module, module_class, source = _location(node)
    tensor = tensor_of(node)
    return NodeRecord(
        name=node.name,
        op=node.op,
        target=_target_name(node),
        inputs=tuple(i.name for i in node.all_input_nodes),
        role=_plain_role(node),
        phase="forward",
        dtype=_dtype(tensor),
        global_shape=_shape(tensor),
        local_shape=_shape(tensor),
        local_bytes=_num_bytes(tensor),
        module=module,
        module_class=module_class,
        source=source,
        origins=(node.name,),
    )


def snapshot_rank_program(
    program: GraphModule, view: ProgramView, pass_index: int
) -> GraphSnapshot:
    """The program of one rank: placements, local shapes, the nodes that were added."""
    nodes = tuple(_rank_node(node, view) for node in program.graph.nodes)
    collectives = tuple(
        record
        for node in program.graph.nodes
        if (record := _collective(node, local_tag(node), view, "forward")) is not None
    )
    return GraphSnapshot(pass_index, "program", nodes, collectives)


def _rank_node(node: Node, view: ProgramView) -> NodeRecord:
    tag = local_tag(node)
    origin = tag.origin if tag else node.name
    module, module_class, source = view.locations.get(origin, ("", "", None))
    tensor = tensor_of(node)
    return NodeRecord(
        name=node.name,
        op=node.op,
        target=_target_name(node),
        inputs=tuple(i.name for i in node.all_input_nodes),
        role=tag.role if tag else _plain_role(node),
        phase="forward",
        dtype=_dtype(tensor),
        global_shape=_global_shape(tag),
        local_shape=_shape(tensor),
        placement=str(example_placement(tag.placement)) if tag and tag.placement else None,
        local_bytes=_num_bytes(tensor),
        module=module,
        module_class=module_class,
        source=source,
        origins=(origin,),
        reason=tag.reason if tag else "",
    )


def snapshot_derived(
    graph_name: GraphName,
    module: GraphModule,
    view: ProgramView,
    pass_index: int,
    *,
    saved: frozenset[str] = frozenset(),
    recomputed: frozenset[str] = frozenset(),
) -> GraphSnapshot:
    """A graph that torch derived from the per-rank program (joint, forward, backward)."""
    nodes: list[NodeRecord] = []
    collectives: list[CollectiveRecord] = []
    for node in module.graph.nodes:
        phase = phase_of(node, graph_name)
        tag = tag_of(node, view)
        nodes.append(_derived_node(node, tag, view, phase, saved, recomputed))
        record = _collective(node, tag, view, phase)
        if record is not None:
            collectives.append(record)
    return GraphSnapshot(pass_index, graph_name, tuple(nodes), tuple(collectives))


def phase_of(node: Node, graph_name: GraphName) -> Phase:
    if graph_name != "joint":
        return "backward" if graph_name == "backward" else "forward"
    return "backward" if is_backward(node) else "forward"


def tag_of(node: Node, view: ProgramView) -> LocalTag | None:
    """The tag of the per-rank program's node that a derived node comes from."""
    name = rank_origin(node)
    return view.tags.get(name) if name else None


def rank_origin(node: Node) -> str | None:
    """Name of the per-rank program's node that a derived node comes from.

    Sums of gradients that autograd adds have no counterpart: they belong to their last input.
    """
    name = local_origin(node)
    if name is None and node.op == "placeholder":
        return node.name
    if name is None and node.op == "call_function":
        return next((n for i in reversed(node.all_input_nodes) if (n := local_origin(i))), None)
    return name


def _derived_node(
    node: Node,
    tag: LocalTag | None,
    view: ProgramView,
    phase: Phase,
    saved: frozenset[str],
    recomputed: frozenset[str],
) -> NodeRecord:
    origin = tag.origin if tag else ""
    module, module_class, source = view.locations.get(origin) or _location(node)
    tensor = tensor_of(node)
    placed = placed_of(node)
    return NodeRecord(
        name=node.name,
        op=node.op,
        target=_target_name(node),
        inputs=tuple(i.name for i in node.all_input_nodes),
        role=_derived_role(node, tag, phase),
        phase=phase,
        dtype=_dtype(tensor),
        global_shape=None if placed is None else placed.shape,
        local_shape=_shape(tensor),
        placement=None if placed is None else str(placed.placement),
        local_bytes=_num_bytes(tensor),
        module=module,
        module_class=module_class,
        source=source,
        origins=_origins(node, tag),
        saved=node.name in saved,
        recomputed=node.name in recomputed,
        reason=ring_note(node) or (tag.reason if tag else ""),
    )


def _origins(node: Node, tag: LocalTag | None) -> tuple[str, ...]:
    """The user's node, and the per-rank program's where that has another name."""
    if tag is None:
        return ()
    name = rank_origin(node)
    return (tag.origin,) if name is None or name == tag.origin else (tag.origin, name)


def _derived_role(node: Node, tag: LocalTag | None, phase: Phase) -> NodeRole:
    if node.op != "call_function":
        return _plain_role(node)
    if collective_kind(node) is not None:
        return "collective"
    if is_wait(node):
        return "wait"
    role = tag.role if tag else "compute"
    if role in ("collective", "wait"):  # a copy that the derivative of a collective makes
        return "pack" if any(collective_kind(user) for user in node.users) else "compute"
    return _SWAPPED.get(role, role) if phase == "backward" else role


def _collective(
    node: Node, tag: LocalTag | None, view: ProgramView, phase: Phase
) -> CollectiveRecord | None:
    kind = collective_kind(node)
    if kind is None:
        return None
    origin = tag.origin if tag else ""
    module = view.locations.get(origin, ("", "", None))[0]
    source = node.args[0]
    sent = tensor_of(source) if isinstance(source, Node) else None
    received = tensor_of(node)
    carried = received if kind == "all_gather" else sent
    details = (tag.collective or tag.ring) if tag else None
    in_ring = ring_note(node)
    reason = in_ring or (tag.reason if tag else "in the user's program")
    route = (details.source_placement, details.target_placement) if details else ("", "")
    source_placement, target_placement = route if phase == "forward" else _way_back(route)
    return CollectiveRecord(
        node=node.name,
        kind=kind,
        phase=phase,
        origin="implicit" if tag else "explicit",
        axis=details.axis if details else "sp",
        group_size=details.group_size if details else view.num_ranks,
        bytes=_num_bytes(carried) or 0,
        dtype=_dtype(carried) or "",
        module=module,
        cause=origin,
        reason=reason if in_ring or phase == "forward" else f"derivative of: {reason}",
        source_placement=source_placement,
        target_placement=target_placement,
    )


def _way_back(route: tuple[str, str]) -> tuple[str, str]:
    """Where a collective's derivative brings a cotangent from, and to which placement."""
    return _DUALS.get(route[1], route[1]), _DUALS.get(route[0], route[0])


def _plain_role(node: Node) -> NodeRole:
    match node.op:
        case "placeholder":
            return "input"
        case "get_attr":
            return "constant"
        case "output":
            return "output"
        case _:
            return "collective" if collective_kind(node) else "compute"


def _target_name(node: Node) -> str:
    given = node.meta.get("autosp_input")
    if isinstance(given, GraphInput):
        return given.name
    if isinstance(node.target, torch._ops.OpOverload):
        return _operator_name(node.target)
    if callable(node.target):
        return getattr(node.target, "__name__", str(node.target))
    return str(node.target)


@lru_cache(maxsize=4096)
def _operator_name(operator: torch._ops.OpOverload) -> str:
    return str(operator)


_DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.bool: "bool",
}


def dtype_name(dtype: torch.dtype) -> str:
    """``bf16``, ``f32``, ``i64`` ...; torch's own name for rarer ones."""
    return _DTYPE_NAMES.get(dtype) or str(dtype).removeprefix("torch.")


def _dtype(tensor: torch.Tensor | None) -> str | None:
    return None if tensor is None else dtype_name(tensor.dtype)


def _global_shape(tag: LocalTag | None) -> tuple[int, ...] | None:
    return None if tag is None or tag.global_shape is None else examples(tag.global_shape)


def _shape(tensor: torch.Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else examples(tensor.shape)


def _num_bytes(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else num_bytes(tensor)
