"""One ``Runtime`` carries what every stage needs: budget, I/O engine, workers, trace, progress. No global state."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol

import outcrop._core as _core
from outcrop.config import IoConfig, Size, parse_size
from outcrop.errors import ArgumentError
from outcrop.runtime import system
from outcrop.runtime.group import Group
from outcrop.runtime.progress import Progress, shown
from outcrop.runtime.sharing import Sharers
from outcrop.runtime.trace import Trace

UNLIMITED = (1 << 64) - 1


class Rehearsal(Protocol):
    """Says what is known of mini-batches that are not drawn: a rehearsal finds out whether a budget would do.

    Memory is reserved as for the real thing; large arrays are not read, nothing is drawn, and no cache is filled.
    """

    @property
    def max_rows(self) -> tuple[int, ...]:
        """Counts the rows of each row file that a batch wants, at most."""
        ...

    @property
    def counted_rows(self) -> tuple[int, ...]:
        """Counts the same of those batches that mode ``online`` counts ahead."""
        ...

    def batch_bytes(self, paged: bool) -> int:
        """Counts the bytes that drawing one of them needs at the most; ``paged``: from a topology that is read by
        pages.
        """
        ...


class UncountedBatches(Rehearsal):
    """Stands for batches whose sizes a run has, and for work that has no batches."""

    @property
    def max_rows(self) -> tuple[int, ...]:
        return ()

    @property
    def counted_rows(self) -> tuple[int, ...]:
        return ()

    def batch_bytes(self, paged: bool) -> int:
        return 0


UNCOUNTED = UncountedBatches()


class Runtime:
    """Holds budget, I/O engine, workers and trace of one command or library call.

    Args:
        memory: Hard limit on what Outcrop itself holds (caches, buffers, topology, sorting), bytes or text such as
            ``"4GiB"``; None counts without a limit. The interpreter, torch and the model come on top.
        io: Options of the I/O engine. ``OUTCROP_IO_BACKEND`` in the environment overrides the backend;
            ``OUTCROP_IO_RATE`` (bytes a second) and ``OUTCROP_IO_REQUESTS`` make the disk as slow as that where the
            options set no limit, to see how a slower one would do.
        faults: Faults of the I/O engine, for tests.
        threads: Worker threads for sampling and gathers, the caller included; 0 = one per usable core.
        trace_path: JSONL file for spans and counters; None records nothing.
        progress: Receiver of progress; True: bars or lines on standard error, as suits it; None or False: silence.
        rehearsal: Only find out what fits ``memory``.
        measure_bytes: Only find out what an import needs that divides ``memory``: nothing is written, and up to
            this many bytes are granted, whatever ``memory`` says. The peak of the budget is the answer.
        sharing: The processes of this machine that hold caches and neighbour lists together; None: this one alone.

    Attributes:
        group: Processes that do the work together. This one alone, until whoever has made the runtime sets another.
    """

    def __init__(
        self,
        memory: Size | None = None,
        *,
        io: IoConfig | None = None,
        faults: _core.FaultPlan | None = None,
        threads: int = 0,
        trace_path: str | Path | None = None,
        progress: Progress | bool | None = None,
        rehearsal: Rehearsal | None = None,
        measure_bytes: int = 0,
        sharing: Sharers | None = None,
    ):
        limit = UNLIMITED if memory is None else parse_size(memory)
        self.measures = measure_bytes > 0
        self.budget = _core.Budget.create(
            limit, rehearsal=rehearsal is not None or self.measures, measure_bytes=measure_bytes
        )
        self.rehearsal, self.sharing, self.group = rehearsal, sharing, Group()
        self.device_peaks: dict[str, int] = {}  # bytes on a GPU by tag, of what was closed
        io = io or IoConfig()
        self.io = _core.BlockIo.create(_io_options(io, faults), self.budget)
        self.ring_deadline_seconds = io.ring_deadline_seconds
        self.workers = _core.WorkerPool(threads)
        self.trace = Trace(trace_path)
        self.progress = shown(progress)

    def note_device_peaks(self, peaks: dict[str, int]) -> None:
        """Keeps the largest of each tag."""
        for tag, peak in peaks.items():
            self.device_peaks[tag] = max(peak, self.device_peaks.get(tag, 0))

    @contextmanager
    def task(self, name: str, total: int, unit: str) -> Iterator[None]:
        """Shows the progress of what the block does; where it fails its bar stays as far as it came."""
        self.progress.start(name, total, unit)
        yield
        self.progress.finish(name)

    def close(self) -> None:
        """Ends the trace. Buffers and the engine go when nothing refers to them."""
        self.trace.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def _pace_of(name: str) -> int:
    """Returns the limit that variable ``name`` of the environment sets on every engine, for benchmarks; 0: none."""
    try:
        return parse_size(os.environ.get(name, 0))
    except ArgumentError as error:
        raise ArgumentError(f"variable {name} of the environment: {error}") from None


def _io_options(config: IoConfig, faults: _core.FaultPlan | None) -> _core.IoOptions:
    name = os.environ.get("OUTCROP_IO_BACKEND", config.backend)
    try:
        backend = getattr(_core.Backend, name)
    except AttributeError:
        raise ArgumentError(f"I/O backend {name!r} is unknown; known: automatic, uring, pread") from None
    options = _core.IoOptions()
    options.backend = backend
    options.depth = config.depth
    options.max_request_bytes = config.max_request_bytes
    options.direct = config.direct
    options.threads = config.threads
    options.rate_bytes_per_second = config.rate_bytes_per_second or _pace_of("OUTCROP_IO_RATE")
    options.requests_per_second = config.requests_per_second or _pace_of("OUTCROP_IO_REQUESTS")
    options.unwritten_bytes = max(system.available_memory() // 16, 4 << 20)
    if faults is not None:
        options.faults = faults
    return options
