"""Graphs that other libraries hold in memory: PyG ``Data``, SciPy matrices, NetworkX graphs, or a mapping of parts.

Each becomes the parts of :mod:`outcrop.importing.sources.parts`. A part may be a NumPy array, a torch tensor, a list,
a SciPy matrix, a series, or a table of any library that offers Arrow streams or the dataframe protocol (Arrow,
Polars, pandas, DuckDB). Tables are read block by block within the budget; what the objects themselves take is the
caller's.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.arrow_errors import arrow_errors
from outcrop.importing.sources.base import GraphSource
from outcrop.importing.sources.frames import StreamTable, is_frame
from outcrop.importing.sources.matrix import Csr, csr_of_coo, csr_of_scipy
from outcrop.importing.sources.nx import networkx_parts
from outcrop.importing.sources.parts import Part, Parts, open_parts
from outcrop.importing.sources.typed import refuse_typed
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import SPLIT_NAMES
from outcrop.store.host_array import host_array, is_tensor

MATRICES = ("features", "labels")  # parts that may be sparse tensors; edges are their indices
_VALUES_AT_A_TIME = 1 << 20
ONE_TYPE = "data.to_homogeneous(), or a dict with the parts of one type"
# What a part may be called -> what it is.
KINDS = {
    **dict.fromkeys(("edges", "edge_index"), "edges"),
    **dict.fromkeys(("features", "x"), "features"),
    **dict.fromkeys(("labels", "y"), "labels"),
    **{name: split for stem, split in SPLIT_NAMES.items() for name in (stem, f"{stem}_mask")},
    **dict.fromkeys(("edge_features", "edge_attr"), "edge_features"),
    **{name: name for name in ("edge_weight", "nodes", "splits")},
    **{f"{name}_edges": f"{split}_edges" for name, split in SPLIT_NAMES.items()},
}


def open_object(source: Any, runtime: Runtime, held: ExitStack, split_index: int = 0) -> GraphSource:
    """Opens a graph in memory.

    Args:
        source: A PyG ``Data``, a SciPy matrix, a NetworkX graph, an array or a table of edges; or a mapping of parts by
            name, whose ``edges`` may be any of these.
        held: Keeps the budget of what is converted.
        split_index: Which column of masks ``[N, splits]``.

    Raises:
        ArgumentError: It is none of these, or parts contradict each other.
        FormatError: A part has not the shape or the type that it needs.
    """
    named = _named(source if isinstance(source, Mapping) else {"edges": source})
    usual = Parts("graph", {})
    library = _library(named.get("edges"))
    if library == "torch_geometric":
        data = named.pop("edges")
        parts, notes = _data_parts(data)
        usual, named = Parts("Data", {}, notes=notes), parts | named
    elif library == "networkx":
        named, usual = networkx_parts(named.pop("edges"), named, runtime, held)
    if "edges" not in named:
        raise ArgumentError(f"the graph has no edges; it has {', '.join(named) or 'no parts'}")
    parts = {
        kind: part_of(kind, value, split_index)
        for kind, value in named.items()
        if kind != "num_nodes" and value is not None
    }
    return open_parts(replace(usual, parts=parts, num_nodes=named.get("num_nodes", usual.num_nodes)), runtime)


def _library(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns parts by kind. Raises ArgumentError for names that are none, or two names of one kind."""
    named: dict[str, Any] = {}
    for name, value in given.items():
        kind = "num_nodes" if name == "num_nodes" else KINDS.get(name)
        if kind is None:
            raise ArgumentError(f"{name!r} is no part of a graph; known: {', '.join(KINDS)}, num_nodes")
        if value is None:
            continue
        found = {kind: _pairs(value) if name == "edge_index" else value}
        for of, part in (
            splits_by_name(value) if kind == "splits" and isinstance(value, Mapping) else found
        ).items():
            if of in named:
                raise ArgumentError(f"{name!r} and another part both give {of}: keep one of them")
            named[of] = part
    return named


