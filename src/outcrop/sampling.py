"""Drawing mini-batches: which seeds a batch has, and the sampler over a graph on disk.

Epoch e of split s always consists of the same batches for the same seed, whatever the budget, the threads, where the
topology lies, and whether they are drawn ahead (stages/sample.py) or on the fly (stages/load.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from outcrop import _core
from outcrop.config import SampleConfig, exact_bytes
from outcrop.errors import ArgumentError, BudgetError, FormatError
from outcrop.links import LinkBatch, LinkSeeds, mix64
from outcrop.runtime import Runtime
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.store.topology import load_topology, placement_of, topology_bytes

if TYPE_CHECKING:
    import torch

    from outcrop.device.budget import DeviceBudget

Ids = np.ndarray | range
SPLIT_CODES = {"train": 0, "valid": 1, "test": 2, "infer": 3}
_MIB = 1 << 20
_FEW = 8  # batches that are drawn together where training waits for the first of them


def epoch_seeds(ids: Ids, config: SampleConfig, split: str, epoch: int) -> np.ndarray:
    """Seeds of all batches of one epoch in order, int64: shuffled for training, ascending within a batch.

    The shuffle is keyed by (seed, epoch, node): ``ids[argsort(hash(seed, epoch, ids))]``.
    """
    if split != "train":
        return np.ascontiguousarray(ids, np.int64)
    with np.errstate(over="ignore"):
        key = mix64(mix64(np.array([config.seed], np.uint64)) ^ np.uint64(epoch))
        nodes = np.asarray(ids, np.int64)
        order = np.argsort(mix64(mix64(nodes.astype(np.uint64)) ^ key), kind="stable")
    seeds = np.ascontiguousarray(nodes[order], np.int64)
    for start in range(0, len(seeds), config.batch_size):
        seeds[start : start + config.batch_size].sort()
    return seeds


@dataclass(frozen=True)
class Seeds:
    """What a batch is drawn from: ``nodes`` int64; ``split`` as the key has it; ``link`` where edges are predicted."""

    split: int
    epoch: int
    batch: int
    nodes: np.ndarray
    link: LinkBatch | None = None


class BatchSampler:
    """Draws batches on the fly: the same that the sample stage writes.

    Holds the topology (memory, pages or map), the sampler's scratch memory, the labels and the ``ids`` of each split.

    Args:
        share: Of the free budget, how much the scratch memory may take, and then how much the topology.
        at_once: Batches that are drawn at a time at the most. The more there are, the fewer reads a topology on disk
            takes, and the longer the first of them takes. None: a few. One is what :meth:`draw` needs.
        page_cache: Of a topology that is read by pages, keep pages too.
        on: The GPU that draws, in place where the topology is in memory; None: the CPU. The batches are the same.
        device_budget: Memory of ``on`` that drawing is counted in.
        ids: Node ids of a split, int64, in place of those that the graph has.
    """

    def __init__(
        self,
        graph: Graph,
        config: SampleConfig,
        runtime: Runtime,
        *,
        share: float = 0.5,
        at_once: int | None = None,
        page_cache: bool = True,
        on: torch.device | None = None,
        device_budget: DeviceBudget | None = None,
        ids: Mapping[str, Ids] | None = None,
    ):
        if config.sampler == "foreign":
            raise ArgumentError("the batches came from elsewhere: they cannot be drawn again")
        self.graph, self.config = graph, config
        self._runtime = runtime
        # All that is held is held from now on: what comes after may take the rest of the budget for caches.
        splits = config.splits if config.task != "link" else ()
        given = ids or {}
        self.ids: dict[str, Ids] = {
            split: given[split] if split in given else split_ids(graph, runtime, split) for split in splits
        }
        # The sampler's scratch and the results that wait first: the topology can also stay on disk.
        free = int(runtime.budget.free_bytes * share)
        on_disk = placement_of(runtime.topology, topology_bytes(graph), free) == "paged"
        self._wave = Wave(config, graph, free, runtime, on_disk, at_once)
        if on_disk:  # more at a time want the same page: that is worth more than keeping pages
            epoch = max((-(-len(ids) // config.batch_size) for ids in self.ids.values()), default=_FEW)
            self._wave.widen(min(at_once or _FEW, epoch), int(runtime.budget.free_bytes * share))
        self.topology = load_topology(
            graph, runtime, share=share, weighted=config.sampler == "weighted", page_cache=page_cache
        )
        options = {
            name: getattr(config, name) for name in ("fanouts", "replace", "seed", "sampler", "dependency")
        }
        self._sampler: Any
        if on is None:
            most = self._wave.most_batch_bytes
            self._sampler = self.topology.sampler(
                runtime, self._wave.workers, self._wave.batches, max_batch_bytes=most, **options
            )
        else:
            from outcrop.device_sampling import DeviceSampler  # brings torch

            self._sampler = DeviceSampler(
                self.topology,
                on,
                in_place=self.topology.placement == "memory",
                budget=device_budget,
                most_seeds=_most_seeds(config, graph),
                **options,
            )
        self._labels = graph.array(runtime, "labels").memmap(check=True) if graph.has("labels") else None
        self._links = LinkSeeds(graph, config, self.topology, runtime) if config.task == "link" else None
        if runtime.rehearsal is not None and on is None:
            needed = runtime.rehearsal.batch_bytes(self.topology.placement == "paged")
            if needed > self._wave.most_batch_bytes:
                raise BudgetError(
                    f"sampling one mini-batch needs {exact_bytes(needed)}, {exact_bytes(self._wave.most_batch_bytes)} "
                    "are set aside for it"
                )

    @property
    def most_batch_bytes(self) -> int:
        """Bytes that drawing a batch has needed so far, at the most; on the CPU."""
        return self._sampler.most_batch_bytes

    def num_batches(self, split: str) -> int:
        """Mini-batches of one epoch of ``split``."""
        seeds = self._links.num_edges(split) if self._links else len(self.ids[split])
        return -(-seeds // self.config.batch_size)

    def epoch(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterator[BatchGraph]:
        """The batches ``numbers`` of one epoch of ``split``, in this order; None: all of them.

        Raises:
            ArgumentError: ``split`` is none of ``config.splits``.
        """
        if split not in self.config.splits:
            raise ArgumentError(f"split {split!r} is not sampled, only {', '.join(self.config.splits)}")
        if self._links is None:
            seeds = self._seeds_of_epoch(split, epoch)
            yield from self.batches(split, epoch, seeds, numbers)
            return
        code = SPLIT_CODES[split]
        every = range(self.num_batches(split)) if numbers is None else numbers
        for first, count in _consecutive(every, self._wave.batches):
            links = [self._links.batch(split, code, epoch, first + i) for i in range(count)]
            offsets = np.cumsum([0, *(len(link.seeds) for link in links)], dtype=np.int64)
            seeds = np.concatenate([link.seeds for link in links])
            drawn = self._sampler.sample(seeds, offsets, code, epoch, first)
            for parts, link in zip(drawn, links, strict=True):
                yield replace(self._finish(*parts), edge_label_index=link.index, edge_label=link.label)

    def batches(
        self, split: str, epoch: int, seeds: Ids, numbers: Sequence[int] | None = None
    ) -> Iterator[BatchGraph]:
        """The batches ``numbers`` (None: all) of one epoch with these ``seeds``, in order, a wave at a time."""
        size = self.config.batch_size
        every = range(-(-len(seeds) // size)) if numbers is None else numbers
        for first, count in _consecutive(every, self._wave.batches):
            nodes = np.asarray(seeds[first * size : (first + count) * size], np.int64)
            offsets = np.minimum(np.arange(count + 1, dtype=np.int64) * size, len(nodes))
            for parts in self._sampler.sample(nodes, offsets, SPLIT_CODES[split], epoch, first):
                yield self._finish(*parts)

    def seeds(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterator[Seeds]:
        """What :meth:`draw` draws the batches ``numbers`` (None: all) of one epoch of ``split`` from, in order."""
        if split not in self.config.splits:
            raise ArgumentError(f"split {split!r} is not sampled, only {', '.join(self.config.splits)}")
        code, size = SPLIT_CODES[split], self.config.batch_size
        nodes = None if self._links else self._seeds_of_epoch(split, epoch)
        for number in range(self.num_batches(split)) if numbers is None else numbers:
            if nodes is None:
                assert self._links is not None
                link = self._links.batch(split, code, epoch, number)
                yield Seeds(code, epoch, number, link.seeds, link)
            else:
                part = np.asarray(nodes[number * size : (number + 1) * size], np.int64)
                yield Seeds(code, epoch, number, part)

    def cache_lists(self, index: Any, ids: np.ndarray) -> None:
        """The GPU that draws keeps these neighbour lists (:meth:`outcrop.device_sampling.DeviceSampler`)."""
        self._sampler.cache_lists(index, ids)

    def _seeds_of_epoch(self, split: str, epoch: int) -> Ids:
        ids = self.ids[split]
        if isinstance(ids, range) and split != "train":  # takes no memory, whatever the graph
            return ids
        return epoch_seeds(ids, self.config, split, epoch)

    def draw(self, seeds: Seeds, met: Callable[[np.ndarray], None]) -> BatchGraph:
        """One batch, as :meth:`epoch` gives it.

        Args:
            met: Called with the seeds, and after each hop with the nodes first met in it: the next part of ``n_id``.
        """
        if hasattr(self._sampler, "begin"):
            self._sampler.begin(seeds.nodes, seeds.split, seeds.epoch, seeds.batch)
            met(seeds.nodes)
            for _ in self.config.fanouts:
                met(self._sampler.hop())
            graph = self._finish(*self._sampler.finish())
        else:  # a GPU draws batches whole
            drawn, kept = self._sampler.sample_kept(seeds.nodes, seeds.split, seeds.epoch, seeds.batch)
            graph = replace(self._finish(*drawn), on_device=kept)
            met(graph.n_id)
        link = seeds.link
        return graph if link is None else replace(graph, edge_label_index=link.index, edge_label=link.label)

    def _finish(
        self,
        n_id: np.ndarray,
        rowptr: np.ndarray,
        col: np.ndarray,
        nodes: list[int],
        edges: list[int],
    ) -> BatchGraph:
        return BatchGraph(
            n_id,
            rowptr,
            col,
            tuple(nodes),
            tuple(edges),
            seed_labels(self.graph, self._labels, n_id[: nodes[0]]),
            self._degrees(n_id) if self.config.degrees else None,
            whole=self.config.sampler == "shadow",
        )

    def _degrees(self, n_id: np.ndarray) -> np.ndarray:
        if self.topology.placement == "paged":
            return self.topology.degrees(n_id)
        degree = np.zeros(len(n_id), np.int32)
        self._sampler.degrees(n_id, degree)
        return degree


def _consecutive(numbers: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """(first, count) of the stretches of consecutive ``numbers``, of at most ``most`` each."""
    at = 0
    while at < len(numbers):
        end = at + 1
        while end < min(len(numbers), at + most) and numbers[end] == numbers[end - 1] + 1:
            end += 1
        yield numbers[at], end - at
        at = end


def seed_labels(graph: Graph, labels: np.ndarray | None, seeds: np.ndarray) -> np.ndarray:
    """int64: classes of ``seeds``, -1 where there are none and for labels of other kinds.

    Raises:
        FormatError: A label is no class.
    """
    if labels is None or graph.label_kind != "class":
        return np.full(len(seeds), -1, np.int64)
    found = labels[seeds].astype(np.int64)
    if len(found) and not -1 <= found.min() <= found.max() < graph.num_classes:
        raise FormatError(
            f"{graph.path}: labels from {found.min()} to {found.max()} were read, there are "
            f"{graph.num_classes} classes; run outcrop verify"
        )
    return found


def _most_seeds(config: SampleConfig, graph: Graph) -> int:
    """Of one batch."""
    ends = 2 + 2 * int(np.ceil(config.negatives)) if config.task == "link" else 1
    return min(config.batch_size * ends, graph.num_nodes)


def _worst_case_bytes(config: SampleConfig, graph: Graph, on_disk: bool = False) -> tuple[int, int]:
    """Bytes that one batch can need at the most while it is sampled (core/graph/batch_builder.cpp, check_memory).

    Of samplers whose batches depend on the graph, what they need unless it is unusual: twice the edges that are
    expected of LABOR, and for an induced subgraph eight times the mean degree per node.

    Returns:
        While its nodes are entered; while it waits for its lists, or drawn for those before it (core/graph/wave.h).
        Twice the same where the sampler does not say before it reads how much it will keep.
    """
    seeds = frontier = _most_seeds(config, graph)
    slack, edges, last = 2 if config.sampler == "labor" else 1, 0, 0
    for fanout in config.fanouts:
        last = graph.num_edges if fanout == -1 else min(frontier * fanout * slack, graph.num_edges)
        edges += last
        frontier = min(last, graph.num_nodes)
    reached = min(seeds + edges, graph.num_nodes)
    nodes = min(seeds + edges - last, graph.num_nodes) + last  # in the last hop, repeats included
    if config.sampler == "shadow":
        edges = max(edges, min(graph.num_edges, 8 * reached * max(graph.num_edges // graph.num_nodes, 1)))
    extra = 0 if config.sampler == "neighbor" else 8 * last
    if on_disk:  # what was read, and where the lists lie
        extra = 16 * last + 16 * reached
    table = 12 * (1 << (max(2 * nodes, 64) - 1).bit_length())
    entered = 12 * nodes + table // 2 * 3 + 4 * edges + 20 * last + extra + _MIB
    expanded = nodes - last  # 8 each for the id, rowptr while it grows, and both ends of the list
    kept = 8 * last  # neighbours before they are entered, which makes nodes and edges of them
    waiting = 24 * expanded + max(4 * (edges - last) + kept, 8 * last + 4 * edges) + _MIB // 8
    return entered, waiting if config.sampler == "neighbor" else 2 * entered


class Wave:
    """Mini-batches that are drawn at a time, by whom, and the memory for them: fewer where ``most`` bytes are few.

    As many as threads enter theirs at a time: each takes its worst case twice. More wait meanwhile (:meth:`widen`).
    """

    def __init__(
        self,
        config: SampleConfig,
        graph: Graph,
        most: int,
        runtime: Runtime,
        on_disk: bool = False,
        at_once: int | None = None,
    ):
        worst, self._waiting_bytes = _worst_case_bytes(config, graph, on_disk)
        threads = runtime.workers.threads
        self._runtime = runtime
        self.batches = min(max(most // 2 // worst, 1), at_once or threads, threads)
        self.workers = runtime.workers if self.batches == threads else _core.WorkerPool(self.batches)
        self._batch_bytes = max(min(worst, most // 2 // self.batches), 1)
        self._held = [runtime.budget.reserve("sampler", 2 * self.batches * self._batch_bytes)]

    def widen(self, batches: int, most: int) -> None:
        """Up to ``batches``, where ``most`` bytes more allow it."""
        more = min(batches - self.batches, most // self._waiting_bytes)
        if more > 0:
            self._held.append(self._runtime.budget.reserve("sampler", more * self._waiting_bytes))
            self.batches += more

    @property
    def most_batch_bytes(self) -> int:
        """What one batch may take: once drawn it takes a fifth of what is reserved."""
        return self._batch_bytes * 3 // 2


def split_ids(graph: Graph, runtime: Runtime, split: str) -> np.ndarray:
    """Node ids of ``split``; empty where the graph has none."""
    return graph.split(runtime, split) if graph.has(split) else np.zeros(0, np.int64)
