"""Runs the sharding walk (see :mod:`autosp.sharding`) as a pass."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import GraphModule

from autosp.pipeline import PassContext
from autosp.sharding.propagate import shard
from autosp.sharding.rank_program import ShardedProgram


@dataclass(frozen=True)
class Shard:
    name: str = "shard"
    description: str = "place every tensor, insert collectives, emit the program of one rank"

    def run(self, program: GraphModule, context: PassContext) -> GraphModule:
        return self.run_sharding(program, context).program

    def run_sharding(self, program: GraphModule, context: PassContext) -> ShardedProgram:
        """Like :meth:`run`, with placements of values and outputs."""
        return shard(program, context)
