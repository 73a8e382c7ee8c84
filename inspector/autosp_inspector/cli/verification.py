"""From the options of ``verify`` to a run of the compiler's verification."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from autosp_inspector.target.arguments import split_argument
from autosp_inspector.target.loaded import TargetRecipe
from autosp_inspector.target.real_builder import RealBuilder
from autosp_inspector.target.specification import ModelTarget

INNER_COMPILERS = {"eager": "eager", "aot_eager": "eager", "inductor": "inductor"}
"""--backend -> inner compiler. AOTAutograd always runs, so eager and aot_eager are one."""


def real_builder(target: ModelTarget, values: Mapping[str, Any]) -> RealBuilder:
    """How every process builds the model and its inputs."""
    pairs = tuple(split_argument(text) for text in values["arguments"])
    recipe = TargetRecipe(target, arguments=pairs, batch=values["batch"], seq=values["seq"])
    num_shards = values["ranks"] // values["dp"]
    return RealBuilder(
        recipe,
        seed=values["seed"],
        dtype=values["dtype"],
        batch=values["batch"],
        seq=values["seq"],
        ignored_shards=num_shards if values["ignored_labels"] else 0,
    )


def run_verification(
    target: ModelTarget, values: Mapping[str, Any], *, progress: Callable[[str], None]
) -> Mapping[str, Any]:
    """Compare on real processes; the fields of the JSON output.

    Raises:
        AutoSPError: the model cannot be built or compiled.
    """
    progress("load torch and the model")
    # Only here: torch takes seconds to import.
    from autosp.verification import VerifyRequest, verify
    from autosp_inspector.target.try_forward import quiet_torch

    builder = real_builder(target, values)
    request = VerifyRequest(
        build=builder,
        ranks=values["ranks"],
        dp=values["dp"],
        dtype=values["dtype"],
        inner=INNER_COMPILERS[values["backend"]],
        partitioner=values["partitioner"],
        attention=values["attention"],
        allow_breaks=values["allow_breaks"],
        steps=values["steps"],
    )
    with quiet_torch():
        builder()  # what is wrong with the model is said here, by one process
    with _silent_resource_tracker():
        return verify(request, progress=progress).as_dict()


@contextlib.contextmanager
def _silent_resource_tracker() -> Iterator[None]:
    """Python's tracker warns on stderr of what an ended process left; it also removes it."""
    name, rule = "PYTHONWARNINGS", "ignore::UserWarning:multiprocessing.resource_tracker"
    saved = os.environ.get(name)
    os.environ[name] = f"{saved},{rule}" if saved else rule
    try:
        yield
    finally:
        if saved is None:
            del os.environ[name]
        else:
            os.environ[name] = saved
