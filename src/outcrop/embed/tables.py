"""The table of vectors and optimizer state on disk, a slab for each partition, in two places.

A checkpoint names one of the two places of each partition; writing back goes to the other, so what a checkpoint names
stays as it was until the next one is complete. A kill loses what was done since, and corrupts nothing.

``tables.bin`` has ``2 * partitions`` slabs: partition i in ``2 * i`` and ``2 * i + 1``. A slab is float32 [rows,
stride]: rows of vector and state, of the largest partition and as many more as fill whole pages. A partition that was
never written has no place; its rows are made anew from the seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outcrop import _core
from outcrop.embed.numbering import Division, Numbering
from outcrop.errors import ChecksumError, FormatError
from outcrop.runtime import Runtime
from outcrop.store.arrays import PAGE_BYTES

FILE = "tables.bin"
_NOWHERE = -1


@dataclass(frozen=True)
class RowShape:
    """``width`` floats of vector in ``stride`` floats of row."""

    width: int
    stride: int


@dataclass(frozen=True)
class Start:
    """How rows begin: uniform in ``[-bound, bound)``, keyed by ``key`` and the node, whatever the partitions."""

    bound: float
    key: int


def slab_rows(division: Division, stride: int) -> int:
    """Rows of a slab: whole pages."""
    step = PAGE_BYTES // math.gcd(PAGE_BYTES, 4 * stride)
    return -(-division.most // step) * step


class Table:
    """Reads and writes slabs. ``places`` and ``checksums``: by partition, of what was written last."""

    def __init__(
        self,
        folder: Path,
        division: Division,
        shape: RowShape,
        start: Start,
        numbering: Numbering,
        runtime: Runtime,
        *,
        read_only: bool = False,
    ):
        self.path, self.division, self.shape = folder / FILE, division, shape
        self.slab_rows = slab_rows(division, shape.stride)
        self.slab_bytes = 4 * shape.stride * self.slab_rows
        self._start, self._numbering, self._runtime, self._io = start, numbering, runtime, runtime.io
        self.places = [_NOWHERE] * division.parts
        self.checksums = [0] * division.parts
        self._kept = list(self.places)  # of the last checkpoint
        mode = _core.OpenMode.read if read_only else _core.OpenMode.pages
        self._file = self._io.open(str(self.path), mode)

    def restore(self, state: dict[str, Any]) -> None:
        """Goes back to what :meth:`state` said.

        Raises:
            FormatError: It is that of another table.
        """
        places, checksums = state["places"], state["checksums"]
        if not len(places) == len(checksums) == self.division.parts or not set(places) <= {_NOWHERE, 0, 1}:
            raise FormatError(
                f"{self.path}: its checkpoint has {len(places)} partitions, not {self.division.parts}"
            )
        size = self._io.size_bytes(self._file)
        for part, place in enumerate(places):
            if place != _NOWHERE and self._offset(part, place) + self.slab_bytes > size:
                raise FormatError(
                    f"{self.path} is truncated: it has {size} bytes, partition {part} lies beyond them: "
                    "train again with --fresh"
                )
        self.places, self.checksums, self._kept = list(places), list(checksums), list(places)

    def state(self) -> dict[str, Any]:
        return {"places": list(self.places), "checksums": list(self.checksums)}

    def keep(self) -> None:
        """What was written last is what a checkpoint names from now on."""
        self._kept = list(self.places)

    def clear(self) -> None:
        """Forgets a table that nothing names; takes the space of a new one.

        Raises:
            IoError: The disk has no room for it.
        """
        self._io.resize(self._file, 0)
        self._io.resize(self._file, 2 * self.division.parts * self.slab_bytes)

    def sync(self) -> None:
        self._io.sync(self._file)

    def rows_of(self, slab: np.ndarray) -> np.ndarray:
        """float32 [slab_rows, stride] of the bytes of a slab."""
        return slab.view(np.float32).reshape(self.slab_rows, self.shape.stride)

    def load(self, part: int, slab: np.ndarray) -> None:
        """Fills ``slab``, uint8 [slab_bytes], with a partition.

        Raises:
            ChecksumError: It is not what was written.
            IoError: It could not be read.
        """
        self.exchange(slab, None, part).wait()

    def exchange(self, slab: np.ndarray, stored: int | None, loaded: int | None) -> Exchange:
        """Begins to write partition ``stored`` from ``slab`` and then to read ``loaded`` over it, where there are such.

        It is written to the place that the last checkpoint does not name.
        """
        write_at = read_at = 0
        if stored is not None:
            self.places[stored] = 1 - self._kept[stored] if self._kept[stored] != _NOWHERE else 0
            write_at = self._offset(stored, self.places[stored])
        there = loaded is not None and self.places[loaded] != _NOWHERE
        if loaded is not None and there:
            read_at = self._offset(loaded, self.places[loaded])
        job = _core.SlabSwap(
            self._io, slab, None if stored is None else self._file, write_at, self._file if there else None, read_at
        )  # fmt: skip
        return Exchange(self, slab, stored, loaded, there, job)

    def _offset(self, part: int, place: int) -> int:
        return (2 * part + place) * self.slab_bytes

    def begin(self, part: int, slab: np.ndarray) -> None:
        """Rows of a partition that was never written."""
        slab[:] = 0
        first, size = int(self.division.starts[part]), self.division.size(part)
        step = 1 << 16
        rows = self.rows_of(slab)
        for at in range(0, size, step):
            stop = min(at + step, size)
            nodes = self._numbering.nodes(np.arange(first + at, first + stop, dtype=np.int64))
            _core.start_rows(
                rows[at:stop],
                self.shape.width,
                nodes,
                self._start.bound,
                self._start.key,
                self._runtime.workers,
            )

    def close(self) -> None:
        self._io.close(self._file)


@dataclass
class Exchange:
    """A slab on its way: ``stored`` to disk, then ``loaded`` from there; ``read`` unless that was never written."""

    table: Table
    slab: np.ndarray
    stored: int | None
    loaded: int | None
    read: bool
    job: _core.SlabSwap

    @property
    def done(self) -> bool:
        return self.job.done

    def wait(self) -> None:
        """Until the slab is there; its first rows are made where it was never written.

        Raises:
            ChecksumError: What was read is not what was written.
            IoError: Writing or reading failed.
        """
        self.job.wait()
        table = self.table
        if self.stored is not None:
            table.checksums[self.stored] = self.job.written_crc
        if self.loaded is None:
            return
        if not self.read:
            table.begin(self.loaded, self.slab)
        elif self.job.read_crc != table.checksums[self.loaded]:
            raise ChecksumError(
                f"{table.path}: partition {self.loaded} has checksum {self.job.read_crc:08x}, "
                f"{table.checksums[self.loaded]:08x} was written: the file was damaged; train again with --fresh"
            )
