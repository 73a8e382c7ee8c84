"""``docs/trace-schema.md``, made of the comments in the schema.

python -m autosp_inspector.schema_page > docs/trace-schema.md
"""

from __future__ import annotations

import re
import sqlite3

from autosp_inspector.schema import APPLICATION_ID, SCHEMA_VERSION, apply_migrations

_TABLE_COMMENT = re.compile(r"^\s*-- (.+)$", re.MULTILINE)
_COLUMN_COMMENT = re.compile(r"^    (\w+) [A-Z].*? -- (.+)$", re.MULTILINE)

_INTRODUCTION = f"""\
# The trace database

A trace is one SQLite file per rank, named `*.autosp`: `application_id` is
`0x{APPLICATION_ID:08x}` (`ASP1`), `user_version` is the schema version, {SCHEMA_VERSION} for this
page. `autosp-inspect upgrade FILE` brings an older file here; a newer file needs a newer
package. Open it with any SQLite of version 3.37 or later:

```sql
SELECT name, placement, reason FROM nodes WHERE role = 'collective' AND died_pass IS NULL;
```

Nothing in a trace is ever executed. Texts in it come from a model's source and are not
trusted: escape them for whatever shows them.

Graphs are stored as differences. A node version is *born* at a pass and *dies* at a later
one, so the graph after pass `p` of its compilation is
`born_pass <= p AND (died_pass IS NULL OR died_pass > p)`, in the order of `order_key`
(of `move`, where a row with `pass_index <= p` exists: the latest such row counts).

While it is written, a trace is called `NAME.partial`. It stays under that name when the run
was interrupted and can be opened like any other.
"""


def render_schema_page() -> str:
    """The page as Markdown."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    apply_migrations(connection)
    objects = connection.execute(
        "SELECT type, name, sql FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY rowid"
    ).fetchall()
    tables = [_table(name, sql) for kind, name, sql in objects if kind == "table"]
    views = [_view(connection, name, sql) for kind, name, sql in objects if kind == "view"]
    connection.close()
    return "\n".join([_INTRODUCTION, "## Tables\n", *tables, "## Views\n", *views])


def column_meanings(create_statement: str) -> dict[str, str]:
    """Column -> meaning, from the comments of a ``CREATE TABLE``."""
    return dict(_COLUMN_COMMENT.findall(create_statement))


def _table(name: str, sql: str) -> str:
    lines = [f"### `{name}`\n", _purpose(sql), "", "| column | type | meaning |", "|---|---|---|"]
    for column, meaning in column_meanings(sql).items():
        declared = re.search(rf"^    {column} ([A-Z]+)( NOT NULL)?", sql, re.MULTILINE)
        kind = declared.group(1) if declared else ""
        lines.append(f"| `{column}` | {kind} | {meaning} |")
    return "\n".join([*lines, ""])


def _view(connection: sqlite3.Connection, name: str, sql: str) -> str:
    rows = connection.execute("SELECT name FROM pragma_table_info(?)", (name,)).fetchall()
    columns = ", ".join(f"`{column}`" for (column,) in rows)
    return "\n".join([f"### `{name}`\n", _purpose(sql), "", f"Columns: {columns}.", ""])


def _purpose(sql: str) -> str:
    found = _TABLE_COMMENT.search(sql)
    return found.group(1) if found else ""


if __name__ == "__main__":
    print(render_schema_page(), end="")
