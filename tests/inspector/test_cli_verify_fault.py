"""``verify`` on a compiler with a planted fault names the node, its line, values and placement."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import CommandLine

FAULTY = """
import torch
import torch.nn.functional as F

from autosp.sharding import linear_algebra
from autosp.sharding.rules import RULES

aten = torch.ops.aten


def scaled(op):
    value = linear_algebra.linear(op)
    return op.result(op.emit(aten.mul.Scalar, value, 1.01), value.placement)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(32, 16)
        self.out = torch.nn.Linear(16, 32)

    def forward(self, input_ids, labels):
        x = self.table(input_ids)
        heads = x.view(*x.shape[:2], 4, 4).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(x.shape)
        return F.cross_entropy(self.out(x).flatten(0, 1), labels.flatten())


def build():
    RULES[aten.linear.default] = scaled
    return Model()
"""


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    path = tmp_path / "faulty.py"
    path.write_text(FAULTY)
    return path


def test_the_first_wrong_node_is_shown_with_line_values_and_placement(
    cli: CommandLine, faulty: Path
) -> None:
    outcome = cli("verify", faulty, "--ranks", "2", "--seq", "8", "--json")
    assert outcome.status == 1
    data = outcome.json
    assert (data["ok"], data["first_wrong_node"]) == (False, "linear")
    wrong = data["first_wrong"]
    assert (wrong["quantity"], wrong["placement"]) == ("value", "S(1:seq)")
    assert wrong["operator"] == "aten.linear.default"
    assert wrong["module"] == "out"
    line = 1 + FAULTY.splitlines().index(
        "        return F.cross_entropy(self.out(x).flatten(0, 1), labels.flatten())"
    )
    assert wrong["source"] == f"{faulty}:{line}"
    assert "self.out(x)" in wrong["source_text"]
    ratios = [a / e for a, e in zip(wrong["actual"], wrong["expected"], strict=True)]
    assert ratios == pytest.approx([1.01] * len(ratios))
