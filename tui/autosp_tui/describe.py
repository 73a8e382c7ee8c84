"""Detail panes as lines of text: pure functions of snapshots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from autosp_inspector.queries.causes import Cause
from autosp_inspector.rows import (
    BUFFER_ROLES,
    CollectiveRow,
    DecisionRow,
    FindingRow,
    MemoryRow,
    ModuleRow,
    NodeRow,
    Source,
    TimelineRow,
)
from autosp_tui.present import (
    Line,
    Span,
    fit,
    format_bytes,
    format_count,
    format_duration,
    format_share,
    format_tensor,
    heading,
    join_words,
    kind_words,
    line,
    placement_tone,
    plural,
    short_path,
    short_target,
)
from autosp_tui.snapshots import CollectiveDetail, NodeDetail
from autosp_tui.theme import category_fill, category_tone

_LABEL = 12
SEVERITY_MARKS = {"error": "✖", "warning": "▲", "info": "·"}
SEVERITY_TONES = {"error": "bad", "warning": "warning", "info": "muted"}
STATUS_MARKS = {"applied": "✔", "missed": "○", "failed": "✖", "analysis": "·"}
STATUS_TONES = {"applied": "good", "missed": "warning", "failed": "bad", "analysis": "muted"}


def field(label: str, *spans: Span) -> Line:
    """``label      value`` with the value's wrapped rest under the value."""
    return Line(((f"{label:<{_LABEL}}", "muted"), *spans), _LABEL)


def describe_source(source: Source | None) -> list[Line]:
    """File, line and the text of that line."""
    if source is None:
        return [field("source", ("not recorded", "muted"))]
    where = f"{short_path(source.file)}:{source.line}"
    inside = f" in {source.function}" if source.function else ""
    lines = [field("source", (where, "source"), (inside, "muted"))]
    if source.text:
        lines.append(field("", (source.text.strip(), "strong")))
    return lines


def describe_tensor(node: NodeRow) -> list[Line]:
    """Placement, shapes and bytes of a node."""
    lines: list[Line] = []
    if node.placement:
        lines.append(field("placement", (node.placement, placement_tone(node.placement))))
    elif node.role in BUFFER_ROLES:
        lines.append(field("placement", ("none: a buffer between two placements", "muted")))
    whole = format_tensor(node.dtype, node.global_shape)
    local = format_tensor(node.dtype, node.local_shape)
    if node.global_shape is not None and whole != local and local:
        lines.append(field("tensor", (whole, "text"), (" on a rank ", "muted"), (local, "sharded")))
    elif whole or local:
        lines.append(field("tensor", (local or whole, "text")))
    if node.local_bytes is not None:
        kept = " saved for backward" if node.saved else ""
        again = " recomputed in backward" if node.recomputed else ""
        lines.append(
            field("bytes", (format_bytes(node.local_bytes), "text"), (kept + again, "warning"))
        )
    return lines


def describe_node(detail: NodeDetail) -> list[Line]:
    """Everything about a node, the reader's first question first."""
    node = detail.node
    tone = "collective" if node.role == "collective" else "strong"
    lines = [
        line(
            (node.name, tone),
            ("  ", "text"),
            (_operator_of(node), "operator"),
            (f"  {node.graph} · {node.phase} · {node.role}", "muted"),
            indent=2,
        ),
        field("module", (node.module or "(root)", "module"), (_in_class(node), "muted")),
        *describe_source(node.source),
        *describe_tensor(node),
    ]
    if node.reason and not detail.causes:
        lines.append(field("why", (node.reason, "text")))
    lines += _describe_cost(detail)
    lines += _section("Findings", [row for f in detail.findings for row in describe_finding(f)])
    lines += _section("Why it is placed so", describe_causes(detail.causes))
    lines += _section("Decisions", describe_decisions(detail.decisions, named=False))
    lines += _section("Collectives", _describe_collectives(detail.collectives, node.name))
    lines += _section("History", describe_history(detail.history, detail.pass_names))
    lines += _section("Connections", _describe_connections(detail))
    return lines


