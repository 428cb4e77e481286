"""``arrays:DIR``: edges, features, labels and splits as plain arrays or tables.

Edges: ``edges.npy`` ``[E, 2]`` (source, target) or ``[2, E]``; of shape ``[2, 2]`` the rows are edges. Or
``edges.parquet``, ``.csv``, ``.tsv``, ``.txt``: columns ``src``/``source`` and ``dst``/``target``, else the first two.
Or ``edges.npz``, a square matrix of ``scipy.sparse.save_npz``: an edge from row to column for each entry, weights
where the values are not all one. Ids are integers 0 .. N - 1, or what the column ``id`` of ``nodes.parquet``/
``.csv``/``.tsv`` lists in node order, or text in the order of first appearance. The node table may have columns
``label`` and ``split``. ``features`` and ``labels`` as ``.npy`` or as a table have one row per node, or a column
``id`` and any order; ``features.npz`` is a matrix of ``scipy.sparse.save_npz`` [N, D]. Edge weights (not negative):
``edge_weight.npy`` [E] next to ``edges.npy``, or a column ``weight`` or ``edge_weight`` of the edge table. Features of
edges: ``edge_features``, as ``.npy`` [E, D] or as a table with a column per feature, in the order of the edges. Edges
to be predicted: ``train_edges.npy``, ``valid_edges.npy`` or ``val_edges.npy``, ``test_edges.npy``, in the form of
``edges.npy``. A ``graph.toml`` says that there are types of nodes and edges
(:mod:`outcrop.importing.sources.typed_folder`). Splits: ``train.npy``, ``valid.npy`` or
``val.npy``, ``test.npy`` (ids or boolean masks), or a table ``splits`` with columns ``id`` and ``split``.
docs/sources.md has an example of each.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np

from outcrop.errors import ArgumentError
from outcrop.importing.sources import tables
from outcrop.importing.sources.archive import read_matrix
from outcrop.importing.sources.base import GraphSource, TypedSource
from outcrop.importing.sources.matrix import Csr
from outcrop.importing.sources.npy import open_npy
from outcrop.importing.sources.parts import Part, Parts, open_parts
from outcrop.importing.sources.table_files import TABLE_SUFFIXES, open_table
from outcrop.importing.sources.tables import Table
from outcrop.importing.sources.typed_folder import GRAPH_TOML, open_typed_folder
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import SPLIT_NAMES

_SHOWN = 5  # names in a note
_ARRAY, _MATRIX, _TABLE = (".npy",), (".npz",), TABLE_SUFFIXES
# Stem of a file -> what it is, and which endings it may have.
FILES = {
    "edges": ("edges", _ARRAY + _MATRIX + _TABLE),
    "edge_weight": ("edge_weight", _ARRAY),
    "edge_features": ("edge_features", _ARRAY + _TABLE),
    "nodes": ("nodes", _TABLE),
    "features": ("features", _ARRAY + _MATRIX + _TABLE),
    "labels": ("labels", _ARRAY + _TABLE),
    "splits": ("splits", _TABLE),
    **{stem: (split, _ARRAY) for stem, split in SPLIT_NAMES.items()},
    **{f"{stem}_edges": (f"{split}_edges", _ARRAY) for stem, split in SPLIT_NAMES.items()},
}


def open_folder(folder: Path, runtime: Runtime, held: ExitStack) -> GraphSource | TypedSource:
    """Opens ``arrays:DIR``; reads headers, the columns of node ids, and sparse matrices, which are held until ``held``
    is closed.

    Raises:
        ArgumentError: No edges, two files for the same thing, or row counts that contradict each other.
        FormatError: A file is not what its name says, or torn.
    """
    if not folder.is_dir():
        raise ArgumentError(
            f"{folder} is no folder: arrays:DIR needs one with edges.npy, .npz, .parquet, .csv or .tsv"
        )
    if (folder / GRAPH_TOML).exists():
        return open_typed_folder(folder, runtime)
    parts: dict[str, Part] = {}
    read: set[str] = set()
    for stem, (kind, suffixes) in FILES.items():
        path = tables.find(folder, stem, suffixes)
        if path is None:
            continue
        if kind in parts:
            raise ArgumentError(f"{folder} holds {parts[kind].name} and {path.name}: keep one of them")
        parts[kind] = Part(str(path), _opened(path, runtime, held))
        read.add(path.name)
    if "edges" not in parts:
        raise ArgumentError(
            f"{folder} holds no edges.npy, edges.npz, edges.parquet, edges.csv, edges.tsv or edges.txt"
        )
    notes = _notes_of_others(folder, read)
    return open_parts(
        Parts(str(folder), parts, node_table_hint=str(folder / "nodes.csv"), notes=notes), runtime
    )


def _notes_of_others(folder: Path, read: set[str]) -> tuple[str, ...]:
    """Says which arrays and tables of a folder have names that mean nothing here."""
    endings = (*_ARRAY, *_MATRIX, *_TABLE)
    names = sorted(path.name for path in folder.iterdir() if path.suffix in endings and path.is_file())
    left = [name for name in names if name not in read and not name.startswith(".")]
    if not left:
        return ()
    more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    return (f"files of {folder} that are not read: {', '.join(left[:_SHOWN])}{more}",)


def _opened(path: Path, runtime: Runtime, held: ExitStack) -> np.ndarray | Table | Csr:
    if path.suffix == ".npz":
        return read_matrix(path, runtime, held)
    return open_npy(path) if path.suffix == ".npy" else open_table(path)
