"""The segmented disk cache: which rows the batches of a segment share on disk, and in which order they lie.

Source: DiskGNN section 5.1. Packed batches with consecutive numbers form segments. Within a segment a row that more
than ``threshold`` batches want is shared: it lies once in the disk cache, ordered by MinHash so that a batch's rows
share pages; other rows are packed once per batch. Everything here counts and orders node ids; no row is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import outcrop._core as _core
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store import record
from outcrop.store.arrays import ArrayWriter
from outcrop.store.placement import find_sorted
from outcrop.store.samples import SampleSection

_WANT_BYTES = 16  # of the sketch
_SAMPLED_SEGMENTS = 3  # at least, to price a layout; more while they hold fewer wants than _SAMPLED_WANTS
_SAMPLED_WANTS = 4_000_000
_SLACK = 0.005  # by which the sketch may be wrong


@dataclass(frozen=True)
class SegmentLayout:
    """Cuts batches into segments of ``segment``; rows wanted more than ``threshold`` times in one are shared. 0, 0:
    none.
    """

    segment: int = 0
    threshold: int = 0


UNSHARED = SegmentLayout()


@dataclass(frozen=True)
class DiskRates:
    """Says what the disk does: bytes per second in large reads, 4 KiB reads per second."""

    sequential: float = 1e9
    random: float = 5e4

    def seconds(self, packed_bytes: float, pages: float, runs: float) -> float:
        """Returns the time to read packed bytes in large requests, and ``pages`` in ``runs`` of adjacent ones."""
        return packed_bytes / self.sequential + max(runs / self.random, pages * PAGE_BYTES / self.sequential)


class BatchIds:
    """Gives the ids of the rows that packed batches want of a row file, read in turn through one buffer, or kept while
    they fit another.
    """

    def __init__(self, section: SampleSection, packed: np.ndarray, runtime: Runtime, keep_bytes: int = 0):
        self.section, self.packed = section, packed
        self._buffer = runtime.budget.empty("layout", section.buffer_bytes)
        every = sum(record.align_page(int(n) * section.id_bytes) for n in section.num_rows[packed])
        keep_bytes = min(keep_bytes, every)
        self._keep = runtime.budget.empty("layout", keep_bytes) if keep_bytes else np.zeros(0, np.uint8)
        self._kept: dict[int, np.ndarray] = {}

    def of(self, p: int) -> np.ndarray:
        """Returns int32 or int64 ids of packed batch ``p``, all hops; valid until the next call."""
        found = self._kept.get(p)
        return self.section.read_ids(int(self.packed[p]), self._buffer) if found is None else found

    def keep(self, batches: range) -> None:
        """Keeps the ids of ``batches`` as far as they fit; they are visited several times."""
        self._kept.clear()
        used = 0
        for p in batches:
            count = int(self.section.num_rows[self.packed[p]]) * self.section.id_bytes
            if used + count > len(self._keep):
                break
            if count:
                self._kept[p] = self.section.read_ids(int(self.packed[p]), self._keep[used:])
            used += record.align_page(count)

    def hops(self, p: int) -> Iterator[np.ndarray]:
        """Yields the ids of each hop."""
        ids, start = self.of(p), 0
        for count in self.section.runs[self.packed[p]]:
            yield ids[start : start + int(count)]
            start += int(count)


@dataclass
class SharedCounts:
    """Counts what the batches read of the disk cache: arrays over packed batches.

    Attributes:
        per_hop: int64 [P, hops + 1], shared rows.
        pages, runs: int64 [P], distinct pages, runs of adjacent pages.
        region_rows: first row of each region, by range of nodes, then by segment (store/placement.py).
    """

    per_hop: np.ndarray
    pages: np.ndarray
    runs: np.ndarray
    region_rows: np.ndarray

    @property
    def rows(self) -> int:
        return int(self.region_rows[-1])


class SegmentArranger:
    """Applies a layout to all segments, or some: chooses, orders and counts their shared rows.

    Args:
        hot: Ids that memory holds, ascending: never shared.
        table_bytes: What the working tables may take; nodes are handled in ranges that fit.
    """

    def __init__(
        self,
        wanted: BatchIds,
        num_nodes: int,
        row_bytes: int,
        hot: Sequence[np.ndarray],
        seed: int,
        runtime: Runtime,
        *,
        table_bytes: int,
    ):
        self._wanted, self.row_bytes, self._hot, self._runtime = wanted, row_bytes, hot, runtime
        self._seed = seed
        per_range = min(max(table_bytes // _core.SegmentTable.bytes_per_node(), 1 << 12), max(num_nodes, 1))
        self.range_starts = np.append(np.arange(0, num_nodes, per_range, dtype=np.int64), num_nodes)
        self._table = _core.SegmentTable(runtime.budget, per_range)
        self._begun = -1

    def segments(self, layout: SegmentLayout) -> list[range]:
        count = len(self._wanted.packed)
        return [range(first, min(first + layout.segment, count)) for first in range(0, count, layout.segment)]

    def arrange(
        self,
        layout: SegmentLayout,
        *,
        segments: Sequence[int] | None = None,
        block_rows: int = 1,
        out: tuple[ArrayWriter, ArrayWriter] | None = None,
        reorder: bool = True,
    ) -> SharedCounts:
        """Counts what ``layout`` shares in ``segments`` (None: all); writes ids and ranks of all blocks to ``out``.

        Without ``reorder`` shared rows lie by ascending id: what reordering is compared with.
        """
        cut = self.segments(layout)
        chosen = range(len(cut)) if segments is None else segments
        packed, hops = len(self._wanted.packed), self._wanted.section.num_runs
        shared = SharedCounts(
            np.zeros((packed, hops), np.int64),
            np.zeros(packed, np.int64),
            np.zeros(packed, np.int64),
            np.zeros(1, np.int64),
        )
        last_page = np.full(packed, -1, np.int64)
        row, starts = 0, [0]
        for number in range(len(self.range_starts) - 1):
            self._begin_range(number)
            for s in chosen:
                row += self._visit(layout, s, cut[s], row, shared, last_page, block_rows, out, reorder)
                starts.append(row)
        shared.region_rows = np.array(starts, np.int64)
        return shared

    def _begin_range(self, number: int) -> None:
        if self._begun == number:
            return
        first, stop = (int(v) for v in self.range_starts[number : number + 2])
        self._table.begin_range(first, stop - first, np.concatenate([np.zeros(0, np.int64), *self._hot]))
        self._begun = number

    def _visit(
        self,
        layout: SegmentLayout,
        number: int,
        batches: range,
        row: int,
        shared: SharedCounts,
        last_page: np.ndarray,
        block_rows: int,
        out: tuple[ArrayWriter, ArrayWriter] | None,
        reorder: bool,
    ) -> int:
        """Visits one segment within the range that was begun; its first row is ``row``. Gives how many rows it has."""
        table, wanted = self._table, self._wanted
        wanted.keep(batches)
        table.begin_segment(
            len(batches), layout.threshold, (self._seed * 0x9E3779B1 + number) % (1 << 64), row
        )
        for packed_batch in batches:
            table.count(wanted.of(packed_batch))
        for i, packed_batch in enumerate(batches if reorder else ()):
            table.sign(i, wanted.of(packed_batch))
        rows = table.order(self._runtime.workers)
        if out is not None:
            self._write_blocks(rows, block_rows, out)
        for packed_batch in batches:
            for hop, ids in enumerate(wanted.hops(packed_batch)):
                shared.per_hop[packed_batch, hop] += table.mark(ids, self.row_bytes)
            reads = table.finish_batch()
            if reads.pages:
                # Regions follow each other without a gap: a page, or a run, may go on from the one before.
                shared.pages[packed_batch] += reads.pages - (reads.first_page == last_page[packed_batch])
                shared.runs[packed_batch] += reads.runs - (
                    last_page[packed_batch] >= 0 and reads.first_page <= last_page[packed_batch] + 1
                )
                last_page[packed_batch] = reads.last_page
        for packed_batch in batches:
            table.clear(wanted.of(packed_batch))
        return rows

    def _write_blocks(self, rows: int, block_rows: int, out: tuple[ArrayWriter, ArrayWriter]) -> None:
        ids_out, rank_out = out
        for first in range(0, rows, block_rows):
            ids = np.empty(min(block_rows, rows - first), np.int64)
            self._table.shared(first, ids)
            rank = np.argsort(ids)
            ids_out.append(ids[rank].astype(f"<i{self._wanted.section.id_bytes}"))
            rank_out.append(rank.astype("<i4"))


@dataclass(frozen=True)
class LayoutCost:
    """Says what a layout takes: ``disk_bytes`` of the whole run, and per pass over all packed batches the rest."""

    disk_bytes: int
    bytes_read: int
    pages: int
    runs: int
    seconds: float


@dataclass(frozen=True)
class LayoutSizes:
    """Says what disk bytes are made of, beside the rows, for one row file (preparation/draft.py).

    Attributes:
        total_wants: (batch, row) pairs whose rows are not in memory.
        per_shared, per_packed: Bytes of files besides the row itself, per shared row and per packed copy.
        per_want: Bytes of address table per want of a shared row.
        block: Spare room for ordering the disk cache, where there is one.
    """

    row_bytes: int
    total_wants: int
    per_shared: int
    per_packed: int
    per_want: int
    block: int

    def disk_bytes(self, shared: float, packed: float, wants: float) -> float:
        """Counts the bytes that depend on the layout."""
        rows = shared * (self.row_bytes + self.per_shared) + packed * (self.row_bytes + self.per_packed)
        return rows + wants * self.per_want + (self.block if shared else 0)


class WantSketch:
    """Counts what layouts share of one row file.

    Ids are sampled by hash (:class:`_core.LayoutSketch`), so that counting for one segment size takes milliseconds,
    whatever the samples.
    """

    def __init__(
        self,
        wanted: BatchIds,
        hot: Sequence[np.ndarray],
        sizes: LayoutSizes,
        runtime: Runtime,
        *,
        table_bytes: int,
    ):
        self.sizes = sizes
        capacity = min(max(table_bytes // (2 * _WANT_BYTES), 1 << 12), max(sizes.total_wants, 1))
        halvings = 0
        # Half of the capacity, because hashing does not halve exactly.
        while sizes.total_wants >> halvings > capacity * (1 if halvings == 0 else 0.5):
            halvings += 1
        self.exact = halvings == 0
        self._sketch = _core.LayoutSketch(runtime.budget, capacity, halvings, 1)
        thin = runtime.budget.empty("layout", max(wanted.section.max_rows * 8, 8)).view(np.int64)
        for packed_batch in range(len(wanted.packed)):
            ids = thin[: self._sketch.thin(wanted.of(packed_batch), thin)]
            for table in hot:
                positions, _ = find_sorted(table, ids)
                if len(positions):
                    ids = np.delete(ids, positions)
            self._sketch.add(packed_batch, ids)
        self._sketch.finish(runtime.workers)
        # Scaled by wants, of which both numbers are known exactly: nodes vary more.
        self._scale = sizes.total_wants / self._sketch.size if self._sketch.size else 1.0
        self._histograms: dict[int, np.ndarray] = {}

    def counts(self, layout: SegmentLayout) -> tuple[float, float, float]:
        """Returns shared rows, packed copies, wants of shared rows."""
        if layout.segment not in self._histograms:
            self._histograms[layout.segment] = np.asarray(self._sketch.histogram(layout.segment), np.int64)
        h = self._histograms[layout.segment]
        c, m = np.arange(len(h)), layout.threshold
        wants = h * c
        return (
            self._scale * int(h[m + 1 :].sum()),
            self._scale * int(wants[: m + 1].sum()),
            self._scale * int(wants[m + 1 :].sum()),
        )


class LayoutSearch:
    """Finds layouts within a bound on disk space; the layout that is taken is counted exactly afterwards.

    Args:
        sketches: One for each row file.
        fixed: Bytes on disk that do not depend on the layout.
        batches: How many are packed.
    """

    def __init__(self, sketches: Sequence[WantSketch], fixed: int, batches: int):
        self._sketches, self._fixed, self._batches = sketches, fixed, batches
        self.exact = all(sketch.exact for sketch in sketches)

    def disk_bytes(self, layout: SegmentLayout) -> float:
        return self._fixed + sum(sketch.sizes.disk_bytes(*sketch.counts(layout)) for sketch in self._sketches)

    def smallest(self, threshold: int, limit: int, at_least: int = 2) -> SegmentLayout | None:
        """Returns the smallest segments, of ``at_least`` batches or more, with which the run fits ``limit`` bytes, if
        any.

        Larger segments share more and take less, up to what the cut between segments adds: bisection finds a size
        that does while the one before does not.
        """
        limit = int(limit if self.exact else limit * (1 - _SLACK))
        low, high = max(at_least, 1), max(self._batches, 1)
        if low > high or self.disk_bytes(SegmentLayout(high, threshold)) > limit:
            return None
        while low < high:
            middle = (low + high) // 2
            if self.disk_bytes(SegmentLayout(middle, threshold)) <= limit:
                high = middle
            else:
                low = middle + 1
        return SegmentLayout(low, threshold)


def heuristic(search: LayoutSearch, limit: int) -> SegmentLayout | None:
    """Returns the paper's choice: m = 1 and the smallest s within ``limit`` bytes."""
    return search.smallest(1, limit)


