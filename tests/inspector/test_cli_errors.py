"""Bad input: one clear line on stderr, status 2, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import CommandLine, assert_one_clear_line
from tests.support.synthetic import write_synthetic_trace
from tests.support.user_models import TINY_MODEL, write_model

GPT = Path(__file__).parents[2] / "samples" / "gpt.py"


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--sp", "0"], ["'--sp'", "0 is not between 1 and"]),
        (["--dp", "-1"], ["'--dp'", "-1 is not between 1 and"]),
        (["--seq", "-5"], ["'--seq'", "-5 is not between 1 and"]),
        (["--seq", "1e12"], ["'--seq'", "not a whole number"]),
        (["--seq", "1000000000000"], ["'--seq'", "is not between 1 and"]),
        (["--batch", "0"], ["'--batch'", "0 is not between 1 and"]),
        (["--batch", "many"], ["'--batch'", "not a whole number"]),
        (["--zero", "9"], ["'--zero'", "9 is not in the range 0<=x<=3"]),
        (["--gpus-per-node", "0"], ["'--gpus-per-node'"]),
        (["--dtype", "bf8"], ["'--dtype'", "expected one of bf16, fp16"]),
        (["--gpu", "a100-80g"], ["unknown GPU 'a100-80g'", "Did you mean a100-80gb"]),
        (["--optimizer", "adam"], ["'--optimizer'", "'adamw', 'sgd', 'none'"]),
        (["--arg", "width"], ["--arg 'width' is not of the form name=value"]),
        (["--arg", "widht=3"], ["no parameter 'widht'", "Did you mean width?"]),
        (["--arg", "width=wide"], ["expected a whole number, not 'wide'"]),
        (["--attention", "rings"], ["'--attention'", "ring"]),
        (["--json", "--csv"], ["--json and --csv exclude each other"]),
        (["--qiet"], ["No such option '--qiet'", "--quiet"]),
    ],
)
def test_options_that_cannot_be(cli: CommandLine, options: list[str], parts: list[str]) -> None:
    assert_one_clear_line(cli(GPT, *options), *parts)


def test_targets_that_are_missing(cli: CommandLine, tmp_path: Path) -> None:
    write_model(tmp_path, "x = 1", name="model.py")
    assert_one_clear_line(cli(tmp_path / "modle.py"), "no such file", "model.py?")
    assert_one_clear_line(cli("summary", tmp_path), "holds neither traces")
    assert_one_clear_line(cli("no_such_module:build"), "no file, folder or importable module")


def test_a_file_that_is_not_a_trace(cli: CommandLine, tmp_path: Path) -> None:
    text = tmp_path / "run.autosp"
    text.write_text("hello")
    assert_one_clear_line(cli("memory", text), "is neither a trace, a Python file")
    assert_one_clear_line(cli("show", text), "not an AutoSP trace")
    assert_one_clear_line(cli("query", text, "SELECT 1"), "not an AutoSP trace")
    assert_one_clear_line(cli("upgrade", text), "not an AutoSP trace")


def test_a_trace_of_a_newer_schema(cli: CommandLine, tmp_path: Path) -> None:
    trace = write_synthetic_trace(tmp_path / "run.autosp")
    with trace.open("r+b") as file:
        file.seek(60)  # user_version in the SQLite header
        file.write((99).to_bytes(4, "big"))
    assert_one_clear_line(cli(trace), "has trace schema 99", "Upgrade the package")
    assert_one_clear_line(cli("summary", trace), "has trace schema 99")


def test_a_trace_that_is_cut_off(cli: CommandLine, tmp_path: Path) -> None:
    trace = write_synthetic_trace(tmp_path / "run.autosp")
    trace.write_bytes(trace.read_bytes()[:5000])
    assert_one_clear_line(cli("summary", trace), "damaged")


def test_an_unreadable_target(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_model(tmp_path, "x = 1")
    real_open = Path.open

    def refuse(path: Path, *args: object, **kwargs: object) -> object:
        if path == file:
            raise PermissionError(13, "Permission denied", str(file))
        return real_open(path, *args, **kwargs)  # type: ignore[arg-type, call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    assert_one_clear_line(cli(file), str(file), "cannot be read: Permission denied")


def test_outputs_that_cannot_be_written(cli: CommandLine, synthetic: Path, tmp_path: Path) -> None:
    assert_one_clear_line(cli("record", GPT, "-o", tmp_path), "it is a folder")
    missing = tmp_path / "none" / "run.autosp"
    assert_one_clear_line(cli("record", GPT, "-o", missing), "there is no folder")
    assert_one_clear_line(
        cli("export", synthetic, "--svg", tmp_path / "none" / "a.svg"), "there is no folder"
    )


def test_commands_and_names_that_are_misspelt(cli: CommandLine, synthetic: Path) -> None:
    assert_one_clear_line(cli("sumary", synthetic), "Did you mean summary?")
    assert_one_clear_line(cli("explain", synthetic, "sdpa_9"), "Did you mean sdpa_")
    assert_one_clear_line(cli("nodes", synthetic, "--graph", "joined"), "Did you mean joint?")
    assert_one_clear_line(cli("passes", synthetic, "--diff", "9"), "there is no pass '9'")


def test_a_recorded_trace_refuses_options_of_a_compilation(
    cli: CommandLine, synthetic: Path
) -> None:
    outcome = cli("memory", synthetic, "--sp", "8", "--seq", "1k")
    assert_one_clear_line(outcome, "recorded trace, which --sp, --seq cannot change")
    assert_one_clear_line(cli("record", synthetic, "-o", "x.autosp"), "is a trace already")
    assert_one_clear_line(cli("verify", synthetic), "is a trace, which cannot be run")


def test_an_export_without_a_file(cli: CommandLine, synthetic: Path) -> None:
    assert_one_clear_line(cli("export", synthetic), "give --svg FILE or --dot FILE")


def test_the_interactive_view_needs_a_terminal(cli: CommandLine, synthetic: Path) -> None:
    assert_one_clear_line(cli("show", synthetic), "needs a terminal")


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("def make(): ...", ["has no factory", "Found: make()"]),
        ("def build(): return 3", ["the factory returned a value of type int"]),
        ("import no_such_package", ["imports no_such_package", "pip install no_such_package"]),
        ("def build(", ["is not valid Python"]),
    ],
)
def test_model_files_that_cannot_be_used(
    cli: CommandLine, tmp_path: Path, body: str, parts: list[str]
) -> None:
    assert_one_clear_line(cli(write_model(tmp_path, body)), *parts)


def test_a_factory_that_raises_shows_its_own_lines(cli: CommandLine, tmp_path: Path) -> None:
    file = write_model(tmp_path, "def build():\n    raise ValueError('no luck')")
    outcome = cli(file)
    assert outcome.status == 2
    assert outcome.out == ""
    *frames, last = outcome.err.splitlines()
    assert last == f"error: {file}:2: the factory build raised ValueError: no luck"
    assert [line.strip() for line in frames][:2] == [
        f'File "{file}", line 2, in build',
        "raise ValueError('no luck')",
    ]
    assert "autosp_inspector" not in outcome.err


FORWARD_THAT_RAISES = """
    def build():
        class Bad(Net):
            def forward(self, input_ids, labels=None):
                return self.embed(input_ids.view(3, 7))
        return Bad()
