"""Load: turn sampled batches into mini-batches in memory, through overlapped stages.

Source: DiskGNN sections 4 and 5.3. The stages: *submit* leases a buffer and starts the reads, *read* waits for them and
checks what came, *assemble* puts every row in its place, *share* (``read_shared``) reads what lies in the disk cache,
*transfer* makes tensors (and copies to the device), *check* compares every row where ``paranoid`` asks for it. The
consumer computes. Modes differ in where the rows come from and
in nothing else. These are names of spans, which reports read: methods may be called otherwise.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from outcrop.config import CPU, DeviceConfig
from outcrop.device import gpu_named
from outcrop.errors import ArgumentError, CancelledError
from outcrop.loading.buffers import BufferPool, HostBuffer, host_pool
from outcrop.loading.feeders import (
    BatchInFlight,
    BatchStructures,
    Feeder,
    PackedFeeder,
    RecordedStructures,
    RowFeeder,
    ScheduledFeeder,
    ScheduledStructures,
)
from outcrop.loading.online.feeder import HopwiseSampler, OnlineFeeder
from outcrop.rows import HotRows, RowSource, RowStream, ScheduledRows, StaticCache
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.pipeline import Pipeline, SerialPipeline, Stage
from outcrop.runtime.runtime import Runtime
from outcrop.store import record
from outcrop.store.arrays import DiskArray
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.store.graph_types import RowFile
from outcrop.store.levels import Level, LevelCounts
from outcrop.store.packed import PackedRecords
from outcrop.store.samples import SampleSet
from outcrop.store.targets import open_targets, target_bytes

if TYPE_CHECKING:
    from outcrop.device.budget import DeviceBudget
    from outcrop.loading.row_check import RowCheck
    from outcrop.loading.transfer import Arrays, BatchInTransfer, Transfer
    from outcrop.store.minibatch import MiniBatch

P = TypeVar("P")  # a position in a schedule


def __getattr__(name: str) -> Any:
    """Gives ``MODES``, the names of all modes, which were written here."""
    if name != "MODES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return tuple(mode.name for mode in import_module("outcrop.loading.modes").MODES)


@dataclass
class LoadStats:
    """Counts what one pass over a split delivered.

    Attributes:
        rows_by_level: Rows that came from each level.
        rows_by_file: The same of each row file of the graph; empty before the first batch.
        bytes_needed: Bytes of rows that had to come from disk.
    """

    batches: int = 0
    rows_by_level: LevelCounts = field(default_factory=dict)
    rows_by_file: list[LevelCounts] = field(default_factory=list)
    bytes_needed: int = 0

    def add(self, levels: Sequence[LevelCounts], needed: int) -> None:
        """Adds a batch.

        Args:
            levels: Rows of each row file that came from each level.
            needed: Bytes of rows that had to come from disk.
        """
        self.batches += 1
        self.bytes_needed += needed
        self.rows_by_file.extend({} for _ in levels[len(self.rows_by_file) :])
        for of_file, counts in zip(self.rows_by_file, levels, strict=True):
            for level, rows in counts.items():
                of_file[level] = of_file.get(level, 0) + rows
                self.rows_by_level[level] = self.rows_by_level.get(level, 0) + rows

    def include(self, other: LoadStats) -> None:
        """Adds what ``other`` has counted."""
        if other.batches:
            self.add(other.rows_by_file, other.bytes_needed)
            self.batches += other.batches - 1


@dataclass
class Between:
    """Adds up what was done between batches of a pass that is no part of it, such as preparing those that follow.

    Attributes:
        seconds: How long the pass stood still for it.
        bytes_read, read_ops: What this process read for it.
    """

    seconds: float = 0.0
    bytes_read: int = 0
    read_ops: int = 0


class LoadSession:
    """Holds buffers, caches and row source of one mode, kept from epoch to epoch.

    Args:
        pool: Batch buffers (:func:`make_pool`).
        transfer: Makes tensors of what was read.
        graph: Has the targets of seeds whose labels are no classes.
    """

    def __init__(
        self,
        feeder: Feeder,
        pool: BufferPool[HostBuffer],
        transfer: Transfer,
        runtime: Runtime,
        graph: Graph,
    ):
        self._targets = open_targets(graph, runtime)
        self._feeder, self._runtime, self._pool, self._transfer = feeder, runtime, pool, transfer
        self._closed = False
        self._check: RowCheck | None = None
        self._current: weakref.ref[Loader] | None = None

    def compare_rows(self, check: RowCheck) -> None:
        """Has every row of the passes from now on compared by ``check`` before a batch is handed out."""
        self._check = check

    def batches(
        self,
        split: str,
        epoch: int = 0,
        *,
        numbers: Sequence[int] | None = None,
        complete: Callable[[BatchGraph], BatchGraph] | None = None,
        arrays: Arrays | None = None,
        overlapped: bool = True,
    ) -> Loader:
        """Begins a pass over ``split``; use it as an iterator, close it (or let it go) when done.

        Args:
            numbers: Which batches of the epoch, in which order; None: all.
            complete: Adds to the structure of each batch, in a stage of its own.
            arrays: What of the structure goes to a GPU with the rows, beside ``rowptr`` and ``col``.
            overlapped: Else the stages run one after another when a batch is asked for, to compare with.

        A session makes one pass at a time, because the batches that one has under way could take the buffers that the
        other waits for: a new pass ends the one before, whose iterator then raises CancelledError.

        Raises:
            ArgumentError: The session was closed.
        """
        if self._closed:
            raise ArgumentError("the session was closed: open another to load more")
        previous = self._current() if self._current else None
        if previous is not None:
            previous.supersede()
        source = self._feeder.source(split, epoch, numbers)
        steps = PassSteps(self._completing(complete), arrays, self._check, overlapped)
        loader = Loader(self._feeder, self._pool, self._transfer, split, epoch, self._runtime, source, steps)
        self._current = weakref.ref(loader)
        return loader

    def _completing(
        self, complete: Callable[[BatchGraph], BatchGraph] | None
    ) -> Callable[[BatchGraph], BatchGraph] | None:
        """Returns ``complete``, and the targets of the seeds with it."""
        targets = self._targets
        if targets is None or complete is None:
            return targets or complete
        return lambda batch: targets(complete(batch))

    def drawn(self, split: str, epoch: int) -> Iterable[Any]:
        """Returns what a pass over ``split`` would load, in order, without loading it."""
        return self._feeder.source(split, epoch)

    def missing_rows(self, ids: np.ndarray, row_file: int = 0) -> np.ndarray:
        """Returns those of ``ids``, ascending, whose rows mode ``online`` reads from disk: the others are cached.

        Args:
            row_file: Number of the row file that the ids are of.
        """
        assert isinstance(self._feeder, OnlineFeeder)
        return self._feeder.missing_rows(ids, row_file)

    def make_room(self, num_rows: Sequence[int]) -> None:
        """Makes buffers large enough for batches with so many rows of each row file, as loading one does.

        Raises:
            BudgetError: The budget has not room for them, whatever caches give back.
        """
        self._feeder.make_room(self._pool.lease(threading.Event()).buffer, num_rows)

    @property
    def buffers(self) -> int:
        """Counts the batches that can be under way."""
        return len(self._pool)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        previous = self._current() if self._current else None
        if previous is not None:
            previous.supersede()
        self._feeder.close()
        self._runtime.note_device_peaks(self._transfer.peak_by_tag())
        self._transfer.close()
        self._pool.close()

    def __enter__(self) -> LoadSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass(frozen=True)
class PassSteps:
    """Says which steps the batches of a pass go through, beside those that all go through.

    Attributes:
        complete: Adds to the structure of each batch; None: nothing does.
        arrays: What of the structure goes to a GPU with the rows, beside ``rowptr`` and ``col``.
        check: Compares every row; None: nobody does.
        overlapped: Else the steps run one after another when a batch is asked for.
    """

    complete: Callable[[BatchGraph], BatchGraph] | None = None
    arrays: Arrays | None = None
    check: RowCheck | None = None
    overlapped: bool = True


class Loader:
    """Goes over the mini-batches of one epoch. ``stats`` counts what was delivered; ``between`` has nothing."""

    def __init__(
        self,
        feeder: Feeder,
        pool: BufferPool[HostBuffer],
        transfer: Transfer,
        split: str,
        epoch: int,
        runtime: Runtime,
        source: Iterable[Any],
        asked: PassSteps,
    ):
        complete, check, overlapped = asked.complete, asked.check, asked.overlapped
        self.stats, self.between = LoadStats(), Between()
        self._transfer = transfer
        self._superseded = False
        trace = runtime.trace
        stopped = threading.Event()

        def stop() -> None:
            stopped.set()
            pool.wake()
            transfer.wake()

        def traced(name: str, step: Any) -> Any:
            numbers = count()

            def run(item: Any) -> Any:
                with trace.span(name, split=split, epoch=epoch, batch=next(numbers)):
                    return step(item)

            return run

        lease = traced("lease", pool.lease)  # waiting for a free buffer is no work: it has a span of its own

        def submit(what: Any) -> BatchInFlight:
            if not overlapped:
                check_not_starved()
            return feeder.submit(what, lease(stopped))

        def deliver(batch: BatchInFlight) -> tuple[BatchInTransfer, BatchInFlight]:
            from outcrop.loading.transfer import LoadedBatch

            assert batch.graph is not None
            return transfer.deliver(
                LoadedBatch(batch.graph, batch.lease, batch.table), stopped, asked.arrays
            ), batch

        def add(batch: BatchInFlight) -> BatchInFlight:
            assert complete is not None
            assert batch.graph is not None
            batch.graph = complete(batch.graph)
            return batch

        compared = count()

        def compare(
            delivered: tuple[BatchInTransfer, BatchInFlight],
        ) -> tuple[BatchInTransfer, BatchInFlight]:
            assert check is not None
            arriving, batch = delivered
            assert batch.graph is not None
            check.compare(
                arriving, batch.graph, f"batch {next(compared)} of this pass over {split!r} of epoch {epoch}"
            )
            return delivered

        def check_not_starved() -> None:
            pool.check_not_starved()
            transfer.check_not_starved()

        steps = (
            ("submit", submit),
            ("read", feeder.read),
            ("assemble", feeder.assemble),
            ("share", feeder.read_shared),
            *((("complete", add),) if complete is not None else ()),
            ("transfer", deliver),
            *((("check", compare),) if check is not None else ()),
        )
        drawn = _drawn(source, traced)
        stages = [Stage(name, traced(name, step)) for name, step in steps]
        self._pipeline: (
            Pipeline[tuple[BatchInTransfer, BatchInFlight]]
            | SerialPipeline[tuple[BatchInTransfer, BatchInFlight]]
        ) = (
            Pipeline(drawn, stages, while_waiting=check_not_starved, on_cancel=stop)
            if overlapped
            else SerialPipeline(drawn, stages)
        )

    def __iter__(self) -> Iterator[MiniBatch]:
        return self

    def __next__(self) -> MiniBatch:
        if self._superseded:
            raise CancelledError(
                "this pass was ended: its session was closed, or started another pass; open a session "
                "for each pass that runs at the same time"
            )
        try:
            delivered, loaded = next(self._pipeline)
        except StopIteration:
            self.check()
            raise
        batch = delivered.take()
        loaded.lease.mark_taken()
        self.stats.add(loaded.levels, loaded.needed)
        return batch

    def check(self) -> None:
        """Looks whether all rows of the batches so far were found; on a GPU that shows when their transfer is over.

        Called at the end of a pass. Raises ArgumentError where one was not.
        """
        self._transfer.check()

    def close(self) -> None:
        self._pipeline.close()

    def supersede(self) -> None:
        """Ends the pass, and says so if it is not over and somebody asks for more."""
        self._superseded = self._pipeline.running
        self.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _drawn(source: Iterable[Any], traced: Any) -> Iterator[Any]:
    """Yields from ``source``, with a span for the time that each structure takes to come (sampling, in mode online)."""
    batches, end = iter(source), object()
    draw = traced("draw", lambda _: next(batches, end))
    while (batch := draw(None)) is not end:
        yield batch
        del batch


def read_cache(runtime: Runtime, packed: PackedRecords, name: str) -> np.ndarray:
    """Reads a cache file of the pack stage into memory, flat uint8, held under its name."""
    array = DiskArray(runtime, packed.path, packed.manifest.arrays[name])
    try:
        return array.read(name).reshape(-1).view(np.uint8)
    finally:
        array.close()


def packed_session(
    graph: Graph,
    samples: SampleSet,
    packed: PackedRecords,
    rows: Sequence[RowSource],
    runtime: Runtime,
    device: DeviceConfig = CPU,
) -> LoadSession:
    """Opens a session of mode ``packed``; ``rows`` serve the splits that were not packed, one for each row file."""
    from outcrop.loading.transfer import rows_of, transfer_to  # brings torch

    files, gpu, placement = graph.row_files, gpu_named(device.name), packed.placement
    pool = host_pool(
        runtime,
        placement.buffers,
        placement.buffer_rows_bytes,
        placement.buffer_meta_bytes,
        gpu=gpu,
        values=[
            (one.section(samples).max_rows, file) for one, file in zip(placement.files, files, strict=True)
        ],
    )
    host_caches = [read_cache(runtime, packed, f"{one.prefix}host_cache") for one in placement.files]
    first = placement.files[0]
    cache = (
        read_cache(runtime, packed, f"{first.prefix}device_cache") if first.num_cached(Level.DEVICE) else None
    )
    transfer = transfer_to(
        device,
        rows_of(files, placement.row_bytes, runtime),
        # What training needs, and plans of before keep; batches with more make room for it.
        batch_bytes=sum(one.section(samples).max_rows * one.row_bytes for one in placement.files)
        + 2 * samples.max_record_bytes
        + target_bytes(graph, samples.max_seeds),
        device_cache=cache,
        host_cache=None if gpu is None or len(files) > 1 else host_caches[0],
    )
    fallback = RowFeeder(RecordedStructures(samples, runtime), files, rows)
    # A GPU takes cached rows from host memory itself, of one row file.
    feeder = PackedFeeder(packed, host_caches if gpu is None or len(files) > 1 else None, fallback)
    return LoadSession(feeder, pool, transfer, runtime, graph)


def make_pool(
    graph: Graph,
    runtime: Runtime,
    *,
    buffers: int,
    max_rows: Sequence[int] | None = None,
    device: DeviceConfig,
) -> BufferPool[HostBuffer]:
    """Makes batch buffers for modes that fetch rows by id.

    Args:
        max_rows: Rows of each row file in any batch, at most; None: nobody knows, and they grow.
    """
    files = graph.row_files
    counts = [0] * len(files) if max_rows is None else max_rows
    row_bytes = [buffer_bytes(file, count) for file, count in zip(files, counts, strict=True)]
    return host_pool(
        runtime,
        buffers,
        row_bytes,
        0,
        gpu=gpu_named(device.name),
        values=list(zip(counts, files, strict=True)),
    )


def buffer_bytes(file: RowFile, max_rows: int) -> int:
    """Counts the bytes of a buffer for ``max_rows`` rows of one row file."""
    return record.align_page(max_rows * file.row_bytes) + 2 * PAGE_BYTES if max_rows else 0


def row_session(
    graph: Graph,
    structures: BatchStructures,
    rows: Sequence[RowSource],
    pool: BufferPool[HostBuffer],
    runtime: Runtime,
    device: DeviceConfig,
) -> LoadSession:
    """Opens a session of one of the other modes.

    Args:
        rows: Where the rows of each row file lie.
    """
    from outcrop.loading.transfer import rows_of, transfer_to  # brings torch
    from outcrop.rows.unified import UnifiedRows

    tables = [source.table for source in rows if isinstance(source, UnifiedRows)]
    seen = rows_of(graph.row_files, [source.row_bytes for source in rows], runtime)
    transfer = transfer_to(device, seen, table=tables[0] if tables else None)
    feeder = RowFeeder(structures, graph.row_files, rows, in_place=bool(tables))
    return LoadSession(feeder, pool, transfer, runtime, graph)


def scheduled_session(
    graph: Graph,
    structures: ScheduledStructures[P],
    rows: Sequence[ScheduledRows[P]],
    pool: BufferPool[HostBuffer],
    runtime: Runtime,
    device: DeviceConfig,
) -> LoadSession:
    """Opens a session of mode ``belady`` or ``partition``; ``rows``, of each row file, are told which batch comes."""
    from outcrop.loading.transfer import rows_of, transfer_to  # brings torch

    files = graph.row_files
    transfer = transfer_to(device, rows_of(files, [source.row_bytes for source in rows], runtime))
    return LoadSession(ScheduledFeeder(structures, files, rows), pool, transfer, runtime, graph)


def online_session(
    graph: Graph,
    sampler: HopwiseSampler,
    caches: Sequence[StaticCache],
    streams: Sequence[RowStream],
    pool: BufferPool[HostBuffer],
    runtime: Runtime,
    device: DeviceConfig,
    device_batch: int,
    device_budget: DeviceBudget | None = None,
) -> LoadSession:
    """Opens a session of mode ``online``. A GPU puts rows together: from its cache, the host's, and what was read.

    Args:
        caches: What is cached of each row file.
        streams: Reads the rows of each.
        device_batch: Bytes of a batch on a GPU, as far as known ahead.
        device_budget: The device's, some of which sampling holds.
    """
    from outcrop.loading.transfer import rows_of, transfer_to  # brings torch

    rows = [HotRows(cache, stream, runtime) for cache, stream in zip(caches, streams, strict=True)]
    files = graph.row_files
    seen = rows_of(files, [source.row_bytes for source in rows], runtime)
    if gpu_named(device.name) is None or len(files) > 1:
        transfer = transfer_to(device, seen, batch_bytes=device_batch, budget=device_budget)
        return LoadSession(OnlineFeeder(sampler, graph, rows), pool, transfer, runtime, graph)
    (cache,) = caches
    transfer = transfer_to(
        device,
        seen,
        batch_bytes=device_batch,
        device_cache=cache.device_rows,
        host_cache=cache.rows,
        budget=device_budget,
    )
    cache.device_rows = None  # the transfer holds them now
    return LoadSession(OnlineFeeder(sampler, graph, rows, defer_cached=True), pool, transfer, runtime, graph)
