"""Rows in the order of the nodes, from a source that has them in another order and is larger than memory.

Nodes are divided into ranges that fit into memory. One pass over the source appends each row to the part of its range
in a temporary file; then each range is read whole and put in order. Every row is written and read once, in large
pieces.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from outcrop.importing.sources.base import FeatureSource
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime

_FILE = "rows.tmp"


def in_node_order(
    features: FeatureSource, runtime: Runtime, work: Path, rows: int, range_rows: int | None = None
) -> Iterator[np.ndarray]:
    """Yields blocks of rows by node; equals ``numpy.concatenate(list(features.blocks(rows)))[numpy.argsort(order)]``.

    Where ``runtime`` only measures, the first block is yielded, or one of its shape.

    Args:
        work: Folder for the temporary file, which is gone at the end.
        rows: Rows to read and to yield at a time.
        range_rows: Nodes of a range; None = as many as an eighth of the free budget holds.
    """
    if features.order is None:
        yield from short_blocks(features, runtime, rows)
        return
    row_bytes = features.dim * features.dtype.itemsize
    if range_rows is None:
        room = memory_tables.FEATURE_RANGE.bytes_of(runtime.budget.free_bytes)
        range_rows = max(1, room // (row_bytes + 8))
    range_rows = min(range_rows, features.num_rows)
    kind = np.dtype([("node", "<i8"), ("row", features.dtype, (features.dim,))])
    path = work / _FILE
    try:
        with path.open("w+b") as file:
            _divide(features, runtime, file, kind, rows, range_rows)
            with runtime.budget.reserve("import", 2 * range_rows * kind.itemsize):
                for first in range(0, features.num_rows, range_rows):
                    count = min(range_rows, features.num_rows - first)
                    placed = np.empty((count, features.dim), features.dtype)
                    if runtime.measures:
                        yield placed[:rows]
                        return
                    file.seek(first * kind.itemsize)
                    found = np.fromfile(file, kind, count)
                    placed[found["node"] - first] = found["row"]
                    for start in range(0, count, rows):
                        yield placed[start : start + rows]
    finally:
        path.unlink(missing_ok=True)


def short_blocks(features: FeatureSource, runtime: Runtime, rows: int) -> Generator[np.ndarray]:
    """Yields the blocks of ``features``, those of text files cut to ``rows`` too; just the first where ``runtime``
    measures, since the others take no more."""
    for block in features.blocks(rows):
        if runtime.measures:
            yield block[:rows]
            return
        for start in range(0, len(block), rows):
            yield block[start : start + rows]


def _divide(
    features: FeatureSource, runtime: Runtime, file: IO[bytes], kind: np.dtype, rows: int, range_rows: int
) -> None:
    """Appends every row to the part of its range; the ranges lie one after another, each full at the end."""
    assert features.order is not None
    ends = np.arange(0, features.num_rows, range_rows)
    row = 0
    with runtime.budget.reserve("import", 2 * min(rows, features.num_rows) * kind.itemsize):
        for block in short_blocks(features, runtime, rows):
            if runtime.measures:
                return
            tagged = np.empty(len(block), kind)
            tagged["node"] = features.order[row : row + len(block)]
            tagged["row"] = block
            owner = tagged["node"] // range_rows
            by_range = np.argsort(owner, kind="stable")
            tagged, owner = tagged[by_range], owner[by_range]
            cuts = np.flatnonzero(np.diff(owner)) + 1
            for part in np.split(np.arange(len(tagged)), cuts):
                into = owner[part[0]]
                file.seek(int(ends[into]) * kind.itemsize)
                file.write(tagged[part].tobytes())
                ends[into] += len(part)
            row += len(block)
    file.flush()
