"""Optimal replacement from recorded batches: mode ``belady``.

Source: Belady's MIN (IBM Systems Journal 5(2), 1966) applied batch by batch as in Ginex (PVLDB 15(11), 2022: its
optimal feature cache), which samples ahead too and so knows when each row is needed next.

The rule: after each batch the cache keeps, of the rows it held and the rows of the batch, those that are needed
soonest, counted in batches; a row of the batch that is needed later than all others is not taken in (bypass). With an
equal number of rows no policy misses fewer rows over the first n batches, for any n, if the passes come in the order of
the schedule. Bytes follow rows exactly where a row fills whole pages; where rows share pages, reads of missing rows
merge, and fewer rows need not be fewer pages.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from typing import final

import numpy as np

import outcrop._core as _core
from outcrop.errors import ArgumentError
from outcrop.rows.base import RowSource, ScheduledRows
from outcrop.rows.cached import CacheReader
from outcrop.runtime import memory_tables
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.graph_types import RowFile
from outcrop.store.levels import LevelCounts
from outcrop.store.samples import SampleSet

_TAG = "next-use"
_MOST = 1 << 30  # batches in a cycle: next uses, up to two cycles ahead, are 32 bits wide


def schedule_of(samples: SampleSet, passes: tuple[str, ...]) -> np.ndarray:
    """Lists the batches of one cycle in the order of training: int64 numbers in ``samples``.

    Args:
        passes: What one epoch goes over, for example ``("train", "valid")``.

    A cycle is the pool of sampled epochs, which training replays; splits that were not sampled are left out.
    """
    groups = [samples.groups[name] for name in passes if name in samples.groups]
    epochs = max((group.epochs for group in groups), default=0)
    parts = [np.array(group.batches(e), np.int64) for e in range(epochs) for group in groups]
    return np.concatenate([np.zeros(0, np.int64), *parts])


class NextUses:
    """Knows for every node of every batch of a schedule the batch that needs it next; in a file without a name.

    Worked out by walking over the recorded node ids from the last batch to the first, twice (once to learn how the
    cycle begins), as often as windows of nodes are needed: the table with 4 bytes per node of a window keeps to a
    quarter of the free budget. The file has 4 bytes per node of a batch, padded to pages, beside the run's stages.

    Args:
        rows: The row file.
        schedule: int64 [cycle], numbers of batches in ``samples``; the same may come again.
    """

    def __init__(self, samples: SampleSet, rows: RowFile, schedule: np.ndarray, runtime: Runtime):
        if not 0 < len(schedule) <= _MOST:
            raise ArgumentError(
                f"{samples.path} has {len(schedule)} batches to plan ahead, 1 to {_MOST} are possible"
            )
        self._section, self._schedule, self._io = samples.section(rows), schedule, runtime.io
        self._nodes = self._section.num_rows[schedule]
        spans = -(-self._nodes * 4 // PAGE_BYTES) * PAGE_BYTES
        self._offsets = np.concatenate([[0], np.cumsum(spans)])
        self._places: dict[int, list[int]] = {}
        for place, batch in enumerate(schedule.tolist()):
            self._places.setdefault(batch, []).append(place)
        manifests.remove_scratch(samples.path.parent)
        path = manifests.scratch_file(samples.path.parent)
        try:
            self._file = runtime.io.open(str(path), _core.OpenMode.create)
        except BaseException:
            manifests.remove_scratch(samples.path.parent)  # where it was made all the same
            raise
        self.close = weakref.finalize(self, runtime.io.close, self._file)
        path.unlink(missing_ok=True)  # another process may have taken it for one that was left
        self._buffer = runtime.budget.empty(_TAG, int(spans.max()))
        with runtime.trace.span(_TAG):
            self._work_out(rows.num_rows, runtime)
        self._io.drop_cache(self._file)

    @property
    def cycle(self) -> int:
        return len(self._schedule)

    def place_of(self, batch: int, after: int) -> int | None:
        """Finds where the schedule has ``batch`` next, behind place ``after``; None where it never has it."""
        places = self._places.get(batch)
        return None if places is None else places[bisect_right(places, after) % len(places)]

    def read(self, place: int) -> np.ndarray:
        """Reads uint32, one per node of the batch: in (place, place + cycle]; a view until the next call."""
        count = int(self._nodes[place])
        self._io.read(self._file, int(self._offsets[place]), self._span(place))
        return self._buffer[: 4 * count].view(np.uint32)

    def _span(self, place: int) -> np.ndarray:
        return self._buffer[: int(self._offsets[place + 1] - self._offsets[place])]

    def _work_out(self, num_nodes: int, runtime: Runtime) -> None:
        section, most = self._section, int(self._nodes.max())
        ids = runtime.budget.empty(_TAG, most * section.id_bytes)
        window = max(min(num_nodes, memory_tables.NEXT_USES.bytes_of(runtime.budget.free_bytes) // 4), 1)
        seen = runtime.budget.empty(_TAG, window * 4).view(np.uint32)
        if runtime.rehearsal is not None:
            return
        for first in range(0, num_nodes, window):
            for place in reversed(range(self.cycle)):
                nodes = section.read_ids(int(self._schedule[place]), ids)
                _core.next_uses(nodes, self.cycle + place, first, seen)
            for place in reversed(range(self.cycle)):
                nodes = section.read_ids(int(self._schedule[place]), ids)
                out = self.read(place) if first else self._buffer[: 4 * len(nodes)].view(np.uint32)
                _core.next_uses(nodes, place, first, seen, out)
                self._io.write(self._file, int(self._offsets[place]), self._span(place))


@final
class BeladyRows(ScheduledRows[int]):
    """Keeps the rows that are needed soonest, over another source.

    ``advance_to(batch)`` says which recorded batch comes next.
    Rows that are asked for without it, and batches that the schedule does not have, are served from the cache and from
    below and change nothing.

    Args:
        rows: Capacity; may be smaller than a batch, also 0.
    """

    def __init__(self, below: RowSource, runtime: Runtime, uses: NextUses, *, rows: int):
        self.num_rows, self.row_bytes = below.num_rows, below.row_bytes
        self._reader = CacheReader(below, runtime, "belady", rows, uses.cycle)
        self._uses = uses
        self._now, self._place = -1, None

    def advance_to(self, position: int) -> None:
        self._place = self._uses.place_of(position, self._now)

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> LevelCounts:
        self._check(ids, out)
        place, self._place = self._place, None
        if place is None:
            return self._reader.read(ids, out)
        self._now = place
        return self._reader.read(ids, out, self._uses.read(place), place)

    def close(self) -> None:
        self._reader.close()
        self._uses.close()
        del self._uses
