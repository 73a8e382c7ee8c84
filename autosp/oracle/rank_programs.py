"""The programs of all ranks, compiled in this process, and what makes them comparable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate

from autosp.attention_choice import AttentionChoice
from autosp.capture import CapturedProgram
from autosp.collective_order import check_same_collectives, collective_list
from autosp.dynamic_sizes import DynamicSizes
from autosp.errors import AutoSPError
from autosp.mesh import Mesh
from autosp.passes.keyed_randomness import KeyedRandomness, random_keys
from autosp.pipeline import Pass, PassContext
from autosp.runtime.keyed_random import draw_keys
from autosp.sharding.padding_rows import NUM_VALID_ROWS_KEY, fill_padding
from autosp.sharding.propagate import shard
from autosp.sharding.rank_program import ShardedProgram

RANDOM_KEYS_SEED = 20240301
"""Seed of the keys of random operators."""


def compile_ranks(
    program: GraphModule,
    num_ranks: int,
    passes: Sequence[Pass],
    fake_mode: Any,
    attention: AttentionChoice = "auto",
    sizes: DynamicSizes | None = None,
) -> list[ShardedProgram]:
    """The programs of all ranks; passes run on a copy. ``sizes`` stay dynamic."""
    rewritten = _copy(program)
    sizes = sizes or DynamicSizes()

    def context(rank: int) -> PassContext:
        return PassContext(Mesh(sp=num_ranks, rank=rank), attention=attention, sizes=sizes)

    with torch._guards.tracing(None):
        for item in passes:
            rewritten = item.run(rewritten, context(0))
            sizes.check(item.name)
        with fake_mode, torch.no_grad():
            ranks = [shard(rewritten, context(rank)) for rank in range(num_ranks)]
    name = context(0).group_name
    check_same_collectives([collective_list(rank.program, None, name) for rank in ranks])
    return ranks


def fill_all_padding(ranks: Sequence[ShardedProgram], fill: str) -> None:
    """Programs differ from one filling to the next in the rows that padding repeats alone."""
    for rank in ranks:
        for node in rank.program.graph.nodes:
            if NUM_VALID_ROWS_KEY in node.meta:
                fill_padding(node, fill)


def with_keyed_randomness(
    program: GraphModule, inputs: Sequence[Any]
) -> tuple[GraphModule, Sequence[Any]]:
    """The program whose random numbers do not depend on who computes them, and their keys.

    Only that can be compared: torch's own numbers depend on the order of the draws.
    """
    keyed = KeyedRandomness().run(_copy(program), PassContext(Mesh(sp=1)))
    keys = random_keys(keyed.graph)
    if keys is None:
        return program, inputs
    fake = keys.meta["val"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RANDOM_KEYS_SEED)
        return keyed, (*inputs, draw_keys(len(fake), dp_rank=0, device=fake.device))


def _copy(program: GraphModule) -> GraphModule:
    graph = Graph()
    copied: dict[Node, Node] = {}
    for node in program.graph.nodes:
        copy = copied[node] = graph.create_node(node.op, node.target, name=node.name)
        # Sizes that stay dynamic are expressions, which create_node warns of.
        copy.args, copy.kwargs = map_aggregate(
            (node.args, node.kwargs), lambda a: copied[a] if isinstance(a, Node) else a
        )
        copy.meta = dict(node.meta)
    assert all(old.name == new.name for old, new in copied.items())
    return GraphModule(program, graph)


def fake_mode_of(program: GraphModule, captured: CapturedProgram | None) -> Any:
    if captured is not None:
        return captured.fake_mode
    for node in program.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None:
            return mode
    raise AutoSPError("the program carries no fake values", hint="Capture it with autosp.capture")
