"""One forward walk: assigns a placement to every node and emits the per-rank program.

Integers stay replicated until they meet a sharded operand (*lazy slicing*), so label
shifts, positions and masks need no rules and shard edges are right by construction. After
each rule the emitted local shape is compared with ``global shape + placement``.
"""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate

from autosp.capture import GraphInput
from autosp.custom_gradients import is_custom_gradient
from autosp.dynamic_sizes import where_of
from autosp.errors import VerificationError
from autosp.flex_attention import is_flex_attention
from autosp.graph import (
    TAG_KEY,
    LocalTag,
    shape_of,
    tensor_of,
)
from autosp.modes import restored_modes
from autosp.pipeline import PassContext
from autosp.placement import REPLICATE, Partial, Placement, Shard, local_shape
from autosp.runtime.keyed_random import AGREE
from autosp.sharding import custom_functions
from autosp.sharding.attention_plan import plan_attention
from autosp.sharding.builder import ProgramBuilder, Value
from autosp.sharding.custom_functions import Backward
from autosp.sharding.gathering import cut_again, gathered, report_gathered
from autosp.sharding.layout import with_users_layout
from autosp.sharding.moves import Moves, is_whole
from autosp.sharding.operation import CannotRedistribute, NoRule, Operation
from autosp.sharding.randomness import refuse_randomness
from autosp.sharding.rank_program import ShardedProgram, finished, places
from autosp.sharding.redistribute import redistribute
from autosp.sharding.rules import rule_for, rule_name
from autosp.sharding.seeds import (
    Seed,
    SequenceOrigins,
    announce,
    attention_sites,
    find_origins,
    has_attention,
    sequence_cut,
)
from autosp.sharding.token_regions import LocalRegions
from autosp.sharding.trace_dim import TracedDim
from autosp.sizes import same_shape

aten = torch.ops.aten


def shard(program: GraphModule, context: PassContext) -> ShardedProgram:
    """Rewrite the user's program for one rank of the SP group.

    Raises:
        ShardingError: nothing can be sharded, or the heads do not fit the degree.
        RandomnessError: an operator draws random numbers.
        VerificationError: a rule broke the contract of placements and shapes.
    """
    return _Walk(program, context).run()