"""
FORWARD_THAT_BREAKS = """
    def build():
        class Bad(Net):
            def forward(self, input_ids, labels=None):
                if input_ids.sum() > 3:
                    return self.head(self.embed(input_ids))
                return self.embed(input_ids)
        return Bad()
"""


def test_a_forward_that_raises_says_its_own_error(cli: CommandLine, tmp_path: Path) -> None:
    file = write_model(tmp_path, TINY_MODEL, FORWARD_THAT_RAISES)
    outcome = cli(file, "--seq", "64")
    assert outcome.status == 2
    last = outcome.err.splitlines()[-1]
    assert f"{file}:" in last
    assert "the model's forward raised RuntimeError: shape '[3, 7]' is invalid" in last


def test_a_graph_break_names_the_users_line(cli: CommandLine, tmp_path: Path) -> None:
    file = write_model(tmp_path, TINY_MODEL, FORWARD_THAT_BREAKS)
    outcome = cli(file, "--seq", "64")
    assert_one_clear_line(outcome, f"{file}:", "if input_ids.sum() > 3:", "graph break")


def test_heads_that_do_not_fit_say_which_degrees_do(cli: CommandLine) -> None:
    options = ("--arg", "tiny=true", "--seq", "60", "--sp", "3", "--attention", "ulysses")
    outcome = cli(GPT, *options)
    assert_one_clear_line(outcome, "SP degree 3", "8 query heads", "1, 2, 4, 8")


_LANGUAGE_MODEL = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(50, 8)
            self.head = nn.Linear(8, 50)

        def logits(self, input_ids):
            x = self.embed(input_ids)
            q = x.unflatten(-1, (4, 2)).transpose(1, 2)
            y = F.scaled_dot_product_attention(q, q, q, is_causal=True)
            return self.head(y.transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("forward", "parts"),
    [
        ("return self.logits(input_ids).argmax(-1)", ["no floating-point tensor", "Return"]),
        ("self.logits(input_ids); return None", ["no floating-point tensor"]),
        ("x = self.logits(input_ids).mean(); return x * x.item()", ["model.py:17", "(.item())"]),
        (
            "x = self.logits(input_ids).mean(); return x * 2 if x.item() > 3 else x",
            ["/model.py:17 in forward", "depends on the values of a tensor"],
        ),
        ("return self.logits(input_ids)[input_ids > 3]", ["model.py:17", "depends on data"]),
    ],
)
def test_forwards_that_cannot_be_compiled(
    cli: CommandLine, tmp_path: Path, forward: str, parts: list[str]
) -> None:
    file = write_model(
        tmp_path,
        _LANGUAGE_MODEL,
        f"""
    def forward(self, input_ids):
        {forward}

    Net.forward = forward
    """,
        "def build(): return Net()",
    )
    assert_one_clear_line(cli("summary", file, "--seq", "32"), *parts)


def test_files_that_are_no_text_and_names_that_cannot_be(cli: CommandLine, tmp_path: Path) -> None:
    binary = tmp_path / "model.py"
    binary.write_bytes(b"x = 1\0")
    assert_one_clear_line(cli(binary), "model.py: is not valid Python", "null bytes")
    assert_one_clear_line(cli("x" * 5000), "cannot be read: File name too long")
    link = tmp_path / "link.py"
    link.symlink_to("nowhere.py")
    assert_one_clear_line(cli(link), "is a link to nowhere.py, which does not exist")


def test_factories_that_wrap_the_model(cli: CommandLine, tmp_path: Path) -> None:
    file = write_model(
        tmp_path,
        TINY_MODEL,
        """
        def build(): return nn.DataParallel(Net())
        async def later(): return Net()
        """,
    )
    assert_one_clear_line(cli(file), "wrapped in DataParallel", "--dp")
    assert_one_clear_line(cli(f"{file}:later"), "a value of type coroutine")


def test_a_relative_import_without_a_package(cli: CommandLine, tmp_path: Path) -> None:
    outcome = cli(write_model(tmp_path, "from .parts import Net"))
    assert outcome.status == 2
    assert "put an __init__.py beside it" in outcome.err.splitlines()[-1]


def test_a_stdout_that_is_full_or_closed(
    cli: CommandLine, synthetic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert_one_clear_line(cli("summary", synthetic), "cannot write to stdout: it is closed")
