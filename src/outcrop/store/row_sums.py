"""Checksums of the rows of a graph, kept beside it: what ``paranoid`` compares the rows of mini-batches with.

Checksums of pages (:mod:`outcrop.store.page_sums`) find damage where a file is read. What happens to a row afterwards,
in a cache, a record of a run or a buffer, only a checksum of the row itself can tell. The table of a row file has 4
bytes for each row. It is an artifact of its own, ``<graph>.row-sums``, made in one pass over the row files when it is
first asked for, and made anew where the graph is another.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import outcrop._core as _core
from outcrop.errors import ArgumentError, ChecksumError, IoError
from outcrop.runtime import memory_tables
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import ArrayWriter, DiskArray, SequentialRows
from outcrop.store.graph import Graph
from outcrop.store.graph_types import RowFile
from outcrop.store.lock import opened, try_lock
from outcrop.store.manifest import ArraySpec, Manifest

FORMAT, VERSION = "outcrop.row-sums", 1
ROW_SUMS = "_row_crc"  # array "x_row_crc" has a CRC-32C for each row of array "x"
_TASK = "checksums of rows"


def row_sums_folder(graph: Graph) -> Path:
    """Names the folder of the checksums of the rows of ``graph``, beside it."""
    path = graph.path.resolve()
    return path.with_name(path.name + ".row-sums")


def open_row_sums(graph: Graph, runtime: Runtime) -> tuple[np.ndarray, ...]:
    """Returns the checksums of the rows of each row file of ``graph``; makes them first where there are none of it.

    They are mapped, not held, as those of pages are: 4 bytes a row, in the page cache, which the system takes back when
    it needs it. Before, all of them are compared with their own checksum.

    Returns:
        Of each row file uint32 [num_rows]; entry i equals ``crc32c(row i)`` of its bytes on disk, without what lies
        between two rows.

    Raises:
        ChecksumError: A row file was damaged already, of which nothing is kept then; or the table was.
        IoError: The folder beside the graph cannot be written.
    """
    files, folder = graph.row_files, row_sums_folder(graph)
    found = _current(graph, files, folder)
    if found is None:
        with opened(graph.path) as handle:
            try_lock(handle)  # of several processes that want them one makes them, and the others wait
            found = _current(graph, files, folder)
            if found is None:
                _make(graph, files, folder, runtime)
                found = manifests.read(folder, FORMAT, VERSION)
    return tuple(_mapped(runtime, folder, found.arrays[file.array + ROW_SUMS]) for file in files)


def _current(graph: Graph, files: Sequence[RowFile], folder: Path) -> Manifest | None:
    """Returns the manifest of what is there, if it is of this graph and has all of ``files``."""
    if not manifests.is_current(folder, FORMAT, VERSION, {}, {"graph": graph.digest()}):
        return None
    found = manifests.read(folder, FORMAT, VERSION)
    wanted = {file.array + ROW_SUMS: ((file.num_rows,), "uint32") for file in files}
    there = {name: (spec.shape, spec.dtype) for name, spec in found.arrays.items()}
    return found if wanted.items() <= there.items() else None


def _mapped(runtime: Runtime, folder: Path, spec: ArraySpec) -> np.ndarray:
    table = DiskArray(runtime, folder, spec)
    try:
        return table.memmap(check=True)
    finally:
        table.close()


def _check_place(graph: Graph, folder: Path) -> None:
    """Raises an error where the checksums would replace something else, or cannot be written."""
    if folder.is_symlink() and not folder.exists():
        raise ArgumentError(f"{folder} is a symbolic link that leads nowhere: remove it (--paranoid)")
    if (kind := manifests.format_of(folder)) not in (None, FORMAT):
        raise ArgumentError(
            f"{folder} is in the way of the checksums of the rows of {graph.path.name} (--paranoid), and is of format "
            f"{kind}: move it to another place"
        )
    if not os.access(folder.parent, os.W_OK | os.X_OK):
        raise IoError(
            errno.EACCES,
            f"{folder.parent} is not writable, where the checksums of the rows of {graph.path.name} would be kept "
            "(--paranoid): let it be written once, or leave --paranoid out",
        )


def _make(graph: Graph, files: Sequence[RowFile], folder: Path, runtime: Runtime) -> None:
    _check_place(graph, folder)
    arrays: dict[str, ArraySpec] = {}
    with (
        _naming_remedy(graph, files),
        runtime.task(_TASK, sum(file.data_bytes for file in files), "bytes"),
        manifests.publishing(folder) as work,
    ):
        for file in files:
            rows = graph.open_sequential(runtime, file)
            try:
                writer = ArrayWriter(
                    runtime, work, file.array + ROW_SUMS, "uint32", buffer_bytes=4 * PAGE_BYTES
                )
                _sum_rows(rows, writer, runtime)
                writer.finish_into(arrays)
            finally:
                rows.close()
        graph.require_unchanged()
        manifests.write(work, Manifest(FORMAT, VERSION, arrays=arrays, inputs={"graph": graph.digest()}))


@contextmanager
def _naming_remedy(graph: Graph, files: Sequence[RowFile]) -> Iterator[None]:
    """Says what can be done where the disk is full."""
    try:
        yield
    except IoError as error:
        if error.errno != errno.ENOSPC:
            raise
        needed = sum(4 * file.num_rows for file in files)
        raise IoError(
            errno.ENOSPC,
            f"{error.strerror}; the checksums of the rows of {graph.path.name} (--paranoid) take {needed} bytes: free "
            "some space, or leave --paranoid out",
        ) from None


def _sum_rows(rows: SequentialRows, writer: ArrayWriter, runtime: Runtime) -> None:
    """Reads a row file once and writes the checksum of each row.

    The checksum of the whole is compared in the same pass, so that damage gets no checksum.
    """
    count, stride = rows.spec.shape[0], max(rows.spec.stride_bytes, 1)
    most = memory_tables.VERIFY_BUFFER.bytes_of(runtime.budget.free_bytes)
    aligned = PAGE_BYTES // math.gcd(stride, PAGE_BYTES)  # so many rows are whole pages
    step = most // (aligned * stride) * aligned or max(most // stride, 1)
    buffer = runtime.budget.empty("verify", min(step, max(count, 1)) * stride)
    crc = 0
    for start in range(0, count, step):
        part = buffer[: min(step, count - start) * rows.spec.stride_bytes]
        rows.read_bytes(start * rows.spec.stride_bytes, part)
        crc = _core.crc32c(part, crc)
        crcs = np.empty(min(step, count - start), np.uint32)
        seen = part.reshape(len(crcs), rows.spec.stride_bytes)[:, : rows.row_bytes]
        _core.sum_rows(runtime.workers, seen, crcs)
        writer.append(crcs)
        runtime.progress.advance(_TASK, len(part))
    if crc != rows.spec.crc32c:
        raise ChecksumError(
            f"{rows.path}: checksum is {crc:08x}, the manifest says {rows.spec.crc32c:08x}: the file was damaged after "
            "it was written, so its rows got no checksums; copy the file anew or make the graph again"
        )
