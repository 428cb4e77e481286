"""``igb:DIR``: papers and citations of an Illinois Graph Benchmark, in the folder of one of its sizes.

``processed/paper/node_feat.npy`` float32 ``[N, 1024]``, ``processed/paper/node_label_19.npy`` and ``node_label_2K.npy``
(2983 classes), and ``processed/paper__cites__paper/edge_index.npy`` ``[E, 2]``. Features and labels of the sizes large
and full are raw numbers, though their files are called ``.npy``; of the largest only the first papers have labels. The
first 60 % of the labelled papers train, the next 20 % validate, the rest test, as the benchmark's own loader has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from outcrop.config import ImportConfig
from outcrop.errors import ArgumentError, FormatError, IoError
from outcrop.importing.sources.base import GraphSource, LabelSource, block_bytes
from outcrop.importing.sources.edge_list import array_edges, edge_of
from outcrop.importing.sources.features import array_features
from outcrop.importing.sources.ids import PlainIds
from outcrop.importing.sources.npy import array_blocks, open_npy
from outcrop.runtime.runtime import Runtime

COLUMNS = 1024
LABEL_FILES = {19: "node_label_19.npy", 2983: "node_label_2K.npy"}
# Number of papers -> number of classes -> how many papers, the first ones, have labels: of the size full.
LABELLED = {269_346_174: {19: 227_130_858, 2983: 157_675_969}}
_TRAIN, _VALID = 0.6, 0.2
_EDGES = Path("processed", "paper__cites__paper", "edge_index.npy")


def open_igb(folder: Path, runtime: Runtime, config: ImportConfig) -> GraphSource:
    """Opens ``igb:DIR``; reads headers.

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
    path = papers / "node_feat.npy"
    features = array_features(runtime, str(path), _open_rows(path, COLUMNS))
    num_nodes = features.num_rows
    labels = _Labels(papers / LABEL_FILES[classes], classes, num_nodes, runtime)
    pairs, name = open_npy(_require(folder / _EDGES)), str(folder / _EDGES)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise FormatError(f"{name} has shape {pairs.shape}; [edges, 2] is needed")
    edges, num_edges = array_edges(runtime, name, pairs, PlainIds())
    return GraphSource(
        str(folder),
        edges,
        num_nodes,
        num_edges,
        features,
        LabelSource(labels.name, num_nodes, labels.blocks),
        labels.splits,
        class_names=tuple(str(number) for number in range(classes)),
        notes=_notes(folder),
        edge_at=edge_of(name),
    )


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
    return np.memmap(path, np.float32, "r", shape=shape) if rows else np.zeros(shape, np.float32)


class _Labels:
    """Has the labels of all papers, NaN = none, and the splits that follow from who has one."""

    def __init__(self, path: Path, classes: int, num_nodes: int, runtime: Runtime):
        self.name, self._classes, self._runtime = str(path), classes, runtime
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
        if path.is_dir() and path.name not in ("paper", _EDGES.parent.name)
    )
    return (f"types of {folder} that are not imported: {', '.join(left)}",) if left else ()
