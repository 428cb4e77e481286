"""Slabs of a table between a GPU and a file: kernels put them to rings and take them from there, no thread copies them.

Source: Legend, section 5. A slab is staged piece by piece, so that no buffer of the host holds one.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

import outcrop._core as _core
from outcrop.errors import IoError
from outcrop.rows.rings.files import RingFile, RowFiles
from outcrop.rows.rings.queue import Reads, RowQueue
from outcrop.runtime.runtime import Runtime


class SlabMoves:
    """Stands for slabs on their way. ``crcs``: of each, CRC-32C of what was written and of what was read, 0 where
    nothing was.
    """

    def __init__(self, result: Future[list[tuple[int, int]]]):
        self._result = result

    @property
    def done(self) -> bool:
        return self._result.done()

    def wait(self) -> None:
        """Raises what failed; nothing was moved after that."""
        self._result.result()

    @property
    def crcs(self) -> list[tuple[int, int]]:
        return self._result.result()


class SlabRings:
    """Writes slabs to ``file``, then reads others over them, by commands in rings.

    Args:
        file: Its rows are slabs, of whole pages, one behind the other.
        device: Where kernels run; ``cpu``: those of the CPU.
        memory_bytes: For rings and staging memory, held under the tag ``ring-staging``.
        deadline_seconds: As of :class:`outcrop.rows.rings.queue.RowQueue`.
        faults: For tests.
    """

    def __init__(
        self,
        file: RingFile,
        runtime: Runtime,
        device: str,
        memory_bytes: int,
        *,
        deadline_seconds: float | None = None,
        faults: _core.RingFaults | None = None,
    ):
        self._slab_bytes = file.row_bytes
        self._queue = RowQueue(
            RowFiles([file]),
            runtime,
            device,
            memory_bytes,
            deadline_seconds,
            faults or _core.RingFaults(),
            checksums=True,
        )
        self._thread = ThreadPoolExecutor(1, "slab-rings")

    def swap(
        self, slabs: Sequence[Any], write_at: Sequence[int | None], read_at: Sequence[int | None]
    ) -> SlabMoves:
        """Begins to write each slab, and then to read over it, after what the current stream was given.

        Args:
            slabs: uint8 [slab bytes], of the GPU, or arrays for the CPU kernels.
            write_at, read_at: Bytes from the beginning of the file, for each slab; None: nothing.
        """
        for slab in slabs[:1]:
            self._queue.catch_up(slab)
        return SlabMoves(self._thread.submit(self._move, list(slabs), list(write_at), list(read_at)))

    def _move(
        self, slabs: list[Any], write_at: list[int | None], read_at: list[int | None]
    ) -> list[tuple[int, int]]:
        writes = [self._begin(at, slab, write=True) for at, slab in zip(write_at, slabs, strict=True)]
        reads: list[Reads | None] = []
        try:
            written = []
            for write, at, slab in zip(writes, read_at, slabs, strict=True):
                written.append(self._crc(write))  # in the file before its place is read over
                reads.append(self._begin(at, slab, write=False))
            return list(zip(written, map(self._crc, reads), strict=True))
        finally:  # also what goes on beside one that failed: it uses the slabs
            for one in (*writes, *reads):
                if one is not None:
                    self._queue.wait(one)

    def _begin(self, at: int | None, slab: Any, *, write: bool) -> Reads | None:
        if at is None:
            return None
        return self._queue.submit(np.array([at // self._slab_bytes]), slab, write=write)

    def _crc(self, moved: Reads | None) -> int:
        """Waits for a slab and returns its checksum; raises IoError where it failed."""
        if moved is None:
            return 0
        self._queue.wait(moved)
        if moved.error:
            raise IoError(moved.error)
        return self._queue.checksum(moved)

    @property
    def commands(self) -> tuple[int, int]:
        """Counts the commands that were submitted, and those of them that were completed, in all."""
        return self._queue.commands

    def close(self) -> None:
        """Waits for what is under way."""
        self._thread.shutdown(wait=True)
        self._queue.close()
