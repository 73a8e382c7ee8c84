"""Choosing one of the graphs of a compilation."""

from __future__ import annotations

from difflib import get_close_matches

import click

from autosp_inspector.errors import TraceError
from autosp_inspector.queries.nodes import graph_names
from autosp_inspector.trace import Trace

PROGRAM = "program"


def graph_parameter() -> click.Parameter:
    return click.Option(
        ["--graph"],
        metavar="GRAPH",
        help="program (the user's forward and what the passes make of it), joint, forward or "
        "backward.  [default: program]",
    )


def known_graph(trace: Trace, wanted: str | None) -> str:
    """``wanted``, or the program.

    Raises:
        TraceError: the trace has no such graph; those it has are listed.
    """
    names = graph_names(trace)
    name = wanted or PROGRAM
    if name in names:
        return name
    close = get_close_matches(name, names, n=1)
    did_you_mean = f"Did you mean {close[0]}? " if close else ""
    raise TraceError(
        f"the trace has no graph {name!r}",
        hint=f"{did_you_mean}It has {', '.join(names) or 'none'}",
    )
