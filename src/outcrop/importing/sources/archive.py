"""``npz:FILE``: the published families of node-classification archives, and sparse matrices of SciPy. Nothing in
them is ever unpickled.

Sparse archives (``adj_data``, ``adj_indices``, ``adj_indptr``, ``adj_shape``, or the same as ``adj_matrix.data``, ...;
``attr_*`` or ``attr_matrix.*`` sparse, or ``attr_matrix`` dense; ``labels``) list arcs once in either direction; as is
usual for them the graph is made undirected and self-loops are dropped. They have no splits: 20 nodes of each class
train, 30 validate, the rest test, as in the comparison they were published with. Heterophilous archives (``edges``,
``node_features``, ``node_labels``, ten ``train_masks``, ...) list undirected edges once. What
``scipy.sparse.save_npz`` wrote (CSR, CSC, COO) has an edge from row to column for each entry, weights where the values
are not all one, and nothing else.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.base import (
    EdgeBlock,
    FeatureSource,
    GraphSource,
    LabelSource,
    SplitRow,
    block_bytes,
    check_ids,
    same_length,
)
from outcrop.importing.sources.features import array_features
from outcrop.importing.sources.labels import array_labels
from outcrop.importing.sources.matrix import (
    Csr,
    csr_of_coo,
    matrix_edges,
    matrix_features,
    transposed_bytes,
    transposed_of,
)
from outcrop.importing.sources.npy import array_blocks
from outcrop.importing.sources.npz_members import naming, read_header
from outcrop.importing.sources.parts import Part, Parts, open_parts, split_ids
from outcrop.importing.sources.tables import Place
from outcrop.runtime.runtime import Runtime


class Archive:
    """Has the members of a ``.npz`` file, read whole under the budget for as long as ``held`` is open."""

    def __init__(self, path: Path, runtime: Runtime, held: ExitStack):
        self.path, self._runtime, self._held = path, runtime, held
        try:
            self._zip = held.enter_context(zipfile.ZipFile(path))
        except FileNotFoundError:
            raise ArgumentError(f"{path} is missing") from None
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise FormatError(f"{path} is no .npz archive or is torn: {error}") from None
        self.names = {name.removesuffix(".npy") for name in self._zip.namelist() if name.endswith(".npy")}

    def read(self, name: str) -> np.ndarray:
        """Reads member ``name``. Raises FormatError when it is missing, torn, or holds Python objects."""
        where = f"{self.path} member {name!r}"
        if name not in self.names:
            raise FormatError(f"{where} is missing (it has {', '.join(sorted(self.names)) or 'none'})")
        info = self._zip.getinfo(f"{name}.npy")
        with naming(where):
            with self._zip.open(info) as file:
                read_header(where, file, info.file_size)
            self.reserve(info.file_size)
            with self._zip.open(info) as file:
                return np.lib.format.read_array(file, allow_pickle=False)

    def reserve(self, count: int) -> None:
        """Reserves bytes for as long as ``held`` is open."""
        self._held.enter_context(self._runtime.budget.reserve("import", count))


def open_archive(path: Path, runtime: Runtime, held: ExitStack, split_index: int = 0) -> GraphSource:
    """Opens ``npz:FILE`` of either family.

    Args:
        split_index: Which of the splits of a heterophilous archive.

    Raises:
        FormatError: Neither family, torn, or holding objects.
        ArgumentError: The file is missing or has no such split.
    """
    archive = Archive(path, runtime, held)
    if "adj_indptr" in archive.names:
        return _sparse(
            archive, runtime, _csr(archive, "adj", values=False), _features(archive, runtime, "attr")
        )
    if "adj_matrix.indptr" in archive.names:
        adjacency = _csr(archive, "adj_matrix", ".", values=False)
        return _sparse(archive, runtime, adjacency, _features(archive, runtime, "attr_matrix", "."))
    if {"format", "shape", "data"} <= archive.names:
        return _scipy(archive, runtime)
    if {"edges", "node_features", "node_labels"} <= archive.names:
        return _heterophilous(archive, runtime, split_index)
    raise FormatError(
        f"{path} holds {', '.join(sorted(archive.names)) or 'no arrays'}; known are archives with adj_data, "
        "adj_indices, adj_indptr, adj_shape; with adj_matrix.data, adj_matrix.indices, ...; of scipy.sparse.save_npz; "
        "or with edges, node_features, node_labels"
    )


def read_matrix(path: Path, runtime: Runtime, held: ExitStack) -> Csr:
    """Reads a matrix that ``scipy.sparse.save_npz`` wrote, in rows, under the budget for as long as ``held`` is open.

    Raises:
        ArgumentError: The file is missing.
        FormatError: It is torn, or holds something else.
    """
    archive = Archive(path, runtime, held)
    matrix, transposed = _matrix(archive)
    if not transposed:
        return matrix
    held.enter_context(runtime.budget.reserve("import", transposed_bytes(matrix)))
    return transposed_of(matrix)


def _scipy(archive: Archive, runtime: Runtime) -> GraphSource:
    """Opens a matrix of SciPy: an edge from row to column for each entry."""
    matrix, transposed = _matrix(archive)
    return open_parts(
        Parts(matrix.name, {"edges": Part(matrix.name, matrix)}, transposed=transposed), runtime
    )


def _matrix(archive: Archive) -> tuple[Csr, bool]:
    """Reads a matrix as ``scipy.sparse.save_npz`` writes it; True: what was read is its transpose, in rows."""
    if missing := sorted({"format", "shape", "data"} - archive.names):
        raise FormatError(
            f"{archive.path} has no member {missing[0]!r}: it is no matrix that scipy.sparse.save_npz wrote"
        )
    kind, name = archive.read("format"), str(archive.path)
    word = kind.item() if kind.ndim == 0 and kind.dtype.kind in "SU" else b"?"
    word = word.decode("ascii", "replace") if isinstance(word, bytes) else str(word)
    if word == "coo":
        shape, row, column = (archive.read(part) for part in ("shape", "row", "col"))
        matrix = csr_of_coo(name, shape, row, column, archive.read("data"), archive.reserve)
    elif word in ("csr", "csc"):
        shape, indptr, indices = (archive.read(part) for part in ("shape", "indptr", "indices"))
        turned = shape[::-1] if word == "csc" and shape.shape == (2,) else shape
        matrix = Csr(name, turned, indptr, indices, archive.read("data"))
    else:
        raise FormatError(f"{name} holds a matrix of format {word!r}: save it as csr, csc or coo")
    return matrix, word == "csc"


def _csr(archive: Archive, prefix: str, separator: str = "_", values: bool = True) -> Csr:
    """Gives the matrix of the members ``<prefix>_indices``, ``_indptr``, ``_shape`` and, for ``values``, ``_data``."""
    names = ("shape", "indptr", "indices", *(("data",) if values else ()))
    parts = {part: archive.read(f"{prefix}{separator}{part}") for part in names}
    return Csr(f"{archive.path} {prefix}", **parts)


def _sparse(
    archive: Archive, runtime: Runtime, adjacency: Csr, features: FeatureSource | None
) -> GraphSource:
    if adjacency.rows != adjacency.columns:
        raise FormatError(
            f"{archive.path}: the adjacency is {adjacency.rows} x {adjacency.columns}, not square"
        )
    labels = _labels(archive, runtime, "labels") if "labels" in archive.names else None
    num_nodes = same_length(
        {
            f"{archive.path} adj": adjacency.rows,
            f"{archive.path} attr": features.num_rows if features else None,
            f"{archive.path} labels": labels.num_rows if labels else None,
        }
    )

    names = archive.read("node_names") if "node_names" in archive.names else np.zeros(0)
    has_names = names.dtype.kind == "U" and names.shape == (num_nodes,)
    classes = archive.read("class_names") if "class_names" in archive.names else np.zeros(0)
    return GraphSource(
        str(archive.path),
        lambda: matrix_edges(runtime, adjacency, False),
        num_nodes,
        len(adjacency.indices),
        features,
        labels,
        names=(lambda: (str(name) for name in names)) if has_names else None,
        class_names=tuple(str(c) for c in classes) if classes.dtype.kind == "U" and classes.ndim == 1 else (),
        reverse=True,
        keep_self_loops=False,
        split_protocol="per-class",
    )


def _features(archive: Archive, runtime: Runtime, prefix: str, separator: str = "_") -> FeatureSource | None:
    """Returns dense or sparse attributes, where there are any."""
    if f"{prefix}{separator}indptr" in archive.names:
        return matrix_features(runtime, _csr(archive, prefix, separator))
    dense = next((n for n in ("attr_matrix", "attr_data") if n in archive.names), None)
    return None if dense is None else array_features(runtime, f"{archive.path} {dense}", archive.read(dense))


def _labels(archive: Archive, runtime: Runtime, member: str) -> LabelSource:
    return array_labels(runtime, f"{archive.path} {member}", archive.read(member))


def _heterophilous(archive: Archive, runtime: Runtime, split_index: int) -> GraphSource:
    pairs, data = archive.read("edges"), archive.read("node_features")
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise FormatError(f"{archive.path} edges has shape {pairs.shape}; [edges, 2] is needed")
    if data.ndim != 2 or data.shape[1] == 0 or data.dtype.kind not in "fiub":
        raise FormatError(
            f"{archive.path} node_features is {data.dtype}{data.shape}; features are numbers [nodes, columns]"
        )
    check_ids(f"{archive.path} edges", pairs[:0])
    labels = _labels(archive, runtime, "node_labels")
    num_nodes = same_length(
        {f"{archive.path} node_features": len(data), f"{archive.path} node_labels": labels.num_rows}
    )
    masks = {
        split: archive.read(f"{short}_masks")
        for split, short in (("train", "train"), ("valid", "val"), ("test", "test"))
        if f"{short}_masks" in archive.names
    }
    for split, mask in masks.items():
        if mask.ndim != 2 or mask.dtype != np.bool_:
            raise FormatError(
                f"{archive.path} {split} masks are {mask.dtype}{mask.shape}; booleans [splits, nodes] are needed"
            )
        if not 0 <= split_index < len(mask):
            raise ArgumentError(f"{archive.path} has {len(mask)} splits, number {split_index} was asked for")

    def edges() -> Iterator[EdgeBlock]:
        row = 0
        for block in array_blocks(runtime, pairs, max(1024, block_bytes(runtime) // 64)):
            yield (
                check_ids(f"{archive.path} edges", block[:, 0], row),
                check_ids(f"{archive.path} edges", block[:, 1], row),
            )
            row += len(block)

    def splits(nodes: int) -> dict[str, np.ndarray] | None:
        found = {
            split: split_ids(f"{archive.path} {split} mask", mask[split_index], nodes)
            for split, mask in masks.items()
        }
        return found or None

    def split_rows(node: int) -> list[SplitRow]:
        return [
            SplitRow(split, str(node), Place(f"{archive.path} {split} mask").at(node))
            for split, mask in masks.items()
            if mask[split_index][node]
        ]

    return GraphSource(
        str(archive.path),
        edges,
        num_nodes,
        len(pairs),
        FeatureSource(
            f"{archive.path} node_features",
            data.dtype,
            len(data),
            data.shape[1],
            lambda rows: array_blocks(runtime, data, rows),
        ),
        labels,
        splits,
        reverse=True,
        split_protocol="fractions",
        split_rows=split_rows,
    )
