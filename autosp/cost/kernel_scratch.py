"""Memory that CPU kernels of torch 2.13 allocate beside their outputs, from their code.

Only what goes through torch's allocator: BLAS keeps memory of its own. The
rules, with the place in ``aten/src/ATen`` they come from::

    flash attention   per-thread tiles          native/cpu/FlashAttentionKernel.cpp
    element-wise      inputs of another type than the common one are converted
                                                TensorIterator.cpp (common_device == kCPU)
    reductions        the input is converted to the accumulation type
                                                native/ReduceOps.cpp (``self.to(dtype)``)
    row kernels       ``contiguous()`` of their inputs
                                                native/SoftMax.cpp, layer_norm.cpp, LossNLL.cpp
    matrix products   a copy of an operand whose strides BLAS cannot express
                                                native/LinearAlgebra.cpp
    bf16 products     on a CPU without bf16 instructions, oneDNN sums in a float32 copy of
                      the result; measured, see ``sums_bf16_apart``
    gloo              a flat copy of what is gathered, of what is reduced and scattered, and
                      of an all-to-all's input that is not contiguous
                                                torch/csrc/distributed/c10d/ProcessGroupGloo.cpp

A GPU's kernels have other needs; these are not used for an estimate of a GPU, but for those
of attention block by block (:mod:`autosp.cost.blockwise_scratch`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.fx
from torch._ops import OpOverload

from autosp.cost.blockwise_scratch import blockwise_scratch
from autosp.cost.spans import KernelScratch
from autosp.graph import collective_kind

aten = torch.ops.aten

KV_TILE = 512
QUERY_TILES = ((768, 256), (192, 64), (0, 32))
"""(shortest query length, rows of a tile): ``flash_attention_kernel_impl``."""
LAYER_NORM_BUFFERS = 2
"""Per thread one row for the weight's and one for the bias's gradient."""

_CONTIGUOUS_ARGUMENTS: dict[OpOverload, tuple[int, ...]] = {
    aten._softmax.default: (0,),
    aten._log_softmax.default: (0,),
    aten._softmax_backward_data.default: (0, 1),
    aten._log_softmax_backward_data.default: (0, 1),
    aten.native_layer_norm.default: (0,),
    aten.native_layer_norm_backward.default: (0, 1),
    aten.embedding_dense_backward.default: (0, 1),
    aten.nll_loss_forward.default: (0, 1),
}
_MATRIX_ARGUMENTS: dict[OpOverload, tuple[int, ...]] = {
    aten.mm.default: (0, 1),
    aten.addmm.default: (1, 2),
}
_BATCHED_PRODUCTS: frozenset[OpOverload] = frozenset({aten.bmm.default, aten.baddbmm.default})
_ONEDNN_SMALLEST_PRODUCT = 16**3
"""Products of fewer multiplications stay with torch (``use_mkldnn_matmul``, LinearAlgebra.cpp)."""
_UNPROMOTED_ARGUMENTS: dict[OpOverload, tuple[int, ...]] = {
    aten.where.self: (0,),
    aten.masked_fill.Scalar: (1,),
    aten.masked_fill.Tensor: (1,),
}
"""Masks: read as they are, whatever the common type."""
_INTEGER_SUMS: frozenset[OpOverload] = frozenset(
    {
        aten.sum.default,
        aten.sum.dim_IntList,
        aten.prod.default,
        aten.prod.dim_int,
        aten.cumsum.default,
    }
)
_MEANS: frozenset[OpOverload] = frozenset({aten.mean.default, aten.mean.dim})
_NORMS: frozenset[OpOverload] = frozenset({aten.linalg_vector_norm.default})
_ONE_COPY_OF_INPUT: frozenset[OpOverload] = frozenset(
    {aten.logsumexp.default, aten.native_dropout.default}
)
"""Composed of other operators inside: one intermediate has the size of the input."""


def sums_bf16_apart() -> bool:
    """Whether this CPU multiplies bf16 matrices through oneDNN without instructions for it."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and not (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    )


