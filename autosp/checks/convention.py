"""Where code outside the compiled region meets the gradient convention.

Gradients are averaged over the ranks (mean convention). Parameters are averaged by every
engine. A gradient that leaves the region in another way, or a loss that is computed outside
on gathered logits, is right under conditions that the user should know.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from autosp.capture import GraphInput
from autosp.checks.subject import Subject, size_text
from autosp.events import Finding
from autosp.graph import node_bytes, output_node, shape_of, tensor_of
from autosp.placement import Shard

LOSS_HINT = (
    "Put the loss inside: autosp.compile(model, loss=fn), called with targets=..., or return it "
    "from forward"
)


def check_convention(subject: Subject) -> Iterator[Finding]:
    """Gradients and losses that cross the border of the region."""
    yield from _gradients_of_inputs(subject)
    yield from _loss_outside(subject)


def _gradients_of_inputs(subject: Subject) -> Iterator[Finding]:
    placed = subject.compilation.view.placed
    for node in subject.user_graph.find_nodes(op="placeholder"):
        given = node.meta.get("autosp_input")
        if not isinstance(given, GraphInput) or given.kind != "input" or not given.trainable:
            continue
        if node.name not in placed or _comes_from_a_piece(subject, given):
            continue
        yield subject.finding(
            node,
            "partial-input-gradient",
            "warning",
            f"the gradient of the input {given.name} is asked for; each rank gets that of its own "
            "tokens, times the number of ranks, and zero elsewhere",
            "Average it over the ranks as the gradients of parameters, before it is read; a "
            "module before the region whose parameters are averaged needs nothing",
            cost_bytes=node_bytes(node),
        )


def _comes_from_a_piece(subject: Subject, given: GraphInput) -> bool:
    """Its gradient goes to the piece that made it, which takes it as it is."""
    return given.cut is not None or (subject.compilation.context.in_pieces and given.is_computed)


def _loss_outside(subject: Subject) -> Iterator[Finding]:
    """Sharded outputs that carry a gradient are gathered for the loss, whole on every rank."""
    summed = _stand_in_for_a_loss(subject)
    if summed is not None:
        yield _outside(subject, summed, "the model returns no loss; one computed outside reads")
        return
    if subject.compilation.context.in_pieces:
        return
    leaves = subject.compilation.outputs.leaves
    returned = output_node(subject.rank_graph).all_input_nodes
    tensors = [node for node in returned if tensor_of(node) is not None]
    differentiable = [
        node
        for node, leaf in zip(tensors, [leaf for leaf in leaves if leaf], strict=False)
        if isinstance(leaf.placement, Shard) and leaf.differentiable and _is_floating(node)
    ]
    if differentiable and subject.compilation.graphs.backward is not None:
        largest = max(differentiable, key=node_bytes)
        yield _outside(subject, largest, "a loss computed outside the compiled region reads")


def _outside(subject: Subject, node: Node, what: str) -> Finding:
    tag = subject.tag(node)
    shape = (tag.global_shape if tag else None) or shape_of(node)
    tensor = tensor_of(node)
    assert tensor is not None
    whole = tensor.element_size()
    for size in shape:
        whole *= size
    return subject.finding(
        node,
        "loss-outside",
        "warning",
        f"{what} this output whole: {size_text(whole)} on every rank, and its gradient as much",
        LOSS_HINT,
        cost_bytes=2 * whole,
    )


def _is_floating(node: Node) -> bool:
    tensor = tensor_of(node)
    return tensor is not None and tensor.is_floating_point()


def _stand_in_for_a_loss(subject: Subject) -> Node | None:
    """The largest output whose sum a dry run takes for want of a loss."""
    sums = [
        node.all_input_nodes[0]
        for node in subject.user_graph.nodes
        if node.all_input_nodes and "in sum_of_outputs" in str(node.meta.get("stack_trace"))
    ]
    outputs = [node for node in sums if tensor_of(node) is not None and len(shape_of(node)) > 1]
    return max(outputs, key=node_bytes, default=None)