def splits_by_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the nodes of each split by the name of the split, of a dict of splits.

    Raises:
        ArgumentError: A name is that of no split, or two are of the same.
    """
    unknown = [name for name in given if KINDS.get(name) not in SPLITS]
    if unknown:
        raise ArgumentError(
            f"{unknown[0]!r} is no split of nodes; splits are a dict of {', '.join(SPLITS)}, or a table"
        )
    return _named(given)


def _pairs(edge_index: Any) -> np.ndarray:
    """Returns ``[2, E]`` as ``[E, 2]``."""
    array = _array("edge_index", edge_index)
    if array.ndim != 2 or array.shape[0] != 2:
        raise FormatError(f"edge_index has shape {array.shape}; [2, edges] is needed")
    return array.T


def _data_parts(data: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the parts of a PyG ``Data``, and what is left out."""
    kind = type(data).__name__
    if not hasattr(data, "edge_index") or not hasattr(data, "x"):
        refuse_typed(f"a PyG {kind}", "their names are in the object", f"pass {ONE_TYPE}")
    if data.edge_index is None:
        raise ArgumentError(f"the PyG {kind} has no edge_index: convert adj_t to edge_index first")
    return data_parts(f"the {kind}", {name: data[name] for name in data.keys()})  # noqa: SIM118


