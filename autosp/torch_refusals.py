"""What torch cannot trace, in one line: what, at which line of the user's program, what to do."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException, Unsupported
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from autosp.errors import AutoSPError, GraphBreakError
from autosp.graph import is_user_file
from autosp.output_hooks import HINT, MODULE

COMPUTE_WITH_TENSORS = (
    "The program must be the same for all data: compute with tensors instead "
    "(torch.where, masked_fill)"
)
KEEP_ALL_ROWS = (
    "All shapes must be known when the program is compiled: use a mask "
    "(torch.where, masked_fill) instead of selecting rows"
)
SORT_TOKENS = (
    "This loop gives each expert as many rows as the router chose, which only a run knows. The "
    'same experts without a loop: experts_implementation="grouped_mm" or "batched_mm" '
    '(model.set_experts_implementation("grouped_mm")), or sort the tokens by expert and '
    "multiply them by torch.nn.functional.grouped_mm"
)

_CAUSE = re.compile(r"Caused by: (?P<code>.*?)\s+# \S+ in")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


def hint_for(code: str, otherwise: str) -> str:
    """What to do about ``code`` whose rows depend on data: loops over experts have a way out."""
    return SORT_TOKENS if "expert" in code.lower() else otherwise


def data_dependent(why: Exception) -> GraphBreakError:
    """A number read from a tensor decides a shape or a branch; torch says in which line."""
    found = _CAUSE.search(str(why))
    code = found["code"] if found else ""
    return GraphBreakError(
        "a shape or a branch depends on the values of a tensor" + (f" ({code})" if code else ""),
        where=_last_user_line(str(why)),
        hint=hint_for(code, COMPUTE_WITH_TENSORS),
    )


def _last_user_line(message: str) -> str:
    """The innermost line of the user's program that a message of torch's lists."""
    frames = [frame for frame in _FRAME.finditer(message) if is_user_file(frame["file"])]
    return "{file}:{line} in {function}".format(**frames[-1].groupdict()) if frames else ""


def unknown_shape(why: Exception) -> GraphBreakError:
    """An operator between compiled pieces whose shape a dry run, without values, cannot know."""
    frames = [f for f in traceback.extract_tb(why.__traceback__) if is_user_file(f.filename)]
    where = f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    code = (frames[-1].line or "") if frames else ""
    return GraphBreakError(
        f"the shape of {getattr(why, 'func', 'an operator')} depends on data, and a dry run has "
        "none",
        where=where,
        hint=hint_for(code, KEEP_ALL_ROWS),
    )


def graph_break(why: Unsupported) -> GraphBreakError:
    """Dynamo's refusal in one line: what, at which line of the user's program, what to do."""
    where = ""
    hint = (
        "Remove this construct or move it out of the model's forward; or compile each "
        "piece with --allow-breaks (allow_breaks=True)"
    )
    for frame in reversed(list(why.real_stack)):
        if is_user_file(frame.filename):
            where = f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
            hint = HINT if frame.filename.endswith(f"{MODULE.replace('.', '/')}.py") else hint
            break
    return GraphBreakError(f"graph break: {_first_line(why)}", where=where, hint=hint)


@contextmanager
def refusals_in_our_words() -> Iterator[None]:
    """Around a call that dynamo compiles.

    Raises:
        GraphBreakError: dynamo needs the whole program and cannot trace it.
        AutoSPError: as our backend raised it, or another refusal of dynamo's.
    """
    try:
        yield
    except BackendCompilerFailed as failure:
        if isinstance(failure.inner_exception, AutoSPError):
            raise failure.inner_exception from None
        raise
    except Unsupported as why:
        raise graph_break(why) from None
    except GuardOnDataDependentSymNode as why:
        raise data_dependent(why) from None
    except DynamicOutputShapeException as why:
        raise unknown_shape(why) from None
    except TorchDynamoException as why:
        if "data-dependent" in str(why):
            raise data_dependent(why) from None
        raise AutoSPError(f"torch could not trace the model: {_first_line(why)}") from why


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
