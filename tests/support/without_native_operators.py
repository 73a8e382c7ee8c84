"""Runs a script under DeepSpeed without its C++ operators, which take minutes to build.

python tests/support/without_native_operators.py SCRIPT [ARGUMENT ...]
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def use_none() -> None:
    """Collectives on CPU go to gloo instead of to an operator of DeepSpeed's own."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


if __name__ == "__main__":
    use_none()
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
