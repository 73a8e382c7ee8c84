"""Regions that sort tokens by expert and put them back: kept local to a rank.

Grouped experts sort all (token, expert) pairs by expert, multiply each group of rows with its
expert's weights, and undo the sorting::

    sorted, order = sort(ids); rows = x[order // k]; counts = cumsum(histc(sorted))
    rows = grouped_mm(rows, weights, counts); inverse[order] = arange(N); y = rows[inverse]

No row of ``y`` depends on another token. Each rank therefore sorts its own tokens only, and
nothing is communicated. A region is accepted when every node of it is understood and nothing
but the rows in their old order leaves it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.fx import Graph, Node

from autosp.graph import is_operator, shape_of, tensor_of
from autosp.placement import REPLICATE, Shard
from autosp.sharding.builder import Value
from autosp.sharding.operation import Operation, normalise_dim
from autosp.sharding.pointwise import CASTS, is_pointwise

aten = torch.ops.aten

Kind = Literal["order", "quotient", "rows", "counts", "blank", "inverse", "exit"]
"""What a node of a region holds.

``order``: the sorting permutation; ``quotient``: it divided by the experts per token;
``rows``: one row a (token, expert) pair, sorted; ``counts``: rows per expert;
``blank``: a tensor to be filled; ``inverse``: the permutation that undoes ``order``;
``exit``: rows in their old order.
"""

COUNTERS = (aten.histc.default, aten.bincount.default)
OF_COUNTS = (aten.cumsum.default, *CASTS)
"""Nothing else: a cap on the rows of an expert would make a token depend on others."""
GROUPED_PRODUCTS = ("_grouped_mm", "grouped_mm", "grouped_mm_fallback")
"""By name: a library may register its own."""
SPLITS = (aten.split.Tensor, aten.split.sizes, aten.split_with_sizes.default, aten.chunk.default)


@dataclass(slots=True)
class TokenRegion:
    """From the sort to where the old order is back."""

    sort: Node
    kinds: dict[Node, Kind] = field(default_factory=dict)

    @property
    def ids(self) -> Node:
        ids = self.sort.args[0]
        assert isinstance(ids, Node)
        return ids

    @property
    def num_rows(self) -> int:
        return shape_of(self.ids)[0]


def find_token_regions(graph: Graph) -> dict[Node, TokenRegion]:
    """Every node of a region -> the region."""
    found: dict[Node, TokenRegion] = {}
    for node in graph.nodes:
        if is_operator(node, aten.sort.default) and node not in found:
            region = _region_of(graph, node)
            if region is not None:
                found |= dict.fromkeys(region.kinds, region)
    return found


def _region_of(graph: Graph, sort: Node) -> TokenRegion | None:
    ids = sort.args[0]
    tensor = tensor_of(ids) if isinstance(ids, Node) else None
    if tensor is None or tensor.dim() != 1 or tensor.is_floating_point():
        return None
    region = TokenRegion(sort, {sort: "rows"})
    for node in graph.nodes:
        if not any(region.kinds.get(n, "exit") != "exit" for n in node.all_input_nodes):
            continue
        kind = _kind(node, region)
        if kind is None:
            return None
        region.kinds[node] = kind
    return region if "exit" in region.kinds.values() else None


def _kind(node: Node, region: TokenRegion) -> Kind | None:
    """What a reader of the region holds; None if it cannot be part of one."""
    kinds = {n: k for n in node.all_input_nodes if (k := region.kinds.get(n, "exit")) != "exit"}
    inputs = set(kinds.values())
    if node.target is operator.getitem:
        return "order" if node.args == (region.sort, 1) else "rows"
    if is_operator(node, aten.index.Tensor):
        return _kind_of_lookup(node, kinds, region)
    if inputs == {"order"}:
        return _kind_of_order(node)
    if is_operator(node, aten.index_put.default):
        return _kind_of_inverse(node, kinds, region)
    if inputs == {"counts"}:
        return "counts" if is_operator(node, *OF_COUNTS) else None
    if "rows" not in inputs or not inputs <= {"rows", "counts"}:
        return None
    if is_operator(node, *COUNTERS):
        return "counts" if len(node.all_input_nodes) == 1 else None
    return "rows" if _works_by_row(node, kinds, region) else None


def _kind_of_lookup(node: Node, kinds: Mapping[Any, Kind], region: TokenRegion) -> Kind | None:
    source: Any = node.args[0]
    indices: Any = node.args[1]
    if len(indices) != 1 or not isinstance(indices[0], Node):
        return None
    of_source, of_index = kinds.get(source), kinds.get(indices[0])
    if of_source == "rows" and of_index == "inverse":
        return "exit"
    if of_source is not None:
        return None
    length = shape_of(source)[0]
    if of_index == "order":
        return "rows" if length == region.num_rows else None
    if of_index == "quotient":
        per_token = indices[0].args[1]
        fits = isinstance(per_token, int) and length * per_token == region.num_rows
        return "rows" if fits else None
    return "rows" if of_index == "rows" else None  # a table looked up by expert


def _kind_of_order(node: Node) -> Kind | None:
    if is_operator(node, aten.floor_divide.default) and isinstance(node.args[1], int):
        return "quotient"
    if is_operator(node, aten.empty_like.default):
        return "blank"
    return "inverse" if is_operator(node, aten.argsort.default) else None


def _kind_of_inverse(node: Node, kinds: Mapping[Any, Kind], region: TokenRegion) -> Kind | None:
    """``blank[order] = arange(N)``."""
    target: Any = node.args[0]
    indices: Any = node.args[1]
    numbers: Any = node.args[2]
    ordered = len(indices) == 1 and kinds.get(indices[0]) == "order"
    counted = isinstance(numbers, Node) and is_operator(numbers, aten.arange.default)
    complete = counted and numbers.args == (region.num_rows,)
    return "inverse" if kinds.get(target) == "blank" and ordered and complete else None


def _works_by_row(node: Node, kinds: Mapping[Any, Kind], region: TokenRegion) -> bool:
    first = node.args[0] if node.args else None
    if _is_grouped_product(node):
        return isinstance(first, Node) and kinds.get(first) == "rows"
    if "counts" in kinds.values():
        return False
    num_dims = max(len(shape_of(n)) for n in kinds if tensor_of(n) is not None)
    if is_pointwise(node.target):
        return all(
            n in kinds
            or len(shape_of(n)) < num_dims
            or (len(shape_of(n)) == num_dims and shape_of(n)[0] == 1)
            for n in node.all_input_nodes
            if tensor_of(n) is not None
        ) and all(len(shape_of(n)) == num_dims for n in kinds)
    if kinds.get(first) != "rows":
        return False
    assert isinstance(first, Node)
    if is_operator(node, aten.linear.default):
        return len(kinds) == 1
    if is_operator(node, *SPLITS):
        return _dim(node, 2, 0, num_dims) != 0
    if is_operator(node, aten.slice.Tensor):
        return _dim(node, 1, 0, num_dims) != 0
    if is_operator(node, aten.unsqueeze.default):
        return _dim(node, 1, 0, num_dims + 1) != 0
    return False


def _dim(node: Node, index: int, default: int, num_dims: int) -> int:
    dim = node.args[index] if len(node.args) > index else node.kwargs.get("dim", default)
    assert isinstance(dim, int)
    return normalise_dim(dim, num_dims)


def _is_grouped_product(node: Node) -> bool:
    """``grouped_mm(rows, weights[experts, ...], ends of the groups)``, of torch or a library."""
    packet = getattr(node.target, "overloadpacket", None)
    return getattr(packet, "__name__", "") in GROUPED_PRODUCTS


# ---------------------------------------------------------------------- emission


@dataclass(slots=True)
class LocalRegions:
    """The regions of a program, and those of them whose tokens each rank sorts by itself."""

    _regions: Mapping[Node, TokenRegion]
    _orders: dict[Node, Shard] = field(default_factory=dict)
    """Sort of a region -> how the rows that each rank sorts are cut."""

    @staticmethod
    def of(graph: Graph) -> LocalRegions:
        return LocalRegions(find_token_regions(graph))

    def begin_or_go_on(self, op: Operation, values: Mapping[Node, Any]) -> bool:
        """Whether ``op`` is in such a region; its sort decides, by how the ids are placed."""
        region = self._regions.get(op.node)
        if region is None:
            return False
        ids = values[region.ids]
        is_local = isinstance(ids, Value) and isinstance(ids.placement, Shard)
        if region.sort is op.node and is_local:
            self._orders[op.node] = ids.placement
            op.decide(
                "applied", "experts", "each rank sorts its own tokens by expert",
                "no row that leaves the region depends on another token",
                rule="token_regions",
            )  # fmt: skip
        return region.sort in self._orders

    def has_own_order(self, node: Node) -> bool:
        """Whether the rows of a node are in an order of the rank's own."""
        region = self._regions.get(node)
        return region is not None and region.sort in self._orders and region.kinds[node] != "exit"

    def emit(self, op: Operation) -> Value | list[Value]:
        """One node of a region, on the rows of this rank."""
        region = self._regions[op.node]
        return _emit(op, region, self._orders[region.sort])


