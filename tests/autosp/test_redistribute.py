"""Redistributions between all pairs of placements, run for all ranks together."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule

from autosp.blocks import cut_blocks
from autosp.graph import TAG_KEY, LocalTag, collective_kind, local_tag
from autosp.mesh import Mesh
from autosp.oracle.combine import combine_cotangents, combine_values
from autosp.oracle.lockstep import run_ranks
from autosp.placement import (
    PARTIAL_SUM,
    REPLICATE,
    Shard,
    local_shape,
    padding_of,
    shard_dim,
)
from autosp.sharding.builder import ProgramBuilder, Value
from autosp.sharding.operation import CannotRedistribute
from autosp.sharding.redistribute import redistribute

SHAPE = (2, 6, 12)


def program(source, target, shape, *, num_ranks, rank, **options):
    """One redistribution; every rank selects its own input from those of all ranks."""
    graph = Graph()
    local = local_shape(shape, source, num_ranks)
    with FakeTensorMode():
        every = graph.placeholder("every")
        every.meta["val"] = torch.empty(num_ranks, *local, dtype=torch.float64)
        every.meta[TAG_KEY] = LocalTag("every", "input")
        builder = ProgramBuilder(graph, Mesh(sp=num_ranks, rank=rank), "group", "last")
        with builder.on_behalf_of(every):
            own = builder.emit(torch.ops.aten.select.int, every, 0, rank)
            result = redistribute(
                builder, Value(own, source, shape), target, reason="test", **options
            )
    graph.output(result.node)
    return GraphModule(torch.nn.Module(), graph), result.node.name, own.name


def parts_of(whole, placement, num_ranks):
    """What the ranks hold; padding rows hold something odd."""
    if isinstance(placement, Shard):
        blocks = cut_blocks(whole, placement, num_ranks)
        valid = cut_blocks(torch.ones_like(whole), placement, num_ranks)
        return [block + 7 * (1 - mask) for block, mask in zip(blocks, valid, strict=True)]
    if placement == PARTIAL_SUM:
        shares = [torch.randn_like(whole) for _ in range(num_ranks - 1)]
        return [*shares, whole - sum(shares, torch.zeros_like(whole))]
    return [whole] * num_ranks


def check(source, target, shape, num_ranks, **options):
    """Values and cotangents of one redistribution; returns the collectives it used."""
    torch.manual_seed(0)
    whole, seed = torch.randn(2, *shape, dtype=torch.float64)
    ranks = [
        program(source, target, shape, num_ranks=num_ranks, rank=rank, **options)
        for rank in range(num_ranks)
    ]
    modules, (result, own) = [module for module, *_ in ranks], ranks[0][1:]
    every = torch.stack(parts_of(whole, source, num_ranks)).requires_grad_()
    values = run_ranks(modules, [every])
    for combined in combine_values(values[result], target, shape):
        assert torch.allclose(combined, whole)

    sharded = isinstance(target, Shard)
    seeds = cut_blocks(seed * num_ranks, target, num_ranks) if sharded else [seed] * num_ranks
    cotangents = torch.autograd.grad(values[result], values[own], seeds)
    for combined in combine_cotangents(cotangents, source, shape):
        assert torch.allclose(combined, seed)
    return [kind for node in modules[0].graph.nodes if (kind := collective_kind(node))]


def cut(dim, num_ranks, shape=SHAPE):
    return shard_dim(dim, shape[dim], num_ranks)


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_each_pair_of_placements_takes_one_collective(num_ranks):
    sequence, heads = cut(1, num_ranks), cut(2, num_ranks)
    assert check(REPLICATE, sequence, SHAPE, num_ranks) == []
    assert check(sequence, REPLICATE, SHAPE, num_ranks) == ["all_gather"]
    assert check(PARTIAL_SUM, REPLICATE, SHAPE, num_ranks) == ["all_reduce"]
    assert check(PARTIAL_SUM, sequence, SHAPE, num_ranks) == ["reduce_scatter"]
    assert check(sequence, heads, SHAPE, num_ranks) == ["all_to_all"]
    assert check(heads, sequence, SHAPE, num_ranks) == ["all_to_all"]


@settings(max_examples=12)
@given(
    st.lists(st.integers(1, 7), min_size=2, max_size=4),
    st.integers(2, 4),
    st.data(),
)
def test_any_shape_and_any_two_dims(shape, num_ranks, data):
    shape = tuple(shape)
    first = data.draw(st.integers(0, len(shape) - 1))
    second = data.draw(st.integers(0, len(shape) - 1))
    source, target = cut(first, num_ranks, shape), cut(second, num_ranks, shape)
    check(source, target, shape, num_ranks)
    check(REPLICATE, source, shape, num_ranks)
    check(source, REPLICATE, shape, num_ranks)
    check(PARTIAL_SUM, target, shape, num_ranks)


@settings(max_examples=10)
@given(st.integers(1, 3), st.integers(1, 7), st.integers(1, 3), st.integers(2, 4))
def test_strided_cuts_of_flattened_dims(outer, atom, inner, num_ranks):
    shape = (outer * atom * inner, num_ranks)
    strided = Shard(0, atom, outer, -atom % num_ranks)
    assert check(REPLICATE, strided, shape, num_ranks) == []
    assert check(strided, REPLICATE, shape, num_ranks) == ["all_gather"]
    assert check(strided, cut(1, num_ranks, shape), shape, num_ranks) == ["all_to_all"]


def zigzag(dim, num_ranks, shape=SHAPE):
    pad = padding_of(shape[dim], num_ranks, "zigzag")
    return Shard(dim, shape[dim], pad=pad, order="zigzag")


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_rows_in_zigzag_order_take_the_same_collectives(num_ranks):
    for shape in (SHAPE, (2, 7, 5)):
        sequence, heads = zigzag(1, num_ranks, shape), cut(2, num_ranks, shape)
        assert check(REPLICATE, sequence, shape, num_ranks) == []
        assert check(sequence, REPLICATE, shape, num_ranks) == ["all_gather"]
        assert check(PARTIAL_SUM, sequence, shape, num_ranks) == ["reduce_scatter"]
        assert check(sequence, heads, shape, num_ranks) == ["all_to_all"]
        assert check(heads, sequence, shape, num_ranks) == ["all_to_all"]
        assert check(sequence, cut(1, num_ranks, shape), shape, num_ranks) == ["all_gather"]


def test_strided_cuts_in_zigzag_order():
    for outer, atom, inner, num_ranks in ((2, 8, 1, 4), (3, 5, 2, 2), (1, 3, 4, 3)):
        shape = (outer * atom * inner, num_ranks)
        strided = Shard(0, atom, outer, padding_of(atom, num_ranks, "zigzag"), "zigzag")
        assert check(REPLICATE, strided, shape, num_ranks) == []
        assert check(strided, REPLICATE, shape, num_ranks) == ["all_gather"]
        assert check(strided, cut(1, num_ranks, shape), shape, num_ranks) == ["all_to_all"]


def test_a_cut_whose_tail_became_padding_is_gathered_without_it():
    tail = Shard(1, 5, 1, 3)
    assert check(tail, REPLICATE, (2, 5, 12), 4) == ["all_gather"]
    assert check(tail, cut(2, 4), (2, 5, 12), 4) == ["all_to_all"]


def test_padding_of_labels_holds_the_ignore_index():
    module, result, _ = program(REPLICATE, Shard(0, 5, 1, 3), (5,), num_ranks=4, rank=3, fill=-100)
    values = run_ranks([module], [torch.arange(20.0, dtype=torch.float64).view(4, 5)])
    assert values[result][0].tolist() == [-100.0, -100.0]


def test_nothing_becomes_partial():
    with pytest.raises(CannotRedistribute, match=r"R -> P\(sum\)"):
        program(REPLICATE, PARTIAL_SUM, SHAPE, num_ranks=2, rank=0)


def test_collectives_say_what_they_are_for():
    module, *_ = program(cut(1, 2), cut(2, 2), SHAPE, num_ranks=2, rank=0)
    (node,) = [node for node in module.graph.nodes if collective_kind(node)]
    tag = local_tag(node)
    assert tag.reason == "test"
    assert (tag.collective.kind, tag.collective.axis, tag.collective.group_size) == (
        "all_to_all", "sp", 2,
    )  # fmt: skip
    assert (tag.collective.source_placement, tag.collective.target_placement) == ("S(1)", "S(2)")
    roles = {local_tag(n).role for n in module.graph.nodes if local_tag(n) is not None}
    assert {"pack", "collective", "wait", "unpack"} <= roles
