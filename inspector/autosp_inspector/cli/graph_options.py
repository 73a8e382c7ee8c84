"""Choosing one of the graphs of a compilation."""

from __future__ import annotations

from difflib import get_close_matches

import click

from autosp_inspector.errors import TraceError
from autosp_inspector.queries.nodes import graph_names
from autosp_inspector.queries.pieces import list_pieces, of_piece
from autosp_inspector.trace import Trace

PROGRAM = "program"


def graph_parameter() -> click.Parameter:
    return click.Option(
        ["--graph"],
        metavar="GRAPH",
        help="program (the user's forward and what the passes make of it), joint, forward or "
        "backward.  [default: program]",
    )


def piece_parameter() -> click.Parameter:
    return click.Option(
        ["--piece"],
        type=click.IntRange(min=1),
        metavar="N",
        help="Of a program compiled in pieces (--allow-breaks): this piece, from 1.  "
        "[default: the one with most nodes; where counts are shown, all]",
    )


def chosen_piece(trace: Trace, number: int | None) -> Trace:
    """The trace as that piece; as it is for None.

    Raises:
        TraceError: the program has no such piece; how many it has is said.
    """
    pieces = list_pieces(trace)
    if number is not None and number > max(len(pieces), 1):
        count = f"{len(pieces)} pieces" if pieces else "one piece"
        raise TraceError(f"there is no piece {number}", hint=f"The program is in {count}")
    return of_piece(trace, number)


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
