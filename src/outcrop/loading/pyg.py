"""Batches as torch_geometric's ``Data`` or ``HeteroData``, for models and loops that are written for NeighborLoader."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import torch

from outcrop.loading.hetero import files_of, to_hetero
from outcrop.loading.input_ids import InputIds
from outcrop.nn.convs import Data, HeteroData
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.store.minibatch import MiniBatch

_NAMES = ("n_id", "edge_weight", "e_id")
_KEPT = ("input_id", "edge_label_index", "edge_label")  # about as long as the seeds: loops may keep them


@overload
def to_pyg(batch: MiniBatch, *, number: int | None = None, input_id: np.ndarray | None = None) -> Data: ...


@overload
def to_pyg(
    batch: MiniBatch, graph: Graph, *, number: int | None = None, input_id: np.ndarray | None = None
) -> Data | HeteroData: ...


def to_pyg(
    batch: MiniBatch,
    graph: Graph | None = None,
    *,
    number: int | None = None,
    input_id: np.ndarray | None = None,
) -> Data | HeteroData:
    """Returns the batch in NeighborLoader's form; ``x`` is shared, not copied.

    Args:
        graph: The graph that the batch is of; a batch of a graph with types is nothing without it.
        number: Which batch of its epoch it is.
        input_id: int64 [num_seeds], positions of the seeds in what the loader goes over.

    Returns:
        ``Data`` with x [num_nodes, D], edge_index int64 [2, num_edges] (source, target), y int64 [num_seeds]
        where the graph has labels, n_id int64 [num_nodes], batch_size, edge_attr [num_edges, D] where features of edges
        were asked for, and
        num_sampled_nodes and num_sampled_edges as lists per hop, with which ``trim_to_layer`` and torch_geometric's
        models (``num_sampled_nodes_per_hop=``) work. Whole batches (ShaDow) have no such lists, because nothing may be
        trimmed. Link prediction adds edge_label_index int64 [2, L] (local) and edge_label float32 [L], as
        LinkNeighborLoader does. Of a graph with types: ``HeteroData``, as :func:`outcrop.loading.hetero.to_hetero`
        says.
    """
    if graph is not None and graph.is_typed:
        return to_hetero(batch, graph, number=number, input_id=input_id)
    structure, arrays = batch.graph, batch.arrays
    optional: dict[str, Any] = {
        name: batch.edge_rows(0, place) if name == "edge_attr" else batch.rows[place]
        for place, name in enumerate(_rows_named(batch, graph))
    }
    if number is not None:
        optional["number"] = number
    device = batch.device
    if "n_id" in arrays:  # then all of pyg_arrays() came with the rows
        optional |= {name: array for name, array in arrays.items() if name in _NAMES}
        optional |= {name: array.clone() for name, array in arrays.items() if name in _KEPT}
    else:
        optional |= {
            name: torch.from_numpy(array).to(device) for name, array in pyg_arrays(structure).items()
        }
    if input_id is not None and "input_id" not in optional:
        optional["input_id"] = torch.from_numpy(input_id).to(device)
    if not structure.untrimmed:
        optional["num_sampled_nodes"] = list(structure.nodes_per_hop)
        optional["num_sampled_edges"] = list(structure.edges_per_hop)
    if graph is None or graph.has("labels") or bool((structure.labels >= 0).any()):
        optional["y"] = batch.y
    return Data(edge_index=batch.edge_index, batch_size=structure.num_seeds, **optional)


def _rows_named(batch: MiniBatch, graph: Graph | None) -> list[str]:
    """Returns what the rows of a batch are called in ``Data``, row file by row file."""
    names = {"nodes": "x", "edges": "edge_attr"}
    if graph is None:
        return list(names.values())[: len(batch.rows)]
    return [names[rows.kind] for rows in files_of(batch, graph)]


def pyg_arrays(graph: BatchGraph, input_ids: InputIds | None = None) -> dict[str, np.ndarray]:
    """Returns what of ``graph`` is in ``Data`` as it is: copies, or arrays that nobody else changes."""
    found: dict[str, np.ndarray] = {"n_id": graph.n_id.copy()}
    if graph.edge_weight is not None:
        found["edge_weight"] = graph.edge_weight
    if graph.edge_ids is not None:
        found["e_id"] = graph.edge_ids
    if graph.edge_label is not None and graph.edge_label_index is not None:
        found["edge_label_index"] = graph.edge_label_index.astype("int64")
        found["edge_label"] = graph.edge_label.copy()
    if graph.edge_input_id is not None:
        found["input_id"] = graph.edge_input_id
    elif input_ids is not None:
        found["input_id"] = input_ids.of(graph)
    return found
