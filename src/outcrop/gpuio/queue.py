"""A queue pair with its two ends: the thread that serves it from a file, and whoever submits and completes.

Commands and completions are counted here, so that all places in the rings are known ahead (kernels/io_queue.h). What
does not fit the rings waits, and is submitted as completions come: the rings stay full until the end.

One waiting thread at a time takes completions, without the lock: of whichever reads they are, until some reads have all
of theirs. The others sleep until theirs are there or it is their turn to take. Submitting goes on meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
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
_SENSELESS = 2048  # status of a completion that is of no command
_STATUSES = {
    0x001: "command unknown",
    0x002: "command makes no sense",
    0x00B: "namespace unknown",
    0x080: "beyond the end of the file",
    0x280: "cannot be written",
    0x281: "unreadable",
}


@dataclass(frozen=True)
class RingFile:
    """Rows of a file that is open in the engine.

    Attributes:
        file: Its number there.
        stride_bytes: From the beginning of a row to that of the next.
        row_bytes: Of a row.
        keeping: What keeps it open.
    """

    path: Any
    file: Any
    num_rows: int
    stride_bytes: int
    row_bytes: int
    keeping: Any = None

    @staticmethod
    def of(array: DiskArray) -> RingFile:
        """The rows of ``array``."""
        return RingFile(
            array.path, array.file, array.num_rows, array.spec.stride_bytes, array.row_bytes, array
        )


@dataclass(eq=False)
class Reads:
    """Rows that were asked for together, or given to be written.

    Attributes:
        write: Whether they are written.
        commands: In all.
        given: Of these, submitted.
        ended: Of these, completed, whatever with.
        group: Its number for kernels, once some are submitted.
        failed: How many ended with each status that is not 0.
        results: uint32 [commands], what the controller says of each; None where it is not asked.
        error: Why they are not all there, when they are ``done``.
    """

    wanted: int
    places: int
    place: Place
    kept: Any
    commands: int
    write: bool = False
    given: int = 0
    ended: int = 0
    group: int = -1
    failed: Counter[int] = field(default_factory=Counter)
    results: np.ndarray | None = None
    done: bool = False
    error: str = ""
    arriving: threading.Lock = field(default_factory=threading.Lock)


class RowQueue:
    """Rows of ``file`` through rings; safe to use from several threads.

    Args:
        checksums: Of each command the CRC-32C of what it moved is worked out, for :meth:`checksum`.
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
        file: RingFile,
        runtime: Runtime,
        device: str,
        memory_bytes: int,
        deadline_seconds: float,
        faults: Any,
        *,
        checksums: bool = False,
    ):
        self._file, self._deadline, self._checksums = file, deadline_seconds, checksums
        _check_file(file, runtime)
        stride, row = file.stride_bytes, file.row_bytes
        self._rows = [0, stride, row]
        self._piece_bytes = _core.piece_bytes(0, stride)
        self._pieces = -(-row // self._piece_bytes)
        layout = _core.QueueLayout.within(row, memory_bytes, _MAX_IDS)
        memory = runtime.budget.empty(_TAG, layout.bytes)
        chosen = resolve(device)
        gpu = gpu_of(chosen)
        self._gpu = None if gpu is None else (chosen.type, chosen.index or 0)
        by: Submitter = Twin(memory, layout) if gpu is None else Kernels(gpu, chosen, memory, layout)
        self._by, self._ids, start = by, layout.ids, memory.ctypes.data
        self._ended, self._bus = start + layout.ended, start + layout.staging
        self._end = memory[layout.ended :][:4].view(np.uint32)
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
            by.progress,
        ]
        self._controller: Any = _core.RingController(runtime.io, file.file, layout, memory, faults, checksums)
        self._process = os.getpid()
        self._submitted = self._completed = 0  # commands
        self._told = 0  # of those completed, what the doorbell was told of
        self._groups: dict[int, Reads] = {}  # under way, by number
        self._free_groups = list(range(layout.ids + 1))
        self._waiting: deque[Reads] = deque()  # with commands that were not submitted
        self._changed = threading.Condition()
        self._taking = False  # some thread takes completions
        self._lost = ""
        self._what, self._again = (
            ("reads and writes", "train again, or with io engine")
            if checksums
            else ("reads", "open the rows again, or read them with io engine")
        )

    def can_fill(self, out: Any) -> bool:
        """Whether ``out`` is contiguous, of bytes, and where they can be put."""
        if isinstance(out, np.ndarray):
            return out.dtype == np.uint8 and out.flags.c_contiguous and out.flags.writeable
        there = (out.device.type, out.device.index) == self._gpu
        return there and str(out.dtype) == "torch.uint8" and out.is_contiguous()

    def fills_in_place(self, out: Any) -> bool:
        """Whether rows of ``out`` that are not asked for stay as they are."""
        return self._by.place(out).direct

    def catch_up(self, out: Any) -> None:
        """What is submitted from now on comes after what the current stream does to ``out``, a tensor of the GPU."""
        if not isinstance(out, np.ndarray):
            self._by.catch_up()

    def submit(
        self, ids: np.ndarray, out: Any, places: np.ndarray | None = None, *, write: bool = False
    ) -> Reads:
        """Begins to read rows ``ids``, int64, to ``out``, uint8, flat, on the CPU or on the GPU.

        Args:
            places: int32, which row of ``out`` each is; None: they are in order.
            write: Write them from ``out`` instead. Rows are whole pages then.

        Raises:
            IoError: The queue was lost.
        """
        with self._changed:
            if self._lost:
                raise IoError(self._lost)
            by = self._by
        if self._process != os.getpid():
            raise IoError(f"{self._file.path}: its rings are served in the process that was forked")
        place = by.place(out)
        if (write or places is not None) and not place.direct:
            raise ArgumentError("rows are put to places of, and written from, pinned memory or the device's")
        address, kept = by.given(np.ascontiguousarray(ids, np.int64))
        at, kept_too = (0, None) if places is None else by.given(np.ascontiguousarray(places, np.int32))
        commands = len(ids) * self._pieces
        reads = Reads(address, at, place, (kept, kept_too, out), commands, write, done=not len(ids))
        if self._checksums:
            reads.results = np.zeros(commands, np.uint32)
        with self._changed:
            if self._lost:
                raise IoError(self._lost)
            if len(ids):
                self._waiting.append(reads)
                self._fill()
        return reads

    def wait(self, reads: Reads) -> None:
        """Until ``reads`` are done: ``error`` says whether they are there."""
        end = time.monotonic() + self._deadline
        with self._changed:
            while not reads.done:
                if self._taking:
                    self._changed.wait()
                    continue
                self._taking = True
                try:
                    self._take(max(end - time.monotonic(), 0))
                finally:
                    self._taking = False
                    self._changed.notify_all()
        with reads.arriving:
            if not reads.error:
                reads.place.arrived()

    @property
    def commands(self) -> tuple[int, int]:
        """How many were submitted, and how many of these were completed, in all."""
        with self._changed:
            return self._submitted, self._completed

    def close(self) -> None:
        """Ends the thread. Reads under way are never completed."""
        with self._changed:
            self._lost = self._lost or f"{self._file.path}: these rows were closed"
            self._end[0] = 1  # who takes completions gives up
            while self._taking:
                self._changed.wait()
            self._by.close()
            self._controller.close()
            self._give_up()
            del self._controller, self._by, self._end
            self._changed.notify_all()

    def checksum(self, reads: Reads) -> int:
        """The CRC-32C of a row that was moved, all of ``reads``."""
        assert reads.results is not None
        assert reads.commands == self._pieces
        return _core.joined_crc(reads.results, self._piece_bytes, self._file.row_bytes)

    def _fill(self) -> None:
        """Submits as much as there is room for."""
        while self._waiting and (room := self._ids - (self._submitted - self._completed)) > 0:
            reads = self._waiting[0]
            if first := reads.group < 0:
                reads.group = self._free_groups.pop()
                self._groups[reads.group] = reads
            count = min(room, reads.commands - reads.given)
            where = [reads.wanted, reads.place.address, self._rows[2], reads.given, count]
            counters = [self._submitted, self._completed, self._told, reads.places]
            group = [int(reads.write), reads.group, reads.commands if first else 0]
            self._by.submit([*self._queue, self._bus, *self._rows, *where, *counters, *group])
            self._told = self._completed
            self._submitted += count
            reads.given += count
            if reads.given == reads.commands:
                self._waiting.popleft()

    def _take(self, seconds: float) -> None:
        """Takes completions until some reads have all of theirs, for so long at most. The lock is let go meanwhile."""
        most = self._submitted - self._completed
        if self._waiting:  # some stay under way while more are submitted
            most = min(most, max(self._ids // 2, 1))
        arguments = [*self._queue, self._ended, most, self._completed, int(seconds * 1e9)]
        self._changed.release()
        try:
            outcomes, lost = self._by.complete(arguments, most)
        finally:
            self._changed.acquire()
        self._completed += len(outcomes)
        outcomes = outcomes[outcomes[:, 0] >> 16 < _SENSELESS]
        groups = outcomes[:, 0] & 0xFFFF
        for group in np.unique(groups):
            self._note(self._groups[int(group)], outcomes[groups == group])
        if lost:
            self._lost = self._lost or self._no_answer()
        if self._lost:
            self._give_up()
        else:
            self._fill()

    def _note(self, reads: Reads, outcomes: np.ndarray) -> None:
        """Commands of ``reads`` have ended; uint32 [n, 4], each an Outcome of kernels/io_queue.h."""
        reads.ended += len(outcomes)
        status = outcomes[:, 0] >> 16
        reads.failed.update(status[status > 0].tolist())
        if reads.results is not None:
            reads.results[outcomes[:, 1]] = outcomes[:, 2]
        if reads.ended == reads.commands:
            self._free_groups.append(reads.group)
            del self._groups[reads.group]
            reads.done, reads.error, reads.kept = True, self._failure(reads), None

    def _give_up(self) -> None:
        for reads in {*self._groups.values(), *self._waiting}:
            reads.done, reads.error, reads.kept = True, self._lost, None
        self._groups.clear()
        self._waiting.clear()

    def _no_answer(self) -> str:
        commands = sum(reads.commands for reads in {*self._groups.values(), *self._waiting})
        missing = commands - sum(reads.ended for reads in self._groups.values())
        return (
            f"{self._file.path}: {missing} of {commands} {self._what} through rings had no answer within "
            f"{self._deadline:g} s: "
            f"{self._controller.error or 'the disk hangs, or the thread that serves the rings is gone'}; "
            f"look at the disk, then {self._again}"
        )

    def _failure(self, reads: Reads) -> str:
        """What is wrong, in words; empty: nothing."""
        if not reads.failed:
            return ""
        why = self._controller.error
        kinds = ", ".join(
            f"{count} with status {s:#05x} ({_STATUSES.get(s, 'of the controller')})"
            for s, count in sorted(reads.failed.items())
        )
        return (
            f"{self._file.path}: of {reads.commands} {'writes' if reads.write else 'reads'} through rings there failed "
            f"{kinds}{': ' if why else ''}{why}; look at the disk, then {'write' if reads.write else 'read'} them again"
        )


def _check_file(file: RingFile, runtime: Runtime) -> None:
    size, stride, row = runtime.io.size_bytes(file.file), file.stride_bytes, file.row_bytes
    room = 0 if size < row or not row else (size - row) // stride + 1
    if row and file.num_rows > room:
        raise IoError(
            f"{file.path} of {size} bytes holds {room} rows, not {file.num_rows}: the file is truncated"
        )
