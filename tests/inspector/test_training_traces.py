"""Traces that training runs write, one file a rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosp_inspector import recording
from autosp_inspector.trace import open_run
from tests.support.synthetic import record_synthetic_run


def train(folder: Path, rank: int, error: Exception | None = None) -> None:
    with recording(folder, rank=rank) as recorder:
        record_synthetic_run(recorder, rank=rank, finished=False)
        if error is not None:
            raise error


def test_a_folder_holds_a_trace_of_each_rank(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    for rank in range(2):
        train(folder, rank)
    traces = open_run(folder)
    assert [trace.run.rank for trace in traces] == [0, 1]
    assert {trace.run.status for trace in traces} == {"ok"}


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="diverged"):
        train(tmp_path, 0, ValueError("the loss diverged\nat step 3"))
    (trace,) = open_run(tmp_path)
    assert (trace.run.status, trace.run.message) == ("failed", "the loss diverged")


def test_the_rank_is_that_of_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    with recording(tmp_path) as recorder:
        record_synthetic_run(recorder, rank=3, finished=False)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-3.autosp"]
