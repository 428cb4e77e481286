"""Queue pairs with their two ends: the threads that serve them from files, and whoever submits and completes.

Rows are dealt to queue pairs by the files that they are in. Commands and completions are counted, so that all places in
the rings are known ahead (kernels/io_queue.h). What does not fit the rings waits, and is submitted as completions come:
the rings stay full until the end. Rows that were asked for together are a group, in whichever queues they are.

One waiting thread at a time takes completions, without the lock: of whichever reads they are, until some reads have all
of theirs. The others sleep until theirs are there or it is their turn to take. Submitting goes on meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

import outcrop._core as _core
from outcrop.device import gpu_of, resolve
from outcrop.device.launch import BLOCK_THREADS
from outcrop.errors import ArgumentError, IoError
from outcrop.rows.rings.files import RowFiles
from outcrop.rows.rings.pair import QueuePair
from outcrop.rows.rings.submitter import CpuSubmitter, Kernels, Place, Submitter, table_bytes
from outcrop.runtime.runtime import Runtime

_TAG = "ring-staging"
_MAX_IDS = 1024  # commands under way in a queue: several times what keeps a disk busy
_POLL_SECONDS = 1e-3  # between launches of a kernel that does not run
_SENSELESS = 2048  # status of a completion that is of no command
_STATUSES = {
    0x001: "command unknown",
    0x002: "command makes no sense",
    0x00B: "namespace unknown",
    0x080: "beyond the end of the file",
    0x280: "cannot be written",
    0x281: "unreadable",
}


@dataclass(eq=False)
class Reads:
    """Stands for rows that were asked for together, or given to be written.

    Attributes:
        wanted, places, spaces: Addresses of what :class:`outcrop.rows.rings.files.DealtRows` has; 0: none.
        write: Whether they are written.
        commands: How many there are in all.
        ended: How many of these were completed, whatever with.
        group: Its number for kernels, once some are submitted.
        failed: How many ended with each status that is not 0.
        results: uint32 [commands], what the controller says of each; None where it is not asked.
        error: Why they are not all there, when they are ``done``.
    """

    wanted: int
    places: int
    spaces: int
    place: Place
    kept: Any
    commands: int
    write: bool = False
    ended: int = 0
    group: int = -1
    failed: Counter[int] = field(default_factory=Counter)
    results: np.ndarray | None = None
    done: bool = False
    error: str = ""
    arriving: threading.Lock = field(default_factory=threading.Lock)


def _numbers(given: Any, dtype: type) -> Any:
    return np.ascontiguousarray(given, dtype) if isinstance(given, np.ndarray) else given


@dataclass(eq=False)
class QueueReads:
    """Commands ``next:stop`` of some reads, which wait for room in one queue."""

    reads: Reads
    next: int
    stop: int


class RowQueue:
    """Moves rows of ``files`` through rings; safe to use from several threads.

    Args:
        checksums: Whether the CRC-32C of what each command moved is worked out, for :meth:`checksum`.
        device: Where kernels run; ``cpu``: those of the CPU.
        memory_bytes: For rings and staging memory of all queues, held under the tag ``ring-staging``. Queues of one
            command are made where it is too little for that.
        deadline_seconds: A wait ends with an error when so long none of its rows came; None: what the runtime's
            ``IoConfig.ring_deadline_seconds`` says.
        faults: For tests.
        block_threads: Threads of each block that submits, one for each queue.

    Raises:
        IoError: A file is too small for its rows.
    """

    def __init__(
        self,
        files: RowFiles,
        runtime: Runtime,
        device: str,
        memory_bytes: int,
        deadline_seconds: float | None,
        faults: Any,
        *,
        checksums: bool = False,
        block_threads: int = BLOCK_THREADS,
    ):
        self._files, self._checksums = files, checksums
        self._deadline = runtime.ring_deadline_seconds if deadline_seconds is None else deadline_seconds
        for file in files.files:
            file.check(runtime)
        self._piece_bytes = _core.piece_bytes(0, files.stride_bytes)
        self._pieces = -(-files.row_bytes // self._piece_bytes)
        count, tables = files.num_queues, table_bytes(files.num_queues)
        layout = _core.QueueLayout.within(files.row_bytes, max(memory_bytes - tables, 0) // count, _MAX_IDS)
        memory = runtime.budget.empty(_TAG, count * layout.bytes + tables)
        chosen = resolve(device)
        gpu = gpu_of(chosen)
        self._gpu = None if gpu is None else (chosen.type, chosen.index or 0)
        self._by: Submitter = (
            CpuSubmitter(memory, layout, count)
            if gpu is None
            else Kernels(gpu, chosen, memory, layout, count, block_threads)
        )
        self._pairs: list[QueuePair] = []
        for number, (served, private) in enumerate(zip(files.of_queue, self._by.private, strict=True)):
            part = memory[number * layout.bytes :][: layout.bytes]
            numbers = [file.file for file in served]
            controller: Any = _core.RingController(runtime.io, numbers, layout, part, faults, checksums)
            self._pairs.append(QueuePair(part, layout, private, self._by.private[0], controller))
        self._process = os.getpid()
        self._groups: dict[int, Reads] = {}  # under way, by number
        self._free_groups = list(range(layout.ids + 1))
        self._changed = threading.Condition()
        self._taking = False  # some thread takes completions
        self._lost = ""
        self._what, self._again = (
            ("reads and writes", "train again, or with io engine")
            if checksums
            else ("reads", "open the rows again, or read them with io engine")
        )

    @property
    def takes_gpu_ids(self) -> bool:
        """Tells whether ids may be tensors of a GPU: it submits, and to one file, so that the host need not
        deal them.
        """
        return self._gpu is not None and len(self._files.files) == 1

    def can_fill(self, out: Any) -> bool:
        """Tells whether ``out`` is contiguous, of bytes, and where they can be put."""
        if isinstance(out, np.ndarray):
            return out.dtype == np.uint8 and out.flags.c_contiguous and out.flags.writeable
        there = (out.device.type, out.device.index) == self._gpu
        return there and str(out.dtype) == "torch.uint8" and out.is_contiguous()

    def fills_in_place(self, out: Any) -> bool:
        """Tells whether rows of ``out`` that are not asked for stay as they are."""
        return self._by.place(out).direct

    def catch_up(self, out: Any) -> None:
        """Has what is submitted from now on come after what the current stream does to ``out``, a tensor of the GPU."""
        if not isinstance(out, np.ndarray):
            self._by.catch_up()

    def submit(
        self, ids: np.ndarray, out: Any, places: np.ndarray | None = None, *, write: bool = False
    ) -> Reads:
        """Begins to read rows ``ids``, int64, to ``out``, uint8, flat, on the CPU or on the GPU.

        Args:
            ids: An array, or, with a GPU and a single file, a tensor of the GPU that is computed already; so is
                ``places``.
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
            raise IoError(f"{self._files.names}: its rings are served in the process that was forked")
        place = by.place(out)
        if (write or places is not None) and not place.direct:
            raise ArgumentError("rows are put to places of, and written from, pinned memory or the device's")
        dealt = self._files.deal(
            _numbers(ids, np.int64), None if places is None else _numbers(places, np.int32)
        )
        address, kept = by.given(dealt.rows)
        at, kept_places = (0, None) if dealt.places is None else by.given(dealt.places)
        spaces, kept_spaces = (0, None) if dealt.spaces is None else by.given(dealt.spaces)
        commands = len(ids) * self._pieces
        keeping = (kept, kept_places, kept_spaces, out)
        reads = Reads(address, at, spaces, place, keeping, commands, write, done=not len(ids))
        if self._checksums:
            reads.results = np.zeros(commands, np.uint32)
        with self._changed:
            if self._lost:
                raise IoError(self._lost)
            for pair, (begin, stop) in zip(self._pairs, pairwise(dealt.begins), strict=True):
                if stop > begin:
                    pair.waiting.append(QueueReads(reads, begin * self._pieces, stop * self._pieces))
            self._fill()
        return reads

    def wait(self, reads: Reads) -> None:
        """Waits until ``reads`` are done: ``error`` says whether they are there."""
        ended, end = -1, 0.0
        with self._changed:
            while not reads.done:
                if reads.ended > ended:
                    ended, end = reads.ended, time.monotonic() + self._deadline
                if self._taking:
                    self._changed.wait()
                    continue
                self._taking = True
                try:
                    self._take(end)
                finally:
                    self._taking = False
                    self._changed.notify_all()
        with reads.arriving:
            if not reads.error:
                reads.place.arrived()

    @property
    def commands(self) -> tuple[int, int]:
        """Counts the commands that were submitted, and those of them that were completed, in all."""
        by_queue = self.commands_by_queue
        return sum(submitted for submitted, _ in by_queue), sum(completed for _, completed in by_queue)

    @property
    def commands_by_queue(self) -> list[tuple[int, int]]:
        """Counts :attr:`commands` of each queue pair."""
        with self._changed:
            return [(pair.submitted, pair.completed) for pair in self._pairs]

    def close(self) -> None:
        """Ends the threads. Reads under way are never completed."""
        with self._changed:
            self._lost = self._lost or f"{self._files.names}: these rows were closed"
            for pair in self._pairs:
                pair.end()
            while self._taking:
                self._changed.wait()
            self._by.close()
            for pair in self._pairs:
                pair.close()
            self._give_up()
            del self._by
            self._changed.notify_all()

    def checksum(self, reads: Reads) -> int:
        """Returns the CRC-32C of a row that was moved, all of ``reads``."""
        assert reads.results is not None
        assert reads.commands == self._pieces
        return _core.joined_crc(reads.results, self._piece_bytes, self._files.row_bytes)

    def _fill(self) -> None:
        """Submits as much as there is room for, to all queues together."""
        while table := [row for pair in self._pairs if (row := self._submit_to(pair)) is not None]:
            self._by.submit(np.array(table, np.int64))

    def _submit_to(self, pair: QueuePair) -> list[int] | None:
        """Returns a row of io_submit's table for ``pair``; None: nothing waits for it, or there is no room."""
        if not pair.waiting or pair.under_way >= pair.ids:
            return None
        part = pair.waiting[0]
        reads = part.reads
        if reads.group < 0:
            if not self._free_groups:  # others are under way in all of them
                return None
            reads.group = self._free_groups.pop()
            self._groups[reads.group] = reads
        before = [0, self._files.stride_bytes, self._files.row_bytes, reads.wanted, reads.place.address]
        after = [reads.places, int(reads.write), reads.group, reads.commands, reads.spaces]
        row = pair.submit(part, [*before, self._files.row_bytes], after)
        if part.next == part.stop:
            pair.waiting.popleft()
        return row

    def _take(self, end: float) -> None:
        """Takes completions until some reads have all of theirs, or the clock shows ``end``. The lock is let go
        meanwhile.
        """
        seconds = max(end - time.monotonic(), 0)
        table = np.array([pair.complete() for pair in self._pairs], np.int64)
        self._changed.release()
        try:
            by_queue, lost = self._by.complete(table, int(seconds * 1e9))
            outcomes = np.concatenate(by_queue)
            # A kernel that runs takes one, or says that it gave up: this one did not run.
            idle = not len(outcomes) and not lost
            if idle:
                time.sleep(_POLL_SECONDS)
        finally:
            self._changed.acquire()
        for pair, taken in zip(self._pairs, by_queue, strict=True):
            pair.completed += len(taken)
        outcomes = outcomes[outcomes[:, 0] >> 16 < _SENSELESS]
        groups = outcomes[:, 0] & 0xFFFF
        for group in np.unique(groups):
            self._note(self._groups[int(group)], outcomes[groups == group])
        if lost:
            self._lost = self._lost or self._no_answer(
                f"{self._why or 'the disk hangs, or the thread that serves the rings is gone'}; "
                "look at the disk"
            )
        elif idle and time.monotonic() >= end:
            self._lost = self._lost or self._no_answer(
                "the kernel io_complete, which takes them, was launched and did not run; look at the GPU (nvidia-smi)"
            )
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
        for reads in self._unfinished():
            reads.done, reads.error, reads.kept = True, self._lost, None
        self._groups.clear()
        for pair in self._pairs:
            pair.waiting.clear()

    def _unfinished(self) -> set[Reads]:
        return {*self._groups.values(), *(part.reads for pair in self._pairs for part in pair.waiting)}

    @property
    def _why(self) -> str:
        """Says what controllers say; empty: nothing."""
        return "; ".join(filter(None, (pair.controller.error for pair in self._pairs)))

    def _no_answer(self, why: str) -> str:
        commands = sum(reads.commands for reads in self._unfinished())
        missing = commands - sum(reads.ended for reads in self._groups.values())
        return (
            f"{self._files.names}: {missing} of {commands} {self._what} through rings had no answer within "
            f"{self._deadline:g} s: {why}, then {self._again}"
        )

    def _failure(self, reads: Reads) -> str:
        """Says what is wrong, in words; empty: nothing."""
        if not reads.failed:
            return ""
        why = self._why
        kinds = ", ".join(
            f"{count} with status {s:#05x} ({_STATUSES.get(s, 'of the controller')})"
            for s, count in sorted(reads.failed.items())
        )
        verb = "write" if reads.write else "read"
        return (
            f"{self._files.names}: of {reads.commands} {verb}s through rings there failed {kinds}"
            f"{': ' if why else ''}{why}; look at the disk, then {verb} them again"
        )
