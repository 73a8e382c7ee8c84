"""What the summary counts and how it judges."""

from __future__ import annotations

from dataclasses import replace

from autosp_inspector.report.collectives import totals_by_kind
from autosp_inspector.report.findings import first_of_each_code
from autosp_inspector.report.memory import RankMemory, memory_report
from autosp_inspector.report.summary import per_layer, verdict
from autosp_inspector.report.timeline import NOT_ESTIMATED, timeline_report
from autosp_inspector.report.verification import verification_report
from autosp_inspector.rows import CollectiveRow, EstimateRow, FindingRow

GIB = 1024**3
ESTIMATE = EstimateRow(
    peak_live_bytes=20 * GIB,
    peak_phase="backward",
    peak_node="mm",
    peak_module="head",
    peak_source=None,
    peak_categories={"parameters": 15 * GIB, "saved": 5 * GIB, "other": 0},
    peak_index=3,
    allocated_bytes=None,
    reserved_bytes=None,
    device_bytes=None,
    capacity_bytes=80 * GIB,
    fits=True,
    step_ns=None,
    compute_ns=None,
    communication_ns=None,
    exposed_ns=None,
    hidden_ns=None,
    sharded_flops_fraction=None,
    sharded_saved_bytes_fraction=None,
    not_modelled=(),
)


def collective(module: str, phase: str, size: int, duration_ns: int | None = 5) -> CollectiveRow:
    return CollectiveRow(
        name="c",
        graph=phase,
        kind="all_to_all",
        phase=phase,
        module=module,
        origin="implicit",
        axis="sp",
        group_size=2,
        bytes=size,
        dtype="float32",
        cause="",
        reason="",
        source_placement="",
        target_placement="",
        start_ns=None,
        duration_ns=duration_ns,
        exposed_ns=None,
    )


def test_collectives_are_counted_by_numbered_module() -> None:
    rows = [
        collective("model.layers.0.attn", "forward", 10),
        collective("model.layers.0.mlp", "forward", 5),
        collective("model.layers.1.attn", "forward", 10),
        collective("model.layers.1.attn", "backward", 7),
        collective("head", "forward", 1000),
    ]
    layers = per_layer(rows)
    assert layers is not None
    assert layers.layers == 2
    assert layers.counts == {"forward": (1, 2), "backward": (0, 1)}
    assert layers.bytes == {"forward": 15, "backward": 7}
    assert per_layer([collective("head", "forward", 1)]) is None


def test_an_unknown_time_makes_the_total_unknown() -> None:
    rows = [collective("a", "forward", 1, 5), collective("a", "forward", 2, None)]
    (total,) = totals_by_kind(rows)
    assert (total.count, total.bytes, total.duration_ns) == (2, 3, None)


def test_the_verdict_names_the_figures() -> None:
    assert verdict(ESTIMATE) == "FITS, 20 GiB of 80 GiB (25.0 %)"
    too_large = replace(ESTIMATE, peak_live_bytes=100 * GIB, fits=False)
    assert verdict(too_large) == "DOES NOT FIT, 100 GiB of 80 GiB (125.0 %)"
    close = replace(ESTIMATE, peak_live_bytes=70 * GIB, fits=None)
    assert verdict(close) == "TOO CLOSE TO SAY, 70 GiB of 80 GiB (87.5 %)"
    unknown = replace(ESTIMATE, capacity_bytes=None, fits=None)
    assert verdict(unknown) == "20 GiB, no GPU given to compare with"


def test_memory_without_an_estimate_is_null_not_zero() -> None:
    report = memory_report([RankMemory(0, None)])
    assert report.data["ranks"] == [{"rank": 0, "peak": None, "categories": {}}]
    assert report.data["fits"] is None


def test_the_fullest_rank_decides_whether_it_fits() -> None:
    full = replace(ESTIMATE, peak_live_bytes=90 * GIB, fits=False)
    report = memory_report([RankMemory(0, ESTIMATE), RankMemory(1, full)])
    assert report.data["fits"] is False


def test_a_timeline_without_a_device_invents_nothing() -> None:
    report = timeline_report(ESTIMATE, ())
    assert report.data["step_ns"] is None
    assert report.data["streams"] == []
    assert report.blocks[0].lines == (NOT_ESTIMATED,)  # type: ignore[union-attr]


def test_findings_of_one_kind_are_told_once() -> None:
    rows = [FindingRow("square-tensor", "warning", f"t{i}", "", "", None, "") for i in range(3)]
    lines = first_of_each_code(rows, title="Findings").lines
    assert lines == (
        "warning square-tensor: t0",
        "    and 2 more of this kind: see `autosp-inspect findings`",
    )


def test_a_gradient_that_is_not_a_number_is_the_worst() -> None:
    data = {
        "ranks": 2,
        "dtype": "float64",
        "loss": {"reference": 1.0, "compiled": 1.0, "rel_error": 0.0},
        "gradients": [
            {"name": "small", "rel_error": 1e-16},
            {"name": "nan", "rel_error": float("nan")},
        ],
        "max_rel_error": float("nan"),
        "first_wrong_node": "linear_3",
        "ok": False,
    }
    report = verification_report(data)
    assert report.problems == 1
    assert report.blocks[1].rows[0][0] == "nan"  # type: ignore[union-attr]
    assert report.blocks[2].lines == ("First wrong node: linear_3",)  # type: ignore[union-attr]
