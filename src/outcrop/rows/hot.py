"""A static cache over reads that are asked for and waited for separately: what mode ``online`` reads from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np

import outcrop._core as _core
from outcrop.rows.base import RowSource
from outcrop.runtime.runtime import Runtime
from outcrop.store.address_table import AddressTable
from outcrop.store.arrays import DiskArray
from outcrop.store.levels import Level, LevelCounts


class PendingReads(Protocol):
    """Stands for rows under way."""

    def wait(self) -> None:
        """Waits until they are there; raises what reading failed with."""
        ...


class RowStream(Protocol):
    """Reads rows while their consumer does something else."""

    num_rows: int
    row_bytes: int
    takes_gpu_ids: bool  # ids and positions may be tensors of the GPU, which are computed

    def submit(self, ids: np.ndarray, positions: np.ndarray | None, out: np.ndarray) -> PendingReads:
        """Starts ``out[positions] = features[ids]``; returns at once.

        Args:
            ids: int64, ascending.
            positions: int32; None: ``out`` has a row for each, in order.
            out: uint8 [n, row_bytes].
        """
        ...

    def close(self) -> None: ...


@final
class DiskStream(RowStream):
    """Reads rows from disk by the engine (core/io/row_stream.h), each page that a call needs once.

    Args:
        scratch_bytes: Memory for pages in flight, held under the tag ``row-scratch``.
    """

    takes_gpu_ids = False

    def __init__(self, features: DiskArray, runtime: Runtime, *, scratch_bytes: int):
        self.num_rows, self.row_bytes = features.num_rows, features.row_bytes
        self._features = features
        self._stream = _core.RowStream(
            runtime.io,
            runtime.budget,
            features.file,
            0,
            features.spec.stride_bytes,
            self.row_bytes,
            self.num_rows,
            max(scratch_bytes, _core.RowStream.min_scratch_bytes(self.row_bytes)),
        )
        if features.page_sums is not None:
            features.page_sums.guard(self._stream)

    def submit(self, ids: np.ndarray, positions: np.ndarray | None, out: np.ndarray) -> PendingReads:
        if positions is None:
            positions = np.arange(len(ids), dtype=np.int32)
        return self._stream.submit(ids, positions, out)

    def close(self) -> None:
        del self._stream


@dataclass
class StaticCache:
    """Holds what a static cache has.

    Attributes:
        index: Which rows and lists.
        rows: uint8, flat, those in host memory, in the order of their ids.
        device_rows: The same of those on a device, a tensor there, and its reservation; None: there are none.
        tiers: int32, for each cached row, in the order of ids: its number among ``rows``, or ``-1`` less its number
            among ``device_rows``. None: all are in host memory.
        device_lists: int64, ascending: whose lists are for a device; None: those of ``index`` are in host memory.
    """

    index: Any
    rows: np.ndarray
    device_rows: tuple[Any, Any] | None = None
    tiers: np.ndarray | None = None
    device_lists: np.ndarray | None = None


@dataclass(frozen=True)
class LocatedRows:
    """Says where the rows of a mini-batch lie, as the GPU that drew it has found.

    Attributes:
        missing: int64, ids of the rows that are read, ascending: an array, or a tensor of the GPU.
        positions: int32, as long, in the same place: the position of each in the batch.
        in_host, on_device: How many rows each cache has.
    """

    missing: Any
    positions: Any
    in_host: int
    on_device: int

    @property
    def levels(self) -> LevelCounts:
        """Counts how many rows come from each level."""
        return {Level.HOST: self.in_host, Level.DEVICE: self.on_device, Level.DISK: len(self.missing)}


@final
class HotRows(RowSource):
    """Serves the hottest rows from memory, the others through a stream. ``submit`` does not wait for the disk."""

    def __init__(self, cache: StaticCache, stream: RowStream, runtime: Runtime):
        self.num_rows, self.row_bytes = stream.num_rows, stream.row_bytes
        self._cache: StaticCache | None = cache
        self._stream, self._workers = stream, runtime.workers

    def submit(self, ids: np.ndarray, out: np.ndarray) -> tuple[PendingReads, LevelCounts]:
        """Copies the cached rows of ``ids`` into ``out``, uint8 [len(ids) * row_bytes], and starts reading the others.

        Returns:
            What to wait for before ``out`` is used or given up, and how many rows come from each level.
        """
        if self._cache is None:
            job = self._stream.submit(ids, None, out.reshape(len(ids), self.row_bytes))
            return job, {Level.HOST: 0, Level.DISK: len(ids)}
        missing, positions = self._cache.index.take_rows(
            self._workers, self._cache.rows, self.row_bytes, ids, out
        )
        job = self._stream.submit(missing, positions, out.reshape(len(ids), self.row_bytes))
        return job, {Level.HOST: len(ids) - len(missing), Level.DISK: len(missing)}

    def submit_uncached(self, ids: np.ndarray, out: np.ndarray) -> tuple[PendingReads, AddressTable]:
        """Starts reading as :meth:`submit` does, but copies no cached rows: the table says where they are."""
        assert self._cache is not None
        positions, rows, missing, missing_positions = self._cache.index.find_rows(ids)
        job = self._stream.submit(missing, missing_positions, out.reshape(len(ids), self.row_bytes))
        where = rows if self._cache.tiers is None else self._cache.tiers[rows]
        host, device = where >= 0, where < 0
        return job, AddressTable(positions[host], where[host], positions[device], -1 - where[device])

    def submit_located(self, rows: LocatedRows, out: np.ndarray) -> PendingReads:
        """Does as :meth:`submit_uncached`, of a batch whose rows a GPU has looked up: nothing is looked up here."""
        return self._stream.submit(rows.missing, rows.positions, out.reshape(-1, self.row_bytes))

    def missing(self, ids: np.ndarray) -> np.ndarray:
        """Returns those of ``ids`` that are read, ascending."""
        if self._cache is None:
            return ids
        nothing = np.zeros(0, np.uint8)
        return self._cache.index.take_rows(self._workers, nothing, 0, ids, nothing)[0]

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> LevelCounts:
        self._check(ids, out)
        job, levels = self.submit(ids, out)
        job.wait()
        return levels

    def drop_cache(self) -> None:
        """Gives back the memory of the cached rows: from now on all are read. Not with :meth:`submit_uncached`."""
        self._cache = None

    def close(self) -> None:
        self._stream.close()
        self._cache = None
