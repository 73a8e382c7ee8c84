"""A dry run of the user's model, recorded in a trace file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from autosp.errors import AutoSPError, GraphBreakError
from autosp.hardware import Device, find_device
from autosp.mesh import Mesh
from autosp_inspector.cli.layout_options import Layout
from autosp_inspector.errors import TraceError
from autosp_inspector.recorder import TraceRecorder
from autosp_inspector.target.specification import ModelTarget
from autosp_inspector.target.user_traceback import user_location

if TYPE_CHECKING:
    from autosp_inspector.target.loaded import LoadedTarget

Progress = Callable[[str], None]


def compile_to_trace(
    target: ModelTarget, layout: Layout, path: Path, *, progress: Progress
) -> Path:
    """Load ``target``, compile it for one rank of the mesh, and write the trace ``path``.

    Raises:
        AutoSPError: the model, the layout or the output file cannot be used.
    """
    check_writable(path)
    mesh = Mesh(sp=layout.sp, dp=layout.dp)
    device = chosen_device(layout)
    progress("load torch and the model")
    # Only here: torch takes seconds to import, and viewing a trace does not need it.
    from autosp.dry_run import DryRunRequest, dry_run
    from autosp_inspector.target.load import load_target, user_environment

    loaded = load_target(layout.recipe(target))
    request = DryRunRequest(
        model=loaded.module,
        args=loaded.args,
        kwargs=loaded.kwargs,
        fake_mode=loaded.fake_mode,
        mesh=mesh,
        model_name=loaded.description,
        options=_options(layout, loaded),
        device=device,
        zero=layout.zero,
        optimizer=layout.optimizer,
        partitioner=layout.partitioner,
        backend=layout.backend,
        attention=layout.attention,
        allow_breaks=layout.allow_breaks,
    )
    with TraceRecorder(path) as recorder, user_environment(loaded), _user_errors(loaded):
        dry_run(request, recorder=recorder, progress=progress)
    return recorder.path


def check_writable(path: Path) -> None:
    """Refuse an output before minutes of work.

    Raises:
        TraceError: ``path`` is a folder, or its folder is missing or read-only.
    """
    folder = path.parent
    if path.is_dir():
        raise TraceError(f"cannot write {path}: it is a folder")
    if not folder.is_dir():
        raise TraceError(f"cannot write {path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise TraceError(f"cannot write {path}: no permission to write in {folder}")


def chosen_device(layout: Layout) -> Device:
    """The device of the estimates."""
    device = find_device(layout.gpu)
    if layout.gpus_per_node is not None:
        return device.with_gpus_per_node(layout.gpus_per_node)
    return device


def _options(layout: Layout, loaded: LoadedTarget) -> dict[str, object]:
    """What the trace shows as the configuration."""
    return {
        "seq": loaded.seq,
        "batch": loaded.batch,
        "dtype": layout.dtype or loaded.dtype_name,
        "sp": layout.sp,
        "dp": layout.dp,
        "zero": layout.zero,
        "optimizer": layout.optimizer,
        "partitioner": layout.partitioner,
        "backend": layout.backend,
        "attention": layout.attention,
        "allow_breaks": layout.allow_breaks,
        "gpu": layout.gpu,
        "gpus_per_node": layout.gpus_per_node,
        "arguments": dict(layout.arguments),
    }


@contextlib.contextmanager
def _user_errors(loaded: LoadedTarget) -> Iterator[None]:
    """What the user's forward raises becomes one line with its own frames.

    An error without a frame of the user's is a mistake of this program and goes through.
    """
    from autosp_inspector.target.try_forward import quiet_torch, try_forward

    with quiet_torch():
        try:
            yield
        except AutoSPError as error:
            if type(error) in (AutoSPError, GraphBreakError):
                # Says it better, if the forward fails by itself.
                try_forward(loaded, place_is_known=bool(error.where))
            raise
        except Exception as error:
            if user_location(error):
                try_forward(loaded, place_is_known=False)
            raise
