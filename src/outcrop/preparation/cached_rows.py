"""Which rows are cached: the most wanted ones, counted over the batches, and what each batch finds there.

A row of w bytes that c batches want costs c w bytes to read packed, and w bytes of memory to cache: per byte of memory
it saves c, whatever its width. So the best cache holds the rows that are wanted most, over all row files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

import outcrop._core as _core
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph_types import RowFile
from outcrop.store.placement import find_sorted
from outcrop.store.samples import SampleSection, SampleSet

_BLOCK_NODES = 1 << 17
ID_BYTES = 16  # of each row that is cached, while it is chosen
_NARROW_BYTES = 64  # what id and address of a row cost is a fourth of that


@dataclass
class CachedRows:
    """Holds the ids of the rows of a row file that are cached in host memory and on the device: int64, ascending."""

    host_ids: np.ndarray
    device_ids: np.ndarray


def least_cached_bytes(files: Sequence[RowFile]) -> int:
    """Returns the bytes from which on a row is cached: narrower ones are where there are no others alone."""
    return _NARROW_BYTES if len(files) > 1 else 1


def wanted_ids(section: SampleSection, packed: np.ndarray, runtime: Runtime) -> Iterator[np.ndarray]:
    """Reads the ids of each of the ``packed`` batches, in turn into one buffer."""
    return section.in_turn(packed.tolist(), runtime, "plan")


def choose_cached_rows(
    files: Sequence[RowFile],
    samples: SampleSet,
    packed: np.ndarray,
    device_bytes: int,
    host_bytes: int,
    runtime: Runtime,
) -> list[CachedRows]:
    """Returns for each row file the most wanted rows, as many as fit ``device_bytes``, and those after them, as many as
    fit ``host_bytes`` (ties: row file, then lower id); only wanted ones.
    """
    nothing = np.zeros(0, np.int64)
    chosen = [CachedRows(nothing, nothing) for _ in files]
    least = least_cached_bytes(files)
    narrow = min((rows.row_bytes for rows in files if rows.row_bytes >= least), default=0)
    if not narrow or device_bytes // narrow + host_bytes // narrow == 0:
        return chosen
    counted = [rows for rows in files if rows.row_bytes >= least and rows.num_rows]
    room = memory_tables.PLAN_COUNTERS.bytes_of(runtime.budget.free_bytes)
    every = sum(rows.num_rows for rows in counted)
    counters = [
        BatchCounter(rows.num_rows, samples.section(rows), packed, runtime, room * rows.num_rows // every)
        for rows in counted
    ]
    histograms = [counter.histogram() for counter in counters]
    widths = [rows.row_bytes for rows in counted]
    most = runtime.budget.free_bytes // ID_BYTES
    device_rows = _most_wanted(histograms, widths, device_bytes, most)
    left = [_without(histogram, rows) for histogram, rows in zip(histograms, device_rows, strict=True)]
    host_rows = _most_wanted(left, widths, host_bytes, most - sum(device_rows))
    held = runtime.budget.reserve("plan", ID_BYTES * (sum(device_rows) + sum(host_rows)))
    for rows, counter, histogram, on_device, on_host in zip(
        counted, counters, histograms, device_rows, host_rows, strict=True
    ):
        both = counter.top(histogram, on_device + on_host)
        device = counter.top(histogram, on_device)
        host = both[~np.isin(both, device, assume_unique=True)] if len(device) else both
        chosen[rows.number] = CachedRows(host, device)
    held.release()
    return chosen


def _most_wanted(
    histograms: Sequence[np.ndarray], row_bytes: Sequence[int], room: int, most: int
) -> list[int]:
    """Counts for each row file the rows that are cached, when those that are wanted most go first.

    Args:
        histograms: How many rows of each row file are wanted by c batches, int64 [c].
        room: Bytes for all of them.
        most: Rows of all of them.
    """
    taken = [0] * len(histograms)
    for count in np.flatnonzero(sum(histograms))[::-1].tolist():
        for number, (histogram, width) in enumerate(zip(histograms, row_bytes, strict=True)):
            rows = min(int(histogram[count]), room // width, most)
            taken[number] += rows
            room, most = room - rows * width, most - rows
    return taken


def _without(histogram: np.ndarray, rows: int) -> np.ndarray:
    """Returns the histogram without the ``rows`` that are wanted most."""
    left = histogram.copy()
    for count in np.flatnonzero(histogram)[::-1].tolist():
        gone = min(int(left[count]), rows)
        left[count] -= gone
        rows -= gone
    return left


class BatchCounter:
    """Counts how many batches want each row of a row file, over ranges of rows whose counters fit in ``room`` bytes."""

    def __init__(
        self, num_rows: int, section: SampleSection, packed: np.ndarray, runtime: Runtime, room: int
    ):
        self._num_nodes, self._section, self._packed, self._runtime = num_rows, section, packed, runtime
        self._range_nodes = max(min(num_rows, room // 4), 1)
        self._counts = runtime.budget.empty("plan", self._range_nodes * 4).view(np.uint32)
        self._whole = False  # counts of the only range are there

    def histogram(self) -> np.ndarray:
        """Counts the rows that c batches want, for c from 0 to all batches: int64; 0 for c = 0."""
        found = np.zeros(len(self._packed) + 1, np.int64)
        for _, counts in self.ranges():
            for start in range(0, len(counts), _BLOCK_NODES):
                found += np.bincount(counts[start : start + _BLOCK_NODES], minlength=len(found))
        found[0] = 0
        return found

    def ranges(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (first node, uint32 counts) of each range; one pass over the samples per range."""
        for first in range(0, self._num_nodes, self._range_nodes):
            counts = self._counts[: min(self._range_nodes, self._num_nodes - first)]
            single = len(counts) == self._num_nodes
            if not (single and self._whole):
                counts[:] = 0
                for ids in wanted_ids(self._section, self._packed, self._runtime):
                    inside = ids if single else ids[(ids >= first) & (ids < first + len(counts))] - first
                    counts[inside] += 1
                self._whole = single
            yield first, counts

    def top(self, histogram: np.ndarray, rows: int) -> np.ndarray:
        """Returns int64 ids of the ``rows`` most wanted nodes, ascending."""
        if rows == 0:
            return np.zeros(0, np.int64)
        above = np.cumsum(histogram[::-1])[::-1]  # nodes wanted at least c times
        threshold = int(np.flatnonzero(above >= rows)[-1])
        ties = rows - int(above[threshold + 1] if threshold + 1 < len(above) else 0)
        parts = []
        for first, counts in self.ranges():
            for start in range(0, len(counts), _BLOCK_NODES):
                block = counts[start : start + _BLOCK_NODES]
                equal = np.flatnonzero(block == threshold)[:ties]
                ties -= len(equal)
                ids = np.concatenate([np.flatnonzero(block > threshold), equal])
                ids.sort()
                parts.append(ids + (first + start))
        return np.concatenate(parts)


