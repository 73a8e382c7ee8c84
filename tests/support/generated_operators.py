"""The operators of generated programs: how each is carried out, and on what it is tried.

``choose`` looks at a (meta) tensor and draws the arguments that suit it; it returns None where
the operator makes no sense. ``apply`` takes the tensors and then these arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Draw = Callable[..., Any]
"""``draw(choices)``: one of a sequence."""
Choose = Callable[[Draw, Tensor], "tuple[Any, ...] | None"]


@dataclass(frozen=True)
class Operator:
    apply: Callable[..., Tensor]
    choose: Choose
    second: Callable[[Tensor, Tensor], bool] | None = None
    """Whether a second tensor fits the first; None for operators of one tensor."""
    kind: str = "float"
    """Of the first tensor: ``float``, ``int``, ``bool`` or ``any``."""
    second_kind: str = "float"
    delicate: bool = False
    """Rounding can change its result a lot: values picked by their order, cancellation."""


# ---------------------------------------------------------------------- arguments


def nothing(draw: Draw, x: Tensor) -> tuple[Any, ...]:
    return ()


def one_dim(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    return (draw(range(-x.dim(), x.dim())),) if x.dim() else None


def real_dim(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    """A dim with at least two rows."""
    dims = [d for d in range(x.dim()) if x.shape[d] > 1]
    return (draw(dims),) if dims else None


def two_dims(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    return (draw(range(x.dim())), draw(range(-x.dim(), x.dim()))) if x.dim() > 1 else None


def dims_and_keep(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    """One or two dims, at least two rows together."""
    if not x.dim():
        return None
    first = draw(range(x.dim()))
    dims = tuple(sorted({first, draw(range(x.dim())) if draw((False, False, True)) else first}))
    return (dims, draw((False, True))) if prod(x.shape[d] for d in dims) > 1 else None


def dim_and_keep(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    dim = real_dim(draw, x)
    return None if dim is None else (*dim, draw((False, True)))


def bounds(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    """A dim and a non-empty range of it."""
    if not x.dim():
        return None
    dim = draw(range(x.dim()))
    start = draw(range(x.shape[dim]))
    return dim, start, draw(range(start + 1, x.shape[dim] + 1))


def bounds_and_step(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    chosen = bounds(draw, x)
    return None if chosen is None else (*chosen, draw((1, 1, 1, 2, 3)))


def dim_and_row(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    if not x.dim():
        return None
    dim = draw(range(x.dim()))
    return dim, draw(range(-x.shape[dim], x.shape[dim]))


def shift(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    return (draw((1, -1, 2, 5)), draw(range(x.dim()))) if x.dim() else None


def order_of_dims(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    left, order = list(range(x.dim())), []
    while left:
        order.append(left.pop(draw(range(len(left)))))
    return (tuple(order),) if len(order) > 1 else None


def new_sizes(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    """Two neighbouring dims merged, or one split, or both."""
    sizes = list(x.shape)
    if not sizes:
        return None
    if len(sizes) > 1 and draw((False, True)):
        at = draw(range(len(sizes) - 1))
        sizes[at : at + 2] = [sizes[at] * sizes[at + 1]]
    if len(sizes) < 5 and draw((False, True)):
        at = draw(range(len(sizes)))
        parts = [d for d in range(1, sizes[at] + 1) if sizes[at] % d == 0]
        part = draw(parts)
        sizes[at : at + 1] = [part, sizes[at] // part]
    return (tuple(sizes),)


def size_one(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    dims = [d for d in range(x.dim()) if x.shape[d] == 1]
    return (draw(dims),) if dims else None


def added_dim(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    return (draw(range(-x.dim() - 1, x.dim() + 1)),) if x.dim() < 5 else None


def larger_sizes(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    if x.dim() > 4:
        return None
    sizes = [2 if s == 1 and draw((False, True)) else s for s in x.shape]
    return (tuple([draw((1, 2)), *sizes] if draw((False, True)) else sizes),)


def pieces(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    """A dim, the size of a piece, and which piece."""
    if not x.dim():
        return None
    dim = draw(range(x.dim()))
    size = draw(range(1, x.shape[dim] + 1))
    return dim, size, draw(range(-(-x.shape[dim] // size)))


def padding(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    if not x.dim():
        return None
    return draw(range(x.dim())), draw((0, 1, 2, -1)), draw((0, 1, 3)), draw((0.0, 0.5))


def times(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    return (draw(range(x.dim())), draw((2, 3))) if x.dim() else None


def factor(draw: Draw, x: Tensor) -> tuple[Any, ...]:
    return (draw((0.5, -1.5, 2.0)),)


def last_dims(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    count = draw((1, 1, 1, 2))
    if x.dim() < count or prod(x.shape[x.dim() - count :]) < 2:
        return None
    return (count,)


def matrices(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    return () if x.dim() >= 2 else None


def matrices_and_diagonal(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    return (draw((-1, 0, 1)),) if x.dim() >= 2 else None


def rows_to_pick(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    """A dim, and rows of it in any order."""
    if not x.dim():
        return None
    dim = draw(range(x.dim()))
    count = draw((1, 2, x.shape[dim]))
    return dim, tuple(draw(range(x.shape[dim])) for _ in range(count))


def distinct_rows(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    chosen = rows_to_pick(draw, x)
    return None if chosen is None else (chosen[0], tuple(dict.fromkeys(chosen[1])))


def dim_and_count(draw: Draw, x: Tensor) -> tuple[Any, ...] | None:
    if not x.dim():
        return None
    dim = draw(range(x.dim()))
    return draw(range(1, x.shape[dim] + 1)), dim


# ---------------------------------------------------------------------- which tensors go together


def broadcasts(x: Tensor, y: Tensor) -> bool:
    try:
        return prod(torch.broadcast_shapes(x.shape, y.shape)) <= 8 * max(x.numel(), y.numel())
    except RuntimeError:
        return False


def broadcasts_into(x: Tensor, y: Tensor) -> bool:
    return broadcasts(x, y) and torch.broadcast_shapes(x.shape, y.shape) == x.shape


def same_shape(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape


def same_last(x: Tensor, y: Tensor) -> bool:
    return 0 < x.dim() and y.dim() == 2 and x.shape[-1] == y.shape[-1]


def multiplies(x: Tensor, y: Tensor) -> bool:
    """``x @ y.mT``."""
    leading = x.shape[:-2] == y.shape[:-2] or y.dim() == 2 or x.dim() == 2
    return x.dim() >= 2 and y.dim() >= 2 and x.shape[-1] == y.shape[-1] and leading


def three_dims_each(x: Tensor, y: Tensor) -> bool:
    fits = x.dim() == y.dim() == 3
    return fits and x.shape[0] == y.shape[0] and x.shape[2] == y.shape[2]


def joins(x: Tensor, y: Tensor) -> bool:
    return x.dim() == y.dim() > 0 and sum(a != b for a, b in zip(x.shape, y.shape, strict=True)) < 2


def looks_up(x: Tensor, y: Tensor) -> bool:
    return y.dim() == 2 and x.numel() * y.shape[1] < 5000


# ---------------------------------------------------------------------- what needs more than a line


def joined(x: Tensor, y: Tensor, axis: int) -> Tensor:
    other = [d for d in range(x.dim()) if x.shape[d] != y.shape[d]]
    return torch.cat([x, y], other[0] if other else axis)


def padded(x: Tensor, dim: int, before: int, behind: int, value: float) -> Tensor:
    before = max(before, 1 - x.shape[dim])
    widths = [0, 0] * (x.dim() - 1 - dim) + [before, behind]
    return F.pad(x, widths, value=value)


def along(x: Tensor, dim: int, count: int) -> tuple[int, ...]:
    return tuple(count if d == dim else 1 for d in range(x.dim()))


def sliced(x: Tensor, dim: int, start: int, stop: int, step: int = 1) -> Tensor:
    return x[(slice(None),) * dim + (slice(start, stop, step),)]


def assigned(x: Tensor, dim: int, start: int, stop: int) -> Tensor:
    y = x.clone()
    y[(slice(None),) * dim + (slice(start, stop),)] = 0.25
    return y


def assigned_from(x: Tensor, y: Tensor, dim: int, start: int, stop: int) -> Tensor:
    result = x * 1.0
    result[(slice(None),) * dim + (slice(start, stop),)] = sliced(y, dim, start, stop).cos()
    return result


def scaled_view_in_place(x: Tensor, dim: int, start: int, stop: int) -> Tensor:
    y = x + 0.5
    sliced(y, dim, start, stop).mul_(1.5)
    return y


def added_row_in_place(x: Tensor, dim: int, row: int) -> Tensor:
    y = x.clone()
    y.select(dim, row).add_(0.75)
    return y


def filled_buffer(x: Tensor, dim: int, start: int, stop: int) -> Tensor:
    y = torch.zeros_like(x)
    sliced(y, dim, start, stop).copy_(sliced(x, dim, start, stop))
    return y


def picked(x: Tensor, dim: int, rows: tuple[int, ...]) -> Tensor:
    return x.index_select(dim, torch.tensor(rows, device=x.device))


def picked_by_indexing(x: Tensor, dim: int, rows: tuple[int, ...]) -> Tensor:
    return x[(slice(None),) * dim + (torch.tensor(rows, device=x.device),)]


def index_added(x: Tensor, dim: int, rows: tuple[int, ...]) -> Tensor:
    index = torch.tensor(rows, device=x.device)
    return x.index_add(dim, index, x.index_select(dim, index).sin())


def index_copied(x: Tensor, dim: int, rows: tuple[int, ...]) -> Tensor:
    index = torch.tensor(rows, device=x.device)
    return x.index_copy(dim, index, x.index_select(dim, index).cos())


def gathered_by_order(x: Tensor, dim: int) -> Tensor:
    return x.gather(dim, x.detach().sin().argsort(dim))


def scattered_by_order(x: Tensor, dim: int) -> Tensor:
    return torch.zeros_like(x).scatter_add(dim, x.detach().argsort(dim), x)


def masked_in_place(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2.0
    y.masked_fill_(mask, 0.5)
    return y


def without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.sin()


def checkpointed(x: Tensor, dim: int) -> Tensor:
    return checkpoint(lambda y: (y * y.softmax(dim)).sin(), x, use_reentrant=False)


def one_hot(x: Tensor, classes: int) -> Tensor:
    return F.one_hot(x % classes, classes)


def looked_up(x: Tensor, table: Tensor) -> Tensor:
    return F.embedding(x % table.shape[0], table)


def layer_norm(x: Tensor, count: int) -> Tensor:
    return F.layer_norm(x, x.shape[x.dim() - count :])


def rms_norm(x: Tensor, count: int) -> Tensor:
    return F.rms_norm(x, x.shape[x.dim() - count :])


# ---------------------------------------------------------------------- the table


def _unary(apply: Callable[..., Tensor], choose: Choose = nothing, **more: Any) -> Operator:
    return Operator(apply, choose, **more)


def _binary(
    apply: Callable[..., Tensor],
    second: Callable[[Tensor, Tensor], bool] = broadcasts,
    choose: Choose = nothing,
    **more: Any,
) -> Operator:
    return Operator(apply, choose, second, **more)


POINTWISE = {
    "sin": _unary(torch.sin),
    "tanh": _unary(torch.tanh),
    "gelu": _unary(F.gelu),
    "silu": _unary(F.silu),
    "softplus": _unary(F.softplus),
    "square": _unary(torch.square),
    "negative": _unary(torch.neg),
    "times": _unary(lambda x, by: x * by, factor),
    "plus": _unary(lambda x, by: x + by, factor),
    "clamp": _unary(lambda x: x.clamp(-0.5, 0.7)),
    "no_grad": _unary(without_gradient),
    "detach": _unary(torch.detach),
    "is_positive": _unary(lambda x: x > 0, delicate=True),
    "is_small": _unary(lambda x: x % 5 < 2, kind="int"),
    "not": _unary(torch.logical_not, kind="bool"),
    "float": _unary(lambda x: x.to(torch.float64).sin(), kind="int"),
    "add": _binary(torch.add),
    "sub": _binary(torch.sub),
    "mul": _binary(torch.mul),
    "div": _binary(lambda x, y: x / (y.square() + 1)),
    "maximum": _binary(torch.maximum, delicate=True),
    "where": _binary(lambda m, x: torch.where(m, x, 0.25), kind="bool"),
    "masked_fill": _binary(lambda x, m: x.masked_fill(m, 0.5), broadcasts_into, second_kind="bool"),
    "masked_in_place": _binary(masked_in_place, broadcasts_into, second_kind="bool"),
    "add_in_place": _binary(lambda x, y: x.clone().add_(y), broadcasts_into),
    "scale_in_place": _unary(lambda x: x.mul_(0.9)),
    "lerp": _binary(lambda x, y: torch.lerp(x, y, 0.3)),
}

REDUCTIONS = {
    "sum": _unary(lambda x, d, k: x.sum(d, keepdim=k), dims_and_keep, kind="any"),
    "mean": _unary(lambda x, d, k: x.mean(d, keepdim=k), dims_and_keep),
    "sum_all": _unary(torch.sum, kind="any"),
    "mean_all": _unary(torch.mean),
    "amax": _unary(lambda x, d, k: x.amax(d, keepdim=k), dims_and_keep, delicate=True),
    "amin": _unary(lambda x, d, k: x.amin(d, keepdim=k), dims_and_keep, delicate=True),
    "max": _unary(lambda x, d, k: x.max(d, keepdim=k).values, dim_and_keep, delicate=True),
    "max_all": _unary(torch.max, delicate=True),
    "var": _unary(lambda x, d, k: x.var(d, keepdim=k), dims_and_keep),
    "var_biased": _unary(lambda x, d, k: x.var(d, correction=0, keepdim=k), dims_and_keep),
    "std": _unary(lambda x, d, k: (x + 0.1).std(d, keepdim=k), dims_and_keep),
    "logsumexp": _unary(lambda x, d, k: x.logsumexp(d, keepdim=k), dims_and_keep),
    "prod": _unary(lambda x, d, k: x.cos().prod(d, keepdim=k), dim_and_keep),
    "norm": _unary(
        lambda x, d, k: torch.linalg.vector_norm(x + 2, dim=d, keepdim=k), dims_and_keep
    ),
    "normalize": _unary(lambda x, d: F.normalize(x + 2, dim=d), real_dim, delicate=True),
    "argmax": _unary(lambda x, d, k: x.argmax(d, keepdim=k), dim_and_keep, delicate=True),
    "any": _unary(lambda x, d, k: x.any(d, keepdim=k), dim_and_keep, kind="bool"),
    "all": _unary(lambda x, d, k: x.all(d, keepdim=k), dim_and_keep, kind="bool"),
    "count": _unary(lambda x: x.sum(), kind="bool"),
}

ALONG = {
    "softmax": _unary(torch.softmax, one_dim),
    "log_softmax": _unary(torch.log_softmax, one_dim),
    "cumsum": _unary(torch.cumsum, one_dim, kind="any"),
    "checkpoint": _unary(checkpointed, one_dim),
    "cumprod": _unary(lambda x, d: (x.cos() + 0.5).cumprod(d), one_dim),
    "logcumsumexp": _unary(torch.logcumsumexp, one_dim),
    "cummax": _unary(lambda x, d: x.cummax(d).values, one_dim, delicate=True),
    "sort": _unary(lambda x, d: x.sort(d).values, one_dim, delicate=True),
    "argsort": _unary(torch.argsort, one_dim, delicate=True),
    "topk": _unary(lambda x, n, d: x.topk(n, d).values, dim_and_count, delicate=True),
    "gather": _unary(gathered_by_order, one_dim, delicate=True),
    "scatter_add": _unary(scattered_by_order, one_dim, delicate=True),
    "flip": _unary(lambda x, d: x.flip(d), one_dim, kind="any"),
    "roll": _unary(torch.roll, shift, kind="any"),
    "diff": _unary(lambda x, d: x.diff(dim=d), real_dim),
    "layer_norm": _unary(layer_norm, last_dims),
    "rms_norm": _unary(rms_norm, last_dims),
    "tril": _unary(torch.tril, matrices_and_diagonal),
    "triu": _unary(torch.triu, matrices_and_diagonal),
}

VIEWS = {
    "reshape": _unary(torch.reshape, new_sizes, kind="any"),
    "transpose": _unary(torch.transpose, two_dims, kind="any"),
    "permute": _unary(torch.permute, order_of_dims, kind="any"),
    "unsqueeze": _unary(torch.unsqueeze, added_dim, kind="any"),
    "squeeze": _unary(torch.squeeze, size_one, kind="any"),
    "expand": _unary(lambda x, sizes: x.expand(sizes), larger_sizes, kind="any"),
    "flatten": _unary(torch.flatten, kind="any"),
    "movedim": _unary(torch.movedim, two_dims, kind="any"),
    "mT": _unary(lambda x: x.mT, matrices),
    "slice": _unary(sliced, bounds_and_step, kind="any"),
    "select": _unary(torch.select, dim_and_row, kind="any"),
    "narrow": _unary(lambda x, d, i, j: x.narrow(d, i, j - i), bounds, kind="any"),
    "split": _unary(lambda x, d, n, i: x.split(n, d)[i], pieces, kind="any"),
    "chunk": _unary(lambda x, d: x.chunk(2, d)[0], one_dim, kind="any"),
    "unbind": _unary(lambda x, d: x.unbind(d)[-1], one_dim, kind="any"),
    "pad": _unary(padded, padding),
    "repeat": _unary(lambda x, d, n: x.repeat(along(x, d, n)), times),
    "repeat_interleave": _unary(lambda x, d, n: x.repeat_interleave(n, d), times),
    "stack": _binary(lambda x, y, d: torch.stack([x, y], d), same_shape, added_dim),
    "cat": _binary(joined, joins, lambda draw, x: (draw(range(x.dim())),) if x.dim() else None),
    "index_select": _unary(picked, rows_to_pick, kind="any"),
    "index": _unary(picked_by_indexing, rows_to_pick, kind="any"),
    "one_hot": _unary(one_hot, lambda draw, x: (draw((3, 4)),), kind="int"),
    "index_add": _unary(index_added, distinct_rows),
    "index_copy": _unary(index_copied, distinct_rows),
    "assign": _unary(assigned, bounds),
    "assign_from": _binary(assigned_from, same_shape, bounds),
    "scale_slice_in_place": _unary(scaled_view_in_place, bounds),
    "add_row_in_place": _unary(added_row_in_place, dim_and_row),
    "fill_buffer": _unary(filled_buffer, bounds),
}

PRODUCTS = {
    "linear": _binary(F.linear, same_last),
    "matmul": _binary(lambda x, y: x @ y.mT, multiplies),
    "bmm": _binary(lambda x, y: torch.bmm(x, y.mT), three_dims_each),
    "einsum": _binary(lambda x, y: torch.einsum("bsd,btd->bst", x, y), three_dims_each),
    "embedding": _binary(looked_up, looks_up, kind="int"),
    "dot": _binary(lambda x, y: (x * y).sum(-1), same_shape),
    "cosine": _binary(
        lambda x, y: F.cosine_similarity(x + 2, y + 1, dim=-1), same_shape, delicate=True
    ),
}

OPERATORS: dict[str, Operator] = {**POINTWISE, **REDUCTIONS, **ALONG, **VIEWS, **PRODUCTS}
