"""Mini-batches from elsewhere: torch_geometric's loaders, or any iterable of objects like them, as :class:`BatchGraph`.

A batch has ``n_id`` [n], ``edge_index`` [2, E] (source, target; local) and ``batch_size`` (the first nodes are the
seeds); optional are ``num_sampled_nodes`` and ``num_sampled_edges`` per hop, ``y`` (of the seeds, or of all nodes),
``edge_label_index`` [2, L] and ``edge_label`` [L] (local). They are attributes, or entries of a dict. Arrays may be
torch tensors or anything NumPy understands.

What changes: nodes are put in ascending order within each hop, the seeds too, and everything local is renumbered
accordingly; edges are put in order of their targets, those of one target stay in the order given. Where the hops are
not known, the batch is seeds and one hop of all other nodes, and *untrimmed* (store/batches.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np

from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import split_name
from outcrop.store.host_array import host_array

Source = Iterable[Any] | Callable[[int], Iterable[Any]]
_MAX_HOPS = 15


class ExternalBatches:
    """Gives the batches of each split that come from elsewhere.

    Args:
        batches: An iterable that can be gone over once per epoch, or a function of the epoch that makes one; or either
            of them by split: ``{"train": ..., "valid": ..., "test": ...}``.

    Raises:
        ArgumentError: No training batches, an unknown split, or a first batch that is none.
    """

    def __init__(self, batches: Source | Mapping[str, Source], num_nodes: int):
        given = dict(batches) if isinstance(batches, Mapping) else {"train": batches}
        by_split = {split_name(split): source for split, source in given.items()}
        unknown = sorted(set(by_split) - set(SPLITS))
        if unknown or "train" not in by_split or len(by_split) < len(given):
            raise ArgumentError(
                f"batches are given for {', '.join(map(repr, given)) or 'no split'}: give 'train', and 'valid' and "
                "'test' if you like"
            )
        self._sources, self._num_nodes = by_split, num_nodes
        self.splits = tuple(s for s in SPLITS if s in by_split)
        # The first batch tells how many hops there are; it is kept, because a generator gives it once.
        self._started = self._iterate("train", 0)
        first = next(self._started, None)
        if first is None:
            raise ArgumentError("the batches of epoch 0 are none: the iterable is empty")
        self._first: list[Any] = [first]
        self.hops = convert(first, num_nodes, "batch 0 of epoch 0 of split 'train'").hops

    def _iterate(self, split: str, epoch: int) -> Iterator[Any]:
        source = self._sources[split]
        if isinstance(source, Iterable):  # first: torch_geometric's loaders can be called too
            return iter(source)
        if not callable(source):
            raise ArgumentError(
                f"the batches of split {split!r} are a {type(source).__name__}: pass an iterable, or a function of the "
                "epoch that makes one"
            )
        return iter(source(epoch))

    def epoch(self, split: str, epoch: int) -> Iterator[BatchGraph]:
        """Yields the batches of one epoch; labels are those of the batch, or empty.

        Raises:
            ArgumentError: A batch is not what it should be, or the number of hops changes.
        """
        if self._first and (split, epoch) == ("train", 0):
            batches: Iterator[Any] = chain([self._first.pop()], self._started)
        else:
            batches = self._iterate(split, epoch)
        for number, data in enumerate(batches):
            where = f"batch {number} of epoch {epoch} of split {split!r}"
            batch = convert(data, self._num_nodes, where)
            if batch.hops != self.hops:
                raise ArgumentError(f"{where} has {batch.hops} hops, the first batch {self.hops}")
            yield batch


def convert(data: Any, num_nodes: int, where: str) -> BatchGraph:
    """Puts ``data`` in our order; ``labels`` are empty where it has no ``y``.

    Raises:
        ArgumentError: Something is missing, out of range, or contradicts the rest; names ``where``.
    """
    data = SimpleNamespace(**data) if isinstance(data, Mapping) else data
    n_id, edge_index = _integers(data, "n_id", where), _integers(data, "edge_index", where)
    count, seeds = len(n_id), _batch_size(data, where)
    _require(n_id.ndim == 1, where, f"n_id has shape {n_id.shape}, one dimension is needed")
    _require(
        edge_index.ndim == 2 and len(edge_index) == 2,
        where,
        f"edge_index has shape {edge_index.shape}, [2, edges] is needed",
    )
    _require(0 <= seeds <= count, where, f"batch_size {seeds} is not in 0..{count}, the number of nodes")
    _check_range(n_id, num_nodes, where, "n_id")
    _require(len(np.unique(n_id)) == count, where, "n_id lists a node twice")
    _check_range(edge_index, count, where, "edge_index")
    _require(max(count, edge_index.shape[1]) < 1 << 31, where, "it is too large (2^31 is the limit)")
    hops = _hops(data, count, seeds, edge_index, where)
    untrimmed = hops is None
    nodes, edges = hops or ((seeds, count - seeds), (edge_index.shape[1],))
    order = np.lexsort((n_id, np.repeat(np.arange(len(nodes)), nodes)))
    rank = np.empty(count, np.int64)
    rank[order] = np.arange(count)
    source, target = rank[edge_index]
    by_target = np.argsort(target, kind="stable")
    rows = count if untrimmed else count - nodes[-1]
    rowptr = np.zeros(rows + 1, np.int32)
    np.cumsum(np.bincount(target, minlength=rows), out=rowptr[1:])
    index, label = _label_edges(data, rank, seeds, where)
    return BatchGraph.of_one_type(
        n_id[order],
        rowptr,
        source[by_target].astype(np.int32),
        nodes,
        edges,
        _labels(data, count, seeds, order, where),
        untrimmed=untrimmed,
        edge_label_index=index,
        edge_label=label,
    )


def _require(holds: bool, where: str, problem: str) -> None:
    if not holds:
        raise ArgumentError(f"{where}: {problem}")


def _check_range(values: np.ndarray, limit: int, where: str, name: str) -> None:
    if values.size and not 0 <= values.min() <= values.max() < limit:
        bad = values[(values < 0) | (values >= limit)][0]
        raise ArgumentError(f"{where}: {name} holds {bad}, outside 0..{limit - 1}")


def _integers(data: Any, name: str, where: str) -> np.ndarray:
    value: Any = getattr(data, name, None)
    _require(value is not None, where, f"it has no {name}")
    array = host_array(value)
    _require(array.dtype.kind in "iu", where, f"{name} is {array.dtype}, integers are needed")
    return array.astype(np.int64)


def _batch_size(data: Any, where: str) -> int:
    value: Any = getattr(data, "batch_size", None)
    if value is None and getattr(data, "edge_label_index", None) is not None:
        ends = host_array(data.edge_label_index)  # LinkNeighborLoader: the ends of the edges come first
        return int(ends.max(initial=-1)) + 1
    if value is None:
        raise ArgumentError(f"{where}: it has no batch_size: how many of the first nodes are seeds")
    return int(value)


def _hops(
    data: Any, count: int, seeds: int, edge_index: np.ndarray, where: str
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Reads nodes and edges per hop; None where they are not told."""
    given = [getattr(data, name, None) for name in ("num_sampled_nodes", "num_sampled_edges")]
    if any(value is None for value in given):
        return None
    nodes, edges = (tuple(int(n) for n in host_array(value).reshape(-1)) for value in given)
    if len(nodes) != len(edges) + 1 or not 1 <= len(edges) <= _MAX_HOPS or min(nodes + edges) < 0:
        raise ArgumentError(
            f"{where}: num_sampled_nodes {list(nodes)} and num_sampled_edges {list(edges)} do not belong together: "
            f"1 to {_MAX_HOPS} hops, and one number of nodes more than of edges"
        )
    if (sum(nodes), sum(edges), nodes[0]) != (count, edge_index.shape[1], seeds):
        raise ArgumentError(
            f"{where}: num_sampled_nodes {list(nodes)} and num_sampled_edges {list(edges)} do not sum to its {count} "
            f"nodes and {edge_index.shape[1]} edges, or do not begin with its {seeds} seeds"
        )
    ends = np.cumsum(nodes)
    hop = np.repeat(np.arange(len(edges)), edges)
    source, target = edge_index
    inside = (target < ends[hop]) & (target >= ends[hop] - np.array(nodes)[hop]) & (source < ends[hop + 1])
    if not inside.all():
        edge = int(np.argmin(inside))
        raise ArgumentError(
            f"{where}: edge {edge} of hop {hop[edge]} leads from node {source[edge]} to {target[edge]}; edges of a hop "
            "lead to the nodes met in the hop before, from nodes met by then. Leave out num_sampled_nodes where "
            "batches are not sampled hop by hop"
        )
    return nodes, edges


