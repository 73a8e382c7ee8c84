"""`./try.sh --help` explains itself and sets nothing up."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_help() -> None:
    result = subprocess.run(
        [str(ROOT / "try.sh"), "--help"], capture_output=True, text=True, timeout=20, check=True
    )
    assert "./try.sh [--no-tui] [TARGET OPTION ...]" in result.stdout
    assert "runs/try.autosp" in result.stdout
    assert not result.stderr
