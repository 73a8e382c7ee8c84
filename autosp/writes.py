"""Writes to what the model was given: buffers (running statistics, caches, counters) and inputs.

A functional program loses them. The capture therefore ends the program with one
``aten.copy_(input, value)`` for each input that was written to: nothing in the program reads
the input after it, and AOTAutograd makes it the mutation of the caller's tensor. The value
must be the same on all ranks: one that is sharded is gathered, one that is partial summed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from autosp.errors import MutationError
from autosp.graph import is_mutation, is_write, meta_of, output_node, source_location

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


def mutation_error(node: Node, written: str, hint: str) -> MutationError:
    where = source_location(node)
    return MutationError(
        f"the forward writes in place to {written} ({node.target})",
        where=f"{where.file}:{where.line}" if where else "",
        hint=hint,
    )


def _storage(value: torch.Tensor) -> Any:
    return value.untyped_storage()._cdata
