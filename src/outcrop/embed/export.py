"""Vectors as files that other programs read, in the order of the source's ids, with its names.

``npy``: ``entities.npy`` float32 [nodes, dim], ``relations.npy``, and names a line each in ``entities.txt`` and
``relations.txt``. ``parquet``: ``entities.parquet`` and ``relations.parquet`` with columns ``id``, ``name`` and
``vector``. ``safetensors``: both tables in ``embeddings.safetensors``, names as for npy. ``features``: the vectors of
nodes in ``features.parquet``, with columns ``id`` (the name where nodes have names) and ``vector``, which lies beside
the edges in a folder that ``outcrop import arrays:`` takes. Nodes go by blocks of the budget; each block is one pass
over the table.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from outcrop.embed.model import EmbeddingModel
from outcrop.errors import ArgumentError, IoError, naming_files
from outcrop.runtime import memory_tables
from outcrop.store import manifest as manifests
from outcrop.store.lock import make_folders

_NAME_FILES = ("entities.txt", "relations.txt")
_FILES = {  # that a format may have
    "npy": ("entities.npy", "relations.npy", *_NAME_FILES),
    "parquet": ("entities.parquet", "relations.parquet"),
    "safetensors": ("embeddings.safetensors", *_NAME_FILES),
    "features": ("features.parquet",),
}
FORMATS = tuple(_FILES)
_TAG = "export"
_NAMES = 1 << 14  # at a time
_LINE_BREAKS = str.maketrans({"\n": "\\n", "\r": "\\r"})


def export(model: EmbeddingModel, format: str, out: Path) -> list[Path]:
    """Writes the files of ``format`` to folder ``out``, all of them or none; their paths.

    Raises:
        ArgumentError: No such format.
        IoError: A file cannot be written.
    """
    if format not in FORMATS:
        raise ArgumentError(f"format {format!r} is unknown; known: {', '.join(FORMATS)}")
    if out.exists() and not out.is_dir():
        raise IoError(20, f"{out} is a file: name the folder to write to")
    made: list[Path] = []
    task = _Export(model, out)
    try:
        with naming_files(out):
            make_folders(out, made)
        with model.runtime.task("export", model.num_nodes, "nodes"):
            getattr(task, format)()
            return task.publish(format)
    except BaseException:
        task.remove()
        for folder in made:
            with contextlib.suppress(OSError):  # files of others are in it by now
                folder.rmdir()
        raise


class _Export:
    def __init__(self, model: EmbeddingModel, out: Path):
        self.model, self.out, self.runtime = model, out, model.runtime
        self.width = model.config.dim
        self._written: dict[Path, Path] = {}  # by where they are to be, files that are whole

    # Formats

    def npy(self) -> None:
        def write(values: Iterator[np.ndarray], shape: tuple[int, int]) -> Callable[[IO[bytes]], None]:
            def to(file: IO[bytes]) -> None:
                np.lib.format.write_array_header_1_0(
                    file, {"descr": "<f4", "fortran_order": False, "shape": shape}
                )
                for block in values:
                    file.write(np.ascontiguousarray(block).data)

            return to

        self._file("entities.npy", write(self._entities(), (self.model.num_nodes, self.width)))
        relations = self.model.relations
        if relations is not None:
            self._file("relations.npy", write(iter([relations]), relations.shape))
        self._name_files()

    def safetensors(self) -> None:
        """Writes the format by hand, as the library has no streaming: length, header, data."""
        tensors: dict[str, tuple[tuple[int, ...], Iterator[np.ndarray]]] = {
            "entities": ((self.model.num_nodes, self.width), self._entities())
        }
        if self.model.relations is not None:
            tensors["relations"] = (self.model.relations.shape, iter([self.model.relations]))

        def write(file: IO[bytes]) -> None:
            header: dict[str, Any] = {"__metadata__": {"model": self.model.config.model}}
            at = 0
            for name, (shape, _) in tensors.items():
                end = at + 4 * shape[0] * shape[1]
                header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, end]}
                at = end
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            file.write(len(text).to_bytes(8, "little") + text)
            for _, blocks in tensors.values():
                for block in blocks:
                    file.write(np.ascontiguousarray(block).data)

        self._file("embeddings.safetensors", write)
        self._name_files()

    def parquet(self) -> None:
        self._file("entities.parquet", self._table("entity", self._entities(), self.width))
        relations = self.model.relations
        if relations is not None:
            values = self._table("relation", iter([relations]), relations.shape[1])
            self._file("relations.parquet", values)

    def features(self) -> None:
        self._file("features.parquet", self._table("entity", self._entities(), self.width, by_name=True))

    # What they share

    def _table(
        self, kind: str, values: Iterator[np.ndarray], width: int, *, by_name: bool = False
    ) -> Callable[[IO[bytes]], None]:
        """Returns what writes a Parquet table of vectors.

        Args:
            values: Blocks of them, float32 [n, width].
            by_name: Whether names, where there are any, take the place of ids.
        """
        import pyarrow as pa
        from pyarrow import parquet

        named = self._has_names(kind)
        ids = [] if by_name and named else [("id", pa.int64())]
        text = pa.int64() if by_name and self.model.buckets.integer_names else pa.string()
        names = [("id" if by_name else "name", text)] if named else []
        schema = pa.schema([*ids, *names, ("vector", pa.list_(pa.float32(), width))])

        def to(file: IO[bytes]) -> None:
            with parquet.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer:
                first = 0
                for block in values:
                    for begin in range(0, len(block), _NAMES):
                        part = np.ascontiguousarray(block[begin : begin + _NAMES])
                        last = first + len(part)
                        columns = [pa.array(np.arange(first, last))] if ids else []
                        if named:
                            columns.append(pa.array(self._names(kind, first, last), pa.string()).cast(text))
                        vectors = pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1)), width)
                        writer.write_table(pa.Table.from_arrays([*columns, vectors], schema=schema))
                        first = last

        return to

    def _entities(self) -> Iterator[np.ndarray]:
        """Yields float32 [n, dim], in order of node ids."""
        count, budget = self.model.num_nodes, self.runtime.budget
        numbering = self.model.buckets.numbering(self.runtime)
        row_bytes = 4 * self.width + 32
        free = max(budget.free_bytes - self.model.table.slab_bytes, 0)
        step = max(memory_tables.EMBEDDING_CHUNK.bytes_of(free) // row_bytes, 1)
        for start in range(0, count, step):
            stop = min(start + step, count)
            with budget.reserve(_TAG, (stop - start) * row_bytes):
                yield self.model.vectors(numbering.rows(np.arange(start, stop, dtype=np.int64)))
            self.runtime.progress.advance("export", stop - start)

    def _has_names(self, kind: str) -> bool:
        return self.model.buckets.has(f"{kind}_names")

    def _names(self, kind: str, start: int, stop: int) -> list[str | None]:
        """Yields the names of rows of a table; those of reciprocal relations have ``inverse of`` before them."""
        count = self.model.num_nodes if kind == "entity" else self.model.buckets.num_relations
        names: list[str | None] = []
        if start < count:
            names += self.model.buckets.names(self.runtime, kind, start, min(stop, count))
        if stop > count:
            inverse = self.model.buckets.names(self.runtime, kind, max(start, count) - count, stop - count)
            names += [f"inverse of {name}" for name in inverse]
        return names

    def _name_files(self) -> None:
        counts = {"entity": self.model.num_nodes}
        if self.model.relations is not None:
            counts["relation"] = len(self.model.relations)
        for kind, count in counts.items():
            if self._has_names(kind):

                def write(file: IO[bytes], kind: str = kind, count: int = count) -> None:
                    for start in range(0, count, _NAMES):
                        names = self._names(kind, start, min(start + _NAMES, count))
                        lines = (str(name).translate(_LINE_BREAKS) + "\n" for name in names)
                        file.write("".join(lines).encode())

                self._file({"entity": "entities", "relation": "relations"}[kind] + ".txt", write)

    def _file(self, name: str, write: Callable[[IO[bytes]], None]) -> None:
        path = self.out / name
        temporary = manifests.temporary_file(path)
        self._written[path] = temporary
        with naming_files(path), temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())

    def publish(self, format: str) -> list[Path]:
        """Gives the files that were written their names, which may be those of an export before; returns them.

        It comes when all are written. Files that this format may have and this export has not are somebody else's:
        vectors must not lie beside the names of others.

        Raises:
            ArgumentError: There are such files; nothing has changed then.
            IoError: A folder is in the way.
        """
        others = [name for name in _FILES[format] if self.out / name not in self._written]
        if left := [name for name in others if (self.out / name).exists()]:
            raise ArgumentError(
                f"{self.out} holds {' and '.join(left)}, which these vectors have not: remove it, or name another "
                "folder to write to"
            )
        with naming_files(self.out):
            for path in self._written:
                if path.is_dir():
                    raise IoError(21, f"{path} is a folder: remove it, or name another folder to write to")
            for path, temporary in self._written.items():
                temporary.replace(path)
            manifests.sync_folder(self.out)
        return list(self._written)

    def remove(self) -> None:
        """Removes what was written and has no name yet."""
        for temporary in self._written.values():
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
