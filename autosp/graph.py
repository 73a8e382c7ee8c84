"""FX idioms in one place: typed predicates and the metadata that the compiler attaches.

Nodes are never recognised by the text of their target or by their name.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed._functional_collectives  # noqa: F401  registers the collectives' autograd
from torch.fx import Graph, Node, traceback

from autosp.events import CollectiveKind, NodeRole, SourceLocation
from autosp.placement import Placement
from autosp.sizes import examples, plain

functional = torch.ops._c10d_functional

COLLECTIVE_KINDS: dict[Any, CollectiveKind] = {
    functional.all_to_all_single.default: "all_to_all",
    functional.all_gather_into_tensor.default: "all_gather",
    functional.reduce_scatter_tensor.default: "reduce_scatter",
    functional.all_reduce.default: "all_reduce",
    functional.broadcast.default: "broadcast",
}
"""Every functional collective that starts communication of one tensor."""


@dataclass(frozen=True, slots=True)
class CollectiveTag:
    """What a collective node of the per-rank program is for."""

    kind: CollectiveKind
    axis: str
    group_size: int
    source_placement: str
    target_placement: str


@dataclass(frozen=True, slots=True)
class LocalTag:
    """What the sharding pass knows of a node of the per-rank program.

    ``origin`` is the node of the user's program for whose sake it exists. ``is_value``
    marks the node that holds that origin's value, laid out as ``placement`` says.
    """

    origin: str
    role: NodeRole
    placement: Placement | None = None
    global_shape: tuple[int, ...] | None = None
    is_value: bool = False
    reason: str = ""
    collective: CollectiveTag | None = None
    ring: CollectiveTag | None = None
    """What the sends are for that a ring attention makes."""


REGION_KEY = "ac_graph_id"
"""Key in ``node.meta`` of the checkpointed region that a node belongs to; torch carries it
from graph to graph and its partitioners read it."""
TAG_KEY = "autosp"
CUSTOM_KEY = "autosp_local"
"""Key in ``node.meta["custom"]``, which torch carries through AOTAutograd: the name of
the per-rank program's node from which a joint, forward or backward node comes."""

RING_KEY, RING_BACKWARD_KEY = "autosp_ring", "autosp_ring_backward"
"""Keys in ``node.meta["custom"]`` of nodes that take part in a ring: what they do in it. Torch
gives nodes of the backward what their forward has, too."""


@contextmanager
def noted(note: str, *, key: str = RING_KEY) -> Iterator[None]:
    """Nodes traced inside carry ``note`` (``torch.fx.traceback.annotate`` would change the
    notes of nodes that are there already: they share one dict)."""
    meta = traceback.current_meta
    before = meta.get("custom")
    meta["custom"] = {**(before or {}), key: note}
    try:
        yield
    finally:
        if before is None:
            meta.pop("custom", None)
        else:
            meta["custom"] = before


def local_tag(node: Node) -> LocalTag | None:
    """The tag that the sharding pass put on a node of the per-rank program."""
    tag = node.meta.get(TAG_KEY)
    return tag if isinstance(tag, LocalTag) else None


def local_origin(node: Node) -> str | None:
    """Name of the per-rank program's node that a node of a later graph comes from."""
    custom = node.meta.get("custom")
    name = custom.get(CUSTOM_KEY) if isinstance(custom, dict) else None
    return name if isinstance(name, str) else None


def ring_note(node: Node) -> str:
    """What a node of a derived graph does in a ring of ranks; empty if nothing."""
    custom = node.meta.get("custom")
    if not isinstance(custom, dict):
        return ""
    return str(custom.get(RING_BACKWARD_KEY) or custom.get(RING_KEY, ""))


def is_operator(node: Node, *operators: Any) -> bool:
    return node.op == "call_function" and node.target in operators


def collective_kind(node: Node) -> CollectiveKind | None:
    """The kind of collective this node starts, or None."""
    if node.op != "call_function":
        return None
    kind = COLLECTIVE_KINDS.get(node.target)
    return "send_recv" if kind == "all_to_all" and ring_note(node) else kind


