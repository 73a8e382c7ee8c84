"""The check: every value and every cotangent of the user's program against the ranks'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_leaves

from autosp.attention_choice import AttentionChoice
from autosp.blocks import cut_blocks
from autosp.capture import CapturedProgram, capture
from autosp.collective_order import check_same_collectives, collective_list
from autosp.dynamic_sizes import DynamicSizes
from autosp.dynamo import teach_dynamo
from autosp.errors import AutoSPError
from autosp.graph import module_path, output_node, source_location
from autosp.loggers import quiet_loggers
from autosp.mesh import Mesh
from autosp.oracle.combine import combine_cotangents, combine_values
from autosp.oracle.compare import Difference, coarsest_tolerance, difference, largest
from autosp.oracle.lockstep import RankValues, run_ranks, run_whole
from autosp.oracle.report import OracleReport, Quantity, WrongNode
from autosp.output_hooks import install_output_hooks
from autosp.passes import PROGRAM_PASSES
from autosp.passes.keyed_randomness import KeyedRandomness, random_keys
from autosp.pipeline import Pass, PassContext
from autosp.placement import REPLICATE, Placement, Shard
from autosp.runtime.keyed_random import draw_keys
from autosp.sharding.propagate import LocalValue, ShardedProgram, shard
from autosp.sharding.redistribute import NUM_VALID_ROWS_KEY, fill_padding

FILLS = ("last", "first")

COTANGENT_SEED = 20240229
"""Seed of the random cotangents of programs that return no scalar loss."""


RANDOM_KEYS_SEED = 20240301
"""Seed of the keys of random operators."""


def check_program(
    program: GraphModule,
    inputs: Sequence[Any],
    *,
    num_ranks: int,
    captured: CapturedProgram | None = None,
    passes: Sequence[Pass] = PROGRAM_PASSES,
    fills: Sequence[str] = FILLS,
    tolerance: float | None = None,
    attention: AttentionChoice = "auto",
) -> OracleReport:
    """Compile ``program`` for ``num_ranks`` ranks and prove it against itself.

    The passes run too: the reference is the program *before* them, but for random operators,
    which are in their keyed form in both. ``program`` is not changed.

    Args:
        program: the captured pre-dispatch graph; its nodes carry fake values.
        inputs: real tensors, one a placeholder.
        captured: what the capture returned; only its fake mode is used.
        passes: the rewrites that run before sharding.
        fills: padding fills to run.
        tolerance: relative error allowed; by default that of the program's coarsest
            floating type.
        attention: the form that attention takes.

    Raises:
        AutoSPError: the program cannot be sharded.
    """
    tolerance = coarsest_tolerance(program) if tolerance is None else tolerance
    fake_mode = _fake_mode(program, captured)
    program, inputs = with_keyed_randomness(program, inputs)
    ranks = compile_ranks(program, num_ranks, passes, fake_mode, attention)
    return check_ranks(program, inputs, ranks, fills=fills, tolerance=tolerance)


def check_ranks(
    program: GraphModule,
    inputs: Sequence[Any],
    ranks: Sequence[ShardedProgram],
    *,
    fills: Sequence[str],
    tolerance: float,
) -> OracleReport:
    """Prove the programs of the ranks against ``program``.

    Args:
        program: with random operators in their keyed form.
        inputs: real tensors, one a placeholder.
        ranks: the programs of all ranks; their padding is filled in place.
        fills, tolerance: see :func:`check_program`.
    """
    reference = _Reference.of(program, inputs)
    by_fill: dict[str, RankRun] = {}
    counts: Counter[Quantity] = Counter()
    errors = _Errors()
    num_fallbacks = 0
    for fill in fills:
        _fill_padding(ranks, fill)
        run = by_fill[fill] = RankRun.of(ranks, inputs, reference)
        num_fallbacks = sum(ranks[0].fallbacks.values())
        search = _Search(reference, run, fill, tolerance, errors)
        wrong = search.values() or search.cotangents()
        counts = search.counts
        if wrong is not None:
            return _report(counts, tuple(by_fill), num_fallbacks, wrong, errors)
        if not _has_padding(ranks[0]):
            break
    wrong = _changes_with_fill(by_fill, tolerance)
    return _report(counts, tuple(by_fill), num_fallbacks, wrong, errors)


def _has_padding(sharded: ShardedProgram) -> bool:
    """Without padding rows all fills give the same program."""
    placements = (value.placement for value in sharded.values.values())
    return any(isinstance(placement, Shard) and placement.is_padded for placement in placements)


def _report(
    counts: Counter[Quantity],
    fills: Sequence[str],
    num_fallbacks: int,
    wrong: WrongNode | None,
    errors: _Errors,
) -> OracleReport:
    return OracleReport(
        ok=wrong is None,
        first_wrong=wrong,
        num_values_checked=counts["value"],
        num_cotangents_checked=counts["cotangent"],
        fills=tuple(fills),
        num_fallbacks=num_fallbacks,
        gradient_error=errors.gradient,
        loss_error=errors.loss,
    )


def check_module(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_ranks: int,
    **options: Any,
) -> OracleReport:
    """Capture ``module`` on real inputs and :func:`check_program` it.

    Raises:
        AutoSPError: as the compiler would raise.
    """
    reports: list[OracleReport] = []

    def check(captured: CapturedProgram, inputs: Sequence[Any]) -> None:
        reports.append(
            check_program(
                captured.program, inputs, num_ranks=num_ranks, captured=captured, **options
            )
        )

    with_captured(module, args, kwargs or {}, check)
    return reports[0]


Call = tuple[Sequence[Any], Mapping[str, Any]]
"""Arguments of one call of a model."""


def with_captured(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    use: Callable[[CapturedProgram, Sequence[Any]], None],
) -> None:
    """Capture ``module`` as the compiler does; hand the program and its real inputs to ``use``.

    Raises:
        AutoSPError: the forward is not one graph, or ``use`` raised one.
    """
    with_captured_calls(module, [(args, kwargs)], use)


def with_captured_calls(
    module: torch.nn.Module,
    calls: Sequence[Call],
    use: Callable[[CapturedProgram, Sequence[Any]], None],
) -> None:
    """:func:`with_captured` for several calls; those that share a program are given the same."""

    def backend(graph: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        del example_inputs
        captured = capture(graph)

        def run(*inputs: Any) -> Any:
            use(captured, inputs)
            return graph(*inputs)

        return run

    install_output_hooks(module)
    teach_dynamo()
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=backend, fullgraph=True, dynamic=False)
    try:
        with quiet_loggers():
            for args, kwargs in calls:
                compiled(*args, **kwargs)
    except torch._dynamo.exc.BackendCompilerFailed as failure:
        if isinstance(failure.inner_exception, AutoSPError):
            raise failure.inner_exception from None
        raise
    finally:
        torch._dynamo.reset()


# ---------------------------------------------------------------------- the two sides


@dataclass(frozen=True, slots=True)
class _Output:
    """An output leaf that starts the backward, with its cotangent."""

    node: Node
    leaf: int
    cotangent: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Reference:
    """The user's program, run as it is."""

    program: GraphModule
    nodes: tuple[Node, ...]
    values: dict[str, Any]
    cotangents: dict[str, torch.Tensor | None]
    outputs: tuple[_Output, ...]

    @staticmethod
    def of(program: GraphModule, inputs: Sequence[Any]) -> _Reference:
        values = run_whole(program, inputs)
        outputs = _outputs(program, values)
        names = [name for name, value in values.items() if _has_cotangent(value)]
        cotangents = _gradients(
            [values[output.node.name] for output in outputs],
            [output.cotangent for output in outputs],
            [values[name] for name in names],
        )
        return _Reference(
            program,
            tuple(program.graph.nodes),
            values,
            dict(zip(names, cotangents, strict=True)),
            outputs,
        )


