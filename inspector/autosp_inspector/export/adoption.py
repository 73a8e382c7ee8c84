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
    parents = {node.module.rpartition(".")[0] for node in nodes}
    by_name: dict[str, NodeRow] = {}
    for node in nodes:
        adopted = node
        if node.op == "call_function" and not node.module and not node.origins:
            inputs = [by_name[name] for name in node.inputs if name in by_name]
            if inputs:
                last = max(inputs, key=lambda row: row.position)
                adopted = replace(node, module=_surrounding(last.module, parents))
        by_name[node.name] = adopted
    return tuple(by_name.values())


def _surrounding(module: str, parents: set[str]) -> str:
    """The module itself if others stand in it, else the one around it."""
    if module in parents:
        return module
    parent, _, name = module.rpartition(".")
    around = parent.rpartition(".")[0] if name.isdigit() else parent
    return around
