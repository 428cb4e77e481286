"""The commands by name. Each is imported when it is asked for: all of them take longer than many a command does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

MARKUP = "rich"

# Command -> its module in outcrop.cli, in the order of the help.
MODULES = {
    "demo": "demo",
    "doctor": "doctor",
    "generate": "data",
    "import": "data",
    "stripe": "data",
    "info": "data",
    "verify": "data",
    "fetch": "transport",
    "upload": "transport",
    "derive": "derive",
    "prepare": "prepare",
    "sample": "prepare",
    "plan": "prepare",
    "pack": "prepare",
    "prepare-pool": "prepare",
    "train": "train",
    "infer": "infer",
    "report": "report",
    "advise": "advise",
    "bench": "bench",
    "embed": "embed",
}


@cache
def commands_of(module: str) -> dict[str, Any]:
    """Imports a module of :mod:`outcrop.cli`, and returns its commands by name."""
    own = typer.Typer(rich_markup_mode=MARKUP, pretty_exceptions_enable=False)
    import_module(f"outcrop.cli.{module}").add_commands(own)
    return dict(typer.main.get_group(own).commands)


class _Commands(Mapping[str, Any]):
    """Maps the name of each command to the command, which is imported when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        return commands_of(MODULES[name])[name]

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


class CommandGroup(TyperGroup):
    """Offers the commands of ``outcrop``."""

    def __init__(self, **options: Any):
        options["commands"] = _Commands()
        super().__init__(**options)