def is_unclassified_collective(node: Node) -> bool:
    """A communication operator that has no entry in :data:`COLLECTIVE_KINDS`."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or collective_kind(node) is not None:
        return False
    namespace = target.namespace
    return namespace in ("_c10d_functional", "_c10d_functional_autograd", "c10d") and not is_wait(
        node
    )


def is_backward(node: Node) -> bool:
    """Whether a node of a joint graph computes gradients, or is a tangent."""
    return node.meta.get("partitioner_tag") == "is_backward"


def is_wait(node: Node) -> bool:
    return is_operator(node, functional.wait_tensor.default)


def is_view(node: Node) -> bool:
    """An operator that moves no data: its result shares its input's storage."""
    target = node.target
    if target is torch.ops.aten._unsafe_view.default:  # its schema does not say so
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False
    aliases = [result.alias_info for result in target._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def is_mutation(node: Node) -> bool:
    """An operator that writes to one of its inputs."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def is_write(node: Node) -> bool:
    """The end of a program: an input of the model, a buffer perhaps, takes a new value."""
    if not is_operator(node, torch.ops.aten.copy_.default):
        return False
    target = node.args[0]
    return isinstance(target, Node) and target.op == "placeholder"


def tensor_of(node: Node) -> torch.Tensor | None:
    """The fake tensor of a node with exactly one tensor output."""
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def shape_of(node: Node) -> tuple[int, ...]:
    """Shape of a node's tensor. The node must have one."""
    value = node.meta["val"]
    return tuple(plain(size) for size in value.shape)


def num_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements, at the length that the program was traced with."""
    return prod(examples(tensor.shape)) * tensor.dtype.itemsize


def node_bytes(node: Node) -> int:
    """Bytes of a node's tensor on a rank; 0 if it has none."""
    tensor = tensor_of(node)
    return 0 if tensor is None else num_bytes(tensor)


def output_node(graph: Graph) -> Node:
    node: Node = next(iter(reversed(graph.nodes)))
    return node


WRAPPER_ATTRIBUTE = "_autosp_wrapped"
"""Attribute under which our own wrappers hold the user's module; never shown in a path."""

_MEMBER = re.compile(r"_(?:modules|parameters|buffers)(?:'\])?\['([^']+)'\]")
_ROOT = re.compile(r"^L\['[^']+'\](?:\[\d+\])*\.?")


@lru_cache(maxsize=16_384)
def attribute_path(dynamo_name: str) -> str:
    """A module or parameter path as the user writes it.

    ``L['self']._modules['layers']._modules['0']._parameters['weight']`` and
    ``L['args'][0].layers.0.weight`` both become ``layers.0.weight``.
    """
    members = _MEMBER.findall(dynamo_name)
    path = ".".join(members) if members else _ROOT.sub("", dynamo_name)
    parts = [part for part in re.split(r"[.\[\]']+", path) if part]
    return ".".join(part for part in parts if part != WRAPPER_ATTRIBUTE)


def module_of(node: Node) -> tuple[str, str]:
    """(module path, class name) of the innermost module a node was traced in."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return "", ""
    name, module_class = next(reversed(stack.values()))
    class_name = module_class if isinstance(module_class, str) else module_class.__name__
    return attribute_path(name), class_name.rsplit(".", 1)[-1]


def module_path(node: Node) -> str:
    return module_of(node)[0]


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_NOT_THE_USERS = tuple(
    f"{Path(file).parent}{os.sep}" for file in (torch.__file__, __file__) if file is not None
)


def is_user_file(file: str) -> bool:
    """Whether a source file is neither torch's nor ours."""
    return not file.startswith(_NOT_THE_USERS)


def source_location(node: Node) -> SourceLocation | None:
    """The innermost line of the user's program (or of a library they use, not torch)."""
    trace = node.meta.get("stack_trace") or node.meta.get("fwd_source_trace")
    if not trace:
        return None
    return parse_trace(trace)


@lru_cache(maxsize=16_384)
def parse_trace(trace: str) -> SourceLocation | None:
    """The innermost line of a printed stack that is not torch's or ours."""
    frames = _FRAME.findall(trace)
    for file, line, function in reversed(frames):
        if not is_user_file(file):
            continue
        number = int(line)
        return SourceLocation(file, number, function, linecache.getline(file, number).strip())
    return None


def meta_of(
    node: Node, keys: tuple[str, ...] = ("nn_module_stack", "stack_trace", REGION_KEY)
) -> dict[str, Any]:
    """The metadata of a user's node that a node made for its sake inherits."""
    return {key: node.meta[key] for key in keys if key in node.meta}
