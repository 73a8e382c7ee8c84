"""The viewer must start where torch is not installed."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
sys.modules["torch"] = None
import importlib, pkgutil
from pathlib import Path
import autosp_inspector.queries
from autosp_inspector.trace import open_trace
from tests.support.synthetic import write_synthetic_trace
for module in pkgutil.iter_modules(autosp_inspector.queries.__path__):
    importlib.import_module(f"autosp_inspector.queries.{module.name}")
from autosp_inspector.queries.nodes import count_nodes
path = write_synthetic_trace(Path(sys.argv[1]) / "run.autosp")
with open_trace(path) as trace:
    print(count_nodes(trace, graph="program"))
"""


def test_recording_and_reading_need_no_torch(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert (result.returncode, result.stdout.strip()) == (0, "101"), result.stderr
