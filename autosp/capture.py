"""From what dynamo hands to a backend to the pre-dispatch forward graph of the user's program.

Composite operators stay whole (``linear``, ``scaled_dot_product_attention``,
``cross_entropy_loss``), shapes are global, and every node carries the module and the
source line it was traced from.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from autosp.block_masks import drop_block_masks
from autosp.checkpoint_regions import CheckpointRegion
from autosp.dynamic_sizes import DynamicSizes, inline_sizes
from autosp.errors import AutoSPError, GraphBreakError
from autosp.events import SourceLocation
from autosp.flex_attention import attach_flex_attention
from autosp.graph import attribute_path, is_mutation, is_user_file, source_location
from autosp.inlining import (
    Found,
    Inlining,
    attach_backwards,
    check_nested,
    trace,
    where_of,
)
from autosp.modes import restored_modes
from autosp.placement import Shard
from autosp.promises import drop_promises
from autosp.runtime.gathered import GatheredOnUse, block_of
from autosp.torch_refusals import KEEP_ALL_ROWS, hint_for
from autosp.writes import (
    end_with_writes,
    leaves_stay_as_they_are,
    refuse_mutations,
    written_inputs,
)

InputKind = Literal["parameter", "buffer", "input"]


@dataclass(frozen=True, slots=True)
class GraphInput:
    """One input of the program, in calling order."""

    name: str
    """As the user writes it: ``layers.0.attn.q_proj.weight``, ``input_ids``."""
    kind: InputKind
    trainable: bool
    cut: Shard | None = None
    """How it arrives: as this rank's block of an earlier piece's output; None: whole."""
    is_computed: bool = False
    """Whether autograd knows where it comes from: an earlier piece, or code before the region."""


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
    checkpoints: tuple[CheckpointRegion, ...] = ()
    """Regions of ``torch.utils.checkpoint``, in program order."""
    writes: tuple[str, ...] = ()
    """Buffers and inputs that take a new value at the end of the program."""
    sizes: DynamicSizes = field(default_factory=DynamicSizes)
    """What stays dynamic; empty for a program of one length."""

    def lengths_in(self, inputs: Sequence[Any]) -> dict[Any, int]:
        """Length that stays dynamic -> what it is for these inputs."""
        return {
            fake.node.expr: int(given)
            for fake, given in zip(self.fake_inputs, inputs, strict=False)
            if isinstance(fake, torch.SymInt)
        }


def capture(module: GraphModule, *, allow_breaks: bool = False) -> CapturedProgram:
    """Trace a dynamo graph to the pre-dispatch level.

    Args:
        module: the graph that dynamo hands to a backend; its placeholders carry fakes.
        allow_breaks: take a piece of the user's program for a whole one.

    Raises:
        GraphBreakError: the graph is only a piece of the user's program.
        MutationError: an in-place operator that cannot be made functional.
        AutoSPError: a construct whose meaning the graph would not keep.
    """
    if not allow_breaks:
        refuse_pieces(module)
    inputs = describe_inputs(module)
    sizes = DynamicSizes.of(module, [given.name for given in inputs])
    if sizes and allow_breaks:
        raise sizes.refusal("pieces of a broken program serve one length each", "")
    drop_promises(module)
    drop_block_masks(module)
    check_nested(module)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    given = [node.meta["example_value"] for node in placeholders]
    fake_mode = _fake_mode_of(given)
    with torch._guards.tracing(None), fake_mode:
        fakes = [
            _of_its_own(_static(_whole(value), sizes), requires_grad=graph_input.trainable)
            for value, graph_input in zip(given, inputs, strict=True)
        ]
    program, found = _trace(module, fakes, fake_mode)
    _name_inputs(program, inputs)
    writes: tuple[str, ...] = ()
    mutations = tuple(_describe(node) for node in program.graph.nodes if is_mutation(node))
    if mutations:
        written = written_inputs(program)
        program, found = _trace(module, fakes, fake_mode, written=tuple(written))
        _name_inputs(program, inputs)
        writes = end_with_writes(program, written)
        refuse_mutations(program)
    attach_flex_attention(program, found.attentions)
    _tidy(program, fake_mode, sizes)
    for backward in attach_backwards(program, found.calls, fake_mode):
        _tidy(backward, fake_mode, sizes)
    return CapturedProgram(
        program, inputs, fake_mode, mutations, tuple(fakes), tuple(found.checkpoints), writes, sizes
    )


def _tidy(program: GraphModule, fake_mode: FakeTensorMode, sizes: DynamicSizes) -> None:
    _drop_assertions(program)
    program.graph.eliminate_dead_code()
    inline_sizes(program)
    _refuse_unknown_shapes(program, sizes)
    _refuse_unseen_values(program)
    _redo_values_under_autocast(program, fake_mode)


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """Why and where dynamo ended a piece of the user's program."""

    reason: str
    source: SourceLocation | None


def graph_break_after(module: GraphModule) -> GraphBreak | None:
    """The break at which this graph ends, or None: it ends with the user's program."""
    reason = getattr(module, "compile_subgraph_reason", None)
    if reason is None or not getattr(reason, "graph_break", False):
        return None
    source = None
    for frame in reversed(list(getattr(reason, "user_stack", []) or [])):
        source = SourceLocation(frame.filename, frame.lineno or 0, frame.name, frame.line or "")
        if is_user_file(frame.filename):
            break
    return GraphBreak(str(reason.reason).strip().splitlines()[0], source)


