"""Plan: decide where each row lives, so that the hard limits hold and the most wanted rows are nearest.

Source: DiskGNN section 4 (four-level store by access frequency). Levels: device cache (hottest) > host cache > disk
cache, shared by the batches of a segment (preparation/segments.py) > packed, one copy per batch. Where the disk limit
allows it, everything that memory does not hold is packed; else the layout is searched. Everything is counted exactly:
the bytes a plan predicts are the bytes an epoch reads.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.config import PlanConfig, exact_bytes, least_bytes
from outcrop.errors import ArgumentError, BudgetError
from outcrop.preparation import segments as layouts
from outcrop.preparation.cached_rows import CachedRows, choose_cached_rows, count_levels
from outcrop.preparation.plan_memory import block_rows, device_cache_rows, divide_host_memory
from outcrop.preparation.segments import (
    UNSHARED,
    BatchIds,
    LayoutSizes,
    SegmentArranger,
    SegmentLayout,
    SharedCounts,
)
from outcrop.runtime import memory_tables
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store import record
from outcrop.store.arrays import ArrayWriter
from outcrop.store.graph import Graph
from outcrop.store.manifest import Manifest
from outcrop.store.placement import FORMAT, VERSION
from outcrop.store.samples import SampleSet


def expected(graph: Graph, samples: SampleSet, config: PlanConfig) -> tuple[dict, dict[str, str]]:
    """Returns config and input digests of the artifact that :func:`plan` would write."""
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
    row_bytes = graph.row_file.row_bytes
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
    """Gives numbers of the batches that are packed, int64 [P]; the others are read row by row when they are needed."""
    groups = [samples.groups[s].all_batches() for s in config.packed_splits if s in samples.groups]
    return np.concatenate([np.arange(g.start, g.stop, dtype=np.int64) for g in groups])


class _Draft:
    """Works a placement out: first everything packed, then, where that takes too much disk, shared in part."""

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
        """Returns larger segments, up to one with all batches, in which nothing is stored twice."""
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
        """Returns what a layout takes besides rows: with everything packed, less the packed copies themselves."""
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
        """Returns bytes and rows of every epoch, exactly; bytes on disk at the most."""
        read = np.diff(self.offsets) + self.shared.pages * PAGE_BYTES
        rows = self.per_hop.sum(axis=1)
        number = {int(b): p for p, b in enumerate(self.packed)}
        groups: dict[str, list[dict[str, Any]]] = {}
        for split, group in self.samples.groups.items():
            if group.first not in number:
                continue
            groups[split] = []
            for epoch in range(group.epochs):
                packed_numbers = [number[b] for b in group.batches(epoch)]
                groups[split].append(
                    {
                        "bytes_read": int(read[packed_numbers].sum()),
                        "bytes_needed": int(self.needed[packed_numbers].sum()),
                        "rows_by_level": {
                            "device": int(self.cached[packed_numbers, 1].sum()),
                            "host": int(self.cached[packed_numbers, 0].sum()),
                            "disk_cache": int(self.cached[packed_numbers, 2].sum()),
                            "packed": int(rows[packed_numbers].sum()),
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
        """Returns the most that the run takes on disk at any moment: files, and what packing needs besides."""
        caches = [len(ids) * self.row_bytes for ids in (self.levels.host_ids, self.levels.device_ids)]
        spare = min(self.block_rows, self.shared.rows) * self.row_bytes
        arrays = [
            int(self.offsets[-1]),
            *caches,
            self.shared.rows * self.row_bytes + spare,
            self.shared.rows * (self.samples.id_bytes + 4),
            -(-self.shared.rows * self.row_bytes // PAGE_BYTES) * 4,
            int(self.per_hop.sum()) * self.samples.id_bytes,
        ]
        sampled = sum(spec.file_bytes for spec in self.samples.manifest.arrays.values())
        return sum(map(record.align_page, arrays)) + sampled + self._small_files_bytes()

    def _small_files_bytes(self) -> int:
        """Gives what tables, manifests and the journal of packing take at most: arrays to the byte, text generously."""
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
            PAGE_BYTES,
            PAGE_BYTES,
            PAGE_BYTES,
            4 * packed,
        ]  # the plan's, then the checksums of the rows
        journal = 2 * (4 * packed * (columns + 1) + PAGE_BYTES)  # old and new, while it is replaced
        epochs = sum(group.epochs for group in self.samples.groups.values())
        text = 6 * PAGE_BYTES + 512 * epochs  # run.json and four manifests; the plan's tells every epoch
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
