"""The verdict on a run and what to try next: pure functions of the overview snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from autosp_inspector.rows import EstimateRow
from autosp_tui.present import (
    Line,
    Span,
    format_bytes,
    format_duration,
    format_fraction,
    format_share,
    kind_words,
    line,
    plural,
    short_dtype,
    short_path,
)
from autosp_tui.snapshots import Overview

_LABEL = 10
_EXPOSED_WORTH_A_LOOK = 0.05
_CATEGORY_ADVICE = {
    "parameters": "shard parameters over all ranks: --zero 3",
    "gradients": "shard gradients over all ranks: --zero 2",
    "optimizer": "shard the optimizer state over all ranks: --zero 1",
    "saved": "each rank keeps fewer tokens with a larger --sp",
    "activations": "raise --sp, or lower --batch",
    "logits_loss": "compute the loss inside the compiled region, so that logits stay sharded",
    "all_to_all": "fewer tokens per rank: raise --sp, or lower --batch",
}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One thing to do next; ``view`` and ``node`` say where Enter leads."""

    text: str
    view: str
    node: str = ""
    graph: str = ""


def verdict(overview: Overview) -> Line:
    """Does it work, and does it fit?"""
    run, estimate = overview.run, overview.estimate
    if run.status == "failed":
        return line(
            ("✖ FAILED  ", "bad"), (run.message or "the compilation failed", "text"), indent=10
        )
    if run.status != "ok":
        return line(
            ("▲ UNFINISHED  ", "warning"), ("the recording stopped early", "text"), indent=14
        )
    if estimate is None:
        return line(
            ("· NO ESTIMATE  ", "muted"), ("memory and time were not recorded", "text"), indent=15
        )
    peak = format_bytes(estimate.peak_live_bytes)
    if estimate.capacity_bytes is None:
        return line(
            (f"· PEAK {peak}  ", "strong"),
            ("choose a device with --gpu to see whether it fits", "muted"),
            indent=2,
        )
    share = format_share(estimate.peak_live_bytes, estimate.capacity_bytes)
    of = f"{peak} live of {format_bytes(estimate.capacity_bytes)} ({share})"
    if estimate.fits:
        return line(("✔ FITS  ", "good"), (of, "strong"), indent=8)
    if estimate.is_close:
        return line(("▲ TOO CLOSE TO SAY  ", "warning"), (of, "strong"), indent=20)
    return line(("✖ DOES NOT FIT  ", "bad"), (of, "strong"), indent=16)


def facts(overview: Overview) -> list[Line]:
    """The figures a reader asks for first."""
    lines = [_fact("mesh", *_mesh(overview))]
    if overview.estimate is not None:
        lines += [
            *_peak(overview.estimate),
            *_time(overview.estimate),
            *_sharded(overview.estimate),
        ]
    lines.append(_fact("moves", *_collectives(overview)))
    lines.append(_fact("passes", *_passes(overview)))
    return lines


def _fact(label: str, *spans: Span) -> Line:
    return Line(((f"{label:<{_LABEL}}", "muted"), *spans), _LABEL)


def _mesh(overview: Overview) -> list[Span]:
    run = overview.run
    axes = " × ".join(f"{name} {size}" for name, size in run.mesh.items())
    spans: list[Span] = [(axes or "one rank", "strong")]
    options = ("seq", "batch", "dtype", "zero", "attention", "checkpoint", "gpu")
    known = [
        f"{name} {short_dtype(str(run.config[name]))}"
        for name in options
        if run.config.get(name) is not None
    ]
    return [*spans, (f"  {'  '.join(known)}", "text")]


def _peak(estimate: EstimateRow) -> list[Line]:
    where: list[Span] = [
        (format_bytes(estimate.peak_live_bytes), "strong"),
        (f"  {estimate.peak_phase} ", "muted"),
        (estimate.peak_node, "operator"),
        (f"  {estimate.peak_module}", "module"),
    ]
    lines = [_fact("peak", *where)]
    if estimate.peak_source is not None:
        source = estimate.peak_source
        lines.append(_fact("", (f"{short_path(source.file)}:{source.line}", "source")))
    largest = sorted(estimate.peak_categories.items(), key=lambda item: -item[1])
    parts = [f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in largest[:3] if size]
    lines.append(_fact("made of", (" · ".join(parts) or "not recorded", "text")))
    return lines


