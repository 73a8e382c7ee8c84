"""Running a model's forward once on fake inputs, for the error that it gives by itself."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)

from autosp.loss_of import LossOfOutput
from autosp_inspector.target.errors import TargetError
from autosp_inspector.target.factory import run_user_code
from autosp_inspector.target.loaded import LoadedTarget
from autosp_inspector.target.user_traceback import user_location

_NOISY_LOGGER = "torch._subclasses.fake_tensor"
"""Logs a traceback of its own for every operator that refuses its inputs."""


@contextlib.contextmanager
def quiet_torch() -> Iterator[None]:
    """What torch logs and warns while it traces is said in one line by the caller.

    With ``TORCH_LOGS`` in the environment somebody wants to see it.
    """
    if "TORCH_LOGS" in os.environ:
        yield
        return
    logger = logging.getLogger(_NOISY_LOGGER)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch\._dynamo\.")
            yield
    finally:
        logger.setLevel(level)


def try_forward(loaded: LoadedTarget, *, place_is_known: bool) -> None:
    """Run the model once on its fake inputs; returns if it has nothing to say.

    Args:
        place_is_known: the compiler knows the line that it refuses. Then reading the
            value of a tensor is no news: a dry run has none.

    Raises:
        UserCodeError: the forward raised.
        TargetError: it does what cannot be compiled, or returns nothing to train on.
    """

    def forward() -> Any:
        try:
            with loaded.fake_mode:
                return loaded.module(*loaded.args, **loaded.kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            if place_is_known:
                return None
            raise _depends_on_data(error) from error
        except NotImplementedError as error:
            if "FlexAttention" in str(error):
                raise _flex_attention(error) from error
            raise

    output = run_user_code(forward, what="the model's forward", where=loaded.description)
    if place_is_known:
        return
    try:
        with loaded.fake_mode:
            LossOfOutput()(output)
    except TypeError as error:
        raise TargetError(
            str(error),
            where=loaded.description,
            hint="Return the loss, logits, or a tuple or dict with them",
        ) from error


def _depends_on_data(error: Exception) -> TargetError:
    reads = isinstance(error, DataDependentOutputException)
    what = "reads the value of a tensor" if reads else "has a shape that depends on data"
    return TargetError(
        f"the model's forward {what} ({getattr(error, 'func', '')})",
        where=user_location(error),
        hint="The program must be the same for all data: compute with tensors instead "
        "(torch.where, masked_fill)",
    )


def _flex_attention(error: Exception) -> TargetError:
    return TargetError(
        "the model's forward calls flex_attention, which cannot be sharded",
        where=user_location(error),
        hint="Use torch.nn.functional.scaled_dot_product_attention",
    )
