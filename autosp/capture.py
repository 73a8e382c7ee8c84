"""From what dynamo hands to a backend to the pre-dispatch forward graph of the user's program.

Composite operators stay whole (``linear``, ``scaled_dot_product_attention``,
``cross_entropy_loss``), shapes are global, and every node carries the module and the
source line it was traced from.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.fx.traceback as fx_traceback
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx

from autosp.errors import AutoSPError, GraphBreakError, MutationError
from autosp.graph import attribute_path, is_mutation, is_user_file, source_location

InputKind = Literal["parameter", "buffer", "input"]


@dataclass(frozen=True, slots=True)
class GraphInput:
    """One input of the program, in calling order."""

    name: str
    """As the user writes it: ``layers.0.attn.q_proj.weight``, ``input_ids``."""
    kind: InputKind
    trainable: bool


@dataclass(frozen=True, slots=True)
class CapturedProgram:
    """The forward graph with its inputs; ``fake_mode`` owns every ``meta["val"]``."""

    program: GraphModule
    inputs: tuple[GraphInput, ...]
    fake_mode: FakeTensorMode
    mutations: tuple[str, ...]
    """In-place operators that were made functional."""
    fake_inputs: tuple[Any, ...] = ()
    """What dynamo traced with, in calling order; trainable ones require a gradient."""


def capture(module: GraphModule) -> CapturedProgram:
    """Trace a dynamo graph to the pre-dispatch level.

    Args:
        module: the graph that dynamo hands to a backend; its placeholders carry fakes.

    Raises:
        GraphBreakError: the graph is only a piece of the user's program.
        MutationError: an in-place operator that cannot be made functional.
    """
    refuse_pieces(module)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    given = [node.meta["example_value"] for node in placeholders]
    fake_mode = _fake_mode_of(given)
    with torch._guards.tracing(None), fake_mode:
        fakes = [_static(value) for value in given]
    program = _trace(module, fakes, fake_mode, functional=False)
    mutations = tuple(_describe(node) for node in program.graph.nodes if is_mutation(node))
    if mutations:
        program = _trace(module, fakes, fake_mode, functional=True)
        _refuse_mutations(program)
    inputs = describe_inputs(module)
    _name_inputs(program, inputs)
    program.graph.eliminate_dead_code()
    return CapturedProgram(program, inputs, fake_mode, mutations, tuple(fakes))


def refuse_pieces(module: GraphModule) -> None:
    """Raise if dynamo broke the user's program before or inside this graph."""
    reason = getattr(module, "compile_subgraph_reason", None)
    if reason is None or not getattr(reason, "graph_break", False):
        return
    where = ""
    for frame in reversed(list(getattr(reason, "user_stack", []) or [])):
        where = f"{frame.filename}:{frame.lineno} in {frame.name}"
        if is_user_file(frame.filename):
            break
    first_line = str(reason.reason).strip().splitlines()[0]
    raise GraphBreakError(
        f"graph break: {first_line}",
        where=where,
        hint="Sequence parallelism needs the whole forward as one graph: remove the construct "
        "at this line or move it out of the model's forward",
    )


def _fake_mode_of(values: Sequence[Any]) -> FakeTensorMode:
    for value in values:
        if isinstance(value, FakeTensor):
            return value.fake_mode
    raise AutoSPError("the compiled region has no tensor input", hint="Compile the whole model")


def _static(value: Any) -> Any:
    """The same fake with its sizes pinned: a compilation serves one set of shapes.

    Asking a symbolic size for its number adds a guard to dynamo's, so that another length
    starts another compilation instead of running this one.
    """
    if isinstance(value, torch.SymInt):
        return int(value)
    if not isinstance(value, torch.Tensor):
        return value
    sizes, strides = list(value.shape), list(value.stride())
    if all(type(number) is int for number in (*sizes, *strides)):
        return value
    with torch.no_grad():
        pinned = torch.empty_strided(
            [int(size) for size in sizes],
            [int(stride) for stride in strides],
            dtype=value.dtype,
            device=value.device,
        )
    return pinned.requires_grad_(value.requires_grad)


def _trace(
    module: GraphModule, fakes: list[Any], fake_mode: FakeTensorMode, *, functional: bool
) -> GraphModule:
    run: Any = Interpreter(module).run
    if functional:
        run = dispatch_functionalize(run, FunctionalTensorMode(pre_dispatch=True, export=True))
    # The backend's tracing context holds another fake mode than the placeholders: hide it.
    with torch._guards.tracing(None), fake_mode, fx_traceback.preserve_node_meta():
        traced: GraphModule = make_fx(run, pre_dispatch=True)(*fakes)
    return traced


def _describe(node: Node) -> str:
    where = source_location(node)
    line = f" ({where.file}:{where.line})" if where else ""
    return f"{node.target}{line}"


def _refuse_mutations(program: GraphModule) -> None:
    for node in program.graph.nodes:
        if not is_mutation(node):
            continue
        where = source_location(node)
        written = node.args[0] if node.args else None
        target = written.name if isinstance(written, Node) else "an input"
        raise MutationError(
            f"the forward writes in place to {target} ({node.target})",
            where=f"{where.file}:{where.line}" if where else "",
            hint="An input, parameter or buffer changed inside the forward cannot be kept equal "
            "on all ranks: compute a new tensor instead",
        )


def describe_inputs(module: GraphModule) -> tuple[GraphInput, ...]:
    """Names and kinds of a dynamo graph's inputs, kept on its placeholders.

    Dynamo forgets where an input comes from once its backend has returned.
    """
    inputs: list[GraphInput] = []
    for node in module.graph.find_nodes(op="placeholder"):
        known = node.meta.get("autosp_input")
        given = known if isinstance(known, GraphInput) else _graph_input(node)
        node.meta["autosp_input"] = given
        inputs.append(given)
    return tuple(inputs)


def _graph_input(node: Node) -> GraphInput:
    example = node.meta["example_value"]
    argument = node.meta.get("grapharg")
    source = getattr(argument, "source", None)
    raw_name = getattr(source, "name", None)
    raw_name = raw_name() if callable(raw_name) else raw_name
    raw_name = raw_name if isinstance(raw_name, str) else node.name
    trainable = isinstance(example, torch.Tensor) and example.requires_grad
    kind: InputKind = "input"
    if "_parameters[" in raw_name or isinstance(example, torch.nn.Parameter):
        kind = "parameter"
    elif "_buffers[" in raw_name:
        kind = "buffer"
    name = attribute_path(raw_name) if kind != "input" else _user_argument(raw_name)
    return GraphInput(name, kind, trainable)


_LAST_KEY = re.compile(r"\['([^']+)'\](?:\[\d+\])*$")


def _user_argument(raw_name: str) -> str:
    """``L['kwargs']['input_ids']`` -> ``input_ids``."""
    match = _LAST_KEY.search(raw_name)
    return match.group(1) if match else raw_name


def _name_inputs(program: GraphModule, inputs: tuple[GraphInput, ...]) -> None:
    """Give the placeholders names and targets that a user recognises."""
    placeholders = program.graph.find_nodes(op="placeholder")
    for node, graph_input in zip(placeholders, inputs, strict=True):
        node._rename(re.sub(r"\W", "_", graph_input.name))
        node.target = node.name
        node.meta["autosp_input"] = graph_input
