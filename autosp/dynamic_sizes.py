"""Sizes marked dynamic: one program serves every length, or the compilation is refused.

``torch._dynamo.mark_dynamic`` makes a size of an input a symbol. It stays one through the
passes: shapes and placements are expressions of it, and the program of a rank computes them
from its inputs. Where an operator must know more than the symbol tells, torch ties the program
to an answer that is right for the length at hand (a *guard*). Guards that all longer lengths
meet too do no harm; any other is found here, when it is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.symbolic_convert import TensorifyState
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from autosp.errors import AutoSPError
from autosp.graph import source_location
from autosp.sizes import is_symbolic

NUM_TRIED = 48
"""Lengths beyond the present one at which a guard is tried: more than any period that a
number of ranks or of rows per block gives rise to."""


@dataclass(slots=True)
class DynamicSizes:
    """The symbols of a compilation, and the guards that are known to be harmless."""

    env: Any = None
    """torch's ``ShapeEnv``: what it knows of the symbols, with all guards."""
    names: dict[Any, str] = field(default_factory=dict)
    """Symbol -> the size of the user's that it is, in words."""
    shortest: dict[Any, int] = field(default_factory=dict)
    """Symbol -> the least length at which the guards hold that were met so far."""
    _num_seen: int = 0

    @staticmethod
    def of(module: GraphModule, names: Sequence[str]) -> DynamicSizes:
        """The sizes that the user marked of the inputs of a dynamo graph, ``names`` of them.

        With ``torch.compile(..., dynamic=True)`` all sizes of inputs are marked.
        """
        found = DynamicSizes()
        every = not torch._dynamo.config.assume_static_by_default
        placeholders = module.graph.find_nodes(op="placeholder")
        for node, name in zip(placeholders, names, strict=True):
            value = node.meta["example_value"]
            if not isinstance(value, FakeTensor) or isinstance(value, torch.nn.Parameter):
                continue
            example = getattr(node.meta.get("grapharg"), "example", None)
            marked = getattr(example, "_dynamo_dynamic_indices", None) or ()
            for dim in range(value.dim()) if every else sorted(marked):
                found._keep(value.shape[dim], value, f"dim {dim} of {name}")
        if found.env is not None:
            found._num_seen = len(found.env.guards)
        return found

    def _keep(self, size: Any, tensor: FakeTensor, name: str) -> None:
        if is_symbolic(size):
            self.env = tensor.fake_mode.shape_env
            for symbol in size.node.expr.free_symbols:
                self.names.setdefault(symbol, name)

    def __bool__(self) -> bool:
        return bool(self.names)

    def keeps(self, size: Any) -> bool:
        """Whether a size stays an expression."""
        return is_symbolic(size) and size.node.expr.free_symbols <= self.names.keys()

    def reading(self) -> AbstractContextManager[Any]:
        """Sizes are what they are at the length of the trace; reading them ties nothing."""
        return nullcontext() if self.env is None else self.env.suppress_guards()

    def check(self, what: str, where: str = "") -> None:
        """Raise if the program was tied to the present length since the last check.

        Args:
            what: the operator or the stage that has just been compiled.
            where: the line of the user's program, if any.

        Raises:
            AutoSPError: the program would not serve other lengths.
        """
        for tie in self._new_ties():
            raise self.refusal(f"{what} needs {tie}", where, tie.free_symbols)

    def refusal(self, why: str, where: str, symbols: Iterable[Any] | None = None) -> AutoSPError:
        """The error of a program that cannot serve other lengths."""
        named = {
            f"{self.names[symbol]} ({symbol})"
            for symbol in self.names.keys() & set(self.names if symbols is None else symbols)
        }
        return AutoSPError(
            f"{' and '.join(sorted(named))} cannot stay dynamic: {why}",
            where=where,
            hint="Remove torch._dynamo.mark_dynamic (or dynamic=True): another size then compiles "
            "again by itself. Pad to a few lengths to keep these few",
        )

    def _new_ties(self) -> Iterator[Any]:
        if self.env is None:
            return
        new = self.env.guards[self._num_seen :]
        self._num_seen = len(self.env.guards)
        for guard in new:
            if guard.expr.free_symbols & self.names.keys() and not self._holds_beyond(guard.expr):
                yield guard.expr

    def _holds_beyond(self, condition: Any) -> bool:
        """Whether a condition that holds at the present lengths does at greater ones.

        It may fail at smaller ones: the program then serves lengths from :attr:`shortest` on.
        """
        present = {s: int(self.env.backed_var_to_val[s]) for s in condition.free_symbols}

        def holds(symbol: Any, length: int) -> bool:
            return bool(condition.subs({**present, symbol: length}))

        for symbol in condition.free_symbols & self.names.keys():
            length = present[symbol]
            if not all(holds(symbol, length + more) for more in range(1, NUM_TRIED)):
                return False
            while length > 2 and holds(symbol, length - 1):
                length -= 1
            self.shortest[symbol] = max(length, self.shortest.get(symbol, 2))
        return True


def trace_again_with_constant_numbers(module: GraphModule) -> None:
    """Have dynamo trace again if it keeps numbers of the model dynamic, as ``dynamic=True`` asks.

    A rate or a scale is then a tensor of no dims that the graph reads; traced again, it is a
    constant, and with another one the model is compiled anew.

    Raises:
        TensorifyScalarRestartAnalysis: dynamo, which calls the backend, traces again.
    """
    numbers = []
    for node in module.graph.find_nodes(op="call_method", target="item"):
        source = node.args[0]
        argument = source.meta.get("grapharg") if isinstance(source, Node) else None
        if getattr(argument, "pass_arg_as_tensor", False):
            assert isinstance(source, Node)
            numbers.append(source.meta["example_value"].item_memo.node._expr.name)
    for name in numbers:
        TensorifyState.specialize(name)
    if numbers:
        raise TensorifyScalarRestartAnalysis


def inline_sizes(program: GraphModule) -> None:
    """Write sizes as expressions where operators take them, as sizes of one length are numbers.

    Rules then see a size, not the nodes that compute it.
    """
    graph = program.graph
    if not any(isinstance(node.meta.get("val"), torch.SymInt) for node in graph.nodes):
        return
    for node in list(graph.nodes):
        node.args, node.kwargs = map_aggregate((node.args, node.kwargs), _inlined)
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and isinstance(node.meta.get("val"), torch.SymInt):
            graph.erase_node(node)


def _inlined(argument: Any) -> Any:
    value = argument.meta.get("val") if isinstance(argument, Node) else None
    return value if isinstance(value, torch.SymInt) else argument


def where_of(node: Node) -> str:
    """The user's line of a node, for messages."""
    found = source_location(node)
    return f"{found.file}:{found.line}" if found else ""
