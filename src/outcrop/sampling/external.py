"""Mini-batches from elsewhere: torch_geometric's loaders, or any iterable of objects like them, as :class:`BatchGraph`.

Of a graph with types a batch is a ``HeteroData``: each type has the attributes below, ``batch_size`` that of the seeds
alone; types that it lacks have nothing in it.

A batch has ``n_id`` [n], ``edge_index`` [2, E] (source, target; local) and ``batch_size`` (the first nodes are the
seeds); optional are ``num_sampled_nodes`` and ``num_sampled_edges`` per hop, ``y`` (of the seeds, or of all nodes),
``edge_label_index`` [2, L] and ``edge_label`` [L] (local). They are attributes, or entries of a dict. Arrays may be
torch tensors or anything NumPy understands.

What changes: nodes are put in ascending order within each hop, the seeds too, and everything local is renumbered
accordingly; edges are put in order of their targets, those of one target stay in the order given. Where the hops are
not known, the batch is seeds and one hop of all other nodes, and *untrimmed* (store/batches.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError
from outcrop.store.batches import BatchGraph, Edges, Nodes
from outcrop.store.graph import Graph, split_name
from outcrop.store.host_array import host_array

Source = Iterable[Any] | Callable[[int], Iterable[Any]]
_MAX_HOPS = 15


class ExternalBatches:
    """Gives the batches of each split that come from elsewhere.

    Args:
        batches: An iterable that can be gone over once per epoch, or a function of the epoch that makes one; or either
            of them by split: ``{"train": ..., "valid": ..., "test": ...}``.
        of: The graph, or how many nodes a graph without types has.

    Raises:
        ArgumentError: No training batches, an unknown split, or a first batch that is none.
    """

    def __init__(self, batches: Source | Mapping[str, Source], of: Graph | int):
        given = dict(batches) if isinstance(batches, Mapping) else {"train": batches}
        by_split = {split_name(split): source for split, source in given.items()}
        unknown = sorted(set(by_split) - set(SPLITS))
        if unknown or "train" not in by_split or len(by_split) < len(given):
            raise ArgumentError(
                f"batches are given for {', '.join(map(repr, given)) or 'no split'}: give 'train', and 'valid' and "
                "'test' if you like"
            )
        self._sources, self._of = by_split, of
        self.splits = tuple(s for s in SPLITS if s in by_split)
        # The first batch tells how many hops there are; it is kept, because a generator gives it once.
        self._started = self._iterate("train", 0)
        first = next(self._started, None)
        if first is None:
            raise ArgumentError("the batches of epoch 0 are none: the iterable is empty")
        self._first: list[Any] = [first]
        self.hops = self._convert(first, "batch 0 of epoch 0 of split 'train'").hops

    def _convert(self, data: Any, where: str) -> BatchGraph:
        of = self._of
        if isinstance(of, Graph) and of.is_typed:
            return convert_typed(data, of, where)
        return convert(data, of.num_nodes if isinstance(of, Graph) else of, where)

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
            batch = self._convert(data, where)
            if batch.hops != self.hops:
                raise ArgumentError(f"{where} has {batch.hops} hops, the first batch {self.hops}")
            yield batch


def convert(data: Any, num_nodes: int, where: str) -> BatchGraph:
    """Puts a batch of a graph without types in our order; ``labels`` are empty where it has no ``y``.

    Raises:
        ArgumentError: Something is missing, out of range, or contradicts the rest; names ``where``.
    """
    data = SimpleNamespace(**data) if isinstance(data, Mapping) else data
    ids, ends = _integers(data, "n_id", where), _integers(data, "edge_index", where)
    seeds = _batch_size(data, where)
    nodes = _Given(where, ids, seeds, _numbers(data, "num_sampled_nodes"))
    nodes.check(num_nodes)
    edges = _GivenEdges(where, ends, 0, 0, _numbers(data, "num_sampled_edges"))
    untrimmed = nodes.per_hop is None or edges.per_hop is None
    batch, order = _in_order([nodes], [edges], 0, untrimmed)
    index, label = _label_edges(data, order, seeds, where)
    labels = _labels(data, len(ids), seeds, order, where)
    return replace(batch, labels=labels, edge_label_index=index, edge_label=label)


def convert_typed(data: Any, graph: Graph, where: str) -> BatchGraph:
    """Puts a batch of a graph with types in our order; ``labels`` are empty where its seeds have no ``y``.

    Args:
        data: A ``torch_geometric.data.HeteroData``.
        graph: Whose types it has, and whose seeds.

    Raises:
        ArgumentError: As :func:`convert`; it has types that the graph lacks, or seeds of another.
    """
    if not hasattr(data, "node_types"):
        raise ArgumentError(
            f"{where}: it is a {type(data).__name__}, and {graph.path} has types: give HeteroData"
        )
    sizes, keys = {of.name: of.num_nodes for of in graph.node_types}, [of.key for of in graph.edge_types]
    for of, known in [*((t, sizes) for t in data.node_types), *((t, keys) for t in data.edge_types)]:
        _require(of in known, where, f"it has type {of!r}, which {graph.path} has not")
    seeded = [t for t in data.node_types if getattr(data[t], "batch_size", None) is not None]
    wanted = graph.seed_type.name
    _require(seeded == [wanted], where, f"batch_size is there for {seeded}, its seeds must be {[wanted]}")
    seeds, number = int(data[wanted].batch_size), graph.seed_type.number
    nodes: list[_Given] = []
    for name, count in sizes.items():
        store, here = data[name] if name in data.node_types else SimpleNamespace(), f"{where}, nodes {name!r}"
        ids = _integers(store, "n_id", here) if hasattr(store, "n_id") else np.zeros(0, np.int64)
        given = _Given(here, ids, seeds * (name == wanted), _numbers(store, "num_sampled_nodes"))
        given.check(count)
        nodes.append(given)
    edges: list[_GivenEdges] = []
    for of in graph.edge_types:
        store = data[of.key] if of.key in data.edge_types else SimpleNamespace()
        here = f"{where}, edges {' '.join(of.key)!r}"
        _require(
            getattr(store, "edge_label_index", None) is None,
            here,
            "links cannot be predicted in graphs with types",
        )
        ends = (
            _integers(store, "edge_index", here)
            if hasattr(store, "edge_index")
            else np.zeros((2, 0), np.int64)
        )
        per_hop = _numbers(store, "num_sampled_edges")
        edges.append(_GivenEdges(here, ends, of.source.number, of.target.number, per_hop))
    told = [*((one.per_hop, len(one.ids)) for one in nodes), *((one.per_hop, one.count) for one in edges)]
    untrimmed = any(per_hop is None and count for per_hop, count in told)
    batch, order = _in_order(nodes, edges, number, untrimmed)
    labels = _labels(data[wanted], len(nodes[number].ids), seeds, order, where)
    return replace(batch, labels=labels)


@dataclass(frozen=True)
class _Given:
    """Holds the nodes of a type as a batch from elsewhere lists them; ``seeds``: how many of the first are such."""

    where: str
    ids: np.ndarray
    seeds: int
    per_hop: tuple[int, ...] | None

    def check(self, num_nodes: int) -> None:
        ids, count = self.ids, len(self.ids)
        _require(ids.ndim == 1, self.where, f"n_id has shape {ids.shape}, one dimension is needed")
        fits = 0 <= self.seeds <= count
        _require(fits, self.where, f"batch_size {self.seeds} is not in 0..{count}, the number of nodes")
        _check_range(ids, num_nodes, self.where, "n_id")
        _require(len(np.unique(ids)) == count, self.where, "n_id lists a node twice")
        _require(count < 1 << 31, self.where, "it is too large (2^31 is the limit)")

    def order(self, per_hop: Sequence[int]) -> np.ndarray:
        """Returns which node comes first in our order, which second, ...: by hop, then by id."""
        return np.lexsort((self.ids, np.repeat(np.arange(len(per_hop)), per_hop)))


@dataclass(frozen=True)
class _GivenEdges:
    """Holds the edges of a type as a batch from elsewhere lists them, and the numbers of the types of their ends."""

    where: str
    ends: np.ndarray
    source: int
    target: int
    per_hop: tuple[int, ...] | None

    @property
    def count(self) -> int:
        return self.ends.shape[-1]

    def check(self, nodes: Sequence[_Given]) -> None:
        ends = self.ends
        shaped = ends.ndim == 2 and len(ends) == 2
        _require(shaped, self.where, f"edge_index has shape {ends.shape}, [2, edges] is needed")
        for row, number in zip(ends, (self.source, self.target), strict=True):
            _check_range(row, len(nodes[number].ids), self.where, "edge_index")
        _require(self.count < 1 << 31, self.where, "it is too large (2^31 is the limit)")


def _in_order(
    nodes: Sequence[_Given], edges: Sequence[_GivenEdges], seed_type: int, untrimmed: bool
) -> tuple[BatchGraph, np.ndarray]:
    """Puts nodes and edges in our order; returns that of the nodes of the seeds' type, too.

    Args:
        untrimmed: Hops are not known: a batch is its seeds and one hop of all other nodes.
    """
    for one in edges:
        one.check(nodes)
    if untrimmed:
        of_nodes = [(one.seeds, len(one.ids) - one.seeds) for one in nodes]
        of_edges = [(one.count,) for one in edges]
    else:
        of_nodes, of_edges = _checked_hops(nodes, edges, seed_type)
    orders = [one.order(per_hop) for one, per_hop in zip(nodes, of_nodes, strict=True)]
    ranks = [_places(order) for order in orders]
    made = []
    for one, per_hop in zip(edges, of_edges, strict=True):
        source, target = ranks[one.source][one.ends[0]], ranks[one.target][one.ends[1]]
        by_target = np.argsort(target, kind="stable")
        rows = len(ranks[one.target]) - (0 if untrimmed else of_nodes[one.target][-1])
        rowptr = np.zeros(rows + 1, np.int32)
        np.cumsum(np.bincount(target, minlength=rows), out=rowptr[1:])
        made.append(Edges(rowptr, source[by_target].astype(np.int32), per_hop))
    placed = [
        Nodes(one.ids[order], per_hop) for one, order, per_hop in zip(nodes, orders, of_nodes, strict=True)
    ]
    batch = BatchGraph(tuple(placed), tuple(made), np.zeros(0, np.int64), seed_type, untrimmed=untrimmed)
    return batch, orders[seed_type]


def _places(order: np.ndarray) -> np.ndarray:
    """Returns the place of each node in an order: the inverse of it."""
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


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


def _numbers(data: Any, name: str) -> tuple[int, ...] | None:
    """Returns how many nodes or edges each hop has; None where that is not told."""
    value: Any = getattr(data, name, None)
    return None if value is None else tuple(int(n) for n in host_array(value).reshape(-1))


def _checked_hops(
    nodes: Sequence[_Given], edges: Sequence[_GivenEdges], seed_type: int
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Returns the nodes of each type per hop, and the edges; zeros for types that have none and say nothing."""
    hops = len(nodes[seed_type].per_hop or (0,)) - 1
    of_nodes = [one.per_hop or (0,) * (hops + 1) for one in nodes]
    of_edges = [one.per_hop or (0,) * hops for one in edges]
    for one, per_hop in zip(nodes, of_nodes, strict=True):
        if len(per_hop) != hops + 1 or not 1 <= hops <= _MAX_HOPS or min(per_hop) < 0:
            _refuse_hops(one.where, per_hop, of_edges[0])
        if (sum(per_hop), per_hop[0]) != (len(one.ids), one.seeds):
            raise ArgumentError(
                f"{one.where}: num_sampled_nodes {list(per_hop)} do not sum to its {len(one.ids)} nodes, or do not "
                f"begin with its {one.seeds} seeds"
            )
    for one, per_hop in zip(edges, of_edges, strict=True):
        if len(per_hop) != hops or min(per_hop) < 0:
            _refuse_hops(one.where, of_nodes[one.target], per_hop)
        if sum(per_hop) != one.count:
            raise ArgumentError(
                f"{one.where}: num_sampled_edges {list(per_hop)} do not sum to its {one.count} edges"
            )
        before, known = (np.cumsum(of_nodes[number]) for number in (one.target, one.source))
        hop = np.repeat(np.arange(hops), per_hop)
        source, target = one.ends
        new = np.array(of_nodes[one.target])[hop]
        inside = (target < before[hop]) & (target >= before[hop] - new) & (source < known[hop + 1])
        if not inside.all():
            edge = int(np.argmin(inside))
            raise ArgumentError(
                f"{one.where}: edge {edge} of hop {hop[edge]} leads from node {source[edge]} to {target[edge]}; edges "
                "of a hop lead to the nodes met in the hop before, from nodes met by then. Leave out num_sampled_nodes "
                "where batches are not sampled hop by hop"
            )
    return of_nodes, of_edges


def _refuse_hops(where: str, nodes: Sequence[int], edges: Sequence[int]) -> NoReturn:
    raise ArgumentError(
        f"{where}: num_sampled_nodes {list(nodes)} and num_sampled_edges {list(edges)} do not belong together: 1 to "
        f"{_MAX_HOPS} hops, and one number of nodes more than of edges"
    )


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
    data: Any, order: np.ndarray, seeds: int, where: str
) -> tuple[np.ndarray | None, np.ndarray | None]:
    if getattr(data, "edge_label_index", None) is None:
        return None, None
    index = _integers(data, "edge_label_index", where)
    _require(index.ndim == 2 and len(index) == 2, where, f"edge_label_index has shape {index.shape}")
    _check_range(index, seeds, where, "edge_label_index (its nodes must be seeds)")
    value = getattr(data, "edge_label", None)
    label = np.ones(index.shape[1], np.float32) if value is None else host_array(value).astype(np.float32)
    _require(label.shape == index.shape[1:], where, f"edge_label has shape {label.shape}")
    return _places(order)[index].astype(np.int32), label
