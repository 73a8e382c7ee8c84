"""Placements of the nodes of the joint, forward and backward graphs, by what they hold.

A node is labelled where it can be proved what it holds, and nowhere else:

* what one node of the per-rank program computes and another one reads is that node's
  *value*: it has the placement and the global shape that sharding gave the node;
* what flows from the derivative of one node of the per-rank program to that of another is a
  *cotangent* of a value between the two: it has the global shape of the value and the dual
  of its placement (:func:`dual`);
* reshapes, permutations, copies and casts of a labelled tensor, kernels that work on each
  row of it, and sums of cotangents of the same value follow exactly.

Buffers around collectives have no global tensor. They, and what else is left (statistics
that a kernel keeps, intermediates of a decomposition), have no label.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_leaves

from autosp.graph import is_backward, is_operator, local_origin, local_tag, output_node, tensor_of
from autosp.placement import (
    PARTIAL_AVG,
    REPLICATE,
    Partial,
    Placement,
    Shard,
    example_placement,
    local_shape,
)
from autosp.sizes import examples

aten = torch.ops.aten

PLACED_KEY = "autosp_placed"
"""Key in ``node.meta`` of a node's :class:`Placed`; torch carries it from the joint graph to
the forward and the backward one."""

COPIES = (
    aten.clone.default,
    aten.detach.default,
    aten.alias.default,
    aten._to_copy.default,
)
RESHAPES = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
)
PERMUTATIONS = (aten.t.default, aten.transpose.int, aten.permute.default)

SOFTMAXES = (aten._log_softmax.default, aten._softmax.default)

BUFFER_ROLES = ("pack", "unpack", "collective", "wait", "slice")
"""Roles of nodes of the per-rank program that hold no tensor of the user's program."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The tensor of which a node holds one rank's part."""

    placement: Placement
    shape: tuple[int, ...]
    """Global shape."""


def placed_of(node: Node) -> Placed | None:
    """What :func:`label_placements` found for a node of a derived graph."""
    placed = node.meta.get(PLACED_KEY)
    return placed if isinstance(placed, Placed) else None


def dual(placement: Placement) -> Placement:
    """How the cotangent of a value lies that is placed so.

    Under the mean convention a whole value's cotangent is the mean of what the ranks hold;
    a partial value's is whole, a sharded one's is cut like the value.
    """
    match placement:
        case Shard():
            return placement
        case Partial():
            return REPLICATE
        case _:
            return PARTIAL_AVG


def label_placements(derived: GraphModule, program: GraphModule, num_ranks: int) -> None:
    """Label the nodes of a graph that AOTAutograd has just derived from ``program``.

    ``derived`` is the joint graph, or the forward of an inference; its nodes have not been
    merged or moved yet.
    """
    _Labels(derived.graph, program.graph, num_ranks).find()


@dataclass(frozen=True, slots=True)
class _Result:
    """One tensor that a node of the per-rank program computes."""

    shape: tuple[int, ...]
    """On a rank."""
    dtype: torch.dtype
    placed: Placed | None


class _Labels:
    """Walks one derived graph; ``program`` is what torch executed to derive it."""

    def __init__(self, derived: Graph, program: Graph, num_ranks: int) -> None:
        self._derived = derived
        self._program = program
        self._by_name = {node.name: node for node in program.nodes}
        self._num_ranks = num_ranks
        self._readers_of_sum: dict[Node, frozenset[Node]] = {}
        for node in reversed(derived.nodes):
            if _is_sum_of_cotangents(node):
                self._readers_of_sum[node] = self._readers(node)

    def find(self) -> None:
        self._label_inputs_and_gradients()
        for node in self._derived.nodes:
            if node.op == "call_function" and placed_of(node) is None:
                self._label(node, self._cotangent(node) if is_backward(node) else self._value(node))
        while self._follow_exact_operators():
            pass

    def _label(self, node: Node, placed: Placed | None) -> bool:
        """Label ``node`` if the claim agrees with what a rank holds."""
        tensor = tensor_of(node)
        if placed is None or tensor is None:
            return False
        if local_shape(placed.shape, placed.placement, self._num_ranks) != examples(tensor.shape):
            return False
        node.meta[PLACED_KEY] = placed
        return True

    # ------------------------------------------------------------------ what crosses groups

    def _label_inputs_and_gradients(self) -> None:
        """Inputs lie as the program's (constants come before them), gradients as their duals."""
        given = self._program.find_nodes(op="placeholder")
        placeholders = self._derived.find_nodes(op="placeholder")
        inputs = [node for node in placeholders if not is_backward(node)]
        own = inputs[max(len(inputs) - len(given), 0) :]
        for node, source in zip(own, given, strict=True):
            tag = local_tag(source)
            if tag is not None and tag.placement is not None and tag.global_shape is not None:
                self._label(node, _placed_at_trace(tag.placement, tag.global_shape))
        tangents = placeholders[len(inputs) :]
        leaving = [leaf for leaf in _returned(self._program) if isinstance(leaf, Node)]
        for node in tangents:
            results = [result for leaf in leaving for result in _results(leaf)]
            self._label(node, _dual(self._alone(node, results)))
        gradients = _returned(self._derived)[-len(inputs) :] if tangents and inputs else []
        for node, gradient in zip(inputs[len(inputs) - len(gradients) :], gradients, strict=True):
            if isinstance(gradient, Node):
                self._label(gradient, _dual(placed_of(node)))

    def _value(self, node: Node) -> Placed | None:
        """The placement of what other nodes of the program read, or the caller."""
        origin = self._origin(node)
        if origin is None:
            return None
        for user in node.users:
            reader = self._origin(user)
            if user.op == "output" or (reader not in (origin, None) and not is_backward(user)):
                return self._alone(node, _results_at(origin, node))
        return None

    def _cotangent(self, node: Node) -> Placed | None:
        """The dual of a value that flows back from one node of the program to another."""
        origin = self._origin(node)
        if origin is None:
            return None
        users = self._readers(node)
        readers = {self._origin(user) for user in users} - {origin, None}
        if not readers and not any(user.op == "output" for user in users):
            return None
        inputs = origin.all_input_nodes
        read = [i for i in inputs if i in readers or _container(i) in readers]
        found = self._alike(node, [r for i in read or inputs for r in _results(i)])
        if len(found) > 1:  # several inputs of one shape: what reads it tells which
            found &= self._alike(node, self._results_read(node))
        return _dual(found.pop()) if len(found) == 1 else None

    def _results_read(self, cotangent: Node) -> list[_Result]:
        """The results of those nodes of the program whose derivatives read ``cotangent``."""
        origins = {self._origin(user) for user in self._readers(cotangent)}
        return [result for origin in origins if origin is not None for result in _results(origin)]

    def _readers(self, cotangent: Node) -> frozenset[Node]:
        """What reads a cotangent, itself or added to others of the same value."""
        found: set[Node] = set()
        for user in cotangent.users:
            found |= self._readers_of_sum.get(user, {user})
        return frozenset(found)

    def _origin(self, node: Node) -> Node | None:
        """The node of the program that torch was executing, or deriving."""
        name = local_origin(node)
        return None if name is None else self._by_name.get(name)

    def _alike(self, node: Node, results: Iterable[_Result]) -> set[Placed | None]:
        """The labels of those results that ``node`` may be."""
        tensor = tensor_of(node)
        if tensor is None:
            return set()
        kind = (examples(tensor.shape), tensor.dtype)
        return {result.placed for result in results if (result.shape, result.dtype) == kind}

    def _alone(self, node: Node, results: Iterable[_Result]) -> Placed | None:
        found = self._alike(node, results)
        return found.pop() if len(found) == 1 else None

    # ------------------------------------------------------------------ what follows exactly

    def _follow_exact_operators(self) -> bool:
        """One pass down the graph and one up; whether anything was found."""
        found = False
        for node in self._derived.nodes:
            if self._may_follow(node):
                found |= self._label(node, self._from_inputs(node))
        for node in reversed(self._derived.nodes):
            placed, source = placed_of(node), _moved_tensor(node)
            if placed is not None and source is not None and self._may_follow(source):
                found |= self._label(source, self._moved(placed, node, source, back=True))
        return found

    def _may_follow(self, node: Node) -> bool:
        """Buffers around collectives hold no tensor of the user's program."""
        if node.op != "call_function" or placed_of(node) is not None:
            return False
        origin = self._origin(node)
        tag = None if origin is None else local_tag(origin)
        return tag is None or tag.role not in BUFFER_ROLES

    def _from_inputs(self, node: Node) -> Placed | None:
        source = _moved_tensor(node)
        if source is not None:
            placed = placed_of(source)
            return None if placed is None else self._moved(placed, source, node)
        if not _is_sum_of_cotangents(node):
            return _rows_placed(node)
        addends = {placed_of(addend) for addend in node.all_input_nodes}
        return addends.pop() if len(addends) == 1 else None

    def _moved(
        self, placed: Placed, source: Node, result: Node, *, back: bool = False
    ) -> Placed | None:
        """What ``result`` holds, of which ``source`` is a rearrangement or the other way round."""
        operator_node = source if back else result
        if is_operator(operator_node, *COPIES):
            return placed
        old, new = _sizes(source), _sizes(result)
        if is_operator(operator_node, *PERMUTATIONS):
            order = _permutation(operator_node, len(old))
            inverse = [order.index(dim) for dim in range(len(order))]
            return _permuted(placed, inverse if back else order)
        return reshaped(placed, old, new, self._num_ranks)


