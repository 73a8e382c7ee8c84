"""Runs one program, or the programs of P ranks in lock step, keeping every node's value.

Collectives are computed jointly from all ranks' inputs with ordinary differentiable
operators, so that autograd over the joint computation yields every rank's cotangents.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_leaves, tree_map

from autosp.custom_gradients import is_custom_gradient, with_a_history
from autosp.events import CollectiveKind
from autosp.flex_attention import is_flex_attention
from autosp.graph import collective_kind, is_wait, is_write, output_node
from autosp.oracle.ring import ring_on_ranks
from autosp.runtime.ring_attention import RING_ATTENTION

aten = torch.ops.aten

UNDEFINED_CONTENTS = frozenset(
    {aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default}
)
"""Zeros stand for their contents, so that what is written to parts of them can be compared."""

Environment = dict[Node, Any]
RankValues = dict[str, list[Any]]
"""Node name -> its value on every rank."""


def run_whole(program: GraphModule, inputs: Sequence[Any]) -> dict[str, Any]:
    """Run the user's program; node name -> value."""
    values = run_ranks([program], inputs)
    return {name: ranks[0] for name, ranks in values.items()}


def run_ranks(programs: Sequence[GraphModule], inputs: Sequence[Any]) -> RankValues:
    """Run the programs of all ranks node by node.

    Args:
        programs: one a rank, with the same nodes but for constants.
        inputs: flat inputs; every rank has its own copy.
    """
    with torch.enable_grad():
        return _run(programs, [inputs] * len(programs))


def _run(programs: Sequence[GraphModule], inputs: Sequence[Sequence[Any]]) -> RankValues:
    environments: list[Environment] = [{} for _ in programs]
    remaining = [iter(given) for given in inputs]
    values: RankValues = {}
    for nodes in zip(*(program.graph.nodes for program in programs), strict=True):
        assert len({node.name for node in nodes}) == 1, [node.name for node in nodes]
        results = _step(programs, nodes, environments, remaining)
        for node, environment, result in zip(nodes, environments, results, strict=True):
            environment[node] = result
        values[nodes[0].name] = results
    return values


def _step(
    programs: Sequence[GraphModule],
    nodes: Sequence[Node],
    environments: Sequence[Environment],
    remaining: Sequence[Any],
) -> list[Any]:
    first = nodes[0]
    if first.op == "placeholder":
        return [own_copy(next(inputs)) for inputs in remaining]
    if first.op == "get_attr":
        assert isinstance(first.target, str)
        return [
            operator.attrgetter(str(node.target))(program)
            for node, program in zip(nodes, programs, strict=True)
        ]
    arguments = [
        _arguments(node, environment) for node, environment in zip(nodes, environments, strict=True)
    ]
    if first.op == "output":
        return [args[0] for args, _ in arguments]
    kind = collective_kind(first)
    if kind is not None:
        sent = [args[0] for args, _ in arguments]
        splits = [args[2] for args, _ in arguments] if kind == "all_to_all" else None
        return communicate(kind, sent, splits)
    if first.target is RING_ATTENTION:
        return ring_on_ranks(arguments)
    if is_wait(first):
        return [_distinct(args[0], (args,)) for args, _ in arguments]
    if is_custom_gradient(first.target):
        return _custom_gradient([node.target for node in nodes], [args for args, _ in arguments])
    if is_write(first):  # in place it would spoil what autograd keeps of the old value
        return [args[1].view_as(args[0]) for args, _ in arguments]
    if not _is_computation(first.target):
        # A switch of grad mode or autocast concerns the process: once, not once a rank.
        args, kwargs = arguments[0]
        return [_call(first, args, kwargs)] * len(nodes)
    return [
        _distinct(_call(node, args, kwargs), (args, kwargs))
        for node, (args, kwargs) in zip(nodes, arguments, strict=True)
    ]


def _is_computation(target: Any) -> bool:
    is_plain = isinstance(target, torch._ops.OpOverload) or target is operator.getitem
    return is_plain or is_flex_attention(target)


def _custom_gradient(targets: Sequence[Any], arguments: Sequence[Any]) -> list[list[Any]]:
    """One function of all ranks' inputs: its backward runs their backwards in lock step."""
    inputs = [tensor for given in arguments for tensor in given[2]]
    results = _JointBackward.apply(targets, arguments, *inputs)  # type: ignore[no-untyped-call]
    return [list(own) for own in _by_rank(results, len(targets))]


class _JointBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, targets: Any, arguments: Any, *inputs: torch.Tensor) -> Any:
        del inputs
        ctx.details = (targets, [_kept(*given) for given in arguments])
        values = [value for given in arguments for value in given[0]]
        return with_a_history(ctx, values, targets[0].differentiable * len(targets))

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        targets, kept = ctx.details
        groups = _by_rank(cotangents, len(targets))
        given = [
            [*sizes, *group, *saved] for group, (sizes, saved) in zip(groups, kept, strict=True)
        ]
        programs = [target.backward for target in targets]
        gradients = _run(programs, given)[output_node(programs[0].graph).name]
        return None, None, *(gradient for own in gradients for gradient in own)


def _kept(values: Any, saved: Any, inputs: Any, sizes: Any = ()) -> tuple[Any, Any]:
    """What a backward is given beside cotangents."""
    del values, inputs
    return sizes, saved


def _by_rank(tensors: Sequence[Any], num_ranks: int) -> list[Sequence[Any]]:
    count = len(tensors) // num_ranks
    return [tensors[rank * count : (rank + 1) * count] for rank in range(num_ranks)]


def _call(node: Node, args: Any, kwargs: Any) -> Any:
    assert callable(node.target)
    result = node.target(*args, **kwargs)
    return result.zero_() if node.target in UNDEFINED_CONTENTS else result


def _arguments(node: Node, environment: Environment) -> tuple[Any, Any]:
    args, kwargs = map_aggregate(
        (node.args, node.kwargs), lambda a: environment[a] if isinstance(a, Node) else a
    )
    return args, kwargs


def own_copy(value: Any) -> Any:
    """A leaf of its own, which requires a gradient if the original does."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _distinct(result: Any, arguments: Any) -> Any:
    """Operators that return their input unchanged still get a cotangent of their own."""
    given = {id(leaf) for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)}

    def separate(leaf: Any) -> Any:
        return leaf.view_as(leaf) if id(leaf) in given else leaf

    return tree_map(separate, result)


def communicate(
    kind: CollectiveKind,
    sent: Sequence[torch.Tensor],
    splits: Sequence[Sequence[int]] | None = None,
) -> list[torch.Tensor]:
    """What every rank receives; reductions are sums.

    ``splits``: what each rank sends to each other, of dim 0; equal parts where not given.

    Raises:
        AssertionError: a kind the compiler does not emit.
    """
    num_ranks = len(sent)
    match kind:
        case "all_to_all":
            if splits is None:
                splits = [[tensor.shape[0] // num_ranks] * num_ranks for tensor in sent]
            blocks = [
                torch.split(tensor, list(sizes)) for tensor, sizes in zip(sent, splits, strict=True)
            ]
            return [
                torch.cat([blocks[sender][receiver] for sender in range(num_ranks)])
                for receiver in range(num_ranks)
            ]
        case "all_gather":
            return [torch.cat(list(sent)) for _ in range(num_ranks)]
        case "all_reduce":
            return [_total(sent) for _ in range(num_ranks)]
        case "reduce_scatter":
            return [_total(sent).chunk(num_ranks)[rank] for rank in range(num_ranks)]
        case _:
            raise AssertionError(f"the oracle cannot run {kind}")


def _total(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = total + tensor
    return total
