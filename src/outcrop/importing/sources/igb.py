"""``igb:DIR``: papers and citations of an Illinois Graph Benchmark, in the folder of one of its sizes; with all types
authors, institutes, fields of study, and what else it has, too.

``processed/paper/node_feat.npy`` float32 ``[N, 1024]``, ``processed/paper/node_label_19.npy`` and ``node_label_2K.npy``
(2983 classes), and ``processed/paper__cites__paper/edge_index.npy`` ``[E, 2]``. Features and labels of the sizes large
and full are raw numbers, though their files are called ``.npy``; of the largest only the first papers have labels. The
first 60 % of the labelled papers train, the next 20 % validate, the rest test, as the benchmark's own loader has them.

Other node types have ``processed/TYPE/node_feat.npy``, and each edge type
``processed/SOURCE__RELATION__TARGET/edge_index.npy``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from outcrop.config import ImportConfig
from outcrop.errors import ArgumentError, FormatError, IoError
from outcrop.importing.sources.base import (
    EdgeBlock,
    EdgeSource,
    FeatureSource,
    GraphSource,
    LabelSource,
    NodeSource,
    TypedSource,
    block_bytes,
)
from outcrop.importing.sources.edge_list import array_edges, edge_of
from outcrop.importing.sources.features import array_features
from outcrop.importing.sources.ids import PlainIds
from outcrop.importing.sources.npy import array_blocks, open_npy
from outcrop.runtime.mapping import map_file
from outcrop.runtime.runtime import Runtime

COLUMNS = 1024
LABEL_FILES = {19: "node_label_19.npy", 2983: "node_label_2K.npy"}
# Number of papers -> number of classes -> how many papers, the first ones, have labels: of the size full.
LABELLED = {269_346_174: {19: 227_130_858, 2983: 157_675_969}}
_TRAIN, _VALID = 0.6, 0.2
_PAPER = "paper"
_BETWEEN = "__"  # between the parts of an edge type
_EDGES = Path("processed", "paper__cites__paper", "edge_index.npy")


def open_igb(folder: Path, runtime: Runtime, config: ImportConfig) -> GraphSource | TypedSource:
    """Opens ``igb:DIR``; reads headers. Types other than papers are left out unless the config asks for all.

    Raises:
        ArgumentError: A file is missing, there are no labels of so many classes, or sizes contradict each other.
        FormatError: A file is torn or not what it should be.
    """
    papers = folder / "processed" / "paper"
    if not papers.is_dir():
        raise ArgumentError(
            f"{papers} is no folder: igb:DIR is the folder of a size, such as igb/small, with processed in it"
        )
    classes = 19 if config.num_classes is None else config.num_classes
    if classes not in LABEL_FILES:
        raise ArgumentError(f"{folder} has labels of 19 or 2983 classes, not of {classes}")
    features = _features(papers, runtime)
    num_nodes = features.num_rows
    labels = _Labels(papers / LABEL_FILES[classes], classes, num_nodes, runtime)
    if config.types == "all":
        return _typed(folder, features, labels, runtime)
    name = str(folder / _EDGES)
    edges, num_edges = _edges(folder / _EDGES, runtime)
    return GraphSource(
        str(folder),
        edges,
        num_nodes,
        num_edges,
        features,
        LabelSource(labels.name, num_nodes, labels.blocks),
        labels.splits,
        class_names=labels.class_names,
        notes=_notes(folder),
        edge_at=edge_of(name),
    )


def _features(folder: Path, runtime: Runtime) -> FeatureSource:
    path = folder / "node_feat.npy"
    return array_features(runtime, str(path), _open_rows(path, COLUMNS))


def _edges(path: Path, runtime: Runtime) -> tuple[Callable[[], Iterator[EdgeBlock]], int]:
    pairs = open_npy(_require(path))
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise FormatError(f"{path} has shape {pairs.shape}; [edges, 2] is needed")
    return array_edges(runtime, str(path), pairs, PlainIds())


def _typed(folder: Path, papers: FeatureSource, labels: _Labels, runtime: Runtime) -> TypedSource:
    """Opens everything that the folder has: papers first, other types and edge types by their names."""
    listed = sorted(path for path in (folder / "processed").iterdir() if path.is_dir())
    keys = {path: tuple(path.name.split(_BETWEEN)) for path in listed if _BETWEEN in path.name}
    odd = next((path for path, key in keys.items() if len(key) != 3), None)
    if odd is not None:
        raise FormatError(
            f"{odd} is called like no edge type: SOURCE{_BETWEEN}RELATION{_BETWEEN}TARGET is needed"
        )
    nodes = [
        NodeSource(
            f"{folder}: {_PAPER}",
            papers.num_rows,
            papers,
            LabelSource(labels.name, papers.num_rows, labels.blocks),
            labels.splits,
            labels.class_names,
            type_name=_PAPER,
            whose=f"node type {_PAPER!r} has",
        )
    ]
    for path in listed:
        if path not in keys and path.name != _PAPER:
            rows, name = _features(path, runtime), path.name
            whose = f"node type {name!r} has"
            nodes.append(NodeSource(f"{folder}: {name}", rows.num_rows, rows, type_name=name, whose=whose))
    names = [one.type_name for one in nodes]
    edges = []
    for path, (source, relation, target) in keys.items():
        lost = next((end for end in (source, target) if end not in names), None)
        if lost is not None:
            raise ArgumentError(f"{path.parent / lost / 'node_feat.npy'} is missing, and {path} leads there")
        file = path / "edge_index.npy"
        blocks, count = _edges(file, runtime)
        edges.append(
            EdgeSource(str(file), (source, relation, target), blocks, count, edge_at=edge_of(str(file)))
        )
    return TypedSource(str(folder), tuple(nodes), tuple(edges))


def _require(path: Path) -> Path:
    if not path.is_file():
        raise ArgumentError(f"{path} is missing")
    return path


def _open_rows(path: Path, columns: int | None) -> np.ndarray:
    """Opens a map of rows of float32 ``[rows, columns]`` (``columns`` None: ``[rows]``), with or without a header.

    Raises:
        ArgumentError: There is no such file.
        FormatError: It ends within a row, or its header is damaged.
    """
    try:
        with _require(path).open("rb") as file:
            begin = file.read(len(np.lib.format.MAGIC_PREFIX))
    except OSError as error:
        raise IoError(error.errno or 0, f"{path} cannot be read: {error.strerror}") from None
    if begin == np.lib.format.MAGIC_PREFIX:
        return open_npy(path)
    size, row_bytes = path.stat().st_size, 4 * (columns or 1)
    rows, rest = divmod(size, row_bytes)
    if rest:
        raise FormatError(
            f"{path} has {size} bytes and no header, so it is rows of {row_bytes} bytes: row {rows} is torn"
        )
    shape = (rows,) if columns is None else (rows, columns)
    return map_file(path, np.float32, shape=shape) if rows else np.zeros(shape, np.float32)


class _Labels:
    """Has the labels of all papers, NaN = none, and the splits that follow from who has one."""

    def __init__(self, path: Path, classes: int, num_nodes: int, runtime: Runtime):
        self.name, self._classes, self._runtime = str(path), classes, runtime
        self.class_names = tuple(str(number) for number in range(classes))
        array = _open_rows(path, None)
        if array.ndim != 1 or array.dtype.kind not in "fiu":
            raise FormatError(f"{path} is {array.dtype}{array.shape}; one number for each paper is needed")
        if len(array) > num_nodes:
            raise ArgumentError(f"{path} has {len(array)} rows, and there are features of {num_nodes} papers")
        self._array = array[: LABELLED.get(num_nodes, {}).get(classes, len(array))]

    def blocks(self, num_nodes: int) -> Iterator[np.ndarray]:
        """Yields the labels. Raises FormatError for one that is no class."""
        rows = max(1, block_bytes(self._runtime) // 16)
        first = 0
        for block in array_blocks(self._runtime, self._array, rows):
            wrong = block >= self._classes
            if wrong.any():
                row = int(np.argmax(wrong))
                raise FormatError(
                    f"{self.name}: row {first + row} is {block[row]}; classes are 0 to {self._classes - 1}"
                )
            yield block
            first += len(block)
        with self._runtime.budget.reserve("import", 4 * min(rows, num_nodes - first)):
            for start in range(first, num_nodes, rows):
                yield np.full(min(rows, num_nodes - start), np.nan, np.float32)

    def splits(self, num_nodes: int) -> dict[str, np.ndarray]:
        """Divides the labelled papers in the order of the file."""
        count = sum(int(np.count_nonzero(block >= 0)) for block in self.blocks(num_nodes))
        with self._runtime.budget.reserve("splits", 8 * count):
            papers = np.empty(count, np.int64)
            row = filled = 0
            for block in self.blocks(num_nodes):
                found = np.flatnonzero(block >= 0)
                papers[filled : filled + len(found)] = found + row
                row, filled = row + len(block), filled + len(found)
            train, valid = int(count * _TRAIN), int(count * _VALID)
            parts = np.split(papers, [train, train + valid])
        return dict(zip(("train", "valid", "test"), parts, strict=True))


def _notes(folder: Path) -> tuple[str, ...]:
    """Names what the benchmark has beside papers and citations."""
    left = sorted(
        path.name
        for path in (folder / "processed").iterdir()
        if path.is_dir() and path.name not in (_PAPER, _EDGES.parent.name)
    )
    if not left:
        return ()
    listed = ", ".join(left)
    return (
        f"types of {folder} that are not imported: {listed} (--types all, ImportConfig(types='all'), does)",
    )
