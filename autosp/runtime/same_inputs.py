"""Do the ranks of an SP group have one batch and one model? Checked in the first calls.

Every rank of a group cuts its part out of what it takes for the full input. A loader that
gives each rank a batch of its own (a ``DistributedSampler`` over all ranks is enough), models
initialised from different seeds, or gradients that nobody averages would train a mixture,
without an error and with a loss that looks well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from autosp.errors import AutoSPError

NUM_CALLS = 2
"""Calls that are compared, of each compiled program: a loader or an initialisation differs from
the first on, parameters whose gradients were not averaged at the second."""

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class DifferentInputsError(AutoSPError):
    """Ranks of one SP group were given different batches, or have different parameters."""


class SameInputs:
    """Compares inputs and parameters of the ranks of ``group`` in the first calls.

    One all-gather of two numbers a tensor, on the tensors' device; the later calls do nothing.
    """

    def __init__(self, group: Any, num_ranks: int) -> None:
        self._group = group
        self._calls_left = NUM_CALLS if num_ranks > 1 else 0

    @property
    def is_due(self) -> bool:
        return self._calls_left > 0

    def check(
        self, inputs: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor]
    ) -> None:
        """Compare; every rank of the group must call it, with the same names.

        Raises:
            DifferentInputsError: a tensor differs; names it and the ranks.
        """
        self._calls_left -= 1
        named = [("input", n, t) for n, t in inputs.items()]
        named += [("parameter", n, t) for n, t in parameters.items()]
        if not named:
            return
        device = named[-1][2].device  # that of the parameters, if there are any
        with torch.no_grad():
            mine = torch.stack([fingerprint(tensor).to(device) for _, _, tensor in named])
        by_rank = [torch.empty_like(mine) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(by_rank, mine, group=self._group)
        differs = torch.stack([(row != by_rank[0]).any(1) for row in by_rank])
        if bool(differs.any()):
            index = int(differs.any(0).nonzero()[0])
            kind, name, _ = named[index]
            raise self._difference(kind, name, differs[:, index].nonzero().flatten().tolist())

    def _difference(self, kind: str, name: str, differing: list[int]) -> DifferentInputsError:
        ranks = [dist.get_global_rank(self._group, rank) for rank in (0, *differing)]
        others = ", ".join(map(str, ranks[1:]))
        return DifferentInputsError(
            f"the {kind} {name!r} on rank {others} is not that of rank {ranks[0]}, though they "
            "are in one sequence-parallel group",
            hint=_HINTS[kind],
        )


_HINTS = {
    "input": "Give all ranks of a group the same batch: sample with "
    "autosp.data_parallel_sampler(dataset, mesh). If each rank has its own part of the "
    "sequence, name it in sharded_inputs=",
    "parameter": "Build the model after the same torch.manual_seed on every rank, and before "
    "optimizer.step() average gradients over all ranks: autosp.average_gradients, "
    "DistributedDataParallel or ZeRO",
}


def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """Two 64-bit numbers that depend on every bit of ``tensor`` and on where it stands.

    Sums of the elements' bits as integers, weighted by their place in the last dim and by
    the row; integer sums do not depend on the order of the additions.

    Returns:
        ``[2]`` int64 on the tensor's device.
    """
    tensor = tensor.detach()
    if not tensor.numel():
        return torch.zeros(2, dtype=torch.int64, device=tensor.device)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.dtype is torch.bool:
        tensor = tensor.to(torch.int8)
    bits = tensor.reshape(-1, tensor.shape[-1] if tensor.dim() else 1).contiguous()
    bits = bits.view(_INTEGERS[tensor.element_size()])
    rows, columns = bits.sum(1, dtype=torch.int64), bits.sum(0, dtype=torch.int64)
    return torch.stack([(values * _weights(values)).sum() for values in (rows, columns)])


def _weights(values: torch.Tensor) -> torch.Tensor:
    """Odd and growing, so that neither a swap nor a shift of values keeps the sum."""
    return torch.arange(1, 2 * len(values) + 1, 2, device=values.device)
