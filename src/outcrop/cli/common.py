"""What all commands share: options, progress bars, JSON results; how they print is in :mod:`outcrop.cli.printing`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from outcrop.bars import Bars
from outcrop.cli.interruptions import ending_at_once
from outcrop.cli.printing import console, out, printable
from outcrop.config import IoConfig, Size, parse_size
from outcrop.errors import ArgumentError
from outcrop.parsing import parse_toml
from outcrop.progress import Progress, shown
from outcrop.runtime import Runtime
from outcrop.store.manifest import naming_files


def _check_json(path: Path | None) -> Path | None:
    """Before anything begins: what people read gives way on standard output, and the file has a folder."""
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
GpuMemory = Annotated[
    str,
    typer.Option(
        "--gpu-memory",
        help="Device memory for cached rows, batches and sampling; 0: nothing is cached there, the rest takes what "
        "is free.",
        metavar="SIZE",
    ),
]
DiskSpace = Annotated[
    str | None,
    typer.Option(
        "--disk-space", help="Limit for the run's files: 20GiB, or 3x the features.", metavar="SIZE"
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Same seed, same result.")]


Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is finished at the destination.")]


def _defaults_of_file(ctx: typer.Context, path: Path | None) -> Path | None:
    """Options of a TOML file become the defaults of the command: those on the command line win."""
    if path is not None:
        names = {
            option.removeprefix("--"): parameter.name
            for parameter in ctx.command.params
            for option in parameter.opts
            if option.startswith("--") and option not in ("--config", "--help")
        }
        try:
            given = parse_toml(path.read_text())
        except ValueError as error:
            raise ArgumentError(f"{path} is no TOML file: {error}") from None
        unknown = [name for name in given if name not in names]
        if unknown:
            raise ArgumentError(
                f"{path}: {unknown[0]!r} is no option of this command; known: {', '.join(sorted(names))}"
            )
        ctx.default_map = {**(ctx.default_map or {}), **{names[name]: given[name] for name in given}}
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


@contextmanager
def progress_bars(quiet: bool) -> Iterator[Progress]:
    """Live bars on a terminal, lines where standard error goes elsewhere, silence with --quiet."""
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
    """A Runtime with bars for the block."""
    with (
        progress_bars(quiet) as progress,
        Runtime(memory, io=io, progress=progress, trace_path=trace) as runtime,
    ):
        yield runtime


def parse_fanouts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ArgumentError(f"fanouts {text!r} are not understood; write for example 10,15,20") from None


def say_choice(why: str) -> None:
    """What ``--memory auto`` took, on standard error."""
    for line in why.splitlines():
        console.print(Text(printable(line)), soft_wrap=True, highlight=False)


def parse_optional(size: str | None) -> int | None:
    return None if size is None else parse_size(size)


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    """``result`` as the option ``--json`` asks: to a file, to standard output (``-``), or not at all."""
    if path is None:
        return
    text = json.dumps(result, indent=1) + "\n"
    if path == STANDARD_OUTPUT:
        sys.stdout.write(text)
    else:
        with naming_files(path):
            path.write_text(text)
