"""RowSource: one way to get feature rows by node id, whatever holds them.

``source.read_rows(ids, out)`` equals ``out[:] = features[ids]`` bit for bit, for every implementation; all pass the
same conformance suite (tests/conformance). Rows are bytes here: dtype and width do not matter.
"""

from __future__ import annotations

from outcrop.errors import ArgumentError
from outcrop.rows.base import Placed, RowSource
from outcrop.rows.belady import BeladyRows, NextUses, schedule_of
from outcrop.rows.cached import DynamicRows, rows_within
from outcrop.rows.disk import DiskRows
from outcrop.rows.host import HostRows
from outcrop.rows.hot import DiskStream, HotRows, HotSet, Pending, RowStream
from outcrop.rows.map import MapRows
from outcrop.rows.packed import PackedRows
from outcrop.rows.partition import Partitioning, PartitionRows, Visit
from outcrop.rows.tiered import TieredRows
from outcrop.runtime import Runtime
from outcrop.store.graph import Graph

__all__ = [
    "BeladyRows",
    "DiskRows",
    "DiskStream",
    "DynamicRows",
    "HostRows",
    "HotRows",
    "HotSet",
    "MapRows",
    "NextUses",
    "PackedRows",
    "PartitionRows",
    "Partitioning",
    "Pending",
    "Placed",
    "RowSource",
    "RowStream",
    "TieredRows",
    "Visit",
    "open_rows",
    "rows_within",
    "schedule_of",
    "scratch_share",
]

_MERGED = ("online", "dynamic", "belady", "partition")


def scratch_share(memory_bytes: int) -> int:
    """Scratch for row-by-row reading: 1/32 of the budget, 64 KiB to 16 MiB."""
    return min(max(memory_bytes // 32, 64 << 10), 16 << 20)


def open_rows(graph: Graph, runtime: Runtime, mode: str) -> RowSource:
    """The row source of ``mode``; for ``online`` and the modes with a cache of their own, what lies below it."""
    features = graph.array(runtime, "features")
    if mode == "memory":
        return HostRows(features, runtime)
    if mode == "memmap":
        return MapRows(features)
    if mode == "ondisk" or mode in _MERGED:
        scratch = scratch_share(runtime.budget.limit_bytes)
        return DiskRows(features, runtime, scratch_bytes=scratch, merge=mode in _MERGED)
    known = ", ".join(("packed", "memory", "memmap", "ondisk", *_MERGED))
    raise ArgumentError(f"mode {mode!r} is unknown; known: {known}")
