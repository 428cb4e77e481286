"""Ctrl-C and SIGTERM end a command whenever they arrive.

Both raise an exception in the main thread: temporary files go, what is done stays. Python drops an exception that is
raised within a finalizer (a batch that dies, a file that the garbage collector closes): such a one is raised again a
moment later, outside of it. Libraries drop what is raised while they import another one, as Arrow does with pandas: so
it is raised when the import is over. While the commands or a large package are imported nothing has begun, so the
process just ends, in the first case with the usual line; so it does once a command is over, where a second Ctrl-C finds
only the end of Python to interrupt. Only the standard library is imported here: this is loaded before anything else.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

INTERRUPTED, TERMINATED = 130, 128 + signal.SIGTERM
_AGAIN_SECONDS = 0.01
_LONGEST_IMPORT_SECONDS = 10.0  # after it an exception is raised within the import
_IMPORTING = "<frozen importlib._bootstrap>"  # the file of Python's own frames below an import

# What goes on where it was when the same command is run again; everything else starts over.
_GO_ON = (
    ["prepare"],
    ["sample"],
    ["plan"],
    ["pack"],
    ["train"],
    ["infer"],
    ["embed", "prepare"],
    ["embed", "train"],
)


def last_line() -> str:
    """Returns what an interrupted command says in the end."""
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    goes_on = any(words[: len(command)] == command for command in _GO_ON)
    how = "nothing finished is lost: run the same command again to go on"
    return f"interrupted; {how if goes_on else 'the same command starts over'}"


def end_with_a_line() -> None:
    """Lets Ctrl-C end the process with the usual line, at once, until :func:`install` is called.

    An exception would be raised within the import of some library, which may take it for one of its own.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_with_a_line)


def _end_with_a_line(*_: object) -> NoReturn:
    with suppress(OSError):  # of a standard error that is closed
        os.write(2, f"{last_line()}\n".encode())
    os._exit(INTERRUPTED)


def install() -> None:
    """Sets the handlers of the process."""
    if signal.getsignal(signal.SIGINT) in (_end_with_a_line, signal.default_int_handler):
        signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _raise_again


def end_at_once() -> None:
    """Has a signal end the process without a word from now on; one that was put off comes to nothing."""
    _hear_none()  # first: nothing can be put off any more
    signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Has a signal end the process within the block, also in the middle of loading a library."""
    before = {number: signal.getsignal(number) for number in _heard()}
    _hear_none()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _hear_none() -> None:
    for number in _heard():
        signal.signal(number, signal.SIG_DFL)


def _heard() -> list[signal.Signals]:
    """Lists those of the two signals that are not ignored, as in what a shell starts in the background."""
    return [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is not signal.SIG_IGN]


def _interrupt(_: int, frame: FrameType | None) -> None:
    _raise_outside_imports(KeyboardInterrupt(), frame)


def _terminate(_: int, frame: FrameType | None) -> None:
    _raise_outside_imports(SystemExit(TERMINATED), frame)


def _raise_outside_imports(error: BaseException, frame: FrameType | None, until: float | None = None) -> None:
    """Raises ``error``, while a module is being imported only after that, at the latest at ``until``.

    A second signal that arrives meanwhile is raised at once.
    """
    again = until is None and signal.getitimer(signal.ITIMER_REAL)[0] > 0
    until = time.monotonic() + _LONGEST_IMPORT_SECONDS if until is None else until
    if again or time.monotonic() > until or not _within_import(frame):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise error
    _call_soon(lambda _, later: _raise_outside_imports(error, later, until))


def _within_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            return True
        frame = frame.f_back
    return False


def _call_soon(handler: Callable[[int, FrameType | None], None]) -> None:
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)


def _raise_again(dropped: sys.UnraisableHookArgs) -> None:
    """Raises again what has nowhere to go: Python calls it with such an exception."""
    error = dropped.exc_value
    if isinstance(error, KeyboardInterrupt):
        _call_soon(_interrupt)
    elif isinstance(error, SystemExit) and error.code == TERMINATED:
        _call_soon(_terminate)
    else:
        sys.__unraisablehook__(dropped)
