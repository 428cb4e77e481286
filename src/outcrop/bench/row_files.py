"""Says of each row file how many rows and bytes an epoch of a benchmark took, beside what the plan predicted.

Rows by level are what loading counted. Mode ``packed`` reads what the plan says to the byte: anything else is an error,
so no figure comes from a run that reads something unforeseen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outcrop.advisor.counting import FileCount, Task, count
from outcrop.config import ModelConfig
from outcrop.loading.modes import Packed
from outcrop.store import run as runs
from outcrop.store.graph import Graph
from outcrop.store.graph_types import RowFile, name_of
from outcrop.store.levels import Level

_ON_DISK = (Level.DISK_CACHE, Level.PACKED, Level.DISK, Level.MAP)


def add(modes: Mapping[str, dict[str, Any]], graph: Graph, run: Path, model: ModelConfig) -> None:
    """Replaces ``rows_by_file`` in the summary of each mode, which is there where there are several, by ``row_files``.

    Each row file has ``of`` (whose rows they are), ``row_bytes``, ``rows_by_level`` and ``bytes_needed``, those of the
    rows that came from disk. Of mode ``packed``, which reads records, also ``bytes_predicted`` (read, with what fills
    pages up) and ``read_amplification``, and the mode has ``bytes_predicted`` and ``structure_bytes``: what is read of
    the batches' structure is the rest.

    Args:
        graph: The graph with the row files that batches have.
        run: What mode ``packed`` read.

    Raises:
        AssertionError: Mode ``packed`` took other rows or bytes than the plan of ``run`` has.
    """
    for mode, summary in modes.items():
        levels = summary.pop("rows_by_file", None)
        if levels is None:
            continue
        summary["row_files"] = [_file(rows, of) for rows, of in zip(graph.row_files, levels, strict=True)]
        if mode == Packed.name:
            _add_prediction(summary, graph, run, model)


def _file(rows: RowFile, levels: Mapping[str, int]) -> dict[str, Any]:
    from_disk = sum(levels.get(level, 0) for level in _ON_DISK)
    return {
        "of": name_of(rows),
        "row_bytes": rows.row_bytes,
        "rows_by_level": dict(levels),
        "bytes_needed": from_disk * rows.row_bytes,
    }


def _add_prediction(summary: dict[str, Any], graph: Graph, run: Path, model: ModelConfig) -> None:
    info = runs.read(run)
    counted = count(Task(graph, model, info.sample, info.plan, run=run), online=False)
    files, loading = counted.files[Packed.name], counted.works[Packed.name].loading
    summary["structure_bytes"] = loading.structure_bytes
    summary["bytes_predicted"] = loading.structure_bytes + sum(of.bytes_read for of in files)
    for found, of in zip(summary["row_files"], files, strict=True):
        found["bytes_predicted"] = of.bytes_read
        needed = found["bytes_needed"]
        found["read_amplification"] = of.bytes_read / needed if needed else None
    _check(summary, files)


def _check(summary: Mapping[str, Any], files: Sequence[FileCount]) -> None:
    """Raises AssertionError where loading counted other rows, or the disk other bytes, than the plan has."""
    for found, of in zip(summary["row_files"], files, strict=True):
        took, planned = (
            {k: n for k, n in one.items() if n} for one in (found["rows_by_level"], of.rows_by_level)
        )
        if took != planned:
            raise AssertionError(f"packed took rows of {found['of']!r} from {took}, the plan has {planned}")
    read, predicted = summary["bytes_read"], summary["bytes_predicted"]
    if read != predicted:
        raise AssertionError(f"packed read {read} bytes in an epoch, the plan predicts {predicted}")
