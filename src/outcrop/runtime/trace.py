"""Spans and counters as JSON lines, and the same as a Chrome/Perfetto trace.

A ``Trace`` without a path and without listeners records nothing and costs a method call. Times are nanoseconds of the
monotonic clock. Listeners are called in the thread of the event and must not raise.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from outcrop.errors import naming_files

Listener = Callable[[dict[str, Any]], None]


class Trace:
    """Writes one JSON object per line: ``{"name", "start_ns", "end_ns", "thread", ...fields}``."""

    def __init__(self, path: str | Path | None = None):
        self._lock = threading.Lock()
        self._file: TextIO | None = None
        if path:
            with naming_files(Path(path)):
                self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 (close() closes it)
        self._listeners: tuple[Listener, ...] = ()

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Has ``listener`` given every event too within the block."""
        with self._lock:
            self._listeners = (*self._listeners, listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners = tuple(one for one in self._listeners if one is not listener)

    @contextmanager
    def span(self, name: str, **fields: Any) -> Iterator[None]:
        """Records how long the block took, also when it raised."""
        start = time.monotonic_ns()
        try:
            yield
        finally:
            self.event(name, start_ns=start, end_ns=time.monotonic_ns(), **fields)

    def event(self, name: str, **fields: Any) -> None:
        if self._file is None and not self._listeners:
            return
        record = {"name": name, "thread": threading.current_thread().name, **fields}
        for listener in self._listeners:
            listener(record)
        if self._file is None:
            return
        line = json.dumps(record)
        with self._lock:
            if self._file is not None:
                self._file.write(line + "\n")

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def to_perfetto(jsonl: Path, out: Path) -> None:
    """Rewrites a trace as the Chrome trace-event format, which ui.perfetto.dev opens."""
    events = []
    threads: dict[str, int] = {}
    with jsonl.open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            if "start_ns" not in record:
                continue
            start, end = record.pop("start_ns"), record.pop("end_ns")
            name, thread = record.pop("name"), record.pop("thread")
            tid = threads.setdefault(thread, len(threads) + 1)
            events.append(
                {
                    "name": name,
                    "ph": "X",
                    "ts": start / 1e3,
                    "dur": (end - start) / 1e3,
                    "pid": 1,
                    "tid": tid,
                    "args": record,
                }
            )
    for thread, tid in threads.items():
        events.append({"name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": {"name": thread}})
    out.write_text(json.dumps({"traceEvents": events}))
