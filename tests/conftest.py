"""Settings for all tests: reproducible, offline, one thread per process."""

from __future__ import annotations

import os

import pytest
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


SLOWEST = (
    "test_architectures.py",
    "test_generated_programs.py",
    "test_verification_gloo.py",
    "test_ring_gloo.py",
    "test_regions_gloo.py",
    "test_randomness_gloo.py",
    "test_cli_dry_run.py",
    "test_dynamic_lengths.py",
    "test_deepspeed_gloo.py",
    "test_architectures_on_ranks.py",
    "test_custom_functions.py",
)
"""Files that go first: started last, they would keep one process busy when all others are done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in the order of :data:`SLOWEST`, the others as they are."""
    order = {name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(SLOWEST)))
