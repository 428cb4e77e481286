"""Pack: write every level in one sequential pass over each row file, within the memory budget.

Source: DiskGNN section 5.2 (batched packing). The feature file is read once in large chunks; from each chunk
every mini-batch takes its rows. The caches are filled in the same pass, as special mini-batches; so is the disk cache,
block by block, each block by ascending node at first and put in its own order at the end. If the tables of all of them
do not fit in the budget, they are packed in episodes, one pass each (preparation/pack_rows.py). What a hop of a batch
takes of a chunk waits in memory until whole pages can be written (core/pack/scatter.h).

Resumable: from time to time all that was taken is written and synced, and a journal notes where to go on. Writing a
chunk again writes the same bytes to the same places, so a kill at any moment leaves a run that continues to byte-
identical files. A block of the disk cache is first written further back than its place, by the size of a block: putting
it in order reads there and writes to its place, and leaves what it read as it was until the next block is done.
"""

from __future__ import annotations

import shutil
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

import outcrop._core as _core
from outcrop.errors import FormatError
from outcrop.preparation.cached_rows import CacheLookup
from outcrop.preparation.pack_files import JoinedWrites, Journal, OutputFiles, RowsFiles, SharedRows
from outcrop.preparation.pack_log import PackLog, cut_groups
from outcrop.preparation.pack_rows import RowsPacker
from outcrop.runtime import memory_tables
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store import record
from outcrop.store.address_table import AddressTable
from outcrop.store.arrays import ArrayWriter
from outcrop.store.graph import Graph
from outcrop.store.manifest import Manifest
from outcrop.store.packed import FORMAT, version_of
from outcrop.store.parts import attributes_of
from outcrop.store.placement import Placement
from outcrop.store.samples import SampleSet

_JOURNAL = "journal.npz"
_TABLES_LEAST, _TABLES_SHARE = 64 << 20, 16
_TOGETHER_BYTES = 1 << 20  # are written together of what is noted of batches
LOG_WORTH_BYTES = 32 << 20  # as much as reading so many has to be saved


def expected(graph: Graph, samples: SampleSet, placement: Placement) -> tuple[dict, dict[str, str]]:
    """Returns config and input digests of the artifact that :func:`pack` would write."""
    return {}, {
        "graph": graph.digest(),
        "sample": samples.manifest.digest(),
        "plan": placement.manifest.digest(),
    }


class RowFiller(Protocol):
    """Writes the rows of all streams, and notes their checksums; in any way that ends with the same bytes."""

    def __call__(self, packing: PackTask, files: OutputFiles, journal: Journal) -> CopiedBytes: ...


class MayPackAlone(ABC):
    """Marks what has several processes write the rows, and leaves it to this one where they have no room."""

    @abstractmethod
    def packs_alone(self, packing: PackTask) -> str:
        """Says why this process packs alone; empty: it does not."""

    @abstractmethod
    def clear(self, folder: Path) -> None:
        """Removes what it has left in ``folder`` for others of its kind."""


class KeepsPartsApart:
    """Marks what writes parts to disks of several machines: what it leaves here is no use to what writes all here."""


@dataclass(frozen=True)
class CopiedBytes:
    """Counts the bytes that other processes have read and written in place of this one, and those from a store.

    Attributes:
        moved: What went between machines, where there are several.
        elsewhere: Arrays whose files lie on other machines; here they are not whole.
    """

    bytes_read: int = 0
    bytes_written: int = 0
    moved: MovedBytes | None = None
    elsewhere: tuple[str, ...] = ()


@dataclass(frozen=True)
class MovedBytes:
    """Counts what went between the machines of a cluster.

    Attributes:
        machines: Machines that were there at the end.
        rows_bytes_sent: Bytes of rows that were read on one machine and written by another.
        ids_bytes_sent: Bytes of the ids by which another machine was asked for rows.
        spilled_bytes: Bytes of rows and ids that object stores have written to disk for want of memory.
    """

    machines: int
    rows_bytes_sent: int
    ids_bytes_sent: int
    spilled_bytes: int


