"""Schema 4: numbers behind decisions."""

from __future__ import annotations

from autosp_inspector.migrations.migration import Migration

_FIGURES = """
CREATE TABLE figures (
    -- Numbers behind a decision, for programs.
    decision_id INTEGER PRIMARY KEY REFERENCES decision (id), -- the decision
    value_text INTEGER NOT NULL REFERENCES text (id) -- JSON object
) STRICT
"""

FIGURES = Migration(number=4, name="figures of decisions", statements=(_FIGURES,))
