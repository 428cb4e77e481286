"""Names that fields of options had before: they work for one release, and warn with the name of now."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

Options = TypeVar("Options", bound=type)


def renamed_fields(**now: str) -> Callable[[Options], Options]:
    """Lets a dataclass take fields, and be asked for them, by the names that they had before; each use warns.

    An old name wins over the new one, so that :func:`dataclasses.replace`, which passes every field, understands it.

    Args:
        now: Old name -> name of the field now.
    """

    def decorate(kind: Options) -> Options:
        make = kind.__init__

        @functools.wraps(make)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            for old in [name for name in kwargs if name in now]:
                value = kwargs.pop(old)
                _warn(f"{kind.__name__}({old}=)", f"{kind.__name__}({now[old]}={value!r})")
                kwargs[now[old]] = value
            make(self, *args, **kwargs)

        kind.__init__ = init
        for old, new in now.items():
            setattr(kind, old, property(functools.partial(_read, old=old, new=new)))
        return kind

    return decorate


def _read(options: Any, old: str, new: str) -> Any:
    name = type(options).__name__
    _warn(f"{name}.{old}", f"{name}.{new}")
    return getattr(options, new)


def _warn(before: str, now: str) -> None:
    warnings.warn(f"outcrop.{before} is now written outcrop.{now}", DeprecationWarning, stacklevel=3)
