"""The training sample is an ordinary script that trains as one process would."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from samples import llama

ROOT = Path(__file__).resolve().parents[1]


def one_process(steps: int, seq: int) -> list[float]:
    torch.manual_seed(0)
    model = llama.build(tiny=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    tokens = torch.randint(0, 128, (2, seq))
    for _ in range(steps):
        loss = model(tokens, labels=tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def losses_on_two_ranks(*script: str) -> list[float]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*launch, *script], capture_output=True, text=True, timeout=300, env=environment
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return [float(text) for text in re.findall(r"step \d+: loss ([\d.]+)", result.stdout)]


def test_deepspeed_sample_steps_on_two_ranks() -> None:
    pytest.importorskip("deepspeed")
    wrapper = str(ROOT / "tests/support/without_native_operators.py")
    script = str(ROOT / "samples/train_deepspeed.py")
    losses = losses_on_two_ranks(wrapper, script, "--steps", "3", "--seq", "63", "--zero", "2")
    assert len(losses) == 3
    assert losses[0] == pytest.approx(math.log(128), rel=0.02)
    assert losses[2] < losses[1] < losses[0]


def test_two_ranks_train_like_one_process() -> None:
    script = str(ROOT / "samples/train_torch.py")
    losses = losses_on_two_ranks(script, "--steps", "3", "--seq", "63")
    torch.testing.assert_close(losses, one_process(3, 63), rtol=1e-4, atol=1e-4)
