"""Schema 3: what a finding costs. The table is made anew, so that its comments stay complete."""

from __future__ import annotations

from autosp_inspector.migrations.migration import Migration

_FINDING = """
CREATE TABLE finding (
    -- What the user should know.
    id INTEGER PRIMARY KEY, -- order of discovery
    code TEXT NOT NULL, -- stable code
    severity TEXT NOT NULL, -- error, warning or info
    message TEXT NOT NULL, -- one line
    node TEXT NOT NULL, -- node concerned; may be empty
    module TEXT NOT NULL, -- module concerned; may be empty
    source_id INTEGER REFERENCES source (id), -- line of the user's program; NULL when unknown
    hint TEXT NOT NULL, -- what to do; may be empty
    cost_bytes INTEGER, -- bytes on a rank that it costs; NULL when none or unknown
    cost_ns INTEGER -- estimated time of a step that it costs; NULL when none or unknown
) STRICT
"""

FINDING_COSTS = Migration(
    number=3,
    name="costs of findings",
    statements=(
        "ALTER TABLE finding RENAME TO finding_without_costs",
        _FINDING,
        "INSERT INTO finding SELECT *, NULL, NULL FROM finding_without_costs",
        "DROP TABLE finding_without_costs",
    ),
)
