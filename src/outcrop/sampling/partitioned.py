"""Drawing mini-batches among resident partitions, as MariusGNN trains: mode ``partition``.

Source: MariusGNN (EuroSys'23). Seeds are training nodes of resident partitions and neighbours are
drawn among resident nodes only, so a batch never needs what is not in memory; what lies elsewhere is not seen. With
all partitions resident the batches are those of the other modes, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

import outcrop._core as _core
from outcrop.config import SampleConfig, exact_bytes, least_bytes
from outcrop.errors import ArgumentError, BudgetError
from outcrop.rows import NodePartitions, Visit
from outcrop.runtime import memory_tables
from outcrop.runtime.mapping import map_file
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.sampler import BatchSampler
from outcrop.sampling.seeds import SPLIT_CODES, epoch_seeds, seed_labels
from outcrop.sampling.wave import BatchBounds, Wave
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph

_TAG = "partition-topology"
_PIECE_BYTES = 1 << 20  # of neighbour lists read at a time
_ID_BYTES, _LOCAL_BYTES = 8, 4
_STEPS = 16  # a partition of so many steps is not changed much by rounding it to them
_PARTS, _ENOUGH = (16, 64, 256, 1024, 4096), 4  # divided into so many, until so many fit


def divide(graph: Graph, parts: int, resident: int, seed: int = 0) -> NodePartitions:
    """Makes partitions whose rows begin with a page, where they are large enough for that to make no difference."""
    stride = max(graph.row_file.row_bytes, 1)
    step = PAGE_BYTES // math.gcd(PAGE_BYTES, stride)
    return NodePartitions(
        graph.num_nodes, parts, resident, seed, step if graph.num_nodes >= _STEPS * step * parts else 1
    )


def resident_bytes(graph: Graph, parts: int, resident: int) -> int:
    """Counts memory for the rows and, at the most, the topology of ``resident`` of ``parts`` partitions."""
    shape = divide(graph, parts, resident)
    nodes = resident * shape.most_nodes
    edges = int(np.sort(_partition_edges(graph, shape))[::-1][:resident].sum())
    return nodes * (graph.row_file.row_bytes + _ID_BYTES) + _LOCAL_BYTES * edges + 4 * PAGE_BYTES


def fitting_partitions(
    graph: Graph, parts: int | None, resident: int | None, free_bytes: int, seed: int
) -> NodePartitions:
    """Divides into ``parts`` partitions, of which as many are resident as fit ``free_bytes``, or ``resident``.

    Without ``parts`` the nodes are divided until four partitions fit, or all that there are.

    Raises:
        BudgetError: They do not fit, or not one does.
    """
    choices = [min(p, max(graph.num_nodes, 1)) for p in (_PARTS if parts is None else (parts,))]
    for count in choices:
        fit = _most_resident(graph, count, free_bytes)
        enough = min(count, (_ENOUGH if parts is None else 1) if resident is None else resident)
        if fit >= enough:
            return divide(graph, count, fit if resident is None else enough, seed)
    count = choices[-1]
    wanted = 1 if resident is None else min(resident, count)
    raise BudgetError(
        f"{graph.path}: {wanted} of {count} partitions take "
        f"{least_bytes(resident_bytes(graph, count, wanted))}, {exact_bytes(free_bytes)} are left for "
        "them: raise --memory, or choose more partitions or fewer resident ones"
    )


def _most_resident(graph: Graph, parts: int, free_bytes: int) -> int:
    """Counts how many of ``parts`` partitions fit at a time; 0 where not one does."""
    low, high = 0, parts
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if resident_bytes(graph, parts, middle) <= free_bytes else (low, middle - 1)
        )
    return low


def _partition_edges(graph: Graph, shape: NodePartitions) -> np.ndarray:
    """Counts, int64 [parts], the edges that point at the nodes of each partition."""
    spec = graph.spec("indptr")
    ends = map_file(graph.path / spec.file, "<i8", shape=spec.shape)[shape.bounds]
    return np.diff(ends)


class PartitionStructures:
    """Draws the batch structures of mode ``partition``. Valid and test are drawn from the whole graph, as in the other
    modes.

    Holds, under the tag ``partition-topology``, the neighbour lists among the nodes that are resident, numbered by
    their rank among these; which preserves every order, so that batches are as from the whole graph.
    """

    def __init__(
        self,
        graph: Graph,
        config: SampleConfig,
        partitions: NodePartitions,
        online: BatchSampler,
        runtime: Runtime,
        memory_fraction: float | Fraction = memory_tables.GROWING_PARTITION_SAMPLER.fraction,
    ):
        if config.sampler != "neighbor":
            raise ArgumentError(
                f"mode partition draws neighbours uniformly; sampler {config.sampler!r} is not for it"
            )
        self._graph, self._config, self._parts, self._online = graph, config, partitions, online
        self._runtime = runtime
        self._ids = {split: np.asarray(ids, np.int64) for split, ids in online.ids.items()}
        self._owners = (
            partitions.owners(self._ids["train"]) if "train" in self._ids else np.zeros(0, np.int64)
        )
        count = partitions.resident
        edges = int(np.sort(_partition_edges(graph, partitions))[::-1][:count].sum())
        self._indptr = runtime.budget.empty(_TAG, (count * partitions.most_nodes + 1) * _ID_BYTES).view(
            np.int64
        )
        self._indices = runtime.budget.empty(_TAG, edges * _LOCAL_BYTES).view(np.uint32)
        self._wave = Wave(
            BatchBounds(config, graph), int(runtime.budget.free_bytes * memory_fraction), runtime
        )
        self._labels = graph.array(runtime, "labels").memmap(check=True) if graph.has("labels") else None

    def batches(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterator[BatchGraph]:
        assert numbers is None  # batches are those of the partitions that are resident
        return (batch for _, batch in self.scheduled(split, epoch))

    def scheduled(self, split: str, epoch: int) -> Iterator[tuple[Visit | None, BatchGraph]]:
        """Yields the batches of a pass, each with the partitions it is drawn from (None: the whole graph)."""
        pool_epoch = epoch % self._config.epochs if split == "train" else 0
        if split != "train":
            seeds = epoch_seeds(self._ids[split], self._config, split, pool_epoch)
            for batch in self._online.batches(split, pool_epoch, seeds):
                yield None, batch
            return
        first = 0
        for visit in self._parts.visits(epoch):
            ids = self._ids["train"][np.isin(self._owners, visit.seeds)]
            if not len(ids):
                continue
            seeds = epoch_seeds(ids, self._config, "train", pool_epoch)
            for batch in self._draw(visit, seeds, pool_epoch, first):
                yield visit, batch
            first += -(-len(seeds) // self._config.batch_size)

    def _draw(self, visit: Visit, seeds: np.ndarray, epoch: int, first: int) -> Iterator[BatchGraph]:
        """Draws all batches of ``seeds``, numbered from ``first`` on, as many at a time as there are threads."""
        base = self._number(visit)
        sampler = self._sampler(visit, base)
        owners = self._parts.owners(seeds)
        local = base[owners] + seeds - self._parts.bounds[owners]
        size, wave = self._config.batch_size, self._wave.batches
        count = -(-len(seeds) // size)
        for start in range(0, count, wave):
            offsets = np.minimum(
                np.arange(start, min(start + wave, count) + 1, dtype=np.int64) * size, len(seeds)
            )
            for parts in sampler.sample(local, offsets, SPLIT_CODES["train"], epoch, first + start):
                yield self._finish(sampler, visit, base, *parts)

    def _number(self, visit: Visit) -> np.ndarray:
        """Numbers, int64 [parts]: the local number of each partition's first node, -1 where it is not resident."""
        sizes, base = np.diff(self._parts.bounds), np.full(self._parts.parts, -1, np.int64)
        members = list(visit.resident)
        base[members] = np.cumsum(sizes[members]) - sizes[members]
        return base

    def _sampler(self, visit: Visit, base: np.ndarray) -> _core.NeighborSampler:
        """Makes a sampler over the topology among the nodes of ``visit``."""
        used = nodes = 0
        self._indptr[0] = 0
        for part in visit.resident:
            first, stop = self._parts.bounds[part : part + 2].tolist()
            used = self._append(first, stop, base, nodes, used)
            nodes += stop - first
        return _core.NeighborSampler(
            self._wave.workers,
            self._indptr[: nodes + 1],
            self._indices[:used],
            list(self._config.fanouts),
            self._config.replace,
            self._config.seed,
            self._wave.most_batch_bytes,
        )

    def _append(self, first: int, stop: int, base: np.ndarray, nodes: int, used: int) -> int:
        """Adds nodes ``first:stop`` behind ``nodes`` others with ``used`` edges; returns the new number of edges."""
        arrays = [self._graph.array(self._runtime, name) for name in ("indptr", "indices")]
        indptr = arrays[0].read(_TAG, first, stop + 1)
        begin, end = int(indptr[0]), int(indptr[-1])
        piece = max(_PIECE_BYTES // arrays[1].row_bytes, 1)
        for at in range(begin, max(end, begin + 1), piece):
            sources = arrays[1].read(_TAG, at, min(at + piece, end))
            used = _core.induce(
                indptr, at, sources, self._parts.bounds, base, self._indptr[nodes:], self._indices, used
            )
        for array in arrays:
            array.close()
        return used

    def _finish(
        self,
        sampler: _core.NeighborSampler,
        visit: Visit,
        base: np.ndarray,
        n_id: np.ndarray,
        rowptr: np.ndarray,
        col: np.ndarray,
        nodes: list[int],
        edges: list[int],
    ) -> BatchGraph:
        members = np.array(visit.resident, np.int64)
        owners = members[np.searchsorted(base[members], n_id, side="right") - 1]
        ids = n_id - base[owners] + self._parts.bounds[owners]
        labels = np.full(nodes[0], -1, np.int64)
        if self._labels is not None:
            labels = seed_labels(self._graph, self._labels, ids[: nodes[0]])
        degree = None
        if self._config.degrees:
            degree = np.zeros(len(n_id), np.int32)
            sampler.degrees(n_id, degree)
        return BatchGraph.of_one_type(ids, rowptr, col, nodes, edges, labels, degree=degree)
