"""One compilation: per-rank program -> joint graph -> forward and backward.

Our backend owns AOTAutograd and the partition; an inner compiler receives *our* forward
and backward graphs and never partitions again. What is recorded here is what runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Literal, cast

from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch.fx import GraphModule, Node
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.utils._pytree import tree_leaves

from autosp.capture import GraphInput
from autosp.checkpoint_regions import no_states_of_unused_generators, tag_regions
from autosp.checkpoint_report import decide_regions
from autosp.collective_order import collectives_stay_apart, keep_ring_in_backward
from autosp.cost.step import CompiledStep
from autosp.derived_placements import label_placements
from autosp.events import GraphSnapshot
from autosp.graph import is_view, is_write, node_bytes, output_node
from autosp.inner import InnerCompiler
from autosp.lowering import RankCompilation
from autosp.records import (
    snapshot_derived,
)
from autosp.writes import drop_unread_copies, keep_old_values

PartitionerName = Literal["min-cut", "default"]
PARTITIONERS: dict[str, Callable[..., tuple[GraphModule, GraphModule]]] = {
    "min-cut": min_cut_rematerialization_partition,
    "default": default_partition,
}

GRADIENT_CONVENTION = (
    "mean over the SP group: average gradients over all ranks (as DDP and ZeRO do); a "
    "replicated output takes each rank's full cotangent, a sharded one its block times P"
)


def unprinted_graphs() -> AbstractContextManager[None]:
    """Graph modules made inside write their Python code when it is first needed.

    Passes only look at graphs; writing code for each costs a tenth of a compilation.
    """
    return _use_lazy_graph_module(True)


@contextmanager
def _constant_floats() -> Iterator[None]:
    """Floats of a model (soft caps, scales) stay constants.

    Otherwise AOTAutograd may ask dynamo to start again, which a dry run has left by then.
    """
    name = "TENSORIFY_PYTHON_SCALARS"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class _GraphsDerived(Exception):
    """Leaves AOTAutograd when the graphs are there and nothing is to be compiled."""


def derive_graphs(
    compilation: RankCompilation, example_inputs: Sequence[Any], *, partitioner: str
) -> None:
    """Run AOTAutograd on the per-rank program as far as ``compilation.graphs``, which it fills."""
    with suppress(_GraphsDerived), _constant_floats():
        compile_graphs(compilation, example_inputs, inner=None, partitioner=partitioner)


def compile_graphs(
    compilation: RankCompilation,
    example_inputs: Sequence[Any],
    *,
    inner: InnerCompiler | None,
    partitioner: str,
    derived: Callable[[], None] = lambda: None,
) -> Callable[..., Any]:
    """Run AOTAutograd on the per-rank program and compile its two halves.

    ``derived`` is called once, when the graphs are there and nothing is compiled yet.

    Returns the callable over flat inputs. The graphs are kept in ``compilation.graphs``.
    """
    context, graphs = compilation.context, compilation.graphs
    joint_pass = context.running("joint", "derive the backward: one joint graph", {})
    state = _PassState(joint_pass)

    def partition(
        joint: GraphModule, joint_inputs: Sequence[Any], **options: Any
    ) -> tuple[GraphModule, GraphModule]:
        graphs.joint = joint
        _label(compilation, joint)
        _snapshot(compilation, "joint", joint, state.index)
        state.close()
        description = "split the joint graph: what is saved, what is recomputed"
        with context.running("partition", description, {"partitioner": partitioner}) as index:
            if inner is not None:
                inner.prepare_joint(joint)
            tag_regions(joint, compilation.captured.checkpoints)
            keep_ring_in_backward(joint)
            copies = keep_old_values(joint, _written_inputs(compilation, joint))
            with no_states_of_unused_generators(), collectives_stay_apart():
                forward, backward = PARTITIONERS[partitioner](joint, joint_inputs, **options)
            drop_unread_copies(forward, copies)
            # The default partitioner leaves a dead copy of the forward in the backward.
            if backward.graph.eliminate_dead_code():
                backward.recompile()
            graphs.num_forward_outputs = int(options["num_fwd_outputs"])
            graphs.forward, graphs.backward = forward, backward
            _name_inputs(compilation)
            _record_partition(compilation, index)
        if inner is None:
            raise _GraphsDerived
        derived()
        return forward, backward

    def inference(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.forward, graphs.backward = module, None
        graphs.num_forward_outputs = len(tree_leaves(output_node(module.graph).args[0]))
        _label(compilation, module)
        _snapshot(compilation, "forward", module, state.index)
        state.close()
        if inner is None:
            raise _GraphsDerived
        derived()
        return inner.compile_forward(module, inputs)

    def compile_half(module: GraphModule, inputs: Sequence[Any], *, is_backward: bool) -> Any:
        assert inner is not None, "a dry run ends with the partition"
        compile_it = inner.compile_backward if is_backward else inner.compile_forward
        return compile_it(module, inputs)

    with state:
        compiled: Callable[..., Any] = aot_module_simplified(
            compilation.sharded.program,
            example_inputs,
            fw_compiler=cast(Any, partial(compile_half, is_backward=False)),
            bw_compiler=cast(Any, partial(compile_half, is_backward=True)),
            inference_compiler=cast(Any, inference),
            partition_fn=partition,
            decompositions={} if inner is None else inner.decompositions(),
            keep_inference_input_mutations=True,
        )
    context.sizes.check("the inner compiler")
    return compiled


def _written_inputs(compilation: RankCompilation, joint: GraphModule) -> list[Node]:
    """The placeholders of the joint graph to which the program writes."""
    given = compilation.sharded.program.graph.find_nodes(op="placeholder")
    placeholders = joint.graph.find_nodes(op="placeholder")
    primals = [node for node in placeholders if not node.name.startswith("tangents")]
    own = primals[len(primals) - len(given) :]  # constants of the program come first
    return [n for n, g in zip(own, given, strict=True) if any(is_write(u) for u in g.users)]


class _PassState:
    """A pass that begins here and ends inside a callback of torch."""

    def __init__(self, running: Any) -> None:
        self._running = running
        self._open = False
        self.index = -1

    def __enter__(self) -> None:
        self.index = self._running.__enter__()
        self._open = True

    def __exit__(self, *details: Any) -> bool | None:
        if not self._open:
            return None
        self._open = False
        result: bool | None = self._running.__exit__(*details)
        return result

    def close(self) -> None:
        self.__exit__(None, None, None)


def _label(compilation: RankCompilation, derived: GraphModule) -> None:
    """Placements are for observers; the partition carries them on to its two graphs."""
    if compilation.context.wants_graphs:
        label_placements(derived, compilation.sharded.program, compilation.view.num_ranks)


def _snapshot(compilation: RankCompilation, name: Any, module: GraphModule, index: int) -> None:
    context = compilation.context
    context.snapshot(lambda: snapshot_derived(name, module, compilation.view, index))


def _name_inputs(compilation: RankCompilation) -> None:
    """Parameters and inputs of both halves get the names of the user's program."""
    graphs = compilation.graphs
    assert graphs.forward is not None and graphs.backward is not None
    program_inputs = compilation.sharded.program.graph.find_nodes(op="placeholder")
    backward_inputs = {n.name: n for n in graphs.backward.graph.find_nodes(op="placeholder")}
    forward_inputs = graphs.forward.graph.find_nodes(op="placeholder")
    forward_inputs = forward_inputs[len(_lifted_constants(compilation)) :]
    for given, node in zip(program_inputs, forward_inputs, strict=True):
        twin = backward_inputs.get(node.name)
        for renamed in (node,) if twin is None else (node, twin):
            renamed._rename(given.name)
            renamed.target = renamed.name
            renamed.meta["autosp_input"] = given.meta.get("autosp_input")


