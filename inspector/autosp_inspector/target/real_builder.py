"""A small real model that any process can build for itself."""

from __future__ import annotations

from dataclasses import dataclass

from autosp_inspector.target.loaded import RealTarget, TargetRecipe


@dataclass(frozen=True, slots=True)
class RealBuilder:
    """Called in each process of a verification; the same seed gives the same model.

    Can be pickled: it holds plain data and imports torch and the user's file only when
    it is called.
    """

    recipe: TargetRecipe
    seed: int
    dtype: str
    batch: int
    seq: int
    ignored_shards: int = 0
    """If not 0: labels are -100 in the last of so many shards and across their borders."""

    def __call__(self) -> RealTarget:
        """The model and the arguments of its forward.

        Raises:
            TargetError: the target cannot be built, or is too large to run here.
        """
        from autosp_inspector.target.load import build_real

        return build_real(
            self.recipe,
            seed=self.seed,
            dtype=self.dtype,
            batch=self.batch,
            seq=self.seq,
            ignored_shards=self.ignored_shards,
        )
