"""The choices of the compiler, with what they beat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from autosp_inspector.report.report import Facts, Report, Table, left, right, wrapped
from autosp_inspector.rows import AlternativeRow, DecisionRow


def decisions_report(decisions: Sequence[DecisionRow]) -> Report:
    """All given decisions in order."""
    statuses = Counter(decision.status for decision in decisions)
    counts = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    facts = Facts((("decisions", f"{len(decisions)} ({counts})" if counts else "none"),))
    rows = tuple(
        (
            str(decision.pass_index),
            decision.status,
            decision.topic,
            decision.node,
            decision.chosen,
            decision.reason + alternatives_text(decision.alternatives),
        )
        for decision in decisions
    )
    columns = (
        right("pass", dropped=1),
        left("status"),
        left("topic"),
        left("node"),
        left("chosen"),
        wrapped("reason"),
    )
    records = [decision_record(decision) for decision in decisions]
    return Report((facts, Table(columns, rows)), {"decisions": records}, records)


def alternatives_text(alternatives: Sequence[AlternativeRow]) -> str:
    """`` (not: all-gather, 64 MiB: larger)``."""
    if not alternatives:
        return ""
    return f" (not: {'; '.join(alternative_text(item) for item in alternatives)})"


def alternative_text(alternative: AlternativeRow) -> str:
    cost = f", {alternative.cost}" if alternative.cost else ""
    reason = f": {alternative.reason}" if alternative.reason else ""
    return f"{alternative.name}{cost}{reason}"


def decision_record(decision: DecisionRow) -> dict[str, Any]:
    """One decision, for JSON."""
    return {
        "pass_index": decision.pass_index,
        "pass_name": decision.pass_name,
        "status": decision.status,
        "topic": decision.topic,
        "node": decision.node,
        "module": decision.module,
        "chosen": decision.chosen,
        "reason": decision.reason,
        "rule": decision.rule,
        "alternatives": [
            {"name": item.name, "reason": item.reason, "cost": item.cost}
            for item in decision.alternatives
        ],
    }
