"""Typing ``--arg name=value`` by the signature of the user's factory."""

from __future__ import annotations

import ast
import enum
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from autosp_inspector.target.errors import TargetError

_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")
_KEYWORD_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def split_argument(text: str) -> tuple[str, str]:
    """``name=value`` -> ``("name", "value")``.

    Raises:
        TargetError: there is no name or no equals sign.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise TargetError(f"--arg {text!r} is not of the form name=value")
    return name.strip(), value


def typed_arguments(
    factory: Callable[..., Any], given: Mapping[str, str], *, where: str
) -> dict[str, Any]:
    """The keyword arguments for ``factory``.

    Raises:
        TargetError: an unknown name (the parameters are listed), a value of the wrong
            type, or a required parameter without a value.
    """
    parameters = _keyword_parameters(factory)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in _signature(factory).parameters.values())
    annotations = _annotations(factory)
    arguments: dict[str, Any] = {}
    for name, text in given.items():
        parameter = parameters.get(name)
        if parameter is None and not takes_any:
            raise _unknown_parameter(name, parameters, annotations, where)
        kind = annotations.get(name, _kind_of_default(parameter))
        try:
            arguments[name] = convert(text, kind)
        except ValueError as error:
            raise TargetError(f"--arg {name}={text}: {error}", where=where) from error
    _check_required(factory, arguments, where)
    return arguments


def accepts_parameter(factory: Callable[..., Any], name: str) -> bool:
    """Whether ``factory`` has a keyword parameter ``name``."""
    return name in _keyword_parameters(factory)


def _signature(factory: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(factory)
    except (TypeError, ValueError):
        return inspect.Signature()


def _keyword_parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {
        name: parameter
        for name, parameter in _signature(factory).parameters.items()
        if parameter.kind in _KEYWORD_KINDS
    }


def _annotations(factory: Callable[..., Any]) -> dict[str, Any]:
    """Resolved annotations; those that cannot be resolved are left out."""
    target = factory.__init__ if inspect.isclass(factory) else factory
    try:
        return typing.get_type_hints(target)
    except Exception:  # an annotation may name anything; the default then decides
        return {}


def _kind_of_default(parameter: inspect.Parameter | None) -> Any:
    if parameter is None or parameter.default in (inspect.Parameter.empty, None):
        return Any
    return type(parameter.default)


def _unknown_parameter(
    name: str,
    parameters: Mapping[str, inspect.Parameter],
    annotations: Mapping[str, Any],
    where: str,
) -> TargetError:
    close = get_close_matches(name, parameters, n=1)
    if not parameters:
        return TargetError(f"the factory takes no arguments, so --arg {name} is wrong", where=where)
    did_you_mean = f"Did you mean {close[0]}? " if close else ""
    return TargetError(
        f"the factory has no parameter {name!r}",
        where=where,
        hint=f"{did_you_mean}It takes: {_listing(parameters, annotations)}",
    )


def _check_required(factory: Callable[..., Any], arguments: Mapping[str, Any], where: str) -> None:
    required = [
        parameter
        for parameter in _signature(factory).parameters.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and parameter.name not in arguments
    ]
    if required:
        names = ", ".join(parameter.name for parameter in required)
        raise TargetError(
            f"the factory needs a value for {names}",
            where=where,
            hint=f"Give it with --arg {required[0].name}=VALUE, or add a default",
        )


def _listing(parameters: Mapping[str, inspect.Parameter], annotations: Mapping[str, Any]) -> str:
    return ", ".join(
        _parameter_text(name, parameter, annotations) for name, parameter in parameters.items()
    )


def _parameter_text(name: str, parameter: inspect.Parameter, annotations: Mapping[str, Any]) -> str:
    kind = annotations.get(name)
    kind_text = f": {kind_name(kind)}" if kind is not None else ""
    if parameter.default is inspect.Parameter.empty:
        return f"{name}{kind_text}"
    return f"{name}{kind_text} = {parameter.default!r}"


def kind_name(kind: Any) -> str:
    """``int``, ``str | None``, as a user would write it."""
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def convert(text: str, kind: Any) -> Any:
    """``text`` as a value of type ``kind``.

    Raises:
        ValueError: it is not one; the message says what was expected.
    """
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return convert(text, options[0])
    if origin is typing.Literal:
        return _convert_literal(text, options)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(text, options)
    if origin in (list, tuple, set, Sequence):
        return _convert_items(text, origin, options)
    if kind in _CONVERTERS:
        return _CONVERTERS[kind](text)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _convert_enum(text, kind)
    if isinstance(kind, type) and (kind.__module__, kind.__name__) == ("torch", "dtype"):
        from autosp_inspector.target.dtypes import torch_dtype

        return torch_dtype(text)
    return _convert_any(text)


def _convert_bool(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise ValueError(f"expected true or false, not {text!r}")


def _convert_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"expected a whole number, not {text!r}") from None


def _convert_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected a number, not {text!r}") from None


_CONVERTERS: Mapping[Any, Callable[[str], Any]] = {
    bool: _convert_bool,
    int: _convert_int,
    float: _convert_float,
    str: str,
    Path: Path,
}


def _convert_literal(text: str, options: tuple[Any, ...]) -> Any:
    for option in options:
        if text == str(option):
            return option
    raise ValueError(f"expected one of {', '.join(map(str, options))}, not {text!r}")


def _convert_union(text: str, options: tuple[Any, ...]) -> Any:
    if type(None) in options and text.strip().lower() in ("none", "null"):
        return None
    failures = []
    members = [option for option in options if option is not type(None)]
    for option in sorted(members, key=lambda member: member is str):
        try:
            return convert(text, option)
        except ValueError as error:
            failures.append(str(error))
    raise ValueError(failures[0])


def _convert_items(text: str, origin: Any, options: tuple[Any, ...]) -> Any:
    kind = options[0] if options else Any
    items = [convert(item.strip(), kind) for item in text.strip("[]()").split(",") if item.strip()]
    return items if origin is Sequence else origin(items)


def _convert_enum(text: str, kind: type[enum.Enum]) -> enum.Enum:
    for member in kind:
        if text in (member.name, str(member.value)):
            return member
    raise ValueError(f"expected one of {', '.join(m.name for m in kind)}, not {text!r}")


def _convert_any(text: str) -> Any:
    """Without a type: a Python literal, otherwise the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