def cpu_kernel_scratch(*, num_threads: int, bf16_apart: bool | None = None) -> KernelScratch:
    """Scratch bytes of a node on CPU with ``num_threads`` intra-op threads.

    ``bf16_apart``: as :func:`sums_bf16_apart`, which is asked by default.
    """
    apart = sums_bf16_apart() if bf16_apart is None else bf16_apart

    def scratch(node: torch.fx.Node) -> int:
        target = node.target
        if not isinstance(target, OpOverload):
            return 0
        arguments = tuple(_value(argument) for argument in node.args)
        if target is aten._scaled_dot_product_flash_attention_for_cpu.default:
            return flash_forward_scratch(*_tensors(arguments[:3]), num_threads=num_threads)
        if target is aten._scaled_dot_product_flash_attention_for_cpu_backward.default:
            gradient, query, key, value = _tensors(arguments[:4])
            tiles = flash_backward_scratch(gradient, query, key, value, num_threads=num_threads)
            if apart and query.dtype == torch.bfloat16:
                tiles += num_threads * _float32_tile(query, key)
            return tiles
        total = blockwise_scratch(node)
        total += sum(rule(node, target, arguments) for rule in _RULES)
        if apart:
            total += _float32_sums(target, arguments, num_threads)
        if target is aten.native_layer_norm_backward.default:
            weight = arguments[5]
            columns = weight.numel() if isinstance(weight, torch.Tensor) else 0
            item = next(_tensors(arguments)).element_size()
            total += LAYER_NORM_BUFFERS * num_threads * columns * item
        return int(total)

    return scratch


def flash_forward_scratch(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, num_threads: int
) -> int:
    """Scores, running maximum and sum, and output of one tile, per thread.

    ``query`` is [batch, heads, length, head]. Types below float32 keep a copy of the
    scores in their own type as well.
    """
    del value
    length, head_size = query.shape[2], query.shape[3]
    rows, columns = _query_tile(length), min(KV_TILE, key.shape[2])
    elements = rows * columns + 2 * rows + rows * head_size
    reduced = rows * columns * query.element_size() if _is_reduced(query.dtype) else 0
    return num_threads * (elements * _accumulator_bytes(query.dtype) + reduced)


def flash_backward_scratch(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    num_threads: int,
) -> int:
    """Scores and their gradient for one tile, and one sum per row, per thread.

    The kernel works on [batch, length, heads, head] and copies a gradient that is not
    contiguous in this order.
    """
    del value
    rows, columns = _query_tile(query.shape[2]), min(KV_TILE, key.shape[2])
    item = _accumulator_bytes(query.dtype)
    reduced = 2 * rows * columns * query.element_size() if _is_reduced(query.dtype) else 0
    copied = 0 if gradient.transpose(1, 2).is_contiguous() else _bytes(gradient)
    return num_threads * (2 * rows * columns * item + rows * item + reduced) + copied


def _query_tile(length: int) -> int:
    rows = next(rows for shortest, rows in QUERY_TILES if length >= shortest)
    return min(rows, length)


def _is_reduced(dtype: torch.dtype) -> bool:
    return dtype in (torch.bfloat16, torch.float16)


def _accumulator_bytes(dtype: torch.dtype) -> int:
    return torch.float32.itemsize if _is_reduced(dtype) else dtype.itemsize


Rule = Callable[[torch.fx.Node, OpOverload, tuple[object, ...]], int]


def _contiguous_copies(
    node: torch.fx.Node, target: OpOverload, arguments: tuple[object, ...]
) -> int:
    del node
    inputs = (arguments[position] for position in _CONTIGUOUS_ARGUMENTS.get(target, ()))
    return sum(_bytes(item) for item in _tensors(inputs) if not item.is_contiguous())


def _matrix_copies(node: torch.fx.Node, target: OpOverload, arguments: tuple[object, ...]) -> int:
    del node
    inputs = (arguments[position] for position in _MATRIX_ARGUMENTS.get(target, ()))
    return sum(_bytes(item) for item in _tensors(inputs) if not _blas_strides(item))


def _blas_strides(matrix: torch.Tensor) -> bool:
    """Rows or columns are contiguous and do not overlap."""
    (rows, columns), (row_stride, column_stride) = matrix.shape, matrix.stride()
    by_rows = column_stride == 1 and row_stride >= max(1, columns)
    by_columns = row_stride == 1 and column_stride >= max(1, rows)
    return by_rows or by_columns or rows == 1 or columns == 1


