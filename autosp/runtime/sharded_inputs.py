"""Inputs of which each rank holds only its own part, made whole before the compiled region.

The compiled program takes full inputs: shifts of labels, positions and document edges are
then right by construction. Token ids are small (8 bytes a token), so loaders that give
each rank its part lose little by the gather; embeddings are large, and are better computed
inside the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from autosp.errors import AutoSPError


def gather_parts(part: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    """The parts of all ranks one after the other along ``dim``; parts may differ in length.

    Differentiable: under the mean convention each rank gets, for its part, the sum over the
    ranks of their cotangents of the whole.

    Args:
        part: this rank's part, for instance ``[B, S_r]`` token ids.
        dim: the sequence dim.
        group: the process group of the SP axis; every rank must call this.

    Raises:
        AutoSPError: the ranks' parts differ in more than the length along ``dim``.
    """
    dim %= part.dim()
    lengths = _lengths(part, dim, group)
    whole: torch.Tensor = _GatherParts.apply(part, dim, lengths, group)  # type: ignore[no-untyped-call]
    return whole


def _lengths(part: torch.Tensor, dim: int, group: Any) -> tuple[int, ...]:
    shapes: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(shapes, (*part.shape, str(part.dtype)), group=group)
    others = {(*shape[:dim], *shape[dim + 1 :]) for shape in shapes}
    if len(others) != 1:
        raise AutoSPError(
            f"the ranks hold parts of different kinds: {sorted(map(str, set(shapes)))}",
            hint=f"All sizes but that of dim {dim} must agree on the ranks of an SP group",
        )
    return tuple(int(shape[dim]) for shape in shapes)


class _GatherParts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, part: torch.Tensor, dim: int, lengths: tuple[int, ...], group: Any
    ) -> torch.Tensor:
        ctx.details = (dim, lengths, group)
        longest, shape = max(lengths), list(part.shape)
        shape[dim] = longest
        sent = part.new_zeros(shape)
        sent.narrow(dim, 0, part.shape[dim]).copy_(part.detach())
        received = [torch.empty_like(sent) for _ in lengths]
        dist.all_gather(received, sent, group=group)
        blocks = zip(received, lengths, strict=True)
        return torch.cat([block.narrow(dim, 0, length) for block, length in blocks], dim)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        dim, lengths, group = ctx.details
        total = cotangents[0].contiguous().clone()
        dist.all_reduce(total, group=group)
        rank = dist.get_rank(group)
        own = total.narrow(dim, sum(lengths[:rank]), lengths[rank]).contiguous()
        return own, None, None, None


class ShardedInputs(torch.nn.Module):
    """Calls ``region`` with the inputs named in ``dims`` made whole."""

    def __init__(
        self,
        region: torch.nn.Module,
        signature: inspect.Signature,
        dims: Mapping[str, int],
        group: Any,
    ) -> None:
        super().__init__()
        unknown = [name for name in dims if not _takes(signature, name)]
        if unknown:
            names = ", ".join(signature.parameters)
            raise AutoSPError(
                f"sharded_inputs names {', '.join(map(repr, unknown))}, which the model's forward "
                "does not take",
                hint=f"Its arguments are {names}",
            )
        self._autosp_wrapped = region
        self._signature = signature
        self._dims = dict(dims)
        self._group = group

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = self._signature.bind(*args, **kwargs)
        for name, value in given.arguments.items():
            if self._kind(name) is inspect.Parameter.VAR_KEYWORD:
                given.arguments[name] = {key: self._whole(key, v) for key, v in value.items()}
            else:
                given.arguments[name] = self._whole(name, value)
        return self._autosp_wrapped(*given.args, **given.kwargs)

    def _kind(self, name: str) -> Any:
        return self._signature.parameters[name].kind

    def _whole(self, name: str, value: Any) -> Any:
        if name not in self._dims or not isinstance(value, torch.Tensor):
            return value
        return gather_parts(value, self._dims[name], self._group)


def _takes(signature: inspect.Signature, name: str) -> bool:
    parameters = signature.parameters
    return name in parameters or any(
        p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()
    )
