"""RowSource: one way to get feature rows by node id, whatever holds them.

``source.read_rows(ids, out)`` equals ``out[:] = features[ids]`` bit for bit, for every implementation; all pass the
same conformance suite (tests/conformance). Rows are bytes here: dtype and width do not matter.
"""

from __future__ import annotations

from outcrop.rows.absent import AbsentRows
from outcrop.rows.base import RowSource, ScheduledRows
from outcrop.rows.belady import BeladyRows, NextUses, schedule_of
from outcrop.rows.cached import DynamicRows, rows_within
from outcrop.rows.disk import DiskRows
from outcrop.rows.host import HostRows
from outcrop.rows.hot import DiskStream, HotRows, LocatedRows, PendingReads, RowStream, StaticCache
from outcrop.rows.map import MapRows
from outcrop.rows.partition import NodePartitions, PartitionRows, Visit
from outcrop.rows.tiered import TieredRows
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.store.graph_types import RowFile

__all__ = [
    "AbsentRows",
    "BeladyRows",
    "DiskRows",
    "DiskStream",
    "DynamicRows",
    "HostRows",
    "HotRows",
    "LocatedRows",
    "MapRows",
    "NextUses",
    "NodePartitions",
    "PartitionRows",
    "PendingReads",
    "RowSource",
    "RowStream",
    "ScheduledRows",
    "StaticCache",
    "TieredRows",
    "Visit",
    "disk_rows",
    "rows_below",
    "rows_within",
    "schedule_of",
]


def disk_rows(graph: Graph, runtime: Runtime, file: RowFile, *, merge: bool = True) -> DiskRows:
    """Opens a row file of ``graph`` on disk, with an equal part of the scratch memory that the budget has for all."""
    scratch = memory_tables.READ_SCRATCH.bytes_of(runtime.budget.limit_bytes) // len(graph.row_files)
    return DiskRows(graph.open_rows(runtime, file), runtime, scratch_bytes=scratch, merge=merge)


def rows_below(graph: Graph, runtime: Runtime, file: RowFile) -> RowSource:
    """Opens a row file of ``graph`` as what lies below records, which may have all rows that are ever wanted."""
    if graph.is_left(file):
        return AbsentRows(file.num_rows, file.row_bytes, graph.what_is_left(file.array))
    return disk_rows(graph, runtime, file)
