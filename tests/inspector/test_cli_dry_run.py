"""From a model file to what is printed, through the real compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import CommandLine, assert_one_clear_line
from tests.support.user_models import TINY_MODEL, write_model

SAMPLES = Path(__file__).parents[2] / "samples"
TINY = ("--arg", "tiny=true", "--seq", "64")


@pytest.mark.parametrize("sample", ["gpt.py", "llama.py", "hf_llama.py"])
def test_the_samples_are_sharded(cli: CommandLine, sample: str) -> None:
    data = cli(SAMPLES / sample, *TINY, "--sp", "2", "--no-tui", "--json").json
    assert data["model"] == f"{SAMPLES / sample}:build"
    assert data["status"] == "ok"
    assert data["mesh"] == {"dp": 1, "sp": 2}
    assert (data["attention_sites"], data["attention_sites_sharded"]) == (2, 2)
    per_layer = data["collectives_per_layer"]
    assert per_layer["layers"] == 2
    assert per_layer["counts"] == {"forward": [4, 4], "backward": [4, 4]}
    assert sum(data["categories"].values()) == data["peak"]["live_bytes"]
    assert data["step_ns"] > 0


def test_a_recorded_model_answers_every_view(cli: CommandLine, tmp_path: Path) -> None:
    trace = tmp_path / "gpt.autosp"
    recorded = cli("record", SAMPLES / "gpt.py", *TINY, "--sp", "4", "-o", trace)
    assert (recorded.status, recorded.out) == (0, "")
    assert recorded.err == f"wrote {trace}; look at it with: autosp-inspect show {trace}\n"
    shard = cli("passes", trace, "--diff", "shard", "--json").json
    assert any(change["after"] and change["after"]["placement"] for change in shard["changes"])
    attention = cli("decisions", trace, "--topic", "attention", "--json").json["decisions"]
    node = attention[0]["node"]
    explained = cli("explain", trace, node)
    assert "samples/gpt.py" in explained.out
    assert "scaled_dot_product_attention(q, k, v" in explained.out
    assert "all_to_all" in explained.out


def test_options_reach_the_compilation(cli: CommandLine) -> None:
    options = ("--sp", "2", "--dp", "2", "--zero", "2", "--batch", "3", "--dtype", "bf16")
    other = ("--optimizer", "sgd", "--partitioner", "default", "--gpu", "H100")
    data = cli("summary", SAMPLES / "gpt.py", *TINY, *options, *other, "--json").json
    assert data["mesh"] == {"dp": 2, "sp": 2}
    assert data["gpu"] == "h100"
    expected = {
        "seq": 64,
        "batch": 3,
        "dtype": "bfloat16",
        "zero": 2,
        "optimizer": "sgd",
        "partitioner": "default",
        "arguments": {"tiny": "true"},
    }
    assert data["config"].items() >= expected.items()


def test_the_form_of_attention_is_chosen_and_shown(cli: CommandLine, tmp_path: Path) -> None:
    trace = tmp_path / "ring.autosp"
    cli("record", SAMPLES / "llama.py", *TINY, "--sp", "4", "--attention", "ring", "-o", trace)
    assert cli("summary", trace, "--json").json["config"]["attention"] == "ring"
    (first, *_) = cli("decisions", trace, "--topic", "attention", "--json").json["decisions"]
    assert first["chosen"] == "ring of 4 ranks, all 8 query heads on each"
    work = cli("decisions", trace, "--topic", "ring-work").out
    assert "zigzag order: 520, 520, 520, 520" in work
    steps = cli("decisions", trace, "--topic", "ring-steps").out
    assert "4 steps, 0 skipped" in steps
    sends = cli("collectives", trace, "--json").json["collectives"]
    assert {c["kind"] for c in sends if "ring step" in c["reason"]} == {"send_recv"}
    tiles = cli("nodes", trace, "--graph", "forward", "--json").json["nodes"]
    assert any("with 16 keys of ring rank 3" in node["reason"] for node in tiles)


def test_the_summary_says_how_to_keep_the_trace(cli: CommandLine) -> None:
    out = cli(SAMPLES / "gpt.py", *TINY, "--sp", "2").out
    command = f"autosp-inspect record {SAMPLES / 'gpt.py'} --sp 2 --seq 64 --arg tiny=true"
    assert f"{command} -o gpt.autosp" in out


WRITTEN_FOR_CUDA = """
    import torch
    import torch.nn.functional as F
    from torch import nn

    assert torch.cuda.is_available(), "needs a GPU"
    print("building")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(50, 32, device="cuda")
            self.qkv = nn.Linear(32, 96)
            self.head = nn.Linear(32, 50)

        def forward(self, input_ids, labels):
            positions = torch.arange(input_ids.shape[1], device="cuda")
            x = self.embed(input_ids) + positions[:, None].float().cuda() / 100
            q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            logits = self.head(y.transpose(1, 2).flatten(2))
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def build():
        return Net().cuda()
