"""Documentation says what is there: links, files, pass names, code."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from autosp_inspector.cli.main import make_cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
_LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
_BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def blocks(language: str) -> list[str]:
    return [
        text
        for page in PAGES
        for found, text in _BLOCK.findall(page.read_text(encoding="utf-8"))
        if found == language
    ]


def shell_commands() -> list[str]:
    lines = (line.partition(" #")[0].strip() for text in blocks("sh") for line in text.splitlines())
    return [line for line in lines if line]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    targets = _LINK.findall(page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]

    assert [target for target in local if not (page.parent / target).exists()] == []


def test_every_page_is_reached_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")

    assert [p.name for p in (ROOT / "docs").glob("*.md") if p.name not in index] == ["index.md"]


def test_scripts_and_samples_in_commands_exist() -> None:
    named = re.findall(r"(\./\w+\.sh|samples/\w+\.py)", "\n".join(shell_commands()))

    assert {"./try.sh", "./test.sh"} <= set(named)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_python_examples_are_python() -> None:
    examples = blocks("python")

    assert examples
    for example in examples:
        ast.parse(example)


def test_the_table_of_passes_names_the_passes_of_the_compiler() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("## From model to step")[2].partition("##")[0]
    documented = re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE)
    sources = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "autosp").rglob("*.py"))
    running = set(re.findall(r'\.running\(\s*"([a-z-]+)"', sources))
    declared = set(re.findall(r'^    name: str = "([a-z-]+)"$', sources, re.MULTILINE))

    assert set(documented) >= running
    assert set(documented) <= running | declared


def inspect_commands() -> list[list[str]]:
    words = (shlex.split(command) for command in shell_commands())
    return [line[1:] for line in words if line[0] == "autosp-inspect"]


def test_commands_of_the_documentation_are_understood_by_the_command_line() -> None:
    documented = inspect_commands()
    group = make_cli()

    assert len(documented) >= 5
    for arguments in documented:
        context = group.make_context("autosp-inspect", list(arguments))
        name, command, rest = group.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert command is not None and name is not None, arguments
        command.make_context(name, rest, parent=context)


def test_commands_that_the_readme_lists_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    sentence = readme.partition("Every view is also a command (")[2].partition(")")[0]
    named = re.findall(r"`([a-z]+)`", sentence)

    assert named
    assert set(named) <= set(make_cli().commands)


@pytest.mark.parametrize("script", ["try.sh", "test.sh", "scripts/setup.sh", ".ci/run"])
def test_scripts_can_be_run_and_are_sound(script: str) -> None:
    path = ROOT / script

    assert os.access(path, os.X_OK)
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0


def test_the_try_script_uses_commands_that_exist() -> None:
    text = (ROOT / "try.sh").read_text(encoding="utf-8")

    assert set(re.findall(r'"\$inspect" (\w+)', text)) <= set(make_cli().commands)