def refuse_pieces(module: GraphModule) -> None:
    """Raise if dynamo broke the user's program before or inside this graph."""
    found = graph_break_after(module)
    if found is None:
        return
    source = found.source
    raise GraphBreakError(
        f"graph break: {found.reason}",
        where=f"{source.file}:{source.line} in {source.function}" if source else "",
        hint="Remove the construct at this line or move it out of the model's forward; or "
        "compile each piece with --allow-breaks (allow_breaks=True)",
    )


def computes_from_nothing(module: GraphModule) -> bool:
    """Whether a graph has no tensor input: a piece that only makes tensors, for others to use."""
    given = (n.meta["example_value"] for n in module.graph.find_nodes(op="placeholder"))
    return not any(isinstance(value, torch.Tensor) for value in given)


def _fake_mode_of(values: Sequence[Any]) -> FakeTensorMode:
    for value in values:
        fake = block_of(value)
        if isinstance(fake, FakeTensor):
            return fake.fake_mode
    raise AutoSPError("the compiled region has no tensor input", hint="Compile the whole model")


def _whole(value: Any) -> Any:
    """The global tensor of a sharded output of an earlier piece; others as they are."""
    if not isinstance(value, GatheredOnUse):
        return value
    with torch.no_grad():
        whole = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    return whole.requires_grad_(value.local.requires_grad)


def _static(value: Any, dynamic: DynamicSizes) -> Any:
    """The same fake with its sizes pinned, but for those that stay dynamic.

    Asking a symbolic size for its number adds a guard to dynamo's, so that another length
    starts another compilation instead of running this one.
    """
    if isinstance(value, torch.SymInt):
        return value if dynamic.keeps(value) else int(value)
    if not isinstance(value, torch.Tensor):
        return value
    sizes, strides = list(value.shape), list(value.stride())
    if all(type(number) is int or dynamic.keeps(number) for number in (*sizes, *strides)):
        return value
    with torch.no_grad():
        pinned = torch.empty_strided(
            [size if dynamic.keeps(size) else int(size) for size in sizes],
            [stride if dynamic.keeps(stride) else int(stride) for stride in strides],
            dtype=value.dtype,
            device=value.device,
        )
    return pinned.requires_grad_(value.requires_grad)


def _trace(
    module: GraphModule,
    fakes: list[Any],
    fake_mode: FakeTensorMode,
    *,
    written: tuple[int, ...] | None = None,
) -> tuple[GraphModule, Found]:
    """The program, with what was nested in it.

    With ``written`` it is functional and returns, beside its results, the last values of
    the inputs at these positions.
    """
    found = Found()
    run: Any = Inlining(module, found).run

    def run_and_return_written(*inputs: Any) -> Any:
        results = run(*inputs)
        return results, [inputs[position] for position in written or ()]

    functional = written is not None
    with torch._guards.tracing(None), fake_mode:
        own = [_of_its_own(fake, requires_grad=_needs_gradient(fake)) for fake in fakes]
    with leaves_stay_as_they_are():
        function = run_and_return_written if functional else run
        traced = trace(function, own, fake_mode, functional=functional)
    return traced, found


def _needs_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _of_its_own(value: Any, *, requires_grad: bool) -> Any:
    """The same memory as another tensor: a traced write changes what autograd knows of it."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().requires_grad_(requires_grad)


def _drop_assertions(program: GraphModule) -> None:
    """What they assert of dtypes and devices holds: the fake values say so."""
    assertion = torch.ops.aten._assert_tensor_metadata.default
    for node in program.graph.find_nodes(op="call_function", target=assertion):
        program.graph.erase_node(node)


def _refuse_unknown_shapes(program: GraphModule, sizes: DynamicSizes) -> None:
    for node in program.graph.nodes:
        values = node.meta.get("val")
        for value in values if isinstance(values, (tuple, list)) else (values,):
            if isinstance(value, torch.Tensor) and not all(
                type(s) is int or sizes.keeps(s) for s in value.shape
            ):
                line = source_location(node)
                raise AutoSPError(
                    f"the shape of {node.target} depends on data",
                    where=where_of(node),
                    hint=hint_for(line.text if line else "", KEEP_ALL_ROWS),
                )


def _refuse_unseen_values(program: GraphModule) -> None:
    """A constant without contents was computed where the trace could not follow."""
    for node in program.graph.find_nodes(op="get_attr"):
        if isinstance(operator.attrgetter(node.target)(program), FakeTensor):
            reader = next(iter(node.users), node)
            raise AutoSPError(
                f"what {reader.target} reads is computed by an operator that the trace cannot "
                "follow (such as an associative scan)",
                where=where_of(reader),
                hint="Write it with ordinary operators",
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
    # Where the forward writes to an input, dynamo's own trace has changed the example.
    before = getattr(argument, "example", None)
    carrier = before if isinstance(before, torch.Tensor) else example
    trainable = _needs_gradient(block_of(carrier))
    kind: InputKind = "input"
    if (
        "_parameters[" in raw_name
        or "_parameters'][" in raw_name
        or isinstance(example, torch.nn.Parameter)
    ):
        kind = "parameter"
    elif "_buffers[" in raw_name or "_buffers'][" in raw_name:
        kind = "buffer"
    cut = example.cut if isinstance(example, GatheredOnUse) else None
    is_computed = isinstance(before, torch.Tensor) and not block_of(before).is_leaf
    name = attribute_path(raw_name) if kind != "input" else _user_argument(raw_name)
    return GraphInput(name, kind, trainable, cut, is_computed)


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
