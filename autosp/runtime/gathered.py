"""Sharded outputs that become whole when they are read.

The wrapper answers questions about shape, dtype and device at once; any operator on it
first gathers the blocks of the SP group (a collective: every rank must read it).
Each use gathers again; writing to one in place is an error, for the next use would not see it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from autosp.blocks import combine_blocks, cut_blocks
from autosp.errors import AutoSPError, MutationError
from autosp.placement import Shard


class BackwardThroughLogitsError(AutoSPError):
    """A gradient was asked of an output that was compiled without one."""


def gather_blocks(local: torch.Tensor, cut: Shard, size: int, group: Any) -> torch.Tensor:
    """All blocks of a cut dim, padding removed.

    Args:
        local: this rank's block, ``[..., outer*block*inner, ...]``.
        cut: how the dim is cut.
        size: global size of the dim.
        group: the process group of the axis.
    """
    num_ranks = dist.get_world_size(group)
    sent = local.detach().contiguous()
    blocks = sent.new_empty((num_ranks, *sent.shape))
    dist.all_gather_into_tensor(blocks.flatten(0, 1) if sent.dim() else blocks, sent, group=group)
    shape = (*local.shape[: cut.dim], size, *local.shape[cut.dim + 1 :])
    return combine_blocks(blocks.unbind(), cut, shape).contiguous()


def sum_blocks(whole: torch.Tensor, cut: Shard, group: Any) -> torch.Tensor:
    """This rank's block of the sum of what the ranks hold; padding rows are zero."""
    sent = torch.stack(cut_blocks(whole, cut, dist.get_world_size(group)))
    received = torch.empty_like(sent[0])
    dist.reduce_scatter_tensor(received, sent.flatten(0, 1), group=group)
    return received


class _Gather(torch.autograd.Function):
    """Blocks -> whole. Backward: own block of the sum of all ranks' cotangents.

    Code outside that is replicated gives every rank the same cotangent: P times its block is
    the mean convention. A second compiled region gives each rank the cotangents of its own
    block, already times P: only their sum is the whole.
    """

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, cut: Shard, size: int, group: Any) -> torch.Tensor:
        ctx.details = (cut, group)
        return gather_blocks(local, cut, size, group)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        cut, group = ctx.details
        return sum_blocks(cotangents[0], cut, group), None, None, None


class _NoGradient(torch.autograd.Function):
    """Passes a value on; asking for its gradient is an error with the remedy."""

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        del anchor
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        raise BackwardThroughLogitsError(
            "this output was compiled without a gradient, because the model returns its own loss",
            hint="Compute every loss term inside the model, or pass loss=... to autosp.compile",
        )


@dataclass(frozen=True, slots=True)
class Cut:
    """How a sharded output is cut, and whether it was compiled with a gradient."""

    placement: Shard
    group_name: str
    differentiable: bool


