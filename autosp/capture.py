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
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_aggregate

from autosp.autocast_regions import AutocastInterpreter
from autosp.errors import AutoSPError, GraphBreakError, MutationError
from autosp.graph import attribute_path, is_mutation, is_user_file, source_location
from autosp.modes import restored_modes

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
    num_checkpoints: int = 0
    """Regions of ``torch.utils.checkpoint``: computed as if they were not checkpointed."""


def capture(module: GraphModule) -> CapturedProgram:
    """Trace a dynamo graph to the pre-dispatch level.

    Args:
        module: the graph that dynamo hands to a backend; its placeholders carry fakes.

    Raises:
        GraphBreakError: the graph is only a piece of the user's program.
        MutationError: an in-place operator that cannot be made functional.
        AutoSPError: a construct whose meaning the graph would not keep.
    """
    refuse_pieces(module)
    num_checkpoints = _check_higher_order(module)
    _refuse_reads(module)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    given = [node.meta["example_value"] for node in placeholders]
    fake_mode = _fake_mode_of(given)
    with torch._guards.tracing(None), fake_mode:
        fakes = [_static(value) for value in given]
    inputs = describe_inputs(module)
    program = _trace(module, fakes, fake_mode, functional=False)
    _name_inputs(program, inputs)
    mutations = tuple(_describe(node) for node in program.graph.nodes if is_mutation(node))
    if mutations:
        _refuse_writes_to_inputs(program)
        program = _trace(module, fakes, fake_mode, functional=True)
        _name_inputs(program, inputs)
        _refuse_mutations(program)
    _drop_assertions(program)
    program.graph.eliminate_dead_code()
    _refuse_unknown_shapes(program)
    _redo_values_under_autocast(program, fake_mode)
    return CapturedProgram(program, inputs, fake_mode, mutations, tuple(fakes), num_checkpoints)


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
    run: Any = _Inlining(module).run
    if functional:
        run = dispatch_functionalize(run, FunctionalTensorMode(pre_dispatch=True, export=True))
    # The backend's tracing context holds another fake mode than the placeholders: hide it.
    with torch._guards.tracing(None), fake_mode, fx_traceback.preserve_node_meta():
        traced: GraphModule = make_fx(run, DECOMPOSITIONS, pre_dispatch=True)(*fakes)
    return traced


CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint


class _Inlining(AutocastInterpreter):
    """Runs the body of a checkpointed region in place."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is CHECKPOINT:
            return _Inlining(args[0]).run(*args[1:])
        return super().call_function(target, args, kwargs)


def _check_higher_order(module: GraphModule) -> int:
    """Refuse operators that contain programs; returns the number of checkpointed regions.

    A custom ``autograd.Function`` is one: tracing would keep its forward and lose its
    backward.
    """
    num_checkpoints = 0
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            if node.target is CHECKPOINT:
                num_checkpoints += 1
            elif isinstance(node.target, HigherOrderOperator):
                name = str(node.target)
                raise AutoSPError(
                    HIGHER_ORDER.get(name, f"the forward uses the higher-order operator {name}"),
                    where=_where(node),
                    hint="The compiler cannot look inside: write it with ordinary operators",
                )
    return num_checkpoints


def _refuse_reads(module: GraphModule) -> None:
    """A number read from a tensor differs from rank to rank, and from step to step."""
    for node in module.graph.find_nodes(op="call_method", target="item"):
        raise AutoSPError(
            "the forward reads the value of a tensor (.item())",
            where=_where(node),
            hint="Compute with the tensor itself: it may be used where a number is",
        )


HIGHER_ORDER = {
    "autograd_function_apply": "the forward calls a custom torch.autograd.Function",
    "cond": "the forward branches on data (torch.cond)",
}
"""In the user's words."""


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """``aten.copy``, what ``x[...] = y`` becomes, has no derivative of its own."""
    del non_blocking
    return source.to(device=target.device, dtype=target.dtype).expand(target.shape)


DECOMPOSITIONS = {torch.ops.aten.copy.default: _copy}


def _where(node: Node) -> str:
    where = source_location(node)
    return f"{where.file}:{where.line}" if where else ""


def _drop_assertions(program: GraphModule) -> None:
    """What they assert of dtypes and devices holds: the fake values say so."""
    assertion = torch.ops.aten._assert_tensor_metadata.default
    for node in program.graph.find_nodes(op="call_function", target=assertion):
        program.graph.erase_node(node)


def _refuse_unknown_shapes(program: GraphModule) -> None:
    for node in program.graph.nodes:
        values = node.meta.get("val")
        for value in values if isinstance(values, (tuple, list)) else (values,):
            if isinstance(value, torch.Tensor) and not all(type(s) is int for s in value.shape):
                raise AutoSPError(
                    f"the shape of {node.target} depends on data",
                    where=_where(node),
                    hint="All shapes must be known when the program is compiled: use a mask "
                    "(torch.where, masked_fill) instead of selecting rows",
                )


def _redo_values_under_autocast(program: GraphModule, fake_mode: FakeTensorMode) -> None:
    """Tracing does not switch autocast on inside the program: recompute the fake values."""
    if not any(
        node.target is torch.amp.autocast_mode._enter_autocast for node in program.graph.nodes
    ):
        return
    with torch._guards.tracing(None), fake_mode, restored_modes(), torch.no_grad():
        for node in program.graph.nodes:
            if node.op != "call_function":
                continue
            args, kwargs = map_aggregate(
                (node.args, node.kwargs), lambda a: a.meta.get("val") if isinstance(a, Node) else a
            )
            node.meta["val"] = node.target(*args, **kwargs)


def _describe(node: Node) -> str:
    where = source_location(node)
    line = f" ({where.file}:{where.line})" if where else ""
    return f"{node.target}{line}"


def _refuse_writes_to_inputs(program: GraphModule) -> None:
    """Functionalisation would drop a write to a parameter, buffer or input."""
    owners: dict[Any, str] = {}
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op in ("placeholder", "get_attr") and isinstance(value, torch.Tensor):
            given = node.meta.get("autosp_input")
            owners[_storage(value)] = given.name if given else "a constant"
    for node in program.graph.nodes:
        if not is_mutation(node):
            continue
        for written in _written(node):
            if _storage(written.meta["val"]) in owners:
                raise _mutation_error(node, owners[_storage(written.meta["val"])])


def _storage(value: torch.Tensor) -> Any:
    return value.untyped_storage()._cdata


def _written(node: Node) -> list[Node]:
    """The arguments that an in-place operator writes to."""
    found: list[Node] = []
    for index, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
        given = given if isinstance(given, (tuple, list)) else [given]
        found.extend(item for item in given if isinstance(item, Node))
    return found


def _refuse_mutations(program: GraphModule) -> None:
    for node in program.graph.nodes:
        if is_mutation(node):
            written = node.args[0] if node.args else None
            raise _mutation_error(node, written.name if isinstance(written, Node) else "an input")


def _mutation_error(node: Node, written: str) -> MutationError:
    return MutationError(
        f"the forward writes in place to {written} ({node.target})",
        where=_where(node),
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
    if (
        "_parameters[" in raw_name
        or "_parameters'][" in raw_name
        or isinstance(example, torch.nn.Parameter)
    ):
        kind = "parameter"
    elif "_buffers[" in raw_name or "_buffers'][" in raw_name:
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
