"""A dry run of a program that dynamo breaks: each piece is compiled, nothing is computed.

Between pieces the user's code runs for real, on fake tensors; a sharded output of one piece
goes into the next as this rank's block, as in training. A number that this code reads is not
known and taken for 0, which is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._guards import CompileContext
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from autosp.capture import computes_from_nothing
from autosp.checks.subject import size_text
from autosp.compilation import derive_graphs
from autosp.events import Finding, SourceLocation
from autosp.graph import output_node
from autosp.lowering import RankCompilation, lower_to_rank
from autosp.outputs import OutputLeaf
from autosp.pipeline import PassContext
from autosp.placement import Shard
from autosp.runtime.gathered import GatheredOnUse, block_of
from autosp.unknown_values import user_line

BREAKS = "graph_break"
"""Where dynamo counts them, by reason."""


class PieceCompiler:
    """The backend of such a dry run.

    Attributes:
        compilations: what it compiled.
        num_runs: how often each of them runs in one step: layers share a compilation.
    """

    def __init__(self, context: PassContext, partitioner: str) -> None:
        self._context, self._partitioner = context, partitioner
        self.compilations: list[RankCompilation] = []
        self.num_runs: list[int] = []
        self._gathers: set[SourceLocation | None] = set()
        self._breaks_before = Counter(counters[BREAKS])

    def __call__(self, module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        if computes_from_nothing(module):
            return module
        index = self._context.compilation = len(self.compilations)
        compilation = lower_to_rank(module, self._context)
        self.compilations.append(compilation)
        self.num_runs.append(0)
        derive_graphs(compilation, [*map(block_of, example_inputs)], partitioner=self._partitioner)

        def run(*arguments: Any) -> list[Any]:
            self.num_runs[index] += 1
            trains = any(_requires_grad(argument) for argument in arguments)
            results = [
                _fake_output(node, leaf, self._context.group_name, trains=trains)
                for node, leaf in zip(*_leaves(compilation), strict=True)
            ]
            for result in results:
                if isinstance(result, GatheredOnUse):
                    result.on_read = self.report_gather
            return results

        return run

    def report_runs(self) -> None:
        """Record how often each piece runs."""
        description = "how often each compiled piece runs in one step"
        with self._context.running("pieces", description, {"runs": self.num_runs}):
            for piece, count in enumerate(self.num_runs, start=1):
                self._context.decide(
                    "analysis", "pieces", "", f"piece {piece} runs {_times(count)}",
                    "each call with the same shapes and settings shares one compilation",
                    rule="dry_run_pieces",
                )  # fmt: skip

    def report_hidden_breaks(self) -> None:
        """Tell of breaks at which no piece ends: dynamo gave a whole function up."""
        told = "".join(found.message for found in self._context.findings)
        for reason in Counter(counters[BREAKS]) - self._breaks_before:
            first = reason.strip().splitlines()[0]
            if first not in told:
                self._context.find(_hidden_break(first))

    def report_gather(self, tensor: GatheredOnUse) -> None:
        """Tell of a sharded tensor that the code between pieces reads, once for a line."""
        where = user_line()
        if CompileContext.try_get() is not None or where in self._gathers:
            return
        self._gathers.add(where)
        num_bytes = tensor.numel() * tensor.element_size()
        self._context.find(
            Finding(
                code="read-between-pieces",
                severity="warning",
                message="code outside the compiled pieces reads a sharded tensor: it is gathered, "
                f"{size_text(num_bytes)} on every rank, and what is computed from it is whole",
                source=where,
                hint="Remove the graph breaks: after a break in a loop the rest of that function "
                "is not compiled, but for the modules that it calls",
                cost_bytes=num_bytes,
            )
        )

    def report_read(self, where: SourceLocation | None) -> None:
        """Tell of a number that the code between pieces reads."""
        self._context.find(
            Finding(
                code="unknown-value",
                severity="warning",
                message="the code between compiled pieces reads a number from a tensor; a dry run "
                "has none and takes it for 0 (a condition: false)",
                source=where,
                hint="Compute with tensors instead (torch.where), or check the program with "
                "autosp-inspect verify --allow-breaks, which computes",
            )
        )


def _hidden_break(reason: str) -> Finding:
    return Finding(
        code="graph-break",
        severity="warning",
        message=f"a function of the program is not compiled, only the modules it calls: {reason}",
        hint="A break in a loop gives the whole function up: move the construct out of the loop, "
        "or out of the forward",
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _leaves(compilation: RankCompilation) -> tuple[list[Any], tuple[OutputLeaf | None, ...]]:
    returned = tree_leaves(output_node(compilation.sharded.program.graph).args[0])
    return returned, compilation.outputs.leaves


def _fake_output(node: Any, leaf: OutputLeaf | None, group_name: str, *, trains: bool) -> Any:
    value = node.meta["val"] if isinstance(node, Node) else node
    if not isinstance(value, torch.Tensor):
        return value
    result = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    if trains and value.is_floating_point():
        with torch.enable_grad():
            result = result.requires_grad_().clone()  # no leaf: another piece made it
    if leaf is None or not isinstance(leaf.placement, Shard):
        return result
    return GatheredOnUse.wrap(
        result, leaf.placement, leaf.shape, group_name, differentiable=leaf.differentiable
    )


def _requires_grad(argument: Any) -> bool:
    carrier = block_of(argument)
    return isinstance(carrier, torch.Tensor) and carrier.requires_grad
