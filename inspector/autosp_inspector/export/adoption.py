"""Gives the nodes of a backward graph that belong to no module a place in the drawing.

Where a value was used more than once, autograd adds up its gradients in nodes that come
from no line of the program. Each is drawn where the last of its addends was computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autosp_inspector.rows import NodeRow


def adopt_orphans(nodes: Sequence[NodeRow]) -> tuple[NodeRow, ...]:
    """``nodes`` in graph order, with a module for those that have no origin."""
    holders = {node.module.rpartition(".")[0] for node in nodes}
    users = _modules_of_users(nodes)
    by_name: dict[str, NodeRow] = {}
    for node in nodes:
        adopted = node
        inputs = [by_name[name] for name in node.inputs if name in by_name]
        if inputs and _is_orphan(node):
            last = max(inputs, key=lambda row: row.position).module
            stays_inside = users.get(node.name) == {last}
            adopted = replace(node, module=last if stays_inside else _around(last, holders))
        by_name[node.name] = adopted
    return tuple(by_name.values())


def _is_orphan(node: NodeRow) -> bool:
    return node.op == "call_function" and not node.module and not node.origins


def _modules_of_users(nodes: Sequence[NodeRow]) -> dict[str, set[str]]:
    users: dict[str, set[str]] = {}
    for node in nodes:
        for name in node.inputs:
            users.setdefault(name, set()).add(node.module)
    return users


def _around(module: str, holders: set[str]) -> str:
    """The module itself if others stand in it, else the one that holds it."""
    if module in holders:
        return module
    parent, _, name = module.rpartition(".")
    return parent.rpartition(".")[0] if name.isdigit() else parent
