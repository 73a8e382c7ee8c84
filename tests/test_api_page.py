"""The page on the Python interface names what there is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import autosp
import autosp_inspector

PAGE = (Path(__file__).resolve().parents[1] / "docs/api.md").read_text(encoding="utf-8")


def test_every_public_name_has_a_section() -> None:
    sections = set(re.findall(r"^## autosp\.(\w+)$", PAGE, re.MULTILINE))
    assert sections == set(autosp.__all__)
    assert set(autosp.__all__) <= set(dir(autosp))


@pytest.mark.parametrize("name", ["compile", "backend", "data_parallel_sampler"])
def test_signatures_name_every_argument(name: str) -> None:
    shown = re.search(rf"autosp\.{name}\(([^`]*?)\)", PAGE)
    assert shown is not None
    names = set(re.findall(r"\w+", shown[1])) - {"None"}
    assert names == set(inspect.signature(getattr(autosp, name)).parameters)


def test_the_options_of_compile_are_explained() -> None:
    table = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert table == set(inspect.signature(autosp.compile).parameters)


def test_recording_is_what_the_page_calls() -> None:
    assert "autosp_inspector.recording(" in PAGE
    assert list(inspect.signature(autosp_inspector.recording).parameters)[0] == "folder"