def describe_causes(causes: Sequence[Cause]) -> list[Line]:
    """From the node back to where the sequence was cut, a step a line."""
    lines: list[Line] = []
    for number, cause in enumerate(causes):
        if cause.left_out:
            keep = "keeps" if cause.left_out == 1 else "keep"
            words = f"← {plural(cause.left_out, 'operator')} that {keep} the placement"
            lines.append(line((words, "muted"), indent=2))
        node = cause.node
        arrow = "← " if number else ""
        mark = "⇄ " if node.role == "collective" else ""
        placement = f"{node.placement} " if node.placement else ""
        lines.append(
            line(
                (arrow, "muted"),
                (mark, "collective"),
                (placement, placement_tone(node.placement)),
                (node.name, "strong"),
                indent=2,
            )
        )
        if cause.why:
            lines.append(line((f"    {cause.why}", "text"), indent=4))
        if cause.rule:
            lines.append(line((f"    {cause.rule}", "muted"), indent=4))
    return lines


def _operator_of(node: NodeRow) -> str:
    words = short_target(node.target)
    return "" if words == node.name else words


def _in_class(node: NodeRow) -> str:
    return f"  {node.module_class}" if node.module_class else ""


def _section(title: str, lines: Sequence[Line]) -> list[Line]:
    return [line(), heading(title), *lines] if lines else []


def _describe_cost(detail: NodeDetail) -> list[Line]:
    cost = detail.cost
    if cost is None:
        return []
    flops = "" if cost.flops is None else f"  {cost.flops:.3g} flop"
    moved = "" if cost.memory_bytes is None else f"  {format_bytes(cost.memory_bytes)} moved"
    return [
        field(
            "time",
            (format_duration(cost.duration_ns), "text"),
            (f"{flops}{moved}", "muted"),
            (f"  {cost.source}", "muted"),
        )
    ]


def describe_decisions(decisions: Iterable[DecisionRow], *, named: bool) -> list[Line]:
    """Decisions with their reasons and what they beat."""
    lines: list[Line] = []
    for decision in decisions:
        mark = STATUS_MARKS.get(decision.status, "·")
        spans: list[Span] = [
            (f"{mark} {decision.status} ", STATUS_TONES.get(decision.status, "muted")),
            (f"{decision.topic}: ", "muted"),
            (decision.chosen, "strong"),
        ]
        if named and decision.node:
            spans.append((f"  {decision.node}", "operator"))
        spans.append((f"  pass {decision.pass_index} {decision.pass_name}", "muted"))
        lines.append(Line(tuple(spans), 2))
        if decision.reason:
            lines.append(line(("  because ", "muted"), (decision.reason, "text"), indent=10))
        lines += [
            line(
                ("  not     ", "muted"),
                (option.name, "operator"),
                (f"  {option.reason}" if option.reason else "", "text"),
                (f"  ({option.cost})" if option.cost else "", "muted"),
                indent=10,
            )
            for option in decision.alternatives
        ]
        if decision.rule:
            lines.append(line(("  rule    ", "muted"), (decision.rule, "muted"), indent=10))
    return lines


def _describe_collectives(rows: Iterable[CollectiveRow], name: str) -> list[Line]:
    lines: list[Line] = []
    for row in rows:
        own = " (this node)" if row.name == name else ""
        lines.append(
            line(
                ("⇄ ", "collective"),
                (f"{kind_words(row.kind)} ", "collective"),
                (f"{row.source_placement} → {row.target_placement}  ", "text"),
                (f"{format_bytes(row.bytes)} over {row.axis}×{row.group_size}", "text"),
                (f"  {row.phase}  {row.name}{own}", "muted"),
                indent=2,
            )
        )
        if row.reason:
            lines.append(line(("  because ", "muted"), (row.reason, "text"), indent=10))
    return lines


def describe_history(history: Sequence[NodeRow], pass_names: Sequence[str]) -> list[Line]:
    """One line for each pass that made, changed or removed the node."""
    lines: list[Line] = []
    previous: NodeRow | None = None
    for version in history:
        mark, tone = ("+", "added") if previous is None else ("~", "changed")
        what = describe_version(version) if previous is None else describe_change(previous, version)
        lines.append(
            line(
                (f"{mark} ", tone),
                (_pass_label(version.born_pass, pass_names), "muted"),
                *what,
                indent=24,
            )
        )
        previous = version
    if previous is not None and previous.died_pass is not None:
        label = _pass_label(previous.died_pass, pass_names)
        lines.append(line(("- ", "removed"), (label, "muted"), ("removed", "text")))
    return lines


def _pass_label(index: int, names: Sequence[str]) -> str:
    name = names[index] if 0 <= index < len(names) else "?"
    return f"{f'pass {index} {name}':<22}"


