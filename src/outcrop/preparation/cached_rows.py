"""Which rows are cached: the most wanted ones, counted over the batches, and what each batch finds there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store.placement import find_sorted
from outcrop.store.samples import SampleSet

_BLOCK_NODES = 1 << 17
ID_BYTES = 16  # of each row that is cached, while it is chosen


@dataclass
class CachedRows:
    """Holds the nodes whose rows are cached in host memory and on the device: int64, ascending."""

    host_ids: np.ndarray
    device_ids: np.ndarray


def node_ids(samples: SampleSet, packed: np.ndarray, runtime: Runtime) -> Iterator[np.ndarray]:
    """Reads the ids of each of the ``packed`` batches, in turn into one buffer."""
    buffer = runtime.budget.empty("plan", max(samples.max_nodes * samples.id_bytes, 1))
    for batch in packed:
        yield samples.read_node_ids(int(batch), buffer)


def choose_cached_rows(
    num_nodes: int, samples: SampleSet, packed: np.ndarray, device_rows: int, host_rows: int, runtime: Runtime
) -> CachedRows:
    """Returns the ``device_rows`` most wanted nodes and the ``host_rows`` after them (ties: lower id); only wanted
    ones.
    """
    if device_rows + host_rows == 0:
        return CachedRows(np.zeros(0, np.int64), np.zeros(0, np.int64))
    counter = BatchCounter(num_nodes, samples, packed, runtime)
    histogram = np.zeros(len(packed) + 1, np.int64)
    for _, counts in counter.ranges():
        for start in range(0, len(counts), _BLOCK_NODES):
            histogram += np.bincount(counts[start : start + _BLOCK_NODES], minlength=len(histogram))
    histogram[0] = 0
    wanted = int(histogram.sum())
    device_rows = min(device_rows, wanted)
    total_rows = min(device_rows + host_rows, wanted, runtime.budget.free_bytes // ID_BYTES)
    device_rows = min(device_rows, total_rows)
    held = runtime.budget.reserve("plan", ID_BYTES * total_rows)
    both = counter.top(histogram, total_rows)
    device = counter.top(histogram, device_rows)
    host = both[~np.isin(both, device, assume_unique=True)] if len(device) else both
    held.release()
    return CachedRows(host, device)


class BatchCounter:
    """Counts how many batches want each node, over ranges of nodes whose counters fit in the budget."""

    def __init__(self, num_nodes: int, samples: SampleSet, packed: np.ndarray, runtime: Runtime):
        self._num_nodes, self._samples, self._packed, self._runtime = num_nodes, samples, packed, runtime
        available = memory_tables.PLAN_COUNTERS.bytes_of(runtime.budget.free_bytes)
        self._range_nodes = min(num_nodes, available // 4)
        self._counts = runtime.budget.empty("plan", self._range_nodes * 4).view(np.uint32)
        self._whole = False  # counts of the only range are there

    def ranges(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (first node, uint32 counts) of each range; one pass over the samples per range."""
        for first in range(0, self._num_nodes, self._range_nodes):
            counts = self._counts[: min(self._range_nodes, self._num_nodes - first)]
            single = len(counts) == self._num_nodes
            if not (single and self._whole):
                counts[:] = 0
                for ids in node_ids(self._samples, self._packed, self._runtime):
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


def count_levels(
    samples: SampleSet, packed: np.ndarray, levels: CachedRows, runtime: Runtime
) -> tuple[np.ndarray, np.ndarray]:
    """Returns packed rows per batch and hop [P, hops + 1]; rows in host and device cache per batch [P, 2]."""
    per_hop = samples.nodes_per_hop[packed].copy()
    cached = np.zeros((len(packed), 2), np.int64)
    for packed_batch, ids in enumerate(node_ids(samples, packed, runtime)):
        starts = np.cumsum(per_hop[packed_batch]) - per_hop[packed_batch]
        for column, table in enumerate((levels.host_ids, levels.device_ids)):
            positions, _ = find_sorted(table, ids)
            cached[packed_batch, column] = len(positions)
            hop = np.searchsorted(starts, positions, side="right") - 1
            # A hop without nodes shares its start with the next: side="right" picks the last, which holds the node.
            per_hop[packed_batch] -= np.bincount(hop, minlength=per_hop.shape[1])
    return per_hop, cached
