"""A queue pair with its two ends: the thread that serves it from a file, and whoever submits and completes.

Commands and completions are counted here, so that all places in the rings are known ahead (kernels/io_queue.h). What
does not fit the rings waits, and is submitted as completions come: the rings stay full until the end.
"""

from __future__ import annotations

import math
import os
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcrop import _core
from outcrop.device import gpu_of, resolve
from outcrop.errors import ArgumentError, IoError
from outcrop.gpuio.submitter import Kernels, Place, Submitter, Twin
from outcrop.runtime import Runtime
from outcrop.store.arrays import DiskArray

_TAG = "ring-staging"
_MAX_IDS = 1024  # commands under way: several times what keeps a disk busy
_WIDEST = 16  # bytes of a word
_STATUSES = {
    0x001: "command unknown",
    0x002: "command makes no sense",
    0x00B: "namespace unknown",
    0x080: "beyond the end of the file",
    0x281: "unreadable",
}


@dataclass
class Reads:
    """Rows that were asked for together.

    Attributes:
        commands: In all.
        given: Of these, submitted.
        word: Bytes of the widest access that suits their addresses.
        error: Why they are not all there, when they are ``done``.
    """

    wanted: int
    places: int
    place: Place
    kept: Any
    commands: int
    word: int
    given: int = 0
    done: bool = False
    error: str = ""


