"""Choices of the passes, with what they did not choose."""

from __future__ import annotations

from autosp_inspector.rows import AlternativeRow, DecisionRow
from autosp_inspector.trace import Trace

_DECISIONS = """
SELECT decision.id, decision.pass_index, coalesce(pass.name, ''), decision.status,
       decision.topic, node.value, module.value, decision.chosen, decision.reason, decision.rule
FROM decision
LEFT JOIN pass ON pass.pass_index = decision.pass_index
JOIN text AS node ON node.id = decision.node_text
JOIN text AS module ON module.id = decision.module_text
WHERE (?1 IS NULL OR decision.pass_index = ?1)
  AND (?2 IS NULL OR node.value = ?2)
  AND (?3 IS NULL OR decision.status = ?3)
  AND (?4 IS NULL OR decision.topic = ?4)
  AND (?5 = '' OR instr(lower(decision.topic || char(10) || node.value || char(10)
       || module.value || char(10) || decision.chosen || char(10) || decision.reason
       || char(10) || decision.rule), lower(?5)) > 0)
  AND (?6 IS NULL OR pass.compilation = ?6)
ORDER BY decision.id
"""


def list_decisions(
    trace: Trace,
    *,
    pass_index: int | None = None,
    node: str | None = None,
    status: str | None = None,
    topic: str | None = None,
    text: str = "",
) -> tuple[DecisionRow, ...]:
    """Decisions in the order they were made; filters combine, ``text`` ignores case."""
    rows = trace.fetch(_DECISIONS, (pass_index, node, status, topic, text, trace.compilation))
    alternatives = _alternatives(trace)
    return tuple(
        DecisionRow(
            id=row[0],
            pass_index=row[1],
            pass_name=row[2],
            status=row[3],
            topic=row[4],
            node=row[5],
            module=row[6],
            chosen=row[7],
            reason=row[8],
            rule=row[9],
            alternatives=alternatives.get(row[0], ()),
        )
        for row in rows
    )


def _alternatives(trace: Trace) -> dict[int, tuple[AlternativeRow, ...]]:
    def read() -> dict[int, tuple[AlternativeRow, ...]]:
        grouped: dict[int, tuple[AlternativeRow, ...]] = {}
        for number, name, reason, cost in trace.fetch(
            "SELECT decision_id, name, reason, cost FROM alternative ORDER BY decision_id, slot"
        ):
            grouped[number] = (*grouped.get(number, ()), AlternativeRow(name, reason, cost))
        return grouped

    return trace.cached("alternatives", read)
