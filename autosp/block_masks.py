"""Block masks that are made inside the forward, which torch makes from an S x S mask.

``create_block_mask`` evaluates ``mask_mod`` for all queries and keys and counts in blocks. The
graphs of a call hold ``mask_mod`` itself, so that neither the mask nor its blocks are needed to
know what is masked: both are taken out of the program before it is traced, and the blocks are
counted when it runs (:mod:`autosp.runtime.block_tables`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from autosp.errors import AutoSPError
from autosp.flex_attention import (
    COUNTED_KEY,
    FLEX_ATTENTION,
    NUM_BLOCK_SIZES,
    NUM_LENGTHS,
    WHOLE_BLOCK,
)
from autosp.graph import source_location

_predispatch = torch._functorch.predispatch
_BEGIN, _END = _predispatch._vmap_increment_nesting, _predispatch._vmap_decrement_nesting
_BATCH_DIMS = (_predispatch._add_batch_dim, _predispatch._remove_batch_dim)
_BEFORE = _predispatch.lazy_load_decompositions


def drop_block_masks(module: GraphModule) -> None:
    """Take the tables of block masks out of a dynamo graph that computes them.

    Raises:
        AutoSPError: blocks are chosen in the forward by something else than ``mask_mod``.
    """
    graph, tables = module.graph, set(_unread_masks(module.graph))
    for call in graph.find_nodes(op="call_function", target=FLEX_ATTENTION):
        query, mask = call.args[0], call.args[4]
        computed = [t for t in mask if isinstance(t, Node) and t.op.startswith("call_")]
        if not computed:
            continue
        if mask[-NUM_BLOCK_SIZES - 1] < WHOLE_BLOCK and not _from_whole_mask(computed):
            raise AutoSPError(
                "flex_attention with a BlockMask whose blocks are chosen inside the forward",
                where=_where(call),
                hint="Make it with create_block_mask, or outside the forward",
            )
        tables.update(computed)
        end = len(mask) - NUM_BLOCK_SIZES - 1
        with graph.inserting_before(call):
            one = _one_block(graph, query.meta["example_value"].device)
        rest = (None,) * (end - NUM_LENGTHS - len(one))
        call.update_arg(4, (*mask[:NUM_LENGTHS], *one, *rest, *mask[end:]))
        call.meta[COUNTED_KEY] = True
    if tables:
        _erase(graph, tables)
        module.recompile()


def _unread_masks(graph: Graph) -> Iterator[Node]:
    """Results of a ``vmap`` that nothing reads: block masks that no layer uses."""
    mapped = set[Node]()
    for node in graph.nodes:
        if node.target in _BATCH_DIMS or not mapped.isdisjoint(node.all_input_nodes):
            mapped.add(node)
            if not node.users and node.op.startswith("call_") and not _is_write(node):
                yield node


def _one_block(graph: Graph, device: torch.device) -> tuple[Node | None, ...]:
    """Stand where tables were, so that the graph can still be run."""
    options: dict[str, Any] = {"dtype": torch.int32, "device": device}
    number = graph.call_function(torch.ones, ([1, 1, 1],), options)
    index = graph.call_function(torch.zeros, ([1, 1, 1, 1],), options)
    return number, index, None, None, number, index


def _ancestors(nodes: set[Node]) -> set[Node]:
    found, frontier = set[Node](), list(nodes)
    while frontier:
        node = frontier.pop()
        if node not in found:
            found.add(node)
            frontier.extend(node.all_input_nodes)
    return found


def _from_whole_mask(tables: list[Node]) -> bool:
    """Whether they are counted from a boolean mask of all queries and keys."""
    for node in _ancestors(set(tables)):
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and value.dtype == torch.bool and value.dim() >= 4:
            return True
    return False


def _erase(graph: Graph, tables: set[Node]) -> None:
    """Erase what only these nodes need, writes to it and the ``vmap`` around it among that."""
    dead = {node for node in _ancestors(tables) if node.op != "placeholder"}
    order = {node: index for index, node in enumerate(graph.nodes)}
    for node in reversed(list(graph.nodes)):
        if node.users or not (node in dead or _writes_to(node, dead)):
            continue
        if node not in dead and _is_read_later(node, order):
            continue
        graph.erase_node(node)
    _erase_empty_vmaps(graph)


def _is_read_later(write: Node, order: dict[Node, int]) -> bool:
    written = write.args[0]
    assert isinstance(written, Node)
    return any(order[user] > order[write] for user in written.users)


def _writes_to(node: Node, dead: set[Node]) -> bool:
    return _is_write(node) and node.args[0] in dead


def _is_write(node: Node) -> bool:
    is_method = node.op == "call_method" and str(node.target).endswith("_")
    return is_method or node.target is operator.setitem


def _erase_empty_vmaps(graph: Graph) -> None:
    begins: list[tuple[Node, bool]] = []
    for node in list(graph.nodes):
        if node.target is _BEGIN:
            begins.append((node, True))
        elif node.target is _END:
            begin, is_empty = begins.pop()
            if is_empty:
                before = begin.prev
                for one in (begin, node, *([before] if before.target is _BEFORE else [])):
                    graph.erase_node(one)
        elif node.target is not _BEFORE:
            begins = [(begin, False) for begin, _ in begins]


def _where(node: Node) -> str:
    where = source_location(node)
    return f"{where.file}:{where.line}" if where else ""
