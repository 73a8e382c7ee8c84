"""Rules written as formulas: an operator that equals a function of global tensors.

A rule may return a :class:`Formula` instead of a value. The function is traced on tensors
of the global shapes and its operators go through their own rules, so that a formula never
speaks of ranks, blocks or padding: ``var`` is a mean of squared deviations, and how means
over a cut dim are taken is said once. Composite operators are formulas by birth: torch
says what they consist of.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_aggregate

from autosp.dynamic_sizes import inline_sizes
from autosp.graph import is_mutation
from autosp.placement import REPLICATE, Partial
from autosp.sharding.builder import Value
from autosp.sharding.operation import NoRule, Operation


@dataclass(frozen=True, slots=True)
class Formula:
    """The operator's result is ``function(*args)``; ``args`` hold values where it takes tensors."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    is_composite: bool = False
    """Then the operator must not come back whole among its own parts."""


TRACED = "_autosp_traced_formulas"
"""Attribute of a graph under which the traced formulas of its operators are kept."""

Placed = Value | list[Value]
RuleOrFormula = Callable[[Operation], "Value | list[Value] | Formula"]
FindRule = Callable[[Any], "Callable[[Operation], Placed] | None"]


def is_composite(target: Any) -> bool:
    """Whether torch defines the operator by other operators."""
    return isinstance(target, torch._ops.OpOverload) and target._can_decompose()


def composite(op: Operation) -> Formula:
    """What the operator consists of."""

    def function(args: Any, kwargs: Any) -> Any:
        # A torch function mode, the tracer's among them, would bring the operator back whole.
        with torch._C.DisableTorchFunction():
            return op.target.decompose(*args, **kwargs)

    return Formula(function, (op.args, op.kwargs), is_composite=True)


def apply_rule(rule: RuleOrFormula, find_rule: FindRule, op: Operation) -> Placed:
    """Run a rule; a formula is evaluated, and partial inputs are summed where it needs that.

    Raises:
        NoRule: neither the rule nor an operator of its formula knows these placements.
    """
    try:
        return _evaluated(rule(op), find_rule, op)
    except NoRule:
        if not any(isinstance(value.placement, Partial) for value in op.values()):
            raise
    summed = _summed(op)
    if all(value.placement == REPLICATE for value in summed.values()):
        return _replicated(summed)
    return _evaluated(rule(summed), find_rule, summed)


def _evaluated(result: Placed | Formula, find_rule: FindRule, op: Operation) -> Placed:
    if not isinstance(result, Formula):
        return result
    whole = op.target if result.is_composite else None

    def find_part(target: Any) -> Callable[[Operation], Placed] | None:
        return None if target is whole else find_rule(target)

    return _evaluate(_traced(result, op), _values(result), find_part, op)


def _summed(op: Operation) -> Operation:
    reason = f"{op.target} is not linear in its partial input"
    return op.with_values(
        lambda v: op.replicate(v, reason) if isinstance(v.placement, Partial) else v
    )


def _replicated(op: Operation) -> Placed:
    node = op.same()
    if isinstance(op.node.meta["val"], torch.Tensor):
        return op.result(node, REPLICATE)
    return op.results(node, [REPLICATE] * len(op.outputs))


def _values(formula: Formula) -> list[Value]:
    found: list[Value] = []
    map_aggregate(formula.args, lambda a: found.append(a) if isinstance(a, Value) else None)
    return found


def _traced(formula: Formula, op: Operation) -> GraphModule:
    """The function on tensors of the global shapes, as a graph of operators.

    It says nothing of ranks, so the programs of all ranks share it: it is kept with the graph
    of the operator, for a number of ranks and placements of its inputs.
    """
    known: dict[Any, GraphModule] = op.node.graph.__dict__.setdefault(TRACED, {})
    key = (op.node, op.num_ranks, tuple(value.placement for value in op.values()))
    if key not in known:
        known[key] = _trace_formula(formula)
    return known[key]


def _trace_formula(formula: Formula) -> GraphModule:
    values = _values(formula)
    mode = next(v.local.fake_mode for v in values if isinstance(v.local, FakeTensor))
    with mode:
        tensors = [torch.empty(v.shape, dtype=v.dtype, device=v.local.device) for v in values]

    def run(*given: torch.Tensor) -> Any:
        remaining: Iterator[torch.Tensor] = iter(given)
        args = map_aggregate(formula.args, lambda a: next(remaining) if isinstance(a, Value) else a)
        return formula.function(*args)

    program: GraphModule = _trace(run, tensors, mode)
    if any(is_mutation(node) for node in program.graph.nodes):
        functional = FunctionalTensorMode(pre_dispatch=True, export=True)
        program = _trace(dispatch_functionalize(run, functional), tensors, mode)
    program.graph.eliminate_dead_code()
    inline_sizes(program)
    return program


def _trace(
    run: Callable[..., Any], tensors: list[torch.Tensor], mode: FakeTensorMode
) -> GraphModule:
    constants_allowed, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        # A backend's tracing context would bring a fake mode of its own.
        with torch._guards.tracing(None), mode:
            program: GraphModule = make_fx(run, pre_dispatch=True)(*tensors)
            return program
    finally:
        mode.allow_non_fake_inputs = constants_allowed


def _evaluate(
    program: GraphModule, inputs: list[Value], find_rule: FindRule, op: Operation
) -> Placed:
    def decide(status: Any, topic: str, _: str, *rest: Any, **more: Any) -> None:
        op._decide(status, topic, op.node.name, *rest, **more)

    known: dict[Node, Any] = {}
    remaining = iter(inputs)
    for node in program.graph.nodes:
        if node.op == "placeholder":
            known[node] = next(remaining)
            continue
        if node.op == "get_attr":
            known[node] = _constant(op, getattr(program, str(node.target)))
            continue
        args, kwargs = map_aggregate(
            (node.args, node.kwargs), lambda a: known[a] if isinstance(a, Node) else a
        )
        if node.op == "output":
            result = args[0]
            return list(result) if isinstance(result, (tuple, list)) else result
        if node.target is operator.getitem:
            known[node] = args[0][args[1]]
            continue
        part = replace(op, node=node, args=args, kwargs=kwargs, _decide=decide)
        known[node] = _part(part, find_rule)
    raise AssertionError("a graph without output")


def _constant(op: Operation, value: Any) -> Value:
    if not isinstance(value, torch.Tensor) or value.dim() != 0:
        raise NoRule(f"{op.target} makes a constant tensor")
    number = op.emit(
        torch.ops.aten.scalar_tensor.default, value.item(), dtype=value.dtype, device=value.device
    )
    return Value(number, REPLICATE, ())


def _part(op: Operation, find_rule: FindRule) -> Placed:
    if not isinstance(op.target, torch._ops.OpOverload) or is_mutation(op.node):
        raise NoRule(f"{op.node.op} {op.target} inside a composite operator")
    if torch.Tag.nondeterministic_seeded in op.target.tags:
        raise NoRule(f"{op.target} inside a composite operator draws random numbers")
    if all(value.placement == REPLICATE for value in op.values()):
        return _replicated(op)
    rule = find_rule(op.target)
    if rule is None:
        raise NoRule(f"no rule for {op.target}, which it consists of")
    return rule(op)
