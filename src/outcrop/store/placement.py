"""The artifact of the plan stage: which rows live in which level, and where every packed record will lie.

Arrays, per packed batch p (P of them): ``packed_batches`` int64 [P], its number in the sample set; ``offsets`` int64
[P + 1], where the records start. And for each row file, with a prefix such as ``r1.`` where the graph has several
(version 3): ``host_ids``, ``device_ids`` int64, ascending: the cached rows, row i of the cache file belongs to entry i;
``packed_per_hop`` int64 [P, runs], rows that are packed; ``cached_rows`` int64 [P, 3], rows in the host, device and
disk cache; ``disk_pages`` int64 [P], pages of the disk cache that it reads.

The disk cache is shared by the batches of a segment: ``segment_batches`` consecutive packed batches. Its rows lie by
region: for each range of ids, for each segment. ``region_rows`` int64 [ranges * segments + 1], where the regions start;
``range_starts`` int64 [ranges + 1], the ranges. A region is cut into blocks of ``block_rows``; ``disk_ids`` lists the
ids of each block, ascending within the block, and ``disk_rank`` int32 where in the block each row lies. Attributes:
``row_bytes``, ``slots`` batch buffers and their size, ``layout``, ``predicted`` (bytes and rows per level and epoch).
Where records lie in parts (store/parts.py), those of part 0 come first, then those of part 1, ...: ``part_batches``
says how many each has, and ``offsets`` are what they would be in one file. In version 3 ``row_files`` says what the
rows of each row file are of and how large they are, and ``slot_rows_bytes`` is a list.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

import outcrop._core as _core
from outcrop.config.packing import MOST_PARTS
from outcrop.errors import FormatError
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store import record
from outcrop.store.arrays import DiskArray
from outcrop.store.batches import BatchGraph
from outcrop.store.levels import Level
from outcrop.store.manifest import Manifest
from outcrop.store.samples import SampleSection, SampleSet

FORMAT, VERSIONS = "outcrop.plan", (2, 3)
_TABLES = ("packed_per_hop", "cached_rows", "disk_pages", "region_rows", "range_starts")


def prefix_of(number: int, files: int) -> str:
    """Returns what the names of arrays of row file ``number`` of a run begin with."""
    return "" if files == 1 else f"r{number}."


def described_files(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns what a plan says of each row file: of the nodes or edges of which type its rows are, and their sizes."""
    if "row_files" in attributes:
        return attributes["row_files"]
    block_rows = attributes["layout"]["block_rows"]
    return [{"kind": "nodes", "type": 0, "row_bytes": attributes["row_bytes"], "block_rows": block_rows}]


def _read(runtime: Runtime, path: Path, manifest: Manifest, name: str) -> np.ndarray:
    array = DiskArray(runtime, path, manifest.arrays[name])
    try:
        return array.read("placement")
    finally:
        array.close()