def reshaped(
    placed: Placed, old: tuple[int, ...], new: tuple[int, ...], num_ranks: int
) -> Placed | None:
    """A tensor whose local part of sizes ``old`` is reshaped to ``new``.

    The rows of a block stay together in the dim of ``new`` in which they lie as they lay in
    ``old``. None if they are spread over several dims, or if a rank has one row, whose dim
    local sizes do not tell.
    """
    cut = placed.placement
    if not isinstance(cut, Shard):
        return Placed(cut, new)
    block = cut.block(num_ranks)
    before, passed = prod(old[: cut.dim]) * cut.outer, 1
    if block == 1:
        return placed if old == new else None
    for dim, size in enumerate(new):
        outer, rest = divmod(before, passed)
        if rest:
            return None
        if size % (outer * block) == 0:
            inner = size // (outer * block)
            shape = (*new[:dim], outer * cut.atom * inner, *new[dim + 1 :])
            return Placed(replace(cut, dim=dim, outer=outer), shape)
        passed *= size
    return None


def _permuted(placed: Placed, order: Sequence[int]) -> Placed:
    cut, shape = placed.placement, tuple(placed.shape[dim] for dim in order)
    return Placed(cut.on_dim(order.index(cut.dim)) if isinstance(cut, Shard) else cut, shape)


