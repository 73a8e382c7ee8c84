"""Live bytes of small steps, counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from autosp.cost.memory import StepMemory, step_memory
from autosp.cost.optimizer import OptimizerModel
from autosp.cost.step import CompiledStep
from autosp.cost.storage import StorageTable, assign_storages
from autosp.cost.zero import ZeroModel
from tests.support.traced_step import matmul_step, traced_step

aten = torch.ops.aten
NO_OPTIMIZER = OptimizerModel(name="none")


def _memory(
    step: CompiledStep,
    *,
    optimizer: OptimizerModel = NO_OPTIMIZER,
    zero: ZeroModel | None = None,
) -> StepMemory:
    return step_memory(step, optimizer=optimizer, zero=zero or ZeroModel())


def _live(memory: StepMemory) -> dict[str, int]:
    return {f"{point.phase[0]}.{point.node}": point.live_bytes for point in memory.points}


def test_a_step_counted_by_hand() -> None:
    """w 128 bytes, x 32, x@w 64 (saved), sin 64, loss 4, cotangent 4, cos 64 ..."""
    base = 128 + 32
    assert _live(_memory(matmul_step())) == {
        "f.mm": base + 64,
        "f.sin": base + 64 + 64,
        "f.sum_1": base + 64 + 64 + 4,
        "b.expand": base + 64 + 4 + 4,
        "b.cos": base + 64 + 4 + 4 + 64,
        "b.mul": base + 4 + 4 + 64 + 64,
        "b.t": base + 4 + 64,
        "b.mm": base + 4 + 64 + 128,
    }


def test_categories_of_a_step() -> None:
    memory = _memory(matmul_step())
    at = {f"{point.phase[0]}.{point.node}": point.categories for point in memory.points}
    assert at["f.sin"]["saved"] == 64
    assert at["f.sin"]["activations"] == 64
    assert at["b.mm"]["gradients"] == 128
    assert at["b.mm"]["parameters"] == 128
    assert at["b.mm"]["inputs"] == 32
    assert memory.peak.node == "mm" and memory.peak.phase == "backward"


def test_live_tensors_at_the_peak_name_their_last_use() -> None:
    live = _memory(matmul_step()).live_at_peak
    assert [(tensor.node, tensor.bytes, tensor.category) for tensor in live] == [
        ("p0", 128, "parameters"),
        ("mm", 128, "gradients"),
        ("mul", 64, "activations"),
        ("i1", 32, "inputs"),
        ("sum_1", 4, "activations"),
    ]
    assert {tensor.node: tensor.last_used_by for tensor in live}["mul"] == "mm"


def test_a_view_keeps_its_storage_alive_and_costs_nothing() -> None:
    def forward(x: torch.Tensor) -> Any:
        y = aten.sin(x)
        view = aten.view(y, [16])
        z = aten.cos(x)
        return aten.mul(view, aten.view(z, [16]))

    step = traced_step(forward, inputs=[("input", (4, 4))])
    assert [point.live_bytes for point in _memory(step).points] == [128, 128, 192, 192, 256]


def test_an_unused_result_dies_at_once() -> None:
    def forward(x: torch.Tensor) -> Any:
        values, indices = aten.max.dim(x, 1)
        return aten.neg(values)

    step = traced_step(forward, inputs=[("input", (4, 4))])
    # max: 16 + 32 bytes; the indices die with the element that nobody reads
    assert [point.live_bytes for point in _memory(step).points] == [112, 112, 112, 96]


def test_split_parts_share_one_storage() -> None:
    def forward(x: torch.Tensor) -> Any:
        first, second = aten.split.Tensor(aten.sin(x), 2)
        return aten.mul(first, second)

    step = traced_step(forward, inputs=[("input", (4, 4))])
    assert max(point.live_bytes for point in _memory(step).points) == 64 + 64 + 32


def _ids(function: Callable[..., Any], shape: tuple[int, ...]) -> tuple[int, int]:
    """Storages of the first and of the last operator."""
    step = traced_step(function, inputs=[("input", shape)])
    table = StorageTable()
    storages = assign_storages(step.forward.graph, table, in_backward=False)
    calls = [node for node in step.forward.graph.nodes if node.op == "call_function"]
    return storages.of(calls[0])[0], storages.of(calls[-1])[0]


def test_operators_that_alias_without_saying_so() -> None:
    first, last = _ids(lambda x: aten._unsafe_view(aten.sin(x), [16]), (4, 4))
    assert first == last
    wait = torch.ops._c10d_functional.wait_tensor
    first, last = _ids(lambda x: wait(aten.sin(x)), (4, 4))
    assert first == last


def test_a_copy_does_not_alias() -> None:
    first, last = _ids(lambda x: aten.clone(aten.sin(x)), (4, 4))
    assert first != last


def test_an_in_place_operator_writes_into_its_input() -> None:
    first, last = _ids(lambda x: aten.mul_.Tensor(aten.sin(x), 2.0), (4, 4))
    assert first == last


def test_a_recomputed_value_counts_again_although_its_fake_tensor_is_shared() -> None:
    def forward(x: torch.Tensor) -> Any:
        return aten.sin(x), x

    def backward(x: torch.Tensor, cotangent: torch.Tensor) -> Any:
        return (aten.mul(aten.sin(x), cotangent),)

    step = traced_step(
        forward, inputs=[("input", (4, 4))], backward=backward, backward_inputs=[(4, 4), (4, 4)]
    )
    assert step.backward is not None
    original = next(n for n in step.forward.graph.nodes if n.name == "sin")
    copy = next(n for n in step.backward.graph.nodes if n.name == "sin")
    copy.meta["val"] = original.meta["val"]
    memory = _memory(step)
    # the user holds sin(x); the backward makes it again beside the cotangent
    assert _live(memory)["b.sin"] == 64 + 64 + 64 + 64


def test_a_saved_parameter_is_not_counted_twice() -> None:
    def forward(w: torch.Tensor) -> Any:
        return aten.sin(w), aten.t(w)

    def backward(transposed: torch.Tensor, cotangent: torch.Tensor) -> Any:
        return (aten.mul(aten.t(transposed), cotangent),)

    step = traced_step(
        forward, inputs=[("parameter", (4, 4))], backward=backward, backward_inputs=[(4, 4), (4, 4)]
    )
    memory = _memory(step)
    assert memory.saved_bytes == {}
    assert _live(memory)["b.t"] == 64 + 64 + 64
    assert all(point.categories["saved"] == 0 for point in memory.points)


def test_a_collective_holds_its_input_until_it_has_been_waited_for() -> None:
    collectives = torch.ops._c10d_functional

    def forward(x: torch.Tensor) -> Any:
        packed = aten.clone(x)
        started = collectives.all_to_all_single(packed, [2, 2], [2, 2], "group")
        other = aten.sin(x)
        return aten.add(collectives.wait_tensor(started), other)

    step = traced_step(forward, inputs=[("input", (4, 4))])
    memory = _memory(step)
    assert _live(memory) == {
        "f.clone": 128,
        "f.all_to_all_single": 192,
        "f.sin": 256,
        "f.wait_tensor": 256,
        "f.add": 256,
    }
    assert memory.points[2].categories["all_to_all"] == 128


def test_logits_are_found_by_data_flow() -> None:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        logits = aten._unsafe_view(aten.mm(aten.sin(x), w), [8, 32])
        return aten.sum(aten._log_softmax(aten.mul.Tensor(logits, 2.0), 1, False))

    step = traced_step(forward, inputs=[("input", (8, 4)), ("parameter", (4, 32))])
    categories = {point.node: point.categories for point in _memory(step).points}
    assert categories["mm"]["logits_loss"] == 8 * 32 * 4
    assert categories["sin"]["logits_loss"] == 0
    assert categories["_log_softmax"]["logits_loss"] == 2 * 8 * 32 * 4


def test_a_gradient_with_other_strides_than_its_parameter_is_copied() -> None:
    def forward(w: torch.Tensor) -> Any:
        return aten.sum(w), w

    def backward(w: torch.Tensor, cotangent: torch.Tensor) -> Any:
        return (aten.t(aten.mul(aten.t(w).contiguous(), cotangent)),)

    step = traced_step(
        forward, inputs=[("parameter", (4, 8))], backward=backward, backward_inputs=[(4, 8), ()]
    )
    last = _memory(step).points[-1]
    assert last.node == "accumulate_grad:p0"
    assert last.categories["gradients"] == 2 * 128


def test_zero_stages_divide_the_model_state() -> None:
    adamw = OptimizerModel(name="adamw", implementation="fused")
    states = 2 * 128 + 4

    def end_of_step(stage: int) -> dict[str, int]:
        memory = _memory(matmul_step(), optimizer=adamw, zero=ZeroModel(stage=stage, world_size=4))
        categories = memory.points[-1].categories
        return {name: categories[name] for name in ("parameters", "gradients", "optimizer")}

    whole = {"parameters": 128, "gradients": 128, "optimizer": states}
    assert end_of_step(0) == whole
    assert end_of_step(1) == {**whole, "optimizer": 64 + 1}
    assert end_of_step(2) == {**whole, "optimizer": 65, "gradients": 32}
    assert end_of_step(3) == {"parameters": 32, "gradients": 32, "optimizer": 65}


def test_zero_3_gathers_a_parameter_only_where_it_is_used() -> None:
    memory = _memory(matmul_step(), zero=ZeroModel(stage=3, world_size=4))
    gathered = [
        f"{point.phase[0]}.{point.node}"
        for point in memory.points
        if point.categories["gather_reduce_buckets"]
    ]
    assert gathered == ["f.mm"]
    assert memory.points[0].categories["gather_reduce_buckets"] == 128


def test_adamw_temporaries_by_implementation() -> None:
    def update_peak(implementation: Any) -> int:
        optimizer = OptimizerModel(name="adamw", implementation=implementation)
        memory = _memory(matmul_step(), optimizer=optimizer)
        updates = [point for point in memory.points if point.phase == "optimizer"]
        return updates[0].categories["optimizer"] - (2 * 128 + 4)

    assert update_peak("single_tensor") == 2 * 128
    assert update_peak("foreach") == 128
    assert update_peak("fused") == 0
