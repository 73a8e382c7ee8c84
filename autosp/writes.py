"""Writes to what the model was given: buffers (running statistics, caches, counters) and inputs.

A functional program loses them. The capture therefore ends the program with one
``aten.copy_(input, value)`` for each input that was written to: nothing in the program reads
the input after it, and AOTAutograd makes it the mutation of the caller's tensor. The value
must be the same on all ranks: one that is sharded is gathered, one that is partial summed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from autosp.checkpoint_regions import TAG
from autosp.errors import MutationError
from autosp.graph import is_mutation, is_write, meta_of, output_node, parse_trace, source_location

aten = torch.ops.aten

Meta = Mapping[str, Any]


def written_inputs(program: GraphModule) -> dict[int, Meta]:
    """Position of each input that the program writes to -> metadata of the last write.

    Args:
        program: as the user wrote it, in-place operators and all.

    Raises:
        MutationError: a write to a parameter that is trained, to a constant, to memory that
            two inputs share, or one that changes the shape of an input.
    """
    owners: dict[Any, list[Node]] = {}
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op in ("placeholder", "get_attr") and isinstance(value, torch.Tensor):
            owners.setdefault(_storage(value), []).append(node)
    positions = {n: i for i, n in enumerate(program.graph.find_nodes(op="placeholder"))}
    found: dict[int, Meta] = {}
    for node in program.graph.nodes:
        for written in written_arguments(node) if is_mutation(node) else ():
            inputs = owners.get(_storage(written.meta["val"]), [])
            if inputs:
                _check_write(node, inputs)
                found[positions[inputs[0]]] = meta_of(node, ("nn_module_stack", "stack_trace"))
    return found


def _check_write(node: Node, inputs: Sequence[Node]) -> None:
    owner = inputs[0]
    given = owner.meta.get("autosp_input")
    if given is None:
        raise mutation_error(node, "a constant", "Register the tensor as a buffer of its module")
    if given.trainable:
        raise mutation_error(
            node, given.name,
            "A tensor that is trained must not change inside the forward: compute a new one",
        )  # fmt: skip
    if len(inputs) > 1:
        names = " and ".join(str(n.meta["autosp_input"].name) for n in inputs)
        raise mutation_error(node, names, "They share memory: give each a tensor of its own")
    assert isinstance(node.target, torch._ops.OpOverload)
    if torch.Tag.inplace_view in node.target.tags:
        raise mutation_error(
            node, given.name, "Its shape would change for the caller: compute a new tensor"
        )


def written_arguments(node: Node) -> list[Node]:
    """The arguments that an in-place operator writes to."""
    found: list[Node] = []
    for index, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
        given = given if isinstance(given, (tuple, list)) else [given]
        found.extend(item for item in given if isinstance(item, Node))
    return found


def end_with_writes(program: GraphModule, written: Mapping[int, Meta]) -> tuple[str, ...]:
    """Turn the values that the program returns beside its own results into writes.

    Args:
        program: returns ``(results, values)``, a value for each position in ``written``.
        written: see :func:`written_inputs`.

    Returns:
        The names of the inputs that are written.
    """
    output = output_node(program.graph)
    returned: Any = output.args[0]
    results, values = returned
    placeholders = program.graph.find_nodes(op="placeholder")
    names: list[str] = []
    for (position, meta), value in zip(written.items(), values, strict=True):
        target = placeholders[position]
        if value is target:
            continue
        with program.graph.inserting_before(output):
            write = program.graph.call_function(aten.copy_.default, (target, value))
        write.meta.update(meta)
        write.meta["val"] = target.meta["val"]
        names.append(target.meta["autosp_input"].name)
    output.args = (results,)
    program.recompile()
    return tuple(names)


def refuse_mutations(program: GraphModule) -> None:
    """Raise for an in-place operator that could not be made functional."""
    for node in program.graph.nodes:
        if is_mutation(node) and not is_write(node):
            written = node.args[0] if node.args else None
            raise mutation_error(
                node,
                written.name if isinstance(written, Node) else "an input",
                "This operator has no form that returns a new tensor: compute one instead",
            )


@contextmanager
def leaves_stay_as_they_are() -> Iterator[None]:
    """Tracing inside refuses a write to a tensor that needs a gradient, in the user's words.

    Raises:
        MutationError: instead of torch's own error.
    """
    try:
        yield
    except RuntimeError as error:
        if "a leaf Variable that requires grad" not in str(error):
            raise
        where = parse_trace(str(error))
        raise MutationError(
            "the forward writes in place to a tensor that needs a gradient",
            where=f"{where.file}:{where.line}" if where else "",
            hint="A buffer that was given a value with a gradient keeps the graph of an earlier "
            "step: detach() what is written to it",
        ) from error


def mutation_error(node: Node, written: str, hint: str) -> MutationError:
    where = source_location(node)
    return MutationError(
        f"the forward writes in place to {written} ({node.target})",
        where=f"{where.file}:{where.line}" if where else "",
        hint=hint,
    )


def _storage(value: torch.Tensor) -> Any:
    return value.untyped_storage()._cdata


def keep_old_values(joint: GraphModule, inputs: Sequence[Node]) -> dict[str, str]:
    """Let the backward read what written inputs held before: a copy that is never recomputed.

    The partition would otherwise save the input itself, which has its new value by then.

    Args:
        inputs: the placeholders of the joint graph that are written.

    Returns:
        Name of each copy -> name of its input.
    """
    copies: dict[str, str] = {}
    for given in inputs:
        readers = [user for user in given.users if not is_write(user)]
        if not readers:
            continue
        first = next(node for node in joint.graph.nodes if node.op != "placeholder")
        with joint.graph.inserting_before(first):
            copy = joint.graph.call_function(aten.clone.default, (given,))
        copy.meta.update(given.meta)
        copy.meta["partitioner_tag"] = "is_forward"
        copy.meta[TAG] = CheckpointPolicy.MUST_SAVE
        for reader in readers:
            reader.replace_input_with(given, copy)
        copies[copy.name] = given.name
    joint.recompile()
    return copies


def drop_unread_copies(forward: GraphModule, copies: Mapping[str, str]) -> None:
    """Read the input itself where the backward turned out not to need its copy."""
    nodes = {node.name: node for node in forward.graph.nodes}
    output = output_node(forward.graph)
    for name, given in copies.items():
        copy = nodes.get(name)
        if copy is not None and output not in copy.users:
            copy.replace_all_uses_with(nodes[given])
            forward.graph.erase_node(copy)
    forward.recompile()
