"""Runs what dynamo nests in a program, as a trace is to see it.

Bodies of checkpointed regions are inlined; their nodes know the region. Bodies of custom
``autograd.Function`` forwards are inlined on detached inputs, and the backward becomes a
program of its own (:mod:`autosp.custom_gradients`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import Tensor
from torch._functorch.autograd_function import autograd_function_apply
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx

from autosp.autocast_regions import AutocastInterpreter
from autosp.checkpoint_regions import CHECKPOINT, CheckpointRegion, region_of
from autosp.custom_gradients import CustomGradient
from autosp.errors import AutoSPError
from autosp.flex_attention import COUNTED_KEY, FLEX_ATTENTION, FlexAttention, stand_in
from autosp.graph import REGION_KEY, is_mutation, source_location

LIBRARY = torch.library.Library("autosp", "FRAGMENT")  # type: ignore[no-untyped-call]
"""Owns the definition of :data:`BOUNDARY`."""

LIBRARY.define(  # type: ignore[no-untyped-call]
    "function_call(Tensor[] values, Tensor[] saved, Tensor[] inputs, int call) -> Tensor[]"
)


def _results(
    values: list[Tensor], saved: list[Tensor], inputs: list[Tensor], call: int
) -> list[Tensor]:
    del saved, inputs, call
    return [torch.empty_like(value) for value in values]


torch.library.register_fake("autosp::function_call", _results, lib=LIBRARY)

BOUNDARY = torch.ops.autosp.function_call.default
"""Stands for a :class:`CustomGradient` while a program is traced; ``call`` counts the calls."""


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """``aten.copy``, what ``x[...] = y`` becomes, has no derivative of its own."""
    del non_blocking
    return source.to(device=target.device, dtype=target.dtype).expand(target.shape)


DECOMPOSITIONS = {torch.ops.aten.copy.default: _copy}


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a custom function that was traced."""

    backward: GraphModule
    """Dynamo's: cotangents of all outputs, then all that was saved -> gradients of all inputs."""
    saved: tuple[Any, ...]
    """Constants that the backward takes; None where it takes a tensor."""
    takes_tensor: tuple[bool, ...]
    """Per argument of the function."""
    differentiable: tuple[bool, ...]
    """Per output."""


@dataclass(slots=True)
class Found:
    """What was met on the way."""

    checkpoints: list[CheckpointRegion] = field(default_factory=list)
    calls: list[FunctionCall] = field(default_factory=list)
    attentions: list[FlexAttention] = field(default_factory=list)


class Inlining(AutocastInterpreter):
    """Interprets a dynamo graph with everything that is nested in it."""

    def __init__(
        self,
        module: GraphModule,
        found: Found,
        *,
        region: CheckpointRegion | None = None,
        in_function: bool = False,
    ) -> None:
        super().__init__(module)
        self._found, self._region, self._in_function = found, region, in_function
        self._node: Node

    def run_node(self, n: Node) -> Any:
        self._node = n
        if self._region is not None:
            n.meta[REGION_KEY] = self._region.identity
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is CHECKPOINT:
            return self._run_inside(args[0], args[1:], region=self._entered(args[0]))
        if target is autograd_function_apply:
            return self._custom_function(*args, **kwargs)
        if target is FLEX_ATTENTION:
            is_counted = COUNTED_KEY in self._node.meta
            return stand_in(self._found.attentions, where_of(self._node), is_counted, *args)
        if self._in_function and target is torch._C._set_grad_enabled:
            return None  # its inputs are detached: nothing in it has a history
        return super().call_function(target, args, kwargs)

    def _run_inside(self, body: GraphModule, args: Sequence[Any], **options: Any) -> Any:
        kept: dict[str, Any] = {"region": self._region, "in_function": self._in_function}
        nested = Inlining(body, self._found, **{**kept, **options})
        return Interpreter.run(nested, *args)  # whoever runs the whole restores the modes

    def _entered(self, body: GraphModule) -> CheckpointRegion:
        if self._region is None:
            where = next((line for n in body.graph.nodes if (line := where_of(n))), "")
            checkpoints = self._found.checkpoints
            checkpoints.append(region_of(len(checkpoints) + 1, body, where))
        return self._region or self._found.checkpoints[-1]

    def _custom_function(
        self,
        forward: GraphModule,
        backward: GraphModule,
        *given: Any,
        non_differentiable_idx: Sequence[int],
        **_: Any,
    ) -> Any:
        detached = [g.detach() if isinstance(g, Tensor) else g for g in given]
        results, saved = self._run_inside(forward, detached, in_function=True)
        if self._in_function:  # a function that calls another has a backward for both
            return results
        values = list(results) if isinstance(results, (tuple, list)) else [results]
        call = FunctionCall(
            backward,
            tuple(None if isinstance(s, Tensor) else s for s in saved),
            tuple(isinstance(g, Tensor) for g in given),
            tuple(
                value.is_floating_point() and index not in non_differentiable_idx
                for index, value in enumerate(values)
            ),
        )
        self._found.calls.append(call)
        tensors = ([x for x in group if isinstance(x, Tensor)] for group in (saved, given))
        made = BOUNDARY(values, *tensors, len(self._found.calls) - 1)
        return made if isinstance(results, (tuple, list)) else made[0]


