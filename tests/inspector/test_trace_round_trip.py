"""Whatever sequence of snapshots is recorded, each of them can be read again."""

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from autosp.events import NodeRecord, SourceLocation
from autosp_inspector.delta import GraphState, spread_keys
from autosp_inspector.queries.nodes import find_node, list_nodes
from autosp_inspector.queries.passes import count_changes, list_passes, pass_changes
from autosp_inspector.recorder import TraceRecorder
from autosp_inspector.rows import NodeRow
from autosp_inspector.trace import Trace, open_trace
from tests.support.snapshots import node, record_run

NAMES = [
    *"abcdefgh",
    "",
    "a'b\"c",
    "two\nlines",
    "\x1b[31mred\x00",
    "[bold]é漢🙂",
    "'; DROP TABLE node",
]
texts = st.sampled_from(["", "R", "S(1:seq)", "x\ty", "<script>"])
shapes = st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple)
sources = st.none() | st.builds(
    SourceLocation, file=texts, line=st.integers(0, 5), function=texts, text=texts
)
snapshots = st.lists(
    st.lists(st.sampled_from(NAMES), unique=True, max_size=10).flatmap(
        lambda names: st.tuples(
            *(
                st.builds(
                    node,
                    name=st.just(name),
                    target=texts,
                    inputs=st.lists(st.sampled_from(NAMES), max_size=2).map(tuple),
                    origins=st.lists(st.sampled_from(NAMES), max_size=2).map(tuple),
                    placement=st.none() | texts,
                    global_shape=shapes,
                    local_bytes=st.none() | st.integers(0, 2**62),
                    source=sources,
                    saved=st.booleans(),
                )
                for name in names
            )
        )
    ),
    min_size=1,
    max_size=6,
)


def as_record(row: NodeRow) -> NodeRecord:
    source = SourceLocation(**dataclasses.asdict(row.source)) if row.source else None
    return NodeRecord(
        row.name, row.op, row.target, row.inputs, row.role, row.phase, row.dtype,  # type: ignore[arg-type]
        row.global_shape, row.local_shape, row.placement, row.local_bytes, row.module,
        row.module_class, source, row.origins, row.saved, row.recomputed, row.reason,
    )  # fmt: skip


def check_changes(
    trace: Trace, index: int, before: Sequence[NodeRecord], after: Sequence[NodeRecord]
) -> None:
    changes = pass_changes(trace, index, context=True)
    assert [as_record(c.after) for c in changes if c.after] == list(after)
    old = {record.name: record for record in before}
    new = {record.name: record for record in after}
    for change in changes:
        row = change.after or change.before
        assert row is not None
        expected = (
            "+" if row.name not in old
            else "-" if row.name not in new
            else "=" if old[row.name] == new[row.name]
            else "~"
        )  # fmt: skip
        assert change.mark == expected
    assert {c.before.name for c in changes if c.before} == set(old)
    brief = pass_changes(trace, index)
    assert list(brief) == [change for change in changes if change.mark != "="]
    assert count_changes(trace, index) == len(brief)
    assert pass_changes(trace, index, offset=1, limit=2) == brief[1:3]
    summary = list_passes(trace)[index]
    marks = [change.mark for change in brief]
    assert summary.nodes_added == marks.count("+")
    assert summary.nodes_removed == marks.count("-")
    assert summary.nodes_changed == marks.count("~")


@settings(max_examples=40, deadline=None)
@given(snapshots)
@example([(node("a"), node("b"), node("c")), (node("c"), node("a"), node("b")), ()])
def test_every_snapshot_can_be_read_again(recorded: list[tuple[NodeRecord, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with TraceRecorder(Path(folder) / "run.autosp") as recorder:
            record_run(recorder, recorded)
        with open_trace(Path(folder) / "run.autosp") as trace:
            before: Sequence[NodeRecord] = ()
            for index, after in enumerate(recorded):
                rows = list_nodes(trace, graph="program", pass_index=index)
                assert [as_record(row) for row in rows] == list(after)
                assert [row.position for row in rows] == list(range(len(after)))
                assert all(
                    row.born_pass <= index and (row.died_pass is None or row.died_pass > index)
                    for row in rows
                )
                check_changes(trace, index, before, after)
                before = after
            latest = list_nodes(trace, graph="program")
            assert [as_record(row) for row in latest] == list(recorded[-1])
            for record in recorded[-1]:
                found = find_node(trace, record.name, graph="program")
                assert found is not None and as_record(found) == record


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.permutations(range(8)).flatmap(lambda p: st.integers(0, 8).map(lambda n: p[:n])))
)
def test_order_survives_even_when_the_gaps_are_tiny(orders: list[list[int]]) -> None:
    state = GraphState(order_gap=2)
    next_id = 1
    for order in orders:
        delta = state.advance([node(str(number)) for number in order], next_id=next_id)
        next_id += len(delta.added)
        keys = [state.nodes[str(number)].order_key for number in order]
        assert keys == sorted(set(keys))


def test_an_insertion_in_the_middle_moves_nobody() -> None:
    keys = spread_keys([None] * 4)
    with_two_more = spread_keys([keys[0], None, None, *keys[1:]])
    assert [with_two_more[0], *with_two_more[3:]] == keys
    assert with_two_more == sorted(set(with_two_more))


def test_one_node_that_moves_is_the_only_one_with_a_new_key() -> None:
    keys = spread_keys([None] * 100)
    moved = spread_keys([*keys[1:], keys[0]])
    assert moved[:-1] == keys[1:]
    assert moved[-1] > keys[-1]


def test_text_that_utf8_lacks_is_spelled_out(tmp_path: Path) -> None:
    with TraceRecorder(tmp_path / "run.autosp") as recorder:
        record_run(recorder, [[node("bad\udcff", reason="\ud800")]])
    with open_trace(tmp_path / "run.autosp") as trace:
        (row,) = list_nodes(trace, graph="program")
    assert (row.name, row.reason) == ("bad\\udcff", "\\ud800")
