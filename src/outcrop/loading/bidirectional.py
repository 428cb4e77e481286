"""Batches whose edges go both ways: what NeighborLoader gives for ``subgraph_type="bidirectional"``."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch_geometric.sampler import HeteroSamplerOutput
from torch_geometric.utils import coalesce

from outcrop.errors import OutcropWarning
from outcrop.nn.convs import HeteroData

_OF_EDGES = ("e_id", "edge_weight", "edge_attr")


def both_ways(batch: Any) -> Any:
    """Adds to each sampled edge of ``batch`` the edge that leads back; no edge is there twice.

    Edges come ordered by target, then source: ``coalesce(cat([edge_index, edge_index.flip(0)], 1),
    sort_by_row=False)``. An edge that leads back has what belongs to the edge that was drawn (``e_id``,
    ``edge_weight``, ``edge_attr``); one that was drawn itself keeps its own. ``num_sampled_nodes`` and
    ``num_sampled_edges`` go, since nothing may be trimmed from such a batch.

    Of a graph with types an edge leads back in the type ``(target, rev_relation, source)`` where there is one, else in
    the only type from target to source; within a node type it may be the same type. What belongs to edges is left out
    there, because two types have other numbers. Source: ``HeteroSamplerOutput.to_bidirectional`` of torch_geometric.

    Args:
        batch: ``Data`` or ``HeteroData``, changed in place and returned.
    """
    if isinstance(batch, HeteroData):
        return _of_types(batch)
    drawn = batch.edge_index.shape[1]
    both = torch.cat([batch.edge_index, batch.edge_index.flip(0)], 1)
    numbers = torch.arange(2 * drawn, device=both.device)
    batch.edge_index, first = coalesce(
        both, numbers, num_nodes=batch.num_nodes, reduce="min", sort_by_row=False
    )
    for name in _OF_EDGES:
        if name in batch:
            batch[name] = batch[name][first % max(drawn, 1)]
    _trim_nothing(batch)
    return batch


def _of_types(batch: HeteroData) -> HeteroData:
    edges: dict[Any, torch.Tensor] = {key: batch[key].edge_index for key in batch.edge_types}
    drawn = HeteroSamplerOutput(
        node={},
        row={key: index[0] for key, index in edges.items()},
        col={key: index[1] for key, index in edges.items()},
        edge={key: index[0] for key, index in edges.items()},  # None afterwards for types that were changed
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made = drawn.to_bidirectional()
    for warning in told:
        warnings.warn(f"{warning.message}: its edges stay as they were drawn", OutcropWarning, stacklevel=4)
    rows: Any = made.row
    cols: Any = made.col
    still: Any = made.edge
    for key in edges:
        store: Any = batch[key]
        store.edge_index = torch.stack([rows[key], cols[key]])
        for name in _OF_EDGES:
            if still[key] is None and name in store:
                del store[name]
    for store in batch.stores:
        _trim_nothing(store)
    return batch


def _trim_nothing(store: Any) -> None:
    for name in ("num_sampled_nodes", "num_sampled_edges"):
        if name in store:
            del store[name]