class _Walk:
    def __init__(
        self, program: GraphModule, context: PassContext, backward: Backward | None = None
    ) -> None:
        self._program = program
        self._context = context
        self._backward = backward
        """Set where the program is the backward of a custom function."""
        self._graph = Graph()
        self._builder = ProgramBuilder(
            self._graph,
            context.mesh,
            context.group_name,
            context.padding_fill,
            plan_attention(program.graph, context.attention, context.mesh.sp),
        )
        self._values: dict[Node, Any] = {}
        self._moves = Moves(self._builder, self._values, self._decide, self._check)
        self._redistribute = self._moves.redistribute
        self._fallbacks: Counter[str] = Counter()
        self._output_placements: tuple[Placement | None, ...] = ()
        self._output_shapes: tuple[tuple[int, ...] | None, ...] = ()
        self._why = ""
        """Why the value that is being made lies as it does."""
        self._gathered: set[Node] = set()
        """Nodes that took the all-gather path."""
        if backward is not None:
            backward.enter_sizes(self._builder)
        self._regions = LocalRegions.of(program.graph)
        # One rank holds everything: no seeds, so that every value stays whole.
        origins = self._find_origins() if context.mesh.sp > 1 and backward is None else None
        self._seeds = {seed.node: seed for seed in origins.seeds} if origins else {}
        self._carriers = origins.carriers if origins else {}
        """Nodes between the seeds and the queries: cut again if they became whole."""

    def _find_origins(self) -> SequenceOrigins | None:
        if self._context.allow_breaks and not has_attention(self._program.graph):
            self._decide(
                "analysis", "seed", "", "nothing is cut in this piece",
                "a piece of a broken program without attention: its inputs stay as they come",
                rule="propagate",
            )  # fmt: skip
            return None
        return find_origins(self._program.graph)

    def _cut(self, along: TracedDim) -> Shard:
        return sequence_cut(along, self._context.mesh.sp, self._builder.attention.order)

    def run(self) -> ShardedProgram:
        for seed in self._seeds.values():
            announce(seed, self._cut(seed.along), self._decide)
        placeholders_done = False
        with restored_modes():
            for node in self._program.graph.nodes:
                if node.op != "placeholder" and not placeholders_done:
                    self._cut_floating_inputs()
                    placeholders_done = True
                with self._builder.on_behalf_of(node):
                    if self._context.sizes:
                        self._visit_at_any_length(node)
                    else:
                        self._visit(node)
        return self._finish()

    # ------------------------------------------------------------------ nodes

    def _visit(self, node: Node) -> None:
        match node.op:
            case "placeholder":
                self._values[node] = self._placeholder(node)
            case "get_attr":
                self._values[node] = self._attribute(node)
            case "call_function":
                self._values[node] = self._call(node)
            case "output":
                self._output(node)
            case _:
                raise VerificationError(f"unexpected {node.op} node {node.name} in the program")

    def _visit_at_any_length(self, node: Node) -> None:
        """Like :meth:`_visit`, of a program whose sizes stay dynamic.

        Raises:
            AutoSPError: the operator ties the program to one length.
        """
        sizes, where = self._context.sizes, where_of(node)
        try:
            self._visit(node)
        except (TypeError, ValueError, NotImplementedError) as error:
            why = str(error).strip().partition("\n")[0]
            raise sizes.refusal(f"{node.target} takes numbers alone ({why})", where) from error
        except (AssertionError, VerificationError) as error:
            why = f"torch cannot tell which sizes of the inputs of {node.target} are equal"
            raise sizes.refusal(why, where) from error
        sizes.check(str(node.target), where)

    def _placeholder(self, node: Node) -> Value | Node:
        local = self._graph.placeholder(node.name)
        local.meta.update(node.meta)
        tensor = tensor_of(node)
        if tensor is None:
            if isinstance(local.meta.get("val"), torch.SymInt):
                self._builder.input_size(local)
            return local
        if self._backward is not None:
            return self._backward.enter(local, shape_of(node), self._builder)
        shape, given = shape_of(node), node.meta.get("autosp_input")
        cut = given.cut if isinstance(given, GraphInput) else None
        if cut is not None:
            block = local_shape(shape, cut, self._context.mesh.sp)
            local.meta["val"] = tensor.new_empty(block).requires_grad_(tensor.requires_grad)
        placement = REPLICATE if cut is None else cut
        local.meta[TAG_KEY] = LocalTag(node.name, "input", placement, shape, True)
        return Value(local, placement, shape)

    def _attribute(self, node: Node) -> Value | Node:
        assert isinstance(node.target, str)
        local = self._graph.get_attr(node.target)
        local.meta.update(node.meta)
        if "val" not in local.meta:
            attribute = operator.attrgetter(node.target)(self._program)
            local.meta["val"] = attribute
        if not isinstance(local.meta["val"], torch.Tensor):
            return local
        shape = tuple(local.meta["val"].shape)
        local.meta[TAG_KEY] = LocalTag(node.name, "constant", REPLICATE, shape, True)
        return Value(local, REPLICATE, shape)

    def _call(self, node: Node) -> Any:
        self._why = ""
        args: Any = map_aggregate(node.args, self._lookup)
        kwargs: Any = map_aggregate(node.kwargs, self._lookup)
        if node.target is operator.getitem:
            return self._begin(node, args[0][args[1]])
        operation = Operation(node, args, kwargs, self._builder, self._redistribute, self._decide)
        if is_custom_gradient(node.target):
            return custom_functions.emit(operation, self._shard_backward)
        if not (isinstance(node.target, torch._ops.OpOverload) or is_flex_attention(node.target)):
            # A switch of grad mode or autocast: copied, and executed for the nodes after it.
            return self._builder.emit(node.target, *_nodes(args), **_nodes(kwargs))
        if self._context.mesh.sp > 1:
            refuse_randomness(operation)
        if self._regions.begin_or_go_on(operation, self._values):
            rows = self._regions.emit(operation)
            self._check(node, rows)
            return rows
        if node in self._seeds and node.target is aten.embedding.default:
            operation = self._seeded(operation, self._seeds[node])
        is_whole = all(value.placement == REPLICATE for value in operation.values())
        if is_whole and operation.target is not AGREE:
            result = self._replicated(operation)
        else:
            result = self._sharded(operation)
        self._check(node, result)
        return self._begin(node, result)

    def _begin(self, node: Node, result: Any) -> Any:
        """Cut a whole value where the sequence begins, or where a fallback made it whole."""
        producer = node.args[0] if node.target is operator.getitem else node
        along = self._carriers.get(node) if producer in self._gathered else None
        if node in self._seeds:
            along = self._seeds[node].along
        if along is None or not is_whole(result):
            return result
        cut = self._cut(along)
        reason = "the sequence begins here" if node in self._seeds else "the sequence goes on"
        moved = redistribute(self._builder, result, cut, reason=reason)
        self._decide(
            "applied", "redistribute", node.name, f"{REPLICATE} -> {cut} of {result.node.name}",
            reason, rule="redistribute",
        )  # fmt: skip
        self._check(node, moved)
        return moved

    def _lookup(self, argument: Any) -> Any:
        return self._values[argument] if isinstance(argument, Node) else argument

    def _seeded(self, operation: Operation, seed: Seed) -> Operation:
        """Cut the indices of a lookup where the sequence begins."""
        table, indices = operation.args[:2]
        cut = self._cut(seed.along)
        moved = self._redistribute(indices, cut, "the sequence begins here", None)
        return replace(operation, args=(table, moved, *operation.args[2:]))

    def _replicated(self, operation: Operation) -> Any:
        """All inputs whole: the operator runs as it is, on every rank."""
        self._why = self._why or "its inputs are whole"
        node = with_users_layout(operation).same()
        value = operation.node.meta.get("val")
        if isinstance(value, torch.Tensor):
            self._moves.computed_whole(node, operation.node, value.device.type)
            return operation.result(node, REPLICATE)
        if isinstance(value, (tuple, list)):
            return operation.results(node, [REPLICATE] * len(value))
        return node

    def _sharded(self, operation: Operation) -> Any:
        rule = rule_for(operation.target)
        try:
            if rule is None:
                raise NoRule("no rule for this operator")
            self._why = f"rule {rule_name(rule)}"
            return rule(operation)
        except (NoRule, CannotRedistribute) as why:
            return self._fallback(operation, str(why))

    def _fallback(self, operation: Operation, why: str) -> Any:
        """Make every input whole and run the operator on every rank."""
        self._why = f"its inputs are gathered: {why}"
        self._fallbacks[str(operation.target)] += 1
        self._gathered.add(operation.node)
        inside = None if self._backward is None else self._backward.origin
        report_gathered(self._context, operation, why, inside=inside)
        return cut_again(operation, self._replicated(gathered(operation, why)))

    def _shard_backward(self, program: GraphModule, backward: Backward) -> GraphModule:
        """The backward of a custom function for this rank."""
        inner = _Walk(program, self._context, backward)
        sharded = inner.run()
        self._fallbacks += sharded.fallbacks
        return sharded.program

    def _output(self, node: Node) -> None:
        if self._backward is not None:
            operation = Operation(
                node, node.args, {}, self._builder, self._redistribute, self._decide
            )
            gradients = self._backward.leave(operation, self._lookup)
            self._graph.output(gradients)
            return
        leaves: list[Placement | None] = []
        shapes: list[tuple[int, ...] | None] = []

        def leave(argument: Any) -> Any:
            value = self._lookup(argument)
            if not isinstance(value, Value):
                if isinstance(argument, Node):
                    leaves.append(None)
                    shapes.append(None)
                return value
            if isinstance(value.placement, Partial):
                value = self._redistribute(
                    value, REPLICATE, "leaves the program: summed over the ranks", None
                )
            leaves.append(value.placement)
            shapes.append(value.shape)
            return value.node

        result = map_aggregate(node.args[0], leave)
        local = self._graph.output(result)
        local.meta.update(node.meta)
        self._output_placements = tuple(leaves)
        self._output_shapes = tuple(shapes)

    # ------------------------------------------------------------------ placements

    def _decide(self, status: Any, topic: str, node: str, *args: Any, **kwargs: Any) -> None:
        self._context.decide(status, topic, self._known_name(node), *args, **kwargs)

    def _known_name(self, node: str) -> str:
        """A node of the user's program: that of the function, where this is its backward."""
        return node if self._backward is None else self._backward.origin.name

    def _cut_floating_inputs(self) -> None:
        for seed in self._seeds.values():
            if seed.node.op != "placeholder":
                continue
            whole = self._values[seed.node]
            if whole.placement != REPLICATE:  # the block that an earlier piece left
                continue
            with self._builder.on_behalf_of(seed.node):
                cut = self._cut(seed.along)
                self._values[seed.node] = self._redistribute(
                    whole, cut, "the sequence begins here", None
                )

    # ------------------------------------------------------------------ checks and end

    def _check(self, node: Node, result: Any) -> None:
        expected = node.meta.get("val")
        values = result if isinstance(result, list) else [result]
        tensors = expected if isinstance(expected, (list, tuple)) else [expected]
        for value, tensor in zip(values, tensors, strict=True):
            if isinstance(value, Value):
                self._check_value(node, value, tensor)

    def _check_value(self, node: Node, value: Value, expected: torch.Tensor) -> None:
        wanted = local_shape(value.shape, value.placement, self._context.mesh.sp)
        got = tuple(value.local.shape)
        if not same_shape(wanted, got) or value.dtype != expected.dtype:
            raise VerificationError(
                f"{node.format_node()} was placed {value.placement}: a rank should hold "
                f"{expected.dtype} {list(wanted)} but the rule emitted {value.dtype} {list(got)}",
                hint="This is a mistake in a sharding rule: please report it",
            )
        tag = value.node.meta.get(TAG_KEY)
        if tag is None or tag.is_value:
            return
        self._builder.amend(
            value.node,
            placement=value.placement,
            global_shape=value.shape,
            is_value=True,
            reason=tag.reason or self._why,
        )

    def _finish(self) -> ShardedProgram:
        program = finished(self._program, self._graph)
        values, more_values = places(
            self._values,
            self._moves.blocks,
            self._builder,
            has_own_order=self._regions.has_own_order,
        )
        return ShardedProgram(
            program,
            values,
            more_values,
            self._output_placements,
            self._output_shapes,
            len(attention_sites(self._program.graph)),
            self._fallbacks,
        )


def _nodes(arguments: Any) -> Any:
    return map_aggregate(arguments, lambda a: a.node if isinstance(a, Value) else a)
