"""Placements of the joint, forward and backward graphs, against real numbers.

The joint graphs of all ranks run in lock step. Each labelled node's parts, combined by the
label, must be a tensor that the joint graph of one rank computes as well.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache

import pytest
import torch
from torch.fx import GraphModule

from autosp.derived_placements import Placed, dual, placed_of, reshaped
from autosp.dry_run import dry_run
from autosp.events import GraphSnapshot, ListRecorder, NodeRecord
from autosp.graph import is_backward
from autosp.lowering import RankCompilation
from autosp.mesh import Mesh
from autosp.oracle.combine import combine_cotangents, combine_values
from autosp.oracle.lockstep import run_ranks
from autosp.placement import PARTIAL_AVG, PARTIAL_SUM, REPLICATE, Shard, local_shape
from tests.support.dry_runs import request_for

SAMPLES = ("gpt", "llama", "hf_llama")
LENGTH = 24


@cache
def recorded(
    sample: str, sp: int, rank: int = 0, batch: int = 1, length: int = LENGTH
) -> tuple[RankCompilation, dict[str, GraphSnapshot]]:
    """One rank's compilation, and the last state of each graph by name."""
    recorder = ListRecorder()
    request = request_for(sample, sp=sp, seq=length, batch=batch)
    request = dataclasses.replace(request, mesh=Mesh(sp=sp, rank=rank))
    compilation = dry_run(request, recorder=recorder).compilation
    return compilation, {e.graph: e for e in recorder.events if isinstance(e, GraphSnapshot)}


def compiled(sample: str, sp: int, rank: int = 0, **sizes: int) -> RankCompilation:
    return recorded(sample, sp, rank, **sizes)[0]


def snapshots(sample: str, sp: int) -> dict[str, GraphSnapshot]:
    return recorded(sample, sp)[1]


def joint_of(compilation: RankCompilation) -> GraphModule:
    joint = compilation.graphs.joint
    assert joint is not None
    return joint


def real_inputs(joint: GraphModule) -> list[torch.Tensor]:
    """Random parameters, small identifiers, a tangent of one."""
    generator = torch.Generator().manual_seed(7)
    inputs = []
    for node in joint.graph.find_nodes(op="placeholder"):
        fake = node.meta["val"]
        if is_backward(node):
            inputs.append(torch.ones(fake.shape, dtype=fake.dtype))
        elif fake.dtype.is_floating_point:
            noise = torch.randn(fake.shape, generator=generator, dtype=torch.float64)
            inputs.append((noise * 0.3).to(fake.dtype))
        else:
            inputs.append(torch.randint(0, 16, fake.shape, generator=generator, dtype=fake.dtype))
    return inputs


Combined = Sequence[torch.Tensor]


def candidates(parts: Combined, placed: Placed, backward: bool) -> Iterator[Combined]:
    """What a label claims, as a value and, in the backward, as a cotangent too."""
    placement, shape = placed.placement, placed.shape
    if placement != PARTIAL_AVG:
        yield combine_values(parts, placement, shape)
    if backward:
        of_value = {PARTIAL_AVG: REPLICATE, REPLICATE: PARTIAL_SUM}.get(placement, placement)
        yield combine_cotangents(parts, of_value, shape)


