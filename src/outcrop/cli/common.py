"""What all commands share: options, progress bars, JSON results; how they print is in :mod:`outcrop.cli.printing`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from outcrop.cli.interruptions import ending_at_once
from outcrop.cli.printing import console, out, printable
from outcrop.config import IoConfig, Size
from outcrop.errors import ArgumentError, IoError, naming_files
from outcrop.runtime.bars import Bars
from outcrop.runtime.parsing import parse_toml
from outcrop.runtime.progress import Progress, shown
from outcrop.runtime.runtime import Runtime


def _check_json(path: Path | None) -> Path | None:
    """Checks before anything begins: what people read gives way on standard output, and the file has a folder."""
    out.stderr = path == STANDARD_OUTPUT
    if path is not None and path != STANDARD_OUTPUT and not path.parent.is_dir():
        raise ArgumentError(f"--json {path}: {path.parent} is no folder")
    return path


STANDARD_OUTPUT = Path("-")
Json = Annotated[
    Path | None,
    typer.Option(
        "--json",
        help="Write the result to this file as JSON; - is standard output.",
        metavar="FILE",
        callback=_check_json,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars and no summary.")]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory", help="Memory budget, such as 4GiB; prepare and train take auto, too.", metavar="SIZE"
    ),
]
Device = Annotated[str, typer.Option("--device", help="cpu or cuda.")]
Seed = Annotated[int, typer.Option("--seed", help="Same seed, same result.")]


Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is finished at the destination.")]


_ABOUT_OPTIONS = ("--config", "--print-config", "--help")


def _defaults_of_file(ctx: typer.Context, path: Path | None) -> Path | None:
    """Makes options of a TOML file the defaults of the command: those on the command line win."""
    if path is not None:
        names = {
            option.removeprefix("--"): parameter.name
            for parameter in ctx.command.params
            for option in parameter.opts
            if option.startswith("--") and option not in _ABOUT_OPTIONS
        }
        try:
            given = parse_toml(path.read_text())
        except OSError as error:
            raise IoError(error.errno, f"--config {path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ArgumentError(f"{path} is no TOML file: {error}") from None
        unknown = [name for name in given if name not in names]
        if unknown:
            raise ArgumentError(
                f"{path}: {unknown[0]!r} is no option of this command; known: {', '.join(sorted(names))}"
            )
        several = {
            parameter.name for parameter in ctx.command.params if getattr(parameter, "multiple", False)
        }
        values = {
            names[name]: ",".join(map(str, value))
            if isinstance(value, list) and names[name] not in several
            else value
            for name, value in given.items()
        }
        ctx.default_map = {**(ctx.default_map or {}), **values}
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="TOML file of options of this command by name, such as lr = 0.1; those given here win.",
        metavar="FILE",
        is_eager=True,
        callback=_defaults_of_file,
    ),
]
PrintConfig = Annotated[
    bool,
    typer.Option("--print-config", help="Print the options in use as TOML, as --config reads them, and end."),
]
Fanouts = Annotated[
    str, typer.Option("--fanouts", help="Neighbours per hop, -1 = all, such as 10,15,20.", metavar="N,N")
]

Sampler = Annotated[
    str, typer.Option("--sampler", help="neighbor, labor, shadow, or weighted (needs edge weights).")
]
BatchDependency = Annotated[
    int,
    typer.Option("--batch-dependency", help="labor: batches in a row that want most of the same nodes."),
]
Topology = Annotated[
    str,
    typer.Option(
        "--topology", help="Where neighbour lists are read from: automatic, memory, paged (disk) or map."
    ),
]


def with_config(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options ``--config`` and ``--print-config`` beside its own."""

    @wraps(command)
    def run(context: typer.Context, config_file: Path | None, print_config: bool, **options: Any) -> None:
        if print_config:
            print(_options_as_toml(context))
        else:
            command(**options)

    def parameter(name: str, kind: Any, default: Any = Parameter.empty) -> Parameter:
        return Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)

    parameters = [
        parameter("context", typer.Context),
        *(
            p.replace(kind=Parameter.KEYWORD_ONLY)
            for p in signature(command, eval_str=True).parameters.values()
        ),
        parameter("config_file", Config, None),
        parameter("print_config", PrintConfig, False),
    ]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _options_as_toml(context: typer.Context) -> str:
    """Writes the options of the command that runs, in the order of its help; those that have no value are comments."""
    lines = []
    for option in context.command.params:
        value = context.params.get(option.name or "")
        names = [name for name in option.opts if name.startswith("--") and name not in _ABOUT_OPTIONS]
        if names:
            name = names[0].removeprefix("--")
            if value not in (None, (), []):
                lines.append(f"{name} = {_as_toml(value)}")
            elif isinstance(usual := getattr(option, "show_default", None), str):
                lines.append(f"# {name} = {usual} unless given")
            else:
                lines.append(f"# {name} is not given")
    return "\n".join(lines)


def _as_toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_as_toml, value))}]"
    # Text in JSON is text in TOML; so are numbers and truth.
    return json.dumps(value if isinstance(value, bool | int | float) else str(value), ensure_ascii=False)


@contextmanager
def progress_bars(quiet: bool) -> Iterator[Progress]:
    """Yields live bars on a terminal, lines where standard error goes elsewhere, silence with --quiet."""
    if quiet or not console.is_terminal:
        yield shown(not quiet)
        return
    bars = Bars(console)
    try:
        yield bars
    finally:
        bars.close()


def load_torch(quiet: bool) -> None:
    """Imports torch, which takes seconds, from a busy disk half a minute: says so, and a signal ends it at once."""
    if "torch" not in sys.modules:
        if not quiet:
            console.print("loading torch")
        with ending_at_once():
            import torch  # noqa: F401


@contextmanager
def runtime_for(
    memory: Size | None, quiet: bool, *, io: IoConfig | None = None, trace: Path | None = None
) -> Iterator[Runtime]:
    """Yields a Runtime with bars for the block."""
    with (
        progress_bars(quiet) as progress,
        Runtime(memory, io=io, progress=progress, trace_path=trace) as runtime,
    ):
        yield runtime


def say_choice(why: str) -> None:
    """Says on standard error what ``--memory auto`` took."""
    for line in why.splitlines():
        console.print(Text(printable(line)), soft_wrap=True, highlight=False)


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    """Writes ``result`` as the option ``--json`` asks: to a file, to standard output (``-``), or not at all."""
    if path is None:
        return
    text = json.dumps(result, indent=1) + "\n"
    if path == STANDARD_OUTPUT:
        sys.stdout.write(text)
    else:
        with naming_files(path):
            path.write_text(text)
