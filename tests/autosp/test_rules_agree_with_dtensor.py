"""Our sharding rules against those of torch's DTensor, operator by operator.

DTensor propagates a placement through the same ATen operator on a fake process group; no
process is started. Where the two differ, the table says how and why. Sizes divide, since
DTensor has no padding rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import placement_types as theirs
from torch.fx import Graph
from torch.fx.node import map_aggregate
from torch.testing._internal.distributed.fake_pg import FakeStore

from autosp.mesh import Mesh
from autosp.placement import REPLICATE, Partial, Shard, local_shape, shard_dim
from autosp.sharding.builder import ProgramBuilder, Value
from autosp.sharding.operation import CannotRedistribute, NoRule, Operation
from autosp.sharding.redistribute import redistribute
from autosp.sharding.rules import rule_for

aten = torch.ops.aten

NUM_RANKS = 2


@dataclass(frozen=True)
class T:
    """A tensor argument; the one that is cut is marked by the case."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    high: int = 2

    def make(self) -> torch.Tensor:
        if self.dtype.is_floating_point or self.dtype.is_complex:
            return (torch.rand(self.shape) + 0.5).to(self.dtype)
        return torch.randint(0, self.high, self.shape).to(self.dtype)


@dataclass(frozen=True)
class Case:
    """``target(*args)`` with one tensor cut on each of its dims in turn."""

    target: Any
    args: tuple[Any, ...]
    cut: int = 0
    """Which of the tensor arguments is cut; the others are replicated."""
    together: bool = False
    """All tensors are cut on the same dim."""
    gathers: tuple[int, ...] = ()
    """Cut on one of these dims, ours may take the all-gather path, which is recorded."""
    differs: tuple[tuple[int, tuple[str, str]], ...] = ()
    """Dim that is cut -> how we place the result, and why."""

    @property
    def name(self) -> str:
        return str(self.target).removeprefix("aten.") + ("-together" if self.together else "")


X = T((4, 8, 6))
MASK = T((4, 8, 6), torch.bool)
IDS = T((4, 8), torch.long, 4)

PLACES = T((4, 8, 6), torch.long, 6)
COMPLEX = T((4, 8, 6), torch.complex64)

MEAN = ("P(sum)", "a sum of shares of the mean, so that padding rows are left out")
TAIL = ("S(1)", "the blocks stay where they are and the rows that are dropped become padding")
MIRRORS = "blocks change places with their mirror images; nothing is gathered"
MOVES = "rows that change ranks move to their neighbour; nothing is gathered"
STATISTICS = "only statistics of the rows are exchanged; nothing is gathered"
WRITES = "each rank writes the rows that it holds; the target is not gathered"
OWNER = "the rank that owns a row contributes it, the others zero"

