"""Edges to be predicted as torch_geometric's LinkNeighborLoader takes and gives them: indices, labels, negatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch_geometric.sampler import NegativeSampling

from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError
from outcrop.sampling.link_seeds import ChosenEdges
from outcrop.store.graph import Graph, split_name
from outcrop.store.graph_types import EdgeType, NodeType
from outcrop.store.host_array import host_array

_HOME = "edge_label_index"


@dataclass(frozen=True)
class Negatives:
    """Says which negative edges are drawn.

    Attributes:
        mode: As of :class:`outcrop.SampleConfig`; None: none are.
        amount: How many there are for each positive edge.
    """

    mode: Literal["binary", "triplet"] | None = None
    amount: float = 0.0

    @classmethod
    def of(cls, neg_sampling: Any, neg_sampling_ratio: float | None) -> Negatives:
        """Understands ``neg_sampling``: a mode, ``{"mode": .., "amount": ..}``, or torch_geometric's NegativeSampling.

        Raises:
            ArgumentError: It is none of these, or weighs nodes.
        """
        if neg_sampling_ratio:
            neg_sampling = {"mode": "binary", "amount": neg_sampling_ratio}
        if neg_sampling is None:
            return cls()
        try:
            given = (
                NegativeSampling(**neg_sampling)
                if isinstance(neg_sampling, Mapping)
                else NegativeSampling.cast(neg_sampling)
            )
            mode = given.mode.value
        except (AttributeError, TypeError, ValueError) as error:
            raise ArgumentError(
                f"neg_sampling {neg_sampling!r} is not understood ({error}): give 'binary', 'triplet' or "
                "{'mode': 'binary', 'amount': 2.0}"
            ) from None
        if given.src_weight is not None or given.dst_weight is not None:
            raise ArgumentError("negative nodes are drawn uniformly: leave src_weight and dst_weight out")
        return cls(mode, float(given.amount))


def chosen_edges(graph: Graph, edge_label_index: Any) -> tuple[Graph, ChosenEdges]:
    """Understands ``edge_label_index``, as :class:`outcrop.pyg.LinkNeighborLoader` describes it.

    Returns:
        The graph for batches that begin with ends of the edges, and the edges.

    Raises:
        ArgumentError: No edges, a type that the graph has not, or ids that it has not.
    """
    of, index = _type_and_index(graph, edge_label_index)
    graph = graph.with_seeds(of.target.name) if graph.is_typed else graph
    if index is None:
        if not of.num_edges:
            raise ArgumentError(f"{graph.path} has no edges to predict: pass {_HOME}")
        return graph, ChosenEdges(of, of.num_edges)
    if isinstance(index, str):
        split = _listed(graph, index)
        count = graph.spec(f"{split}_edges").shape[0]
        if not count:
            raise ArgumentError(f"the {split}_edges of {graph.path} are none: pass edges [2, n]")
        return graph, ChosenEdges(of, count, listed=split)
    array = _as_edges(index)
    for ids, end, what in zip(array, (of.source, of.target), ("sources", "targets"), strict=True):
        _require_nodes(ids, end, what)
    return graph, ChosenEdges(of, array.shape[1], array)


def _as_edges(given: Any) -> np.ndarray:
    try:
        array = host_array(given)
        if array.ndim == 2 and len(array) == 2 and array.dtype.kind in "iu" and array.shape[1]:
            return array
        what = f"is {array.dtype} of shape {list(array.shape)}, which are no edges"
    except (TypeError, ValueError) as error:
        what = f"is no array ({error})"
    raise ArgumentError(f"{_HOME} {what}: give integers [2, n], sources and targets, of one edge at least")


def _type_and_index(graph: Graph, given: Any) -> tuple[EdgeType, Any]:
    """Returns the edge type, and edges of it: None for all, the name of a split, or what a caller gave."""
    if not graph.is_typed:
        if isinstance(given, tuple):
            raise ArgumentError(f"{_HOME} is a tuple, and {graph.path} has no types: give edges [2, n] alone")
        return graph.edge_types[0], given
    key, index = given, None
    if isinstance(given, tuple | list) and len(given) == 2:
        key, index = given
    key = key.split(" ") if isinstance(key, str) else key
    if not isinstance(key, tuple | list) or len(key) != 3 or not all(isinstance(one, str) for one in key):
        names = ", ".join(repr(one.key) for one in graph.edge_types[:3])
        raise ArgumentError(
            f"{_HOME}: {graph.path} has types of edges: give (edge type, edges [2, n]), or an edge type alone for all "
            f"of its edges, such as {names}"
        )
    return graph.edge_type((key[0], key[1], key[2])), index


def _listed(graph: Graph, split: str) -> str:
    """Returns the name of a split that the graph lists edges for."""
    split = split_name(split)
    if graph.is_typed:
        raise ArgumentError(
            f"{_HOME}: {graph.path} has types of edges and lists none to be predicted: give edges [2, n] in place of "
            f"{split!r}"
        )
    if split not in SPLITS or not graph.has(f"{split}_edges"):
        known = [one for one in SPLITS if graph.has(f"{one}_edges")]
        has = f"it has {', '.join(known)}" if known else "it has none: pass edges [2, n]"
        raise ArgumentError(f"{graph.path} has no edges to be predicted called {split!r}; {has}")
    return split


def _require_nodes(ids: np.ndarray, end: NodeType, what: str) -> None:
    if len(ids) and not 0 <= ids.min() <= ids.max() < end.num_nodes:
        wrong = ids[(ids < 0) | (ids >= end.num_nodes)]
        raise ArgumentError(
            f"{_HOME}: {wrong.size} {what}, the first {wrong.reshape(-1)[0]}, are not in 0 to {end.num_nodes - 1}: "
            "leave them out"
        )


class LinkLabels:
    """Gives batches the labels of edges as LinkNeighborLoader does.

    Without negatives ``edge_label`` is what was given, or absent. With binary ones it is followed by zeros, and given
    labels that begin at 0 move up by one; without given ones positive edges have 1.0. Triplets have ``src_index`` [n],
    ``dst_pos_index`` [n] and ``dst_neg_index`` [n] or [n, amount] in place of ``edge_label_index`` and ``edge_label``.
    ``y`` and ``batch_size``, which are of nodes, go.

    Args:
        labels: Of the edges that are given, [n] or [n, columns]; None: they have none.
    """

    def __init__(self, edges: ChosenEdges, labels: Any, negatives: Negatives):
        self._key, self._mode = edges.edge_type.key, negatives.mode
        self._labels: torch.Tensor | None = None
        if labels is None:
            return
        if self._mode == "triplet":
            raise ArgumentError("edge_label and triplets cannot both be had: leave edge_label out")
        try:
            found = torch.as_tensor(labels)
            least = float(found.min()) if found.numel() else None
        except (TypeError, ValueError, RuntimeError) as error:
            raise ArgumentError(f"edge_label is no array of numbers: {error}") from None
        if not found.ndim or len(found) != len(edges) or least is None:
            raise ArgumentError(
                f"edge_label is {found.dtype} of shape {list(found.shape)}, there are {len(edges)} edges: give a "
                "label for each"
            )
        self._labels = found
        self._moved = self._mode == "binary" and least == 0.0

    def __call__(self, batch: Any) -> Any:
        """Changes ``batch``, Data or HeteroData, in place, and returns it."""
        typed = self._key != ("", "", "")
        store = batch[self._key] if typed else batch
        count = len(store.input_id)
        if not typed:  # as with types: neither is about edges
            del batch.y, batch.batch_size
        if self._mode == "triplet":
            index = store.edge_label_index
            del store.edge_label_index, store.edge_label
            source, target = (batch[self._key[0]], batch[self._key[2]]) if typed else (batch, batch)
            source.src_index, target.dst_pos_index = index[:, :count]
            target.dst_neg_index = index[1, count:].view(count, -1).squeeze(-1)
        elif self._labels is not None:
            positive = self._labels[store.input_id.to(self._labels.device)]
            positive = positive + 1 if self._moved else positive
            negative = positive.new_zeros((len(store.edge_label) - count, *positive.shape[1:]))
            store.edge_label = torch.cat([positive, negative]).to(store.edge_label_index.device)
        elif self._mode is None:
            del store.edge_label
        return batch
