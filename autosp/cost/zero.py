"""What ZeRO divides, as plain numbers (Rajbhandari et al. 2020, section 5)."""

from __future__ import annotations

from dataclasses import dataclass

OPTIMIZER_STAGE, GRADIENT_STAGE, PARAMETER_STAGE = 1, 2, 3


@dataclass(frozen=True, slots=True)
class ZeroModel:
    """ZeRO ``stage`` over ``world_size`` ranks (data and sequence parallel together)."""

    stage: int = 0
    world_size: int = 1

    @property
    def shards_optimizer(self) -> bool:
        return self.stage >= OPTIMIZER_STAGE

    @property
    def shards_gradients(self) -> bool:
        return self.stage >= GRADIENT_STAGE

    @property
    def shards_parameters(self) -> bool:
        return self.stage >= PARAMETER_STAGE

    def share(self, size_bytes: int) -> int:
        """One rank's part of ``size_bytes``, rounded up."""
        return -(-size_bytes // self.world_size)
