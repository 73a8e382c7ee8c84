"""What a TARGET on the command line denotes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autosp_inspector.target.errors import TargetError
from autosp_inspector.target.specification import (
    HuggingFaceConfig,
    PythonFile,
    PythonModule,
    TraceFiles,
    recognise,
)
from tests.support.synthetic import write_synthetic_trace


def test_a_python_file_with_and_without_a_factory(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("x = 1\n")
    assert recognise(str(file)) == PythonFile(file, None, str(file))
    assert recognise(f"{file}:make") == PythonFile(file, "make", f"{file}:make")


def test_a_module_name_with_a_factory() -> None:
    assert recognise("json.decoder:JSONDecoder") == PythonModule(
        "json.decoder", "JSONDecoder", "json.decoder:JSONDecoder"
    )


def test_a_hugging_face_configuration_as_file_and_as_folder(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama"}))
    assert recognise(str(config)) == HuggingFaceConfig(config, str(config))
    assert recognise(str(tmp_path)) == HuggingFaceConfig(config, str(tmp_path))


def test_a_trace_is_recognised_by_its_content_not_its_name(tmp_path: Path) -> None:
    written = write_synthetic_trace(tmp_path / "run.autosp")
    renamed = written.rename(tmp_path / "something")
    assert recognise(str(renamed)) == TraceFiles(renamed, str(renamed))
    assert recognise(str(tmp_path)) == TraceFiles(tmp_path, str(tmp_path))


def test_a_missing_file_names_the_closest_one(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("")
    with pytest.raises(TargetError) as caught:
        recognise(str(tmp_path / "modle.py"))
    assert str(caught.value) == (
        f"{tmp_path / 'modle.py'}: no such file. Did you mean {tmp_path / 'model.py'}?"
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("notes.txt", "hello", "is neither a trace, a Python file nor a Hugging Face config.json"),
        ("run.autosp", "", "An empty file is an interrupted recording"),
        ("ds.json", '{"zero_optimization": {}}', "has no model_type"),
        ("broken.json", '{"a": ', "is not valid JSON"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(TargetError, match=message):
        recognise(str(file))


def test_a_folder_without_traces_or_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="holds neither traces"):
        recognise(str(tmp_path))


def test_a_name_that_is_nothing_says_what_a_target_may_be() -> None:
    with pytest.raises(TargetError, match="no file, folder or importable module"):
        recognise("no_such_thing_anywhere")


@pytest.mark.parametrize("text", ["", "  ", "model.py:", "model.py:1x", "trace.autosp:build"])
def test_malformed_targets_are_refused(text: str) -> None:
    with pytest.raises(TargetError):
        recognise(text)