def describe_version(node: NodeRow) -> list[Span]:
    """Operator, tensor and placement of a node, short."""
    spans: list[Span] = [(f"{short_target(node.target)}  ", "operator")]
    spans.append((format_tensor(node.dtype, node.local_shape or node.global_shape), "text"))
    if node.placement:
        spans.append((f"  {node.placement}", placement_tone(node.placement)))
    return spans


def describe_change(before: NodeRow, after: NodeRow) -> list[Span]:
    """What differs between two versions of a node: ``field before → after``."""
    pairs = [
        ("operator", before.target, after.target),
        ("placement", before.placement or "none", after.placement or "none"),
        (
            "shape",
            format_tensor(before.dtype, before.local_shape or before.global_shape),
            format_tensor(after.dtype, after.local_shape or after.global_shape),
        ),
        ("inputs", ", ".join(before.inputs), ", ".join(after.inputs)),
        ("module", before.module, after.module),
        ("role", before.role, after.role),
        ("saved", _yes(before.saved), _yes(after.saved)),
        ("recomputed", _yes(before.recomputed), _yes(after.recomputed)),
    ]
    spans: list[Span] = []
    for label, old, new in pairs:
        if old != new:
            spans += [
                ("   " if spans else "", "text"),
                (f"{label} ", "muted"),
                (old, "text"),
                (" → ", "muted"),
                (new, placement_tone(new) if label == "placement" else "strong"),
            ]
    return spans or [("position in the graph", "muted")]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _describe_connections(detail: NodeDetail) -> list[Line]:
    node = detail.node
    lines = [field("inputs", (join_words(node.inputs, limit=8) or "none", "text"))]
    users = [user.name for user in detail.users]
    lines.append(field("used by", (join_words(users, limit=8) or "nothing", "text")))
    if node.origins and node.origins != (node.name,):
        lines.append(field("comes from", (join_words(node.origins, limit=8), "text")))
    for graph in dict.fromkeys(row.graph for row in detail.derived):
        names = [row.name for row in detail.derived if row.graph == graph]
        lines.append(field(f"in {graph}", (join_words(names, limit=6), "text")))
    return lines


def describe_finding(finding: FindingRow) -> list[Line]:
    """Severity, message, place and hint."""
    mark, tone = (
        SEVERITY_MARKS.get(finding.severity, "·"),
        SEVERITY_TONES.get(finding.severity, "muted"),
    )
    lines = [
        line(
            (f"{mark} {finding.severity} ", tone),
            (finding.message, "text"),
            (f"  [{finding.code}]", "muted"),
            indent=2,
        )
    ]
    cost = finding_cost(finding)
    if cost:
        lines.append(line(("  costs   ", "muted"), (cost, "warning"), indent=10))
    if finding.hint:
        lines.append(line(("  try     ", "muted"), (finding.hint, "strong"), indent=10))
    return lines


def finding_cost(finding: FindingRow) -> str:
    """``64.0 MiB, 1.2 ms``; empty where nothing is known."""
    parts = []
    if finding.cost_bytes:
        parts.append(format_bytes(finding.cost_bytes))
    if finding.cost_ns:
        parts.append(format_duration(finding.cost_ns))
    return ", ".join(parts)


def describe_module(module: ModuleRow, collectives: Sequence[CollectiveRow]) -> list[Line]:
    """Totals of a module and the communication inside it."""
    placements: list[Span] = []
    for placement in module.placements:
        placements.append((f"{placement}  ", placement_tone(placement)))
    lines = [
        line((module.path or "(root)", "module"), (f"  {module.module_class}", "muted"), indent=2),
        field("nodes", (format_count(module.num_nodes), "text")),
        field("placements", *(placements or [("none recorded", "muted")])),
        field(
            "moves",
            (plural(module.num_collectives, "collective"), "collective"),
            (f"  {format_bytes(module.collective_bytes)} in this graph", "muted"),
        ),
    ]
    return lines + _section("Collectives inside", _count_collectives(collectives))


def _count_collectives(rows: Sequence[CollectiveRow]) -> list[Line]:
    counts = Counter((row.phase, row.kind) for row in rows)
    lines: list[Line] = []
    for (phase, kind), count in sorted(counts.items(), reverse=True):
        size = sum(row.bytes for row in rows if (row.phase, row.kind) == (phase, kind))
        lines.append(
            line(
                (f"⇄ {count:>4} × {kind_words(kind):<15}", "collective"),
                (f"{format_bytes(size):>9}  ", "text"),
                (phase, "muted"),
            )
        )
    return lines


