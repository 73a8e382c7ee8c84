"""Operators that depend on how a tensor lies in memory, which a gathered one may do differently."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.fx import Node

from autosp.errors import ShardingError
from autosp.graph import source_location
from autosp.sharding.builder import Value
from autosp.sharding.operation import Operation

aten = torch.ops.aten

BOUND_TO_STRIDES = frozenset(
    {aten.as_strided.default, aten.as_strided_scatter.default, aten.as_strided_copy.default}
)
BOUND_TO_LAYOUT = BOUND_TO_STRIDES | {aten.view.default}


def with_users_layout(operation: Operation) -> Operation:
    """The operation on inputs that lie in memory as the user's do, where that matters.

    Raises:
        ShardingError: strides are used of a tensor that is itself a view in the user's program.
    """
    if operation.target not in BOUND_TO_LAYOUT:
        return operation
    args = tuple(
        _like(operation, argument, given) if isinstance(argument, Value) else argument
        for argument, given in zip(operation.args, operation.node.args, strict=True)
    )
    return replace(operation, args=args)


def _like(operation: Operation, value: Value, given: object) -> Value:
    assert isinstance(given, Node)
    wanted: torch.Tensor = given.meta["val"]
    if _layout(value.local) == _layout(wanted):
        return value
    if operation.target in BOUND_TO_STRIDES and not _is_plain(wanted):
        where = source_location(operation.node)
        raise ShardingError(
            f"{operation.target} reads the memory behind a view",
            where=f"{where.file}:{where.line}" if where else "",
            hint="The compiler keeps values, not memory: use slices, or contiguous() before it",
        )
    plain = operation.emit(aten.clone.default, value, memory_format=torch.contiguous_format)
    return Value(plain, value.placement, value.shape)


def _layout(tensor: torch.Tensor) -> tuple[tuple[int, ...], int]:
    return tuple(tensor.stride()), int(tensor.storage_offset())


def _is_plain(tensor: torch.Tensor) -> bool:
    size = tensor.numel() * tensor.element_size()
    return tensor.is_contiguous() and int(tensor.untyped_storage().nbytes()) == size