def _emit(op: Operation, region: TokenRegion, cut: Shard) -> Value | list[Value]:
    """One node of the region, on the rows of this rank. ``cut`` is that of the ids."""
    node, kind = op.node, region.kinds[op.node]

    def place(user: Any, given: Any) -> Any:
        """What the region made is this rank's; anything else is used by all experts."""
        if isinstance(given, (list, tuple)):
            return [place(*pair) for pair in zip(user, given, strict=True)]
        inside = isinstance(user, Node) and region.kinds.get(user, "exit") != "exit"
        if inside or user is region.ids or not isinstance(given, Value):
            return given
        return op.replicate(given, "used by every expert")

    first: Any = node.args[0]
    args = [place(*pair) for pair in zip(node.args[1:], op.args[1:], strict=True)]
    if is_operator(node, aten.index.Tensor) and _looks_up_tokens(node, region):
        args.insert(0, op.redistribute(op.args[0], cut, "this rank's tokens, sorted by expert"))
    else:
        args.insert(0, place(first, op.args[0]))
    if is_operator(node, aten.index_put.default):
        numbers = node.args[2]
        assert isinstance(numbers, Node)
        args[2] = op.emit(aten.arange.default, args[1][0].local.shape[0], **numbers.kwargs)
    kwargs = {name: place(node.kwargs[name], given) for name, given in op.kwargs.items()}
    local = op.emit(op.target, *args, **kwargs)
    if isinstance(node.meta["val"], (tuple, list)):
        return op.results(local, [cut] * len(op.outputs))
    return op.result(local, REPLICATE if kind == "counts" else cut)


def _looks_up_tokens(node: Node, region: TokenRegion) -> bool:
    indices: Any = node.args[1]
    return indices[0] in region.kinds and region.kinds[indices[0]] in ("order", "quotient")