def _time(estimate: EstimateRow) -> list[Line]:
    if estimate.step_ns is None:
        return [_fact("step", ("not modelled", "muted"))]
    share = format_share(estimate.exposed_ns, estimate.step_ns)
    return [
        _fact(
            "step",
            (format_duration(estimate.step_ns), "strong"),
            (f"  compute {format_duration(estimate.compute_ns)}", "text"),
            (f"  communication {format_duration(estimate.communication_ns)}: ", "text"),
            (
                f"exposed {format_duration(estimate.exposed_ns)} ({share})",
                _exposed_tone(estimate),
            ),
            (f", hidden {format_duration(estimate.hidden_ns)}", "muted"),
        )
    ]


def _exposed_tone(estimate: EstimateRow) -> str:
    return "exposed" if _exposed_fraction(estimate) > _EXPOSED_WORTH_A_LOOK else "good"


def _exposed_fraction(estimate: EstimateRow) -> float:
    return (estimate.exposed_ns or 0) / estimate.step_ns if estimate.step_ns else 0.0


def _sharded(estimate: EstimateRow) -> list[Line]:
    if estimate.sharded_flops_fraction is None and estimate.sharded_saved_bytes_fraction is None:
        return []
    return [
        _fact(
            "sharded",
            (format_fraction(estimate.sharded_flops_fraction), "strong"),
            (" of the work, ", "text"),
            (format_fraction(estimate.sharded_saved_bytes_fraction), "strong"),
            (" of the saved bytes", "text"),
        )
    ]


def _collectives(overview: Overview) -> list[Span]:
    rows = overview.collectives
    if not rows:
        return [("no collectives: nothing is communicated", "warning")]
    kinds = dict.fromkeys(row.kind for row in rows)
    parts = []
    for kind in kinds:
        of_kind = [row for row in rows if row.kind == kind]
        size = format_bytes(sum(row.bytes for row in of_kind))
        parts.append(f"{len(of_kind)} {kind_words(kind)} {size}")
    return [(" · ".join(parts), "collective")]


def _passes(overview: Overview) -> list[Span]:
    decisions = sum(row.decisions for row in overview.passes)
    times = [row.duration_ns for row in overview.passes if row.duration_ns is not None]
    spans: list[Span] = [(plural(len(overview.passes), "pass", "passes"), "text")]
    spans.append((f", {plural(decisions, 'decision')}, {format_duration(sum(times))}", "text"))
    failed = [row.name for row in overview.passes if row.status == "failed"]
    return [*spans, (f"  failed: {', '.join(failed)}", "bad")] if failed else spans


def suggestions(overview: Overview) -> tuple[Suggestion, ...]:
    """What to try or to look at next, most useful first."""
    found = [*_fix_memory(overview), *_fix_time(overview), *_look(overview)]
    return tuple(found)


def _fix_memory(overview: Overview) -> list[Suggestion]:
    estimate = overview.estimate
    if estimate is None:
        return []
    where = f"the peak is in {estimate.peak_phase} at {estimate.peak_node}: see what is alive"
    look = Suggestion(where, "memory", estimate.peak_node, estimate.peak_phase)
    if not (estimate.is_close or estimate.fits is False) or not estimate.peak_categories:
        return [look]
    largest = max(estimate.peak_categories, key=lambda name: estimate.peak_categories[name])
    advice = _CATEGORY_ADVICE.get(largest, "raise --sp")
    size = format_bytes(estimate.peak_categories[largest])
    text = f"{largest.replace('_', ' ')} hold {size} at the peak: {advice}"
    return [Suggestion(text, "memory", estimate.peak_node, estimate.peak_phase), look]


def _fix_time(overview: Overview) -> list[Suggestion]:
    exposed = [row for row in overview.collectives if row.exposed_ns]
    if not exposed:
        return []
    worst = max(exposed, key=lambda row: row.exposed_ns or 0)
    text = (
        f"{kind_words(worst.kind)} in {worst.module or 'the root'} waits "
        f"{format_duration(worst.exposed_ns)} in the open, the longest"
    )
    return [Suggestion(text, "timeline")]


def _look(overview: Overview) -> list[Suggestion]:
    found = []
    if overview.collectives:
        count = plural(len(overview.collectives), "collective")
        text = f"where {count} came in, why, and what each costs"
        found.append(Suggestion(text, "collectives"))
    sharding = max(
        overview.passes, key=lambda row: row.nodes_added + row.nodes_changed, default=None
    )
    if sharding is not None and len(overview.passes) > 1:
        found.append(
            Suggestion(
                f"before and after pass by pass ({plural(len(overview.passes), 'pass', 'passes')})",
                "passes",
            )
        )
    return found