def _permutation(node: Node, num_dims: int) -> list[int]:
    """Dim of the input for each dim of the result."""
    order = list(range(num_dims))
    if is_operator(node, aten.permute.default):
        dims: Any = node.args[1]
        return [dim % num_dims for dim in dims]
    if is_operator(node, aten.t.default):
        return order[::-1]
    swapped: Any = node.args[1:3]
    first, second = swapped
    order[first], order[second] = order[second], order[first]
    return order


def _moved_tensor(node: Node) -> Node | None:
    """The tensor of which an operator only moves, copies or casts the elements."""
    if not is_operator(node, *COPIES, *RESHAPES, *PERMUTATIONS):
        return None
    source = node.args[0]
    is_tensor = isinstance(source, Node) and tensor_of(source) is not None
    return source if is_tensor and tensor_of(node) is not None else None  # type: ignore[return-value]


def _rows_placed(node: Node) -> Placed | None:
    """A tensor whose rows are computed from the rows of another, none from two of them."""
    if is_operator(node, *SOFTMAXES):
        source, dim = node.args[:2]
    elif is_operator(node, aten.nll_loss_backward.default):
        source, dim = node.args[1], -1
    else:
        return None
    placed = placed_of(source) if isinstance(source, Node) else None
    if placed is None or not isinstance(placed.placement, Shard) or not isinstance(dim, int):
        return None
    return placed if placed.placement.dim != dim % len(placed.shape) else None


def _placed_at_trace(placement: Placement, shape: tuple[int, ...]) -> Placed:
    """Sizes that stay dynamic are shown as they are at the length of the trace."""
    return Placed(example_placement(placement), examples(shape))


def _dual(placed: Placed | None) -> Placed | None:
    return None if placed is None else Placed(dual(placed.placement), placed.shape)


def _results(node: Node) -> list[_Result]:
    """The tensors that a node of the program computes; those of its parts if it has several."""
    tensor = tensor_of(node)
    if tensor is None:
        return [result for part in _parts(node) for result in _results(part)]
    tag, placed = local_tag(node), None
    if tag is not None and tag.placement is not None and tag.global_shape is not None:
        placed = _placed_at_trace(tag.placement, tag.global_shape)
    return [_Result(examples(tensor.shape), tensor.dtype, placed)]


def _results_at(origin: Node, node: Node) -> list[_Result]:
    """The results of ``origin`` that ``node`` of a derived graph may be: one if it says which."""
    if node.target is operator.getitem:
        container, index = node.args
        if isinstance(container, Node) and container.target is origin.target:
            return [r for p in _parts(origin) if p.args[1] == index for r in _results(p)]
    return _results(origin)


def _returned(graph: Graph) -> list[Any]:
    return tree_leaves(output_node(graph).args[0])


def _parts(node: Node) -> list[Node]:
    return [user for user in node.users if user.target is operator.getitem]


def _container(node: Node) -> Node | None:
    container = node.args[0] if node.target is operator.getitem else None
    return container if isinstance(container, Node) else None


def _is_sum_of_cotangents(node: Node) -> bool:
    """An addition that comes from no operator: a value was used more than once."""
    return is_operator(node, aten.add.Tensor) and is_backward(node) and local_origin(node) is None


def _sizes(node: Node) -> tuple[int, ...]:
    tensor = tensor_of(node)
    assert tensor is not None
    return examples(tensor.shape)
