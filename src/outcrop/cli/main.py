"""The ``outcrop`` command."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import Annotated, Any

import typer

import outcrop
from outcrop.cli import (
    advising,
    bench,
    data,
    demo,
    doctor,
    embedding,
    inferring,
    preparing,
    reporting,
    training,
)
from outcrop.cli.common import console
from outcrop.errors import OutcropError, OutcropWarning

app = typer.Typer(
    name="outcrop",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Train graph neural networks on graphs larger than memory, exactly, on one machine.",
)
for module in (demo, doctor, data, preparing, training, inferring, embedding, reporting, advising, bench):
    module.add_commands(app)

_debug = False
_python_shows = warnings.showwarning


def _print_version(asked: bool) -> None:
    if asked:
        print(f"outcrop {outcrop.__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    global _debug  # the one place where an option must outlive the command: the error handler below
    _debug = debug


# torch's OpenMP threads spin at barriers by default; on few cores that keeps the loading threads from running, and
# an epoch can take several times as long. So they spin for a moment only. Read when torch is first imported.
_SPIN_COUNT = "20000"
_INTERRUPTED, _TERMINATED = 130, 128 + signal.SIGTERM


def run() -> None:
    """Entry point: errors are one or two lines on standard error and status 1, wrong usage status 2."""
    os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
    warnings.showwarning = _show_warning
    signal.signal(signal.SIGTERM, _end)  # as Ctrl-C does: temporary files go, what is done stays
    try:
        app(standalone_mode=True)
    except OutcropError as error:
        if _debug:
            raise
        console.print(f"[bold red]error:[/] {_escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(1)
    except (OSError, MemoryError) as error:
        if _debug:
            raise
        console.print(
            f"[bold red]error:[/] {_escape(str(error) or type(error).__name__)}",
            soft_wrap=True,
            highlight=False,
        )
        sys.exit(1)
    except KeyboardInterrupt:
        _say_how_to_go_on()
        sys.exit(_INTERRUPTED)
    except SystemExit as end:
        if end.code in (
            _INTERRUPTED,
            _TERMINATED,
        ):  # Typer makes the first of an interruption, without a word
            _say_how_to_go_on()
        raise


def _end(*_: object) -> None:
    sys.exit(_TERMINATED)


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    if issubclass(category, OutcropWarning):
        console.print(f"[yellow]warning:[/] {_escape(str(message))}", soft_wrap=True, highlight=False)
    else:
        _python_shows(message, category, *where, **more)


def _say_how_to_go_on() -> None:
    console.print(
        "interrupted; nothing finished is lost: run the same command again to go on", soft_wrap=True
    )


def _escape(text: str) -> str:
    return text.replace("[", "\\[")
