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
            mask = np.zeros(self.graph.num_nodes, bool)
            mask[self.graph.split(runtime, _split(name))] = True
            return mask

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


class DiskData:
    """Offers a graph on disk under the names that scripts for torch_geometric's ``Data`` ask for, rows and edges left
    there.

    Attributes:
        y: Labels, as torch_geometric has them; in memory.
        train_mask, val_mask, test_mask: bool [N], in memory; only those that the graph has.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self._tables = DiskFeatureStore(graph)

    def __getattr__(self, name: str) -> Any:
        if name == "y" or name.endswith("_mask"):
            try:
                return self._tables.get_tensor(group_name=None, attr_name=name, index=None)
            except KeyError as error:
                raise AttributeError(str(error)) from None
        raise AttributeError(
            f"a graph on disk has no {name!r}: batches of outcrop.pyg.NeighborLoader have it"
        )

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

    def __repr__(self) -> str:
        return f"DiskData({self.graph!r})"


def open_data(path: str | Path) -> DiskData:
    """Opens the graph at ``path`` in place of a ``Data`` object.

    Raises:
        FormatError: There is none.
    """
    return DiskData(open_graph(path))