class GatheredOnUse(torch.Tensor):
    """A sharded output: the global shape outside, this rank's block inside.

    A second compiled region takes the block itself, without communication: dynamo hands the
    wrapper on (it can be flattened to its block), and the backend reads ``local`` and ``cut``.
    What code outside does with it is never compiled by dynamo, which would trace the gather.
    """

    local: torch.Tensor
    cut: Shard
    group: Any
    differentiable: bool
    on_read: Callable[[GatheredOnUse], None] | None = None
    """Told before it is gathered: what a dry run counts."""

    def __tensor_flatten__(self) -> tuple[list[str], Cut]:
        name = self.group if isinstance(self.group, str) else self.group.group_name
        return ["local"], Cut(self.cut, name, self.differentiable)

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], cut: Cut, size: torch.Size, stride: Any
    ) -> GatheredOnUse:
        del stride
        return GatheredOnUse.wrap(
            inner["local"],
            cut.placement,
            tuple(size),
            cut.group_name,
            differentiable=cut.differentiable,
        )

    @staticmethod
    def wrap(
        local: torch.Tensor, cut: Shard, shape: tuple[int, ...], group: Any, *, differentiable: bool
    ) -> GatheredOnUse:
        wrapper = torch.Tensor._make_wrapper_subclass(
            GatheredOnUse, shape, dtype=local.dtype, device=local.device, requires_grad=False
        )
        assert isinstance(wrapper, GatheredOnUse)
        wrapper.local, wrapper.cut, wrapper.group = local, cut, group
        wrapper.differentiable = differentiable
        return wrapper

    def full(self) -> torch.Tensor:
        """The whole tensor. Communicates: every rank of the SP group must call it."""
        if self.on_read is not None:
            self.on_read(self)
        if isinstance(self.local, FakeTensor):  # dynamo looks at shapes: nothing to gather
            return self.local.new_empty(self.shape).requires_grad_(self.local.requires_grad)
        size = self.shape[self.cut.dim]
        if self.differentiable:
            arguments = (self.local, self.cut, size, self.group)
            whole: torch.Tensor = _Gather.apply(*arguments)  # type: ignore[no-untyped-call]
            return whole
        gathered = gather_blocks(self.local, self.cut, size, self.group)
        if not torch.is_grad_enabled() or not gathered.is_floating_point():
            return gathered
        anchor = torch.zeros((), device=gathered.device, requires_grad=True)
        guarded: torch.Tensor = _NoGradient.apply(gathered, anchor)  # type: ignore[no-untyped-call]
        return guarded

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        del tensor_contents  # showing them would communicate
        block = list(self.local.shape)
        return f"GatheredOnUse(shape={list(self.shape)}, block={block}, dtype={self.dtype})"

    @classmethod
    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if _only_describes(func):
            describe = super().__torch_function__
            return describe(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        return _on_whole(func, args, kwargs or {})

    @classmethod
    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    def __torch_dispatch__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _on_whole(func, args, kwargs or {})


def block_of(value: Any) -> Any:
    """This rank's block of a sharded output; anything else as it is."""
    return value.local if isinstance(value, GatheredOnUse) else value


def block_for_a_region(value: Any) -> Any:
    """This rank's block of a sharded output, for a compiled region that reads it.

    Raises:
        BackwardThroughLogitsError: a gradient would have to go back through it and cannot.
    """
    lost = isinstance(value, GatheredOnUse) and not value.differentiable
    if lost and torch.is_grad_enabled():
        raise BackwardThroughLogitsError(
            "a compiled forward reads a sharded tensor that an earlier call returned or kept "
            "beside its loss, and which was compiled without a gradient",
            hint="detach() what is kept from step to step (self.state = x.detach()); or let the "
            "earlier model return no loss",
        )
    return block_of(value)


_DESCRIPTIONS = frozenset(
    {
        torch.Tensor.size,
        torch.Tensor.stride,
        torch.Tensor.storage_offset,
        torch.Tensor.untyped_storage,
        torch.Tensor.is_contiguous,
        torch.Tensor.is_conj,
        torch.Tensor.is_neg,
        torch.Tensor._is_view,
        torch.Tensor.dim,
        torch.Tensor.numel,
        torch.Tensor.is_floating_point,
    }
)
"""What can be told without communication, beside properties."""
_PROPERTIES_THAT_READ = frozenset(
    getattr(torch.Tensor, name).__get__ for name in ("T", "mT", "H", "mH", "real", "imag", "data")
)


def _only_describes(func: Callable[..., Any]) -> bool:
    """Whether a function of a tensor looks at its shape, type or history, not at its values."""
    is_property = getattr(func, "__name__", "") == "__get__"
    return func in _DESCRIPTIONS or (is_property and func not in _PROPERTIES_THAT_READ)


def _on_whole(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run an operator on the gathered tensors.

    Raises:
        MutationError: it wrote to one of them, which nobody would see: the next reader
            gathers the blocks again.
    """
    gathered: list[tuple[torch.Tensor, int]] = []

    def whole(argument: Any) -> Any:
        if not isinstance(argument, GatheredOnUse):
            return argument
        full = argument.full()
        if not full.is_inference():  # such tensors count no versions
            gathered.append((full, full._version))
        return full

    args, kwargs = tree_map(whole, (args, kwargs))
    result = func(*args, **kwargs)
    if any(tensor._version != version for tensor, version in gathered):
        raise MutationError(
            "an output of the compiled model is written in place; a rank holds only a block of it",
            hint="Compute a new tensor instead, or clone() the output first",
        )
    return result
