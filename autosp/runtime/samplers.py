"""Which samples a rank reads: those of its data-parallel group."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset, DistributedSampler

from autosp.mesh import Mesh
from autosp.runtime.groups import mesh_of_processes


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
    mesh = mesh_of_processes(mesh)
    return DistributedSampler(dataset, num_replicas=mesh.dp, rank=mesh.dp_rank, **options)
