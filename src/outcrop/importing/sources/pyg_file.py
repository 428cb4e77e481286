"""``pyg:FILE.pt``: a graph of PyTorch Geometric as ``torch.save`` wrote it, read without running anything of it.

The file holds a ``Data`` (of PyG 2, or of PyG 1) or a ``HeteroData``, a dict of its values, or a tuple ``(data,
slices)`` or ``(dict, slices, class)`` as datasets of PyG write it into ``processed``. Values mean what they
mean in memory: :mod:`outcrop.importing.sources.objects`, of several types :mod:`outcrop.importing.sources.hetero`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.config import ImportConfig
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.adjacency import Adjacency, open_adjacency
from outcrop.importing.sources.base import GraphSource, TypedSource
from outcrop.importing.sources.checks import FREE_NODES, check_told_nodes, check_told_types
from outcrop.importing.sources.file_map import is_size, mask_of
from outcrop.importing.sources.hetero import PartOf, open_columns
from outcrop.importing.sources.matrix import Csr, csr_of_coo
from outcrop.importing.sources.objects import MATRICES, data_parts, notes_of_splits, part_of
from outcrop.importing.sources.parts import Part, Parts, open_parts
from outcrop.importing.sources.pickles import Made, Name
from outcrop.importing.sources.torch_file import Sparse, TorchFile, Unreadable
from outcrop.importing.sources.typed import TypedColumns
from outcrop.runtime.runtime import Runtime

_DATA = "torch_geometric.data."
_HOMOGENEOUS = (f"{_DATA}data.Data", f"{_DATA}Data")
_TYPED = (f"{_DATA}hetero_data.HeteroData", f"{_DATA}HeteroData")
_STORAGES = tuple(f"{_DATA}storage.{kind}Storage" for kind in ("Base", "Global", "Node", "Edge"))
_SPARSE_TENSOR, _SPARSE_STORAGE = "torch_sparse.tensor.SparseTensor", "torch_sparse.storage.SparseStorage"
KNOWN = frozenset(
    (
        *_HOMOGENEOUS,
        *_TYPED,
        *_STORAGES,
        _SPARSE_TENSOR,
        _SPARSE_STORAGE,
        f"{_DATA}data.DataEdgeAttr",
        f"{_DATA}data.DataTensorAttr",
        f"{_DATA}feature_store.TensorAttr",
        f"{_DATA}graph_store.EdgeAttr",
    )
)
_REMEDY = (
    "if you trust the file, load it where that class is, and save what it holds: "
    "torch.save(data.to_dict(), 'plain.pt'), or pass the object itself to outcrop.import_graph"
)


def open_pyg(
    path: Path, runtime: Runtime, held: ExitStack, config: ImportConfig
) -> GraphSource | TypedSource:
    """Opens ``pyg:FILE.pt``; tensors are read from the file block by block.

    Args:
        config: Which column of masks ``[N, splits]``, and whether a large number of nodes is meant.

    Raises:
        ArgumentError: The file is missing, holds several graphs, or parts contradict each other.
        FormatError: It is no such file, is torn, or names a class that is not read.
    """
    found = read_pyg(path, runtime, held)

    def reserve(count: int) -> None:
        held.enter_context(runtime.budget.reserve("import", count))

    most_rows = max(path.stat().st_size, FREE_NODES, config.num_nodes or 0)
    part = partial(_part, partial(_matrix, reserve=reserve, most_rows=most_rows))
    if isinstance(found, TypedColumns):
        typed = open_columns(found, runtime, config.split_index, part)
        check_told_types(typed, path.stat().st_size)
        return typed
    try:
        source = _source(str(path), found, runtime, config.split_index, part)
        check_told_nodes(source, path.stat().st_size, config.num_nodes)
        return source
    except (ArgumentError, FormatError) as error:
        raise error if str(path) in str(error) else type(error)(f"{path}: {error}") from None


def read_pyg(path: Path, runtime: Runtime, held: ExitStack) -> dict[str, Any] | TypedColumns:
    """Returns the values of a graph of one type by name, or its columns by type; arrays stay in the file.

    Raises:
        ArgumentError: The file is missing, or holds no graph or several.
        FormatError: It is no such file, is torn, or names a class that is not read.
    """
    return _Reader(TorchFile(path, KNOWN, _REMEDY, runtime, held)).graph()


@dataclass(frozen=True, eq=False)
class _Coo(Unreadable):
    """Holds the entries of a sparse tensor in any order: rows of features or of labels, but no edges.

    Attributes:
        where: What messages call it.
        shape: Rows and columns.
        indices: Integers [2, entries].
        values: Numbers [entries].
    """

    where: str
    shape: tuple[int, int]
    indices: np.ndarray
    values: np.ndarray


class _Reader:
    """Finds the graph in what a file holds."""

    def __init__(self, file: TorchFile):
        self._file, self._name = file, str(file.path)

    def graph(self) -> dict[str, Any] | TypedColumns:
        """Returns the values of a graph of one type by name, or its columns by type."""
        root = self._file.root
        if isinstance(root, tuple) and len(root) > 1:
            self._require_one_graph(root[1])
        if (isinstance(root, tuple | list) and len(root) == 1) or (isinstance(root, tuple) and root):
            root = root[0]
        if isinstance(root, Made) and str(root.by) in _TYPED:
            return self._typed_object(self._state(root))
        if isinstance(root, Made) and str(root.by) in _HOMOGENEOUS:
            return self._data(self._state(root))
        if isinstance(root, dict) and any(isinstance(key, tuple) for key in root):
            return self._typed_dict(root)
        if isinstance(root, dict):
            return self._values(root)
        what = f"{len(root)} objects" if isinstance(root, list) else _what(root)
        raise ArgumentError(
            f"{self._name} holds {what}; a PyG Data is needed, a dict of its values, or a tuple with either in front: "
            "save one graph with torch.save(data, FILE)"
        )

    def _require_one_graph(self, slices: Any) -> None:
        """Raises ArgumentError where a dataset has put several graphs into one."""
        if not isinstance(slices, dict):
            return
        for name, ends in slices.items():
            for inner, end in ends.items() if isinstance(ends, dict) else ((name, ends),):
                array = self._file.value(end, f"slices of {inner}")
                count = len(array) - 1 if isinstance(array, np.ndarray | list) and np.ndim(array) == 1 else 1
                if count != 1:
                    raise ArgumentError(
                        f"{self._name} holds {count} graphs, one is needed: save it with torch.save(dataset[0], FILE)"
                    )

    def _state(self, made: Made) -> dict[str, Any]:
        if not isinstance(made.state, dict):
            raise FormatError(f"{self._name} holds a {made.by.name} without values: the file is damaged")
        made.state.pop("_parent", None)  # a way back, so that the map of the file would outlive the reader
        return made.state

    def _mapping(self, storage: Any) -> dict[Any, Any]:
        """Returns the values of a storage of PyG 2."""
        state = self._state(storage) if isinstance(storage, Made) and str(storage.by) in _STORAGES else {}
        mapping = state.get("_mapping")
        if not isinstance(mapping, dict):
            raise FormatError(f"{self._name} has a part without values: the file is damaged")
        return mapping

    def _data(self, state: dict[str, Any]) -> dict[str, Any]:
        if "_store" in state:
            return self._values(self._mapping(state["_store"]))
        state = dict(state)  # of PyG 1: the attributes themselves
        count = state.pop("__num_nodes__", None)
        return self._values({"num_nodes": count} | state)

    def _typed_object(self, state: dict[str, Any]) -> TypedColumns:
        nodes, edges = state.get("_node_store_dict"), state.get("_edge_store_dict")
        if not isinstance(nodes, dict) or not isinstance(edges, dict):
            raise FormatError(f"{self._name} holds a HeteroData without types: the file is damaged")
        flat = {key: self._mapping(store) for key, store in (nodes | edges).items()}
        return self._typed_dict(flat | {"_global_store": self._mapping(state.get("_global_store"))})

    def _typed_dict(self, given: dict[Any, Any]) -> TypedColumns:
        typed = TypedColumns(self._name, {}, {})
        for key, values in given.items():
            if not isinstance(values, dict):
                raise FormatError(f"{self._name} has no values for the type {key!r}: the file is damaged")
            if key == "_global_store":
                typed.graph.update(self._values(values))
            elif isinstance(key, str):
                typed.nodes[key] = self._values(values, f"{key} ")
            elif isinstance(key, tuple) and len(key) == 3 and all(isinstance(part, str) for part in key):
                typed.edges[key] = self._values(values, f"{' '.join(key)} ")
            else:
                raise FormatError(f"{self._name} has the type {key!r}; an edge type is three names")
        return typed

    def _values(self, given: dict[Any, Any], prefix: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, raw in given.items():
            if not isinstance(key, str):
                raise FormatError(f"{self._name} has the key {key!r}; names are needed")
            found[key] = self._value(self._file.value(raw, prefix + key), prefix + key)
        return found

    def _value(self, value: Any, name: str) -> Any:
        if isinstance(value, Sparse):
            return self._sparse(value, name)
        if isinstance(value, Made) and str(value.by) == _SPARSE_TENSOR:
            return self._sparse_tensor(value, name)
        return mask_of(f"{self._name}: {name}", value) if name.endswith("_mask") else value

    def _sparse(self, value: Sparse, name: str) -> Any:
        """Returns a matrix of a sparse tensor of torch; None where it has a form that is not read."""
        where = f"{self._name}: {name}"
        parts = [self._file.value(part, name) for part in value.parts]
        if value.layout == "torch.sparse_csr" and len(parts) >= 4:
            indptr, indices, data, shape = parts[:4]
            return _adjacency(where, shape, (indptr, indices, data), lists=True)
        why = f"{where} is a sparse tensor ({value.layout}): save edge_index, or .to_sparse_csr()"
        unreadable = next((part for part in parts if isinstance(part, Unreadable)), Unreadable(why))
        if value.layout == "torch.sparse_coo" and len(parts) >= 3:
            indices, data, shape = parts[:3]
            arrays = all(isinstance(part, np.ndarray) for part in (indices, data))
            # A matrix of numbers: others may be there for something that is not imported.
            if arrays and indices.ndim == 2 and len(indices) == 2 and data.ndim == 1 and _is_shape(shape):
                return _Coo(why, where, (shape[0], shape[1]), indices, data)
        return unreadable

    def _sparse_tensor(self, value: Made, name: str) -> Any:
        where = f"{self._name}: {name}"
        storage = self._state(value).get("storage")
        if not isinstance(storage, Made) or str(storage.by) != _SPARSE_STORAGE:
            raise FormatError(f"{where} is a SparseTensor without a storage: the file is damaged")
        state = self._state(storage)
        row, rowptr, col, data = (
            self._file.value(state.get(key), name) for key in ("_row", "_rowptr", "_col", "_value")
        )
        shape = self._file.value(state.get("_sparse_sizes"), name)
        lists = rowptr is not None
        return _adjacency(where, shape, (rowptr if lists else row, col, data), lists)


def _adjacency(where: str, shape: Any, arrays: tuple[Any, Any, Any], lists: bool) -> Adjacency:
    """Returns the edges of a matrix whose rows are targets."""
    ends, others, weights = arrays
    given = (ends, others) if weights is None else arrays
    if not all(isinstance(array, np.ndarray) for array in given):
        raise FormatError(f"{where} lacks its rows or columns: the file is damaged")
    if not _is_shape(shape):
        raise FormatError(f"{where} has no shape: the file is damaged")
    return Adjacency(where, shape[0], shape[1], ends, others, lists, turned=True, weights=weights)


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(is_size(size) for size in value)


def _matrix(value: Adjacency | _Coo, reserve: Callable[[int], object], most_rows: int) -> Csr:
    """Returns the rows of a sparse tensor.

    Args:
        reserve: Reserves the bytes of putting entries in order.
        most_rows: Rows that such a file can tell of.

    Raises:
        ArgumentError: It tells of more.
    """
    where, rows = (value.where, value.shape[0]) if isinstance(value, _Coo) else (value.name, value.rows)
    if rows > most_rows:
        raise ArgumentError(
            f"{where} tells of {rows} rows, more than its file has bytes: correct its size, or give the number of "
            f"nodes (--num-nodes {rows})"
        )
    if isinstance(value, _Coo):
        shape, (rows, columns) = np.array(value.shape, np.int64), value.indices
        return csr_of_coo(value.where, shape, rows, columns, value.values, reserve)
    shape, weights = np.array((value.rows, value.columns), np.int64), value.weights
    if value.lists:
        return Csr(value.name, shape, value.ends, value.others, weights)
    if weights is None:
        reserve(4 * len(value.others))
        weights = np.ones(len(value.others), np.float32)
    return csr_of_coo(value.name, shape, value.ends, value.others, weights, reserve)


def _source(
    name: str, given: dict[str, Any], runtime: Runtime, split_index: int, part: PartOf
) -> GraphSource:
    adj_t = given.get("adj_t") if given.get("edge_index") is None else None
    if adj_t is not None:
        given = {key: value for key, value in given.items() if key != "adj_t"}
    named, notes = data_parts(name, given)
    count = named.pop("num_nodes", None)
    if isinstance(count, list) and len(count) == 1:  # as datasets of PyG 1 keep it
        count = count[0]
    if count is not None and (type(count) is not int or not is_size(count)):
        raise FormatError(f"{name}: num_nodes is {str(count)[:20]}; a number of nodes is needed")
    if "edges" not in named and adj_t is None:
        raise ArgumentError(f"{name} has no edge_index; it has {', '.join(map(repr, given)) or 'nothing'}")
    notes += notes_of_splits(name, named, split_index)
    parts = {kind: part(name, kind, value, split_index) for kind, value in named.items()}
    given_parts = Parts(name, parts, num_nodes=count, notes=notes)
    if isinstance(adj_t, Adjacency):
        return open_adjacency(adj_t, given_parts, runtime)
    if adj_t is not None:
        raise ArgumentError(
            adj_t.why if isinstance(adj_t, Unreadable) else f"{name}: adj_t is {_what(adj_t)}"
        )
    return open_parts(given_parts, runtime)


def _part(
    rows_of: Callable[[Adjacency | _Coo], Csr], name: str, kind: str, value: Any, split_index: int
) -> Part:
    if kind in MATRICES and isinstance(value, Adjacency | _Coo):
        return Part(f"{name}: {kind}", rows_of(value))
    if isinstance(value, Unreadable):
        raise ArgumentError(value.why)
    plain = isinstance(value, list) and all(type(item) in (int, float, bool, str) for item in value)
    if not plain and not isinstance(value, np.ndarray):
        raise ArgumentError(f"{name}: {kind} is {_what(value)}; save it as a tensor")
    return replace(part_of(kind, value, split_index), name=f"{name}: {kind}")


def _what(value: Any) -> str:
    """Says what a value is, for messages."""
    if isinstance(value, Made):
        return f"a {value.by}"
    if isinstance(value, Name):
        return f"the class {value}"
    return "a dict" if isinstance(value, Mapping) else f"a {type(value).__name__}"