CASES = (
    Case(aten.sin.default, (X,)),
    Case(aten.gelu.default, (X,)),
    Case(aten.silu.default, (X,)),
    Case(aten.neg.default, (X,)),
    Case(aten.clone.default, (X,)),
    Case(aten.to.dtype, (X, torch.float64)),
    Case(aten.add.Tensor, (X, X)),
    Case(aten.add.Tensor, (X, X), together=True),
    Case(aten.mul.Tensor, (X, T((8, 6)))),
    Case(aten.mul.Tensor, (X, T((6,)))),
    Case(aten.sub.Tensor, (X, 2.0)),
    Case(aten.div.Tensor, (X, T((4, 8, 1)))),
    Case(aten.pow.Tensor_Scalar, (X, 2)),
    Case(aten.maximum.default, (X, X)),
    Case(aten.where.self, (MASK, X, X), cut=1),
    Case(aten.masked_fill.Scalar, (X, MASK, 0.0)),
    Case(aten.transpose.int, (X, 1, 2)),
    Case(aten.permute.default, (X, (2, 0, 1))),
    Case(aten.unsqueeze.default, (X, 1)),
    Case(aten.squeeze.dim, (T((4, 1, 6)), 1)),
    Case(aten.expand.default, (T((1, 8, 6)), (4, 8, 6))),
    Case(aten.view.default, (X, (4, 8, 2, 3))),
    Case(aten.view.default, (X, (32, 6))),
    Case(aten.reshape.default, (X, (4, 48))),
    Case(aten.slice.Tensor, (X, 1, 0, 4), differs=((1, TAIL),)),
    Case(aten.slice.Tensor, (X, 2, 2, 6), differs=((2, ("S(2)", MOVES)),)),
    Case(aten.select.int, (X, 1, 3), differs=((1, ("P(sum)", OWNER)),)),
    Case(aten.split.Tensor, (X, 4, 1), differs=((1, ("S(1)", MOVES)),)),
    Case(aten.split.Tensor, (X, 3, 2), differs=((2, ("S(2)", MOVES)),)),
    Case(aten.unbind.int, (T((4, 8, 3)), 2)),
    Case(aten.cat.default, ([X, X], 2), differs=((2, ("S(2)", MOVES)),)),
    Case(aten.cat.default, ([X, X], 2), together=True, differs=((2, ("S(2)", MOVES)),)),
    Case(aten.stack.default, ([X, X], 1), together=True),
    Case(aten.linear.default, (X, T((5, 6)), T((5,))), gathers=(2,)),
    Case(aten.mm.default, (T((8, 6)), T((6, 4))), gathers=(1,)),
    Case(aten.mm.default, (T((8, 6)), T((6, 4))), cut=1, gathers=(0,)),
    Case(aten.addmm.default, (T((4,)), T((8, 6)), T((6, 4))), cut=1, gathers=(1,)),
    Case(aten.bmm.default, (X, T((4, 6, 2))), gathers=(0, 2)),
    Case(aten.matmul.default, (X, T((6, 4))), gathers=(2,)),
    Case(aten.layer_norm.default, (X, (6,)), differs=((2, ("S(2)", STATISTICS)),)),
    Case(aten.softmax.int, (X, 2), differs=((2, ("S(2)", STATISTICS)),)),
    Case(aten.log_softmax.int, (X, 1), differs=((1, ("S(1)", STATISTICS)),)),
    Case(aten.cumsum.default, (X, 1), differs=((1, ("S(1)", STATISTICS)),)),
    Case(aten.sum.default, (X,)),
    Case(aten.sum.dim_IntList, (X, [1])),
    Case(aten.sum.dim_IntList, (X, [0, 2], True)),
    Case(aten.mean.dim, (X, [1]), differs=((1, MEAN),)),
    Case(aten.mean.default, (X,), differs=((0, MEAN), (1, MEAN), (2, MEAN))),
    Case(aten.amax.default, (X, [2]), gathers=(2,)),
    Case(aten.argmax.default, (X, 2)),
    Case(aten.var.correction, (X, [2]), differs=((2, ("P(sum)", STATISTICS)),)),
    Case(aten.logsumexp.default, (X, [2])),
    Case(aten.linalg_vector_norm.default, (X, 2, [2]), gathers=(2,)),
    Case(aten.topk.default, (X, 2, 2)),
    Case(aten.sort.default, (X, 2)),
    Case(aten.kthvalue.default, (X, 2, 2)),
    Case(aten.cummax.default, (X, 1), differs=((1, ("S(1)", STATISTICS)),)),
    Case(aten.cumprod.default, (X, 1), differs=((1, ("S(1)", STATISTICS)),)),
    Case(aten.logcumsumexp.default, (X, 1), differs=((1, ("S(1)", STATISTICS)),)),
    Case(aten.view_as_real.default, (COMPLEX,)),
    Case(aten.view_as_complex.default, (T((4, 8, 2)),), gathers=(2,)),
    Case(aten.prelu.default, (X, T((1,)))),
    Case(aten.bucketize.Tensor, (X, T((3,)))),
    Case(
        aten.index_put.default,
        (X, [T((2,), torch.long)], T((2, 8, 6))),
        differs=((0, ("S(0)", WRITES)),),
    ),
    Case(aten.scatter.src, (X, 2, PLACES, X), together=True, differs=((2, ("S(2)", WRITES)),)),
    Case(
        aten.scatter_add.default, (X, 2, PLACES, X), together=True, differs=((2, ("S(2)", WRITES)),)
    ),
    Case(
        aten.index_add.default, (X, 1, T((8,), torch.long, 8), X), differs=((1, ("S(1)", WRITES)),)
    ),
    Case(
        aten.index_fill.int_Scalar,
        (X, 1, T((2,), torch.long, 8), 0.5),
        differs=((1, ("S(1)", WRITES)),),
    ),
    Case(aten.flip.default, (X, [2]), differs=((2, ("S(2)", MIRRORS)),)),
    Case(aten.embedding.default, (T((10, 6)), IDS), cut=1),
    Case(
        aten.gather.default,
        (T((4, 8)), 1, IDS),
        together=True,
        gathers=(0,),
        differs=((1, ("P(sum)", OWNER)),),
    ),
)


def cases() -> Iterator[Any]:
    for case in CASES:
        tensor = tensors_of(case.args)[case.cut]
        for dim, size in enumerate(tensor.shape):
            if size % NUM_RANKS == 0:
                yield pytest.param(case, dim, id=f"{case.name}{tensor.shape}-cut{dim}")


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=NUM_RANKS)
    yield init_device_mesh("cpu", (NUM_RANKS,))
    dist.destroy_process_group()


