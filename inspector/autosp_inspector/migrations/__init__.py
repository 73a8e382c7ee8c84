"""The schema of a trace, in numbered steps.

A step is never edited once a trace was written with it; a change of the schema is a new
step at the end of :data:`MIGRATIONS`. The number of the last step is the schema version.
"""

from __future__ import annotations

from autosp_inspector.migrations.m0001_tables import TABLES
from autosp_inspector.migrations.m0002_views import VIEWS
from autosp_inspector.migrations.m0003_finding_costs import FINDING_COSTS
from autosp_inspector.migrations.m0004_figures import FIGURES
from autosp_inspector.migrations.migration import Migration

__all__ = ["MIGRATIONS", "Migration"]

MIGRATIONS: tuple[Migration, ...] = (TABLES, VIEWS, FINDING_COSTS, FIGURES)
