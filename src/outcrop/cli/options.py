"""Options of commands from classes of options: a flag for each field, its help from the class's docstring.

A command names a class and the fields that it offers (:class:`Fields`). :func:`with_options` gives the command a flag
for each, and hands it an object of the class with the fields that were given; the class knows the defaults and checks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from inspect import Parameter, Signature, cleandoc, signature
from pathlib import Path
from typing import Any, get_args, get_origin

import typer

from outcrop.cli.parsing import parse_fanouts, parse_fanouts_by_type, parse_rates, parse_weights
from outcrop.config.declared import type_hints

# Lists, written with commas between their parts.
_PARSED = {
    "fanouts": parse_fanouts,
    "fanouts_by_type": parse_fanouts_by_type,
    "class_weights": parse_weights,
    "rates": parse_rates,
}
_METAVARS = {
    "fanouts": "N,N",
    "fanouts_by_type": "'A R B=N,N'",
    "class_weights": "W,W",
    "memory": "SIZE",
    "gpu_memory": "SIZE",
    "disk_space": "SIZE",
    "folder": "FOLDER",
    "checkpoint_copy": "URI",
    "rate": "SIZE",
    "rates": "SIZE,N",
    "stripes": "FOLDER",
    "machines": "FILE",
    "prices": "FILE",
}


@dataclass(frozen=True)
class Fields:
    """Names the fields of a class that a command offers.

    Attributes:
        names: Fields, in the order of the help.
        flags: Field -> its flags, where these are not its name, such as ``"--learning-rate", "--lr"``.
        always: The command gets an object also where no field was given; else None.
        make: Makes the object of the fields that were given; None: the class.
    """

    names: Sequence[str]
    flags: Mapping[str, tuple[str, ...]] | None = None
    always: bool = True
    make: Callable[..., Any] | None = None

    def flags_of(self, name: str) -> tuple[str, ...]:
        return (self.flags or {}).get(name) or ("--" + name.replace("_", "-"),)


def with_options(command: Callable[..., None], **groups: tuple[type, Fields]) -> Callable[..., None]:
    """Replaces parameters of ``command`` that take objects of options by flags for the fields of these.

    Args:
        groups: Parameter -> class and fields.
    """

    def run(**options: Any) -> None:
        for parameter, (kind, offered) in groups.items():
            given = {}
            for name in offered.names:
                value = options.pop(f"{parameter}_{name}")
                if value not in (None, (), []):
                    given[name] = _PARSED[name](value) if name in _PARSED else value
            made = (offered.make or kind)(**given) if given or offered.always else None
            options[parameter] = made
        command(**options)

    parameters = []
    for name, parameter in signature(command, eval_str=True).parameters.items():
        if name in groups:
            parameters += [_flag(name, field, *groups[name]) for field in groups[name][1].names]
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _flag(parameter: str, name: str, kind: type, offered: Fields) -> Parameter:
    annotation, default = _type_and_default(kind, name)
    several = " May be given several times." if name in _REPEATED else ""
    option = typer.Option(
        None,
        *offered.flags_of(name),
        help=_for_command(described(kind, name), kind, offered) + several,
        show_default=shown(default),
        metavar=_METAVARS.get(name),
    )
    return Parameter(
        f"{parameter}_{name}", Parameter.KEYWORD_ONLY, annotation=annotation | None, default=option
    )


def _type_and_default(kind: type, name: str) -> tuple[Any, Any]:
    """Returns what typer takes for a field: sizes, lists and words are text, which the class understands."""
    field = next(field for field in fields(kind) if field.name == name)
    hint = type_hints(kind)[name]
    alternatives = [of for of in (get_args(hint) if get_origin(hint) is not tuple else ()) or (hint,)]
    plain = [of for of in alternatives if of in (bool, int, float)]
    default = None if field.default is MISSING else field.default
    if name in _REPEATED:
        return list[_REPEATED[name]], default
    if Path in alternatives and name not in _PLACES:
        return Path, default
    return (plain[0] if plain and str not in alternatives else str), default


_PLACES = ("folder", "checkpoint_copy")  # paths or URIs, which paths would not keep
_REPEATED: dict[str, type] = {"stripes": Path, "machines": Path, "fanouts_by_type": str}


def shown(default: Any) -> str | bool:
    """Writes a default for the help; False: there is none to be shown."""
    if default is None or default is False or default == () or default is MISSING:
        return False
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return str(default)


def described(kind: type, name: str) -> str:
    """Returns what the docstring of ``kind``, or of the class that it extends, says of a field."""
    for of in kind.__mro__:
        if name in (found := _attributes(of)):
            return found[name]
    raise KeyError(f"{kind.__name__} does not document {name}")


@cache
def _attributes(kind: type) -> dict[str, str]:
    """Reads field -> text of the section ``Attributes`` of the class's own docstring."""
    _, _, section = cleandoc(kind.__dict__.get("__doc__") or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if match := re.match(r" {4}(\w+): (.*)", line):
            name = match[1]
            found[name] = match[2]
        elif name and line.startswith(" " * 8):
            found[name] += " " + line.strip()
        elif line.strip():
            break
    return found


def _for_command(text: str, kind: type, offered: Fields) -> str:
    """Rewrites the text of a docstring for a terminal: fields are flags, marks and what refers to modules go."""
    for field in (
        field for field in fields(kind) if "_" in field.name
    ):  # others may be values of the same name
        text = text.replace(f"``{field.name}``", offered.flags_of(field.name)[0])
    text = re.sub(r"\s*\(?:(?:mod|class):`[^`]*`\)?", "", text)
    text = re.sub(r":func:`~?([\w.]+)`", r"\1", text)
    return text.replace("``", "").replace("; None: ", "; default: ").replace("None: ", "Default: ")
