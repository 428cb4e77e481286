"""Batches of graphs with types as torch_geometric's ``HeteroData``: a store for each type of nodes and of edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from outcrop.nn.convs import HeteroData
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.store.graph_types import NodeType, RowFile
from outcrop.store.minibatch import MiniBatch, as_tensor


def to_hetero(
    batch: MiniBatch, graph: Graph, *, number: int | None = None, input_id: np.ndarray | None = None
) -> HeteroData:
    """Returns the batch in the form that NeighborLoader gives to ``HeteroData``; rows are shared, not copied.

    Args:
        graph: The graph that the batch is of, which names the types.
        number: Which batch of its epoch it is.
        input_id: int64 [num_seeds], positions of the seeds in what the loader goes over.

    Returns:
        Node types have n_id int64 [n], num_sampled_nodes as a list per hop, and x [n, D] where they have features; that
        of the seeds has batch_size, and y where it has labels. Edge types, called (source, relation, target), have
        edge_index int64 [2, e] (source, target), num_sampled_edges as a list per hop, edge_attr [e, D] where they have
        features, edge_weight where they have weights, and e_id int64 [e] where it is known: positions within the type,
        which are the rows of its features. Features of edges are there where the batch was loaded with them. Types of
        which a batch has nothing are there, empty. Untrimmed batches have no lists per hop. Link prediction adds to the
        type of the edges to be predicted edge_label_index int64 [2, L] (local), edge_label float32 [L] and input_id;
        the types of their ends have no y then, and no batch_size.
    """
    data, structure = HeteroData(), batch.graph
    for of, nodes in zip(graph.node_types, structure.nodes, strict=True):
        store = data[of.name]
        store.n_id = as_tensor(nodes.ids.copy(), batch.device)
        if not structure.untrimmed:
            store.num_sampled_nodes = list(nodes.per_hop)
    _add_edges(data, batch, graph)
    for place, (file, rows) in enumerate(zip(files_of(batch, graph), batch.rows, strict=True)):
        of = file.owner
        if isinstance(of, NodeType):
            data[of.name].x = rows
        else:
            data[of.key].edge_attr = batch.edge_rows(of.number, place)
    if structure.edge_label_index is not None:
        _add_links(data[graph.edge_types[structure.edge_label_type].key], batch)
    else:
        of = graph.node_types[structure.seed_type]
        seeds = data[of.name]
        seeds.batch_size = structure.num_seeds
        if graph.has(of.array("labels")) or bool((structure.labels >= 0).any()):
            seeds.y = batch.y
        if input_id is not None:
            seeds.input_id = as_tensor(input_id, batch.device)
    if number is not None:
        data.number = number
    return data


def _add_links(store: Any, batch: MiniBatch) -> None:
    structure = batch.graph
    assert structure.edge_label_index is not None
    assert structure.edge_label is not None
    store.edge_label_index = as_tensor(structure.edge_label_index.astype(np.int64), batch.device)
    store.edge_label = as_tensor(structure.edge_label.copy(), batch.device)
    if structure.edge_input_id is not None:
        store.input_id = as_tensor(structure.edge_input_id, batch.device)


def files_of(batch: MiniBatch, graph: Graph) -> tuple[RowFile, ...]:
    """Returns the row files that the rows of ``batch`` are of: those of edges may not have been asked for."""
    return graph.with_edge_rows(len(batch.rows) == len(graph.row_files)).row_files


def _add_edges(data: HeteroData, batch: MiniBatch, graph: Graph) -> None:
    structure: BatchGraph = batch.graph
    for of, edges in zip(graph.edge_types, structure.edges, strict=True):
        store: Any = data[of.key]
        store.edge_index = torch.from_numpy(edges.edge_index()).to(batch.device)
        if edges.positions is not None:
            store.e_id = as_tensor(edges.positions, batch.device)
        if edges.weight is not None:
            store.edge_weight = as_tensor(edges.weight, batch.device)
        if not structure.untrimmed:
            store.num_sampled_edges = list(edges.per_hop)
