"""The pieces of a program that was broken: each is a compilation with its own graphs."""

from __future__ import annotations

import json
from dataclasses import dataclass

from autosp_inspector.trace import Trace

_PROGRAMS = """
SELECT graph.compilation,
       (SELECT count(*) FROM node WHERE node.graph_id = graph.id AND node.died_pass IS NULL)
FROM graph WHERE graph.name = 'program' ORDER BY graph.compilation
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece, in the order of compilation."""

    number: int
    """From 1, as people count."""
    compilation: int
    num_nodes: int
    runs: int
    """How often it runs in a step: equal layers share a compilation."""


def list_pieces(trace: Trace) -> tuple[Piece, ...]:
    """The pieces; none for a program in one piece, whose compilations are lengths."""
    return trace.cached("pieces", lambda: _read(trace))


def _read(trace: Trace) -> tuple[Piece, ...]:
    if trace.run.mode != "dry_run" and not trace.run.config.get("allow_breaks"):
        return ()
    found: list[tuple[int, int]] = [(row[0], row[1]) for row in trace.fetch(_PROGRAMS)]
    if len(found) < 2:
        return ()
    runs = _runs(trace)
    return tuple(
        Piece(index + 1, compilation, num_nodes, runs[index] if index < len(runs) else 1)
        for index, (compilation, num_nodes) in enumerate(found)
    )


def _runs(trace: Trace) -> list[int]:
    for (options,) in trace.fetch("SELECT options FROM pass WHERE name = 'pieces'"):
        runs = json.loads(options).get("runs")
        if isinstance(runs, list):
            return [number if isinstance(number, int) else 1 for number in runs]
    return []


def main_piece(trace: Trace) -> Piece | None:
    """The piece that a view of one graph shows: the chosen one, else that with most nodes."""
    pieces = list_pieces(trace)
    for piece in pieces:
        if piece.compilation == trace.compilation:
            return piece
    return max(pieces, key=lambda piece: piece.num_nodes, default=None)


def piece_label(trace: Trace) -> str:
    """``piece 1 of 2``; empty for a program in one piece."""
    piece = main_piece(trace)
    return "" if piece is None else f"piece {piece.number} of {len(list_pieces(trace))}"


def not_estimated(trace: Trace) -> str:
    """Why memory and time have no estimate, if that is for the pieces; else empty."""
    pieces = list_pieces(trace)
    if not pieces:
        return ""
    return (
        f"Memory and time are not estimated: the program is compiled in {len(pieces)} pieces "
        "(--allow-breaks). Remove the graph breaks for an estimate."
    )


def of_piece(trace: Trace, number: int | None) -> Trace:
    """The trace as that piece alone; as it is for None and for a number that it has not."""
    for piece in list_pieces(trace):
        if piece.number == number:
            return trace.of_compilation(piece.compilation)
    return trace


def by_piece(trace: Trace) -> tuple[Trace, ...]:
    """The trace as each of its pieces, the main one first; itself if there are none."""
    main = main_piece(trace)
    if main is None:
        return (trace,)
    others = [piece for piece in list_pieces(trace) if piece != main]
    return tuple(trace.of_compilation(piece.compilation) for piece in (main, *others))