class Placement:
    """Holds a plan read back; its tables are in memory, under the tag ``placement``.

    Attributes:
        files: Where the rows of each row file lie.
        part_bounds: The first packed batch of each part, and their number: int64 [parts + 1].
        row_bytes: Bytes of a row of each row file.
    """

    def __init__(self, runtime: Runtime, path: Path, manifest: Manifest):
        self.path, self.manifest = path, manifest
        attributes = manifest.attributes
        self.packed_batches, self.offsets = (
            _read(runtime, path, manifest, name) for name in ("packed_batches", "offsets")
        )
        self.segment_batches: int = attributes["layout"]["segment"]
        self.part_bounds = np.cumsum([0, *self._part_sizes(attributes)])
        self.files = tuple(
            PlacedRows(runtime, self, number, described)
            for number, described in enumerate(described_files(attributes))
        )
        self.row_bytes = tuple(rows.row_bytes for rows in self.files)
        self.buffers: int = attributes["slots"]
        sizes = attributes["slot_rows_bytes"]
        self.buffer_rows_bytes: tuple[int, ...] = (sizes,) if isinstance(sizes, int) else tuple(sizes)
        self.buffer_meta_bytes: int = attributes["slot_meta_bytes"]
        self.shared_scratch_bytes: int = attributes["shared_scratch_bytes"]
        self.predicted: dict[str, Any] = attributes["predicted"]

    def _part_sizes(self, attributes: Mapping[str, Any]) -> list[int]:
        """Returns the records of each part.

        Raises:
            FormatError: They, or where records begin, are not possible.
        """
        records, offsets = len(self.packed_batches), self.offsets
        counts = attributes.get("part_batches", [records])
        whole = isinstance(counts, list) and len(counts) <= MOST_PARTS and all(type(n) is int for n in counts)
        rising = len(offsets) == records + 1 and offsets[0] == 0 and bool((np.diff(offsets) >= 0).all())
        if not whole or min(counts, default=-1) < 0 or sum(counts) != records or not rising:
            raise FormatError(
                f"{self.path}: it places {records} records, and its parts or offsets say otherwise; remove the folder "
                "and prepare the run again"
            )
        return counts

    @property
    def num_segments(self) -> int:
        return -(-len(self.packed_batches) // self.segment_batches) if self.segment_batches else 0

    @property
    def num_parts(self) -> int:
        """Counts the files that records lie in."""
        return len(self.part_bounds) - 1

    @property
    def part(self) -> np.ndarray:
        """Returns the part of each packed batch: int64 [P]."""
        return np.repeat(np.arange(self.num_parts), np.diff(self.part_bounds))

    def part_bytes(self) -> list[int]:
        """Counts the bytes of the records of each part."""
        return np.diff(self.offsets[self.part_bounds]).tolist()

    def segment(self, number: int) -> range:
        """Returns the packed batches of a segment."""
        first = number * self.segment_batches
        return range(first, min(first + self.segment_batches, len(self.packed_batches)))

    def cached(self) -> np.ndarray:
        """Counts the rows of each packed batch that lie in caches, of each row file: int64 [P, K]."""
        return np.stack([rows.cached_rows.sum(axis=1) for rows in self.files], axis=1)

    def meta_bytes(self, samples: SampleSet) -> np.ndarray:
        """Counts the bytes of the meta part of each packed record, not padded: int64 [P]."""
        return samples.meta_bytes(self.packed_batches, self.cached())

    def part_starts(self, samples: SampleSet) -> np.ndarray:
        """Returns where the parts of each packed record begin in its file: int64 [P, K + 2], the meta part, the rows of
        each row file, the end.
        """
        parts = [align_pages(self.meta_bytes(samples))]
        for rows in self.files:
            wanted = rows.section(samples).num_rows[self.packed_batches]
            parts.append(record.rows_spans(wanted, rows.num_packed, rows.row_bytes))
        ends = np.cumsum(np.stack(parts, axis=1), axis=1)
        before = np.repeat(self.offsets[self.part_bounds[:-1]], np.diff(self.part_bounds))
        starts = self.offsets[:-1] - before
        return starts[:, None] + np.column_stack([np.zeros(len(ends), np.int64), ends])

    def numbers_of(self, batches: np.ndarray) -> np.ndarray:
        """Returns the numbers of the packed records of batches, which are packed: int64."""
        order = np.argsort(self.packed_batches)
        return order[np.searchsorted(self.packed_batches, batches, sorter=order)]

    def index_of(self) -> dict[int, int]:
        """Returns for each batch number in the sample set the number of its packed record."""
        return {int(batch): p for p, batch in enumerate(self.packed_batches)}


class PlacedRows:
    """Says where the rows of one row file lie; the lists of ids are read once they are asked for.

    Attributes:
        placement: The plan that this is part of.
        number: Number of the row file.
        prefix: What the names of its arrays begin with.
        row_bytes: Bytes of a row.
        num_packed: Rows of each packed batch that are packed: int64 [P].
    """

    def __init__(self, runtime: Runtime, placement: Placement, number: int, described: dict[str, Any]):
        self._runtime, self.placement, self.number = runtime, placement, number
        self.prefix: str = prefix_of(number, len(described_files(placement.manifest.attributes)))
        self.row_bytes: int = described["row_bytes"]
        self.block_rows: int = described["block_rows"]
        self._kind: Literal["nodes", "edges"] = described["kind"]
        self._type: int = described["type"]
        tables = {name: self._read(name) for name in _TABLES}
        self.packed_per_hop, self.cached_rows = tables["packed_per_hop"], tables["cached_rows"]
        self.disk_pages = tables["disk_pages"]
        self.region_rows, self.range_starts = tables["region_rows"], tables["range_starts"]
        self.num_packed = self.packed_per_hop.sum(axis=1)

    @property
    def described(self) -> tuple[str, int, int]:
        """Returns whose rows they are, nodes or edges, the number of their type, and the bytes of a row."""
        return self._kind, self._type, self.row_bytes

    def count_of(self, graph: BatchGraph) -> int:
        """Counts the rows that a batch wants."""
        return len(graph.section_of(self._kind, self._type).ids)

    def section(self, samples: SampleSet) -> SampleSection:
        """Returns what the batches of ``samples`` want of the rows."""
        return samples.section_of(self._kind, self._type)

    def _read(self, name: str) -> np.ndarray:
        return _read(self._runtime, self.placement.path, self.placement.manifest, self.prefix + name)

    def file_of(self, name: str) -> Path:
        """Returns the path of array ``name``."""
        return self.placement.path / self.placement.manifest.arrays[self.prefix + name].file

    @cached_property
    def host_ids(self) -> np.ndarray:
        return self._read("host_ids")

    @cached_property
    def device_ids(self) -> np.ndarray:
        return self._read("device_ids")

    def num_cached(self, level: Level) -> int:
        """Counts the rows in the cache of a level, ``HOST`` or ``DEVICE``."""
        return self.placement.manifest.arrays[f"{self.prefix}{level}_ids"].shape[0]

    @property
    def num_disk_rows(self) -> int:
        """Counts the rows of the disk cache."""
        return int(self.region_rows[-1])

    def region(self, node_range: int, segment: int) -> range:
        """Returns the rows of the disk cache for a segment within a range of nodes."""
        number = node_range * self.placement.num_segments + segment
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
        placement = self.placement
        return DiskArray(self._runtime, placement.path, placement.manifest.arrays[self.prefix + name])


def align_pages(count: np.ndarray) -> np.ndarray:
    """Returns ``count`` rounded up to whole pages."""
    return -(-count // PAGE_BYTES) * PAGE_BYTES


def block_bounds(region_rows: np.ndarray, block_rows: int) -> np.ndarray:
    """Returns int64: the first row of each block when regions are cut into blocks of ``block_rows``, and the end."""
    starts = [
        np.arange(first, stop, block_rows, dtype=np.int64) for first, stop in itertools.pairwise(region_rows)
    ]
    return np.concatenate([*starts, region_rows[-1:]])


def find_sorted(table: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns int32 positions in ``ids`` of the ids that ``table`` (ascending) holds, and where it holds them.

    Equals ``p = np.flatnonzero(np.isin(ids, table)); p, np.searchsorted(table, ids[p])``.

    Args:
        table: int64.
        ids: int32 or int64; fast where they rise, but for a few places.
    """
    positions, rows = np.empty(len(ids), np.int32), np.empty(len(ids), np.int32)
    found = _core.find_sorted(table, ids, positions, rows)
    return positions[:found].copy(), rows[:found].copy()


def open_placement(runtime: Runtime, path: Path) -> Placement:
    with manifests.opening(path, FORMAT, VERSIONS) as manifest:
        return Placement(runtime, path, manifest)
