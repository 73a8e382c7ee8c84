"""What a model promises the compiler about its data (``torch._check``): removed.

A promise about values changes no result, but reading the value to state it would bind the
program to one set of data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

PROMISES: tuple[Any, ...] = (
    torch._check,
    torch._check_value,
    torch._check_tensor_all,
    torch._check_index,
    torch._assert_async,
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten._assert_async.default,
    torch.ops.aten._assert_async.msg,
)


def drop_promises(module: GraphModule) -> None:
    """Remove promises from a dynamo graph, with all that only they need."""
    for part in module.modules():
        if not isinstance(part, GraphModule):
            continue
        unused = [node for node in part.graph.nodes if _is_promise(node)]
        while unused:
            node = unused.pop()
            needed = node.all_input_nodes
            part.graph.erase_node(node)
            unused.extend(n for n in needed if not n.users and n.op != "placeholder")
        part.recompile()


def _is_promise(node: Node) -> bool:
    return node.op == "call_function" and node.target in PROMISES and not node.users
