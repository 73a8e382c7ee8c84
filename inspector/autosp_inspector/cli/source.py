"""Opening what a command works on: a recorded trace, or a model that is compiled first."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autosp_inspector.cli.compile import compile_to_trace
from autosp_inspector.cli.layout_options import Layout
from autosp_inspector.cli.talk import progress
from autosp_inspector.errors import TraceError
from autosp_inspector.schema import TRACE_SUFFIX
from autosp_inspector.target.errors import TargetError
from autosp_inspector.target.specification import TraceFiles, recognise
from autosp_inspector.trace import Trace, open_run


@dataclass(frozen=True, slots=True)
class OpenedSource:
    """The traces of a run, by rank."""

    traces: tuple[Trace, ...]
    path: Path
    """The trace file, or the folder of the ranks."""
    text: str
    """What the user named."""
    recorded: bool
    """Whether the trace outlives the command."""
    options: str
    """The options of the compilation, as given; empty for a recorded trace."""

    def trace(self, rank: int | None) -> Trace:
        """The trace of a rank; of the lowest one for None.

        Raises:
            TraceError: that rank is not there; the ones that are are listed.
        """
        if rank is None:
            return self.traces[0]
        for trace in self.traces:
            if trace.run.rank == rank:
                return trace
        ranks = ", ".join(str(trace.run.rank) for trace in self.traces)
        raise TraceError(f"{self.text} has no trace of rank {rank}", hint=f"It has rank {ranks}")


@contextlib.contextmanager
def open_source(
    text: str, layout: Layout, *, output: Path | None = None, quiet: bool = False
) -> Iterator[OpenedSource]:
    """Open a trace, or compile a model to ``output`` (a temporary file by default).

    Raises:
        AutoSPError: the target, its model or the trace cannot be used.
    """
    target = recognise(text)
    if isinstance(target, TraceFiles):
        _refuse_compile_options(text, layout, output)
        with _closing(open_run(target.path)) as traces:
            yield OpenedSource(traces, target.path, text, True, "")
        return
    with tempfile.TemporaryDirectory(prefix="autosp-inspect-") as folder:
        path = output or Path(folder) / f"run{TRACE_SUFFIX}"
        with progress(quiet=quiet) as report_progress:
            written = compile_to_trace(target, layout, path, progress=report_progress)
        with _closing(open_run(written)) as traces:
            yield OpenedSource(traces, written, text, output is not None, layout.given_text)


def _refuse_compile_options(text: str, layout: Layout, output: Path | None) -> None:
    given = [word for word in layout.given if word.startswith("--")]
    if output is not None:
        given.append("--output")
    if given:
        raise TargetError(
            f"is a recorded trace, which {', '.join(dict.fromkeys(given))} cannot change",
            where=text,
            hint="These options are for compiling a model",
        )


@contextlib.contextmanager
def _closing(traces: tuple[Trace, ...]) -> Iterator[tuple[Trace, ...]]:
    try:
        yield traces
    finally:
        for trace in traces:
            trace.close()
