"""Which samples a rank reads: those of its data-parallel group."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.utils.data import Dataset, DistributedSampler

from autosp.errors import MeshError
from autosp.mesh import Mesh


def data_parallel_sampler(
    dataset: Dataset[Any], mesh: Mesh | None = None, **options: Any
) -> DistributedSampler[Any]:
    """A sampler that gives the ranks of an SP group one batch, and each group its own.

    Call ``set_epoch`` on it at the start of an epoch, as on any ``DistributedSampler``.

    Args:
        dataset: a map-style dataset.
        mesh: the mesh that the model is compiled for; None: all ranks are one SP group.
        options: ``shuffle``, ``seed``, ``drop_last``: as for ``DistributedSampler``.

    Raises:
        MeshError: the mesh does not match the processes that run.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise MeshError(
            "torch.distributed is not initialised",
            hint="Call torch.distributed.init_process_group() first, under torchrun",
        )
    mesh = mesh or Mesh(sp=dist.get_world_size())
    if mesh.world_size != dist.get_world_size():
        raise MeshError(
            f"the mesh has {mesh.world_size} ranks but {dist.get_world_size()} processes run",
            hint="Start as many processes as the mesh has ranks",
        )
    group = dist.get_rank() // mesh.sp
    return DistributedSampler(dataset, num_replicas=mesh.dp, rank=group, **options)
