"""Each query on the synthetic transformer, and on small graphs where that is clearer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from autosp.events import (
    MEMORY_CATEGORIES,
    Decision,
    Finding,
    PassFinished,
    PassStarted,
    RunFinished,
)
from autosp_inspector.errors import TraceError
from autosp_inspector.queries.collectives import list_collectives
from autosp_inspector.queries.costs import node_cost
from autosp_inspector.queries.decisions import list_decisions
from autosp_inspector.queries.estimate import estimate_summary
from autosp_inspector.queries.findings import list_findings
from autosp_inspector.queries.memory import live_at_peak, memory_curve
from autosp_inspector.queries.modules import child_modules, module_nodes
from autosp_inspector.queries.nodes import (
    count_nodes,
    derived_nodes,
    find_node,
    graph_names,
    list_nodes,
    node_history,
    similar_names,
    users_of,
)
from autosp_inspector.queries.passes import count_changes, list_passes, pass_changes
from autosp_inspector.queries.sql import run_sql
from autosp_inspector.queries.timeline import timeline_events
from autosp_inspector.recorder import TraceRecorder
from autosp_inspector.rows import AlternativeRow, NodeRow, Source
from autosp_inspector.trace import Trace, open_trace
from tests.support.snapshots import node, record_pass, record_run, run_started
from tests.support.synthetic import write_synthetic_trace


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    path = write_synthetic_trace(tmp_path_factory.mktemp("trace") / "run.autosp")
    with open_trace(path) as opened:
        yield opened


def names(rows: tuple[NodeRow, ...]) -> list[str]:
    return [row.name for row in rows]


def the(
    trace: Trace, name: str, graph: str | None = None, pass_index: int | None = None
) -> NodeRow:
    found = find_node(trace, name, graph=graph, pass_index=pass_index)
    assert found is not None
    return found


# -- passes


def test_passes_are_in_order_with_their_counts(trace: Trace) -> None:
    rows = list_passes(trace)
    assert [(row.index, row.name) for row in rows] == [
        (0, "capture"),
        (1, "functionalise"),
        (2, "causal-mask"),
        (3, "shard"),
        (4, "joint"),
        (5, "partition"),
    ]
    counts = [(row.nodes_added, row.nodes_removed, row.nodes_changed) for row in rows]
    assert counts[:4] == [(68, 0, 0), (0, 0, 4), (0, 2, 2), (35, 0, 66)]
    assert counts[4][0] == count_nodes(trace, graph="joint")
    assert counts[5][0] == count_nodes(trace, graph="forward") + count_nodes(
        trace, graph="backward"
    )
    assert [row.decisions for row in rows] == [0, 0, 2, 14, 0, 1]
    assert rows[3].options == {"level": 3}
    assert rows[3].duration_ns == 480_000_000


def test_changes_of_a_pass_are_aligned_by_name(trace: Trace) -> None:
    changes = pass_changes(trace, 2)
    assert [(c.mark, (c.after or c.before or the(trace, "")).name) for c in changes] == [
        ("-", "ones"),
        ("-", "tril"),
        ("~", "sdpa_0"),
        ("~", "sdpa_1"),
    ]
    before, after = changes[2].before, changes[2].after
    assert before is not None and after is not None
    assert before.inputs[-1] == "tril"
    assert "tril" not in after.inputs
    assert (before.position, after.position) == (33, 31)


def test_context_adds_the_unchanged_nodes(trace: Trace) -> None:
    changes = pass_changes(trace, 2, context=True)
    assert len(changes) == count_changes(trace, 2, context=True) == 68
    assert [c.mark for c in changes].count("=") == 64
    removed = [position for position, c in enumerate(changes) if c.mark == "-"]
    assert removed[0] > 0 and changes[removed[0] - 1].mark == "="


def test_a_pass_that_makes_a_graph_adds_all_its_nodes(trace: Trace) -> None:
    assert {c.mark for c in pass_changes(trace, 4, graph="joint")} == {"+"}
    assert pass_changes(trace, 4) == ()
    assert pass_changes(trace, 3, graph="joint") == ()


def test_changes_can_be_paged(trace: Trace) -> None:
    everything = pass_changes(trace, 3)
    assert count_changes(trace, 3) == len(everything)
    assert pass_changes(trace, 3, offset=10, limit=5) == everything[10:15]


def test_a_failed_pass_says_why(tmp_path: Path) -> None:
    with TraceRecorder(tmp_path / "run.autosp") as recorder:
        recorder.record(run_started())
        recorder.record(PassStarted(0, "capture", "d"))
        recorder.record(PassFinished(0, 4, "failed", "graph break"))
        recorder.record(RunFinished("failed", 5))
    with open_trace(tmp_path / "run.autosp") as trace:
        (row,) = list_passes(trace)
    assert (row.status, row.message) == ("failed", "graph break")


# -- nodes


def test_graphs_are_named_in_pipeline_order(trace: Trace) -> None:
    assert graph_names(trace) == ("program", "joint", "forward", "backward")


def test_a_node_has_everything_that_was_recorded(trace: Trace) -> None:
    row = the(trace, "sdpa_0")
    assert row.graph == "program"
    assert row.target == "aten.scaled_dot_product_attention.default"
    assert row.inputs == ("unpack_transpose_q_0", "unpack_transpose_k_0", "unpack_transpose_v_0")
    assert (row.global_shape, row.local_shape) == ((1, 8, 4096, 64), (1, 2, 4096, 64))
    assert (row.placement, row.dtype, row.local_bytes) == ("S(1:head)", "bfloat16", 1 << 20)
    assert (row.module, row.module_class) == ("layers.0.attn", "Attention")
    assert row.source is not None
    assert (row.source.file, row.source.line) == ("samples/gpt.py", 25)
    assert row.source.text.startswith("y = F.scaled_dot_product_attention")
    assert (row.born_pass, row.died_pass) == (3, None)


def test_nodes_are_listed_as_after_any_pass(trace: Trace) -> None:
    assert [count_nodes(trace, graph="program", pass_index=index) for index in range(6)] == [
        68, 68, 66, 101, 101, 101,
    ]  # fmt: skip
    assert count_nodes(trace, graph="joint", pass_index=3) == 0
    assert "tril" in names(list_nodes(trace, graph="program", pass_index=1))
    assert "tril" not in names(list_nodes(trace, graph="program"))
    assert list_nodes(trace, graph="nonsense") == ()
    assert list_nodes(trace, graph="program", pass_index=-1) == ()


def test_lists_can_be_paged(trace: Trace) -> None:
    everything = list_nodes(trace, graph="joint")
    pages = [
        row
        for offset in range(0, len(everything), 50)
        for row in list_nodes(trace, graph="joint", offset=offset, limit=50)
    ]
    assert tuple(pages) == everything
    assert list_nodes(trace, graph="joint", offset=10_000, limit=5) == ()
    assert list_nodes(trace, graph="joint", offset=-5, limit=1) == everything[:1]
    assert list_nodes(trace, graph="joint", limit=-1) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SDPA_0", ["sdpa_0", "pack_sdpa_0", "all_to_all_sdpa_0", "wait_sdpa_0", "unpack_sdpa_0"]),
        ("cross_entropy_loss", ["cross_entropy"]),
        ("layers.1.mlp.up", ["layers_1_mlp_up_weight", "linear_up_1"]),
        ("gpt.py:66", ["embedding"]),
        ("self.lm_head(x)", ["linear_head"]),
        ("100% '; --", []),
    ],
)
def test_text_filters_name_target_module_and_source(
    trace: Trace, text: str, expected: list[str]
) -> None:
    assert names(list_nodes(trace, graph="program", text=text)) == expected
    assert count_nodes(trace, graph="program", text=text) == len(expected)


def test_a_module_filter_includes_what_is_below_and_nothing_else(tmp_path: Path) -> None:
    modules = ["layers.1", "layers.10", "layers.1.attn", "layers.1-x", "layers", "Layers.1"]
    with TraceRecorder(tmp_path / "run.autosp") as recorder:
        record_run(recorder, [[node(f"n{i}", module=m) for i, m in enumerate(modules)]])
    with open_trace(tmp_path / "run.autosp") as small:
        rows = list_nodes(small, graph="program", module="layers.1")
        assert [row.module for row in rows] == ["layers.1", "layers.1.attn"]
        assert count_nodes(small, graph="program", module="layers") == 5


def test_filters_combine(trace: Trace) -> None:
    rows = list_nodes(trace, graph="forward", role="collective", module="layers.1", text="sdpa")
    assert names(rows) == ["all_to_all_sdpa_1"]
    assert count_nodes(trace, graph="forward", role="nonsense") == 0


def test_a_node_is_found_by_its_exact_name(trace: Trace) -> None:
    assert find_node(trace, "sdpa") is None
    assert the(trace, "grad_sdpa_0").graph == "backward"
    assert the(trace, "sdpa_0", graph="forward").graph == "forward"
    assert the(trace, "sdpa_0", pass_index=0).inputs[-1] == "tril"
    assert find_node(trace, "tril", pass_index=3) is None


def test_a_removed_node_is_found_in_its_last_version(trace: Trace) -> None:
    row = the(trace, "tril")
    assert (row.born_pass, row.died_pass) == (0, 2)


def test_history_has_every_version(trace: Trace) -> None:
    history = node_history(trace, "sdpa_0", graph="program")
    assert [(row.born_pass, row.died_pass) for row in history] == [(0, 2), (2, 3), (3, None)]
    assert [row.placement for row in history] == [None, None, "S(1:head)"]
    assert node_history(trace, "nobody", graph="program") == ()


def test_history_goes_over_compilations(tmp_path: Path) -> None:
    with TraceRecorder(tmp_path / "run.autosp") as recorder:
        recorder.record(run_started())
        record_pass(recorder, 0, [node("a")])
        record_pass(recorder, 1, [node("b"), node("a", placement="R")], compilation=1)
        recorder.record(RunFinished("ok", 1))
    with open_trace(tmp_path / "run.autosp") as small:
        history = node_history(small, "a", graph="program")
    assert [(row.born_pass, row.position, row.placement) for row in history] == [
        (0, 0, None),
        (1, 1, "R"),
    ]


def test_lineage_goes_both_ways(trace: Trace) -> None:
    derived = derived_nodes(trace, "linear_q_0")
    assert [(row.graph, row.name) for row in derived] == [
        ("joint", "linear_q_0"),
        ("joint", "grad_linear_q_0"),
        ("forward", "linear_q_0"),
        ("backward", "linear_q_0"),
        ("backward", "grad_linear_q_0"),
    ]
    assert {row.origins for row in derived} == {("linear_q_0",)}


def test_users_are_the_readers_at_that_pass(trace: Trace) -> None:
    assert names(users_of(trace, "sdpa_0", "program")) == ["pack_sdpa_0"]
    assert names(users_of(trace, "sdpa_0", "program", pass_index=0)) == ["transpose_y_0"]
    assert names(users_of(trace, "tril", "program", pass_index=0)) == ["sdpa_0", "sdpa_1"]
    assert users_of(trace, "tril", "program") == ()
    assert users_of(trace, "tril", "nonsense") == ()


def test_similar_names_are_offered(trace: Trace) -> None:
    assert similar_names(trace, "sdap_0")[0] == "sdpa_0"
    assert "cross_entropy" in similar_names(trace, "entropy")
    assert similar_names(trace, "") == ()
    assert similar_names(trace, "zzzzzzzzzz") == ()


# -- modules


def test_the_module_tree_has_totals(trace: Trace) -> None:
    root = child_modules(trace, "")
    assert [(row.path, row.depth, row.has_children) for row in root] == [
        ("embed", 1, False),
        ("layers", 1, True),
        ("lm_head", 1, False),
    ]
    layers = child_modules(trace, "layers")
    assert [row.path for row in layers] == ["layers.0", "layers.1"]
    assert [row.num_nodes for row in layers] == [44, 44]
    assert [row.num_collectives for row in layers] == [4, 4]
    assert [row.collective_bytes for row in layers] == [4 << 20, 4 << 20]
    assert layers[0].depth == 2
    assert layers[0].module_class == "Block"
    assert layers[0].placements[0] == "S(1:seq)"
    assert sum(row.num_nodes for row in child_modules(trace, "layers.0")) == 42
    assert child_modules(trace, "nowhere") == ()


def test_the_module_tree_belongs_to_a_pass(trace: Trace) -> None:
    before = child_modules(trace, "", pass_index=0)
    assert {row.placements for row in before} == {()}
    assert {row.num_collectives for row in before} == {0}
    assert child_modules(trace, "", graph="joint", pass_index=0) == ()


def test_modules_are_in_graph_order_not_in_alphabetical_order(tmp_path: Path) -> None:
    paths = ["layers.9", "layers.10", "embed"]
    with TraceRecorder(tmp_path / "run.autosp") as recorder:
        record_run(recorder, [[node(path, module=path) for path in paths]])
    with open_trace(tmp_path / "run.autosp") as small:
        assert [row.path for row in child_modules(small, "")] == ["layers", "embed"]
        assert [row.path for row in child_modules(small, "layers")] == ["layers.9", "layers.10"]


def test_nodes_of_a_module_exclude_its_children(trace: Trace) -> None:
    rows = module_nodes(trace, "layers.0", graph="program")
    assert names(rows) == ["add_a_0", "add_b_0"]
    assert names(module_nodes(trace, "layers.0.attn.q_proj", graph="program")) == [
        "layers_0_attn_q_proj_weight",
        "linear_q_0",
    ]
    assert module_nodes(trace, "layers.0", graph="nonsense") == ()


# -- decisions and findings


def test_decisions_come_with_their_alternatives(trace: Trace) -> None:
    (row,) = list_decisions(trace, topic="attention", node="sdpa_0")
    assert (row.pass_index, row.pass_name, row.status) == (3, "shard", "applied")
    assert (row.chosen, row.module) == ("ulysses", "layers.0.attn")
    assert row.alternatives[0] == AlternativeRow(
        "ring", "same bytes, but one message per step", "3 send/recv of 2.0 MiB"
    )
    assert [option.name for option in row.alternatives] == ["ring", "gather"]


def test_decisions_can_be_filtered(trace: Trace) -> None:
    assert len(list_decisions(trace)) == 17
    assert {row.topic for row in list_decisions(trace, pass_index=2)} == {"mask"}
    assert [row.node for row in list_decisions(trace, status="missed")] == ["linear_head"]
    assert [row.topic for row in list_decisions(trace, node="")] == ["padding", "partition"]
    assert {row.topic for row in list_decisions(trace, text="ULYSSES")} == {"attention"}
    assert list_decisions(trace, text="sdpa_0", status="failed") == ()


def test_a_decision_after_its_pass_is_kept(tmp_path: Path) -> None:
    with TraceRecorder(tmp_path / "run.autosp") as recorder:
        recorder.record(run_started())
        record_pass(recorder, 0, [node("a", module="m")])
        recorder.record(Decision(0, "analysis", "t", "a", "c", "r"))
        recorder.record(Decision(9, "analysis", "t", "b", "c", "r"))
        recorder.record(RunFinished("ok", 1))
    with open_trace(tmp_path / "run.autosp") as small:
        rows = list_decisions(small)
    assert [(row.pass_index, row.pass_name, row.module) for row in rows] == [
        (0, "pass-0", "m"),
        (9, "", ""),
    ]


def test_findings_come_errors_first(tmp_path: Path) -> None:
    with TraceRecorder(tmp_path / "run.autosp") as recorder:
        recorder.record(run_started())
        for code, severity in (("i", "info"), ("w", "warning"), ("e", "error"), ("f", "error")):
            recorder.record(Finding(code, severity, "m"))  # type: ignore[arg-type]
        recorder.record(RunFinished("ok", 1))
    with open_trace(tmp_path / "run.autosp") as small:
        assert [row.code for row in list_findings(small)] == ["e", "f", "w", "i"]


def test_a_finding_names_its_line(trace: Trace) -> None:
    (row,) = list_findings(trace)
    assert (row.code, row.severity, row.node) == ("large-logits", "warning", "linear_head")
    assert row.source == Source("samples/gpt.py", 69, "forward", "logits = self.lm_head(x)")
    assert row.hint == "compute the loss in parts inside the model"


# -- collectives and estimates


def test_collectives_are_those_of_the_final_graphs_in_order(trace: Trace) -> None:
    rows = list_collectives(trace)
    assert [row.graph for row in rows] == ["forward"] * 9 + ["backward"] * 8
    assert [row.name for row in rows[:4]] == [
        "all_to_all_transpose_q_0",
        "all_to_all_transpose_k_0",
        "all_to_all_transpose_v_0",
        "all_to_all_sdpa_0",
    ]
    assert (rows[0].source_placement, rows[0].target_placement) == ("S(2:seq)", "S(1:head)")
    assert rows[8].kind == "all_reduce"
    first_backward = rows[9]
    assert (first_backward.name, first_backward.phase) == ("grad_all_to_all_sdpa_1", "backward")
    assert (first_backward.cause, first_backward.origin) == ("sdpa_1", "implicit")


def test_collectives_have_the_times_of_the_timeline(trace: Trace) -> None:
    bars = {(event.node, event.phase): event for event in timeline_events(trace)}
    for row in list_collectives(trace):
        bar = bars[row.name, row.phase]
        assert (row.start_ns, row.duration_ns, row.exposed_ns) == (
            bar.start_ns,
            bar.duration_ns,
            bar.exposed_ns,
        )


def test_collectives_can_be_filtered(trace: Trace) -> None:
    assert len(list_collectives(trace, phase="backward")) == 8
    assert len(list_collectives(trace, graph="program")) == 9
    assert list_collectives(trace, graph="nonsense") == ()


def test_memory_points_are_split_exactly(trace: Trace) -> None:
    curve = memory_curve(trace)
    assert [row.index for row in curve] == list(range(len(curve)))
    for row in curve:
        assert set(row.categories) == set(MEMORY_CATEGORIES)
        assert sum(row.categories.values()) == row.live_bytes


def test_the_peak_is_the_highest_point(trace: Trace) -> None:
    summary = estimate_summary(trace)
    assert summary is not None
    highest = max(memory_curve(trace), key=lambda row: row.live_bytes)
    assert (summary.peak_live_bytes, summary.peak_node) == (highest.live_bytes, highest.node)
    assert summary.peak_index == highest.index
    assert summary.peak_categories == highest.categories
    assert (summary.fits, summary.reserved_bytes) == (True, None)
    assert summary.not_modelled == ("reserved", "device")
    assert summary.sharded_flops_fraction == 0.998
    assert summary.peak_source is not None and summary.peak_source.line == 70


def test_live_tensors_come_largest_first(trace: Trace) -> None:
    rows = live_at_peak(trace)
    sizes = [row.bytes for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    head = next(row for row in rows if row.node == "linear_head")
    assert (head.category, head.shape) == ("logits_loss", (1, 1024, 32000))
    assert head.created_by is not None and head.created_by.line == 69


def test_the_timeline_can_be_cut(trace: Trace) -> None:
    everything = timeline_events(trace)
    assert {row.stream for row in everything} == {"compute", "comm:sp"}
    assert [row.start_ns for row in everything] == sorted(row.start_ns for row in everything)
    middle = everything[40]
    window = timeline_events(trace, start_ns=middle.start_ns + 1, end_ns=middle.start_ns + 2)
    assert middle in window
    assert len(window) < 6
    assert timeline_events(trace, start_ns=10**15) == ()


def test_costs_belong_to_a_graph(trace: Trace) -> None:
    cost = node_cost(trace, "sdpa_0", "forward")
    assert cost is not None
    assert (cost.flops, cost.memory_bytes) == (512 << 20, 3 << 20)
    assert cost.source.startswith("roofline")
    assert node_cost(trace, "sdpa_0", "program") is None


def test_a_trace_without_estimates_says_so(tmp_path: Path) -> None:
    with TraceRecorder(tmp_path / "run.autosp") as recorder:
        record_run(recorder, [[node("a")]])
    with open_trace(tmp_path / "run.autosp") as small:
        assert estimate_summary(small) is None
        assert not memory_curve(small)
        assert not live_at_peak(small)
        assert not timeline_events(small)
        assert not list_collectives(small)


# -- SQL


def test_sql_reads_the_views(trace: Trace) -> None:
    result = run_sql(
        trace,
        "SELECT name, placement FROM nodes WHERE graph = 'program' AND died_pass IS NULL"
        " AND name LIKE 'sdpa%' ORDER BY name",
    )
    assert result.columns == ("name", "placement")
    assert result.rows == (("sdpa_0", "S(1:head)"), ("sdpa_1", "S(1:head)"))
    assert len(run_sql(trace, "SELECT * FROM edges", limit=3).rows) == 3


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM node",
        "ATTACH 'elsewhere.db' AS other",
        "PRAGMA user_version = 9",
        "SELECT load_extension('x')",
        "SELECT 1; SELECT 2",
        "SELEC",
        "SELECT * FROM nowhere",
        "",
        "SELECT '\0'",
    ],
)
def test_other_sql_is_refused_in_one_line(
    trace: Trace, statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TraceError) as caught:
        run_sql(trace, statement)
    assert str(caught.value).startswith("SQL: ")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert list_passes(trace)
