"""The program as a program: processes, pipes, help, documentation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from autosp_inspector.cli.layout_options import layout_parameters
from autosp_inspector.cli.main import main, make_cli
from autosp_inspector.cli.output_options import format_parameters
from tests.support.command_line import CommandLine

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
COMMANDS = make_cli().commands
TYPED = {name: command for name, command in COMMANDS.items() if name != "inspect"}


def run(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autosp_inspector.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def test_a_view_of_a_trace_starts_without_torch(synthetic: Path) -> None:
    code = (
        "import sys; from autosp_inspector.cli.main import main; "
        f"status = main(['summary', {str(synthetic)!r}]); "
        "assert 'torch' not in sys.modules and 'textual' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_pipe_ends_it_quietly(synthetic: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "autosp_inspector.cli.main", "nodes", str(synthetic)],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (141, "")


def test_colour_only_in_a_terminal(synthetic: Path) -> None:
    done = run("summary", synthetic)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout


def test_an_interrupt_gives_130(monkeypatch: pytest.MonkeyPatch, synthetic: Path) -> None:
    def interrupted(*_args: object, **_kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("autosp_inspector.cli.source.open_run", interrupted)
    assert main(["summary", str(synthetic)]) == 130


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("impossible\nat all")

    monkeypatch.setattr("autosp_inspector.cli.source.open_run", fail)


def test_a_mistake_of_ours_has_a_status_and_a_file_with_the_traceback(
    broken: None,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
    synthetic: Path,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    outcome = cli("summary", synthetic)
    assert outcome.status == 70
    assert outcome.err.count("\n") == 1
    assert "internal error: AssertionError: impossible. " in outcome.err
    (file,) = tmp_path.glob("autosp-inspect-*.txt")
    assert f"please report it with {file}" in outcome.err
    written = file.read_text()
    assert f"autosp-inspect summary {synthetic}" in written
    assert "Traceback (most recent call last)" in written
    assert "AssertionError: impossible\nat all" in written


def test_a_wrapped_mistake_is_told_by_its_innermost_reason(
    monkeypatch: pytest.MonkeyPatch, cli: CommandLine, synthetic: Path, tmp_path: Path
) -> None:
    def fail(*_args: object, **_kwargs: object) -> None:
        wrapper = RuntimeError("backend='ours' raised:\nKeyError: 'full'")
        wrapper.inner_exception = ValueError("no such thing\nwhile executing")  # type: ignore[attr-defined]
        raise wrapper from None

    monkeypatch.setattr("autosp_inspector.cli.source.open_run", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    outcome = cli("summary", synthetic)
    assert "internal error: ValueError: no such thing. " in outcome.err
    assert "raised" not in outcome.err


def test_a_mistake_of_ours_without_room_for_a_file_shows_the_traceback(
    broken: None, monkeypatch: pytest.MonkeyPatch, cli: CommandLine, synthetic: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    outcome = cli("summary", synthetic)
    assert outcome.status == 70
    assert "Traceback (most recent call last)" in outcome.err
    assert outcome.err.splitlines()[-1].endswith("please report it with the lines above")


def test_without_arguments_it_prints_the_help(cli: CommandLine) -> None:
    outcome = cli()
    assert outcome.status == 2
    assert "Usage: autosp-inspect TARGET [OPTIONS]" in outcome.err


def test_help_and_version(cli: CommandLine) -> None:
    helped = cli("--help")
    assert helped.status == 0
    for name in TYPED:
        assert re.search(rf"^  {name} ", helped.out, re.MULTILINE)
    assert cli("--version").out.startswith("autosp-inspect ")


@pytest.mark.parametrize("name", TYPED)
def test_every_command_describes_every_option(cli: CommandLine, name: str) -> None:
    assert cli(name, "--help").status == 0
    for parameter in TYPED[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts}"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(cli: CommandLine, shell: str) -> None:
    outcome = cli("completion", shell)
    assert outcome.status == 0
    assert "_AUTOSP_INSPECT_COMPLETE" in outcome.out


def test_completion_offers_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(
        env={
            **os.environ,
            "_AUTOSP_INSPECT_COMPLETE": "bash_complete",
            "COMP_WORDS": "autosp-inspect summary x --gpu h",
            "COMP_CWORD": "4",
        }
    )
    assert "h100" in done.stdout


# -- docs/cli.md ---------------------------------------------------------------------------


def documented_row(parameter: click.Option) -> str:
    """How an option stands in the tables of the document."""
    names = ", ".join(parameter.opts)
    words = f"`{names} {_metavar(parameter)}`" if not parameter.is_flag else f"`{names}`"
    help_text = " ".join((parameter.help or "").split())
    if parameter.show_default and not parameter.is_flag and parameter.default is not None:
        help_text += f" [default: {parameter.default}]"
    return f"| {words} | {help_text} |"


def _metavar(parameter: click.Option) -> str:
    if isinstance(parameter.type, click.Choice):
        return "|".join(parameter.type.choices)
    if isinstance(parameter.type, click.IntRange):
        return "N"
    return parameter.make_metavar(click.Context(click.Command("x")))


def section(title: str) -> str:
    match = re.search(rf"^##+ {re.escape(title)}.*?\n(.*?)(?=^##|\Z)", DOCUMENT, re.M | re.S)
    assert match is not None, f"docs/cli.md has no section {title}"
    return match[1].replace("\\|", "|")


def rows_of(text: str) -> set[str]:
    return {line for line in text.splitlines() if line.startswith("| `")}


def plain_rows(parameters: list[click.Parameter]) -> set[str]:
    return {
        documented_row(parameter) for parameter in parameters if isinstance(parameter, click.Option)
    }


def test_the_document_has_the_options_of_a_compilation() -> None:
    assert rows_of(section("Options of a compilation")) == plain_rows(layout_parameters())


@pytest.mark.parametrize("name", TYPED)
def test_the_document_has_every_command_with_its_own_options(name: str) -> None:
    shared = plain_rows(layout_parameters()) | rows_of(section("Options of the output"))
    own = plain_rows(TYPED[name].params) - shared
    assert rows_of(section(f"{name} ")) == own


def test_the_document_names_no_command_that_is_not_there() -> None:
    commands = re.search(r"^## Commands\n(.*?)^## ", DOCUMENT, re.M | re.S)
    assert commands is not None
    titles = re.findall(r"^### (\S+)", commands[1], re.M)
    assert titles == ["autosp-inspect", *TYPED]


def test_output_options_are_documented() -> None:
    assert plain_rows(format_parameters()) <= rows_of(section("Options of the output"))
