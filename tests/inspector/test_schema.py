import sqlite3
from pathlib import Path

import pytest

from autosp_inspector.migrations import MIGRATIONS, Migration
from autosp_inspector.schema import APPLICATION_ID, SCHEMA_VERSION, apply_migrations
from autosp_inspector.schema_page import column_meanings, render_schema_page

DOCS = Path(__file__).parents[2] / "docs"


def fresh() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    apply_migrations(connection)
    return connection


def tables(connection: sqlite3.Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'"))


def test_a_fresh_file_says_what_it_is() -> None:
    connection = fresh()
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_every_step_left_its_record() -> None:
    rows = fresh().execute("SELECT number, name FROM schema_migration ORDER BY number").fetchall()
    assert rows == [(step.number, step.name) for step in MIGRATIONS]
    assert [number for number, _ in rows] == list(range(1, SCHEMA_VERSION + 1))


def test_every_table_is_strict() -> None:
    connection = fresh()
    strict = {
        name: is_strict
        for _, name, kind, _, _, is_strict in connection.execute("PRAGMA table_list")
        if kind == "table" and not name.startswith("sqlite_")
    }
    assert set(strict) == set(tables(connection))
    assert set(strict.values()) == {1}


def test_every_column_has_a_meaning() -> None:
    connection = fresh()
    for name, sql in tables(connection).items():
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
        assert list(column_meanings(sql)) == columns, name


def test_the_views_can_be_read() -> None:
    connection = fresh()
    views = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'view'").fetchall()
    assert [name for (name,) in views] == [
        "nodes",
        "edges",
        "collectives",
        "decisions",
        "estimated_and_measured",
    ]
    for (name,) in views:
        assert connection.execute(f"SELECT * FROM {name}").fetchall() == []


def test_a_step_that_fails_leaves_nothing_behind() -> None:
    connection = fresh()
    bad = Migration(
        number=SCHEMA_VERSION + 1,
        name="bad",
        statements=("CREATE TABLE half (id INTEGER) STRICT", "CREATE TABLE run (id INTEGER)"),
    )
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        apply_migrations(connection, migrations=(*MIGRATIONS, bad))
    assert "half" not in tables(connection)
    assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_the_schema_page_is_the_schema() -> None:
    page = (DOCS / "trace-schema.md").read_text(encoding="utf-8")
    assert page == render_schema_page()
