"""Sharded outputs look whole from outside."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from autosp.errors import MutationError
from autosp.placement import Shard
from autosp.runtime.gathered import GatheredOnUse


@pytest.fixture
def output():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    blocks = torch.arange(6.0).reshape(1, 3, 2)
    yield GatheredOnUse.wrap(blocks, Shard(1, 3), (1, 3, 2), dist.group.WORLD, differentiable=True)
    dist.destroy_process_group()


def test_operators_see_the_whole_tensor(output):
    assert torch.equal(output * 2, torch.arange(6.0).reshape(1, 3, 2) * 2)
    assert float(output[:, 1:].sum()) == 14


@pytest.mark.parametrize(
    "write",
    [
        lambda output: output.mul_(2),
        lambda output: output.__setitem__((0, 0), 1.0),
        lambda output: torch.add(output, 1, out=output),
    ],
)
def test_a_write_that_the_next_reader_would_not_see_is_an_error(output, write):
    with torch.no_grad(), pytest.raises(MutationError, match="written in place"):
        write(output)


def test_a_copy_may_be_written(output):
    copy = output.clone()
    copy.mul_(2)
    assert float(copy.sum()) == 30