def trace(
    run: Callable[..., Any], inputs: Sequence[Any], fake_mode: FakeTensorMode, *, functional: bool
) -> GraphModule:
    """The pre-dispatch graph of a function of these fakes."""
    if functional:
        run = dispatch_functionalize(run, FunctionalTensorMode(pre_dispatch=True, export=True))
    # The backend's tracing context holds another fake mode than the inputs: hide it.
    with torch._guards.tracing(None), fake_mode, fx_traceback.preserve_node_meta():
        traced: GraphModule = make_fx(run, DECOMPOSITIONS, pre_dispatch=True)(*inputs)
    return traced


def attach_backwards(
    program: GraphModule, calls: Sequence[FunctionCall], fake_mode: FakeTensorMode
) -> list[GraphModule]:
    """Give every call of a custom function in a traced program its backward; returns these."""
    backwards = []
    for node in program.graph.find_nodes(op="call_function", target=BOUNDARY):
        values, saved, inputs, index = node.args
        call = calls[index]
        tensors = ([n.meta["val"] for n in group] for group in (values, saved, inputs))
        backwards.append(_backward_program(call, fake_mode, *tensors))
        target = CustomGradient(backwards[-1], call.differentiable)
        with program.graph.inserting_before(node):
            made = program.graph.call_function(target, (values, saved, inputs))
        made.meta = node.meta
        node.replace_all_uses_with(made)
        program.graph.erase_node(node)
    program.recompile()
    return backwards


def _backward_program(
    call: FunctionCall,
    fake_mode: FakeTensorMode,
    values: Sequence[Tensor],
    saved: Sequence[Tensor],
    inputs: Sequence[Tensor],
) -> GraphModule:
    def run(*given: Tensor) -> list[Tensor | None]:
        cotangents, tensors = given[: len(values)], iter(given[len(values) :])
        everything = [next(tensors) if constant is None else constant for constant in call.saved]
        body = Inlining(call.backward, Found(), in_function=True)
        gradients = Interpreter.run(body, *cotangents, *everything)
        taken = zip(gradients, call.takes_tensor, strict=True)
        of_tensors = [gradient for gradient, is_tensor in taken if is_tensor]
        return [_fitting(*pair) for pair in zip(of_tensors, inputs, strict=True)]

    with torch._guards.tracing(None), fake_mode:
        fakes = [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
            for t in (*values, *saved)
        ]
    program = trace(run, fakes, fake_mode, functional=False)
    if any(is_mutation(node) for node in program.graph.nodes):
        program = trace(run, fakes, fake_mode, functional=True)
    return program


def _fitting(gradient: Tensor | None, of: Tensor) -> Tensor | None:
    """As autograd takes it: summed over broadcast dims, and of the type of the input."""
    if gradient is None or not of.is_floating_point():
        return None
    if gradient.shape != of.shape:
        gradient = gradient.sum_to_size(of.shape)
    return gradient if gradient.dtype == of.dtype else gradient.to(of.dtype)


HIGHER_ORDER = {"cond": "the forward branches on data (torch.cond)"}
"""In the user's words."""


def check_nested(module: GraphModule) -> None:
    """Refuse operators that contain programs, but for those that are understood.

    Raises:
        AutoSPError: a branch on data, a number read from a tensor, a custom function that
            writes to its input ...
    """
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            if node.target is autograd_function_apply and node.kwargs.get("dirty_idx"):
                raise AutoSPError(
                    "a custom torch.autograd.Function writes to its input (ctx.mark_dirty)",
                    where=where_of(node),
                    hint="Let its forward return a new tensor",
                )
            understood = (CHECKPOINT, autograd_function_apply, FLEX_ATTENTION)
            if isinstance(node.target, HigherOrderOperator) and node.target not in understood:
                name = str(node.target)
                raise AutoSPError(
                    HIGHER_ORDER.get(name, f"the forward uses the higher-order operator {name}"),
                    where=where_of(node),
                    hint="The compiler cannot look inside: write it with ordinary operators",
                )
            if node.op == "call_method" and node.target == "item":
                # A number read from a tensor differs from rank to rank, and from step to step.
                raise AutoSPError(
                    "the forward reads the value of a tensor (.item())",
                    where=where_of(node),
                    hint="Compute with the tensor itself: it may be used where a number is",
                )


def where_of(node: Node) -> str:
    """``file:line`` of a node in the user's program, or nothing."""
    where = source_location(node)
    return f"{where.file}:{where.line}" if where else ""
