"""An epoch whose batches lie in several runs: loaded from one session after another, of which one is open at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from outcrop.loading.session import Between, Loader, LoadSession, LoadStats
from outcrop.runtime.runtime import Runtime

if TYPE_CHECKING:
    from outcrop.store.minibatch import MiniBatch


class ConsecutiveSession:
    """Loads the training batches of one epoch as a session of one run does, from several.

    Args:
        stretches: The runs in order, each with its number and with the batches of the epoch that it holds.
        open_run: Opens the session of a run, given its number; closes the one before.
    """

    def __init__(
        self, stretches: Iterable[tuple[int, range]], open_run: Callable[[int], LoadSession], runtime: Runtime
    ):
        self._stretches, self._open, self._runtime = tuple(stretches), open_run, runtime

    def batches(
        self, split: str, epoch: int = 0, *, numbers: Sequence[int] | None = None
    ) -> ConsecutiveLoader:
        """Begins a pass over the epoch; runs with none of its batches are not opened.

        Args:
            numbers: Which batches of the epoch, ascending; None: all.
        """
        wanted: deque[tuple[int, Sequence[int]]] = deque()
        for number, held in self._stretches:
            own = range(len(held))
            if numbers is not None:
                own = [n - held.start for n in numbers if n in held]
            if len(own):
                wanted.append((number, own))
        return ConsecutiveLoader(
            wanted, self._open, lambda session, own: session.batches(split, epoch, numbers=own), self._runtime
        )


class ConsecutiveLoader(Iterator["MiniBatch"]):
    """Goes over the mini-batches of one epoch, from one run after another.

    A batch must be gone when the next is asked for: where that lies in the next run, the memory of this one is given
    back.

    Args:
        ahead: Runs that are still to be opened, each with its number and the batches that are wanted of it.
        open_run: Opens the session of a run, given its number.
        begin: Begins a pass over these batches of a run.

    Attributes:
        between: What opening runs took, and what was done to prepare them; no part of the epoch.
    """

    def __init__(
        self,
        ahead: deque[tuple[int, Sequence[int]]],
        open_run: Callable[[int], LoadSession],
        begin: Callable[[LoadSession, Sequence[int]], Loader],
        runtime: Runtime,
    ):
        self._ahead, self._open, self._begin, self._runtime = ahead, open_run, begin, runtime
        self._loader: Loader | None = None
        self._before, self.between = LoadStats(), Between()
        self._advance()

    @property
    def stats(self) -> LoadStats:
        """Counts what was delivered so far."""
        found = LoadStats()
        found.include(self._before)
        if self._loader is not None:
            found.include(self._loader.stats)
        return found

    def __next__(self) -> MiniBatch:
        while self._loader is not None:
            try:
                return next(self._loader)
            except StopIteration:
                self._advance()
        raise StopIteration

    def _advance(self) -> None:
        """Goes on to the next run, if there is one."""
        self.close()
        if not self._ahead:
            return
        number, batches = self._ahead.popleft()
        with self._counting():
            session = self._open(number)
        self._loader = self._begin(session, batches)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        started, before = time.perf_counter(), self._runtime.io.counters
        try:
            yield
        finally:
            after, found = self._runtime.io.counters, self.between
            found.seconds += time.perf_counter() - started
            found.bytes_read += after.read_bytes - before.read_bytes
            found.read_ops += after.read_ops - before.read_ops

    def close(self) -> None:
        loader, self._loader = self._loader, None
        if loader is not None:
            self._before.include(loader.stats)
            loader.close()