@dataclass(frozen=True, slots=True)
class RankRun:
    """The P programs, run in lock step."""

    sharded: ShardedProgram
    values: RankValues
    cotangents: dict[str, list[torch.Tensor | None]]
    """Of the nodes of the per-rank program."""
    results: list[torch.Tensor]
    """What must not change with the filling of padding rows."""

    @staticmethod
    def of(
        ranks: Sequence[ShardedProgram], inputs: Sequence[Any], reference: _Reference
    ) -> RankRun:
        sharded, num_ranks = ranks[0], len(ranks)
        values = run_ranks([rank.program for rank in ranks], inputs)
        starts, seeds = _rank_seeds(sharded, values, reference, num_ranks)
        names = [
            name for name, parts in values.items() if all(_has_cotangent(part) for part in parts)
        ]
        flat = _gradients(starts, seeds, [part for name in names for part in values[name]])
        cotangents = {
            name: list(flat[i * num_ranks : (i + 1) * num_ranks]) for i, name in enumerate(names)
        }
        parameters = [
            gradient
            for node in sharded.program.graph.find_nodes(op="placeholder")
            for gradient in cotangents.get(node.name, ())
            if gradient is not None
        ]
        return RankRun(sharded, values, cotangents, [*_whole_outputs(sharded, values), *parameters])


