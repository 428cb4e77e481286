"""The ``outcrop`` command."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer

import outcrop
from outcrop.cli import interruptions, out_of_memory
from outcrop.cli.commands import MARKUP, CommandGroup
from outcrop.cli.printing import console, say
from outcrop.errors import OutcropError, OutcropWarning

app = typer.Typer(
    name="outcrop",
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
    help="Train graph neural networks on graphs larger than memory, exactly, on one machine.",
)

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


def run() -> None:
    """Runs the command: errors are one or two lines on standard error and status 1, wrong usage status 2."""
    os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
    warnings.showwarning = _show_warning
    try:
        interruptions.install()
        app(standalone_mode=True)
    except (OutcropError, OSError) as error:
        if _debug:
            raise
        _fail(out_of_memory.message_of(error) if out_of_memory.ran_out(error) else _text_of(error))
    except KeyboardInterrupt:
        _say_how_to_go_on()
        sys.exit(interruptions.INTERRUPTED)
    except SystemExit as end:
        # Typer makes the first of an interruption, without a word
        if end.code in (interruptions.INTERRUPTED, interruptions.TERMINATED):
            _say_how_to_go_on()
        raise
    except Exception as error:  # the last resort: whatever was not foreseen is one line, too
        if _debug:
            raise
        if out_of_memory.ran_out(error):
            _fail(out_of_memory.message_of(error))
        text = " ".join(str(error).split())
        _fail(
            f"{type(error).__name__}: {text[:_LONGEST_MESSAGE]}\nThis was not foreseen and may be a bug of Outcrop: "
            "outcrop --debug COMMAND ... shows where it happened"
        )

    finally:
        interruptions.end_at_once()


_LONGEST_MESSAGE = 500


def _text_of(error: Exception) -> str:
    return str(error) or type(error).__name__


def _fail(text: str) -> NoReturn:
    say("error:", "bold red", text)
    sys.exit(1)


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    if issubclass(category, OutcropWarning):
        say("warning:", "yellow", str(message))
    else:
        _python_shows(message, category, *where, **more)


def _say_how_to_go_on() -> None:
    interruptions.end_at_once()  # a second signal finds nothing but this to interrupt
    console.print(interruptions.last_line(), soft_wrap=True)
