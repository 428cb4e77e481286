"""Plan: decide where each row lives, so that the hard limits hold and the most wanted rows are nearest.

Source: DiskGNN section 4 (four-level store by access frequency). Levels: device cache (hottest) > host cache > disk
cache, shared by the batches of a segment (preparation/segments.py) > packed, one copy per batch. Where the disk limit
allows it, everything that memory does not hold is packed; else the layout is searched. Everything is counted exactly:
the bytes a plan predicts are the bytes an epoch reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import outcrop._core as _core
from outcrop.config import PlanConfig, exact_bytes, least_bytes
from outcrop.errors import ArgumentError, BudgetError
from outcrop.loading.buffers import device_batch_bytes
from outcrop.preparation import segments as layouts
from outcrop.preparation.segments import (
    UNSHARED,
    BatchIds,
    LayoutSizes,
    SegmentArranger,
    SegmentLayout,
    SharedCounts,
)
from outcrop.runtime import memory_tables
from outcrop.runtime.memory_plan import MemoryPlan, divide
from outcrop.runtime.runtime import UNLIMITED, Runtime
from outcrop.store import manifest as manifests
from outcrop.store import record
from outcrop.store.arrays import ArrayWriter
from outcrop.store.graph import Graph
from outcrop.store.manifest import Manifest
from outcrop.store.placement import FORMAT, VERSION, find_sorted
from outcrop.store.samples import BatchSizes, SampleSet
from outcrop.store.targets import target_bytes

_BLOCK_NODES = 1 << 17
ID_BYTES = 16  # of each row that is cached, while it is chosen


@dataclass(frozen=True)
class HostMemory:
    """How the host budget of loading is divided, bytes. ``shared_scratch_bytes``: for reading the disk cache."""

    slots: int
    slot_rows_bytes: int
    slot_meta_bytes: int
    shared_scratch_bytes: int
    fixed_bytes: int
    cache_bytes: int


@dataclass
class CachedRows:
    host_ids: np.ndarray
    device_ids: np.ndarray


def expected(graph: Graph, samples: SampleSet, config: PlanConfig) -> tuple[dict, dict[str, str]]:
    """Config and input digests of the artifact that :func:`plan` would write."""
    return manifests.plain(asdict(config)), {"graph": graph.digest(), "sample": samples.manifest.digest()}


def plan(graph: Graph, samples: SampleSet, config: PlanConfig, out: Path, runtime: Runtime) -> Manifest:
    """Counts, places and writes the plan to ``out``.

    Raises:
        BudgetError: The limits cannot be met; the message names the smallest that could.
        ArgumentError: The graph has no features.
    """
    if graph.feature_bytes == 0:
        raise ArgumentError(
            f"{graph.path} has no features to place: import features, or give them at least one column"
        )
    row_bytes = graph.spec("features").stride_bytes
    packed = packed_batches(samples, config)
    memory = divide_host_memory(samples, config, row_bytes)
    device_rows = device_cache_rows(graph, samples, config)
    host_rows = min(memory.cache_bytes // row_bytes, graph.num_nodes)
    with runtime.trace.span("plan"):
        levels = choose_cached_rows(graph.num_nodes, samples, packed, device_rows, host_rows, runtime)
        per_hop, cached = count_levels(samples, packed, levels, runtime)
    draft = _Draft(samples, packed, per_hop, cached, levels, row_bytes, block_rows(config, row_bytes))
    with manifests.publishing(out) as folder:
        draft.choose_layout(graph, config, folder, runtime)
        arrays = dict(draft.written)
        for name, values in draft.tables().items():
            writer = ArrayWriter(runtime, folder, name, "int64", values.shape[1:])
            writer.append(values.astype("<i8", copy=False))
            arrays[name] = writer.finish()
        attributes = {
            "row_bytes": row_bytes,
            "slots": memory.slots,
            "slot_rows_bytes": memory.slot_rows_bytes,
            "slot_meta_bytes": memory.slot_meta_bytes,
            "shared_scratch_bytes": memory.shared_scratch_bytes,
            "layout": {**asdict(draft.layout), "block_rows": draft.block_rows},
            "predicted": draft.predicted(),
            "memory": asdict(memory),
        }
        manifest = Manifest(
            FORMAT, VERSION, arrays, manifests.plain(attributes), *expected(graph, samples, config)
        )
        manifests.write(folder, manifest)
    return manifest


def packed_batches(samples: SampleSet, config: PlanConfig) -> np.ndarray:
    """Numbers of the batches that are packed, int64 [P]; the others are read row by row when they are needed."""
    groups = [samples.groups[s].all_batches() for s in config.packed_splits if s in samples.groups]
    return np.concatenate([np.arange(g.start, g.stop, dtype=np.int64) for g in groups])


def divide_host_memory(samples: BatchSizes, config: PlanConfig, row_bytes: int) -> HostMemory:
    """Batch buffers first (2 to 4), then fixed costs, the rest caches the hottest rows.

    Raises:
        BudgetError: Not even two batch buffers fit; names the smallest budget that does.
    """
    rows_bytes = record.align_page(samples.max_nodes * row_bytes) + 2 * record.PAGE_BYTES
    # The record as read (its address table has 8 bytes per cached row), and its arrays decoded (ids widen to 64 bits).
    meta_bytes = record.align_page(samples.max_record_bytes + samples.max_nodes * 8)
    slot = rows_bytes + 2 * meta_bytes + samples.max_nodes * (8 - samples.id_bytes)
    # Indexes of batches and records, and the buffer through which graphs are read that are not packed.
    tables = samples.num_batches * (samples.hops + 6) * 32 + record.align_page(samples.max_record_bytes)
    if config.disk_space is not None:  # checksums of the pages of the disk cache, as large as it may become
        most = min(config.disk_space, int(samples.num_nodes.sum()) * row_bytes)
        tables += record.align_page(most // record.PAGE_BYTES * 5)
    limit = config.memory
    if limit is None:
        return HostMemory(
            config.slots or memory_tables.MOST_BATCH_BUFFERS,
            rows_bytes,
            meta_bytes,
            memory_tables.READ_SCRATCH.bytes_of(1 << 62),
            0,
            1 << 62,
        )

    def shared_scratch(total: int) -> int:
        least = _core.RowReader.min_scratch_bytes(row_bytes)
        return 0 if config.disk_space is None else memory_tables.DISK_CACHE_SCRATCH.bytes_of(total, least)

    def fixed(total: int) -> int:
        # I/O bounce buffers and the scratch of row-by-row reading, for what is not packed and for the disk cache.
        scratch = memory_tables.READ_SCRATCH.bytes_of(total) + shared_scratch(total)
        return tables + memory_tables.IO_BUFFERS.bytes_of(total) + scratch + memory_tables.SMALL_TABLES.least

    room = min(memory_tables.PACKED_BATCHES.bytes_of(limit), limit - fixed(limit))
    least, most = memory_tables.BATCH_BUFFERS, memory_tables.MOST_BATCH_BUFFERS
    slots = config.slots or max((k for k in range(least, most + 1) if k * slot <= room), default=least)
    left = limit - slots * slot - fixed(limit)
    if left < 0:
        # What is left rises with the limit, so the smallest that does is found by bisection.
        smallest = bisect_left(
            range(2 * (slots * slot + tables + memory_tables.SMALL_TABLES.least)),
            0,
            key=lambda total: total - slots * slot - fixed(total),
        )
        raise BudgetError(
            f"a memory budget of {exact_bytes(limit)} cannot hold {slots} mini-batches of up to {samples.max_nodes} "
            f"rows of {exact_bytes(row_bytes)}; the smallest budget that can is {least_bytes(smallest)}, or lower "
            "--batch-size or --fanouts"
        )
    overhead = slots * (slot - rows_bytes) + fixed(limit)
    return HostMemory(slots, rows_bytes, meta_bytes, shared_scratch(limit), overhead, left)


def memory_plan(manifest: Manifest) -> MemoryPlan | None:
    """What each part has of the budget that the plan of ``manifest`` was made for; None: it was made for no limit."""
    limit: int | None = manifest.config["memory"]
    if limit is None:
        return None
    memory = HostMemory(**manifest.attributes["memory"])
    fixed = (
        memory_tables.IO_BUFFERS.bytes_of(limit)
        + memory_tables.READ_SCRATCH.bytes_of(limit)
        + memory.shared_scratch_bytes
        + memory_tables.SMALL_TABLES.least
    )
    needs = {
        memory_tables.DISK_CACHE_SCRATCH.name: memory.shared_scratch_bytes,
        memory_tables.BATCH_INDEX.name: memory.fixed_bytes - fixed,
        memory_tables.PACKED_BATCHES.name: memory.slots * memory.slot_rows_bytes,
    }
    return divide(memory_tables.ACTIVITIES["loading packed"], limit, needs)


def device_cache_rows(graph: Graph, samples: BatchSizes, config: PlanConfig) -> int:
    """Rows of the device cache: what the batches on a device leave of its budget."""
    if config.gpu_memory == 0:
        return 0
    row_bytes = graph.spec("features").stride_bytes
    targets = target_bytes(graph, samples.max_seeds)
    batch = device_batch_bytes(samples.max_nodes * row_bytes, samples.max_record_bytes, targets)
    batches = memory_tables.DEVICE_BATCHES * batch
    if config.gpu_memory < batches:
        raise BudgetError(
            f"a device memory budget of {exact_bytes(config.gpu_memory)} cannot hold two mini-batches; the "
            f"smallest that can is {least_bytes(batches)}",
            limit="device",
        )
    return (config.gpu_memory - batches) // row_bytes


def node_ids(samples: SampleSet, packed: np.ndarray, runtime: Runtime) -> Iterator[np.ndarray]:
    buffer = runtime.budget.empty("plan", max(samples.max_nodes * samples.id_bytes, 1))
    for batch in packed:
        yield samples.read_node_ids(int(batch), buffer)


def choose_cached_rows(
    num_nodes: int, samples: SampleSet, packed: np.ndarray, device_rows: int, host_rows: int, runtime: Runtime
) -> CachedRows:
    """The ``device_rows`` most wanted nodes and the ``host_rows`` after them (ties: lower id); only wanted ones."""
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
    """How many batches want each node, over ranges of nodes whose counters fit in the budget."""

    def __init__(self, num_nodes: int, samples: SampleSet, packed: np.ndarray, runtime: Runtime):
        self._num_nodes, self._samples, self._packed, self._runtime = num_nodes, samples, packed, runtime
        available = memory_tables.PLAN_COUNTERS.bytes_of(runtime.budget.free_bytes)
        self._range_nodes = min(num_nodes, available // 4)
        self._counts = runtime.budget.empty("plan", self._range_nodes * 4).view(np.uint32)
        self._whole = False  # counts of the only range are there

    def ranges(self) -> Iterator[tuple[int, np.ndarray]]:
        """(first node, uint32 counts) of each range; one pass over the samples per range."""
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
        """int64 ids of the ``rows`` most wanted nodes, ascending."""
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
    """Packed rows per batch and hop [P, hops + 1]; rows in host and device cache per batch [P, 2]."""
    per_hop = samples.nodes_per_hop[packed].copy()
    cached = np.zeros((len(packed), 2), np.int64)
    for p, ids in enumerate(node_ids(samples, packed, runtime)):
        starts = np.cumsum(per_hop[p]) - per_hop[p]
        for column, table in enumerate((levels.host_ids, levels.device_ids)):
            positions, _ = find_sorted(table, ids)
            cached[p, column] = len(positions)
            hop = np.searchsorted(starts, positions, side="right") - 1
            # A hop without nodes shares its start with the next: side="right" picks the last, which holds the node.
            per_hop[p] -= np.bincount(hop, minlength=per_hop.shape[1])
    return per_hop, cached


class _Draft:
    """A placement being worked out: first everything packed, then, where that takes too much disk, shared in part."""

    def __init__(
        self,
        samples: SampleSet,
        packed: np.ndarray,
        per_hop: np.ndarray,
        cached: np.ndarray,
        levels: CachedRows,
        row_bytes: int,
        block_rows: int,
    ):
        self.samples, self.packed, self.levels = samples, packed, levels
        self.row_bytes, self.block_rows = row_bytes, block_rows
        self.layout, self.written, self.alternatives = UNSHARED, {}, []
        self._wants, self._in_memory = per_hop, cached  # before anything is shared
        self._share(None)

    def _share(self, shared: SharedCounts | None) -> None:
        """Takes over what the disk cache holds; the rest is packed."""
        count = len(self.packed)
        if shared is None:
            none = np.zeros(count, np.int64)
            shared = SharedCounts(np.zeros_like(self._wants), none, none, np.zeros(1, np.int64))
        self.shared = shared
        self.per_hop = self._wants - shared.per_hop
        self.cached = np.column_stack([self._in_memory, shared.per_hop.sum(axis=1)])
        self.offsets, self.needed = np.zeros(count + 1, np.int64), np.zeros(count, np.int64)
        for p, batch in enumerate(self.packed):
            nodes, rows = int(self.samples.num_nodes[batch]), int(self.per_hop[p].sum())
            meta = self.samples.meta_bytes(int(batch), int(self.cached[p].sum()))
            span = record.align_page(meta) + record.rows_span_bytes(nodes, rows, self.row_bytes)
            self.offsets[p + 1] = self.offsets[p] + span
            self.needed[p] = meta + (rows + int(self.cached[p, 2])) * self.row_bytes

    def choose_layout(self, graph: Graph, config: PlanConfig, folder: Path, runtime: Runtime) -> None:
        """Chooses the layout, within the disk limit, and writes the order of the disk cache.

        Raises:
            BudgetError: The run takes more disk than the limit, whatever is shared; names the smallest that does.
        """
        asked = layouts.parse(config.layout)
        range_starts = np.array([0, graph.num_nodes], np.int64)
        fits = config.disk_space is None or self.disk_bytes() <= config.disk_space
        if (asked is None and not fits) or (asked is not None and asked != UNSHARED):
            hot = [self.levels.host_ids, self.levels.device_ids]
            room = runtime.budget.free_bytes
            keep_bytes = memory_tables.LAYOUT_IDS.bytes_of(room)
            wanted = BatchIds(self.samples, self.packed, runtime, keep_bytes=keep_bytes)
            seed = int(self.samples.manifest.config["seed"])
            table_bytes = memory_tables.LAYOUT_TABLE.bytes_of(room)
            arranger = SegmentArranger(
                wanted, graph.num_nodes, self.row_bytes, hot, seed, runtime, table_bytes=table_bytes
            )
            range_starts = arranger.range_starts
            if asked is None:
                table_bytes = memory_tables.SEARCH_TABLE.bytes_of(room)
                asked = self._search(config, wanted, hot, arranger, runtime, table_bytes)
            self._arrange(asked, arranger, folder, runtime)
            while config.disk_space is not None and self.disk_bytes() > config.disk_space:
                # The sketch was wrong by a little, or the layout was asked for.
                larger = self._larger(asked)
                if config.layout not in ("cost", "heuristic") or larger == asked:
                    break
                asked = larger
                self._arrange(asked, arranger, folder, runtime)
        for name, dtype in (("disk_ids", f"int{8 * self.samples.id_bytes}"), ("disk_rank", "int32")):
            if name not in self.written:
                self.written[name] = ArrayWriter(runtime, folder, name, dtype).finish()
        self.range_starts = range_starts
        self._check_disk(config, graph)

    def _larger(self, layout: SegmentLayout) -> SegmentLayout:
        """Larger segments, up to one with all batches, in which nothing is stored twice."""
        segment = min(max(layout.segment + 1, int(layout.segment * 1.02)), max(len(self.packed), 1))
        return SegmentLayout(segment, layout.threshold if segment > layout.segment else 1)

    def _search(
        self,
        config: PlanConfig,
        wanted: BatchIds,
        hot: list[np.ndarray],
        arranger: SegmentArranger,
        runtime: Runtime,
        table_bytes: int,
    ) -> SegmentLayout:
        assert config.disk_space is not None
        sizes = self._sizes()
        search = layouts.LayoutSearch(wanted, hot, sizes, runtime, table_bytes=table_bytes)
        best = layouts.heuristic(search, config.disk_space)
        if best is None or config.layout == "heuristic":
            return best or SegmentLayout(max(len(self.packed), 1), 1)
        rates = layouts.DiskRates(config.sequential_rate, config.random_rate)
        wants = self._wants.sum(axis=1)
        costs = {
            layout: layouts.price(layout, arranger, search, sizes, rates, wants)
            for layout in layouts.candidates(search, config.disk_space, len(self.packed))
        }
        best = min(costs, key=lambda layout: costs[layout].seconds)
        self.alternatives = [layouts.describe(lay, cost, lay == best) for lay, cost in costs.items()]
        return best

    def _sizes(self) -> LayoutSizes:
        """What a layout takes besides rows: with everything packed, less the packed copies themselves."""
        wants = int(self._wants.sum())
        id_bytes = self.samples.id_bytes
        fixed = self.disk_bytes() - wants * (self.row_bytes + id_bytes)
        block = self.block_rows * self.row_bytes
        return LayoutSizes(self.row_bytes, fixed, wants, id_bytes + 4, id_bytes, 8, block)

    def _arrange(
        self, layout: SegmentLayout, arranger: SegmentArranger, folder: Path, runtime: Runtime
    ) -> None:
        ids = ArrayWriter(runtime, folder, "disk_ids", f"int{8 * self.samples.id_bytes}")
        rank = ArrayWriter(runtime, folder, "disk_rank", "int32")
        with runtime.trace.span("layout", segment=layout.segment, threshold=layout.threshold):
            self._share(arranger.arrange(layout, block_rows=self.block_rows, out=(ids, rank)))
        self.layout = layout
        self.written = {"disk_ids": ids.finish(), "disk_rank": rank.finish()}

    def tables(self) -> dict[str, np.ndarray]:
        return {
            "host_ids": self.levels.host_ids,
            "device_ids": self.levels.device_ids,
            "packed_batches": self.packed,
            "packed_per_hop": self.per_hop,
            "cached_rows": self.cached,
            "disk_pages": self.shared.pages,
            "offsets": self.offsets,
            "region_rows": self.shared.region_rows,
            "range_starts": self.range_starts,
        }

    def predicted(self) -> dict[str, Any]:
        """Bytes and rows of every epoch, exactly; bytes on disk at the most."""
        read = np.diff(self.offsets) + self.shared.pages * record.PAGE_BYTES
        rows = self.per_hop.sum(axis=1)
        number = {int(b): p for p, b in enumerate(self.packed)}
        groups: dict[str, list[dict[str, Any]]] = {}
        for split, group in self.samples.groups.items():
            if group.first not in number:
                continue
            groups[split] = []
            for epoch in range(group.epochs):
                at = [number[b] for b in group.batches(epoch)]
                groups[split].append(
                    {
                        "bytes_read": int(read[at].sum()),
                        "bytes_needed": int(self.needed[at].sum()),
                        "rows_by_level": {
                            "device": int(self.cached[at, 1].sum()),
                            "host": int(self.cached[at, 0].sum()),
                            "disk_cache": int(self.cached[at, 2].sum()),
                            "packed": int(rows[at].sum()),
                        },
                    }
                )
        return {
            "epochs": groups,
            "cache_bytes": {
                "host": len(self.levels.host_ids) * self.row_bytes,
                "device": len(self.levels.device_ids) * self.row_bytes,
                "disk": self.shared.rows * self.row_bytes,
            },
            "record_bytes": int(self.offsets[-1]),
            "disk_bytes": self.disk_bytes(),
            "read_amplification": float(read.sum() / self.needed.sum()) if self.needed.sum() else 1.0,
            "alternatives": self.alternatives,
        }

    def disk_bytes(self) -> int:
        """The most that the run takes on disk at any moment: files, and what packing needs besides."""
        caches = [len(ids) * self.row_bytes for ids in (self.levels.host_ids, self.levels.device_ids)]
        spare = min(self.block_rows, self.shared.rows) * self.row_bytes
        arrays = [
            int(self.offsets[-1]),
            *caches,
            self.shared.rows * self.row_bytes + spare,
            self.shared.rows * (self.samples.id_bytes + 4),
            -(-self.shared.rows * self.row_bytes // record.PAGE_BYTES) * 4,
            int(self.per_hop.sum()) * self.samples.id_bytes,
        ]
        sampled = sum(spec.file_bytes for spec in self.samples.manifest.arrays.values())
        return sum(map(record.align_page, arrays)) + sampled + self._small_files_bytes()

    def _small_files_bytes(self) -> int:
        """At most what tables, manifests and the journal of packing take: arrays to the byte, text generously."""
        columns, packed = self.samples.hops + 1, len(self.packed)
        tables = [
            8 * len(self.levels.host_ids),
            8 * len(self.levels.device_ids),
            8 * packed,
            8 * packed * columns,
            24 * packed,
            8 * packed,
            8 * (packed + 1),
            8 * len(self.shared.region_rows),
            record.PAGE_BYTES,
            record.PAGE_BYTES,
            record.PAGE_BYTES,
            4 * packed,
        ]  # the plan's, then the checksums of the rows
        journal = 2 * (4 * packed * (columns + 1) + record.PAGE_BYTES)  # old and new, while it is replaced
        epochs = sum(group.epochs for group in self.samples.groups.values())
        text = (
            6 * record.PAGE_BYTES + 512 * epochs
        )  # run.json and four manifests; the plan's tells every epoch
        return sum(map(record.align_page, tables)) + journal + text

    def _check_disk(self, config: PlanConfig, graph: Graph) -> None:
        needed = self.disk_bytes()
        if config.disk_space is None or needed <= config.disk_space:
            return
        shared = (
            "with every row that is not in memory stored once" if self.layout != UNSHARED else "as packed"
        )
        raise BudgetError(
            f"the run needs {exact_bytes(needed)} of disk {shared} ({needed / graph.feature_bytes:.2f}x the features), "
            f"the limit is {exact_bytes(config.disk_space)}; the smallest --disk-space that does is "
            f"{least_bytes(needed)}, or sample fewer epochs (--epochs), or raise --memory so that more rows are cached",
            limit="disk",
        )


def block_rows(config: PlanConfig, row_bytes: int) -> int:
    """Rows of the disk cache that are put in order at a time, in memory."""
    limit = UNLIMITED if config.memory is None else config.memory
    return max(memory_tables.DISK_CACHE_BLOCK.bytes_of(limit) // row_bytes, 1)
