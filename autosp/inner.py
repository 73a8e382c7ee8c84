"""Inner compilers: what turns our forward and backward graphs into callables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch._higher_order_ops.flex_attention import flex_attention_backward
from torch.fx import GraphModule
from torch.fx.graph import _BoxedCodeGen

from autosp.errors import AutoSPError
from autosp.graph import source_location

Compiled = Callable[..., Any]


class InnerCompiler(Protocol):
    """Compiles a graph that is already partitioned; never changes what it means."""

    name: str

    def decompositions(self) -> dict[Any, Callable[..., Any]]: ...

    def prepare_joint(self, joint: GraphModule) -> None: ...

    def compile_forward(self, module: GraphModule, inputs: Sequence[Any]) -> Compiled: ...

    def compile_backward(self, module: GraphModule, inputs: Sequence[Any]) -> Compiled: ...


class Eager:
    """Runs the ATen graphs operator by operator; arguments are freed at their last use."""

    name = "eager"

    def decompositions(self) -> dict[Any, Callable[..., Any]]:
        return {}

    def prepare_joint(self, joint: GraphModule) -> None:
        del joint

    def compile_forward(self, module: GraphModule, inputs: Sequence[Any]) -> Compiled:
        del inputs
        return boxed(module)

    def compile_backward(self, module: GraphModule, inputs: Sequence[Any]) -> Compiled:
        del inputs
        return boxed(module)


class Inductor:
    """torch's Inductor on each half. Needs a C++ compiler on CPU, Triton on a GPU."""

    name = "inductor"

    def decompositions(self) -> dict[Any, Callable[..., Any]]:
        from torch._inductor.decomposition import select_decomp_table

        return dict(select_decomp_table())

    def prepare_joint(self, joint: GraphModule) -> None:
        from torch._inductor.compile_fx import _recursive_joint_graph_passes

        _refuse_flex_attention_on_cpu(joint)
        _recursive_joint_graph_passes(joint)

    def compile_forward(self, module: GraphModule, inputs: Sequence[Any]) -> Compiled:
        return self._compile(module, inputs, is_backward=False)

    def compile_backward(self, module: GraphModule, inputs: Sequence[Any]) -> Compiled:
        return self._compile(module, inputs, is_backward=True)

    def _compile(
        self, module: GraphModule, inputs: Sequence[Any], *, is_backward: bool
    ) -> Compiled:
        from torch._inductor.compile_fx import compile_fx_inner
        from torch._inductor.virtualized import V

        _rename_inputs(module)
        with V.set_fake_mode(torch._guards.detect_fake_mode(inputs)):
            compiled: Compiled = compile_fx_inner(module, inputs, is_backward=is_backward)
        return compiled


def _refuse_flex_attention_on_cpu(joint: GraphModule) -> None:
    for node in joint.graph.find_nodes(op="call_function", target=flex_attention_backward):
        query: Any = node.args[0]
        if query.meta["val"].device.type == "cpu":
            where = source_location(node)
            raise AutoSPError(
                "inductor has no backward of flex_attention on a CPU",
                where=f"{where.file}:{where.line}" if where else "",
                hint='Compile with inner="eager", or train on a GPU',
            )


def _rename_inputs(module: GraphModule) -> None:
    """Inductor writes input names into its code, where a user's ``args`` or ``buf0`` collide."""
    for index, node in enumerate(module.graph.find_nodes(op="placeholder")):
        node._rename(f"graph_input_{index}")
        node.target = node.name


def boxed(module: GraphModule) -> Compiled:
    """The graph as Python code that takes one list and empties it."""
    module.graph.set_codegen(_BoxedCodeGen())
    module.recompile()
    forward = module.forward

    def run(arguments: list[Any]) -> Any:
        return forward(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def inner_compiler(name: str) -> InnerCompiler:
    """``eager`` (also ``aot_eager``) or ``inductor``.

    Raises:
        AutoSPError: an unknown name.
    """
    if name in ("eager", "aot_eager"):
        return Eager()
    if name == "inductor":
        return Inductor()
    raise AutoSPError(f"unknown inner compiler {name!r}", hint="Choose eager or inductor")
