"""Batches as torch_geometric's ``Data``, for models and loops that are written for NeighborLoader."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from outcrop.store.minibatch import MiniBatch


def to_pyg(batch: MiniBatch, *, number: int | None = None, input_id: np.ndarray | None = None) -> Data:
    """The batch in NeighborLoader's form; ``x`` is shared, not copied.

    Args:
        number: Which batch of its epoch it is.
        input_id: int64 [num_seeds], positions of the seeds in what the loader goes over.

    Returns:
        ``Data`` with x [num_nodes, D], edge_index int64 [2, num_edges] (source, target), y int64 [num_seeds], n_id
        int64 [num_nodes], batch_size, and num_sampled_nodes and num_sampled_edges as lists per hop, with which
        ``trim_to_layer`` and torch_geometric's models (``num_sampled_nodes_per_hop=``) work. Whole batches (ShaDow)
        have no such lists, because nothing may be trimmed. Link prediction adds edge_label_index int64 [2, L] (local)
        and edge_label float32 [L], as LinkNeighborLoader does.
    """
    graph, device = batch.graph, batch.x.device
    optional: dict[str, Any] = {}
    if number is not None:
        optional["number"] = number
    if graph.edge_weight is not None:
        optional["edge_weight"] = torch.from_numpy(graph.edge_weight).to(device)
    if graph.edge_ids is not None:
        optional["e_id"] = torch.from_numpy(graph.edge_ids).to(device)
    if input_id is not None:
        optional["input_id"] = torch.from_numpy(input_id).to(device)
    if not graph.whole:
        optional["num_sampled_nodes"] = list(graph.nodes_per_hop)
        optional["num_sampled_edges"] = list(graph.edges_per_hop)
    if graph.edge_label is not None and graph.edge_label_index is not None:
        optional["edge_label_index"] = torch.from_numpy(graph.edge_label_index.astype("int64")).to(device)
        optional["edge_label"] = torch.from_numpy(graph.edge_label.copy()).to(device)
    return Data(
        x=batch.x,
        edge_index=torch.from_numpy(graph.edge_index()).to(device),
        y=batch.y,
        n_id=torch.from_numpy(graph.n_id.copy()).to(device),
        batch_size=graph.num_seeds,
        **optional,
    )
