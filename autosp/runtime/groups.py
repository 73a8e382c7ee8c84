"""Process groups and the mesh of a real run. No device-specific call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from autosp.errors import MeshError
from autosp.mesh import Mesh


@dataclass(frozen=True, slots=True)
class RankGroup:
    """This rank's place in the mesh and the process group of its SP axis."""

    mesh: Mesh
    group: Any

    @property
    def name(self) -> str:
        """The name under which functional collectives find the group."""
        name: str = self.group.group_name
        return name


def join_mesh(mesh: Mesh | DeviceMesh | None) -> RankGroup:
    """Find or make the SP group of this rank. Every rank must call it, in the same order.

    Args:
        mesh: an :class:`autosp.Mesh` whose size is the world size, a ``DeviceMesh`` with a
            dim named ``sp`` (and, if there are others, ``dp``), or None: all ranks are one
            SP group.

    Raises:
        MeshError: no process group, or sizes that do not match it.
    """
    if isinstance(mesh, DeviceMesh):
        _require_processes()
        return _from_device_mesh(mesh, dist.get_rank(), dist.get_world_size())
    mesh = mesh_of_processes(mesh)
    if mesh.dp == 1:
        return RankGroup(mesh, dist.group.WORLD)
    group, _ = dist.new_subgroups_by_enumeration(mesh.sp_groups())  # type: ignore[no-untyped-call]
    return RankGroup(mesh, group)


def _require_processes() -> None:
    if not dist.is_available() or not dist.is_initialized():
        raise MeshError(
            "torch.distributed is not initialised",
            hint="Call torch.distributed.init_process_group() first, under torchrun",
        )


def mesh_of_processes(mesh: Mesh | None) -> Mesh:
    """``mesh`` with this process's rank; None: all processes are one SP group.

    Raises:
        MeshError: no process group, or sizes that do not match it.
    """
    _require_processes()
    world_size = dist.get_world_size()
    mesh = mesh or Mesh(sp=world_size)
    if mesh.world_size != world_size:
        raise MeshError(
            f"the mesh has dp {mesh.dp} x sp {mesh.sp} = {mesh.world_size} ranks "
            f"but {world_size} processes run",
            hint="Start as many processes as the mesh has ranks",
        )
    return replace(mesh, rank=dist.get_rank())


def _from_device_mesh(device_mesh: DeviceMesh, rank: int, world_size: int) -> RankGroup:
    names = device_mesh.mesh_dim_names or ()
    if "sp" not in names or not set(names) <= {"dp", "sp"}:
        raise MeshError(
            f"the DeviceMesh has the dims {list(names)}",
            hint='Name them ("dp", "sp") or ("sp",)',
        )
    if device_mesh.size() != world_size:
        raise MeshError(
            f"the DeviceMesh covers {device_mesh.size()} of {world_size} processes",
            hint="Gradients are averaged over all processes: pass the whole mesh, with a dp dim "
            "beside sp, not a slice of it",
        )
    sizes = {name: device_mesh.size(index) for index, name in enumerate(names)}
    mesh = Mesh(sp=sizes["sp"], dp=sizes.get("dp", 1), rank=0)
    coordinates = dict(zip(names, device_mesh.get_coordinate() or (), strict=True))
    place = coordinates.get("dp", 0) * mesh.sp + coordinates["sp"]
    return RankGroup(replace(mesh, rank=place), device_mesh.get_group("sp"))


def average_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Average gradients over all ranks, as DDP does: the whole of the mean convention.

    For scripts without DDP, FSDP or DeepSpeed. A parameter without a gradient on this
    rank counts as zero.
    """
    world_size = dist.get_world_size()
    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size
