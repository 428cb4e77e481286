"""What a test must not leave behind: threads, file descriptors, environment variables.

``Snapshot.take()`` before, ``snapshot.leaks()`` after. Threads are counted as the kernel sees them
(/proc/self/task), so that C++ workers count too. What is still ending gets a grace period; garbage is collected only
when something looks leaked, because a collection costs more than most tests.

Pools that libraries start on first use and keep for ever are no leak of the test that happened to be first:
``warm_pools`` starts those of torch and Arrow beforehand, and a test that loads a new compiled module (SciPy brings
its own BLAS threads) is only checked for Python threads.
"""

from __future__ import annotations

import gc
import io
import os
import sys
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

GRACE_SECONDS = float(os.environ.get("OUTCROP_LEAK_GRACE_SECONDS", "30"))
KINDS = ("thread", "fd", "env")
# Kernel workers of a living io_uring, and helpers that libraries keep: they come and go on their own.
_FOREIGN_THREADS = ("iou-wrk", "jemalloc_bg", "cuda", "pt_autograd", "cublas")
_FOREIGN_FILES = ("/dev/nvidia", "/proc/driver/nvidia")
# The second is set by torch's compiler when it is loaded, which torch.optim does at its first use.
_CHANGING_VARIABLES = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"}

Thread = tuple[int, str]  # kernel id, start time: ids are used again, ids with start times are not


@dataclass(frozen=True)
class Snapshot:
    threads: frozenset[Thread]
    python_threads: frozenset[int | None]
    files: frozenset[tuple[int, str]]
    variables: dict[str, str]
    extensions: frozenset[str]

    @classmethod
    def take(cls) -> Snapshot:
        return cls(
            frozenset(_threads()),
            frozenset(t.native_id for t in threading.enumerate()),
            frozenset(_files()),
            _variables(),
            _extensions(),
        )

    def leaks(self, grace_seconds: float = GRACE_SECONDS, excused: Collection[str] = ()) -> dict[str, str]:
        """Kind -> description of what is there now and was not then; waits for what is about to end.

        Args:
            excused: Kinds that do not count.
        """
        found = self._differences(excused)
        if found:
            gc.collect()
            deadline = time.monotonic() + (grace_seconds if found.keys() - {"env"} else 0)
            pause = 0.005
            while (found := self._differences(excused)) and time.monotonic() < deadline:
                time.sleep(pause)
                pause = min(2 * pause, 0.25)
                gc.collect()  # what the collection before finalized may have held other garbage
        return found

    def restore_variables(self) -> None:
        """Puts the environment back, so that one test's leak does not fail the next."""
        for name in _variables().keys() - self.variables.keys():
            del os.environ[name]
        os.environ.update(self.variables)

    def _differences(self, excused: Collection[str]) -> dict[str, str]:
        found = {"thread": self._new_threads(), "fd": self._new_files(), "env": self._changed_variables()}
        return {kind: ", ".join(things) for kind, things in found.items() if things and kind not in excused}

    def _new_threads(self) -> list[str]:
        python = {
            t.native_id: t.name for t in threading.enumerate() if t.native_id not in self.python_threads
        }
        things = [f"Python thread {name!r}" for name in python.values()]
        if not _extensions() - self.extensions:
            new = {thread: name for thread, name in _threads().items() if thread not in self.threads}
            things += [
                f"native thread {name!r} ({tid})" for (tid, _), name in new.items() if tid not in python
            ]
        return things

    def _new_files(self) -> list[str]:
        return [f"descriptor {fd} -> {target}" for fd, target in sorted(_files() - self.files)]

    def _changed_variables(self) -> list[str]:
        now, then = _variables(), self.variables
        return [name for name in sorted(now.keys() | then.keys()) if now.get(name) != then.get(name)]


class Pools:
    """Starts the thread pools of libraries that are loaded by now, each once in a session."""

    def __init__(self) -> None:
        self._warm: set[str] = set()

    def warm(self) -> None:
        for library, start in (("torch", _warm_torch), ("pyarrow", _warm_arrow)):
            if library in sys.modules and library not in self._warm:
                self._warm.add(library)
                start()
        _warm_blas()


def _warm_blas() -> None:
    """OpenBLAS ends its threads when the process forks, and starts them again at the next large product."""
    square = np.ones((128, 128))
    np.dot(square, square)
    if blas := sys.modules.get("scipy.linalg.blas"):
        blas.dgemm(1.0, square, square)


def _warm_torch() -> None:
    import torch

    weight = torch.ones(1 << 20, requires_grad=True)  # large enough for every thread of the OpenMP team
    (weight * 2).exp().sum().backward()
    torch.mm(torch.ones(512, 512), torch.ones(512, 512))
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda").cpu()


def _warm_arrow() -> None:
    import pyarrow as pa
    import pyarrow.csv

    # Arrow adds threads as work queues up: only a pool of one is complete after one task.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    pyarrow.csv.read_csv(io.BytesIO(b"a,b\n" + b"1,2\n" * 1000))


def _threads() -> dict[Thread, str]:
    found = {}
    for tid in os.listdir("/proc/self/task"):
        try:
            stat = Path(f"/proc/self/task/{tid}/stat").read_text()
        except OSError:  # ended in between
            continue
        name = stat[stat.index("(") + 1 : stat.rindex(")")]
        if not name.startswith(_FOREIGN_THREADS):
            start_time = stat[stat.rindex(")") + 2 :].split()[19]
            found[int(tid), start_time] = name
    return found


def _files() -> set[tuple[int, str]]:
    found = set()
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    kept = getattr(tracker, "_fd", None)  # started once by multiprocessing, kept to the end
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # the descriptor of the listing itself
            continue
        if not target.startswith(_FOREIGN_FILES) and int(fd) != kept:
            found.add((int(fd), target))
    return found


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _CHANGING_VARIABLES}


def _extensions() -> frozenset[str]:
    """Compiled modules of others that are loaded."""
    return _extensions_among(len(sys.modules))


@lru_cache(maxsize=1)
def _extensions_among(count: int) -> frozenset[str]:
    """They are looked for again where the number of modules, ``count``, is another."""
    return frozenset(
        name
        for name, module in list(sys.modules.items())
        if not name.startswith("outcrop") and str(getattr(module, "__file__", "") or "").endswith(".so")
    )