def fill_in_passes(packing: PackTask, files: OutputFiles, journal: Journal) -> CopiedBytes:
    """Makes the passes over each row file, in this process; where rows go to a log, makes records of it."""
    for number, packer in enumerate(packing.packers):
        packer.fill(files, journal, number)
    if packing.log is not None:
        packing.log.put_in_order(
            [packer.streams for packer in packing.packers], files, journal, packing.runtime
        )
    return CopiedBytes()


class Packed(NamedTuple):
    """Says what packing has made, and how many passes over a row file it took, of the one that took most.

    Attributes:
        copied: What other processes have read and written.
    """

    manifest: Manifest
    passes: int
    copied: CopiedBytes


def pack(
    graph: Graph,
    samples: SampleSet,
    placement: Placement,
    out: Path,
    runtime: Runtime,
    fill: RowFiller = fill_in_passes,
) -> Packed:
    """Writes records and caches of ``placement`` to ``out``.

    Args:
        fill: What writes the rows.

    Raises:
        BudgetError: The budget cannot hold even the smallest working buffers.
    """
    packing = PackTask(graph, samples, placement, runtime)
    with manifests.publishing(out, resume=True) as folder:
        done = packing.run(folder, fill)
    return done


class PackTask:
    """Holds what packing works with.

    Attributes:
        packers: One for each row file.
        key: Says of what the files are made; what was made of something else is of no use.
        apart: Whether parts are written to disks of several machines.
        log: What rows are written to before they are put in order; None: they are written to where they belong.
    """

    apart = False
    log: PackLog | None = None

    def __init__(self, graph: Graph, samples: SampleSet, placement: Placement, runtime: Runtime):
        self._graph, self.samples, self.placement, self.runtime = graph, samples, placement, runtime
        self.starts = placement.part_starts(samples)
        self._held = [(placed.host_ids, placed.device_ids) for placed in placement.files]  # from now on
        self._free = free = runtime.budget.free_bytes
        self.packers = [
            RowsPacker(
                graph.open_sequential(runtime, rows),
                placed,
                samples,
                self.starts[:, 1 + rows.number],
                runtime,
                free,
            )
            for rows, placed in zip(graph.row_files, placement.files, strict=True)
        ]
        self._made = expected(graph, samples, placement)
        self.key = ",".join(self._made[1].values())

    def run(self, folder: Path, fill: RowFiller) -> Packed:
        placement, packers, runtime = self.placement, self.packers, self.runtime
        self.apart = isinstance(fill, KeepsPartsApart)
        alone = ""
        if isinstance(fill, MayPackAlone) and (alone := fill.packs_alone(self)):
            fill.clear(folder)
            fill = fill_in_passes
        key = self._choose_way(folder, self._cut_log() if fill is fill_in_passes else None)
        streams = [packer.num_streams for packer in packers]
        journal = Journal(folder / _JOURNAL, key, streams, len(placement.packed_batches))
        files = OutputFiles(
            runtime,
            folder,
            placement,
            [
                RowsFiles(runtime, folder, packer.placed, packer.section, packer.features)
                for packer in packers
            ],
            () if self.log is None else self.log.spare_bytes,
        )
        if not (files.are_there() and journal.load()):
            _clear(folder)
        work = sum(one.work_bytes for one in (*packers, self.log) if one is not None)
        runtime.progress.start("pack", work, "bytes")
        if alone:
            runtime.progress.note("pack", alone)
        try:
            files.open()
            if not journal.meta_done:
                self._write_meta(files, journal)
            copied = fill(self, files, journal)
            for number, packer in enumerate(packers):
                packer.order_disk_cache(files, journal, number)
            crcs = [packer.rows_crc(journal.files[k].crc) for k, packer in enumerate(packers)]
            parts = [
                {
                    "host_cache": int(rows.cache_crc[0]),
                    "device_cache": int(rows.cache_crc[1]),
                    "disk_cache": rows.disk_crc,
                }
                for rows in journal.files
            ]
            specs = files.finish(self._records_crcs(journal, crcs), parts)
        finally:
            files.close()
        rows_crc = crcs[0] if len(crcs) == 1 else np.stack(crcs, axis=1)
        crc = ArrayWriter(runtime, folder, "rows_crc", "uint32", rows_crc.shape[1:])
        crc.append(rows_crc)
        specs["rows_crc"] = crc.finish()
        try:
            self._graph.require_unchanged()
        except FormatError:
            _clear(folder)  # a graph without checksums of pages: what was packed may be of either
            raise
        kept = {spec.file for name, spec in specs.items() if name not in copied.elsewhere}
        for path in folder.iterdir():  # lists of ids, the journal, pieces, parts of others
            if path.name not in kept:
                manifests.remove(path)
        version = version_of(placement.manifest.version == 3, placement.num_parts)
        manifest = Manifest(FORMAT, version, specs, attributes_of(placement.num_parts), *self._made)
        manifests.write(folder, manifest)
        runtime.progress.finish("pack")
        passes = max(packer.num_episodes for packer in packers) if fill is fill_in_passes else 1
        fetched = sum(packer.features.fetched_bytes for packer in packers)
        copied = replace(copied, bytes_read=copied.bytes_read + fetched)
        return Packed(manifest, passes, copied)

    def _choose_way(self, folder: Path, log: PackLog | None) -> str:
        """Chooses whether rows go to ``log``, where there can be one: as an interrupted command did it in ``folder``,
        else as it costs less. Returns the key of the journal.
        """
        noted = Journal.key_in(folder / _JOURNAL)
        for way in (log, None):
            if (key := self._use(way)) == noted:
                return key
        return self._use(log) if log is not None and self._pays(log, folder) else key

    def _use(self, log: PackLog | None) -> str:
        """Has the rows of batches written to ``log``, None: to where they belong; returns the key of the journal."""
        self.log = log
        for packer in self.packers:
            packer.use(log)
        ways = [*["apart"][: self.apart], *([] if log is None else [log.geometry])]
        return ",".join([self.key, *(packer.geometry for packer in self.packers), *ways])

    def _cut_log(self) -> PackLog | None:
        """Returns a log with groups that memory has room for; None: there can be none."""
        placement, packers = self.placement, self.packers
        if not len(placement.packed_batches):
            return None
        most = memory_tables.PACK_GROUP.bytes_of(self._free) // PAGE_BYTES * PAGE_BYTES
        bounds = cut_groups(
            self.starts, placement.part_bounds.tolist(), most, min(p.most_logged for p in packers)
        )
        if bounds is None:
            return None
        rows_bytes = np.stack([p.placed.num_packed * p.features.row_bytes for p in packers], axis=1)
        log = PackLog(placement, self.starts, bounds, rows_bytes)
        return log if all(packer.has_room_for(log) for packer in packers) else None

    def _pays(self, log: PackLog, folder: Path) -> bool:
        """Tells whether a log in ``folder`` costs less than writing rows to where they belong, and has room there."""
        sampled = sum(spec.file_bytes for spec in self.samples.manifest.arrays.values())  # is there already
        disk = shutil.disk_usage(folder).free + sampled - self._predicted_bytes
        if sum(log.spare_bytes) > min(self._disk_room(), disk):
            return False
        saved = sum(packer.saved_by(log) for packer in self.packers)
        return saved - 2 * log.work_bytes > LOG_WORTH_BYTES

    def is_filled(self, journal: Journal) -> bool:
        """Tells whether all rows were written before an interruption, though perhaps not put in order."""
        last = len(self.packers) - 1
        return (journal.file, journal.episode) >= (last, self.packers[last].num_episodes)

    def room_for_tables(self) -> int:
        """Counts the bytes of disk that tables of pieces may take: a small part of the features, within the limit."""
        return min(max(_TABLES_LEAST, self._graph.feature_bytes // _TABLES_SHARE), self._disk_room())

    def _disk_room(self) -> int:
        """Counts the bytes of disk that the run leaves of its limit."""
        limit = self.placement.manifest.config.get("disk_space")
        return sys.maxsize if limit is None else limit - self._predicted_bytes

    @property
    def _predicted_bytes(self) -> int:
        return self.placement.manifest.attributes["predicted"]["disk_bytes"]

    def note_filled(self, journal: Journal) -> None:
        """Notes that all rows are written."""
        journal.file, journal.episode, journal.chunk = len(self.packers), 0, 0
        journal.save()

    def _write_meta(self, files: OutputFiles, journal: Journal) -> None:
        """Writes the meta part of every record, and which rows are packed, for the passes to read."""
        samples, placement = self.samples, self.placement
        meta_at = self.starts[:, 0] if self.log is None else self.log.meta_at
        graphs = samples.in_turn(placement.packed_batches.tolist(), self.runtime, "pack-meta")
        shared = [SharedRows(p.section, placement, p.placed, self.runtime) for p in self.packers]
        caches = [
            CacheLookup(p.placed.host_ids, p.placed.device_ids, p.features.spec.shape[0], self.runtime)
            for p in self.packers
        ]
        places = 1 + len(self.packers)
        together = min(_TOGETHER_BYTES, self.runtime.budget.free_bytes // (16 * places))
        meta_writes, *ids_writes = (JoinedWrites(self.runtime, together) for _ in range(places))
        for graph, *parts in zip(graphs, *(one.by_batch() for one in shared), strict=True):
            packed_batch = parts[0][0]
            wanted = [graph.section(rows).ids for rows in self._graph.row_files]
            tables = []
            for cached, ids, (_, disk) in zip(caches, wanted, parts, strict=True):
                host, device = cached.find(ids)
                tables.append(AddressTable(*host, *device, *(disk or ())))
            blob = record.encode(graph, tables, samples.id_bytes)
            meta_writes.write(files.record_file(packed_batch), int(meta_at[packed_batch]), blob)
            journal.meta_crc[packed_batch] = _core.crc32c(blob)
            for packer, own, ids, table, writes in zip(
                self.packers, files.files, wanted, tables, ids_writes, strict=True
            ):
                packed = np.delete(ids, table.cached_positions())
                packer.note_packed(own, packed_batch, packed, writes)
        for writes in (meta_writes, *ids_writes):
            writes.flush()
        for one in shared:
            one.close()
        files.sync(*files.files)
        journal.meta_done = True
        journal.save()

    def _records_crcs(self, journal: Journal, crcs: list[np.ndarray]) -> list[int]:
        """Returns the checksum of each file of records, put together from those of what lies in it."""
        return [
            self._records_crc(range(*both), journal, crcs) for both in pairwise(self.placement.part_bounds)
        ]

    def _records_crc(self, records: range, journal: Journal, crcs: list[np.ndarray]) -> int:
        whole, sizes = 0, np.diff(self.starts, axis=1)
        for p in records:
            parts = [(int(journal.meta_crc[p]), int(sizes[p, 0]))]
            for k, packer in enumerate(self.packers):
                rows = packer.packed_bytes(p)
                shift = packer.shift_bytes(p) if rows else 0
                rest = int(sizes[p, 1 + k]) - shift - rows
                parts += [(_zeros_crc(shift), shift), (int(crcs[k][p]), rows), (_zeros_crc(rest), rest)]
            for crc, count in parts:
                whole = _core.crc32c_combine(whole, crc, count)
        return whole


def _clear(folder: Path) -> None:
    """Removes what other work left: its bytes would stay where this work writes none, in the padding."""
    (folder / _JOURNAL).unlink(missing_ok=True)  # first: killed here, it is as if nothing were there
    for path in folder.iterdir():
        manifests.remove(path)


def _zeros_crc(count: int) -> int:
    return _core.crc32c(np.zeros(max(count, 0), np.uint8))
