"""Keywords that front doors had before options became objects: they work for this release, and warn.

A table says where each went: ``"hidden": "model.hidden"`` is the field ``hidden`` of the object that the parameter
``model`` takes. The warning shows the call as it is written now.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sized
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_SHOWN = 20  # values of a list
Objects = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]


def accepts_old_keywords(
    table: Mapping[str, str], build: Objects
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Lets a function take the keywords of ``table`` as well, each with a warning.

    Args:
        table: Keyword -> what it is now, ``parameter`` or ``parameter.field``, for the message.
        build: Makes parameters from the old keywords that were given and the arguments that were given beside them.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        new = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            old = {name: kwargs.pop(name) for name in list(kwargs) if name in table}
            if old:
                given = new.bind_partial(*args, **kwargs).arguments
                made = build(old, dict(given))
                warnings.warn(_message(function.__name__, old, table, made), DeprecationWarning, stacklevel=2)
                kwargs.update(made)
            return function(*args, **kwargs)

        return call

    return decorate


def merged(kind: type, given: Any, old: Mapping[str, Any]) -> Any:
    """Returns an object of the dataclass ``kind`` with the fields ``old``: ``given`` changed, or else a new one."""
    return replace(given, **old) if isinstance(given, kind) else kind(**old)


def named(table: Mapping[str, str], parameter: str, old: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of ``old`` that are fields of ``parameter`` now, by the names that the fields have."""
    inside = parameter + "."
    return {
        table[name].removeprefix(inside): value
        for name, value in old.items()
        if table[name].startswith(inside)
    }


def _message(function: str, old: Mapping[str, Any], table: Mapping[str, str], made: Mapping[str, Any]) -> str:
    where = sorted({table[name].split(".")[0] for name in old})
    call = "".join(f", {name}={written(made[name])}" for name in where if name in made)
    keywords = ", ".join(f"{name}=" for name in old)
    return f"outcrop.{function}({keywords}) is now written outcrop.{function}(...{call})"


def written(value: Any) -> str:
    """Writes an object of options as a call: fields that have their default are left out, data are not written."""
    if isinstance(value, Path):
        return repr(str(value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {written(part)}" for name, part in value.items()) + "}"
    if not isinstance(value, str) and isinstance(value, Sized) and len(value) > _SHOWN:
        return "..."
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value) if len(repr(value)) < 80 else "..."
    said = [
        f"{field.name}={written(getattr(value, field.name))}"
        for field in fields(value)
        if field.default is MISSING or getattr(value, field.name) != field.default
    ]
    return f"outcrop.{type(value).__name__}({', '.join(said)})"