class RowQueue:
    """Rows of ``features`` through rings. One thread at a time.

    Args:
        device: Where kernels run; ``cpu``: their twin.
        memory_bytes: For rings and staging memory, held under the tag ``ring-staging``. A queue of one command is made
            where it is too little for that.
        deadline_seconds: Completions that take longer do not come.
        faults: For tests.

    Raises:
        IoError: The file is too small for its rows.
    """

    def __init__(
        self,
        features: DiskArray,
        runtime: Runtime,
        device: str,
        memory_bytes: int,
        deadline_seconds: float,
        faults: Any,
    ):
        self._features, self._deadline = features, deadline_seconds
        _check_file(features, runtime)
        stride, row = features.spec.stride_bytes, features.row_bytes
        self._rows = [0, stride, row]
        self._pieces = -(-row // _core.PIECE_BYTES)
        layout = _core.QueueLayout.within(row, memory_bytes, _MAX_IDS)
        memory = runtime.budget.empty(_TAG, layout.bytes)
        chosen = resolve(device)
        gpu = gpu_of(chosen)
        self._gpu = None if gpu is None else (chosen.type, chosen.index or 0)
        by: Submitter = Twin(memory, layout) if gpu is None else Kernels(gpu, chosen, memory, layout)
        self._by, self._ids, start = by, layout.ids, memory.ctypes.data
        self._ended, self._bus = start + layout.ended, start + layout.staging
        self._queue = [
            start + layout.commands,
            start + layout.completions,
            start + layout.command_doorbell,
            start + layout.completion_doorbell,
            layout.depth,
            by.free_ids,
            by.landings,
            layout.ids,
            start + layout.staging,
            layout.slot_bytes,
            by.counts,
        ]
        self._controller: Any = _core.RingController(runtime.io, features.file, layout, memory, faults)
        self._process = os.getpid()
        self._submitted = self._completed = 0  # commands
        self._told = 0  # of those completed, what the doorbell was told of
        self._under_way: list[Reads] = []
        self._waiting: deque[Reads] = deque()  # with commands that were not submitted
        self._lost = ""

    def can_fill(self, out: Any) -> bool:
        """Whether ``out`` is contiguous, of bytes, and where they can be put."""
        if isinstance(out, np.ndarray):
            return out.dtype == np.uint8 and out.flags.c_contiguous and out.flags.writeable
        there = (out.device.type, out.device.index) == self._gpu
        return there and str(out.dtype) == "torch.uint8" and out.is_contiguous()

    def fills_in_place(self, out: np.ndarray) -> bool:
        """Whether rows of ``out`` that are not asked for stay as they are."""
        return self._by.place(out).direct

    def submit(self, ids: np.ndarray, out: Any, places: np.ndarray | None = None) -> Reads:
        """Begins to read rows ``ids``, int64, to ``out``, uint8, flat, on the CPU or on the GPU.

        Args:
            places: int32, which row of ``out`` each is; None: they are in order.

        Raises:
            IoError: The queue was lost.
        """
        if self._lost:
            raise IoError(self._lost)
        if self._process != os.getpid():
            raise IoError(f"{self._features.path}: its rings are served in the process that was forked")
        place = self._by.place(out)
        if places is not None and not place.direct:
            raise ArgumentError("rows are put to places of pinned memory, or of the device's")
        address, kept = self._by.given(np.ascontiguousarray(ids, np.int64))
        at, kept_too = (0, None) if places is None else self._by.given(np.ascontiguousarray(places, np.int32))
        word = math.gcd(_WIDEST, place.address, *self._rows)
        reads = Reads(
            address, at, place, (kept, kept_too, out), len(ids) * self._pieces, word, done=not len(ids)
        )
        if len(ids):
            self._under_way.append(reads)
            self._waiting.append(reads)
            self._fill()
        return reads

    def finish(self) -> None:
        """Completes everything that was submitted so far; says of each :class:`Reads` whether it failed."""
        commands = sum(reads.commands for reads in self._under_way)
        while self._submitted > self._completed:
            self._complete()
            self._fill()
        error = self._failure(self._by.failures(), commands) if commands else ""
        for reads in self._under_way:
            if not error:
                reads.place.arrived()
            reads.done, reads.error, reads.kept = True, error, None
        self._under_way.clear()

    def close(self) -> None:
        """Ends the thread. Reads under way are never completed."""
        self._lost = f"{self._features.path}: these rows were closed"
        self._by.close()
        self._controller.close()
        for reads in self._under_way:
            reads.done, reads.error, reads.kept = True, self._lost, None
        del self._controller, self._by
        self._under_way.clear()
        self._waiting.clear()

    def _fill(self) -> None:
        while self._waiting and (room := self._ids - (self._submitted - self._completed)) > 0:
            reads = self._waiting[0]
            count = min(room, reads.commands - reads.given)
            row_bytes = self._rows[2]
            where = [reads.wanted, reads.place.address, row_bytes, reads.given, count]
            counters = [self._submitted, self._completed, self._told, reads.places]
            self._by.submit([*self._queue, self._bus, *self._rows, *where, *counters])
            self._told = self._completed
            self._submitted += count
            reads.given += count
            if reads.given == reads.commands:
                self._waiting.popleft()

    def _complete(self) -> None:
        count = self._submitted - self._completed
        if self._waiting:  # some stay under way while more are submitted
            count = min(count, max(self._ids // 2, 1))
        word = min(reads.word for reads in self._under_way)
        deadline_ns = int(self._deadline * 1e9)
        self._by.complete([*self._queue, self._ended, count, self._completed, deadline_ns], word, count)
        self._completed += count

    def _failure(self, failures: np.ndarray, commands: int) -> str:
        """What is wrong, in words; empty: nothing."""
        if not failures.any():
            return ""
        why, path = self._controller.error, self._features.path
        if failures[0]:
            self._lost = (
                f"{path}: {failures[0]} of {commands} reads through rings had no answer within "
                f"{self._deadline:g} s: {why or 'the disk hangs, or the thread that serves the rings is gone'}; "
                "look at the disk, then open the rows again, or read them with io engine"
            )
            return self._lost
        kinds = ", ".join(
            f"{failures[s]} with status {s:#05x} ({_STATUSES.get(int(s), 'of the controller')})"
            for s in np.flatnonzero(failures)
        )
        return (
            f"{path}: of {commands} reads through rings there failed {kinds}"
            f"{': ' if why else ''}{why}; look at the disk, then read them again"
        )


def _check_file(features: DiskArray, runtime: Runtime) -> None:
    size, stride, row = runtime.io.size_bytes(features.file), features.spec.stride_bytes, features.row_bytes
    room = 0 if size < row or not row else (size - row) // stride + 1
    if row and features.num_rows > room:
        raise IoError(
            f"{features.path} of {size} bytes holds {room} rows, not {features.num_rows}: the file is truncated"
        )
