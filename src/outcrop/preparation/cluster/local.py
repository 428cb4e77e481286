"""Packing by several processes of this machine: each takes a chunk of a row file at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import resource_tracker
from pathlib import Path

from outcrop.config import format_bytes
from outcrop.errors import CancelledError, OutcropError
from outcrop.preparation.cluster.pieces import (
    PieceSet,
    finish_pieces,
    prepare_pieces,
    remove_pieces,
    table_bytes,
)
from outcrop.preparation.cluster.write_pieces import ChunkWriter
from outcrop.preparation.pack import CopiedBytes, MayPackAlone, PackTask
from outcrop.preparation.pack_files import Journal, OutputFiles
from outcrop.runtime.parent import end_with_parent

_LEAST_BYTES, _MOST_BYTES = 4 << 20, 768 << 20  # memory of a process
_writer: ChunkWriter | OutcropError | None = None


class LocalWorkers(MayPackAlone):
    """Has ``workers`` processes of this machine write the rows; what they write is what one would.

    Each has a sixteenth of the memory that is free, at most 768 MiB, and is a Python beside it; where there is not
    enough for so many, there are fewer. One that is killed is replaced.
    """

    def __init__(self, workers: int):
        self.workers = workers

    def __call__(self, packing: PackTask, files: OutputFiles, journal: Journal) -> CopiedBytes:
        if packing.is_filled(journal):
            return CopiedBytes()
        workers, memory = self._divided(packing)
        pieces = prepare_pieces(packing, files, memory // 4)
        with packing.runtime.budget.reserve("pack-workers", workers * memory):
            copied = self._make(pieces, workers, memory, packing)
        finish_pieces(pieces, packing, journal)
        return copied

    def _divided(self, packing: PackTask) -> tuple[int, int]:
        """Returns how many processes there is memory for, and the bytes of each."""
        free = packing.runtime.budget.free_bytes
        widest = max(packer.features.spec.stride_bytes for packer in packing.packers)
        memory = max(min(max(free // 16, _LEAST_BYTES), _MOST_BYTES), _LEAST_BYTES + 8 * widest)
        return min(self.workers, free // memory - 1), memory

    def packs_alone(self, packing: PackTask) -> str:
        workers, memory = self._divided(packing)
        if workers < 1:
            return f"memory for one process, not for {self.workers} beside it"
        if (tables := table_bytes(packing, memory // 4)) > packing.room_for_tables():
            return f"the tables of several processes would take {format_bytes(tables)} of disk: one packs"
        return ""

    def clear(self, folder: Path) -> None:
        remove_pieces(folder)

    def _make(self, pieces: PieceSet, workers: int, memory: int, packing: PackTask) -> CopiedBytes:
        progress, read, written = packing.runtime.progress, 0, 0
        there = set(pieces.all_chunks()).difference(pieces.missing())
        progress.advance("pack", sum(pieces.chunk_bytes(*chunk) for chunk in there))
        while missing := pieces.missing():
            done = 0
            try:
                with _pool(workers, pieces, memory) as pool:
                    for chunk, copied in _in_any_order(pool, missing, 2 * workers):
                        read += copied.bytes_read
                        written += copied.bytes_written
                        done += 1
                        progress.advance("pack", pieces.chunk_bytes(*chunk))
            except BrokenProcessPool:
                if not done:
                    raise CancelledError(
                        f"processes that pack ended, killed perhaps for want of memory, before any of {workers} had "
                        "done its part: prepare with fewer of them (--workers), and keep what a script does under "
                        'if __name__ == "__main__"; the same command goes on where it was'
                    ) from None
        return CopiedBytes(read, written)


@contextmanager
def _pool(workers: int, pieces: PieceSet, memory: int) -> Iterator[ProcessPoolExecutor]:
    resource_tracker.ensure_running()  # or what a kill leaves of the first semaphore stays until somebody removes it
    pool = ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),  # the threads of this process cannot be copied
        _begin,
        (os.getpid(), pieces, memory),
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _in_any_order(
    pool: ProcessPoolExecutor, chunks: list[tuple[int, int]], most: int
) -> Iterator[tuple[tuple[int, int], CopiedBytes]]:
    """Has the pool make ``chunks``, so many at a time, and yields each with what it took."""
    left = iter(chunks)
    under_way: dict[Future[CopiedBytes], tuple[int, int]] = {
        pool.submit(_write, *chunk): chunk for chunk in islice(left, most)
    }
    while under_way:
        ended, _ = wait(under_way, return_when=FIRST_COMPLETED)
        for future in ended:
            yield under_way.pop(future), future.result()
        under_way |= {pool.submit(_write, *chunk): chunk for chunk in islice(left, len(ended))}


def _begin(parent: int, pieces: PieceSet, memory: int) -> None:
    global _writer
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it ends these
    try:
        _writer = ChunkWriter(pieces, memory)
    except OutcropError as error:  # told when there is somebody to tell
        _writer = error


def _write(number: int, chunk: int) -> CopiedBytes:
    if isinstance(_writer, OutcropError):
        raise _writer
    assert _writer is not None
    return _writer.write(number, chunk)
