"""The distribution: what the wheel holds, what its modules import, what it says of itself."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import autosp

ROOT = Path(__file__).parent.parent
PACKAGES = ("autosp", "autosp_inspector", "autosp_tui")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_three_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    folders = {name.partition("/")[0] for name in wheel.namelist()}

    assert {f for f in folders if not f.endswith(".dist-info")} == set(PACKAGES)
    assert len(folders) == len(PACKAGES) + 1


def test_the_wheel_holds_every_module_and_data_file(wheel: zipfile.ZipFile) -> None:
    in_sources = {
        str(path.relative_to(parent))
        for parent, package in zip((ROOT, ROOT / "inspector", ROOT / "tui"), PACKAGES, strict=True)
        for path in (parent / package).rglob("*")
        if path.suffix in {".py", ".tcss", ".typed"}
    }

    assert in_sources <= set(wheel.namelist())


def test_the_wheel_is_typed_and_licensed(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()

    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    (licence,) = [name for name in names if name.endswith("licenses/LICENSE")]
    assert b"Apache License" in wheel.read(licence)


def test_the_wheel_offers_the_command(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]

    text = wheel.read(entry_points).decode()
    assert "autosp-inspect = autosp_inspector.cli.main:main" in text


def test_the_version_is_the_one_the_package_says_and_has_a_changelog_entry(
    wheel: zipfile.ZipFile,
) -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (metadata,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]

    assert f"\nVersion: {autosp.__version__}\n" in wheel.read(metadata).decode()
    assert f"## {autosp.__version__}" in changelog


@pytest.mark.parametrize(
    "module",
    [
        "autosp.events",
        "autosp.placement",
        "autosp.mesh",
        "autosp.errors",
        "autosp_inspector.trace",
        "autosp_inspector.recorder",
        "autosp_inspector.export.svg",
        "autosp_inspector.export.dot",
        "autosp_inspector.cli.main",
        "autosp_tui.app",
    ],
)
def test_looking_at_traces_works_without_torch(module: str) -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'transformers', 'numpy')));"
        f"import {module}"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert finished.returncode == 0, finished.stderr
