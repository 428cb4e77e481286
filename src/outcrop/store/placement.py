"""The artifact of the plan stage: which rows live in which level, and where every packed record will lie.

Arrays: ``host_ids``, ``device_ids`` int64, ascending: the cached nodes, row i of the cache file belongs to entry i.
Per packed batch p (P of them): ``packed_batches`` int64 [P], its number in the sample set; ``packed_per_hop`` int64
[P, hops + 1], rows that are packed; ``cached_rows`` int64 [P, 3], rows in the host, device and disk cache;
``disk_pages`` int64 [P], pages of the disk cache that it reads; ``offsets`` int64 [P + 1], where the records start.

The disk cache is shared by the batches of a segment: ``segment_batches`` consecutive packed batches. Its rows lie by
region: for each range of nodes, for each segment. ``region_rows`` int64 [ranges * segments + 1], where the regions
start; ``range_starts`` int64 [ranges + 1], the ranges. A region is cut into blocks of ``block_rows``; ``disk_ids``
lists the nodes of each block, ascending within the block, and ``disk_rank`` int32 where in the block each row lies.
Attributes: ``slots`` batch buffers and their size, ``layout``, ``predicted`` (bytes and rows per level and epoch).
"""

from __future__ import annotations

import itertools
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store import record
from outcrop.store.address_table import AddressTable
from outcrop.store.arrays import DiskArray
from outcrop.store.levels import Level
from outcrop.store.manifest import Manifest
from outcrop.store.samples import SampleSet

FORMAT, VERSION = "outcrop.plan", 2
_TABLES = (
    "packed_batches",
    "packed_per_hop",
    "cached_rows",
    "disk_pages",
    "offsets",
    "region_rows",
    "range_starts",
)


class Placement:
    """Holds a plan read back; its tables are in memory, under the tag ``placement``, the id lists once they are asked
    for.
    """

    def __init__(self, runtime: Runtime, path: Path, manifest: Manifest):
        self.path, self.manifest = path, manifest
        self._runtime = runtime
        tables = {name: self._read(name) for name in _TABLES}
        self.packed_batches, self.packed_per_hop = tables["packed_batches"], tables["packed_per_hop"]
        self.cached_rows, self.offsets = tables["cached_rows"], tables["offsets"]
        self.disk_pages = tables["disk_pages"]
        self.region_rows, self.range_starts = tables["region_rows"], tables["range_starts"]
        self.num_packed = self.packed_per_hop.sum(axis=1)
        attributes = manifest.attributes
        self.row_bytes: int = attributes["row_bytes"]
        self.buffers: int = attributes["slots"]
        self.buffer_rows_bytes: int = attributes["slot_rows_bytes"]
        self.buffer_meta_bytes: int = attributes["slot_meta_bytes"]
        self.segment_batches: int = attributes["layout"]["segment"]
        self.block_rows: int = attributes["layout"]["block_rows"]
        self.shared_scratch_bytes: int = attributes["shared_scratch_bytes"]
        self.predicted: dict[str, Any] = attributes["predicted"]

    def _read(self, name: str) -> np.ndarray:
        array = DiskArray(self._runtime, self.path, self.manifest.arrays[name])
        try:
            return array.read("placement")
        finally:
            array.close()

    @cached_property
    def host_ids(self) -> np.ndarray:
        return self._read("host_ids")

    @cached_property
    def device_ids(self) -> np.ndarray:
        return self._read("device_ids")

    def num_cached(self, level: Level) -> int:
        """Counts the rows in the cache of a level, ``HOST`` or ``DEVICE``."""
        return self.manifest.arrays[f"{level}_ids"].shape[0]

    @property
    def num_disk_rows(self) -> int:
        """Counts the rows of the disk cache."""
        return int(self.region_rows[-1])

    @property
    def num_segments(self) -> int:
        return -(-len(self.packed_batches) // self.segment_batches) if self.segment_batches else 0

    def segment(self, number: int) -> range:
        """Returns the packed batches of a segment."""
        first = number * self.segment_batches
        return range(first, min(first + self.segment_batches, len(self.packed_batches)))

    def region(self, node_range: int, segment: int) -> range:
        """Returns the rows of the disk cache for a segment within a range of nodes."""
        number = node_range * self.num_segments + segment
        return range(int(self.region_rows[number]), int(self.region_rows[number + 1]))

    @cached_property
    def disk_blocks(self) -> np.ndarray:
        """Returns int64, the first row of each block of the disk cache, and the number of rows at the end."""
        return block_bounds(self.region_rows, self.block_rows)

    @property
    def max_block_rows(self) -> int:
        return int(np.diff(self.disk_blocks).max(initial=0))

    def disk_array(self, name: str) -> DiskArray:
        """Opens ``disk_ids`` or ``disk_rank``; the caller closes it."""
        return DiskArray(self._runtime, self.path, self.manifest.arrays[name])

    def meta_span_bytes(self, packed: int, samples: SampleSet) -> int:
        """Counts the bytes of the meta part of packed record ``packed``, page padding included."""
        return record.align_page(
            samples.meta_bytes(int(self.packed_batches[packed]), int(self.cached_rows[packed].sum()))
        )

    def index_of(self) -> dict[int, int]:
        """Returns for each batch number in the sample set the number of its packed record."""
        return {int(batch): p for p, batch in enumerate(self.packed_batches)}

    def lookup(self, n_id: np.ndarray, disk: tuple[np.ndarray, np.ndarray] | None = None) -> AddressTable:
        """Returns the address table of a batch with nodes ``n_id``; ``disk``: positions and rows of its disk cache."""
        host_positions, host_rows = find_sorted(self.host_ids, n_id)
        device_positions, device_rows = find_sorted(self.device_ids, n_id)
        return AddressTable(host_positions, host_rows, device_positions, device_rows, *(disk or ()))


def block_bounds(region_rows: np.ndarray, block_rows: int) -> np.ndarray:
    """Returns int64: the first row of each block when regions are cut into blocks of ``block_rows``, and the end."""
    starts = [
        np.arange(first, stop, block_rows, dtype=np.int64) for first, stop in itertools.pairwise(region_rows)
    ]
    return np.concatenate([*starts, region_rows[-1:]])


def find_sorted(table: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns int32 positions in ``ids`` of the ids that ``table`` (ascending) holds, and where it holds them.

    Equals ``p = np.flatnonzero(np.isin(ids, table)); p, np.searchsorted(table, ids[p])``.
    """
    if not len(table):
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    at = np.searchsorted(table, ids)
    at[at == len(table)] = 0
    positions = np.flatnonzero(table[at] == ids)
    return positions.astype(np.int32), at[positions].astype(np.int32)


def open_placement(runtime: Runtime, path: Path) -> Placement:
    with manifests.opening(path, FORMAT, VERSION) as manifest:
        return Placement(runtime, path, manifest)
