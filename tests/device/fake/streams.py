"""Streams and fences of the fake GPU: work waits in queues, and a schedule says when what is ready runs.

No order holds between streams but that of fences, the default stream included, as between torch's own streams. Work
runs on the thread that happens to call in, one item at a time.
"""

from __future__ import annotations

import os
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

MOST_QUEUED = 1024  # of a stream: CUDA's launches wait, too, when about so many are pending


class GpuFault(RuntimeError):
    """Work did what ends a CUDA context; every later call fails with it."""


@dataclass(frozen=True)
class Span:
    """Memory that work touches."""

    address: int
    num_bytes: int


@dataclass
class Work:
    """Holds addresses, nothing that keeps memory alive.

    Attributes:
        note: Of the allocator, nothing that a GPU does: it takes effect with the work before it.
    """

    name: str
    run: Callable[[], object]
    spans: tuple[Span, ...] = ()
    after: Fence | None = None
    note: bool = False


class Stream:
    """Compared, and hashed, by identity."""

    def __init__(self, number: int, *, low_priority: bool = False):
        self.number, self.low_priority = number, low_priority
        self.queue: deque[Work] = deque()
        self.given = self.done = 0
        self.last = 0  # item that is no note

    def __repr__(self) -> str:
        return f"Stream({self.number}, {self.done} of {self.given} done)"


class Fence:
    """Passed when its stream has done ``number`` items."""

    def __init__(self, streams: Streams, stream: Stream):
        self.streams, self.stream, self.number = streams, stream, stream.last

    @property
    def passed(self) -> bool:
        return self.stream.done >= self.number

    def query(self) -> bool:
        """Polling ends: each look that finds work left lets one item of it run, after the answer."""
        with self.streams.called():
            passed = self.passed
            if not passed:
                self.streams.advance(self.stream, self.stream.done + 1)
            return passed

    def synchronize(self) -> None:
        with self.streams.called():
            self.streams.host_wait("Fence.synchronize", self.stream, self.number)


class Streams:
    """All queues of the device.

    Attributes:
        waits: What the host waited for the device in, call by call.
        error: Of work that failed, for good.
        used: Numbers of streams that were given work.
    """

    def __init__(self, schedule: Schedule):
        self.schedule = schedule
        self.lock = threading.RLock()
        self.default = Stream(0)
        self.waits: list[str] = []
        self.error: str | None = None
        self.used: set[int] = set()
        self._numbers = count(1)
        self._pending: dict[Stream, None] = {}
        self._current = threading.local()
        self._running = False
        self._process = os.getpid()

    @contextmanager
    def called(self) -> Iterator[None]:
        """One call of one thread at a time; raises what earlier work met, before it and after it."""
        with self.lock:
            self.check()
            yield
            self.check()

    def check(self) -> None:
        if self.error is not None:
            raise GpuFault(f"CUDA error: {self.error}")

    def new(self, *, low_priority: bool = False) -> Stream:
        return Stream(next(self._numbers), low_priority=low_priority)

    @property
    def current(self) -> Stream:
        """That of the calling thread."""
        return getattr(self._current, "stream", self.default)

    @contextmanager
    def on(self, stream: Stream) -> Iterator[Stream]:
        before, self._current.stream = self.current, stream
        try:
            yield stream
        finally:
            self._current.stream = before

    def give(self, stream: Stream, work: Work) -> None:
        """Queues ``work``; the schedule lets run what it wants, now that somebody has called."""
        if os.getpid() != self._process:  # a forked child has no GPU
            return
        with self.lock:
            stream.queue.append(work)
            stream.given += 1
            if not work.note:
                stream.last = stream.given
                self.used.add(stream.number)
            self._pending[stream] = None
            if not self._running:
                self._take_notes(stream)
            if len(stream.queue) > MOST_QUEUED:
                self.advance(stream, stream.done + 1)
            if not self._running and not work.note:  # when garbage is collected does not change what is drawn
                self.schedule.called(self)

    def host_wait(self, name: str, stream: Stream, number: int | None = None) -> None:
        """The calling thread waits for what ``stream`` was given, or the first ``number`` items of it."""
        with self.lock:
            self.waits.append(name)
            self.advance(stream, stream.given if number is None else number)

    def advance(self, stream: Stream, number: int) -> None:
        """Runs what must be done before ``stream`` has done ``number`` items, in the order that fences ask for."""
        todo = [(stream, number)]
        while todo and not self._running:  # a finalizer, in the middle of work, waits for nothing
            stream, number = todo[-1]
            if stream.done >= number:
                todo.pop()
                continue
            after = stream.queue[0].after
            if after is not None and not after.passed:
                todo.append((after.stream, after.number))
            else:
                self._step(stream)

    def ready(self) -> list[Stream]:
        """Streams whose first item, other than notes, waits for no fence."""
        for stream in list(self._pending):
            self._take_notes(stream)  # of finalizers that ran in the middle of work
        return [s for s in self._pending if (after := s.queue[0].after) is None or after.passed]

    def step(self, stream: Stream) -> None:
        if not self._running:
            self._step(stream)

    def drain(self) -> None:
        with self.lock:
            for stream in list(self._pending):
                self.advance(stream, stream.given)

    def pending_on(self, span: Span) -> Work | None:
        """Queued work that touches ``span``."""
        with self.lock:
            for stream in self._pending:
                for work in stream.queue:
                    if any(overlap(span, other) for other in work.spans):
                        return work
        return None

    def _take_notes(self, stream: Stream) -> None:
        while stream.queue and stream.queue[0].note:
            self._run_first(stream)

    def _step(self, stream: Stream) -> None:
        self._run_first(stream)
        self._take_notes(stream)

    def _run_first(self, stream: Stream) -> None:
        work = stream.queue.popleft()
        if not stream.queue:
            del self._pending[stream]
        self._running = True
        try:
            if self.error is None or work.note:
                work.run()
        except Exception as problem:
            self.error = f"{work.name} on stream {stream.number}: {problem}"
        finally:
            self._running = False
            stream.done += 1


def overlap(a: Span, b: Span) -> bool:
    return a.address < b.address + b.num_bytes and b.address < a.address + a.num_bytes


class Schedule:
    """When what is ready runs. This one: not before the host waits for it (``latest``)."""

    name = "latest"

    def called(self, streams: Streams) -> None:
        """Somebody has called in, and has the lock."""


class Eager(Schedule):
    """At once."""

    name = "eager"

    def called(self, streams: Streams) -> None:
        streams.drain()


class Seeded(Schedule):
    """At each call some items of random streams: the same ones for the same seed and calls of one thread."""

    def __init__(self, seed: int, salt: str = ""):
        self.name = f"seed:{seed}"
        self._random = random.Random(f"{seed} {salt}")

    def called(self, streams: Streams) -> None:
        if self._random.random() < 0.5:
            return
        for _ in range(self._random.randint(1, 8)):
            ready = streams.ready()
            if not ready:
                return
            streams.step(self._random.choice(ready))


def schedule(name: str, salt: str = "") -> Schedule:
    """That of ``latest``, ``eager`` or ``seed:N``.

    Args:
        salt: A seed gives another order for each.
    """
    if name.startswith("seed:"):
        return Seeded(int(name.removeprefix("seed:")), salt)
    return {"latest": Schedule, "eager": Eager}[name]()
