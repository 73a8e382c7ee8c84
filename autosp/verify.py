"""Invariants that hold after every pass; an error shows the pass, the node and its neighbours."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from autosp.errors import VerificationError
from autosp.graph import is_mutation, is_wait, is_write, local_tag, tensor_of
from autosp.placement import local_shape
from autosp.sizes import same_shape


def verify_program(program: GraphModule, pass_name: str, *, num_ranks: int = 1) -> None:
    """Check a program after ``pass_name``.

    The graph is well-formed and functional but for writes to inputs at its end; every
    tensor has a fake value; every collective is waited for; a tagged value has the local
    shape of its placement.

    Raises:
        VerificationError: an invariant does not hold.
    """
    program.graph.lint()
    for node in program.graph.nodes:
        problem = _problem_of(node, num_ranks)
        if problem:
            raise VerificationError(
                f"after pass {pass_name}: {problem}\n{neighbourhood(node)}",
                hint="This is a mistake in the compiler: please report it",
            )


def _problem_of(node: Node, num_ranks: int) -> str:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return ""
    if is_mutation(node) and not is_write(node):
        return f"{node.name} mutates its input"
    if "val" not in node.meta:
        return f"{node.name} has no fake value"
    tag = local_tag(node)
    tensor = tensor_of(node)
    if tag is None:
        return ""
    if tag.collective is not None and not all(is_wait(user) for user in node.users):
        return f"{node.name} is used before it is waited for"
    if tensor is None or tag.placement is None or tag.global_shape is None:
        return ""
    expected = local_shape(tag.global_shape, tag.placement, num_ranks)
    if not same_shape(expected, tensor.shape):
        return (
            f"{node.name} is placed {tag.placement} and should hold {list(expected)} "
            f"but holds {list(tensor.shape)}"
        )
    return ""


def neighbourhood(node: Node, *, radius: int = 3) -> str:
    """The node with the ones before and after it, one a line."""
    nodes = list(node.graph.nodes)
    position = nodes.index(node)
    around = nodes[max(position - radius, 0) : position + radius + 1]
    return "\n".join(
        f"  {'->' if other is node else '  '} {other.format_node() or other.op}" for other in around
    )
