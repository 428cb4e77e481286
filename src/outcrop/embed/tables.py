"""The table of vectors and optimizer state on disk, a slab for each slice, in two places.

A checkpoint names one of the two places of each slice; writing back goes to the other, so what a checkpoint names
stays as it was until the next one is complete. A kill loses what was done since, and corrupts nothing.

``tables.bin`` has ``2 * slices`` slabs: slice i in ``2 * i`` and ``2 * i + 1``. A slab is float32 [rows,
stride]: rows of vector and state, of the largest slice and as many more as fill whole pages. A slice that was
never written has no place; its rows are made anew from the seed.

Where several processes train, a slice is in the file of the one that had it last. These files have as many slabs as
their process needs, and a slice is in any of them (:class:`SlotTable`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import outcrop._core as _core
from outcrop.embed.numbering import Division, NodeNumbering
from outcrop.errors import ChecksumError, FormatError
from outcrop.rows.rings import RingFile
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store.remote import FileRange

FILE = "tables.bin"
NOWHERE, ELSEWHERE = -1, -2  # places: never written; in the file of another process


@dataclass(frozen=True)
class RowShape:
    """Describes a row: ``width`` floats of vector in ``stride`` floats."""

    width: int
    stride: int


@dataclass(frozen=True)
class Start:
    """Says how rows begin: uniform in ``[-bound, bound)``, keyed by ``key`` and the node, whatever the slices."""

    bound: float
    key: int


def slab_rows(division: Division, stride: int) -> int:
    """Returns rows of a slab: whole pages."""
    step = PAGE_BYTES // math.gcd(PAGE_BYTES, 4 * stride)
    return -(-division.most // step) * step


class Table:
    """Reads and writes slabs. ``places`` and ``checksums``: by slice, of what was written last."""

    def __init__(
        self,
        path: Path,
        division: Division,
        shape: RowShape,
        start: Start,
        numbering: NodeNumbering,
        runtime: Runtime,
        *,
        read_only: bool = False,
    ):
        self.path, self.division, self.shape = path, division, shape
        self.slab_rows = slab_rows(division, shape.stride)
        self.slab_bytes = 4 * shape.stride * self.slab_rows
        self._start, self._numbering, self._runtime, self._io = start, numbering, runtime, runtime.io
        self.places = [NOWHERE] * division.parts
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
        if not len(places) == len(checksums) == self.division.parts or not self._are_places(places):
            raise FormatError(
                f"{self.path}: its checkpoint has {len(places)} slices, not {self.division.parts}"
            )
        size = self._io.size_bytes(self._file)
        for part, place in enumerate(places):
            if place >= 0 and self._offset(part, place) + self.slab_bytes > size:
                raise FormatError(
                    f"{self.path} is truncated: it has {size} bytes, slice {part} lies beyond them: "
                    "train again with --fresh"
                )
        self.places, self.checksums, self._kept = list(places), list(checksums), list(places)

    def state(self) -> dict[str, Any]:
        return {"places": list(self.places), "checksums": list(self.checksums)}

    def hold_only(self, parts: Iterable[int]) -> None:
        """Takes it that all slices but ``parts`` are in other files."""
        here = set(parts)
        for part in range(self.division.parts):
            if part not in here:
                self.give_away(part)

    def forget(self, part: int) -> None:
        """Takes it that a slice was never written."""
        self.places[part] = NOWHERE

    def give_away(self, part: int) -> None:
        """Takes it that a slice is in another file now. What a checkpoint names here stays."""
        self.places[part] = ELSEWHERE

    def keep(self) -> None:
        """Lets a checkpoint name what was written last from now on."""
        self._kept = list(self.places)

    def is_kept(self, part: int) -> bool:
        """Tells whether a slice is where the last checkpoint names it."""
        return self.places[part] == self._kept[part]

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
        """Returns float32 [slab_rows, stride] of the bytes of a slab."""
        return slab.view(np.float32).reshape(self.slab_rows, self.shape.stride)

    def load(self, part: int, slab: np.ndarray) -> None:
        """Fills ``slab``, uint8 [slab_bytes], with a slice.

        Raises:
            ChecksumError: It is not what was written.
            IoError: It could not be read.
        """
        self.exchange([Move(slab, None, part)]).wait()

    def exchange(self, moves: Sequence[Move], by: SlabMover | None = None) -> Exchange:
        """Begins to write what is in slabs, and then to read others over it, one slab after the other.

        A slab is written to the place that the last checkpoint does not name.

        Args:
            by: Who moves them, where they are not in host memory.
        """
        for move in moves:
            if move.stored is not None:
                self.places[move.stored] = self._place_to_write(move.stored)
        write_at = [self._place(move.stored) for move in moves]
        read_at = [self._place(move.loaded) for move in moves]
        slabs = [move.slab for move in moves]
        job: SlabJob = (
            by.swap(slabs, write_at, read_at)
            if by is not None
            else _core.SlabSwap(self._io, self._file, slabs, write_at, read_at)
        )
        begin = self.begin if by is None else by.begin
        return Exchange(self, tuple(moves), tuple(at is not None for at in read_at), job, begin)

    def _place(self, part: int | None) -> int | None:
        """Tells where a slice is in the file; None where it was never written."""
        if part is None or self.places[part] == NOWHERE:
            return None
        assert self.places[part] != ELSEWHERE, f"slice {part} is in the file of another process"
        return self._offset(part, self.places[part])

    def stored_at(self, part: int) -> FileRange:
        """Returns where in the file a slice is that was written."""
        offset = self._place(part)
        assert offset is not None, f"slice {part} was never written"
        return FileRange(self.path, offset, self.slab_bytes)

    def _are_places(self, places: list[int]) -> bool:
        return set(places) <= {NOWHERE, 0, 1}

    def _place_to_write(self, part: int) -> int:
        """Returns a place of a slice that the last checkpoint does not name."""
        return 1 - self._kept[part] if self._kept[part] >= 0 else 0

    def _offset(self, part: int, place: int) -> int:
        return (2 * part + place) * self.slab_bytes

    def begin(self, part: int, slab: np.ndarray) -> None:
        """Makes the rows of a slice that was never written."""
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

    def ring_file(self) -> RingFile:
        """Returns both places of every slice, for rings."""
        return RingFile(self.path, self._file, 2 * self.division.parts, self.slab_bytes, self.slab_bytes)

    def close(self) -> None:
        self._io.close(self._file)


class SlotTable(Table):
    """Keeps those slices that a process has, of several that train: a place is the number of any slab of the file.

    The file grows as slices come; slabs that neither a slice nor the last checkpoint needs are used again.
    """

    def clear(self) -> None:
        self._io.resize(self._file, 0)

    def _are_places(self, places: list[int]) -> bool:
        used = [place for place in places if place >= 0]
        return len(set(used)) == len(used) and min(places) >= ELSEWHERE

    def _place_to_write(self, part: int) -> int:
        place = self.places[part]
        if place < 0 or place == self._kept[part]:
            used = {*self.places, *self._kept}
            place = next(number for number in itertools.count() if number not in used)
            if (end := (place + 1) * self.slab_bytes) > self._io.size_bytes(self._file):
                self._io.resize(self._file, end)
        return place

    def _offset(self, part: int, place: int) -> int:
        return place * self.slab_bytes


class SlabJob(Protocol):
    """Tells of slabs on their way. ``crcs``: of each, of what was written and of what was read."""

    @property
    def done(self) -> bool: ...

    def wait(self) -> None: ...

    @property
    def crcs(self) -> list[tuple[int, int]]: ...


class SlabMover(Protocol):
    """Moves slabs that are not in host memory."""

    def swap(self, slabs: list[Any], write_at: list[int | None], read_at: list[int | None]) -> SlabJob: ...

    def begin(self, part: int, slab: Any) -> None:
        """Does what :meth:`Table.begin` does."""
        ...


@dataclass(frozen=True)
class Move:
    """Slice ``stored`` is written from ``slab``, then ``loaded`` read over it; None: nothing."""

    slab: Any
    stored: int | None
    loaded: int | None


@dataclass
class Exchange:
    """Tells of slabs on their way. ``read``: of each, whether it comes from disk; others were never written."""

    table: Table
    moves: tuple[Move, ...]
    read: tuple[bool, ...]
    job: SlabJob
    begin: Callable[[int, Any], None]

    @property
    def done(self) -> bool:
        return self.job.done

    def wait(self) -> None:
        """Waits until all are there; the first rows are made of one that was never written.

        Raises:
            ChecksumError: What was read is not what was written.
            IoError: Writing or reading failed.
        """
        self.job.wait()
        table = self.table
        for move, read, (written_crc, read_crc) in zip(self.moves, self.read, self.job.crcs, strict=True):
            if move.stored is not None:
                table.checksums[move.stored] = written_crc
            if move.loaded is None:
                continue
            if not read:
                self.begin(move.loaded, move.slab)
            elif read_crc != table.checksums[move.loaded]:
                raise ChecksumError(
                    f"{table.path}: slice {move.loaded} has checksum {read_crc:08x}, "
                    f"{table.checksums[move.loaded]:08x} was written: the file was damaged; train again with --fresh"
                )