def _lifted_constants(compilation: RankCompilation) -> list[Node]:
    """Constants of the program, which AOTAutograd makes inputs before the others."""
    assert compilation.graphs.forward is not None
    placeholders = compilation.graphs.forward.graph.find_nodes(op="placeholder")
    return placeholders[: len(placeholders) - len(compilation.captured.inputs)]


def _record_partition(compilation: RankCompilation, index: int) -> None:
    context, graphs, view = compilation.context, compilation.graphs, compilation.view
    assert graphs.forward is not None and graphs.backward is not None
    saved = saved_tensors(graphs.forward, graphs.num_forward_outputs)
    recomputed = recomputed_nodes(graphs.forward, graphs.backward)
    saved_bytes = sum(node_bytes(node) for node in saved if node.op != "placeholder")
    context.decide(
        "applied",
        "saved-tensors",
        "",
        f"{len(saved)} tensors saved ({saved_bytes / 2**20:.1f} MiB without inputs), "
        f"{len(recomputed)} operators recomputed in the backward",
        "the partition that moves the fewest bytes",
        rule="compilation.partition",
    )
    decide_regions(compilation.captured.checkpoints, graphs.backward, recomputed, context)
    names = frozenset(node.name for node in saved)

    def build(name: Any, module: GraphModule, again: frozenset[str]) -> GraphSnapshot:
        return snapshot_derived(name, module, view, index, saved=names, recomputed=again)

    forward, backward = graphs.forward, graphs.backward
    context.snapshot(lambda: build("forward", forward, frozenset()))
    context.snapshot(lambda: build("backward", backward, recomputed))


def saved_tensors(forward: GraphModule, num_outputs: int) -> list[Node]:
    """The nodes that the forward keeps for the backward."""
    returned = tree_leaves(output_node(forward.graph).args[0])
    return [node for node in returned[num_outputs:] if isinstance(node, Node)]


def recomputed_nodes(forward: GraphModule, backward: GraphModule) -> frozenset[str]:
    """Nodes of the backward that compute again what the forward did (same name; views are free)."""
    computed = {node.name for node in forward.graph.nodes if node.op == "call_function"}
    return frozenset(
        node.name
        for node in backward.graph.nodes
        if node.op == "call_function" and node.name in computed and not is_view(node)
    )


def compiled_step(compilation: RankCompilation) -> CompiledStep:
    """The step as the estimates read it."""
    graphs = compilation.graphs
    assert graphs.forward is not None, "derive_graphs has not run"
    lifted = (GraphInput(n.name, "buffer", False) for n in _lifted_constants(compilation))
    inputs = (*lifted, *compilation.captured.inputs)
    return CompiledStep(
        forward=graphs.forward,
        backward=graphs.backward,
        input_kinds=tuple(i.kind for i in inputs),
        input_names=tuple(i.name for i in inputs),
        trainable=tuple(i.trainable for i in inputs),
        num_forward_outputs=graphs.num_forward_outputs,
    )
