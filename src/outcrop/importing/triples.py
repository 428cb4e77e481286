"""Import of knowledge graphs: triples of names to an artifact of ids and dictionaries, block by block in the budget.

Entities and relations are numbered as they first appear in the training triples. Triples of the valid and test files
that name others cannot be trained for: they are counted and left out, or an error, as ``unknown`` says.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from outcrop.errors import ArgumentError, FormatError, OutcropWarning
from outcrop.importing.sources.files import source_files
from outcrop.importing.sources.ids import TextIds
from outcrop.importing.sources.table_files import TABLE_SUFFIXES, open_text
from outcrop.importing.sources.tables import Place, find
from outcrop.importing.trained_too import count_trained_too
from outcrop.runtime.runtime import Runtime
from outcrop.store import imported
from outcrop.store import manifest as manifests
from outcrop.store.arrays import ArrayWriter
from outcrop.store.graph import SPLIT_NAMES
from outcrop.store.manifest import ArraySpec, Manifest
from outcrop.store.names import write_names
from outcrop.store.triples import FORMAT, KINDS, VERSION, Triples, open_triples

UNKNOWN = ("skip", "error")
_ROLES = (
    {"head", "h", "subject", "source", "src", "from"},
    {"relation", "rel", "r", "predicate", "edge_type"},
    {"tail", "t", "object", "target", "dst", "to"},
)


def import_triples(
    source: str,
    out: Path | str,
    runtime: Runtime,
    *,
    unknown: str = "skip",
    made_from: dict[str, Any] | None = None,
) -> Triples:
    """Imports the folder ``source`` as a knowledge graph at ``out``, replacing an artifact that is there.

    Args:
        source: Folder with ``train`` and, if there are, ``valid`` and ``test`` as ``.txt``, ``.tsv``, ``.csv`` or
            ``.parquet``: three columns (source, relation, target), or two (source, target) without relations. Where all
            are called so (also head and tail, subject, predicate and object, and the like), in a first line of text or
            in Parquet, their order does not matter; else it is this one, and text has no header.
        unknown: What to do with triples of entities or relations that the training triples do not have: ``skip`` or
            ``error``.
        made_from: What is kept of the import (:mod:`outcrop.store.imported`); None: it follows from ``source``.

    Raises:
        ArgumentError: No training triples; or unknown names, if these are errors.
        FormatError: A line is malformed; the message names file and row.
        BudgetError: The names do not fit the memory budget.
    """
    if unknown not in UNKNOWN:
        raise ArgumentError(f"unknown is {unknown!r}: pass skip or error")
    out = Path(out)
    manifests.check_destination(out)
    paths = _paths(Path(source))
    with manifests.publishing(out) as work, runtime.trace.span("import", source=source):
        imported.write(work, made_from or import_record(source, unknown))
        importing = _Import(paths, runtime, work, unknown)
        importing.write()
        importing.write_manifest()
        notes = importing.notes()
    made = open_triples(out)
    made.notes = notes
    return made


def measure_import(source: str, runtime: Runtime) -> None:
    """Takes of the budget of ``runtime``, which measures, what importing ``source`` takes; writes nothing.

    Reads the training triples, whose names are counted, and the first of the others.

    Raises:
        ArgumentError, FormatError: As :func:`import_triples`, as far as that is seen.
        BudgetError: More is needed than may be measured.
    """
    with TemporaryDirectory() as work:
        _Import(_paths(Path(source)), runtime, Path(work), "skip").write()


def _paths(folder: Path) -> dict[str, Path]:
    """Finds the file of each split, ``valid`` also by the names ``val`` and ``validation``.

    Raises:
        ArgumentError: There are no training triples, or two files of a split.
    """
    paths: dict[str, Path] = {}
    for name, split in SPLIT_NAMES.items():
        path = find(folder, name, TABLE_SUFFIXES)
        if path is not None and split in paths:
            raise ArgumentError(f"{folder} holds {paths[split].name} and {path.name}: keep one of them")
        if path is not None:
            paths[split] = path
    if "train" not in paths:
        raise ArgumentError(
            f"{folder} holds no train.txt, .tsv, .csv or .parquet: it must hold the training triples"
        )
    return paths


def import_record(source: str, unknown: str) -> dict[str, Any]:
    """Returns what :mod:`outcrop.store.imported` keeps of an import."""
    files = source_files("triples", Path(source))
    return imported.record("triples", Path(source), files, {"unknown": unknown})


def _in_order(names: Sequence[str]) -> list[str] | None:
    """Returns the columns as a triple, or an edge, has its parts, where each is called like one; else None."""
    roles = _ROLES if len(names) == 3 else (_ROLES[0], _ROLES[-1]) if len(names) == 2 else ()
    found = [next((name for name in names if name.strip().lower() in role), None) for role in roles]
    return [name for name in found if name is not None] if found and None not in found else None


class _Import:
    def __init__(self, paths: dict[str, Path], runtime: Runtime, work: Path, unknown: str):
        self.paths, self.runtime, self.work, self.unknown = paths, runtime, work, unknown
        self.entities, self.relations = TextIds(runtime), TextIds(runtime)
        self.width = 0
        self.arrays: dict[str, ArraySpec] = {}
        self.attributes: dict[str, int] = {}
        self.said: list[str] = []

    def write(self) -> None:
        """Writes the arrays; where the runtime only measures, they stay empty."""
        arrays, attributes = self.arrays, self.attributes
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

    def write_manifest(self) -> None:
        config = {"source": "triples", "unknown": self.unknown}
        manifests.write(self.work, Manifest(FORMAT, VERSION, self.arrays, self.attributes, config))

    def notes(self) -> tuple[str, ...]:
        """Says which first lines are no triples, and of which splits how many triples are trained on."""
        del self.entities, self.relations  # what they hold is free
        made, notes = open_triples(self.work), list(self.said)
        rows = {split: made.count(split) for split in self.paths if split != "train" and made.count(split)}
        if not rows:
            return tuple(notes)
        with self.runtime.task("compare", made.count("train") * len(rows), "triples"):
            for split, count in rows.items():
                if same := count_trained_too(made, split, self.runtime):
                    notes.append(
                        f"{same} of {count} {split} triples are training triples, too: how well they rank says little "
                        "about what was learned"
                    )
        return tuple(notes)

    def _split(self, split: str, path: Path) -> tuple[ArraySpec, int]:
        """Writes one array; how many triples were left out."""
        table = open_text(path, lambda names: _in_order(names) is not None)
        ordered = _in_order(table.columns)
        columns = ordered or list(table.columns)
        if ordered and path.suffix != ".parquet":
            self.said.append(f"the first line of {path.name} names its columns: {', '.join(table.columns)}")
        self.width = self.width or len(columns)
        if (columns and len(columns) != self.width) or self.width not in (0, 2, 3):
            raise FormatError(
                f"{path} has {len(table.columns)} columns: triples have three (source, relation, target), "
                "edges without relations two, in all files alike"
            )
        writer = ArrayWriter(self.runtime, self.work, split, "uint32", (max(self.width, 2),))
        row, skipped = 0, 0
        task, size = f"import {split}", path.stat().st_size
        with self.runtime.task(task, table.num_rows or size, "rows" if table.num_rows else "bytes"):
            for block in table.blocks(self.runtime, columns) if columns else ():
                ids = self._ids(path, row, block)
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
                if self.runtime.measures and split != "train":
                    break
        if skipped and not self.runtime.measures:
            warnings.warn(
                f"{path}: {skipped} of {row} triples name entities or relations that {self.paths['train']} does not "
                "have; they are left out",
                OutcropWarning,
                stacklevel=2,
            )
        return writer.finish(), skipped

    def _ids(self, path: Path, row: int, block: list[pa.Array]) -> np.ndarray:
        """Returns int64 [rows, columns]; -1 for names that the training triples do not have."""
        if any(column.null_count for column in block):
            raise FormatError(f"{path}: row {row + 1} or later has an empty cell")
        ends, relations, place = (block[0], block[-1]), block[1:-1], Place(str(path))
        if self.entities.fixed_by is None:
            first, last = self.entities.lookup_rows((place, place), ends, row)
            between = [self.relations.lookup(place, column, row) for column in relations]
        else:
            first, last = (self.entities.find(column) for column in ends)
            between = [self.relations.find(column) for column in relations]
        return np.stack([first, *between, last], axis=1)
