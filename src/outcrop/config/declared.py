"""Whether values are of the types that fields of options and parameters of functions are declared with."""

from __future__ import annotations

import functools
import inspect
import numbers
import os
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np

from outcrop.errors import ArgumentError

P = ParamSpec("P")
R = TypeVar("R")

# Types that take more than their own instances, and what they are called in messages.
_TAKES: dict[type, type | tuple[type, ...]] = {
    int: numbers.Integral,
    float: numbers.Real,
    bool: (bool, np.bool_),
    Path: os.PathLike,
}
_CALLED = {int: "an integer", float: "a number", bool: "True or False", str: "text", Path: "a path"}
_SHOWN_LETTERS = 60


def stored_fields(options: Any, later: Iterable[str]) -> dict[str, Any]:
    """Returns the fields of a dataclass as manifests have them, those of ``later`` only where they say something.

    These came when there were files without them already, which stay what they are: the fields are 0, None, False or
    empty there, or have their default.
    """
    usual = {one.name: one.default for one in fields(options)}
    found = asdict(options)
    return {
        name: value for name, value in found.items() if name not in later or (value and value != usual[name])
    }


def check_types(options: Any) -> None:
    """Checks the fields of a dataclass against their types; numbers of NumPy become Python's, which every format takes.

    Raises:
        ArgumentError: A field has a value of another type; names all of them.
    """
    hints = type_hints(type(options))
    values = {field.name: getattr(options, field.name) for field in fields(options) if field.init}
    _require({name: hints[name] for name in values}, values)
    for name, value in values.items():
        if isinstance(value, numbers.Integral | np.bool_) and type(value) not in (int, bool):
            object.__setattr__(options, name, bool(value) if isinstance(value, np.bool_) else int(value))
        elif isinstance(value, np.floating):
            object.__setattr__(options, name, float(value))


def checks_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Lets a function refuse arguments of other types than its parameters are declared with, before it does anything.

    Raises:
        ArgumentError: From the function: an argument has another type; names all of them.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:  # Python says it better, with the name of the function
            return function(*args, **kwargs)
        _require(type_hints(function), given)
        return function(*args, **kwargs)

    return call


@functools.cache
def type_hints(owner: Any) -> dict[str, Any]:
    return typing.get_type_hints(owner)


def _require(hints: dict[str, Any], values: dict[str, Any]) -> None:
    problems = [
        f"{name} {_shown(value)}: give {_wanted(kinds, value)}"
        for name, value in values.items()
        if (kinds := _kinds(hints[name])) and not any(_fits(value, kind) for kind in kinds)
    ]
    if problems:
        raise ArgumentError("; ".join(problems))


def _kinds(hint: Any) -> tuple[type, ...]:
    """Lists the classes that ``hint`` takes; none: it takes anything."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        parts = [_kinds(part) for part in typing.get_args(hint)]
        return tuple(kind for part in parts for kind in part) if all(parts) else ()
    if origin is Literal:
        return tuple(dict.fromkeys(type(value) for value in typing.get_args(hint)))
    if origin is not None:  # of its elements who takes it knows more
        return (Iterable,) if issubclass(origin, Iterable) else ()
    known = isinstance(hint, type) and hint not in (object, Any) and not getattr(hint, "_is_protocol", False)
    return (hint,) if known else ()


def _fits(value: Any, kind: type) -> bool:
    if kind in (int, float) and isinstance(value, bool):
        return False
    if kind is Iterable and isinstance(value, str | bytes):  # whose letters are not what was meant
        return False
    return isinstance(value, _TAKES.get(kind, kind))


def _shown(value: Any) -> str:
    if value is None:
        return "is None"
    if isinstance(value, type):
        return f"is the class {value.__name__}"
    text, name = repr(value), type(value).__name__
    article = "an" if name[0] in "aeiouAEIOU" else "a"
    return f"{text} is {article} {name}" if len(text) <= _SHOWN_LETTERS else f"is {article} {name}"


def _wanted(kinds: tuple[type, ...], value: Any) -> str:
    if isinstance(value, type) and issubclass(value, kinds):
        return f"an object of it, {value.__name__}()"
    names = ["None" if kind is types.NoneType else _called(kind) for kind in kinds]
    *first, last = dict.fromkeys(names)
    return f"{', '.join(first)} or {last}" if first else last


def _called(kind: type) -> str:
    if kind is Iterable:
        return "a sequence"
    return _CALLED.get(kind) or f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