def _float32_sums(target: OpOverload, arguments: tuple[object, ...], num_threads: int) -> int:
    """The float32 result of a bf16 product; of a batch, one matrix per thread at a time."""
    batched = target in _BATCHED_PRODUCTS
    if not batched and target not in _MATRIX_ARGUMENTS:
        return 0
    left, right = list(_tensors(arguments))[-2:]
    rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    if left.dtype != torch.bfloat16 or rows * inner * columns <= _ONEDNN_SMALLEST_PRODUCT:
        return 0
    at_a_time = min(num_threads, left.shape[0]) if batched else 1
    return at_a_time * _scratchpad(rows * columns)


def _float32_tile(query: torch.Tensor, key: torch.Tensor) -> int:
    """Of the products of one tile, the largest result is a block of keys' gradients."""
    return _scratchpad(min(KV_TILE, key.shape[2]) * query.shape[3])


def _scratchpad(elements: int) -> int:
    """Bytes that oneDNN asks for to hold ``elements`` in float32 (measured)."""
    return -(-elements * torch.float32.itemsize // 64) * 64 + 128


def _promotions(node: torch.fx.Node, target: OpOverload, arguments: tuple[object, ...]) -> int:
    """Element-wise operators convert whole inputs of another type than the common one."""
    result = node.meta.get("val")
    if torch.Tag.pointwise not in target.tags or not isinstance(result, torch.Tensor):
        return 0
    if target is aten._to_copy.default:
        return 0
    skipped = _UNPROMOTED_ARGUMENTS.get(target, ())
    operands = [item for n, item in enumerate(arguments) if n not in skipped]
    tensors = list(_tensors(operands))
    if len({item.dtype for item in tensors}) <= 1 and result.dtype in (
        *(item.dtype for item in tensors),
        torch.bool,
    ):
        return 0
    common = _common_dtype(operands, result.dtype)
    return sum(
        item.numel() * common.itemsize for item in tensors if item.dim() and item.dtype != common
    )


def _common_dtype(operands: Iterable[object], result: torch.dtype) -> torch.dtype:
    """The type the operator computes in: its result's, or, for comparisons, its inputs'."""
    if result is not torch.bool:
        return result
    dtypes = [item.dtype for item in _tensors(operands) if item.dim()]
    common = dtypes[0] if dtypes else result
    for dtype in dtypes[1:]:
        common = torch.promote_types(common, dtype)
    return common


def _reduction_conversions(
    node: torch.fx.Node, target: OpOverload, arguments: tuple[object, ...]
) -> int:
    source, result = (arguments or (None,))[0], node.meta.get("val")
    if not isinstance(source, torch.Tensor) or not isinstance(result, torch.Tensor):
        return 0
    if target in _ONE_COPY_OF_INPUT:
        return _bytes(source)
    if target in _INTEGER_SUMS or target in _NORMS:
        return 0 if source.dtype == result.dtype else source.numel() * result.dtype.itemsize
    if target in _MEANS and (_is_reduced(source.dtype) or source.dtype != result.dtype):
        elements = source.numel()
        if result.dtype != torch.float32:
            elements += result.numel()
        return elements * torch.float32.itemsize
    return 0


def _gloo_copies(node: torch.fx.Node, target: OpOverload, arguments: tuple[object, ...]) -> int:
    """Rank-local copies that gloo makes around its transfers."""
    del target
    kind, source = collective_kind(node), next(_tensors(arguments), None)
    if kind is None or source is None:
        return 0
    if kind == "all_gather":
        return sum(_bytes(item) for item in _tensors([node.meta.get("val")]))
    if kind == "reduce_scatter":
        return _bytes(source)
    return _bytes(source) if kind == "all_to_all" and not source.is_contiguous() else 0


_RULES: tuple[Rule, ...] = (
    _gloo_copies,
    _contiguous_copies,
    _matrix_copies,
    _promotions,
    _reduction_conversions,
)


def _value(argument: object) -> object:
    return argument.meta.get("val") if isinstance(argument, torch.fx.Node) else argument


def _tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    return (value for value in values if isinstance(value, torch.Tensor))


def _bytes(value: torch.Tensor) -> int:
    return int(value.numel()) * value.element_size()