def candidates(search: LayoutSearch, limit: int, batches: int) -> list[SegmentLayout]:
    """Lists layouts worth pricing: for thresholds 1, 2, 3, 4, 6, 8, ... the smallest segments, for 1 larger ones."""
    layouts: list[SegmentLayout] = []
    threshold = 1
    while (layout := search.smallest(threshold, limit)) is not None:
        layouts.append(layout)
        threshold = threshold + 1 if threshold < 4 else threshold + threshold // 2
        if threshold >= batches:
            break
    if layouts:
        first = layouts[0].segment
        layouts += [SegmentLayout(min(int(first * f), batches), 1) for f in (1.5, 2, 4)]
    return list(dict.fromkeys(layouts))


def price(
    layout: SegmentLayout,
    arrangers: Sequence[SegmentArranger],
    search: LayoutSearch,
    rates: DiskRates,
    wants: Sequence[np.ndarray],
) -> LayoutCost:
    """Returns what ``layout`` costs, from a few of its segments.

    Args:
        arrangers: One for each row file.
        wants: For each row file int64 [P], rows per packed batch that memory does not hold.
    """
    cut, total = arrangers[0].segments(layout), sum(int(each.sum()) for each in wants)
    per_segment = max(total // max(len(cut), 1), 1)
    count = min(max(_SAMPLED_SEGMENTS, -(-_SAMPLED_WANTS // per_segment)), len(cut))
    chosen = sorted({(2 * i + 1) * len(cut) // (2 * count) for i in range(count)}) if count else []
    at = np.concatenate([np.arange(r.start, r.stop) for r in (cut[s] for s in chosen)] or [np.zeros(0, int)])
    packed_bytes = pages = runs = 0
    for arranger, each in zip(arrangers, wants, strict=True):
        shared = arranger.arrange(layout, segments=chosen)
        scale = each.sum() / max(each[at].sum(), 1)
        pages += int(scale * shared.pages[at].sum())
        runs += int(scale * shared.runs[at].sum())
        packed_bytes += int(scale * (each[at].sum() - shared.per_hop[at].sum())) * arranger.row_bytes
    return LayoutCost(
        int(search.disk_bytes(layout)),
        packed_bytes + pages * PAGE_BYTES,
        pages,
        runs,
        rates.seconds(packed_bytes, pages, runs),
    )


def describe(layout: SegmentLayout, cost: LayoutCost, chosen: bool) -> dict[str, Any]:
    """Returns a line of the plan's alternatives."""
    return {**asdict(layout), **asdict(cost), "read_ops": cost.runs, "chosen": chosen}


def parse(text: str) -> SegmentLayout | None:
    """Returns the layout that :class:`PlanConfig` asks for: ``"packed"`` or ``"S,M"``; None: it is searched."""
    if text in ("cost", "heuristic"):
        return None
    if text == "packed":
        return UNSHARED
    segment, _, threshold = text.partition(",")
    return SegmentLayout(int(segment), int(threshold))
