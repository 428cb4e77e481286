"""Export: rows of an artifact as a file that other programs read: .npy or .parquet, published atomically."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, final

import numpy as np

from outcrop.errors import ArgumentError
from outcrop.rows import DiskRows, scratch_share
from outcrop.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import DiskArray

SUFFIXES = (".npy", ".parquet")
_CHUNK_BYTES = 4 << 20
_CHUNK_SHARE = 8  # the chunk is at most one of so many parts of the budget


def check_suffix(path: Path) -> None:
    """Raises ArgumentError for a file name whose format is unknown."""
    if path.suffix not in SUFFIXES:
        raise ArgumentError(f"the format of {path} is unknown: end its name in .npy or .parquet")


def output_bytes(rows: int, width: int, what: str) -> int:
    """At most what the file takes, apart from headers."""
    return rows * (16 if what == "classes" else 8 + 4 * width)


def export(
    rows: DiskArray,
    ids: np.ndarray | None,
    numbers: np.ndarray | None,
    what: str,
    path: Path,
    runtime: Runtime,
    kind: str = "class",
) -> None:
    """Writes rows to ``path``, in the format that its suffix names.

    Args:
        rows: float32 [n, D].
        ids: int64, the node of each row of the file; None = 0, 1, ...
        numbers: int64, the row of ``rows`` that is each row of the file; None = all, in order.
        what: ``classes`` (int64, the column with the highest score, the first of equals), ``probabilities``, or the
            rows as they are: ``logits``, ``values``, ``embeddings``.
        kind: Of the labels: probabilities of ``class`` are those of one class against the others, of ``multilabel``
            those of each column.
    """
    check_suffix(path)
    count, width = (rows.num_rows if numbers is None else len(numbers)), rows.spec.shape[1]
    temporary = manifests.temporary_file(path)
    with manifests.naming_files(path):
        try:
            with temporary.open("wb") as file:
                table: _Table = (_Npy if path.suffix == ".npy" else _Parquet)(file, count, width, what)
                for start, block in _blocks(rows, numbers, runtime):
                    stop = start + len(block)
                    values = _convert(block, what, kind)
                    table.append(np.arange(start, stop) if ids is None else ids[start:stop], values)
                    runtime.progress.advance("export", len(block))
                table.finish()
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            manifests.sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _convert(block: np.ndarray, what: str, kind: str) -> np.ndarray:
    """Rows as they are written; equals ``argmax``, ``softmax`` or ``sigmoid`` of torch."""
    if what == "classes":
        return block.argmax(1)
    if what != "probabilities":
        return block
    if kind == "multilabel":
        return (0.5 * (1 + np.tanh(0.5 * block.astype(np.float64)))).astype(np.float32)
    powers = np.exp(block.astype(np.float64) - block.max(1, keepdims=True))
    return (powers / powers.sum(1, keepdims=True)).astype(np.float32)


def _blocks(
    rows: DiskArray, numbers: np.ndarray | None, runtime: Runtime
) -> Iterator[tuple[int, np.ndarray]]:
    """(first row of the file, float32 [n, D]), a few MiB at a time."""
    limit = runtime.budget.limit_bytes
    step = max(min(_CHUNK_BYTES, limit // _CHUNK_SHARE) // max(rows.row_bytes, 1), 1)
    if numbers is None:
        for start in range(0, rows.num_rows, step):
            yield start, rows.read("export", start, min(start + step, rows.num_rows))
        return
    with closing(DiskRows(rows, runtime, scratch_bytes=scratch_share(limit))) as source:
        for start in range(0, len(numbers), step):
            wanted = numbers[start : start + step]
            out = runtime.budget.empty("export", len(wanted) * rows.row_bytes)
            source.read_rows(wanted, out)
            yield start, out.view("<f4").reshape(len(wanted), -1)


class _Table(ABC):
    """A file that takes rows."""

    def __init__(self, file: IO[bytes], count: int, width: int, what: str):
        self._file = file

    @abstractmethod
    def append(self, ids: np.ndarray, values: np.ndarray) -> None: ...
    @abstractmethod
    def finish(self) -> None: ...


@final
class _Npy(_Table):
    """The values alone: float32 [rows, D], or int64 [rows] for classes."""

    def __init__(self, file: IO[bytes], count: int, width: int, what: str):
        super().__init__(file, count, width, what)
        shape = (count,) if what == "classes" else (count, width)
        header = {"descr": "<i8" if what == "classes" else "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)

    def append(self, ids: np.ndarray, values: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(values).data)

    def finish(self) -> None:
        pass


@final
class _Parquet(_Table):
    """Columns ``node`` int64 and ``class`` int64, or ``logits`` or ``embeddings``: lists of D float32."""

    def __init__(self, file: IO[bytes], count: int, width: int, what: str):
        import pyarrow as pa
        from pyarrow import parquet

        super().__init__(file, count, width, what)
        self._width = width
        field = ("class", pa.int64()) if what == "classes" else (what, pa.list_(pa.float32(), width))
        self._schema = pa.schema([("node", pa.int64()), field])
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd", use_dictionary=False)

    def append(self, ids: np.ndarray, values: np.ndarray) -> None:
        import pyarrow as pa

        column = pa.array(np.ascontiguousarray(values).reshape(-1))
        if values.ndim == 2:
            column = pa.FixedSizeListArray.from_arrays(column, self._width)
        self._writer.write_table(
            pa.Table.from_arrays([pa.array(ids.astype(np.int64)), column], schema=self._schema)
        )

    def finish(self) -> None:
        self._writer.close()