def describe_collective(detail: CollectiveDetail) -> list[Line]:
    """Where a collective is, why it is there and what it costs."""
    row = detail.collective
    lines = [
        line(
            (f"⇄ {kind_words(row.kind)} ", "collective"),
            (f"{row.source_placement or '?'} → {row.target_placement or '?'}  ", "strong"),
            (f"{row.name} in {row.graph}", "muted"),
            indent=2,
        ),
        field("why", (row.reason or "not recorded", "text")),
        field("cause", (row.cause or "not recorded", "strong"), ("  Enter opens it", "muted")),
        field("module", (row.module or "(root)", "module")),
    ]
    if detail.cause is not None:
        lines += describe_source(detail.cause.source)
    lines += [
        field(
            "moves",
            (f"{format_bytes(row.bytes)} of {row.dtype}", "text"),
            (f" over {row.axis}, {row.group_size} ranks", "text"),
        ),
        field(
            "time",
            (format_duration(row.duration_ns), "text"),
            ("  exposed ", "muted"),
            (format_duration(row.exposed_ns), "exposed" if row.exposed_ns else "text"),
            (
                f" ({format_share(row.exposed_ns, row.duration_ns)})" if row.duration_ns else "",
                "muted",
            ),
        ),
        field("origin", (_origin_words(row.origin), "text")),
    ]
    return lines + _section("Decisions", describe_decisions(detail.decisions, named=True))


def _origin_words(origin: str) -> str:
    words = {"implicit": "implicit: inserted by the compiler", "explicit": "explicit: in your code"}
    return words.get(origin, origin)


def describe_event(event: TimelineRow) -> list[Line]:
    """The event under the timeline's cursor."""
    spans: list[Span] = [(format_duration(event.duration_ns), "strong")]
    spans.append((f" from {format_duration(event.start_ns)}", "muted"))
    if event.exposed_ns is not None:
        tone = "exposed" if event.exposed_ns else "good"
        spans.append((f"  exposed {format_duration(event.exposed_ns)}", tone))
    return [
        line(
            (event.node, "strong"),
            (f"  {short_target(event.label)}" if event.label != event.node else "", "operator"),
            (f"  {event.stream} · {event.phase}", "muted"),
            indent=2,
        ),
        field("time", *spans),
        field("module", (event.module or "(root)", "module")),
    ]


_BAR_CELLS = 40


def describe_shares(sizes: Mapping[str, int]) -> list[Line]:
    """A bar for each category of memory, largest first."""
    total = sum(sizes.values())
    lines: list[Line] = []
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        if size:
            cells = max(1, round(size / total * _BAR_CELLS))
            lines.append(
                line(
                    (fit(name.replace("_", " "), 22), "text"),
                    (f"{format_bytes(size):>9}{format_share(size, total):>7}  ", "muted"),
                    (category_fill(name) * cells, category_tone(name)),
                )
            )
    return lines


def describe_point(
    point: MemoryRow, order: Sequence[str], *, is_peak: bool, source: Source | None = None
) -> list[Line]:
    """Bytes by category at one point of the curve."""
    title = "at the peak" if is_peak else "at the cursor"
    lines = [
        line(
            (format_bytes(point.live_bytes), "strong"),
            (f" live {title}", "bad" if is_peak else "muted"),
        ),
        line((point.phase, "muted"), ("  ", "text"), (point.node, "operator"), indent=2),
        line((point.module or "(root)", "module"), indent=2),
    ]
    names = [*order, *(name for name in point.categories if name not in order)]
    for name in sorted(names, key=lambda each: -point.categories.get(each, 0)):
        size = point.categories.get(name, 0)
        if size:
            tone = category_tone(name)
            lines.append(
                line(
                    (f"{category_fill(name) * 2} {fit(name.replace('_', ' '), 13)}", tone),
                    (f"{format_bytes(size):>9}", "text"),
                    (f"{format_share(size, point.live_bytes):>7}", "muted"),
                )
            )
    if source is not None:
        lines.append(line((f"{short_path(source.file)}:{source.line}", "source"), indent=2))
        lines.append(line((source.text.strip(), "text"), indent=2))
    return lines
