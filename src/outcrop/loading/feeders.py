"""Where the batches of each mode come from: the stages of loading up to the transfer.

A feeder gives what a pass goes over (``source``), begins a batch in a leased buffer without waiting for the disk
(``submit``), waits for what was read (``read``), puts rows in their places (``assemble``, ``read_shared``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

import outcrop._core as _core
from outcrop.errors import ArgumentError
from outcrop.loading.buffers import HostBuffer, Lease
from outcrop.rows import PendingReads, RowSource, ScheduledRows
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.sampler import BatchSampler
from outcrop.store import record
from outcrop.store.address_table import AddressTable
from outcrop.store.batches import BatchGraph
from outcrop.store.graph_types import RowFile
from outcrop.store.levels import Level, LevelCounts
from outcrop.store.packed import PackedRecords
from outcrop.store.samples import SampleSet

P = TypeVar("P")  # a position in a schedule
P_co = TypeVar("P_co", covariant=True)


@dataclass
class BatchInFlight:
    """Carries a batch on its way through the stages.

    Attributes:
        graph: Its structure; None until that is read.
        lease: The right to the buffer that its rows are read into.
        number: Its number in the run; -1 where it is not read from a record.
        reads: What was begun for it; None where nothing was, or what was is done.
        position: Where it stands in the schedule of a :class:`outcrop.rows.ScheduledRows`.
        table: Which of its rows caches have, of the only row file; None where no cache has any, or a GPU has looked
            them up.
        tables: Which of its rows caches have, of each row file, where they come from a record.
        levels: How many of its rows came from each level, of each row file.
        needed: Bytes of its rows that had to come from disk.
    """

    graph: BatchGraph | None
    lease: Lease[HostBuffer]
    number: int = -1
    reads: PendingReads | None = None
    position: Any = None
    table: AddressTable | None = None
    tables: tuple[AddressTable, ...] = ()
    levels: Sequence[LevelCounts] = ()
    needed: int = 0

    def wait(self) -> None:
        """Waits for what was begun; raises what reading failed with."""
        reads, self.reads = self.reads, None
        if reads is not None:
            reads.wait()


class Feeder(Protocol):
    """Gives the batches of one mode: the stages up to the transfer."""

    def source(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterable[Any]: ...
    def submit(self, what: Any, lease: Lease[HostBuffer]) -> BatchInFlight: ...
    def read(self, batch: BatchInFlight) -> BatchInFlight: ...
    def assemble(self, batch: BatchInFlight) -> BatchInFlight: ...
    def read_shared(self, batch: BatchInFlight) -> BatchInFlight: ...
    def make_room(self, buffer: HostBuffer, num_rows: Sequence[int]) -> None:
        """Makes ``buffer`` large enough for a batch with so many rows of each row file."""
        ...

    def close(self) -> None: ...


class BatchStructures(Protocol):
    """Gives the batch structures of a pass, in order: of the batches ``numbers`` of the epoch, None: of all."""

    def batches(
        self, split: str, epoch: int, numbers: Sequence[int] | None = None
    ) -> Iterator[BatchGraph]: ...


class ScheduledStructures(BatchStructures, Protocol[P_co]):
    """Gives batch structures whose place in a schedule is known."""

    def scheduled(self, split: str, epoch: int) -> Iterator[tuple[P_co, BatchGraph]]:
        """Yields each with what the row source is told before (:meth:`outcrop.rows.ScheduledRows.advance_to`)."""
        ...


class RecordedStructures:
    """Gives batch structures from the sample stage."""

    def __init__(self, samples: SampleSet, runtime: Runtime):
        self._samples = samples
        self._buffer = runtime.budget.empty("batch-meta", samples.max_record_bytes)

    def batches(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterator[BatchGraph]:
        every = self._samples.group(split).batches(epoch)
        for batch in every if numbers is None else (every[n] for n in numbers):
            yield self._samples.read(batch, self._buffer)

    def scheduled(self, split: str, epoch: int) -> Iterator[tuple[int, BatchGraph]]:
        """Yields each with the number of the batch in the sample set."""
        return zip(self._samples.group(split).batches(epoch), self.batches(split, epoch), strict=True)


class SampledStructures:
    """Draws batch structures on the fly; the same that the sample stage writes."""

    def __init__(self, sampler: BatchSampler):
        self._sampler = sampler

    def batches(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterator[BatchGraph]:
        config = self._sampler.config
        yield from self._sampler.epoch(split, config.epoch_number(split, epoch), numbers)


def room_bytes(rows_bytes: int) -> int:
    """Counts the bytes of a buffer for rows of so many bytes."""
    return record.align_page(rows_bytes) + 2 * PAGE_BYTES


class InPlace:
    """Feeds rows that are in their places once they are read."""

    def assemble(self, batch: BatchInFlight) -> BatchInFlight:
        return batch

    def read_shared(self, batch: BatchInFlight) -> BatchInFlight:
        return batch


class RowFeeder(InPlace):
    """Feeds modes that fetch rows by id from a RowSource for each row file: all but packed and online.

    Args:
        files: The row files of the graph.
        rows: Where the rows of each lie.
        in_place: The transfer takes rows where they are: none are read here.
    """

    def __init__(
        self,
        structures: BatchStructures,
        files: Sequence[RowFile],
        rows: Sequence[RowSource],
        *,
        in_place: bool = False,
    ):
        self._structures, self._in_place = structures, in_place
        self._files, self._rows = tuple(files), tuple(rows)

    def source(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterable[Any]:
        return self._structures.batches(split, epoch, numbers)

    def submit(self, what: Any, lease: Lease[HostBuffer]) -> BatchInFlight:
        if self._in_place:
            return BatchInFlight(what, lease)
        self.make_room(lease.buffer, what.num_rows(self._files))
        return BatchInFlight(what, lease)

    def make_room(self, buffer: HostBuffer, num_rows: Sequence[int]) -> None:
        for held, rows, count in zip(buffer.rows, self._rows, num_rows, strict=True):
            held.make_room(room_bytes(count * rows.row_bytes), count)

    def read(self, batch: BatchInFlight) -> BatchInFlight:
        graph = batch.graph
        assert graph is not None
        if self._in_place:
            batch.levels = [{Level.HOST: count} for count in graph.num_rows(self._files)]
            return batch
        parts = zip(self._files, self._rows, batch.lease.buffer.rows, strict=True)
        batch.levels = [_read_section(graph.section(file).ids, rows, held.x) for file, rows, held in parts]
        for rows, levels in zip(self._rows, batch.levels, strict=True):
            count = sum(n for level, n in levels.items() if level in (Level.DISK, Level.MAP))
            batch.needed += count * rows.row_bytes
        return batch

    def close(self) -> None:
        for rows in self._rows:
            rows.close()


def _read_section(ids: np.ndarray, rows: RowSource, buffer: np.ndarray) -> LevelCounts:
    return rows.read_rows(ids, buffer[: len(ids) * rows.row_bytes])


class ScheduledFeeder(RowFeeder, Generic[P]):
    """Feeds modes whose row source must know which batch comes: belady and partition."""

    def __init__(
        self,
        structures: ScheduledStructures[P],
        files: Sequence[RowFile],
        rows: Sequence[ScheduledRows[P]],
    ):
        super().__init__(structures, files, rows)
        self._scheduled, self._scheduled_rows = structures, rows

    def source(
        self, split: str, epoch: int, numbers: Sequence[int] | None = None
    ) -> Iterable[tuple[P, BatchGraph]]:
        if numbers is not None:
            raise ArgumentError(
                "modes belady and partition go over whole epochs: ranks, and going on within one, need another mode"
            )
        return self._scheduled.scheduled(split, epoch)

    def submit(self, what: Any, lease: Lease[HostBuffer]) -> BatchInFlight:
        position, graph = what
        batch = super().submit(graph, lease)
        batch.position = position
        return batch

    def read(self, batch: BatchInFlight) -> BatchInFlight:
        for rows in self._scheduled_rows:
            rows.advance_to(batch.position)
        return super().read(batch)


class PackedFeeder:
    """Feeds mode packed: one record per batch, expanded in place, cached rows filled in.

    Splits that were not packed are read row by row through ``fallback``. Without ``host_caches``, one for each row
    file, the rows of that level are left to the transfer.
    """

    def __init__(self, packed: PackedRecords, host_caches: Sequence[np.ndarray] | None, fallback: RowFeeder):
        self._packed, self._host_caches, self._fallback = packed, host_caches, fallback

    def source(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterable[Any]:
        batches = self._packed.batches_of(split, epoch)
        if not all(self._packed.holds(b) for b in batches):
            return self._fallback.source(split, epoch, numbers)
        return batches if numbers is None else [batches[n] for n in numbers]

    def submit(self, what: Any, lease: Lease[HostBuffer]) -> BatchInFlight:
        if isinstance(what, BatchGraph):
            return self._fallback.submit(what, lease)
        reads = self._packed.submit(what, lease.buffer.meta, [rows.x for rows in lease.buffer.rows])
        return BatchInFlight(None, lease, what, reads)

    def read(self, batch: BatchInFlight) -> BatchInFlight:
        if batch.graph is not None:
            return self._fallback.read(batch)
        batch.wait()
        batch.graph, batch.tables = self._packed.decode(batch.number, batch.lease.buffer.meta)
        batch.table = batch.tables[0] if len(batch.tables) == 1 else None
        batch.needed = self._packed.needed_bytes(batch.number)
        return batch

    def assemble(self, batch: BatchInFlight) -> BatchInFlight:
        levels = []
        for number, (table, rows) in enumerate(zip(batch.tables, self._packed.rows, strict=False)):
            x, count = batch.lease.buffer.rows[number].x, self._packed.num_rows(batch.number, number)
            rows.expand(batch.number, table, count, x)
            if self._host_caches is not None:
                _core.fill_rows(
                    x,
                    count,
                    rows.row_bytes,
                    table.host_positions,
                    table.host_rows,
                    self._host_caches[number],
                    rows.row_bytes,
                )
            levels.append(
                {
                    Level.DEVICE: len(table.device_positions),
                    Level.HOST: len(table.host_positions),
                    Level.DISK_CACHE: len(table.disk_positions),
                    Level.PACKED: count - table.num_cached,
                }
            )
        batch.levels = tuple(levels) or batch.levels
        return batch

    def read_shared(self, batch: BatchInFlight) -> BatchInFlight:
        for number, (table, rows) in enumerate(zip(batch.tables, self._packed.rows, strict=False)):
            count = self._packed.num_rows(batch.number, number)
            rows.read_shared(table, count, batch.lease.buffer.rows[number].x)
        return batch

    def make_room(self, buffer: HostBuffer, num_rows: Sequence[int]) -> None:
        """Does nothing: buffers hold every batch of the run."""

    def close(self) -> None:
        self._fallback.close()
        self._host_caches = None