def dtensor_placements(case: Case, dim: int, mesh: DeviceMesh) -> list[str]:
    cut = cut_tensors(case, dim)
    number = iter(range(len(tensors_of(case.args))))

    def distributed(argument: Any) -> Any:
        if not isinstance(argument, T):
            return argument
        is_cut = next(number) in cut
        local = argument.make()
        placement = theirs.Shard(dim) if is_cut else theirs.Replicate()
        local = local.chunk(NUM_RANKS, dim)[0].contiguous() if is_cut else local
        return DTensor.from_local(local, mesh, [placement], run_check=False)

    with torch.no_grad():
        result = case.target(*aggregate(case.args, distributed))
    results = result if isinstance(result, (tuple, list)) else [result]
    return [describe(tensor.placements[0]) for tensor in results]


def our_placements(case: Case, dim: int) -> list[str]:
    with FakeTensorMode():
        node, arguments = program_node(case)
        builder = ProgramBuilder(Graph(), Mesh(sp=NUM_RANKS), "0", "last")
        cut, number = cut_tensors(case, dim), iter(range(len(tensors_of(case.args))))

        def placed(argument: Any) -> Any:
            if not isinstance(argument, T):
                return argument
            index = next(number)
            size = argument.shape[dim] if index in cut else 1
            placement = shard_dim(dim, size, NUM_RANKS) if index in cut else REPLICATE
            local = builder.graph.placeholder(f"x{index}")
            sizes = local_shape(argument.shape, placement, NUM_RANKS)
            local.meta["val"] = torch.empty(sizes, dtype=argument.dtype)
            return Value(local, placement, argument.shape)

        operation = Operation(
            node, aggregate(case.args, placed), {}, builder,
            lambda value, placement, reason, fill: redistribute(
                builder, value, placement, reason=reason, fill=fill
            ),
            lambda *args, **kwargs: None,
        )  # fmt: skip
        rule = rule_for(case.target)
        try:
            if rule is None:
                raise NoRule("no rule")
            with builder.on_behalf_of(node), torch.no_grad():
                result = rule(operation)
        except (NoRule, CannotRedistribute):
            several = isinstance(node.meta["val"], (tuple, list))
            return ["R"] * (len(node.meta["val"]) if several else 1)
    results = result if isinstance(result, list) else [result]
    for value in results:
        sizes = local_shape(value.shape, value.placement, NUM_RANKS)
        assert tuple(value.local.shape) == sizes
    return [describe(value.placement) for value in results]


def program_node(case: Case) -> tuple[Any, list[Any]]:
    """The operator in a program of its own, with the fake value of its result."""
    graph = Graph()

    def given(argument: Any) -> Any:
        if not isinstance(argument, T):
            return argument
        node = graph.placeholder("x")
        node.meta["val"] = torch.empty(argument.shape, dtype=argument.dtype)
        return node

    arguments = aggregate(case.args, given)
    node = graph.call_function(case.target, tuple(arguments))
    values = map_aggregate(arguments, lambda a: a.meta["val"] if isinstance(a, type(node)) else a)
    node.meta["val"] = case.target(*values)
    return node, arguments


def cut_tensors(case: Case, dim: int) -> set[int]:
    """The numbers of the tensors that are cut."""
    return set(range(len(tensors_of(case.args)))) if case.together else {case.cut}


def tensors_of(arguments: Any) -> list[T]:
    found: list[T] = []
    aggregate(arguments, lambda a: found.append(a) if isinstance(a, T) else None)
    return found


def aggregate(arguments: Any, change: Any) -> Any:
    """``change`` applied to every argument, also in lists."""
    return [
        [change(item) for item in a] if isinstance(a, list) and a and isinstance(a[0], T)
        else change(a)
        for a in arguments
    ]  # fmt: skip


def describe(placement: Any) -> str:
    match placement:
        case Shard(dim=dim, outer=outer):
            return f"S({dim})" if outer == 1 else f"S({dim}, outer={outer})"
        case Partial():
            return "P(sum)"
        case theirs._StridedShard():
            return f"S({placement.dim}, outer={placement.split_factor})"
        case theirs.Shard():
            return f"S({placement.dim})"
        case theirs.Partial():
            return f"P({placement.reduce_op})"
        case _:
            return "R"


@pytest.mark.parametrize(("case", "dim"), list(cases()))
def test_a_result_is_placed_as_dtensor_places_it(case, dim, mesh):
    expected, actual = dtensor_placements(case, dim, mesh), our_placements(case, dim)
    ours = dict(case.differs).get(dim)
    if ours is not None:
        placement, why = ours
        assert actual == [placement] * len(expected) != expected, why
    elif dim in case.gathers:
        assert actual in (expected, ["R"] * len(expected))
    else:
        assert actual == expected
