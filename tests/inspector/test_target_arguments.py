"""``--arg name=value`` is typed by the factory's signature."""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from autosp_inspector.target.arguments import convert, split_argument, typed_arguments
from autosp_inspector.target.errors import TargetError


class Flavour(enum.Enum):
    SWEET = 1
    SOUR = 2


def factory(
    *,
    width: int = 64,
    rate: float = 0.1,
    tied: bool = True,
    name: str = "x",
    limit: int | None = None,
    kind: Literal["a", "b"] = "a",
    untyped=3,  # noqa: ANN001
) -> None:
    """Only its signature matters."""


def test_annotations_and_defaults_decide_the_type() -> None:
    given = {
        "width": "1_024",
        "rate": "1e-3",
        "tied": "no",
        "name": "12",
        "limit": "none",
        "kind": "b",
        "untyped": "7",
    }
    assert typed_arguments(factory, given, where="model.py:factory") == {
        "width": 1024,
        "rate": 0.001,
        "tied": False,
        "name": "12",
        "limit": None,
        "kind": "b",
        "untyped": 7,
    }


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("SOUR", Flavour, Flavour.SOUR),
        ("1", Flavour, Flavour.SWEET),
        ("1,2,3", list[int], [1, 2, 3]),
        ("a, b", tuple[str, ...], ("a", "b")),
        ("bf16", torch.dtype, torch.bfloat16),
        ("models/x", Path, Path("models/x")),
        ("4", int | str, 4),
        ("four", int | str, "four"),
        ("(1, 2)", Any, (1, 2)),
        ("word", Any, "word"),
    ],
)
def test_conversion(text: str, kind: Any, value: Any) -> None:
    assert convert(text, kind) == value


def test_an_unknown_name_lists_the_parameters_and_the_closest() -> None:
    with pytest.raises(TargetError) as caught:
        typed_arguments(factory, {"witdh": "3"}, where="model.py:factory")
    message = str(caught.value)
    assert message.startswith("model.py:factory: the factory has no parameter 'witdh'")
    assert "Did you mean width?" in message
    assert "rate: float = 0.1" in message


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("width", "wide", "expected a whole number, not 'wide'"),
        ("width", "1.5", "expected a whole number"),
        ("tied", "maybe", "expected true or false"),
        ("kind", "c", "expected one of a, b"),
    ],
)
def test_a_value_of_the_wrong_type(name: str, value: str, expected: str) -> None:
    with pytest.raises(TargetError, match=expected):
        typed_arguments(factory, {name: value}, where="model.py:factory")


def test_a_required_parameter_is_named() -> None:
    def needs(config: object) -> None: ...

    with pytest.raises(TargetError, match="needs a value for config.*--arg config=VALUE"):
        typed_arguments(needs, {}, where="model.py:needs")


def test_a_factory_with_keyword_arguments_takes_any_name() -> None:
    def anything(**options: object) -> None: ...

    make: Callable[..., None] = anything
    assert typed_arguments(make, {"depth": "3"}, where="") == {"depth": 3}


@pytest.mark.parametrize("text", ["width", "=3", "two words=3"])
def test_an_argument_without_a_name_or_value_is_refused(text: str) -> None:
    with pytest.raises(TargetError, match="name=value"):
        split_argument(text)
