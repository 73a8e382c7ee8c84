"""The device mesh: named axes over the ranks. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autosp.errors import MeshError


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks laid out as ``dp x sp``, ``sp`` innermost (neighbouring ranks share links).

    ``sp`` ranks work on one batch, each on its part of the tokens; ``dp`` groups work on
    different batches.

    Raises:
        MeshError: a size below 1, or a rank outside the mesh.
    """

    sp: int
    dp: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        for name in ("sp", "dp"):
            size = getattr(self, name)
            if size < 1:
                raise MeshError(f"--{name} is {size}; a mesh axis has at least 1 rank")
        if not 0 <= self.rank < self.world_size:
            raise MeshError(
                f"rank {self.rank} is outside a mesh of {self.world_size} ranks "
                f"(0..{self.world_size - 1})"
            )

    @property
    def world_size(self) -> int:
        return self.sp * self.dp

    @property
    def sp_rank(self) -> int:
        return self.rank % self.sp

    @property
    def dp_rank(self) -> int:
        """Which of the data-parallel groups this rank is in."""
        return self.rank // self.sp

    @property
    def axes(self) -> Mapping[str, int]:
        """Axis sizes, outermost first."""
        return {"dp": self.dp, "sp": self.sp}

    def sp_groups(self) -> list[list[int]]:
        """The ranks of every sequence-parallel group."""
        return [[d * self.sp + s for s in range(self.sp)] for d in range(self.dp)]
