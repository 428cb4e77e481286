"""Import of knowledge graphs: triples of names to an artifact of ids and dictionaries, block by block in the budget.

Entities and relations are numbered as they first appear in the training triples. Triples of the valid and test files
that name others cannot be trained for: they are counted and left out, or an error, as ``unknown`` says.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa

from outcrop.errors import ArgumentError, FormatError, OutcropWarning
from outcrop.runtime import Runtime
from outcrop.sources.ids import TextIds
from outcrop.sources.tables import TABLE_SUFFIXES, find, open_text
from outcrop.store import manifest as manifests
from outcrop.store.arrays import ArrayWriter
from outcrop.store.graph import SPLITS
from outcrop.store.manifest import ArraySpec, Manifest
from outcrop.store.names import write_names
from outcrop.store.triples import FORMAT, KINDS, VERSION, Triples, open_triples

UNKNOWN = ("skip", "error")


def import_triples(source: str, out: Path | str, runtime: Runtime, *, unknown: str = "skip") -> Triples:
    """Imports the folder ``source`` as a knowledge graph at ``out``, replacing an artifact that is there.

    Args:
        source: Folder with ``train`` and, if there are, ``valid`` and ``test`` as ``.txt``, ``.tsv``, ``.csv`` or
            ``.parquet``: three columns (source, relation, target), or two (source, target) without relations. Text has
            no header.
        unknown: What to do with triples of entities or relations that the training triples do not have: ``skip`` or
            ``error``.

    Raises:
        ArgumentError: No training triples; or unknown names, if these are errors.
        FormatError: A line is malformed; the message names file and row.
        BudgetError: The names do not fit the memory budget.
    """
    if unknown not in UNKNOWN:
        raise ArgumentError(f"unknown is {unknown!r}: pass skip or error")
    folder, out = Path(source), Path(out)
    manifests.check_destination(out)
    paths = {split: path for split in SPLITS if (path := find(folder, split, TABLE_SUFFIXES))}
    if "train" not in paths:
        raise ArgumentError(
            f"{folder} holds no train.txt, .tsv, .csv or .parquet: it must hold the training triples"
        )
    with manifests.publishing(out) as work, runtime.trace.span("import", source=source):
        _Import(paths, runtime, work, unknown).run()
    return open_triples(out)


class _Import:
    def __init__(self, paths: dict[str, Path], runtime: Runtime, work: Path, unknown: str):
        self.paths, self.runtime, self.work, self.unknown = paths, runtime, work, unknown
        self.entities, self.relations = TextIds(runtime), TextIds(runtime)
        self.width = 0

    def run(self) -> None:
        arrays: dict[str, ArraySpec] = {}
        attributes: dict[str, int] = {}
        for split, path in self.paths.items():
            arrays[split], skipped = self._split(split, path)
            if split == "train":
                if not arrays[split].shape[0]:
                    raise ArgumentError(f"{path} holds no triples: nothing to import")
                self.entities.fixed_by = self.relations.fixed_by = str(path)
            else:
                attributes[f"skipped_{split}"] = skipped
        for kind, ids in zip(KINDS, (self.entities, self.relations), strict=True):
            specs, count = write_names(
                self.runtime, self.work, ids.names(), f"{kind}_names", f"{kind}_name_offsets"
            )
            arrays |= specs
            attributes["num_entities" if kind == "entity" else "num_relations"] = count
        config = {"source": "triples", "unknown": self.unknown}
        manifests.write(self.work, Manifest(FORMAT, VERSION, arrays, attributes, config))

    def _split(self, split: str, path: Path) -> tuple[ArraySpec, int]:
        """Writes one array; how many triples were left out."""
        table = open_text(path)
        self.width = self.width or len(table.columns)
        if (table.columns and len(table.columns) != self.width) or self.width not in (0, 2, 3):
            raise FormatError(
                f"{path} has {len(table.columns)} columns: triples have three (source, relation, target), "
                "edges without relations two, in all files alike"
            )
        writer = ArrayWriter(self.runtime, self.work, split, "uint32", (max(self.width, 2),))
        row, skipped = 0, 0
        task, size = f"import {split}", path.stat().st_size
        with self.runtime.task(task, table.num_rows or size, "rows" if table.num_rows else "bytes"):
            for block in table.blocks(self.runtime, list(table.columns)) if table.columns else ():
                ids = np.stack([self._ids(path, row, column, i) for i, column in enumerate(block)], axis=1)
                known = (ids >= 0).all(axis=1)
                if not known.all() and self.unknown == "error":
                    at = int(np.argmin(known))
                    what = next(str(c[at]) for c, i in zip(block, ids[at], strict=True) if i < 0)
                    raise ArgumentError(
                        f"{path}: row {row + at + 1} names {what!r}, which {self.paths['train']} does not have"
                    )
                writer.append(ids[known].astype(np.uint32))
                row, skipped = row + len(ids), skipped + int((~known).sum())
                # Of text, Arrow holds an offset of 4 bytes a cell, the file a separator.
                done = len(ids) if table.num_rows else sum(c.nbytes - 3 * len(c) for c in block)
                self.runtime.progress.advance(task, done)
        if skipped:
            warnings.warn(
                f"{path}: {skipped} of {row} triples name entities or relations that {self.paths['train']} does not "
                "have; they are left out",
                OutcropWarning,
                stacklevel=2,
            )
        return writer.finish(), skipped

    def _ids(self, path: Path, row: int, column: pa.Array, position: int) -> np.ndarray:
        ids = self.relations if self.width == 3 and position == 1 else self.entities
        if column.null_count:
            raise FormatError(f"{path}: row {row + 1} or later has an empty cell")
        return ids.lookup(str(path), column, row) if ids.fixed_by is None else ids.find(column)
