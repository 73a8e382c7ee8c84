"""Settings for all tests: reproducible, offline, one thread per process."""

from __future__ import annotations

import os

from hypothesis import settings

# Before torch is imported: the tests share a few cores, and some start processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Models are built from configurations; nothing may be fetched.
os.environ["HF_HUB_OFFLINE"] = "1"

settings.register_profile("reproducible", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("reproducible")


def pytest_configure() -> None:
    """What the ranks of most tests import, over and above what every rank does."""
    from autosp.verification_processes import PRELOADED

    PRELOADED.append("transformers.models.llama.modeling_llama")