def is_among(combined: Combined, known: Sequence[torch.Tensor]) -> bool:
    """Whether all copies equal one of the tensors that one rank computes."""
    return any(all(error(copy, tensor) < 1e-4 for copy in combined) for tensor in known)


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, in units of the largest element."""
    actual, expected = actual.double(), expected.double()
    scale = expected.abs().max().clamp(min=1e-30)
    return float((actual - expected).abs().max() / scale)


@pytest.mark.parametrize(
    ("sample", "sp", "sizes"),
    [
        ("gpt", 4, {"length": 22, "batch": 2}),  # padded rows, strided cuts
        ("llama", 2, {}),
    ],
)
def test_parts_combined_by_their_label_are_what_one_rank_computes(
    sample: str, sp: int, sizes: dict[str, int]
) -> None:
    reference = joint_of(compiled(sample, 1, **sizes))
    known: dict[tuple[int, ...], list[torch.Tensor]] = defaultdict(list)
    for value in run_ranks([reference], real_inputs(reference)).values():
        if isinstance(value[0], torch.Tensor):
            known[tuple(value[0].shape)].append(value[0].detach())
    joints = [joint_of(compiled(sample, sp, rank, **sizes)) for rank in range(sp)]
    values = run_ranks(joints, real_inputs(joints[0]))
    wrong, num_checked = [], 0
    for node in joints[0].graph.nodes:
        placed = placed_of(node)
        if placed is None:
            continue
        parts = [part.detach() for part in values[node.name]]
        if not any(part.any() for part in parts):  # what padding rows add to a gradient
            continue
        num_checked += 1
        claims = candidates(parts, placed, is_backward(node))
        if not any(is_among(claim, known[placed.shape]) for claim in claims):
            wrong.append(f"{node.format_node()} {placed}")
    assert not wrong
    assert num_checked > 200


def computed(sample: str, sp: int, graph: str) -> list[NodeRecord]:
    return [node for node in snapshots(sample, sp)[graph].nodes if node.op == "call_function"]


BUFFERS = ("pack", "unpack", "collective", "wait")


@pytest.mark.parametrize(("sample", "sp"), [(sample, 4) for sample in SAMPLES])
def test_labels_have_shapes_and_cuts_of_the_program(sample: str, sp: int) -> None:
    known_shapes = {n.local_shape for n in snapshots(sample, 1)["joint"].nodes}
    program = snapshots(sample, sp)["program"].nodes
    in_program = {(n.placement, n.global_shape) for n in program}
    for graph in ("joint", "forward", "backward"):
        for node in computed(sample, sp, graph):
            assert (node.placement is None) == (node.global_shape is None), node
            if node.placement is None or node.global_shape is None:
                continue
            assert node.global_shape in known_shapes, node
            assert "outer" not in node.placement, node
            assert node.local_shape == expected_local_shape(node, sp), node
            if node.role in BUFFERS:  # only what a collective was for has a global tensor
                of_value = {"P(avg)": "R", "R": "P(sum)"}.get(node.placement, node.placement)
                labels = {(p, node.global_shape) for p in (node.placement, of_value)}
                assert labels & in_program, node


def expected_local_shape(node: NodeRecord, sp: int) -> tuple[int, ...]:
    """From the notation alone."""
    assert node.placement is not None and node.global_shape is not None
    sizes = list(node.global_shape)
    found = re.fullmatch(r"S\((\d)(?::\w+)?(?:,pad=(\d+))?\)", node.placement)
    if found is None:
        assert node.placement in ("R", "P(sum)", "P(avg)")
        return tuple(sizes)
    dim, pad = int(found[1]), int(found[2] or 0)
    sizes[dim] = (sizes[dim] + pad) // sp
    return tuple(sizes)


@pytest.mark.parametrize("graph", ["joint", "forward"])
def test_attention_works_on_heads_and_its_buffers_have_no_global_tensor(graph: str) -> None:
    nodes = {node.name: node for node in computed("gpt", 4, graph)}
    attention = [n for n in nodes.values() if "scaled_dot_product_flash" in n.target][0]
    outputs = [n for n in nodes.values() if n.inputs == (attention.name,)]
    around = [*(nodes[name] for name in attention.inputs), outputs[0]]
    assert {(n.placement, n.global_shape) for n in around} == {("S(1:head)", (1, 8, LENGTH, 8))}
    packs = [n for n in nodes.values() if n.role == "pack"]
    assert packs and all(n.placement is None for n in packs)


def test_cotangents_of_attention_lie_like_its_inputs() -> None:
    nodes = computed("gpt", 4, "backward")
    attention = [n for n in nodes if "flash_attention_for_cpu_backward" in n.target][0]
    parts = [n for n in nodes if n.inputs == (attention.name,)]
    assert len(parts) == 3
    assert {(n.placement, n.global_shape) for n in parts} == {("S(1:head)", (1, 8, LENGTH, 8))}
    sent = [n for n in nodes if n.op == "call_function" and n.role in ("pack", "collective")]
    assert sent and all(n.placement is None for n in sent)


def test_no_reshape_of_a_cotangent_is_taken_for_another_batch() -> None:
    views = [n for n in computed("llama", 4, "backward") if n.global_shape and "view" in n.target]
    assert views
    assert all(n.global_shape[0] in (1, LENGTH) for n in views if n.placement[0] == "S")


def test_the_loss_is_whole_after_its_sum_and_so_is_the_cotangent_of_an_addend() -> None:
    nodes = {node.name: node for node in computed("gpt", 4, "joint")}
    sums = [n for n in nodes.values() if n.target.startswith("_c10d_functional.all_reduce")]
    waits = [n for n in nodes.values() if n.inputs in [(s.name,) for s in sums]]
    assert [(n.phase, n.placement) for n in waits] == [("forward", "R"), ("backward", "R")]
    assert [n.placement for n in sums] == [None, None]
    assert nodes[sums[0].inputs[0]].placement == "P(sum)"
    routes = [
        (c.phase, c.source_placement, c.target_placement)
        for c in snapshots("gpt", 4)["joint"].collectives
        if c.kind == "all_reduce"
    ]
    assert routes == [("forward", "P(sum)", "R"), ("backward", "P(avg)", "R")]


@pytest.mark.parametrize("sample", SAMPLES)
def test_gradients_of_parameters_are_parts_of_a_mean(sample: str) -> None:
    snapshot = snapshots(sample, 4)["backward"]
    nodes = {node.name: node for node in snapshot.nodes}
    gradients = [nodes[name] for name in nodes["output"].inputs]
    assert len(gradients) > 10
    assert {n.placement for n in gradients} == {"P(avg)"}
    products = [n for n in nodes.values() if n.target == "aten.mm.default"]
    assert {n.placement for n in products if "S" not in (n.placement or "?")} == {"P(avg)"}


def test_a_batch_of_two_is_a_strided_cut_where_it_is_flattened() -> None:
    joint = joint_of(compiled("gpt", 2, batch=2))
    flat = [p for n in joint.graph.nodes if (p := placed_of(n)) and p.shape == (2 * LENGTH, 64)]
    assert flat
    assert {p.placement for p in flat} == {Shard(0, LENGTH, outer=2)}


SEQUENCE = Shard(1, 24, label="seq")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ((1, 6, 8), (6, 8), Placed(Shard(0, 24), (24, 8))),
        ((1, 6, 8), (1, 6, 2, 4), Placed(SEQUENCE, (1, 24, 2, 4))),
        ((1, 6, 8), (1, 1, 6, 8), Placed(Shard(2, 24), (1, 1, 24, 8))),
        ((2, 6, 8), (12, 8), Placed(Shard(0, 24, outer=2), (48, 8))),
        ((1, 6, 8), (1, 48), Placed(SEQUENCE, (1, 192))),
        ((1, 6, 8), (2, 3, 8), None),
    ],
)
def test_reshapes_keep_the_rows_of_a_block(old, new, expected) -> None:
    assert reshaped(Placed(SEQUENCE, (old[0], 24, 8)), old, new, 4) == expected


def test_a_rank_with_one_row_does_not_tell_which_dim_is_cut() -> None:
    one_row = Placed(Shard(1, 4), (1, 4, 8))
    assert reshaped(one_row, (1, 1, 8), (1, 8), 4) is None
    assert reshaped(Placed(REPLICATE, (1, 4)), (1, 4), (4,), 4) == Placed(REPLICATE, (4,))


def test_duals() -> None:
    assert dual(SEQUENCE) == SEQUENCE
    assert dual(PARTIAL_SUM) == REPLICATE
    assert dual(REPLICATE) == PARTIAL_AVG
    assert local_shape((3,), PARTIAL_AVG, 4) == (3,)
