"""Before a compiled step runs for the first time, the ranks compare their collectives.

Ranks that issue different ones wait for each other for ever, or take one tensor for another.
A digest of 32 bytes a rank is gathered once per compilation; only if the digests differ do the
ranks exchange the lists themselves, to say where.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily

from autosp.collective_order import check_same_collectives
from autosp.errors import CollectiveOrderError

TIMEOUT = timedelta(minutes=10)
"""Ranks trace at their own pace, but none for so long."""


def agree_on_collectives(
    entries: Sequence[str],
    group: Any,
    device: torch.device,
    *,
    timeout: timedelta = TIMEOUT,
) -> None:
    """Compare the collectives that this rank will issue with those of the others.

    Every rank of ``group`` must call it at the same time.

    Args:
        entries: one a collective, in order.
        device: where the group's collectives work.

    Raises:
        CollectiveOrderError: the lists differ, or another rank does not compile at all.
    """
    digest = hashlib.sha256("\n".join(entries).encode()).digest()
    with unset_fake_temporarily():  # a compilation is under way
        mine = torch.tensor(list(digest), dtype=torch.uint8, device=device)
        digests = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        _gather(digests, mine, group, timeout)
        if all(torch.equal(other, mine) for other in digests):
            return
        lists: list[list[str]] = [[] for _ in digests]
        dist.all_gather_object(lists, list(entries), group=group)
    check_same_collectives(lists)


def _gather(
    digests: list[torch.Tensor], mine: torch.Tensor, group: Any, timeout: timedelta
) -> None:
    work = dist.all_gather(digests, mine, group=group, async_op=True)
    assert work is not None, "this rank is not in the group"
    try:
        work.wait(timeout)
    except RuntimeError as error:
        raise CollectiveOrderError(
            f"another rank of the SP group did not compile this step within "
            f"{timeout.total_seconds():.0f} s",
            hint="Every rank must call the compiled model with inputs of the same shapes; look "
            "for an error on another rank",
        ) from error
