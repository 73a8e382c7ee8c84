"""Sizes that are numbers, or expressions of a length that is known when the program runs.

A program that serves many lengths has a ``torch.SymInt`` where a program of one length has an
``int``. Expressions are compared by their structure: asking torch whether one equals a number
would tie the program to the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def is_symbolic(size: Any) -> bool:
    """Whether a size is an expression of a length, not a number."""
    return not isinstance(size, int) and not size.node.expr.is_number


def plain(size: Any) -> Any:
    """A number as an ``int``, an expression as it is."""
    return size if is_symbolic(size) else int(size)


def key_of(size: Any) -> Any:
    """What can be hashed and compared; equal keys: equal sizes at every length."""
    return size.node.expr.expand() if is_symbolic(size) else int(size)


def same_size(left: Any, right: Any) -> bool:
    """Whether two sizes are equal at every length."""
    return bool(key_of(left) == key_of(right))


def same_shape(left: Iterable[Any], right: Iterable[Any]) -> bool:
    """Whether two shapes are equal at every length."""
    return [key_of(size) for size in left] == [key_of(size) for size in right]


def example(size: Any) -> int:
    """The number that a size is at the length that the program was traced with."""
    return int(size.node.hint) if is_symbolic(size) else int(size)


def examples(shape: Iterable[Any]) -> tuple[int, ...]:
    """:func:`example` of every dim."""
    return tuple([size if type(size) is int else example(size) for size in shape])


def at_lengths(size: Any, lengths: Mapping[Any, int]) -> int:
    """The number that a size is at given lengths (symbol -> number)."""
    return int(size.node.expr.subs(lengths)) if is_symbolic(size) else int(size)


def most_rows(size: Any, num_ranks: int) -> int:
    """The most that a number of padding rows can be at any length.

    It repeats with every ``num_ranks`` tokens, for it is what is missing to a multiple.

    Raises:
        ValueError: it does not: it grows with the length.
    """
    if not is_symbolic(size):
        return int(size)
    first, second = (_over_a_period(size, num_ranks, start) for start in (64, 65))
    if len(size.node.expr.free_symbols) != 1 or first != second:
        raise ValueError(f"{size} grows with the length")
    return max(first)


def _over_a_period(size: Any, num_ranks: int, start: int) -> list[int]:
    symbols = size.node.expr.free_symbols
    lengths = range(start * num_ranks, (start + 1) * num_ranks)
    return [at_lengths(size, dict.fromkeys(symbols, length)) for length in lengths]


def first_row(start: int | None, size: int) -> int:
    """The row at which a slice from ``start`` begins in a dim of ``size`` rows."""
    begin = 0 if start is None else start
    begin = begin + size if begin < 0 else begin
    if begin < 0:
        return 0
    return size if begin > size else begin


def surely_at_most(left: int, right: int) -> bool:
    """Whether ``left <= right`` at every length, as far as their difference tells."""
    difference = plain(left - right)
    return not is_symbolic(difference) and difference <= 0


def divided_up(size: int, parts: int) -> int:
    """Rows of the largest of equal parts: ``size / parts``, rounded up."""
    return (size + parts - 1) // parts
