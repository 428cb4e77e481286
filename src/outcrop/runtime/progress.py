"""Progress of long work as people see it: bars on a terminal or in a notebook, lines where output goes to a file.

Python functions that may take long have ``progress=True``: they show on standard error what takes
longer than a moment. ``progress=False`` is silence, and so is ``OUTCROP_PROGRESS=0`` in the environment.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

from outcrop.config import format_bytes
from outcrop.errors import ArgumentError

FIRST_SECONDS = 2.0
"""What takes less is not worth a line."""
LINE_SECONDS = 10.0
"""Between the lines of a task."""
EPOCH_SECONDS = 1.0
"""Between those that end an epoch: a line for each, unless they are very short."""

P = ParamSpec("P")
R = TypeVar("R")


class Progress(Protocol):
    """Receives the progress of long work.

    ``note``: what is known by now, such as the loss, in place of what was said before. ``advance`` by 0: something has
    moved within a unit, such as an epoch.
    """

    def start(self, task: str, total: int, unit: str) -> None: ...
    def advance(self, task: str, amount: int) -> None: ...
    def note(self, task: str, text: str) -> None: ...
    def finish(self, task: str) -> None: ...


# What every receiver has; not all work takes notes.
_RECEIVES = ("start", "advance", "finish")


@runtime_checkable
class ClosableProgress(Progress, Protocol):
    """Shows progress until the work ends, as bars do that are drawn again and again."""

    def close(self) -> None: ...


class SilentProgress:
    def start(self, task: str, total: int, unit: str) -> None: ...
    def advance(self, task: str, amount: int) -> None: ...
    def note(self, task: str, text: str) -> None: ...
    def finish(self, task: str) -> None: ...


@dataclass
class _Task:
    total: int
    unit: str
    started: float
    since: float  # when the last line was written, or might have been had there been one
    moved: float  # when it last came a unit further
    done: int = 0
    skipped: int = 0  # of what is done: before it was started
    note: str = ""
    said: bool = False


class LineProgress:
    """Progress as lines of text, for files, ``nohup`` and batch systems.

    A task that lasts has a line every ten seconds, one that counts epochs also a line for each; one that is over within
    two seconds has none.

    Args:
        write: Receiver of the lines, without line break; None: standard error.
        clock: Seconds since whenever.
    """

    def __init__(
        self, write: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic
    ):
        self._write, self._clock = write or _to_standard_error, clock
        self._tasks: dict[str, _Task] = {}

    def start(self, task: str, total: int, unit: str) -> None:
        now = self._clock()
        self._tasks[task] = _Task(max(total, 1), unit, now, now + FIRST_SECONDS - LINE_SECONDS, now)

    def advance(self, task: str, amount: int) -> None:
        if task in self._tasks:
            one = self._tasks[task]
            if amount:
                one.done, one.moved = one.done + amount, self._clock()
            self._say_if_due(task, EPOCH_SECONDS if amount and one.unit == "epochs" else LINE_SECONDS)

    def skip(self, task: str, amount: int) -> None:
        if task in self._tasks:
            self._tasks[task].done += amount
            self._tasks[task].skipped += amount

    def note(self, task: str, text: str) -> None:
        if task in self._tasks:
            self._tasks[task].note = text

    def finish(self, task: str) -> None:
        """Writes the last line of a task that had one, or was longer than nothing."""
        if task in self._tasks:
            one = self._tasks.pop(task)
            now = self._clock()
            done = one.done - one.skipped if one.done else one.total
            if done and (one.said or now >= one.started + FIRST_SECONDS):
                took = _duration(now - one.started)
                self._write(f"{task}: {_amount(done, one.unit)} in {took}{_after(one.note)}")

    def _say_if_due(self, task: str, seconds: float) -> None:
        one, now = self._tasks[task], self._clock()
        if now < max(one.since + seconds, one.started + FIRST_SECONDS) or one.done >= one.total:
            return
        one.said, one.since = True, now
        took = now - one.started
        done = one.done - one.skipped
        per_unit = (one.moved - one.started) / done if done else 0.0
        left = max(per_unit * (one.total - one.done) - (now - one.moved), 0.0)
        guess = f", about {_duration(left)} left" if per_unit else ""
        share = f"{100 * one.done // one.total} % of {_amount(one.total, one.unit)}"
        self._write(f"{task}: {share} in {_duration(took)}{guess}{_after(one.note)}")


def skip(progress: Progress, task: str, amount: int) -> None:
    """Tells that so much of a task was done before it started, which says nothing of how long the rest takes."""
    getattr(progress, "skip", progress.advance)(task, amount)


def shown(progress: Progress | bool | None) -> Progress:
    """Returns what ``progress`` means: itself; for True whatever suits standard error; else silence."""
    if progress is None or progress is False:
        return SilentProgress()
    if progress is not True:
        if lacking := [name for name in _RECEIVES if not callable(getattr(progress, name, None))]:
            raise ArgumentError(
                f"progress {progress!r} has no {', '.join(lacking)}: give True, False, or an object that has them "
                "(outcrop.runtime.progress.Progress)"
            )
        return progress
    if os.environ.get("OUTCROP_PROGRESS") == "0":
        return SilentProgress()
    if _bars_can_be_drawn():
        from outcrop.runtime.bars import Bars

        return Bars()
    return LineProgress()


def _bars_can_be_drawn() -> bool:
    """Tells whether standard error is a terminal, or a notebook that has what rich draws with there."""
    if sys.stderr.isatty():
        return True
    return "ipykernel" in sys.modules and importlib.util.find_spec("ipywidgets") is not None


def shows_progress(function: Callable[P, R]) -> Callable[P, R]:
    """Hands ``function`` a receiver of progress in place of ``progress=True`` or ``False``, and ends its display."""
    default = inspect.signature(function).parameters["progress"].default

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given: Any = kwargs.get("progress", default)
        with showing(given) as progress:
            kwargs["progress"] = progress
            return function(*args, **kwargs)

    return call


@contextmanager
def showing(given: Progress | bool | None) -> Iterator[Progress]:
    """Gives the receiver that ``given`` means, and ends its display unless it is the caller's own."""
    progress = shown(given)
    try:
        yield progress
    finally:
        if progress is not given and isinstance(progress, ClosableProgress):
            progress.close()


def _to_standard_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _amount(count: int, unit: str) -> str:
    return format_bytes(count) if unit == "bytes" else f"{count:,} {unit}"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {whole % 60:02d} s"


def _after(note: str) -> str:
    return f"; {note}" if note else ""