class CacheLookup:
    """Finds which rows of a row file that a batch wants lie in the caches in memory.

    By an index of three bits for each row of the file, where the budget has room for it now, else by searching the
    lists of cached ids.
    """

    def __init__(self, host_ids: np.ndarray, device_ids: np.ndarray, num_rows: int, runtime: Runtime):
        self._tables = host_ids, device_ids
        has_room = _core.HotIndex.bytes(num_rows) <= runtime.budget.free_bytes
        self._index = _core.HotIndex(runtime.budget, num_rows, host_ids, device_ids) if has_room else None

    def find(self, ids: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Returns, of the host's cache and of the device's, int32 positions in ``ids`` and the rows that lie there.

        Equals :func:`find_sorted` of the ids of each. ``ids``: int32 or int64, of rows of the file.
        """
        if self._index is None:
            host, device = (find_sorted(table, ids) for table in self._tables)
            return host, device
        out = [np.empty(len(ids), np.int32) for _ in range(4)]
        of_host, of_device = self._index.find(ids, *out)
        host_positions, host_rows, device_positions, device_rows = out
        return (
            (host_positions[:of_host].copy(), host_rows[:of_host].copy()),
            (device_positions[:of_device].copy(), device_rows[:of_device].copy()),
        )


def count_levels(
    section: SampleSection, packed: np.ndarray, levels: CachedRows, num_rows: int, runtime: Runtime
) -> tuple[np.ndarray, np.ndarray]:
    """Returns packed rows per batch and run [P, runs]; rows in host and device cache per batch [P, 2]."""
    per_hop = section.runs[packed].copy()
    cached = np.zeros((len(packed), 2), np.int64)
    wanted = wanted_ids(section, packed, runtime)
    caches = CacheLookup(levels.host_ids, levels.device_ids, num_rows, runtime)
    for packed_batch, ids in enumerate(wanted):
        starts = np.cumsum(per_hop[packed_batch]) - per_hop[packed_batch]
        for column, (positions, _) in enumerate(caches.find(ids)):
            cached[packed_batch, column] = len(positions)
            hop = np.searchsorted(starts, positions, side="right") - 1
            # A hop without nodes shares its start with the next: side="right" picks the last, which holds the node.
            per_hop[packed_batch] -= np.bincount(hop, minlength=per_hop.shape[1])
    return per_hop, cached
