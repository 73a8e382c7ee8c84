"""Hypothesis strategies of generated programs, and how to make a failing one smaller."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.support.generated_operators import OPERATORS, Draw, Operator
from tests.support.generated_program import (
    INDEX_MASKS,
    INPUTS,
    LABELS,
    LONGEST,
    LOSSES,
    MASKS,
    GeneratedProgram,
    Step,
    body_inputs,
)

LAYOUTS = (
    (2, (2,)), (6, (2, 3)), (6, (2, 3)), (4, (2, 4)), (8, (2, 4)), (12, (3, 4)), (12, (2, 3, 4)),
)  # fmt: skip
"""Numbers of heads with numbers of ranks that they fit."""
SETTINGS = (
    "autocast", "dtype", "mask", "repeat_kv", "rotary", "prefix", "attends_again", "inputs",
    "loss", "labels", "tied", "frozen",
)  # fmt: skip
MOST_ELEMENTS = 6000
FROZEN = ("embedding", "query", "weight", "table", "scale")


def programs(
    operators: Mapping[str, Operator] = OPERATORS, most_steps: int = 5
) -> st.SearchStrategy[GeneratedProgram]:
    """Programs whose steps use ``operators``, every operator as often as any other.

    Hypothesis chooses the seeds: its own draws would repeat themselves and favour the first
    of many choices. A failing program is made smaller by :func:`simplified`.
    """
    seeds = st.randoms(use_true_random=True)
    return seeds.map(lambda random: random_program(random.choice, operators, most_steps))


def random_program(
    one: Draw, operators: Mapping[str, Operator], most_steps: int
) -> GeneratedProgram:
    heads, ranks = one(LAYOUTS)
    fitting = [n for n in range(1, heads + 1) if heads % n == 0]
    dtype = one(("float64",) * 8 + ("float32", "bfloat16"))
    autocast = dtype == "float32" and one((False, True))
    prefix = one((0, 0, 0, 0, 1, 2, 3))
    program = GeneratedProgram(
        batch=one((1, 2, 3)),
        length=one(range(2, 14)),
        ranks=ranks,
        heads=heads,
        kv_heads=one(fitting),
        head_size=one((2, 4)),
        mask=one(INDEX_MASKS if prefix else MASKS),
        repeat_kv=one((False, True)),
        rotary=one((False, False, True)),
        inputs=one(INPUTS),
        prefix=prefix,
        attends_again=one((False, False, False, True)),
        loss=one(LOSSES + ("sum", "outside") * 3),
        labels=one(LABELS),
        tied=one((True, False)),
        frozen=tuple(name for name in FROZEN if one((False,) * 7 + (True,))),
        dtype=dtype,
        autocast=autocast,
    )
    exact = dtype == "float64"
    return replace(
        program,
        before=_steps(one, program, operators, one(range(3 if exact else 1))),
        after=_steps(one, program, operators, one(range(1, 1 + (most_steps if exact else 2)))),
    )


def simplified(
    program: GeneratedProgram, fails: Callable[[GeneratedProgram], bool]
) -> GeneratedProgram:
    """A smaller program that fails as well: fewer steps, default settings, short sequences."""
    found = True
    while found:
        smaller = next((p for p in _simpler(program) if fails(p)), None)
        found = smaller is not None
        program = smaller or program
    return program


def _simpler(program: GeneratedProgram) -> Iterator[GeneratedProgram]:
    for body in ("before", "after"):
        steps = getattr(program, body)
        for number in reversed(range(len(steps))):
            shorter = _without(steps, number)
            if shorter is not None:
                yield replace(program, **{body: shorter})
    default = GeneratedProgram()
    for name in SETTINGS:
        if getattr(program, name) != getattr(default, name):
            yield replace(program, **{name: getattr(default, name)})
    if program.kv_heads != program.heads:
        yield replace(program, kv_heads=program.heads)
    for ranks in program.ranks if len(program.ranks) > 1 else ():
        yield replace(program, ranks=(ranks,))
    if (program.heads,) != program.ranks:
        yield replace(program, heads=program.ranks[0], kv_heads=program.ranks[0])
    if program.ranks[0] > 2:
        yield replace(program, ranks=(2,), heads=2, kv_heads=2)
    if program.batch > 1:
        yield replace(program, batch=program.batch - 1)
    if program.length > 2:
        yield replace(program, length=program.length - 1)


def _without(steps: tuple[Step, ...], number: int) -> tuple[Step, ...] | None:
    """The steps but one; None if another step reads its result."""
    kept = []
    for index, step in enumerate(steps):
        if f"r{number}" in step.inputs:
            return None
        if index != number:
            inputs = tuple(_renumbered(name, number) for name in step.inputs)
            kept.append(replace(step, inputs=inputs))
    return tuple(kept)


def _renumbered(name: str, removed: int) -> str:
    is_result = name[0] == "r" and name[1:].isdigit()
    return f"r{int(name[1:]) - 1}" if is_result and int(name[1:]) > removed else name


def _steps(
    one: Draw, program: GeneratedProgram, operators: Mapping[str, Operator], count: int
) -> tuple[Step, ...]:
    dtype = getattr(torch, program.dtype)
    shape = (program.batch, program.length, program.width)
    with torch.device("meta"):
        values = body_inputs(
            torch.empty(shape, dtype=dtype),
            torch.empty(shape[:2], dtype=torch.long),
            weight=torch.empty(program.width, program.width, dtype=dtype),
            scale=torch.empty(program.width, dtype=dtype),
            table=torch.empty(LONGEST, program.width, dtype=dtype),
        )
        steps: list[Step] = []
        for _ in range(count):
            step = _step(one, values, operators, exact=dtype == torch.float64)
            if step is None:
                continue
            with contextlib.suppress(RuntimeError, IndexError, ValueError):
                given = [values[name] for name in step.inputs]
                result = OPERATORS[step.operator].apply(*given, *step.arguments)
                if 0 < result.numel() <= MOST_ELEMENTS:
                    values[f"r{len(steps)}"] = result
                    steps.append(step)
    return tuple(steps)


def _step(
    one: Draw, values: Mapping[str, Tensor], operators: Mapping[str, Operator], *, exact: bool
) -> Step | None:
    name = one(sorted(operators))
    operator = operators[name]
    if operator.delicate and not exact:
        return None
    # Later values first, and the sharded one more often than tables and weights.
    results = [n for n in values if n[0] == "r" and n[1:].isdigit()]
    order = [*reversed(results), "x", *results[-1:], "x"]
    order += ["ids", "positions", "is_even", "rotary", "table", "scale"]
    first = one([n for n in order if _is_kind(values[n], operator.kind)] or ["x"])
    if not _is_kind(values[first], operator.kind):
        return None
    source = values[first]
    if operator.second is None:
        inputs: tuple[str, ...] = (first,)
    else:
        others = [
            n
            for n in values
            if _is_kind(values[n], operator.second_kind) and operator.second(source, values[n])
        ]
        if not others:
            return None
        inputs = (first, one(others))
    arguments = operator.choose(one, source)
    return None if arguments is None else Step(name, inputs, arguments)


def _is_kind(value: Tensor, kind: str) -> bool:
    match kind:
        case "float":
            return value.is_floating_point()
        case "bool":
            return value.dtype == torch.bool
        case "int":
            return value.dtype == torch.long
        case _:
            return True
