"""The artifact of the pack stage: one aligned record per mini-batch, and the cache files.

Arrays: ``records`` uint8 (record p at ``Placement.offsets[p]``, layout in store/record.py); ``host_cache``,
``device_cache``: rows of the cached nodes in the order of the plan's id lists; ``disk_cache``: the shared rows, as the
plan orders them; ``page_crc`` uint32, CRC-32C of each page of the disk cache; ``rows_crc`` uint32 [P], CRC-32C of the
packed rows of each record.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import outcrop._core as _core
from outcrop.errors import ChecksumError, FormatError
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store import record
from outcrop.store.address_table import AddressTable
from outcrop.store.arrays import DiskArray
from outcrop.store.batches import BatchGraph
from outcrop.store.levels import Level
from outcrop.store.manifest import Manifest
from outcrop.store.placement import Placement
from outcrop.store.samples import SampleSet

FORMAT, VERSION = "outcrop.pack", 2


class PackedRecords:
    """Reads packed records. ``submit`` starts the reads of one record, ``finish`` waits, checks and decodes."""

    def __init__(
        self, runtime: Runtime, path: Path, manifest: Manifest, placement: Placement, samples: SampleSet
    ):
        self.path, self.manifest, self.placement = path, manifest, placement
        self._runtime, self._samples = runtime, samples
        self._number = placement.index_of()
        crc = DiskArray(runtime, path, manifest.arrays["rows_crc"])
        self._rows_crc = crc.read("batch-index")
        crc.close()
        self._file = DiskArray(runtime, path, manifest.arrays["records"])
        self._shared: _core.RowReader | None = None
        self._checked = np.zeros(len(self._rows_crc), bool)
        self.row_bytes = placement.row_bytes
        self._cache_rows = {level: placement.num_cached(level) for level in (Level.HOST, Level.DEVICE)}
        self._cache_rows[Level.DISK] = placement.num_disk_rows
        self._check()
        if placement.num_disk_rows:
            self._disk_cache = DiskArray(runtime, path, manifest.arrays["disk_cache"])
            reader = _core.RowReader(
                runtime.io,
                runtime.budget,
                self._disk_cache.file,
                0,
                self.row_bytes,
                self.row_bytes,
                placement.num_disk_rows,
                max(placement.shared_scratch_bytes, _core.RowReader.min_scratch_bytes(self.row_bytes)),
            )
            sums = DiskArray(runtime, path, manifest.arrays["page_crc"])
            reader.check_pages(sums.read("batch-index"), f"remove {path} and prepare the run again")
            sums.close()
            self._shared = reader

    def _check(self) -> None:
        """Refuses files that are not as large as the plan says: what reads them relies on it."""
        arrays, plan = self.manifest.arrays, self.placement
        wanted = {
            "records": int(plan.offsets[-1]),
            "rows_crc": len(plan.packed_batches) * 4,
            "host_cache": plan.num_cached(Level.HOST) * self.row_bytes,
            "device_cache": plan.num_cached(Level.DEVICE) * self.row_bytes,
            "disk_cache": plan.num_disk_rows * self.row_bytes,
        }
        for name, count in wanted.items():
            if arrays[name].data_bytes != count:
                raise FormatError(
                    f"{self.path}: array {name!r} has {arrays[name].data_bytes} bytes, the plan says {count}; "
                    "remove the folder and prepare the run again"
                )

    def holds(self, batch: int) -> bool:
        return batch in self._number

    def batches_of(self, split: str, epoch: int) -> range:
        return self._samples.group(split).batches(epoch)

    def needed_bytes(self, batch: int) -> int:
        """Counts the bytes of the record without padding."""
        p = self._number[batch]
        meta = self._samples.meta_bytes(batch, int(self.placement.cached_rows[p].sum()))
        rows = int(self.placement.num_packed[p]) + int(self.placement.cached_rows[p, 2])
        return meta + rows * self.row_bytes

    def record_bytes(self, batch: int) -> int:
        p = self._number[batch]
        return int(self.placement.offsets[p + 1] - self.placement.offsets[p])

    def submit(self, batch: int, meta: np.ndarray, x: np.ndarray) -> _RecordReads:
        """Starts reading: the meta part into ``meta``, the packed rows into ``x``, where :meth:`expand` looks for them.

        Both are uint8 on page boundaries; ``x`` has room for the batch's rows, rounded up to a page, and a page more.
        """
        p = self._number[batch]
        start = int(self.placement.offsets[p])
        meta_span = self.placement.meta_span_bytes(p, self._samples)
        nodes, packed = int(self._samples.num_nodes[batch]), int(self.placement.num_packed[p])
        rows_span = record.rows_span_bytes(nodes, packed, self.row_bytes)
        offsets, lengths, positions = [start], [meta_span], [0]
        meta_job = self._reads(offsets, lengths, meta, positions)
        if not rows_span:
            return _RecordReads(meta_job, None)
        at = (nodes - packed) * self.row_bytes // PAGE_BYTES * PAGE_BYTES
        return _RecordReads(meta_job, self._reads([start + meta_span], [rows_span], x, [at]))

    def _reads(
        self, offsets: list[int], lengths: list[int], out: np.ndarray, positions: list[int]
    ) -> _core.IoJob:
        arrays = (np.asarray(v, np.int64) for v in (offsets, lengths, positions))
        o, n, p = arrays
        return self._runtime.io.submit_reads(self._file.file, o, n, out, p)

    def decode(self, batch: int, meta: np.ndarray) -> tuple[BatchGraph, AddressTable]:
        """Decodes the meta part, once what :meth:`submit` began is done.

        Raises:
            ChecksumError, FormatError: The record was damaged.
        """
        p = self._number[batch]
        graph, table = self._samples.decode(
            meta[: self.placement.meta_span_bytes(p, self._samples)], self._where(batch), self._cache_rows
        )
        if graph.num_nodes - table.num_cached != self.placement.num_packed[p]:
            raise FormatError(f"{self._where(batch)} belongs to another plan; prepare the run again")
        return graph, table

    def expand(self, batch: int, table: AddressTable, num_nodes: int, x: np.ndarray) -> None:
        """Moves the packed rows from the end of ``x`` to their places; checks them the first time a record is read.

        A record that is replayed in later epochs was found right in this process already.

        Raises:
            ChecksumError: The rows were damaged.
        """
        p = self._number[batch]
        known = bool(self._checked[p])
        positions = table.cached_positions()
        crc = _core.expand_rows(self._runtime.workers, x, num_nodes, self.row_bytes, positions, not known)
        if not known and crc != self._rows_crc[p]:
            raise ChecksumError(
                f"{self._where(batch)}: its rows were damaged after they were written (checksum {crc:08x}, expected "
                f"{int(self._rows_crc[p]):08x}); remove {self.path} and prepare the run again"
            )
        self._checked[p] = True

    def read_shared(self, table: AddressTable, num_nodes: int, x: np.ndarray) -> None:
        """Reads the rows that lie in the disk cache to their places in ``x``, each page once."""
        if len(table.disk_positions) == 0:
            return
        if self._shared is None:
            raise FormatError(f"{self.path} has no disk cache, its records do; prepare the run again")
        rows = x[: num_nodes * self.row_bytes].reshape(num_nodes, self.row_bytes)
        self._shared.read_sorted(table.disk_rows, table.disk_positions, rows)

    def _where(self, batch: int) -> str:
        return f"{self._file.path}, record {self._number[batch]} (mini-batch {batch})"


class _RecordReads:
    """Holds the reads of the two parts of a record."""

    def __init__(self, meta: _core.IoJob, rows: _core.IoJob | None):
        self._jobs = (meta, rows)

    def wait(self) -> None:
        for job in self._jobs:
            if job is not None:
                job.wait()


def open_packed(runtime: Runtime, path: Path, placement: Placement, samples: SampleSet) -> PackedRecords:
    with manifests.opening(path, FORMAT, VERSION) as manifest:
        return PackedRecords(runtime, path, manifest, placement, samples)
