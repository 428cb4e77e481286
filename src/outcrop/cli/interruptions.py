"""Ctrl-C and SIGTERM end a command whenever they arrive.

Both raise an exception in the main thread: temporary files go, what is done stays. Python drops an exception that is
raised within a finalizer (a batch that dies, a file that the garbage collector closes): such a one is raised again a
moment later, outside of it. While a large package is imported nothing has begun, so the process just ends; so it does
once a command is over, where a second Ctrl-C finds only the end of Python to interrupt.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

INTERRUPTED, TERMINATED = 130, 128 + signal.SIGTERM
_AGAIN_SECONDS = 0.01


def install() -> None:
    """Sets the handlers of the process."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _raise_again


def end_at_once() -> None:
    """From now on a signal ends the process without a word."""
    for number in _heard():
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Within the block a signal ends the process, also in the middle of loading a library."""
    before = {number: signal.getsignal(number) for number in _heard()}
    end_at_once()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _heard() -> list[signal.Signals]:
    """Those of the two that are not ignored, as in what a shell starts in the background."""
    return [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is not signal.SIG_IGN]


def _terminate(*_: object) -> NoReturn:
    sys.exit(TERMINATED)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _raise_again(dropped: sys.UnraisableHookArgs) -> None:
    """What Python calls with an exception that has nowhere to go."""
    error = dropped.exc_value
    if isinstance(error, KeyboardInterrupt):
        again = _interrupt
    elif isinstance(error, SystemExit) and error.code == TERMINATED:
        again = _terminate
    else:
        sys.__unraisablehook__(dropped)
        return
    signal.signal(signal.SIGALRM, again)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
