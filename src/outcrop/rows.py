"""RowSource: one way to get feature rows by node id, whatever holds them.

``source.read_rows(ids, out)`` equals ``out[:] = features[ids]`` bit for bit, for every implementation; all pass the
same conformance suite (tests/conformance). Rows are bytes here: dtype and width do not matter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import numpy as np

from outcrop import _core
from outcrop.errors import ArgumentError
from outcrop.runtime import Runtime
from outcrop.store.arrays import DiskArray
from outcrop.store.graph import Graph
from outcrop.store.placement import find_sorted


class RowSource(ABC):
    """Rows of ``row_bytes`` bytes, numbered ``0 .. num_rows - 1``."""

    num_rows: int
    row_bytes: int

    @abstractmethod
    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> dict[str, int]:
        """Fills ``out``, uint8 [len(ids) * row_bytes], with the rows ``ids``, int64, in any order, repeats allowed.

        Returns:
            How many rows came from each level, for example ``{"host": 10, "disk": 5}``.

        Raises:
            ArgumentError: An id is out of range, or ``out`` has another size.
            IoError: The disk refused.
        """

    @abstractmethod
    def close(self) -> None:
        """Gives memory and files back."""

    def _check(self, ids: np.ndarray, out: np.ndarray) -> None:
        if len(out) != len(ids) * self.row_bytes:
            raise ArgumentError(
                f"{len(ids)} rows of {self.row_bytes} bytes do not fit {len(out)} bytes of output"
            )
        if len(ids) and (ids.min() < 0 or ids.max() >= self.num_rows):
            bad = ids[(ids < 0) | (ids >= self.num_rows)][0]
            raise ArgumentError(f"row {bad} was asked for, there are {self.num_rows}")


@final
class HostRows(RowSource):
    """All rows in memory, held under the tag ``features``."""

    def __init__(self, features: DiskArray, runtime: Runtime):
        self.num_rows, self.row_bytes = features.num_rows, features.row_bytes
        self._workers = runtime.workers
        held = runtime.budget.empty("features", features.spec.data_bytes)
        features.read_bytes(0, held)
        features.check(_core.crc32c(held))
        self._table = held.reshape(self.num_rows, features.spec.stride_bytes)[:, : self.row_bytes]

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> dict[str, int]:
        self._check(ids, out)
        _core.gather_rows(self._workers, self._table, ids, out.reshape(len(ids), self.row_bytes))
        return {"host": len(ids)}

    def close(self) -> None:
        del self._table


@final
class MapRows(RowSource):
    """A memory map and the page cache: what ``numpy.memmap`` users do. A baseline."""

    def __init__(self, features: DiskArray):
        self.num_rows, self.row_bytes = features.num_rows, features.row_bytes
        self._map = features.memmap().reshape(self.num_rows, -1).view(np.uint8) if self.num_rows else None

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> dict[str, int]:
        self._check(ids, out)
        if self._map is not None:
            np.take(self._map, ids, axis=0, out=out.reshape(len(ids), self.row_bytes))
        return {"map": len(ids)}

    def close(self) -> None:
        self._map = None


@final
class DiskRows(RowSource):
    """Rows read from disk by the engine, page by page; ``merge=False`` reads every row on its own (``ondisk``).

    Args:
        scratch_bytes: Memory for pages in flight, held under the tag ``row-scratch``.
    """

    def __init__(self, features: DiskArray, runtime: Runtime, *, scratch_bytes: int, merge: bool = True):
        self.num_rows, self.row_bytes = features.num_rows, features.row_bytes
        self._features = features
        scratch_bytes = max(scratch_bytes, _core.RowReader.min_scratch_bytes(self.row_bytes))
        self._reader = _core.RowReader(
            runtime.io,
            runtime.budget,
            features.file,
            0,
            features.spec.stride_bytes,
            self.row_bytes,
            self.num_rows,
            scratch_bytes,
            merge,
        )

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> dict[str, int]:
        self._check(ids, out)
        self._reader.read_rows(ids, out.reshape(len(ids), self.row_bytes))
        return {"disk": len(ids)}

    def close(self) -> None:
        del self._reader


@final
class TieredRows(RowSource):
    """The hottest rows in memory over another source for the rest.

    Args:
        hot_ids: int64, ascending; row i of ``hot_rows`` (uint8, ``row_bytes`` each) belongs to ``hot_ids[i]``.
    """

    def __init__(self, hot_ids: np.ndarray, hot_rows: np.ndarray, below: RowSource, runtime: Runtime):
        self.num_rows, self.row_bytes = below.num_rows, below.row_bytes
        self._hot_ids, self._hot_rows, self._below = hot_ids, hot_rows, below
        self._runtime = runtime

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> dict[str, int]:
        self._check(ids, out)
        positions, rows = find_sorted(self._hot_ids, ids)
        missing = np.ones(len(ids), bool)
        missing[positions] = False
        wanted = ids[missing]
        # The rows from below land at the end of `out` and are expanded in place, as packed rows are.
        self._below.read_rows(wanted, out[len(positions) * self.row_bytes :])
        _core.expand_rows(self._runtime.workers, out, len(ids), self.row_bytes, positions.astype(np.int64))
        _core.fill_rows(out, len(ids), self.row_bytes, positions, rows, self._hot_rows, self.row_bytes)
        return {"host": len(positions), "disk": len(wanted)}

    def close(self) -> None:
        self._below.close()
        del self._hot_rows


@final
class PackedRows(RowSource):
    """The rows of one packed mini-batch: ``ids`` must be the batch's ``n_id``.

    Args:
        read: ``read(out)`` delivers the batch's rows (stages/load.py).
    """

    def __init__(self, n_id: np.ndarray, row_bytes: int, read: Callable[[np.ndarray], dict[str, int]]):
        self.num_rows, self.row_bytes = int(n_id.max(initial=-1)) + 1, row_bytes
        self._n_id, self._read = n_id, read

    def close(self) -> None:
        self._n_id = self._n_id[:0]

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> dict[str, int]:
        self._check(ids, out)
        if not np.array_equal(ids, self._n_id):
            raise ArgumentError("packed rows come as the whole mini-batch, in its order: pass its n_id")
        return self._read(out)


def scratch_share(memory_bytes: int) -> int:
    """Scratch for row-by-row reading: 1/32 of the budget, 64 KiB to 16 MiB."""
    return min(max(memory_bytes // 32, 64 << 10), 16 << 20)


def open_rows(graph: Graph, runtime: Runtime, mode: str) -> RowSource:
    """The row source of modes ``memory``, ``memmap``, ``ondisk`` and ``online`` (without a cache)."""
    features = graph.array(runtime, "features")
    if mode == "memory":
        return HostRows(features, runtime)
    if mode == "memmap":
        return MapRows(features)
    if mode in ("ondisk", "online"):
        return DiskRows(
            features, runtime, scratch_bytes=scratch_share(runtime.budget.limit_bytes), merge=mode == "online"
        )
    raise ArgumentError(f"mode {mode!r} is unknown; known: packed, online, memory, memmap, ondisk")
