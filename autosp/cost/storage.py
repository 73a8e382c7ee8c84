"""Which nodes of an ATen graph share storage, from what the operators say.

Operator schemas announce views (``Tensor(a)`` in, ``Tensor(a)`` out). Two operators share
without saying so and are named below. For anything else the fake tensors are compared,
but only a node with its *own inputs*: rematerialised copies of a node carry the fake
tensor of the original, so a comparison across a graph, or across the two graphs, would
merge buffers that exist twice.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.fx
from torch._ops import OpOverload

StorageIds = object
"""A storage id, None, or a tuple or list of these: the shape of the node's value."""

_UNANNOTATED_ALIASES: frozenset[OpOverload] = frozenset(
    {torch.ops.aten._unsafe_view.default, torch.ops._c10d_functional.wait_tensor.default}
)
"""Return (a view of) their first argument although their schema does not say so.

``_unsafe_view`` is ``view`` that promises autograd nothing else looks at the input;
``wait_tensor`` returns the tensor it was given (torch/csrc/distributed/c10d/Functional.cpp).
"""


@dataclass(slots=True)
class Storage:
    """A block of memory, created by one node of one graph."""

    index: int
    size_bytes: int
    creator: torch.fx.Node
    in_backward: bool
    shape: tuple[int, ...]
    dtype: str
    persistent: bool = False
    """Owned by the caller or by the program: parameters, buffers, inputs, constants."""


@dataclass(slots=True)
class StorageTable:
    """All storages of a step. One table spans both graphs; ids are its list indices."""

    storages: list[Storage] = field(default_factory=list)

    def allocate(self, value: torch.Tensor, *, creator: torch.fx.Node, in_backward: bool) -> int:
        index = len(self.storages)
        self.storages.append(
            Storage(
                index=index,
                size_bytes=storage_bytes(value),
                creator=creator,
                in_backward=in_backward,
                shape=tuple(int(size) for size in value.shape),
                dtype=str(value.dtype).removeprefix("torch."),
            )
        )
        return index


def storage_bytes(value: torch.Tensor) -> int:
    """Bytes of the memory block behind a (fake) tensor, not only of the part it shows."""
    return int(value.untyped_storage().nbytes())


def flat_ids(ids: StorageIds) -> Iterator[int]:
    """The storage ids inside the structure, left to right."""
    if isinstance(ids, int):
        yield ids
    elif isinstance(ids, (tuple, list)):
        for item in ids:
            yield from flat_ids(item)


@dataclass(slots=True)
class GraphStorages:
    """The storages of the nodes of one graph."""

    ids: dict[torch.fx.Node, StorageIds]

    def of(self, node: torch.fx.Node) -> tuple[int, ...]:
        """The distinct storages of the node's value."""
        return tuple(dict.fromkeys(flat_ids(self.ids.get(node))))


def assign_storages(
    graph: torch.fx.Graph,
    table: StorageTable,
    *,
    in_backward: bool,
    known: dict[torch.fx.Node, StorageIds] | None = None,
) -> GraphStorages:
    """Give each value of the graph its storages, adding new ones to ``table``.

    ``known`` holds the placeholders whose storage exists already: values that the
    forward saved for this backward.
    """
    result = GraphStorages(ids=dict(known or {}))
    placeholder_storages: dict[int, int] = {}
    for node in graph.nodes:
        if node.op == "output" or node in result.ids:
            continue
        if node.op in ("placeholder", "get_attr"):
            result.ids[node] = _input_ids(node, table, placeholder_storages, in_backward)
        else:
            result.ids[node] = _call_ids(node, table, result, in_backward)
    return result


def _input_ids(
    node: torch.fx.Node, table: StorageTable, seen: dict[int, int], in_backward: bool
) -> StorageIds:
    """Inputs that are views of one tensor share its storage."""
    value = _value(node)
    if not isinstance(value, torch.Tensor):
        return None
    key = value.untyped_storage()._cdata
    if key not in seen:
        seen[key] = table.allocate(value, creator=node, in_backward=in_backward)
    return seen[key]


