"""A plan while it is worked out: first everything packed, then, where that takes too much disk, shared in part.

A :class:`RowsDraft` says for one row file which rows lie where; the :class:`Draft` adds them up, chooses the layout
that all share, and counts what the run takes on disk and what an epoch reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.config import PlanConfig, exact_bytes, least_bytes
from outcrop.errors import BudgetError
from outcrop.preparation import segments as layouts
from outcrop.preparation.cached_rows import CachedRows
from outcrop.preparation.segments import (
    UNSHARED,
    BatchIds,
    LayoutSizes,
    SegmentArranger,
    SegmentLayout,
    SharedCounts,
    WantSketch,
)
from outcrop.runtime import memory_tables
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store import record
from outcrop.store.arrays import ArrayWriter
from outcrop.store.graph import Graph
from outcrop.store.graph_types import RowFile
from outcrop.store.manifest import ArraySpec
from outcrop.store.placement import align_pages, prefix_of
from outcrop.store.samples import SampleSection, SampleSet


def smallest_disk(needed: int) -> str:
    """Says which limit of the disk is enough for a run that takes ``needed`` bytes."""
    return f"the smallest --disk-space that does is {least_bytes(needed)}"


class RowsDraft:
    """Says for the rows of one row file which lie in memory, in the disk cache, and which are packed.

    Args:
        section: What the batches want.
        packed: Numbers of the packed batches, int64 [P].
        levels: Rows that memory holds.
        counts: Rows per batch and run that memory does not hold [P, runs]; rows in host and device cache [P, 2].
        block_rows: Rows of the disk cache that are put in order at a time.

    Attributes:
        per_hop: Rows that are packed: int64 [P, runs].
        cached: Rows in the host, device and disk cache: int64 [P, 3].
        wants: Rows that memory does not hold: int64 [P].
        written: The arrays of the disk cache.
    """

    def __init__(
        self,
        rows: RowFile,
        section: SampleSection,
        packed: np.ndarray,
        levels: CachedRows,
        counts: tuple[np.ndarray, np.ndarray],
        block_rows: int,
    ):
        self.rows, self.section, self.packed, self.levels = rows, section, packed, levels
        self.row_bytes, self.block_rows = rows.row_bytes, block_rows
        self.written: dict[str, ArraySpec] = {}
        self._per_hop, self._in_memory = counts  # before anything is shared
        self.wants = self._per_hop.sum(axis=1)
        self.range_starts = np.array([0, rows.num_rows], np.int64)
        none = np.zeros(len(packed), np.int64)
        self._share(SharedCounts(np.zeros_like(self._per_hop), none, none, np.zeros(1, np.int64)))

    def _share(self, shared: SharedCounts) -> None:
        """Takes over what the disk cache holds; the rest is packed."""
        self.shared = shared
        self.per_hop = self._per_hop - shared.per_hop
        self.cached = np.column_stack([self._in_memory, shared.per_hop.sum(axis=1)])

    @property
    def num_packed(self) -> np.ndarray:
        """Counts the rows of each batch that are packed: int64 [P]."""
        return self.per_hop.sum(axis=1)

    @property
    def hot(self) -> list[np.ndarray]:
        """Returns the ids of the rows that memory holds, in two lists."""
        return [self.levels.host_ids, self.levels.device_ids]

    def spans(self) -> np.ndarray:
        """Counts the bytes of the packed rows of each record, with padding: int64 [P]."""
        return record.rows_spans(self.section.num_rows[self.packed], self.num_packed, self.row_bytes)

    def sizes(self) -> LayoutSizes:
        """Returns what a layout takes besides rows."""
        width, block = self.section.id_bytes, self.block_rows * self.row_bytes
        return LayoutSizes(self.row_bytes, int(self.wants.sum()), width + 4, width, 8, block)

    def arrange(
        self, layout: SegmentLayout, arranger: SegmentArranger, folder: Path, prefix: str, runtime: Runtime
    ) -> None:
        """Shares rows as ``layout`` has it, and writes the order of the disk cache."""
        ids = ArrayWriter(runtime, folder, f"{prefix}disk_ids", f"int{8 * self.section.id_bytes}")
        rank = ArrayWriter(runtime, folder, f"{prefix}disk_rank", "int32")
        self._share(arranger.arrange(layout, block_rows=self.block_rows, out=(ids, rank)))
        self.written = {"disk_ids": ids.finish(), "disk_rank": rank.finish()}

    def write_nothing_shared(self, folder: Path, prefix: str, runtime: Runtime) -> None:
        """Writes the order of an empty disk cache, unless there is one."""
        for name, dtype in (("disk_ids", f"int{8 * self.section.id_bytes}"), ("disk_rank", "int32")):
            if name not in self.written:
                self.written[name] = ArrayWriter(runtime, folder, prefix + name, dtype).finish()

    def tables(self) -> dict[str, np.ndarray]:
        """Returns the arrays of the plan for the row file."""
        return {
            "host_ids": self.levels.host_ids,
            "device_ids": self.levels.device_ids,
            "packed_per_hop": self.per_hop,
            "cached_rows": self.cached,
            "disk_pages": self.shared.pages,
            "region_rows": self.shared.region_rows,
            "range_starts": self.range_starts,
        }

    def array_bytes(self) -> list[int]:
        """Counts the bytes of the files that hold rows or say which they are, at most, at any moment."""
        shared, row = self.shared.rows, self.row_bytes
        return [
            *(len(ids) * row for ids in self.hot),
            shared * row + min(self.block_rows, shared) * row,
            shared * (self.section.id_bytes + 4),
            -(-shared * row // PAGE_BYTES) * 4,
            int(self.per_hop.sum()) * self.section.id_bytes,
        ]

    def table_bytes(self) -> list[int]:
        """Counts the bytes of the tables."""
        count = len(self.packed)
        return [
            8 * len(self.levels.host_ids),
            8 * len(self.levels.device_ids),
            8 * count * self.section.num_runs,
            24 * count,
            8 * count,
            8 * len(self.shared.region_rows),
            PAGE_BYTES,
            PAGE_BYTES,
            PAGE_BYTES,
        ]

    def journal_bytes(self) -> int:
        """Counts the bytes of the checksums of runs in the journal of packing."""
        return 4 * len(self.packed) * self.section.num_runs


class Draft:
    """Works a placement out: adds up the drafts of all row files.

    Attributes:
        offsets: Where the records start: int64 [P + 1].
        needed: Bytes of each record without padding, and of what it reads of the disk cache: int64 [P].
    """

    def __init__(self, samples: SampleSet, packed: np.ndarray, drafts: Sequence[RowsDraft]):
        self.samples, self.packed, self.drafts = samples, packed, drafts
        self.layout: SegmentLayout = UNSHARED
        self.alternatives: list[dict[str, Any]] = []
        self._add_up()

    def _add_up(self) -> None:
        cached = np.stack([draft.cached.sum(axis=1) for draft in self.drafts], axis=1)
        meta = self.samples.meta_bytes(self.packed, cached)
        spans, self.needed = align_pages(meta), meta
        for draft in self.drafts:
            spans = spans + draft.spans()
            self.needed = self.needed + (draft.num_packed + draft.cached[:, 2]) * draft.row_bytes
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(spans)])

    def _prefix(self, draft: RowsDraft) -> str:
        return prefix_of(draft.rows.number, len(self.drafts))

    def choose_layout(self, graph: Graph, config: PlanConfig, folder: Path, runtime: Runtime) -> None:
        """Chooses the layout, within the disk limit, and writes the order of the disk cache.

        Raises:
            BudgetError: The run takes more disk than the limit, whatever is shared; names the smallest that does.
        """
        asked = layouts.parse(config.layout)
        fits = config.disk_space is None or self.disk_bytes() <= config.disk_space
        if (asked is None and not fits) or (asked is not None and asked != UNSHARED):
            room = runtime.budget.free_bytes
            keep_bytes = self._each(memory_tables.LAYOUT_IDS.bytes_of(room))
            wanted = [
                BatchIds(draft.section, self.packed, runtime, keep_bytes=keep_bytes) for draft in self.drafts
            ]
            seed = int(self.samples.manifest.config["seed"])
            table_bytes = self._each(memory_tables.LAYOUT_TABLE.bytes_of(room))
            arrangers = [
                SegmentArranger(
                    ids,
                    draft.rows.num_rows,
                    draft.row_bytes,
                    draft.hot,
                    seed,
                    runtime,
                    table_bytes=table_bytes,
                )
                for ids, draft in zip(wanted, self.drafts, strict=True)
            ]
            if asked is None:
                table_bytes = self._each(memory_tables.SEARCH_TABLE.bytes_of(room))
                asked = self._search(config, wanted, arrangers, runtime, table_bytes)
            self._arrange(asked, arrangers, folder, runtime)
            while config.disk_space is not None and self.disk_bytes() > config.disk_space:
                # The sketch was wrong by a little, or the layout was asked for.
                larger = self._larger(asked)
                if config.layout not in ("cost", "heuristic") or larger == asked:
                    break
                asked = larger
                self._arrange(asked, arrangers, folder, runtime)
            for arranger, draft in zip(arrangers, self.drafts, strict=True):
                draft.range_starts = arranger.range_starts
        for draft in self.drafts:
            draft.write_nothing_shared(folder, self._prefix(draft), runtime)
        self._check_disk(config, graph)

    def _each(self, count: int) -> int:
        """Returns what each row file has of ``count`` bytes."""
        return count // len(self.drafts)

    def _larger(self, layout: SegmentLayout) -> SegmentLayout:
        """Returns larger segments, up to one with all batches, in which nothing is stored twice."""
        segment = min(max(layout.segment + 1, int(layout.segment * 1.02)), max(len(self.packed), 1))
        return SegmentLayout(segment, layout.threshold if segment > layout.segment else 1)

    def _search(
        self,
        config: PlanConfig,
        wanted: Sequence[BatchIds],
        arrangers: Sequence[SegmentArranger],
        runtime: Runtime,
        table_bytes: int,
    ) -> SegmentLayout:
        assert config.disk_space is not None
        sketches = [
            WantSketch(ids, draft.hot, draft.sizes(), runtime, table_bytes=table_bytes)
            for ids, draft in zip(wanted, self.drafts, strict=True)
        ]
        search = layouts.LayoutSearch(sketches, self._fixed_bytes(), len(self.packed))
        best = layouts.heuristic(search, config.disk_space)
        if best is None or config.layout == "heuristic":
            return best or SegmentLayout(max(len(self.packed), 1), 1)
        rates = layouts.DiskRates(config.sequential_rate, config.random_rate)
        wants = [draft.wants for draft in self.drafts]
        costs = {
            layout: layouts.price(layout, arrangers, search, rates, wants)
            for layout in layouts.candidates(search, config.disk_space, len(self.packed))
        }
        best = min(costs, key=lambda layout: costs[layout].seconds)
        self.alternatives = [layouts.describe(lay, cost, lay == best) for lay, cost in costs.items()]
        return best

    def _fixed_bytes(self) -> int:
        """Returns what does not depend on the layout: all with everything packed, less the packed copies themselves."""
        copies = (
            int(draft.wants.sum()) * (draft.row_bytes + draft.section.id_bytes) for draft in self.drafts
        )
        return self.disk_bytes() - sum(copies)

    def _arrange(
        self, layout: SegmentLayout, arrangers: Sequence[SegmentArranger], folder: Path, runtime: Runtime
    ) -> None:
        with runtime.trace.span("layout", segment=layout.segment, threshold=layout.threshold):
            for arranger, draft in zip(arrangers, self.drafts, strict=True):
                draft.arrange(layout, arranger, folder, self._prefix(draft), runtime)
        self._add_up()
        self.layout = layout

    def written(self) -> dict[str, ArraySpec]:
        """Returns the arrays of the disk caches, which are on disk."""
        return {
            self._prefix(draft) + name: spec for draft in self.drafts for name, spec in draft.written.items()
        }

    def tables(self) -> dict[str, np.ndarray]:
        """Returns the other arrays of the plan."""
        of_rows = {
            self._prefix(draft) + name: values
            for draft in self.drafts
            for name, values in draft.tables().items()
        }
        return {**of_rows, "packed_batches": self.packed, "offsets": self.offsets}

    def predicted(self) -> dict[str, Any]:
        """Returns bytes and rows of every epoch, exactly; bytes on disk at the most."""
        drafts = self.drafts
        pages = np.sum([draft.shared.pages for draft in drafts], axis=0)
        read = np.diff(self.offsets) + pages * PAGE_BYTES
        rows = np.sum([draft.num_packed for draft in drafts], axis=0)
        cached = np.sum([draft.cached for draft in drafts], axis=0)
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
                            "device": int(cached[packed_numbers, 1].sum()),
                            "host": int(cached[packed_numbers, 0].sum()),
                            "disk_cache": int(cached[packed_numbers, 2].sum()),
                            "packed": int(rows[packed_numbers].sum()),
                        },
                    }
                )
        return {
            "epochs": groups,
            "cache_bytes": {
                "host": sum(len(draft.levels.host_ids) * draft.row_bytes for draft in drafts),
                "device": sum(len(draft.levels.device_ids) * draft.row_bytes for draft in drafts),
                "disk": sum(draft.shared.rows * draft.row_bytes for draft in drafts),
            },
            "record_bytes": int(self.offsets[-1]),
            "disk_bytes": self.disk_bytes(),
            "read_amplification": float(read.sum() / self.needed.sum()) if self.needed.sum() else 1.0,
            "alternatives": self.alternatives,
        }

    def disk_bytes(self) -> int:
        """Returns the most that the run takes on disk at any moment: files, and what packing needs besides."""
        arrays = [int(self.offsets[-1]), *(count for draft in self.drafts for count in draft.array_bytes())]
        sampled = sum(spec.file_bytes for spec in self.samples.manifest.arrays.values())
        return sum(map(record.align_page, arrays)) + sampled + self._small_files_bytes()

    def _small_files_bytes(self) -> int:
        """Gives what tables, manifests and the journal of packing take at most: arrays to the byte, text generously."""
        packed, drafts = len(self.packed), self.drafts
        tables = [8 * packed, 8 * (packed + 1), *(count for draft in drafts for count in draft.table_bytes())]
        tables.append(4 * packed * len(drafts))  # the checksums of the rows
        runs = sum(draft.journal_bytes() for draft in drafts)
        journal = 2 * (runs + 4 * packed + PAGE_BYTES)  # old and new, while it is replaced
        epochs = sum(group.epochs for group in self.samples.groups.values())
        text = 6 * PAGE_BYTES + 512 * epochs  # run.json and four manifests; the plan's tells every epoch
        text += (len(drafts) - 1) * 2 * PAGE_BYTES  # more arrays
        return sum(map(record.align_page, tables)) + journal + text

    def _check_disk(self, config: PlanConfig, graph: Graph) -> None:
        needed = self.disk_bytes()
        if config.disk_space is None or needed <= config.disk_space:
            return
        searched = config.layout in ("cost", "heuristic")
        stored = (
            "with every row that is not in memory stored once" if searched else f"in layout {config.layout}"
        )
        if self.layout == UNSHARED:
            stored = "as packed"
        other = "" if searched else ", or leave the layout to --layout cost"
        raise BudgetError(
            f"the run needs {exact_bytes(needed)} of disk {stored} ({needed / graph.feature_bytes:.2f}x the features), "
            f"the limit is {exact_bytes(config.disk_space)}; {smallest_disk(needed)}{other}, or sample fewer epochs "
            "(--epochs), or raise --memory so that more rows are cached",
            needed,
            "disk",
        )
