"""What a run leaves for a report: a bounded sample of its spans, exact time per stage, memory and I/O over time.

A :class:`Recorder` listens to a runtime's trace and progress. It keeps every span of the beginning and a ring of the
latest ones, sums the time of every stage for every epoch, and looks at budget, resident memory and I/O counters when
something happens, at most every so often; no thread of its own. Once the samples are many, every second one goes and
the distance doubles: what it holds is bounded however long the run is.

Cost: about 2 microseconds per span and 20 per sample.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outcrop.runtime.progress import Progress, skip
from outcrop.runtime.runtime import Runtime

FIRST_SPANS, LAST_SPANS = 2000, 3000
MAX_SAMPLES, SAMPLE_SECONDS = 400, 0.05
MAX_EPOCHS = 1000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_EPOCH, _VALIDATION, _RECORD = "train.epoch", "train.validate", "train.record"


class Recorder:
    """Watches ``runtime`` within :meth:`watching`; :meth:`as_dict` is what it saw, as plain JSON."""

    def __init__(self, runtime: Runtime):
        self._runtime = runtime
        self._lock = threading.Lock()
        self.origin_ns = time.monotonic_ns()
        self._first: list[dict[str, Any]] = []
        self._last: deque[dict[str, Any]] = deque(maxlen=LAST_SPANS)
        self._spans = 0
        self._busy_ns: Counter[str] = Counter()  # of the pass that is going on
        self._busy: dict[str, float] = {}  # of the epoch just ended
        self._epochs: list[dict[str, Any]] = []
        self._samples: list[tuple[int, dict[str, int], int, int, int]] = []
        self._interval_ns = int(SAMPLE_SECONDS * 1e9)
        self._next_ns = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        progress = self._runtime.progress
        self._runtime.progress = _ListeningProgress(progress, self._tick)
        self._tick()
        try:
            with self._runtime.trace.listening(self._hear):
                yield
        finally:
            self._runtime.progress = progress
            self._tick(now=True)

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """Returns the epochs' records, each with ``stage_seconds``: how long every stage worked in it, exactly."""
        return self._epochs

    def as_dict(self) -> dict[str, Any]:
        """Returns ``spans`` and ``samples`` as columns: times in microseconds and milliseconds since the start."""
        with self._lock:
            spans = [*self._first, *self._last]
            names = sorted({span["name"] for span in spans})
            splits = sorted({span.get("split", "") for span in spans})
            return {
                "spans": {
                    "names": names,
                    "splits": splits,
                    "seen": self._spans,
                    "name": [names.index(span["name"]) for span in spans],
                    "split": [splits.index(span.get("split", "")) for span in spans],
                    "epoch": [span.get("epoch", -1) for span in spans],
                    "batch": [span.get("batch", -1) for span in spans],
                    "start_us": [(span["start_ns"] - self.origin_ns) // 1000 for span in spans],
                    "end_us": [(span["end_ns"] - self.origin_ns) // 1000 for span in spans],
                },
                "samples": self._columns(),
            }

    def _columns(self) -> dict[str, Any]:
        tags = sorted({tag for _, held, *_ in self._samples for tag in held})
        return {
            "t_ms": [(t - self.origin_ns) // 1_000_000 for t, *_ in self._samples],
            "bytes_by_tag": {tag: [held.get(tag, 0) for _, held, *_ in self._samples] for tag in tags},
            "process_bytes": [resident for _, _, resident, *_ in self._samples],
            "read_bytes": [read for *_, read, _ in self._samples],
            "written_bytes": [written for *_, written in self._samples],
        }

    def _hear(self, record: dict[str, Any]) -> None:
        name = record["name"]
        with self._lock:
            if name == _RECORD:
                self._add_epoch(record)
            elif "start_ns" in record:
                self._add_span(name, record)
        self._tick(now=name in (_EPOCH, _VALIDATION))

    def _add_span(self, name: str, record: dict[str, Any]) -> None:
        self._spans += 1
        (self._first if len(self._first) < FIRST_SPANS else self._last).append(record)
        if name == _EPOCH:
            self._busy = {stage: ns / 1e9 for stage, ns in self._busy_ns.items()}
        if name in (_EPOCH, _VALIDATION):
            self._busy_ns.clear()
        else:
            self._busy_ns[name] += record["end_ns"] - record["start_ns"]

    def _add_epoch(self, record: dict[str, Any]) -> None:
        kept = {key: value for key, value in record.items() if key not in ("name", "thread")}
        self._epochs.append({**kept, "stage_seconds": self._busy})
        self._busy = {}

    def _tick(self, now: bool = False) -> None:
        at = time.monotonic_ns()
        if at < self._next_ns and not now:
            return
        with self._lock:
            self._next_ns = at + self._interval_ns
            held = {tag: usage.now_bytes for tag, usage in self._runtime.budget.by_tag.items()}
            counters = self._runtime.io.counters
            self._samples.append((at, held, _resident_bytes(), counters.read_bytes, counters.write_bytes))
            if len(self._samples) > MAX_SAMPLES:
                del self._samples[1:-1:2]
                self._interval_ns *= 2


class _ListeningProgress:
    """Passes everything on to a Progress, and ticks."""

    def __init__(self, listener: Progress, tick: Any):
        self._listener, self._tick = listener, tick

    def start(self, task: str, total: int, unit: str) -> None:
        self._tick()
        self._listener.start(task, total, unit)

    def advance(self, task: str, amount: int) -> None:
        self._tick()
        self._listener.advance(task, amount)

    def skip(self, task: str, amount: int) -> None:
        skip(self._listener, task, amount)

    def note(self, task: str, text: str) -> None:
        self._listener.note(task, text)

    def finish(self, task: str) -> None:
        self._tick()
        self._listener.finish(task)


def thinned(records: list[Any], most: int = MAX_EPOCHS) -> list[Any]:
    """Returns at most ``most`` of ``records``, evenly spaced, first and last among them."""
    if len(records) <= most:
        return records
    return [records[i * (len(records) - 1) // (most - 1)] for i in range(most)]


def _resident_bytes() -> int:
    """Counts the resident bytes of this process; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
