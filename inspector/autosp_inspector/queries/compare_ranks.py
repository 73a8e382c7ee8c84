"""The ranks of one run beside each other: where do they first differ?

Every rank writes its own trace of the same compilation, so that the tensors of the program,
with their placements, and the collectives must be the same on all. Left out is what may differ:
numbers of slices and rows sent to neighbours, and nodes that compute sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from autosp_inspector.queries.collectives import list_collectives
from autosp_inspector.queries.nodes import graph_names, list_nodes
from autosp_inspector.rows import CollectiveRow, FindingRow, NodeRow, RunRow, Source
from autosp_inspector.trace import Trace

CODE = "ranks-differ"
MISSING = "missing-rank"
_MAY_DIFFER = ("started_ns",)
"""Options of a run that each rank has its own of."""
_HINT = (
    "Build the same model with the same options on all ranks and pass inputs of the same shapes; "
    "if you do, this is a mistake in the compiler: please report it"
)


class _Difference(NamedTuple):
    what: str
    first: str
    """What the lowest rank has."""
    other: str
    node: str = ""
    module: str = ""
    source: Source | None = None


class _Item(NamedTuple):
    """A node or collective, as it has to be on every rank."""

    identity: tuple[object, ...]
    text: str
    row: NodeRow | CollectiveRow


def rank_differences(traces: Sequence[Trace]) -> tuple[FindingRow, ...]:
    """The first difference between the ranks of a run, and ranks without a trace.

    ``traces`` are those of one run, by rank; the lowest rank is what others are compared with.
    At most one error, of the first rank that differs.
    """
    first, *others = traces
    for trace in others:
        difference = next(_differences(first, trace), None)
        if difference is not None:
            return (_finding(difference, first.run, trace.run), *_missing(traces))
    return _missing(traces)


def _finding(difference: _Difference, first: RunRow, other: RunRow) -> FindingRow:
    message = (
        f"rank {other.rank} differs from rank {first.rank} in {difference.what}: "
        f"{difference.other} on rank {other.rank}, {difference.first} on rank {first.rank}"
    )
    hint = _HINT
    if other.status != "ok" or first.status != "ok":
        ended = other if other.status != "ok" else first
        hint = f"Rank {ended.rank} is {ended.status}: {ended.message or 'its trace ends early'}"
    return FindingRow(
        CODE, "error", message, difference.node, difference.module, difference.source, hint
    )


def _missing(traces: Sequence[Trace]) -> tuple[FindingRow, ...]:
    """A training writes one trace a rank; a dry run stands for all."""
    run = traces[0].run
    found = {trace.run.rank for trace in traces}
    absent = [rank for rank in range(run.world_size) if rank not in found]
    if run.mode != "training" or not absent:
        return ()
    some = ", ".join(map(str, absent[:8])) + (" ..." if len(absent) > 8 else "")
    return (
        FindingRow(
            MISSING,
            "warning",
            f"no finished trace of rank {some} of {run.world_size}: not compared",
            "",
            "",
            None,
            "A rank that was killed leaves rank-N.autosp.partial, which can be opened by name",
        ),
    )


def _differences(first: Trace, other: Trace) -> Iterator[_Difference]:
    """All differences, the most general first; found one after the other."""
    yield from _of_runs(first.run, other.run)
    compilations = [_compilations(trace) for trace in (first, other)]
    for compilation in sorted(set(compilations[0]) & set(compilations[1])):
        pair = first.of_compilation(compilation), other.of_compilation(compilation)
        yield from _of_lists("node", *map(_nodes, pair))
        for phase in ("forward", "backward"):
            yield from _of_lists(
                f"{phase} collective", *(_collectives(trace, phase) for trace in pair)
            )
    if compilations[0] != compilations[1]:
        mine, theirs = (str(len(numbers)) for numbers in compilations)
        yield _Difference("the number of compilations", mine, theirs)


def _of_runs(first: RunRow, other: RunRow) -> Iterator[_Difference]:
    pairs: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
        ("the mesh", first.mesh, other.mesh),
        ("the configuration", first.config, other.config),
        ("the run", _header(first), _header(other)),
    ]
    for what, mine, theirs in pairs:
        for key in [*mine, *(key for key in theirs if key not in mine)]:
            here, there = mine.get(key, "nothing"), theirs.get(key, "nothing")
            if key not in _MAY_DIFFER and here != there:
                yield _Difference(what, f"{key} = {here}", f"{key} = {there}")


def _header(run: RunRow) -> dict[str, Any]:
    names = ("world_size", "mode", "model", "autosp_version", "torch_version")
    return {name: getattr(run, name) for name in (*names, "gradient_convention")}


def _compilations(trace: Trace) -> tuple[int, ...]:
    rows = trace.fetch("SELECT DISTINCT compilation FROM graph ORDER BY compilation")
    return tuple(number for (number,) in rows)


def _of_lists(what: str, mine: Sequence[_Item], theirs: Sequence[_Item]) -> Iterator[_Difference]:
    for position, (here, there) in enumerate(zip_longest(mine, theirs)):
        if here is None or there is None or here.identity != there.identity:
            row = (there or here).row
            yield _Difference(
                f"{what} {position + 1}",
                "no more" if here is None else here.text,
                "no more" if there is None else there.text,
                row.name,
                row.module,
                row.source if isinstance(row, NodeRow) else None,
            )
            return


def _nodes(trace: Trace) -> list[_Item]:
    """The program's own tensors, and those that no pass placed yet."""
    nodes = list_nodes(trace, graph="program")
    is_sharded = any(node.placement for node in nodes)
    return [
        _Item(
            (
                node.name, node.target, node.role, node.placement, node.dtype, node.global_shape,
                node.local_shape if node.global_shape is not None else None, node.module,
            ),
            _node_text(node),
            node,
        )
        for node in nodes
        if node.placement is not None or (not is_sharded and node.dtype is not None)
    ]  # fmt: skip


def _node_text(node: NodeRow) -> str:
    shape = node.global_shape if node.global_shape is not None else node.local_shape
    parts = [node.name, node.target, node.dtype, None if shape is None else str(list(shape))]
    on_rank = node.local_shape if node.local_shape != shape else None
    parts += [node.placement, None if on_rank is None else f"{list(on_rank)} on the rank"]
    return " ".join(part for part in parts if part)


def _collectives(trace: Trace, phase: str) -> list[_Item]:
    if phase not in graph_names(trace):
        return []
    return [
        _Item(
            (
                row.kind, row.axis, row.group_size, row.dtype, row.origin,
                row.source_placement, row.target_placement,
                None if row.kind == "all_to_all" else row.bytes,
            ),
            _collective_text(row),
            row,
        )
        for row in list_collectives(trace, graph=phase)
    ]  # fmt: skip


def _collective_text(row: CollectiveRow) -> str:
    text = f"{row.kind} of {row.bytes} bytes {row.dtype} over {row.axis} ({row.group_size})"
    change = f" {row.source_placement} -> {row.target_placement}"
    return f"{text}{change if row.source_placement or row.target_placement else ''} ({row.name})"