def _value(node: torch.fx.Node) -> object:
    if "val" in node.meta:
        return node.meta["val"]
    if node.op == "get_attr" and isinstance(node.target, str):
        owner: object = node.graph.owning_module
        for part in node.target.split("."):
            owner = getattr(owner, part, None)
        return owner
    return None


def _call_ids(
    node: torch.fx.Node, table: StorageTable, known: GraphStorages, in_backward: bool
) -> StorageIds:
    if node.target is operator.getitem:
        return _element(known.ids.get(_node_argument(node, 0)), node.args[1])
    aliased = _schema_aliases(node, known)
    by_storage: dict[int, int] | None = None

    def place(value: object, alias: int | None) -> StorageIds:
        nonlocal by_storage
        if isinstance(value, torch.Tensor):
            if alias is not None:
                return alias
            if by_storage is None:
                by_storage = _input_storages(node, known)
            shared = by_storage.get(value.untyped_storage()._cdata)
            if shared is not None:
                return shared
            return table.allocate(value, creator=node, in_backward=in_backward)
        if isinstance(value, (tuple, list)):
            return tuple(place(item, alias) for item in value)
        return None

    value = node.meta.get("val")
    if isinstance(value, (tuple, list)) and len(aliased) == len(value):
        return tuple(place(item, alias) for item, alias in zip(value, aliased, strict=True))
    return place(value, aliased[0] if aliased else None)


def _node_argument(node: torch.fx.Node, position: int) -> torch.fx.Node:
    argument = node.args[position]
    assert isinstance(argument, torch.fx.Node)
    return argument


def _element(ids: StorageIds, index: object) -> StorageIds:
    if isinstance(ids, (tuple, list)) and isinstance(index, int):
        return ids[index]
    return ids


def _schema_aliases(node: torch.fx.Node, known: GraphStorages) -> Sequence[int | None]:
    """For each return of the operator, the storage of the input that it aliases."""
    target = node.target
    if not isinstance(target, OpOverload):
        return ()
    if target in _UNANNOTATED_ALIASES:
        return (_first_id(known, _node_argument(node, 0)),)
    returns = target._schema.returns
    if all(item.alias_info is None for item in returns):
        return (None,) * len(returns)
    sources = _aliased_arguments(node, target, known)
    return tuple(
        None
        if item.alias_info is None
        else next((sources[n] for n in _alias_names(item.alias_info) if n in sources), None)
        for item in returns
    )


def _aliased_arguments(
    node: torch.fx.Node, target: OpOverload, known: GraphStorages
) -> dict[str, int]:
    """Alias set name -> storage. A wildcard result (``split``) aliases the only source."""
    sources: dict[str, int] = {}
    for position, argument in enumerate(target._schema.arguments):
        if argument.alias_info is None:
            continue
        value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        if isinstance(value, torch.fx.Node):
            index = _first_id(known, value)
            if index is not None:
                for name in (*argument.alias_info.before_set, "*"):
                    sources.setdefault(name, index)
    return sources


def _alias_names(alias_info: torch._C._AliasInfo) -> tuple[str, ...]:  # type: ignore[name-defined]
    return tuple(alias_info.before_set) or ("*",)


def _first_id(known: GraphStorages, node: torch.fx.Node) -> int | None:
    return next(flat_ids(known.ids.get(node)), None)


def _input_storages(node: torch.fx.Node, known: GraphStorages) -> dict[int, int]:
    """Fake storage -> our storage, over the node's direct inputs."""
    found: dict[int, int] = {}
    for source in node.all_input_nodes:
        leaves = _tensors(source.meta.get("val"))
        for value, index in zip(leaves, flat_ids(known.ids.get(source)), strict=False):
            found.setdefault(value.untyped_storage()._cdata, index)
    return found


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
