"""Values that a dry run does not have: user code between compiled pieces may ask for them."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._guards import CompileContext
from torch.utils._python_dispatch import TorchDispatchMode

from autosp.errors import AutoSPError
from autosp.events import SourceLocation
from autosp.graph import is_user_file

MAX_READS = 1000
"""Of one line; more is a loop that waits for another value."""

_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)


def user_line() -> SourceLocation | None:
    """The innermost line of the user's program that runs now."""
    for frame in reversed(traceback.extract_stack()):
        if is_user_file(frame.filename) and not frame.filename.startswith("<"):
            return SourceLocation(
                frame.filename, frame.lineno or 0, frame.name, (frame.line or "").strip()
            )
    return None


class ZeroForUnknown(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A number read from a fake tensor is 0, and a condition is false.

    Args:
        tell: called with the user's line at the first read there.

    Raises:
        AutoSPError: one line reads again and again: a loop that 0 does not end.
    """

    def __init__(self, tell: Callable[[SourceLocation | None], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tell = tell
        self._num_reads: Counter[SourceLocation | None] = Counter()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Dynamo compiles under this mode as it does without."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func not in _READS or CompileContext.try_get() is not None:
            return func(*args, **(kwargs or {}))
        self._count(user_line())
        return _zero(args[0].dtype)

    def _count(self, where: SourceLocation | None) -> None:
        self._num_reads[where] += 1
        if self._num_reads[where] == 1:
            self._tell(where)
        if self._num_reads[where] > MAX_READS:
            raise AutoSPError(
                "a loop between compiled pieces ends only for some values of a tensor, and a dry "
                "run has none: it takes them for 0",
                where=f"{where.file}:{where.line} in {where.function}" if where else "",
                hint="Check the model with `autosp-inspect verify --allow-breaks`, which computes",
            )


def _zero(dtype: torch.dtype) -> bool | int | float | complex:
    if dtype == torch.bool:
        return False
    if dtype.is_complex:
        return 0j
    return 0.0 if dtype.is_floating_point else 0
