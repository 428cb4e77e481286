"""A graph on disk as torch_geometric's FeatureStore and GraphStore, for samplers and loaders of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError
from outcrop.nn.convs import EdgeAttr, EdgeLayout, FeatureStore, GraphStore, TensorAttr
from outcrop.runtime.runtime import Runtime
from outcrop.store.decode import decode
from outcrop.store.graph import Graph, open_graph, split_name
from outcrop.store.graph_types import NodeType

_NAMES = {"x": "features", "y": "labels"}


def stores(graph: Graph | str | Path) -> tuple[DiskFeatureStore, DiskGraphStore]:
    """Returns the pair that loaders of torch_geometric take as ``data``.

    Slower than :class:`outcrop.pyg.NeighborLoader` and without a memory budget: rows are read through the system's page
    cache one by one, and a sampler of torch_geometric takes the whole topology into memory.
    """
    graph = graph if isinstance(graph, Graph) else open_graph(graph)
    return DiskFeatureStore(graph), DiskGraphStore(graph)


class DiskFeatureStore(FeatureStore):
    """Has features ``x`` [N, D], labels ``y``, and the splits as ``train_mask``, ``val_mask``, ``test_mask`` bool [N].

    Read only. Each is a :class:`torch_geometric.data.TensorAttr` without a group name. Rows are read when they are
    asked for, as ``x[index]``, through the page cache: slower than Outcrop's loaders, and not compared with their
    checksums (``outcrop verify`` does that).
    """

    def __init__(self, graph: Graph):
        super().__init__()
        graph.require_one_type("what torch_geometric calls a feature store or a graph store")
        self.graph = graph

    def _get_tensor(self, attr: TensorAttr) -> torch.Tensor:
        table = self._table(str(attr.attr_name))
        if table is None or attr.group_name is not None:
            raise KeyError(f"{self.graph.path} has no tensor for {attr}; it has {', '.join(self._names())}")
        index = attr.index
        if index is None:
            index = slice(None)
        elif isinstance(index, torch.Tensor):
            index = index.cpu().numpy()
        if attr.attr_name == "x" and (decoder := self.graph.row_file.decoder) is not None:
            chosen = np.array(table[index])
            found = decode(decoder, torch.from_numpy(np.atleast_2d(chosen)))
            return found[0] if chosen.ndim == 1 else found
        rows = torch.from_numpy(np.array(table[index]))
        bfloat16 = attr.attr_name == "x" and self.graph.row_file.spec.dtype == "bfloat16"
        return rows.view(torch.bfloat16) if bfloat16 else rows

    def _table(self, name: str) -> np.ndarray | None:
        if name not in self._names():
            return None
        with Runtime() as runtime:
            if name in _NAMES:
                return self.graph.array(runtime, _NAMES[name]).memmap()
            return _mask(self.graph, self.graph.node_types[0], _split(name), runtime)

    def _names(self) -> list[str]:
        tables = [name for name, array in _NAMES.items() if self.graph.has(array)]
        return tables + [f"{'val' if s == 'valid' else s}_mask" for s in SPLITS if self.graph.has(s)]

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        table = self._table(str(attr.attr_name))
        if table is None or attr.group_name is not None:
            return None
        if attr.attr_name == "x" and attr.index is None:
            return self.graph.num_nodes, self.graph.feature_dim
        return table.shape if attr.index is None else tuple(self._get_tensor(attr).shape)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        return [TensorAttr(group_name=None, attr_name=name) for name in self._names()]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> NoReturn:
        raise ArgumentError(f"{self.graph.path} cannot be changed: import a graph with other features")

    def _remove_tensor(self, attr: TensorAttr) -> NoReturn:
        raise ArgumentError(f"{self.graph.path} cannot be changed: import a graph with other features")

    def __len__(self) -> int:
        return len(self._names())


class DiskGraphStore(GraphStore):
    """Offers the one edge type of a graph in the layouts ``coo`` and ``csc``; torch_geometric converts to ``csr``.

    Read only. Edges are by target, then by source: ``coo`` is ``graph.edge_index()`` (sorted by column), ``csc`` is
    (row, colptr). All of it is read into memory.
    """

    def __init__(self, graph: Graph):
        super().__init__()
        graph.require_one_type("what torch_geometric calls a feature store or a graph store")
        self.graph = graph

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[torch.Tensor, torch.Tensor] | None:
        if edge_attr.edge_type is not None:
            return None
        if edge_attr.layout == EdgeLayout.COO:
            row, col = torch.from_numpy(self.graph.edge_index())
            return row, col
        if edge_attr.layout != EdgeLayout.CSC:
            return None
        with Runtime() as runtime:
            names = ("indices", "indptr")
            row, colptr = (self.graph.array(runtime, name).read("edge-index") for name in names)
        return torch.from_numpy(row.astype(np.int64)), torch.from_numpy(colptr.astype(np.int64))

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        size = (self.graph.num_nodes, self.graph.num_nodes)
        layouts = (EdgeLayout.CSC, EdgeLayout.COO)
        attrs: list[Any] = [
            EdgeAttr.cast(edge_type=None, layout=layout, is_sorted=True, size=size) for layout in layouts
        ]
        return attrs

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> NoReturn:
        raise ArgumentError(f"{self.graph.path} cannot be changed: import a graph with other edges")

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> NoReturn:
        raise ArgumentError(f"{self.graph.path} cannot be changed: import a graph with other edges")


def _split(mask: str) -> str:
    return split_name(mask.removesuffix("_mask"))


def _mask(graph: Graph, of: NodeType, split: str, runtime: Runtime) -> np.ndarray:
    """Returns bool [num_nodes]: whether nodes of a type are in a split that it has."""
    mask = np.zeros(of.num_nodes, bool)
    mask[graph.array(runtime, of.array(split)).read(f"split-{split}")] = True
    return mask


class DiskData:
    """Offers a graph on disk under the names that scripts for torch_geometric's ``Data`` ask for, rows and edges left
    there. Read only.

    Attributes:
        y: Labels, as torch_geometric has them; in memory.
        train_mask, val_mask, test_mask: bool [N], in memory; only those that the graph has.
    """

    graph: Graph

    def __init__(self, graph: Graph):
        self.__dict__.update(graph=graph, _tables=DiskFeatureStore(graph))

    def __getattr__(self, name: str) -> Any:
        if name == "y" or name.endswith("_mask"):
            try:
                return self._tables.get_tensor(group_name=None, attr_name=name, index=None)
            except KeyError as error:
                raise AttributeError(str(error)) from None
        raise AttributeError(_what_has(name))

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(_not_to_be_set(name))

    @property
    def num_nodes(self) -> int:
        return self.graph.num_nodes

    @property
    def num_edges(self) -> int:
        return self.graph.num_edges

    @property
    def num_features(self) -> int:
        return self.graph.feature_dim

    @property
    def num_node_features(self) -> int:
        return self.graph.feature_dim

    @property
    def num_edge_features(self) -> int:
        """Returns the width of the features of edges; 0 where they have none."""
        files = [
            file for file in self.graph.with_edge_rows(True).row_files if not isinstance(file.owner, NodeType)
        ]
        return sum(file.width for file in files)

    @property
    def num_classes(self) -> int:
        return self.graph.num_classes

    def __getitem__(self, name: str) -> Any:
        return _item(self, name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and hasattr(self, name)

    __iter__ = None  # there is nothing to go through

    def __repr__(self) -> str:
        return f"DiskData({self.graph!r})"


class DiskNodes:
    """Offers the nodes of one type of a :class:`DiskHeteroData`. Read only.

    Attributes:
        y: Labels; in memory.
        train_mask, val_mask, test_mask: bool [num_nodes], in memory; only those that the nodes have.
    """

    _graph: Graph
    _of: NodeType

    def __init__(self, graph: Graph, of: NodeType):
        self.__dict__.update(_graph=graph, _of=of)

    def __getattr__(self, name: str) -> Any:
        split = _split(name) if name.endswith("_mask") else None
        if name != "y" and split not in SPLITS:  # also what copying asks for before there is anything
            raise AttributeError(_what_has(name))
        graph, of = self._graph, self._of
        array = of.array("labels" if split is None else split)
        if not graph.has(array):
            raise AttributeError(f"nodes {of.name!r} of {graph.path} have no {name}")
        with Runtime() as runtime:
            if split is None:
                return torch.from_numpy(np.array(graph.array(runtime, array).memmap()))
            return torch.from_numpy(_mask(graph, of, split, runtime))

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(_not_to_be_set(name))

    @property
    def num_nodes(self) -> int:
        return self._of.num_nodes

    @property
    def num_classes(self) -> int:
        return self._of.num_classes

    @property
    def num_features(self) -> int:
        """Returns the width of the features; 0 where the nodes have none."""
        array = self._of.array("features")
        return self._graph.spec(array).shape[1] if self._graph.has(array) else 0

    num_node_features = num_features

    def __getitem__(self, name: str) -> Any:
        return _item(self, name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and hasattr(self, name)

    __iter__ = None  # there is nothing to go through

    def __repr__(self) -> str:
        return f"DiskNodes({self._of.name!r}, num_nodes={self.num_nodes})"


class DiskHeteroData:
    """Offers a graph with types on disk under the names that scripts for torch_geometric's ``HeteroData`` ask for:
    ``data["paper"].train_mask``, ``data.metadata()``. Read only.
    """

    graph: Graph

    def __init__(self, graph: Graph):
        self.__dict__["graph"] = graph

    @property
    def node_types(self) -> list[str]:
        return [of.name for of in self.graph.node_types]

    @property
    def edge_types(self) -> list[tuple[str, str, str]]:
        return [of.key for of in self.graph.edge_types]

    def metadata(self) -> tuple[list[str], list[tuple[str, str, str]]]:
        """Returns names of node types and keys of edge types, as ``to_hetero`` takes them."""
        return self.node_types, self.edge_types

    @property
    def num_nodes(self) -> int:
        return self.graph.num_nodes

    @property
    def num_edges(self) -> int:
        return self.graph.num_edges

    @property
    def num_features(self) -> dict[str, int]:
        """Returns the width of the features of each node type, as torch_geometric does."""
        return {of.name: DiskNodes(self.graph, of).num_features for of in self.graph.node_types}

    num_node_features = num_features

    @property
    def num_edge_features(self) -> dict[tuple[str, str, str], int]:
        """Returns the width of the features of each edge type; 0 where it has none."""
        files = self.graph.with_edge_rows(True).row_files
        found = {file.owner.key: file.width for file in files if not isinstance(file.owner, NodeType)}
        return {of.key: found.get(of.key, 0) for of in self.graph.edge_types}

    def __getitem__(self, node_type: str) -> DiskNodes:
        for of in self.graph.node_types:
            if of.name == node_type:
                return DiskNodes(self.graph, of)
        raise KeyError(
            f"{node_type!r} is no node type of {self.graph.path}; known: {', '.join(self.node_types)}; edges stay on "
            "disk, batches have them"
        )

    def __contains__(self, node_type: object) -> bool:
        return node_type in self.node_types

    __iter__ = None  # there is nothing to go through: node_types has the names

    def __setitem__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(_not_to_be_set(name))

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{_what_has(name)}; nodes of a type are data[NAME]")

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(_not_to_be_set(name))

    def __repr__(self) -> str:
        return f"DiskHeteroData({self.graph!r})"


_IN_BATCHES = ("x", "edge_index", "edge_attr", "edge_weight", "n_id", "e_id", "input_id", "batch_size")


def _item(data: DiskData | DiskNodes, name: str) -> Any:
    try:
        return getattr(data, name)
    except AttributeError as error:
        raise KeyError(str(error)) from None


def _what_has(name: str) -> str:
    """Says where else a script finds what a graph on disk does not have."""
    where = (
        "batches of outcrop.pyg.NeighborLoader have it"
        if name in _IN_BATCHES
        else "what belongs to nodes and was not imported can be a tensor of yours, of which a batch wants the rows n_id"
    )
    return f"a graph on disk has no {name!r}: {where}"


def _not_to_be_set(name: str) -> str:
    return (
        f"a graph on disk cannot be changed, and batches would not have this {name!r}: import a graph with it, or take "
        "the rows batch.n_id of a tensor of yours"
    )


def graph_of(data: Any) -> Graph:
    """Returns the graph on disk that ``data`` is or names.

    Raises:
        ArgumentError: It is neither a graph nor a path.
        FormatError: No graph is there.
    """
    if isinstance(data, Graph):
        return data
    if isinstance(data, str | Path):
        return open_graph(data)
    raise ArgumentError(
        f"a {type(data).__name__} is no graph on disk: import it once with outcrop.import_graph and pass the folder"
    )


def open_data(path: str | Path | Graph) -> DiskData | DiskHeteroData:
    """Opens the graph at ``path`` in place of a ``Data`` object, or of a ``HeteroData`` where it has types.

    Raises:
        ArgumentError: ``path`` is none, but an object in memory, for example.
        FormatError: No graph is there.
    """
    graph = graph_of(path)
    return DiskHeteroData(graph) if graph.is_typed else DiskData(graph)
