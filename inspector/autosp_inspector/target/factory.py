"""Finding the factory in the user's module and calling it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException

from autosp_inspector.target.arguments import accepts_parameter, typed_arguments
from autosp_inspector.target.errors import MissingPackageError, TargetError, UserCodeError
from autosp_inspector.target.specification import PythonFile, PythonModule
from autosp_inspector.target.user_traceback import (
    describe_exception,
    user_location,
    user_traceback_lines,
)

FACTORY_NAMES = ("build", "build_model", "get_model", "model")
"""Looked for in this order when the target names no factory."""


_MAX_LISTED = 10
"""Of what a file defines, in a message."""


@dataclass(frozen=True, slots=True)
class Factory:
    """Something of the user's module that makes (or is) the model."""

    name: str
    value: Any
    where: str
    """``model.py:build``, for messages."""

    @property
    def has_tiny(self) -> bool:
        return callable(self.value) and accepts_parameter(self.value, "tiny")


@dataclass(frozen=True, slots=True)
class BuiltModel:
    module: nn.Module
    example_inputs: Any
    """What the factory returned beside the model; None if nothing."""


def find_factory(module: ModuleType, target: PythonFile | PythonModule) -> Factory:
    """The factory that ``target`` names, or the first of the usual names.

    Raises:
        TargetError: there is none; the message lists what was found.
    """
    location = str(target.path) if isinstance(target, PythonFile) else target.name
    if target.factory is not None:
        if not hasattr(module, target.factory):
            raise _no_such_factory(module, target.factory, location)
        return Factory(target.factory, getattr(module, target.factory), target.text)
    for name in FACTORY_NAMES:
        value = getattr(module, name, None)
        if isinstance(value, nn.Module) or (callable(value) and not isinstance(value, ModuleType)):
            return Factory(name, value, f"{location}:{name}")
    raise TargetError(
        f"has no factory ({', '.join(FACTORY_NAMES)})",
        where=location,
        hint=_what_was_found(module, location),
    )


def _no_such_factory(module: ModuleType, name: str, location: str) -> TargetError:
    candidates = _candidates(module)
    close = get_close_matches(name, candidates, n=1)
    did_you_mean = f"Did you mean {location}:{close[0]}? " if close else ""
    found = _what_was_found(module, location)
    return TargetError(f"has no {name!r}", where=location, hint=did_you_mean + found)


def _what_was_found(module: ModuleType, location: str) -> str:
    candidates = _candidates(module)
    if not candidates:
        return "It defines no function and no torch.nn.Module"
    shown = [
        f"{name} ({kind})" if kind == "torch.nn.Module" else f"{name}()"
        for name, kind in candidates.items()
    ]
    listing = ", ".join(shown[:_MAX_LISTED])
    if len(shown) > _MAX_LISTED:
        listing += f" and {len(shown) - _MAX_LISTED} more"
    return f"Found: {listing}. Name one, as in {location}:{_likeliest(candidates)}"


def _likeliest(candidates: Mapping[str, str]) -> str:
    """The factory by its name; else the last class, which is made of those before it."""
    known = [name for name in FACTORY_NAMES if name in candidates]
    modules = [name for name, kind in candidates.items() if kind == "torch.nn.Module"]
    return [*candidates, *modules[-1:], *known[::-1]][-1]


def _candidates(module: ModuleType) -> dict[str, str]:
    """Functions and modules that the file itself defines: name -> kind."""
    found: dict[str, str] = {}
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        if isinstance(value, nn.Module):
            found[name] = "torch.nn.Module"
        elif getattr(value, "__module__", None) != module.__name__:
            continue
        elif inspect.isclass(value) and issubclass(value, nn.Module):
            found[name] = "torch.nn.Module"
        elif inspect.isfunction(value):
            found[name] = "function"
    return found


def call_factory(factory: Factory, arguments: Mapping[str, str], *, tiny: bool) -> BuiltModel:
    """Make the model; ``tiny`` is passed on where the factory has that parameter.

    Raises:
        TargetError: wrong arguments, or something else than a model came back.
        UserCodeError: the factory raised.
    """
    if isinstance(factory.value, nn.Module):
        if arguments:
            raise TargetError("is a model, not a factory: it takes no --arg", where=factory.where)
        return BuiltModel(factory.value, None)
    if not callable(factory.value):
        kind = type(factory.value).__name__
        raise TargetError(f"is a {kind}, not a factory", where=factory.where)
    given = dict(arguments)
    if tiny and factory.has_tiny:
        given.setdefault("tiny", "true")
    keywords = typed_arguments(factory.value, given, where=factory.where)
    result = run_user_code(
        lambda: factory.value(**keywords), what=f"the factory {factory.name}", where=factory.where
    )
    return _built_model(result, factory)


def _built_model(result: Any, factory: Factory) -> BuiltModel:
    if isinstance(result, nn.Module):
        return BuiltModel(_unwrapped(result, factory), None)
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], nn.Module):
        return BuiltModel(_unwrapped(result[0], factory), result[1])
    if inspect.iscoroutine(result):
        result.close()  # Python would warn that nobody waited for it
    if isinstance(result, tuple):
        kinds = ", ".join(type(item).__name__ for item in result)
        returned = f"a tuple of ({kinds})"
    else:
        returned = "None" if result is None else f"a value of type {type(result).__name__}"
    raise TargetError(
        f"the factory returned {returned}",
        where=factory.where,
        hint="It must return a torch.nn.Module or (module, example_inputs)",
    )


def _unwrapped(module: nn.Module, factory: Factory) -> nn.Module:
    """The user's model inside ``torch.compile(model)``, which the compiler replaces.

    Raises:
        TargetError: the model is wrapped for another kind of parallel training.
    """
    original = getattr(module, "_orig_mod", None)
    if isinstance(original, nn.Module):
        return original
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise TargetError(
            f"the factory returned a model wrapped in {type(module).__name__}",
            where=factory.where,
            hint="Return the model itself, and set data parallelism with --dp",
        )
    return module


def run_user_code(function: Callable[[], Any], *, what: str, where: str) -> Any:
    """Call the user's code; whatever it raises becomes one message with its own frames."""
    try:
        return function()
    except TargetError as error:
        if isinstance(error, MissingPackageError):
            raise _raised(error, str(error), what, where) from error
        raise
    except DataDependentOutputException as error:
        raise UserCodeError(
            f"{what} reads the value of a tensor ({error.func}), which a dry run does not have",
            traceback_lines=user_traceback_lines(error),
            where=user_location(error) or where,
            hint="Compute it with Python numbers instead",
        ) from error
    except ModuleNotFoundError as error:
        raise TargetError(
            f"{what} imports {error.name}, which is not installed",
            where=user_location(error) or where,
            hint=f"Install it into this environment: pip install {error.name}",
        ) from error
    except (Exception, SystemExit) as error:
        raise _raised(error, describe_exception(error), what, where) from error


def _raised(error: BaseException, text: str, what: str, where: str) -> UserCodeError:
    return UserCodeError(
        f"{what} raised {text}",
        traceback_lines=user_traceback_lines(error),
        where=user_location(error) or where,
    )
