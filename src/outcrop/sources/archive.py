"""``npz:FILE``: the two published families of node-classification archives. Nothing in them is ever
unpickled.

Sparse archives (``adj_data``, ``adj_indices``, ``adj_indptr``, ``adj_shape``; ``attr_*`` sparse or
``attr_matrix`` dense; ``labels``) list arcs once in either direction; as is usual for them the graph is made
undirected and self-loops are dropped. They have no splits: 20 nodes of each class train, 30 validate, the
rest test, as in the comparison they were published with. Heterophilous archives (``edges``,
``node_features``, ``node_labels``, ten ``train_masks``, ...) list undirected edges once.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np

from outcrop.errors import ArgumentError, FormatError
from outcrop.runtime import Runtime
from outcrop.sources.base import (
    EdgeBlock,
    FeatureSource,
    GraphSource,
    LabelSource,
    block_bytes,
    check_ids,
    same_length,
)
from outcrop.sources.folder import split_ids
from outcrop.sources.labels import array_labels
from outcrop.sources.tables import array_blocks


class Archive:
    """Members of a ``.npz`` file, read whole under the budget for as long as ``held`` is open."""

    def __init__(self, path: Path, runtime: Runtime, held: ExitStack):
        self.path, self._runtime, self._held = path, runtime, held
        try:
            self._zip = held.enter_context(zipfile.ZipFile(path))
        except FileNotFoundError:
            raise ArgumentError(f"{path} is missing") from None
        except (zipfile.BadZipFile, OSError) as error:
            raise FormatError(f"{path} is no .npz archive or is torn: {error}") from None
        self.names = {name.removesuffix(".npy") for name in self._zip.namelist() if name.endswith(".npy")}

    def read(self, name: str) -> np.ndarray:
        """Member ``name``. Raises FormatError when it is missing, torn, or holds Python objects."""
        where = f"{self.path} member {name!r}"
        if name not in self.names:
            raise FormatError(f"{where} is missing (it has {', '.join(sorted(self.names)) or 'none'})")
        info = self._zip.getinfo(f"{name}.npy")
        try:
            with self._zip.open(info) as file:
                self._check_header(where, file, info.file_size)
            self._held.enter_context(self._runtime.budget.reserve("import", info.file_size))
            with self._zip.open(info) as file:
                return np.lib.format.read_array(file, allow_pickle=False)
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, OSError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"{where} is torn or no array: {error}") from None

    @staticmethod
    def _check_header(where: str, file: IO[bytes], size: int) -> None:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise FormatError(f"{where} has .npy version {version}, which is not supported")
        if dtype.hasobject:
            raise FormatError(f"{where} holds Python objects, which are never loaded: save numbers instead")
        data = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if file.tell() + data != size:
            raise FormatError(f"{where} has {size} bytes, its header promises {file.tell() + data}")


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
        return _sparse(archive, runtime)
    if {"edges", "node_features", "node_labels"} <= archive.names:
        return _heterophilous(archive, runtime, split_index)
    raise FormatError(
        f"{path} holds {', '.join(sorted(archive.names)) or 'no arrays'}; known are archives with adj_indptr, "
        "adj_indices, ... or with edges, node_features, node_labels"
    )


class Csr:
    """Indices of a sparse matrix, checked: bounds and order of ``indptr``, columns in range."""

    def __init__(self, archive: Archive, prefix: str):
        name = f"{archive.path} {prefix}_*"
        shape = archive.read(f"{prefix}_shape")
        indptr, indices = archive.read(f"{prefix}_indptr"), archive.read(f"{prefix}_indices")
        if shape.shape != (2,) or shape.dtype.kind not in "iu" or (shape < 0).any():
            raise FormatError(f"{name}: the shape {shape.tolist()} is not two sizes")
        self.rows, self.columns = int(shape[0]), int(shape[1])
        if (
            indptr.ndim != 1
            or indices.ndim != 1
            or indptr.dtype.kind not in "iu"
            or indices.dtype.kind not in "iu"
        ):
            raise FormatError(f"{name}: indptr and indices must be lists of integers")
        if (
            len(indptr) != self.rows + 1
            or indptr[0] != 0
            or indptr[-1] != len(indices)
            or (indptr[1:] < indptr[:-1]).any()
        ):
            raise FormatError(
                f"{name}: indptr does not rise from 0 to the {len(indices)} indices in {self.rows} rows"
            )
        if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= self.columns):
            raise FormatError(f"{name}: column {int(indices.max())} is outside 0 to {self.columns - 1}")
        self.indptr, self.indices = indptr, indices

    def entries(self, start: int, stop: int) -> tuple[np.ndarray, slice]:
        """Row number (from ``start``) of each entry of rows ``start:stop``, and where these entries are."""
        rows = np.repeat(np.arange(stop - start), np.diff(self.indptr[start : stop + 1]))
        return rows, slice(int(self.indptr[start]), int(self.indptr[stop]))


def _sparse(archive: Archive, runtime: Runtime) -> GraphSource:
    adjacency = Csr(archive, "adj")
    if adjacency.rows != adjacency.columns:
        raise FormatError(
            f"{archive.path}: the adjacency is {adjacency.rows} x {adjacency.columns}, not square"
        )
    features = _sparse_features(archive, runtime)
    labels = _labels(archive, runtime, "labels") if "labels" in archive.names else None
    num_nodes = same_length(
        {
            f"{archive.path} adj": adjacency.rows,
            f"{archive.path} attr": features.num_rows if features else None,
            f"{archive.path} labels": labels.num_rows if labels else None,
        }
    )

    def edges() -> Iterator[EdgeBlock]:
        step = max(1024, block_bytes(runtime) // 64)
        for start in range(0, adjacency.rows, step):
            rows, entries = adjacency.entries(start, min(start + step, adjacency.rows))
            yield rows + start, adjacency.indices[entries].astype(np.int64)

    names = archive.read("node_names") if "node_names" in archive.names else np.zeros(0)
    has_names = names.dtype.kind == "U" and names.shape == (num_nodes,)
    classes = archive.read("class_names") if "class_names" in archive.names else np.zeros(0)
    return GraphSource(
        str(archive.path),
        edges,
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


def _sparse_features(archive: Archive, runtime: Runtime) -> FeatureSource | None:
    name = f"{archive.path} attr"
    dense = next((n for n in ("attr_matrix", "attr_data") if n in archive.names), None)
    if dense is None:
        return None
    data = archive.read(dense)
    if "attr_indptr" not in archive.names:
        if data.ndim != 2 or data.shape[1] == 0:
            raise FormatError(f"{name} has shape {data.shape}; features are [nodes, columns]")
        return FeatureSource(
            name, data.dtype, len(data), data.shape[1], lambda rows: array_blocks(runtime, data, rows)
        )
    matrix = Csr(archive, "attr")
    if data.shape != matrix.indices.shape or data.dtype.kind not in "fiub":
        raise FormatError(f"{name}: {data.shape} values of {data.dtype} for {len(matrix.indices)} indices")
    if matrix.columns == 0:
        raise FormatError(f"{name} has zero feature columns")
    return csr_features(name, runtime, matrix, data)


def csr_features(name: str, runtime: Runtime, matrix: Csr, data: np.ndarray) -> FeatureSource:
    """Dense rows of a sparse matrix, expanded block by block; equals ``csr_matrix((data, ...)).toarray()``."""

    def blocks(rows: int) -> Iterator[np.ndarray]:
        for start in range(0, matrix.rows, rows):
            stop = min(start + rows, matrix.rows)
            where, entries = matrix.entries(start, stop)
            with runtime.budget.reserve("import", (stop - start) * matrix.columns * data.dtype.itemsize):
                block = np.zeros((stop - start, matrix.columns), data.dtype)
                np.add.at(block, (where, matrix.indices[entries]), data[entries])
                yield block

    return FeatureSource(name, data.dtype, matrix.rows, matrix.columns, blocks)


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
    )
