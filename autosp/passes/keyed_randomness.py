"""Random operators draw numbers keyed by step, place in the program and global position.

torch's random operators draw from a generator in an order that depends on what a rank holds:
with P ranks a model would be trained on other dropout masks than with one. Here each becomes
its keyed form (:mod:`autosp.runtime.keyed_random`), whose numbers are the same for any number
of ranks, in the forward and in the backward. The keys are one more input of the program,
drawn anew for each step, and the ranks of an SP group agree on them first.

An operator that has no keyed form stays as it is, and sharding refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from autosp.capture import GraphInput
from autosp.graph import is_operator, shape_of, tensor_of
from autosp.pipeline import PassContext
from autosp.runtime import keyed_random
from autosp.sharding.randomness import draws_random_numbers
from autosp.sizes import key_of, same_shape

aten = torch.ops.aten

KEYS_NAME = "random_keys"


@dataclass(frozen=True)
class KeyedRandomness:
    name: str = "keyed-randomness"
    description: str = "random numbers depend on global positions, not on the ranks"

    def run(self, program: GraphModule, context: PassContext) -> GraphModule:
        rewrite = _Rewrite(program.graph)
        for node in list(program.graph.nodes):
            if _is_random(node) and (replace := REPLACEMENTS.get(node.target)) is not None:
                before = str(node.target)
                if replace(node, rewrite):
                    _explain(node, before, context)
        rewrite.finish()
        program.graph.eliminate_dead_code()
        return program


def random_keys(graph: Graph) -> Node | None:
    """The input that holds the keys of a step, ``[num_draws, NUM_KEYS]``; None without any."""
    for node in graph.find_nodes(op="call_function", target=keyed_random.AGREE):
        keys = node.args[0]
        assert isinstance(keys, Node)
        return keys
    return None


def _is_random(node: Node) -> bool:
    return node.op == "call_function" and draws_random_numbers(node.target, node.args, node.kwargs)


@dataclass(slots=True)
class _Rewrite:
    """Gives out draws; makes the input with their keys, and the vectors of positions."""

    graph: Graph
    num_draws: int = 0
    _keys: Node | None = None
    _agreed: Node | None = None
    _positions: dict[tuple[int, Any, torch.device], Node] = field(default_factory=dict)

    def draws(self, node: Node, size: Sequence[int], count: int) -> tuple[Any, ...]:
        """``keys, draw, positions, size`` of the numbers of one operator."""
        tensor = node.meta["val"]
        first, self.num_draws = self.num_draws, self.num_draws + count
        positions = [self._arange(dim, rows, tensor) for dim, rows in enumerate(size)]
        return self._agreed_keys(tensor), first, positions, list(size)

    def finish(self) -> None:
        """The input gets its final size."""
        if self._keys is None or self._agreed is None:
            return
        for node in (self._keys, self._agreed):
            shape = (self.num_draws, keyed_random.NUM_KEYS)
            node.meta["val"] = node.meta["val"].new_empty(shape)

    def _agreed_keys(self, like: torch.Tensor) -> Node:
        if self._agreed is None:
            last = self.graph.find_nodes(op="placeholder")[-1]
            empty = _fake(like, lambda: torch.empty(0, dtype=torch.int64, device=like.device))
            with self.graph.inserting_after(last):
                self._keys = self.graph.placeholder(KEYS_NAME)
            self._keys.target = self._keys.name
            self._keys.meta |= {
                "val": empty,
                "autosp_input": GraphInput(KEYS_NAME, "buffer", False),
            }
            with self.graph.inserting_after(self._keys):
                self._agreed = self.graph.call_function(keyed_random.AGREE, (self._keys,))
            self._agreed.meta["val"] = empty
        return self._agreed

    def _arange(self, dim: int, rows: int, like: torch.Tensor) -> Node:
        """Positions along a dim; dims do not share a node, for they are cut one by one."""
        key = (dim, key_of(rows), like.device)
        if key not in self._positions:
            agreed = self._agreed_keys(like)
            options: dict[str, Any] = {"dtype": torch.int64, "device": like.device}
            with self.graph.inserting_after(agreed):
                node = self.graph.call_function(aten.arange.default, (0,), options)
            node.args = (rows,)  # an expression where it stays dynamic
            node.meta["val"] = _fake(like, lambda: torch.arange(rows, **options))
            self._positions[key] = node
        return self._positions[key]


def _fake(like: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    mode = like.fake_mode  # type: ignore[attr-defined]
    with torch._guards.tracing(None), mode:
        return make()


# ------------------------------------------------------------------ the operators

Replace = Callable[[Node, _Rewrite], bool]
"""Rewrites a node in place; False if this use of it has no keyed form."""


def _arguments(node: Node) -> dict[str, Any]:
    assert isinstance(node.target, torch._ops.OpOverload)
    return {
        argument.name: node.args[index]
        if index < len(node.args)
        else node.kwargs.get(argument.name, argument.default_value)
        for index, argument in enumerate(node.target._schema.arguments)
    }


def _set(node: Node, target: Any, *args: Any, **kwargs: Any) -> bool:
    node.target, node.args, node.kwargs = target, args, kwargs
    return True


def _dropout(node: Node, rewrite: _Rewrite) -> bool:
    given = _arguments(node)
    source = given["input"]
    draws = rewrite.draws(node, shape_of(source), 1)
    return _set(node, keyed_random.DROPOUT, source, *draws, float(given["p"]))


def _feature_dropout(node: Node, rewrite: _Rewrite) -> bool:
    """Whole channels: one number for each ``[batch, channel]``."""
    given = _arguments(node)
    source = given["input"]
    shape = shape_of(source)
    noise = [rows if dim < 2 else 1 for dim, rows in enumerate(shape)]
    draws = rewrite.draws(node, noise, 1)
    return _set(node, keyed_random.DROPOUT, source, *draws, float(given["p"]))


def _native_dropout(node: Node, rewrite: _Rewrite) -> bool:
    """Returns the mask, too: only if nobody reads it."""
    users = list(node.users)
    if len(users) != 1 or users[0].args[1] != 0:
        return False
    (user,) = users
    given = _arguments(node)
    draws = rewrite.draws(user, shape_of(given["input"]), 1)
    user.meta = {**node.meta, "val": user.meta["val"]}
    _set(user, keyed_random.DROPOUT, given["input"], *draws, float(given["p"]))
    rewrite.graph.erase_node(node)
    return True


def _bernoulli(node: Node, rewrite: _Rewrite) -> bool:
    given = _arguments(node)
    probabilities = given["p"] if isinstance(given.get("p"), Node) else given["self"]
    is_same = tensor_of(probabilities).dtype == node.meta["val"].dtype  # type: ignore[union-attr]
    if not (same_shape(shape_of(probabilities), shape_of(node)) and is_same):
        return False
    draws = rewrite.draws(node, shape_of(node), keyed_random.NUM_DRAWS["uniform"])
    return _set(node, keyed_random.BERNOULLI, probabilities, *draws)


def _numbers(distribution: str, *names: str, defaults: Sequence[float] = ()) -> Replace:
    """Numbers whose parameters are the arguments ``names``, or else ``defaults``."""

    def replace(node: Node, rewrite: _Rewrite) -> bool:
        given = _arguments(node)
        parameters = [float(given[name]) for name in names] or list(defaults)
        if distribution == "integers":
            parameters = [float(given.get("low", 0)), float(given["high"])]
            if parameters[1] - parameters[0] > 2**31:
                return False
        dtype = node.meta["val"].dtype
        count = keyed_random.NUM_DRAWS[distribution]
        draws = rewrite.draws(node, shape_of(node), count)
        return _set(node, keyed_random.NUMBERS, *draws, distribution, parameters, dtype)

    return replace


def _attention(node: Node, rewrite: _Rewrite) -> bool:
    """Attention with dropout: one number for each query and key of each head."""
    given = _arguments(node)
    query, key = given["query"], given["key"]
    size = (*shape_of(query)[:-1], shape_of(key)[-2])
    keys, draw, positions, size = rewrite.draws(node, size, 1)
    given |= {"keys": keys, "draw": draw, "positions": positions, "size": size}
    first = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    return _set(node, keyed_random.ATTENTION, *(given.pop(name) for name in first), **given)


REPLACEMENTS: dict[Any, Replace] = {
    aten.dropout.default: _dropout,
    aten.feature_dropout.default: _feature_dropout,
    aten.native_dropout.default: _native_dropout,
    aten.scaled_dot_product_attention.default: _attention,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.Tensor: _bernoulli,
    aten.bernoulli.p: _numbers("bernoulli", "p"),
    aten.uniform.default: _numbers("uniform", "from", "to"),
    aten.normal_functional.default: _numbers("normal", "mean", "std"),
    aten.normal.float_float: _numbers("normal", "mean", "std"),
    aten.exponential.default: _numbers("exponential", "lambd"),
    aten.rand.default: _numbers("uniform", defaults=(0.0, 1.0)),
    aten.rand_like.default: _numbers("uniform", defaults=(0.0, 1.0)),
    aten.randn.default: _numbers("normal", defaults=(0.0, 1.0)),
    aten.randn_like.default: _numbers("normal", defaults=(0.0, 1.0)),
    aten.randint.default: _numbers("integers"),
    aten.randint.low: _numbers("integers"),
    aten.randint_like.default: _numbers("integers"),
    aten.randint_like.low_dtype: _numbers("integers"),
}
"""Random operator -> how it becomes keyed. Others (``multinomial``, ``randperm``) are refused."""


def _explain(node: Node, before: str, context: PassContext) -> None:
    is_attention = is_operator(node, keyed_random.ATTENTION)
    context.decide(
        "applied",
        "randomness",
        node.name,
        f"{before} becomes {node.target}",
        "numbers keyed by step, operator and global position do not depend on the number of ranks"
        + ("; the fused attention kernels draw numbers of their own" if is_attention else ""),
        rule="keyed_randomness",
    )