def _outputs(program: GraphModule, values: Mapping[str, Any]) -> tuple[_Output, ...]:
    """A scalar loss starts the backward with 1; without one every floating output does."""
    nodes = [leaf for leaf in tree_leaves(output_node(program.graph).args[0]) if _is_node(leaf)]
    leaves = [(i, node) for i, node in enumerate(nodes) if _has_cotangent(values[node.name])]
    scalars = [(i, node) for i, node in leaves if values[node.name].dim() == 0]
    generator = torch.Generator().manual_seed(COTANGENT_SEED)
    result = []
    for i, node in scalars or leaves:
        value = values[node.name]
        random = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        cotangent = torch.ones_like(value) if scalars else random.to(value.dtype)
        result.append(_Output(node, i, cotangent.detach()))
    return tuple(result)


def _rank_seeds(
    sharded: ShardedProgram, values: RankValues, reference: _Reference, num_ranks: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs of all ranks with their cotangents under the mean convention."""
    leaves = [
        leaf for leaf in tree_leaves(output_node(sharded.program.graph).args[0]) if _is_node(leaf)
    ]
    starts: list[torch.Tensor] = []
    seeds: list[torch.Tensor] = []
    for output in reference.outputs:
        placement = sharded.output_placements[output.leaf]
        starts.extend(values[leaves[output.leaf].name])
        if isinstance(placement, Shard):
            blocks = cut_blocks(output.cotangent, placement, num_ranks)
            seeds.extend(block * num_ranks for block in blocks)
        else:
            seeds.extend([output.cotangent] * num_ranks)
    return starts, seeds


def _whole_outputs(sharded: ShardedProgram, values: RankValues) -> list[torch.Tensor]:
    """Every output without padding rows.

    The shapes are the program's: an output may be some rows of what its node holds.
    """
    leaves = tree_leaves(output_node(sharded.program.graph).args[0])
    nodes = [leaf for leaf in leaves if _is_node(leaf)]
    return [
        whole.detach()
        for node, placement, shape in zip(
            nodes, sharded.output_placements, sharded.output_shapes, strict=True
        )
        if placement is not None and shape is not None
        for whole in combine_values(values[node.name], placement, shape)
    ]


def _is_node(leaf: Any) -> bool:
    return isinstance(leaf, Node)


def _has_cotangent(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _gradients(
    starts: Sequence[torch.Tensor], seeds: Sequence[torch.Tensor], of: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    if not starts or not of:
        return [None] * len(of)
    return torch.autograd.grad(starts, of, seeds, allow_unused=True)


def compile_ranks(
    program: GraphModule,
    num_ranks: int,
    passes: Sequence[Pass],
    fake_mode: Any,
    attention: AttentionChoice = "auto",
    sizes: DynamicSizes | None = None,
) -> list[ShardedProgram]:
    """The programs of all ranks; passes run on a copy. ``sizes`` stay dynamic."""
    rewritten = _copy(program)
    sizes = sizes or DynamicSizes()

    def context(rank: int) -> PassContext:
        return PassContext(Mesh(sp=num_ranks, rank=rank), attention=attention, sizes=sizes)

    with torch._guards.tracing(None):
        for item in passes:
            rewritten = item.run(rewritten, context(0))
            sizes.check(item.name)
        with fake_mode, torch.no_grad():
            ranks = [shard(rewritten, context(rank)) for rank in range(num_ranks)]
    name = context(0).group_name
    check_same_collectives([collective_list(rank.program, None, name) for rank in ranks])
    return ranks


def _fill_padding(ranks: Sequence[ShardedProgram], fill: str) -> None:
    """Programs differ from one filling to the next in the rows that padding repeats alone."""
    for rank in ranks:
        for node in rank.program.graph.nodes:
            if NUM_VALID_ROWS_KEY in node.meta:
                fill_padding(node, fill)


def with_keyed_randomness(
    program: GraphModule, inputs: Sequence[Any]
) -> tuple[GraphModule, Sequence[Any]]:
    """The program whose random numbers do not depend on who computes them, and their keys.

    Only that can be compared: torch's own numbers depend on the order of the draws.
    """
    keyed = KeyedRandomness().run(_copy(program), PassContext(Mesh(sp=1)))
    keys = random_keys(keyed.graph)
    if keys is None:
        return program, inputs
    fake = keys.meta["val"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RANDOM_KEYS_SEED)
        return keyed, (*inputs, draw_keys(len(fake), dp_rank=0, device=fake.device))


def _copy(program: GraphModule) -> GraphModule:
    graph = Graph()
    copied: dict[Node, Node] = {}
    for node in program.graph.nodes:
        copy = copied[node] = graph.create_node(node.op, node.target, name=node.name)
        # Sizes that stay dynamic are expressions, which create_node warns of.
        copy.args, copy.kwargs = map_aggregate(
            (node.args, node.kwargs), lambda a: copied[a] if isinstance(a, Node) else a
        )
        copy.meta = dict(node.meta)
    assert all(old.name == new.name for old, new in copied.items())
    return GraphModule(program, graph)


def _fake_mode(program: GraphModule, captured: CapturedProgram | None) -> Any:
    if captured is not None:
        return captured.fake_mode
    for node in program.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None:
            return mode
    raise AutoSPError("the program carries no fake values", hint="Capture it with autosp.capture")


# ---------------------------------------------------------------------- the comparison


@dataclass(slots=True)
class _Errors:
    """The largest errors of what a training step uses, over all runs."""

    gradient: float = 0.0
    loss: float = 0.0


@dataclass(slots=True)
class _Search:
    """Looks for the first wrong tensor of one run."""

    reference: _Reference
    run: RankRun
    fill: str
    tolerance: float
    errors: _Errors
    counts: Counter[Quantity] = field(default_factory=Counter)

    def values(self) -> WrongNode | None:
        """The first wrong value, in program order."""
        losses = {output.node for output in self.reference.outputs}
        for node in self.reference.nodes:
            local = self.run.sharded.values.get(node.name)
            expected = self.reference.values.get(node.name)
            if local is None or not local.comparable or not isinstance(expected, torch.Tensor):
                continue
            self.counts["value"] += 1
            for copy in (local, *self.run.sharded.more_values[node.name]):
                parts = self.run.values[copy.node]
                for actual in combine_values(parts, copy.placement, copy.shape):
                    found = difference(expected, actual, scale=1.0)
                    if node in losses:
                        self.errors.loss = max(self.errors.loss, found.max_rel)
                    if found.exceeds(self.tolerance):
                        return self._wrong(node, "value", copy.placement, found)
        return None

    def cotangents(self) -> WrongNode | None:
        """The first wrong cotangent, from the loss backwards."""
        known = self.reference.cotangents
        scale = largest(c for c in known.values() if c is not None)
        parameters = self._parameters()
        parameter_scale = largest(c for n in parameters if (c := known.get(n)) is not None)
        shared = self._shared_nodes()
        for node in reversed(self.reference.nodes):
            if node.name not in known:
                continue
            for parts, local in self._cotangent_parts(node, shared):
                self.counts["cotangent"] += 1
                expected = known[node.name]
                if expected is None:
                    expected = torch.zeros_like(self.reference.values[node.name])
                elsewhere = self._cotangent_elsewhere(node)
                for actual in combine_cotangents(parts, local.placement, local.shape):
                    whole = actual if elsewhere is None else actual + elsewhere
                    if node.name in parameters:
                        of_gradient = difference(expected, whole, scale=parameter_scale)
                        self.errors.gradient = max(self.errors.gradient, of_gradient.max_rel)
                    found = difference(expected, whole, scale=scale)
                    if found.exceeds(self.tolerance):
                        return self._wrong(node, "cotangent", local.placement, found)
        return None

    def _parameters(self) -> set[str]:
        inputs = {n: n.meta.get("autosp_input") for n in self.reference.nodes}
        return {node.name for node, given in inputs.items() if given and given.kind == "parameter"}

    def _cotangent_parts(
        self, node: Node, shared: set[str]
    ) -> list[tuple[list[torch.Tensor], LocalValue]]:
        local = self.run.sharded.values.get(node.name)
        if local is None or not local.comparable or node.name in shared:
            return []
        if local.node not in self.run.cotangents:
            return []
        found = [(self._filled(local.node), local)]
        if node.op == "placeholder" and local.node != node.name:
            # An input that is cut at once: its own cotangent counts as well.
            whole = LocalValue(node.name, REPLICATE, local.shape)
            if node.name in self.run.cotangents:
                found.append((self._filled(node.name), whole))
        return found

    def _cotangent_elsewhere(self, node: Node) -> torch.Tensor | None:
        """What flows back through other copies of a value that exists more than once."""
        parts = [
            combine_cotangents(self._filled(copy.node), copy.placement, copy.shape)[0]
            for copy in self.run.sharded.more_values[node.name]
            if copy.node in self.run.cotangents
        ]
        return torch.stack(parts).sum(0) if parts else None

    def _filled(self, name: str) -> list[torch.Tensor]:
        return [
            torch.zeros_like(value) if part is None else part
            for part, value in zip(self.run.cotangents[name], self.run.values[name], strict=True)
        ]

    def _shared_nodes(self) -> set[str]:
        """User nodes that reuse the tensor of an earlier one: it has that one's cotangent."""
        owners: set[str] = set()
        shared: set[str] = set()
        for node in self.reference.nodes:
            local = self.run.sharded.values.get(node.name)
            if local is not None and local.node in owners:
                shared.add(node.name)
            elif local is not None:
                owners.add(local.node)
        return shared

    def _wrong(
        self, node: Node, quantity: Quantity, placement: Placement, found: Difference
    ) -> WrongNode:
        return WrongNode(
            name=node.name,
            quantity=quantity,
            operator=str(node.target),
            placement=str(placement),
            module=module_path(node),
            source=source_location(node),
            padding_fill=self.fill,
            max_abs_error=found.max_abs,
            max_rel_error=found.max_rel,
            expected=found.expected,
            actual=found.actual,
            detail=found.detail,
        )


def _changes_with_fill(by_fill: Mapping[str, RankRun], tolerance: float) -> WrongNode | None:
    """Outputs and gradients that depend on what padding rows hold."""
    runs = list(by_fill.values())
    for run in runs[1:]:
        scale = largest(runs[0].results)
        for expected, actual in zip(runs[0].results, run.results, strict=True):
            found = difference(expected, actual, scale=scale)
            if found.exceeds(tolerance):
                return _fill_dependent(found)
    return None


def _fill_dependent(found: Difference) -> WrongNode:
    return WrongNode(
        "output", "output", "output", "", "", None, "", found.max_abs, found.max_rel,
        found.expected, found.actual, "the results depend on how padding rows are filled",
    )  # fmt: skip
