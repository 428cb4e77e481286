"""The artifact of the pack stage: one aligned record per mini-batch, and the cache files.

Arrays: ``records`` uint8 (record p at ``Placement.offsets[p]``, layout in store/record.py); ``host_cache``,
``device_cache``: rows of the cached nodes in the order of the plan's id lists; ``disk_cache``: the shared rows, as the
plan orders them; ``page_crc`` uint32, CRC-32C of each page of the disk cache; ``rows_crc`` uint32 [P], CRC-32C of the
packed rows of each record.

With K parts (versions 4 and 5; store/parts.py) ``records`` lies in K files. Versions 3 and 5, of graphs with several
row files: caches and their checksums once for each row file, with the prefixes of the plan (store/placement.py), and
``rows_crc`` [P, row files].
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

import outcrop._core as _core
from outcrop.errors import ChecksumError, FormatError
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.address_table import AddressTable
from outcrop.store.arrays import DiskArray
from outcrop.store.batches import BatchGraph
from outcrop.store.levels import Level
from outcrop.store.manifest import Manifest
from outcrop.store.parts import RecordFiles
from outcrop.store.placement import PlacedRows, Placement
from outcrop.store.samples import SampleSet

FORMAT, VERSIONS = "outcrop.pack", (2, 3, 4, 5)


def version_of(typed: bool, parts: int) -> int:
    """Returns the version of a pack."""
    return 2 + typed + 2 * (parts > 1)


class PackedRecords:
    """Reads packed records. ``submit`` starts the reads of one record, :meth:`decode` checks what came.

    Attributes:
        rows: Caches and packed rows of each row file.
    """

    def __init__(
        self, runtime: Runtime, path: Path, manifest: Manifest, placement: Placement, samples: SampleSet
    ):
        self.path, self.manifest, self.placement = path, manifest, placement
        self._runtime, self._samples = runtime, samples
        self._number = placement.index_of()
        crc = DiskArray(runtime, path, manifest.arrays["rows_crc"])
        rows_crc = crc.read("batch-index")
        crc.close()
        self._check(rows_crc)
        self._files = RecordFiles(
            runtime, path, manifest, "records", np.diff(placement.offsets), placement.part
        )
        self._starts = placement.part_starts(samples)
        self._needed = placement.meta_bytes(samples)
        for rows in placement.files:
            self._needed = self._needed + (rows.num_packed + rows.cached_rows[:, 2]) * rows.row_bytes
        wanted = rows_crc.reshape(len(rows_crc), len(placement.files))
        self.rows = tuple(
            PackedRows(runtime, self, placed, wanted[:, number])
            for number, placed in enumerate(placement.files)
        )
        self._cache_rows = tuple(rows.cache_rows for rows in self.rows)

    def _check(self, rows_crc: np.ndarray) -> None:
        """Refuses files that are not as large as the plan says: what reads them relies on it."""
        plan, files = self.placement, self.placement.files
        count = len(plan.packed_batches)
        wanted = {"rows_crc": count * len(files) * 4}
        for rows in files:
            wanted |= {
                f"{rows.prefix}host_cache": rows.num_cached(Level.HOST) * rows.row_bytes,
                f"{rows.prefix}device_cache": rows.num_cached(Level.DEVICE) * rows.row_bytes,
                f"{rows.prefix}disk_cache": rows.num_disk_rows * rows.row_bytes,
            }
        for name, size in wanted.items():
            found = self.manifest.arrays[name].data_bytes
            if found != size:
                raise FormatError(
                    f"{self.path}: array {name!r} has {found} bytes, the plan says {size}; remove the folder and "
                    "prepare the run again"
                )
        if rows_crc.shape not in ((count,), (count, len(files))):
            raise FormatError(
                f"{self.path}: its checksums have shape {rows_crc.shape}; remove the folder and prepare the run again"
            )

    def number_of(self, batch: int) -> int:
        """Returns the number of the record of ``batch``."""
        return self._number[batch]

    def holds(self, batch: int) -> bool:
        return batch in self._number

    def batches_of(self, split: str, epoch: int) -> range:
        return self._samples.group(split).batches(epoch)

    def needed_bytes(self, batch: int) -> int:
        """Counts the bytes of the record without padding, and of what it reads of the disk caches."""
        return int(self._needed[self._number[batch]])

    def record_bytes(self, batch: int) -> int:
        p = self._number[batch]
        return int(self.placement.offsets[p + 1] - self.placement.offsets[p])

    def num_rows(self, batch: int, number: int) -> int:
        """Counts the rows that ``batch`` wants of row file ``number``."""
        return int(self.placement.files[number].section(self._samples).num_rows[batch])

    def submit(self, batch: int, meta: np.ndarray, rows: Sequence[np.ndarray]) -> _RecordReads:
        """Starts reading: the meta part into ``meta``, the packed rows of each row file into ``rows``, where
        :meth:`PackedRows.expand` looks for them.

        All are uint8 on page boundaries; each of ``rows`` has room for what the batch wants of the row file, rounded up
        to a page, and a page more.
        """
        p = self._number[batch]
        starts, file = self._starts[p].tolist(), self._files.of(p).file
        jobs = [self._read(file, starts[0], starts[1], meta, 0)]
        for number, (begin, end) in enumerate(pairwise(starts[1:])):
            if end > begin:
                own = self.placement.files[number]
                skipped = self.num_rows(batch, number) - int(own.num_packed[p])
                at = skipped * own.row_bytes // PAGE_BYTES * PAGE_BYTES
                jobs.append(self._read(file, begin, end, rows[number], at))
        return _RecordReads(jobs)

    def _read(self, file: int, begin: int, end: int, out: np.ndarray, at: int) -> _core.IoJob:
        offset, length, position = (np.array([value], np.int64) for value in (begin, end - begin, at))
        return self._runtime.io.submit_reads(file, offset, length, out, position)

    def decode(self, batch: int, meta: np.ndarray) -> tuple[BatchGraph, tuple[AddressTable, ...]]:
        """Decodes the meta part, once what :meth:`submit` began is done.

        Raises:
            ChecksumError, FormatError: The record was damaged.
        """
        p = self._number[batch]
        size = int(self._starts[p, 1] - self._starts[p, 0])
        graph, tables = self._samples.decode(meta[:size], self.where(batch), self._cache_rows)
        files = self.placement.files
        wanted = [self.num_rows(batch, number) for number in range(len(files))]
        fits = len(tables) == len(files) and all(
            rows.count_of(graph) == count and count - table.num_cached == rows.num_packed[p]
            for rows, table, count in zip(files, tables, wanted, strict=True)
        )
        if not fits:
            raise FormatError(f"{self.where(batch)} belongs to another plan; prepare the run again")
        return graph, tables

    def where(self, batch: int) -> str:
        p = self._number[batch]
        return f"{self._files.path_of(p)}, record {p} (mini-batch {batch})"


class PackedRows:
    """Puts the rows of one row file in their places: packed ones, and those of the disk cache.

    Attributes:
        cache_rows: Rows of each cache.
    """

    def __init__(self, runtime: Runtime, records: PackedRecords, placed: PlacedRows, rows_crc: np.ndarray):
        self._runtime, self._records, self._crc = runtime, records, rows_crc
        self._checked = np.zeros(len(rows_crc), bool)
        self.placed, self.row_bytes = placed, placed.row_bytes
        self.cache_rows = {level: placed.num_cached(level) for level in (Level.HOST, Level.DEVICE)}
        self.cache_rows[Level.DISK] = placed.num_disk_rows
        self._shared: _core.RowReader | None = None
        if placed.num_disk_rows:
            path, arrays = records.path, records.manifest.arrays
            self._disk_cache = DiskArray(runtime, path, arrays[f"{placed.prefix}disk_cache"])
            reader = _core.RowReader(
                runtime.io,
                runtime.budget,
                self._disk_cache.file,
                0,
                self.row_bytes,
                self.row_bytes,
                placed.num_disk_rows,
                max(
                    records.placement.shared_scratch_bytes,
                    _core.RowReader.min_scratch_bytes(self.row_bytes),
                ),
            )
            sums = DiskArray(runtime, path, arrays[f"{placed.prefix}page_crc"])
            reader.check_pages(sums.read("batch-index"), f"remove {path} and prepare the run again")
            sums.close()
            self._shared = reader

    def expand(self, batch: int, table: AddressTable, num_rows: int, x: np.ndarray) -> None:
        """Moves the packed rows from the end of ``x`` to their places; checks them the first time a record is read.

        A record that is replayed in later epochs was found right in this process already.

        Raises:
            ChecksumError: The rows were damaged.
        """
        p = self._records.number_of(batch)
        known = bool(self._checked[p])
        positions = table.cached_positions()
        crc = _core.expand_rows(self._runtime.workers, x, num_rows, self.row_bytes, positions, not known)
        if not known and crc != self._crc[p]:
            raise ChecksumError(
                f"{self._records.where(batch)}: its rows were damaged after they were written (checksum {crc:08x}, "
                f"expected {int(self._crc[p]):08x}); remove {self._records.path} and prepare the run again"
            )
        self._checked[p] = True

    def read_shared(self, table: AddressTable, num_rows: int, x: np.ndarray) -> None:
        """Reads the rows that lie in the disk cache to their places in ``x``, each page once."""
        if len(table.disk_positions) == 0:
            return
        if self._shared is None:
            raise FormatError(
                f"{self._records.path} has no disk cache, its records do; prepare the run again"
            )
        rows = x[: num_rows * self.row_bytes].reshape(num_rows, self.row_bytes)
        self._shared.read_sorted(table.disk_rows, table.disk_positions, rows)


class _RecordReads:
    """Holds the reads of the parts of a record."""

    def __init__(self, jobs: Sequence[_core.IoJob]):
        self._jobs = jobs

    def wait(self) -> None:
        for job in self._jobs:
            job.wait()


def open_packed(runtime: Runtime, path: Path, placement: Placement, samples: SampleSet) -> PackedRecords:
    with manifests.opening(path, FORMAT, VERSIONS) as manifest:
        return PackedRecords(runtime, path, manifest, placement, samples)