def data_parts(name: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the parts of a graph by kind from the values of a PyG ``Data``, and notes of what is left out.

    Args:
        name: What messages call the graph.
        given: Tensors, arrays and other values by what ``Data`` calls them.

    Raises:
        ArgumentError: Two values give the same part.
    """
    given = {key: value for key, value in given.items() if value is not None}
    shape: Any = getattr(given.get("edge_attr"), "shape", ())
    taken: tuple[str, ...] = ()
    if "edge_weight" not in given and len(shape) and prod(shape) == shape[0]:
        if _may_be_weights(given["edge_attr"].reshape(-1)):
            given["edge_weight"] = given.pop("edge_attr").reshape(-1)
            taken = (f"edge_attr of {name} has one column, which is taken as edge weights (edge_weight)",)
        else:  # no weights
            given["edge_attr"] = given["edge_attr"].reshape(-1, 1)
    kinds = {key: _kind_in_data(key, given) for key in given}
    left = [str(key) for key, kind in kinds.items() if kind is None]
    notes = (f"parts of {name} that are not imported: {', '.join(left)}",) if left else ()
    return _named({kind: given[key] for key, kind in kinds.items() if kind is not None}), (*notes, *taken)


def _may_be_weights(values: Any) -> bool:
    """Tells whether no value is below 0 or not a number, ``bool((values >= 0).all())``, some at a time."""
    if getattr(values.dtype, "kind", "f") not in "fiub":
        return True  # what weights say of it
    starts = range(0, len(values), _VALUES_AT_A_TIME)
    return all(bool((values[at : at + _VALUES_AT_A_TIME] >= 0).all()) for at in starts)


def notes_of_splits(name: str, parts: Mapping[str, Any], split_index: int) -> tuple[str, ...]:
    """Notes which column is taken where masks have several, of parts as :func:`data_parts` gives them."""
    masks = [parts.get(split) for split in SPLITS]
    counts = {mask.shape[1] for mask in masks if isinstance(mask, np.ndarray) and mask.ndim == 2}
    return tuple(
        f"of the {count} splits in the masks of {name}, number {split_index} is taken (--split-index)"
        for count in sorted(counts)
    )


def _kind_in_data(key: str, given: Mapping[str, Any]) -> str | None:
    """Returns the part that ``Data`` calls ``key``: a name of :data:`KINDS`; None for what is no part of a graph."""
    if key in KINDS or key == "num_nodes":
        return key
    split = key.removesuffix("_idx")
    if split == key or KINDS.get(split) not in SPLITS or _has_split(given, split):
        return None
    return split


def _has_split(given: Mapping[str, Any], split: str) -> bool:
    """Tells whether a split is given in another way than by ``train_idx`` and the like."""
    return any(key in given for key, kind in KINDS.items() if kind == KINDS[split])


def part_of(kind: str, value: Any, split_index: int) -> Part:
    """Returns a part of a graph as what reads it; its name is ``kind``.

    Args:
        kind: What it is: ``edges``, ``features``, ``labels``, ``train``, ...
        value: An array, a tensor, a list, a matrix, a table, or for edges a pair of arrays.
        split_index: Which column of masks ``[N, splits]``.

    Raises:
        ArgumentError: It cannot be such a part, or has no such split.
        FormatError: It has not the type that it needs.
    """
    if hasattr(value, "tocsr"):
        return Part(kind, csr_of_scipy(kind, value))
    if kind in MATRICES and (matrix := _sparse_tensor(kind, value)) is not None:
        return Part(kind, matrix)
    if is_frame(value):
        return Part(kind, StreamTable(kind, value))
    if kind == "edges" and isinstance(value, tuple) and len(value) == 2:
        return Part(kind, _columns(kind, *(_array(kind, ends) for ends in value)))
    array = _array(kind, value)
    if kind == "labels" and array.dtype.kind in "OUS" and array.ndim == 1:
        return Part(kind, _table(kind, label=pa.array(array, from_pandas=True)))
    if kind == "edges" and array.dtype.kind in "OUS" and array.ndim == 2 and 2 in array.shape:
        pairs = array if array.shape[1] == 2 else array.T
        return Part(kind, _columns(kind, pairs[:, 0], pairs[:, 1]))
    if kind in SPLITS:
        array = _split(kind, array, split_index)
    return Part(kind, array)


def _sparse_tensor(kind: str, value: Any) -> Csr | None:
    """Returns the rows of a sparse tensor of torch, or of a ``torch_sparse.SparseTensor``; None: it is neither.

    Raises:
        ArgumentError: It has a form that is not read.
        FormatError: It is no matrix of numbers.
    """
    if type(value).__name__ == "SparseTensor" and hasattr(value, "csr"):
        pointers, columns, values = value.csr()
        shape = (value.size(0), value.size(1))
    elif not is_tensor(value) or str(value.layout) == "torch.strided":
        return None
    elif len(value.shape) != 2:
        raise FormatError(f"{kind} has shape {tuple(value.shape)}; a matrix is needed")
    elif str(value.layout) == "torch.sparse_coo" and value.sparse_dim() == 2:
        value = value.coalesce()
        rows, columns = (_array(kind, ends) for ends in value.indices())
        return csr_of_coo(kind, np.array(value.shape), rows, columns, _array(kind, value.values()))
    elif str(value.layout) in ("torch.sparse_csr", "torch.sparse_csc"):
        value = value.to_sparse_csr()
        pointers, columns, values, shape = (
            value.crow_indices(),
            value.col_indices(),
            value.values(),
            value.shape,
        )
    else:
        raise ArgumentError(f"{kind} is a sparse tensor ({value.layout}): pass {kind}.to_sparse_csr()")
    data = None if values is None else _array(kind, values)
    return Csr(kind, np.array(shape), _array(kind, pointers), _array(kind, columns), data)


def _columns(kind: str, source: np.ndarray, target: np.ndarray) -> StreamTable:
    return _table(kind, src=pa.array(source), dst=pa.array(target))


def _table(kind: str, **columns: pa.Array) -> StreamTable:
    with arrow_errors(lambda error: FormatError(f"{kind} cannot be read: {error}"), ValueError):
        return StreamTable(kind, pa.table(columns))


def _split(kind: str, array: np.ndarray, split_index: int) -> np.ndarray:
    """Returns ids or a mask, of one of several splits where there are several."""
    if array.ndim == 2 and array.dtype == np.bool_:
        if split_index >= array.shape[1]:
            raise ArgumentError(f"{kind} has {array.shape[1]} splits, number {split_index} was asked for")
        return array[:, split_index]
    return array if array.size else array.astype(np.int64)


def _array(kind: str, value: Any) -> np.ndarray:
    """Returns a NumPy array of a tensor, series, Arrow array or list; without a copy where that is possible."""
    if is_tensor(value):
        if str(value.layout) != "torch.strided":
            raise ArgumentError(
                f"{kind} is a sparse tensor ({value.layout}): pass it dense, or edges as tensor.coalesce().indices()"
            )
        if str(value.dtype) == "torch.bfloat16":
            raise ArgumentError(
                f"{kind} is bfloat16, which NumPy does not know: pass {kind}.view(torch.uint16) and "
                f"ImportConfig(bfloat16_bits=True), or {kind}.float()"
            )
        return host_array(value)
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return (
            value.to_numpy() if isinstance(value, pa.ChunkedArray) else value.to_numpy(zero_copy_only=False)
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise FormatError(f"{kind} is no array: {error}") from None
    if array.ndim == 0:
        raise ArgumentError(
            f"a {type(value).__module__}.{type(value).__name__} cannot be imported as {kind}: pass a PyG Data, a SciPy "
            "matrix, a NetworkX graph, a table, an array, or a dict with 'edges', 'features', 'labels', 'train', ..."
        )
    return array
