"""Rows of resident partitions: mode ``partition``, MariusGNN's way to train from disk.

Source: MariusGNN (EuroSys'23; its policy COMET): nodes are divided into partitions, some of which are in memory at a
time; batches are drawn from these alone. All reads are sequential; what training sees of the graph is not what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from outcrop.errors import ArgumentError
from outcrop.rows.base import RowSource, ScheduledRows, read_over
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import DiskArray
from outcrop.store.levels import LevelCounts


@dataclass(frozen=True)
class Visit:
    """Names the partitions that are in memory at a time, ascending, and those of them whose training nodes take their
    turn.
    """

    resident: tuple[int, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class NodePartitions:
    """Divides nodes into ``parts`` partitions of consecutive ones, ``resident`` of them in memory at a time.

    Attributes:
        step: Partitions begin at multiples of it: rows per page boundary, so that reads need no copy.
    """

    num_nodes: int
    parts: int
    resident: int
    seed: int = 0
    step: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.resident <= self.parts <= max(self.num_nodes, 1):
            raise ArgumentError(
                f"{self.resident} resident of {self.parts} partitions of {self.num_nodes} nodes were asked for: "
                "1 <= resident <= partitions <= nodes must hold"
            )

    @cached_property
    def bounds(self) -> np.ndarray:
        """Cuts nodes, int64 [parts + 1]: part p has ``bounds[p]:bounds[p + 1]``; sizes differ by a step at most."""
        bounds = np.arange(self.parts + 1, dtype=np.int64) * self.num_nodes // self.parts
        bounds[:-1] -= bounds[:-1] % self.step
        return bounds

    @property
    def most_nodes(self) -> int:
        """Counts the nodes of the largest partition, rounded up to whole steps."""
        return -(-int(np.diff(self.bounds).max()) // self.step) * self.step

    def visits(self, epoch: int) -> list[Visit]:
        """Lists the sets of partitions that an epoch goes through; every partition gives its training nodes once.

        Partitions are shuffled, keyed by (seed, epoch), and taken ``resident`` at a time, so that others meet in every
        epoch (as COMET groups physical partitions into logical ones at random; all of a group change at once, which
        is simpler than its one at a time). Where the last group is short, partitions of the one before stay.
        """
        keys = np.random.Philox(key=np.array([self.seed, epoch], np.uint64)).random_raw(self.parts)
        order, count = np.argsort(keys, kind="stable").tolist(), self.resident
        groups = [order[first : first + count] for first in range(0, self.parts, count)]
        kept = groups[-2][: count - len(groups[-1])] if len(groups) > 1 else []
        return [
            Visit(tuple(sorted(group + (kept if group is groups[-1] else []))), tuple(sorted(group)))
            for group in groups
        ]

    def owners(self, ids: np.ndarray) -> np.ndarray:
        """Finds the partition of each node, int64."""
        return np.searchsorted(self.bounds, ids, side="right") - 1


@final
class PartitionRows(ScheduledRows[Visit | None]):
    """Holds rows of the resident partitions in memory under the tag ``partition-rows``; all others come from ``below``.

    ``advance_to(visit)`` reads the partitions of the visit that are not there, each sequentially, in the place of
    others.
    """

    def __init__(self, features: DiskArray, below: RowSource, partitions: NodePartitions, runtime: Runtime):
        self.num_rows, self.row_bytes = below.num_rows, below.row_bytes
        self._features, self._below, self._parts, self._runtime = features, below, partitions, runtime
        self._stride, self._slot_rows = features.spec.stride_bytes, partitions.most_nodes
        self._table = runtime.budget.empty(
            "partition-rows", partitions.resident * self._slot_rows * self._stride
        )
        self._slot_of = np.full(partitions.parts, -1, np.int64)

    def advance_to(self, position: Visit | None) -> None:
        """Reads the partitions of a visit that are not there; None leaves everything as it is."""
        if position is None:
            return
        wanted = set(position.resident)
        gone = [p for p in np.flatnonzero(self._slot_of >= 0).tolist() if p not in wanted]
        self._slot_of[gone] = -1
        free = sorted(set(range(self._parts.resident)) - set(self._slot_of.tolist()))
        for part in position.resident:
            if self._slot_of[part] < 0:
                slot = free.pop(0)
                self._read(part, slot)
                self._slot_of[part] = slot  # not before, so that a failed read leaves no wrong rows

    def _read(self, part: int, slot: int) -> None:
        first, stop = self._parts.bounds[part : part + 2].tolist()
        at, count = slot * self._slot_rows * self._stride, (stop - first) * self._stride
        with self._runtime.trace.span("swap", partition=part):
            self._features.read_bytes(first * self._stride, self._table[at : at + count])

    def read_rows(self, ids: np.ndarray, out: np.ndarray) -> LevelCounts:
        self._check(ids, out)
        owners = self._parts.owners(ids)
        slots = self._slot_of[owners]
        positions = np.flatnonzero(slots >= 0)
        rows = (slots * self._slot_rows + ids - self._parts.bounds[owners])[positions]
        return read_over(
            self._below, ids, out, positions.astype(np.int32), rows.astype(np.int32), self._table, self._stride,
            self._runtime,
        )  # fmt: skip

    def close(self) -> None:
        self._below.close()
        del self._table