"""


def test_a_model_written_for_cuda_is_compiled_on_the_cpu(cli: CommandLine, tmp_path: Path) -> None:
    file = write_model(tmp_path, WRITTEN_FOR_CUDA)
    outcome = cli("collectives", file, "--seq", "64", "--sp", "2", "--json")
    assert outcome.status == 0
    assert outcome.err == "building\n"
    kinds = [row["kind"] for row in outcome.json["collectives"]]
    assert kinds.count("all_to_all") == 8


def test_nothing_is_left_behind(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert cli(SAMPLES / "gpt.py", *TINY, "--sp", "2").status == 0
    assert list(tmp_path.glob("autosp-inspect-*")) == []


def test_verify_compares_loss_and_every_gradient(cli: CommandLine) -> None:
    outcome = cli("verify", SAMPLES / "gpt.py", "--seq", "15", "--ignored-labels", "--json")
    assert outcome.status == 0
    data = outcome.json
    assert data.keys() >= {
        "ranks",
        "dtype",
        "loss",
        "gradients",
        "max_rel_error",
        "first_wrong_node",
        "ok",
    }
    assert data["loss"].keys() == {"reference", "compiled", "rel_error"}
    assert len(data["gradients"]) == 28
    assert data["ok"] is True
    assert data["max_rel_error"] < 1e-12


def test_verify_of_a_model_with_dropout_compares_with_one_rank(cli: CommandLine) -> None:
    options = ("--arg", "dropout=0.1", "--seq", "15", "--steps", "2", "--seed", "3")
    outcome = cli("verify", SAMPLES / "gpt.py", *options, "--json")
    assert outcome.status == 0, outcome.err
    data = outcome.json
    assert data["ok"] is True
    assert "on one rank" in data["reference"]
    assert len(data["gradients"]) == 28
    without = cli("verify", SAMPLES / "gpt.py", "--seq", "15", "--seed", "3", "--json").json
    assert without["loss"]["reference"] != data["loss"]["reference"]


def test_verify_fails_if_anything_differs(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {
        "ranks": 2,
        "dtype": "float64",
        "loss": {"reference": 1.0, "compiled": 1.0, "rel_error": 0.0},
        "gradients": [{"name": "w", "rel_error": float("inf")}],
        "max_rel_error": float("inf"),
        "first_wrong_node": "linear_3",
        "ok": False,
    }
    monkeypatch.setattr(
        "autosp_inspector.cli.commands.verify.run_verification", lambda *_, **__: found
    )
    text = cli("verify", SAMPLES / "gpt.py")
    assert text.status == 1
    assert "DIFFERENT" in text.out
    assert "First wrong node: linear_3" in text.out
    as_json = cli("verify", SAMPLES / "gpt.py", "--json")
    assert as_json.status == 1
    assert as_json.json["max_rel_error"] is None


def test_verify_refuses_a_large_model_without_a_tiny_form(cli: CommandLine, tmp_path: Path) -> None:
    file = write_model(tmp_path, TINY_MODEL, "def build(): return Net(vocab=1_000_000, width=400)")
    assert_one_clear_line(cli("verify", file), "0.8 billion parameters", "tiny: bool = False")
