"""Export: rows of an artifact as a file that other programs read: .npy or .parquet, published atomically."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

import numpy as np

from outcrop.errors import ArgumentError, naming_files
from outcrop.rows import DiskRows
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import DiskArray
from outcrop.store.names import NodeNames

SUFFIXES = (".npy", ".parquet")
Seen = Callable[[np.ndarray, np.ndarray], None]


def check_suffix(path: Path) -> None:
    """Raises ArgumentError for a file name whose format is unknown."""
    if path.suffix not in SUFFIXES:
        raise ArgumentError(f"the format of {path} is unknown: end its name in .npy or .parquet")


def output_bytes(rows: int, width: int, what: str, name_bytes: int = 0) -> int:
    """Returns what the file takes at most, apart from headers, where names of nodes take ``name_bytes`` on average."""
    return rows * (name_bytes + (16 if what == "classes" else 8 + 4 * width))


@dataclass(frozen=True)
class ExportRequest:
    """Says what of rows becomes a file.

    Attributes:
        what: ``probabilities``, or the rows as they are: ``classes``, ``logits``, ``values``, ``embeddings``.
        kind: Kind of labels: probabilities of ``class`` are those of one class against the others, of ``multilabel``
            those of each column.
        ids: int64, the node of each row of the file; None = 0, 1, ...
        numbers: int64, the row that is each row of the file; None = all, in order.
        names: Names of the nodes, for a column ``name`` of Parquet; None = there are none.
        class_names: Names of the columns, for a column ``class_name`` of Parquet; empty = there are none.
        seen: Is given the nodes, int64 [n], and the rows [n, D] of each block, as they are stored.
    """

    what: str
    kind: str = "class"
    ids: np.ndarray | None = None
    numbers: np.ndarray | None = None
    names: NodeNames | None = None
    class_names: Sequence[str] = ()
    seen: Seen | None = None


def export(rows: DiskArray, asked: ExportRequest, path: Path, runtime: Runtime) -> None:
    """Writes rows, float32 [n, D], or int64 [n, 1] of ``classes``, to ``path``, in the format that its suffix names."""
    check_suffix(path)
    numbers, names, what = asked.numbers, asked.names, asked.what
    count, width = (rows.num_rows if numbers is None else len(numbers)), rows.spec.shape[1]
    temporary = manifests.temporary_file(path)
    with naming_files(path):
        try:
            with temporary.open("wb") as file:
                table: _Table
                if path.suffix == ".npy":
                    table, name_bytes = _Npy(file, count, width, what), 0
                else:
                    table = _Parquet(file, count, width, what, names, asked.class_names)
                    name_bytes = 0 if names is None else names.bytes_per_name()
                for start, block in _blocks(rows, numbers, runtime, name_bytes):
                    stop = start + len(block)
                    ids = np.arange(start, stop) if asked.ids is None else asked.ids[start:stop]
                    if asked.seen is not None:
                        asked.seen(ids, block)
                    table.append(ids, _convert(block, what, asked.kind))
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
    """Returns rows as they are written; equals ``softmax`` or ``sigmoid`` of torch."""
    if what == "classes":
        return block[:, 0]
    if what != "probabilities":
        return block
    if kind == "multilabel":
        return (0.5 * (1 + np.tanh(0.5 * block.astype(np.float64)))).astype(np.float32)
    powers = np.exp(block.astype(np.float64) - block.max(1, keepdims=True))
    return (powers / powers.sum(1, keepdims=True)).astype(np.float32)


def _blocks(
    rows: DiskArray, numbers: np.ndarray | None, runtime: Runtime, extra_bytes: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (first row of the file, [n, D]), a few MiB at a time, with ``extra_bytes`` more for each row."""
    limit = runtime.budget.limit_bytes
    step = max(memory_tables.EXPORT_CHUNK.bytes_of(limit) // max(rows.row_bytes + extra_bytes, 1), 1)
    if numbers is None:
        for start in range(0, rows.num_rows, step):
            yield start, rows.read("export", start, min(start + step, rows.num_rows))
        return
    with closing(DiskRows(rows, runtime, scratch_bytes=memory_tables.READ_SCRATCH.bytes_of(limit))) as source:
        for start in range(0, len(numbers), step):
            wanted = numbers[start : start + step]
            out = runtime.budget.empty("export", len(wanted) * rows.row_bytes)
            source.read_rows(wanted, out)
            yield start, out.view(rows.dtype).reshape(len(wanted), -1)


class _Table(ABC):
    """Writes a file that takes rows."""

    def __init__(self, file: IO[bytes], count: int, width: int, what: str):
        self._file = file

    @abstractmethod
    def append(self, ids: np.ndarray, values: np.ndarray) -> None: ...
    @abstractmethod
    def finish(self) -> None: ...


@final
class _Npy(_Table):
    """Writes the values alone: float32 [rows, D], or int64 [rows] for classes."""

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
    """Writes columns ``node`` int64 and ``class`` int64, or ``logits`` or ``embeddings``: lists of D float32.

    ``name``, text or int64, comes after ``node`` where nodes have names, ``class_name`` after ``class`` where classes
    have them. The metadata of lists that have a number for each class name these, as JSON: ``class_names``.
    """

    def __init__(
        self,
        file: IO[bytes],
        count: int,
        width: int,
        what: str,
        names: NodeNames | None = None,
        class_names: Sequence[str] = (),
    ):
        import pyarrow as pa
        from pyarrow import parquet

        super().__init__(file, count, width, what)
        self._width, self._names = width, names
        self._class_names: pa.Array | None = None
        fields: list[Any] = [("node", pa.int64())]
        if names is not None:
            fields.append(("name", names.of(np.zeros(0, np.int64)).type))
        if what != "classes":
            each_class = bool(class_names) and what != "embeddings"
            told = {"class_names": json.dumps(list(class_names))} if each_class else None
            fields.append(pa.field(what, pa.list_(pa.float32(), width), metadata=told))
        else:
            fields.append(("class", pa.int64()))
            if class_names:
                fields.append(("class_name", pa.string()))
                # A model may have more columns than its graph has names.
                padded = [*class_names, *[None] * (width - len(class_names))]
                self._class_names = pa.array(padded, pa.string())
        self._schema = pa.schema(fields)
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd", use_dictionary=False)

    def append(self, ids: np.ndarray, values: np.ndarray) -> None:
        import pyarrow as pa

        column = pa.array(np.ascontiguousarray(values).reshape(-1))
        if values.ndim == 2:
            column = pa.FixedSizeListArray.from_arrays(column, self._width)
        ids = ids.astype(np.int64)
        columns = [pa.array(ids), *([] if self._names is None else [self._names.of(ids)]), column]
        if self._class_names is not None:
            columns.append(self._class_names.take(column))
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))

    def finish(self) -> None:
        self._writer.close()
