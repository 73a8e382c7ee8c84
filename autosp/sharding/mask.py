"""Symbolic analysis of attention masks: what a boolean [.., S, S] tensor says, without it.

Integer tensors are affine functions of their own indices (``arange``, ``+``, ``-``,
indexing of one by another); comparisons of two of them are linear inequalities; a mask is
a conjunction of inequalities. ``{k - q <= 0}`` is the causal mask. Anything else is an
*opaque* atom with a description: the analysis never guesses.

The result does not depend on the sequence length, so proving it once is enough for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from autosp.graph import shape_of, tensor_of
from autosp.sharding.operation import normalise_dim
from autosp.sizes import first_row, same_shape, same_size

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Affine:
    """``constant + sum(coefficient[d] * index[d])`` over the dims of the tensor."""

    constant: int
    coefficients: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def of(constant: int, coefficients: Mapping[int, int]) -> Affine:
        kept = tuple(sorted((d, c) for d, c in coefficients.items() if c))
        return Affine(constant, kept)

    @property
    def slopes(self) -> dict[int, int]:
        return dict(self.coefficients)

    def plus(self, other: Affine, sign: int = 1) -> Affine:
        slopes = self.slopes
        for dim, coefficient in other.coefficients:
            slopes[dim] = slopes.get(dim, 0) + sign * coefficient
        return Affine.of(self.constant + sign * other.constant, slopes)

    def scaled(self, factor: int) -> Affine:
        return Affine.of(self.constant * factor, {d: c * factor for d, c in self.coefficients})


@dataclass(frozen=True, slots=True)
class Inequality:
    """``affine <= 0``."""

    affine: Affine


@dataclass(frozen=True, slots=True)
class Opaque:
    """A condition that depends on data, or that the analysis does not understand."""

    description: str


@dataclass(frozen=True, slots=True)
class Never:
    """False everywhere."""


@dataclass(frozen=True, slots=True)
class Conjunction:
    """True where every atom holds; no atoms: true everywhere."""

    atoms: frozenset[Inequality | Opaque | Never] = frozenset()

    @property
    def is_false(self) -> bool:
        return Never() in self.atoms


Meaning = Affine | Conjunction | Opaque
ALWAYS = Conjunction()
NEVER = Conjunction(frozenset({Never()}))


def causal(query_dim: int, key_dim: int) -> Conjunction:
    """``key <= query``."""
    return Conjunction(frozenset({Inequality(Affine.of(0, {query_dim: -1, key_dim: 1}))}))


def is_causal(mask: Node) -> bool:
    """Whether a mask of at least 2 dims is proved to be ``key index <= query index``."""
    num_dims = len(shape_of(mask))
    if num_dims < 2 or not same_size(shape_of(mask)[-1], shape_of(mask)[-2]):
        return False
    return MaskAnalysis().meaning(mask) == causal(num_dims - 2, num_dims - 1)


def describe(mask: Node) -> str:
    """The conjunction in words, for decisions."""
    meaning = MaskAnalysis().meaning(mask)
    num_dims = len(shape_of(mask))
    names = {num_dims - 2: "q", num_dims - 1: "k"}
    if isinstance(meaning, Opaque):
        return meaning.description
    if isinstance(meaning, Affine):
        return "not a boolean mask"
    if not meaning.atoms:
        return "always true"
    return " and ".join(sorted(_atom_text(atom, names) for atom in meaning.atoms))


def _atom_text(atom: Inequality | Opaque | Never, names: Mapping[int, str]) -> str:
    match atom:
        case Opaque(description):
            return description
        case Never():
            return "false"
        case Inequality(affine):
            terms = [
                f"{'-' if c < 0 else '+'}{'' if abs(c) == 1 else abs(c)}{names.get(d, f'i{d}')}"
                for d, c in affine.coefficients
            ]
            constant = f"{affine.constant:+d}" if affine.constant else ""
            return "".join(terms).lstrip("+") + constant + " <= 0"


EXACT_TYPES = (torch.bool, torch.int32, torch.int64)
"""Small integers wrap around at lengths that occur; floats round."""


class MaskAnalysis:
    """Meanings of nodes, remembered within one analysis."""

    def __init__(self) -> None:
        self._known: dict[Node, Meaning] = {}

    def meaning(self, node: Node) -> Meaning:
        """What the integer or boolean tensor of ``node`` is, as a function of its indices."""
        pending = [node]
        while pending:
            current = pending[-1]
            missing = [i for i in current.all_input_nodes if i not in self._known]
            if missing and current.op == "call_function":
                pending.extend(missing)
                continue
            pending.pop()
            if current not in self._known:
                self._known[current] = self._evaluate(current)
        return self._known[node]

    def _evaluate(self, node: Node) -> Meaning:
        tensor = tensor_of(node)
        if tensor is None or tensor.dtype not in EXACT_TYPES or node.op != "call_function":
            return _leaf(node)
        rule = MEANINGS.get(node.target)
        if rule is None:
            return _leaf(node)
        try:
            return rule(self, node)
        except _Unknown:
            return _leaf(node)

    def operand(self, node: Node, index: int) -> Meaning:
        """Meaning of an argument, in the dims of ``node`` (broadcast from the right)."""
        argument = node.args[index]
        if isinstance(argument, bool):
            return ALWAYS if argument else NEVER
        if isinstance(argument, int):
            return Affine(argument)
        if not isinstance(argument, Node):
            raise _Unknown
        return _broadcast(self._known[argument], shape_of(argument), shape_of(node))

    def argument(self, node: Node, index: int = 0) -> Meaning:
        """Meaning of an argument in its own dims."""
        argument = node.args[index]
        if not isinstance(argument, Node):
            raise _Unknown
        return self._known[argument]


class _Unknown(Exception):
    """The operator, with these inputs, has no meaning the analysis can express."""


def _leaf(node: Node) -> Meaning:
    return Opaque(node.name)


def _rename(meaning: Meaning, new_dim: Callable[[int], int | None]) -> Meaning:
    """Renumber the dims; a dim that maps to None has size 1, its index is 0."""

    def affine(value: Affine) -> Affine:
        slopes: dict[int, int] = {}
        for dim, coefficient in value.coefficients:
            renamed = new_dim(dim)
            if renamed is not None:
                slopes[renamed] = slopes.get(renamed, 0) + coefficient
        return Affine.of(value.constant, slopes)

    match meaning:
        case Affine():
            return affine(meaning)
        case Conjunction(atoms):
            return Conjunction(
                frozenset(
                    Inequality(affine(a.affine)) if isinstance(a, Inequality) else a for a in atoms
                )
            )
        case _:
            return meaning


def _broadcast(meaning: Meaning, own: tuple[int, ...], result: tuple[int, ...]) -> Meaning:
    offset = len(result) - len(own)
    return _rename(meaning, lambda d: None if own[d] == 1 else d + offset)


def _substitute(affine: Affine, indices: Mapping[int, Affine]) -> Affine:
    """``affine`` with each own index replaced by an expression in the new indices."""
    result = Affine(affine.constant)
    for dim, coefficient in affine.coefficients:
        result = result.plus(indices[dim].scaled(coefficient))
    return result


def _substitute_all(meaning: Meaning, indices: Mapping[int, Affine]) -> Meaning:
    match meaning:
        case Affine():
            return _substitute(meaning, indices)
        case Conjunction(atoms):
            return Conjunction(
                frozenset(
                    Inequality(_substitute(a.affine, indices)) if isinstance(a, Inequality) else a
                    for a in atoms
                )
            )
        case _:
            return meaning


def _arange(analysis: MaskAnalysis, node: Node) -> Meaning:
    del analysis
    start, step = 0, 1
    if node.target is aten.arange.start:
        start = _constant(node.args[0])
    elif node.target is aten.arange.start_step:
        start = _constant(node.args[0])
        step = _constant(node.args[2]) if len(node.args) > 2 else 1
    return Affine.of(start, {0: step})


def _constant(value: Any) -> int:
    if not isinstance(value, int):
        raise _Unknown
    return value


def _filled(value: int) -> Callable[[MaskAnalysis, Node], Meaning]:
    def meaning(analysis: MaskAnalysis, node: Node) -> Meaning:
        del analysis
        return _uniform(node, value)

    return meaning


def _full(analysis: MaskAnalysis, node: Node) -> Meaning:
    del analysis
    return _uniform(node, _constant(node.args[1]))


def _uniform(node: Node, value: int) -> Meaning:
    tensor = tensor_of(node)
    if tensor is not None and tensor.dtype == torch.bool:
        return ALWAYS if value else NEVER
    return Affine(value)


def _unchanged(analysis: MaskAnalysis, node: Node) -> Meaning:
    """Copies and casts between integer types, or of booleans to booleans."""
    source = node.args[0]
    if not isinstance(source, Node):
        raise _Unknown
    before, after = tensor_of(source), tensor_of(node)
    meaning = analysis.argument(node)
    if (
        before is None
        or after is None
        or (before.dtype == torch.bool) != (after.dtype == torch.bool)
    ):
        raise _Unknown
    return meaning


def _unsqueeze(analysis: MaskAnalysis, node: Node) -> Meaning:
    added = normalise_dim(_constant(node.args[1]), len(shape_of(node)))
    return _rename(analysis.argument(node), lambda d: d + (d >= added))


def _expand(analysis: MaskAnalysis, node: Node) -> Meaning:
    return analysis.operand(node, 0)


def _reshape(analysis: MaskAnalysis, node: Node) -> Meaning:
    """Only reshapes that add or drop dims of size 1."""
    source = node.args[0]
    assert isinstance(source, Node)
    old = [d for d, size in enumerate(shape_of(source)) if size != 1]
    new = [d for d, size in enumerate(shape_of(node)) if size != 1]
    if not same_shape((shape_of(source)[d] for d in old), (shape_of(node)[d] for d in new)):
        raise _Unknown
    renamed = dict(zip(old, new, strict=True))
    return _rename(analysis.argument(node), renamed.get)


def _transpose(analysis: MaskAnalysis, node: Node) -> Meaning:
    num_dims = len(shape_of(node))
    first = normalise_dim(_constant(node.args[1]), num_dims)
    second = normalise_dim(_constant(node.args[2]), num_dims)
    swapped = {first: second, second: first}
    return _rename(analysis.argument(node), lambda d: swapped.get(d, d))


def _slice(analysis: MaskAnalysis, node: Node) -> Meaning:
    source = node.args[0]
    assert isinstance(source, Node)
    size = shape_of(source)
    dim = normalise_dim(_constant(node.args[1]) if len(node.args) > 1 else 0, len(size))
    start = node.args[2] if len(node.args) > 2 else 0
    start = _constant(first_row(0 if start is None else _constant(start), size[dim]))
    step = _constant(node.args[4]) if len(node.args) > 4 else 1
    indices = {d: Affine.of(0, {d: 1}) for d in range(len(size))}
    indices[dim] = Affine.of(start, {dim: step})
    return _substitute_all(analysis.argument(node), indices)


def _add(sign: int) -> Callable[[MaskAnalysis, Node], Meaning]:
    def meaning(analysis: MaskAnalysis, node: Node) -> Meaning:
        left, right = analysis.operand(node, 0), analysis.operand(node, 1)
        if node.kwargs.get("alpha", 1) != 1:
            raise _Unknown
        if isinstance(left, Affine) and isinstance(right, Affine):
            return left.plus(right, sign)
        raise _Unknown

    return meaning


def _scaled(analysis: MaskAnalysis, node: Node) -> Meaning:
    """By a number."""
    left, right = analysis.operand(node, 0), analysis.operand(node, 1)
    if not isinstance(left, Affine) or not isinstance(right, Affine):
        raise _Unknown
    if left.coefficients:
        left, right = right, left
    if left.coefficients:
        raise _Unknown
    return right.scaled(left.constant)


def _index(analysis: MaskAnalysis, node: Node) -> Meaning:
    """``x[i, j, ...]`` with one affine index per dim of ``x``."""
    source, indices = node.args[0], node.args[1]
    assert isinstance(source, Node) and isinstance(indices, (list, tuple))
    if len(indices) != len(shape_of(source)):
        raise _Unknown
    chosen: dict[int, Affine] = {}
    for dim, index in enumerate(indices):
        if not isinstance(index, Node):
            raise _Unknown
        meaning = _broadcast(analysis._known[index], shape_of(index), shape_of(node))
        if not isinstance(meaning, Affine) or meaning.constant < 0:
            raise _Unknown
        if any(c < 0 for _, c in meaning.coefficients):
            raise _Unknown
        # A dim of size 1 was broadcast in the source: its index can only be 0.
        chosen[dim] = Affine(0) if shape_of(source)[dim] == 1 else meaning
    return _substitute_all(analysis._known[source], chosen)


def _diff(analysis: MaskAnalysis, node: Node) -> Meaning:
    """``diff(x, 1, dim, prepend)`` of an affine ``x`` that continues its prepended value."""
    source = analysis.argument(node)
    order = _constant(node.args[1]) if len(node.args) > 1 else 1
    dim = normalise_dim(_constant(node.args[2]) if len(node.args) > 2 else -1, len(shape_of(node)))
    if not isinstance(source, Affine) or order != 1:
        raise _Unknown
    slope = source.slopes.get(dim, 0)
    prepend = node.args[3] if len(node.args) > 3 else node.kwargs.get("prepend")
    if prepend is not None:
        if not isinstance(prepend, Node) or shape_of(prepend)[dim] != 1:
            raise _Unknown
        before = analysis._known[prepend]
        expected = Affine.of(source.constant - slope, {**source.slopes, dim: 0})
        if (
            not isinstance(before, Affine)
            or Affine.of(before.constant, {**before.slopes, dim: 0}) != expected
        ):
            raise _Unknown
    if node.kwargs.get("append") is not None or len(node.args) > 4:
        raise _Unknown
    return Affine(slope)


def _cumsum(analysis: MaskAnalysis, node: Node) -> Meaning:
    """Sums of nothing are 0."""
    source = analysis.argument(node)
    if isinstance(source, Conjunction) and source.is_false:
        return Affine(0)
    if source == Affine(0):
        return Affine(0)
    raise _Unknown


def _compare(kind: str) -> Callable[[MaskAnalysis, Node], Meaning]:
    def meaning(analysis: MaskAnalysis, node: Node) -> Meaning:
        left, right = analysis.operand(node, 0), analysis.operand(node, 1)
        if isinstance(left, Affine) and isinstance(right, Affine):
            return _comparison(kind, left, right)
        raise _Unknown

    return meaning


def _comparison(kind: str, left: Affine, right: Affine) -> Conjunction:
    if kind in ("ge", "gt"):
        left, right = right, left
        kind = {"ge": "le", "gt": "lt"}[kind]
    difference = left.plus(right, -1)
    if kind == "ne":
        if difference.coefficients:
            raise _Unknown
        return NEVER if difference.constant == 0 else ALWAYS
    if kind == "eq":
        return _both(_at_most_zero(difference), _at_most_zero(difference.scaled(-1)))
    strict = Affine(1) if kind == "lt" else Affine(0)
    return _at_most_zero(difference.plus(strict))


def _at_most_zero(affine: Affine) -> Conjunction:
    if not affine.coefficients:
        return ALWAYS if affine.constant <= 0 else NEVER
    return Conjunction(frozenset({Inequality(affine)}))


def _both(left: Conjunction, right: Conjunction) -> Conjunction:
    if left.is_false or right.is_false:
        return NEVER
    return Conjunction(left.atoms | right.atoms)


def _and(analysis: MaskAnalysis, node: Node) -> Meaning:
    return _both(_as_condition(analysis.operand(node, 0)), _as_condition(analysis.operand(node, 1)))


def _as_condition(meaning: Meaning) -> Conjunction:
    if isinstance(meaning, Affine):
        raise _Unknown
    return Conjunction(frozenset({meaning})) if isinstance(meaning, Opaque) else meaning


def _triangle(analysis: MaskAnalysis, node: Node) -> Meaning:
    """``tril(ones, diagonal)``: ``k - q <= diagonal``."""
    source = analysis.argument(node)
    diagonal = _constant(node.args[1]) if len(node.args) > 1 else 0
    tensor = tensor_of(node)
    last = len(shape_of(node)) - 1
    if tensor is None or tensor.dtype != torch.bool or not isinstance(source, Conjunction):
        raise _Unknown
    lower = node.target is aten.tril.default
    slopes = {last: 1, last - 1: -1} if lower else {last: -1, last - 1: 1}
    return _both(source, _at_most_zero(Affine.of(-diagonal if lower else diagonal, slopes)))


MeaningRule = Callable[[MaskAnalysis, Node], Meaning]

MEANINGS: dict[Any, MeaningRule] = {
    aten.arange.default: _arange,
    aten.arange.start: _arange,
    aten.arange.start_step: _arange,
    **{op: _filled(1) for op in (aten.ones.default, aten.new_ones.default, aten.ones_like.default)},
    **{
        op: _filled(0)
        for op in (aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default)
    },
    aten.full.default: _full,
    **dict.fromkeys(
        (
            aten.to.dtype,
            aten.to.dtype_layout,
            aten.to.device,
            aten._to_copy.default,
            aten.alias.default,
            aten.contiguous.default,
            aten.clone.default,
            aten.detach.default,
            aten.lift_fresh_copy.default,
        ),
        _unchanged,
    ),
    aten.unsqueeze.default: _unsqueeze,
    aten.expand.default: _expand,
    aten.view.default: _reshape,
    aten.reshape.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten.transpose.int: _transpose,
    aten.slice.Tensor: _slice,
    aten.add.Tensor: _add(1),
    aten.sub.Tensor: _add(-1),
    aten.add.Scalar: _add(1),
    aten.sub.Scalar: _add(-1),
    aten.mul.Tensor: _scaled,
    aten.mul.Scalar: _scaled,
    aten.index.Tensor: _index,
    aten.diff.default: _diff,
    aten.cumsum.default: _cumsum,
    **{
        getattr(getattr(aten, kind), overload): _compare(kind)
        for kind in ("le", "lt", "ge", "gt", "eq", "ne")
        for overload in ("Tensor", "Scalar")
    },
    **dict.fromkeys((aten.__and__.Tensor, aten.bitwise_and.Tensor, aten.logical_and.default), _and),
    aten.tril.default: _triangle,
    aten.triu.default: _triangle,
}
