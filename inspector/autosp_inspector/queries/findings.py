"""What the user should know."""

from __future__ import annotations

from autosp_inspector.queries.source_rows import source_row
from autosp_inspector.rows import FindingRow
from autosp_inspector.trace import Trace

_FINDINGS = """
SELECT finding.code, finding.severity, finding.message, finding.node, finding.module,
       file.value, source.line, function.value, line.value, finding.hint,
       finding.cost_bytes, finding.cost_ns
FROM finding
LEFT JOIN source ON source.id = finding.source_id
LEFT JOIN text AS file ON file.id = source.file_text
LEFT JOIN text AS function ON function.id = source.function_text
LEFT JOIN text AS line ON line.id = source.line_text
ORDER BY CASE finding.severity WHEN 'error' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END, finding.id
"""


def list_findings(trace: Trace) -> tuple[FindingRow, ...]:
    """Errors first, then warnings, then the rest; each in the order of discovery."""
    return tuple(
        FindingRow(
            code=row[0],
            severity=row[1],
            message=row[2],
            node=row[3],
            module=row[4],
            source=source_row(*row[5:9]),
            hint=row[9],
            cost_bytes=row[10],
            cost_ns=row[11],
        )
        for row in trace.fetch(_FINDINGS)
    )