def _labels(data: Any, count: int, seeds: int, order: np.ndarray, where: str) -> np.ndarray:
    value = getattr(data, "y", None)
    if value is None:
        return np.zeros(0, np.int64)
    y = host_array(value)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    _require(
        y.ndim == 1 and len(y) in (seeds, count) and y.dtype.kind in "iub",
        where,
        f"y has shape {y.shape} of {y.dtype}; one whole number per seed ({seeds}) or per node ({count}) is needed",
    )
    _require(int(y[:seeds].min(initial=-1)) >= -1, where, "y holds a label below -1")
    return y[order[:seeds]].astype(np.int64)


def _label_edges(
    data: Any, rank: np.ndarray, seeds: int, where: str
) -> tuple[np.ndarray | None, np.ndarray | None]:
    if getattr(data, "edge_label_index", None) is None:
        return None, None
    index = _integers(data, "edge_label_index", where)
    _require(index.ndim == 2 and len(index) == 2, where, f"edge_label_index has shape {index.shape}")
    _check_range(index, seeds, where, "edge_label_index (its nodes must be seeds)")
    value = getattr(data, "edge_label", None)
    label = np.ones(index.shape[1], np.float32) if value is None else host_array(value).astype(np.float32)
    _require(label.shape == index.shape[1:], where, f"edge_label has shape {label.shape}")
    return rank[index].astype(np.int32), label
