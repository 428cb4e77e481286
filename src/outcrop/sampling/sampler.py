"""Drawing mini-batches: the sampler over a graph on disk.

Epoch e of split s always consists of the same batches for the same seed, whatever the budget, the threads, where the
topology lies, and whether they are drawn ahead (preparation/sample.py) or on the fly (loading/session.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

import outcrop._core as _core
from outcrop.config import SampleConfig, exact_bytes, least_bytes
from outcrop.config.sampling import EXTERNAL
from outcrop.errors import ArgumentError, BudgetError
from outcrop.rows import LocatedRows
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.link_seeds import ChosenEdges, LinkBatch, LinkSeeds
from outcrop.sampling.seeds import SPLIT_CODES, Chosen, Ids, Seeds, epoch_seeds, seed_labels, split_ids
from outcrop.sampling.topology import (
    CoreSampler,
    EdgeValues,
    coming_bytes,
    load_topology,
    placement_of,
    topology_bytes,
)
from outcrop.sampling.typed import batch_of, check_served, every_fanout, wants_distinct_edges
from outcrop.sampling.wave import BatchBounds, Wave
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph

if TYPE_CHECKING:
    import torch

    from outcrop.device.budget import DeviceBudget
    from outcrop.sampling.gpu.sampler import DeviceSampler, Parts


def wants_weight_sums(config: SampleConfig) -> bool:
    """Tells whether batches have what weights of edges come to in the whole graph; ShaDow's are graphs of their own."""
    return config.edge_weights and config.sampler != "shadow"


_FEW = 8  # batches that are drawn together where training waits for the first of them


@dataclass(frozen=True)
class DrawingDevice:
    """Says what draws batches in place of the sampler of the CPU.

    Attributes:
        device: The GPU; or the CPU, to draw as a GPU does.
        budget: Memory of ``device`` that drawing is counted in; None: it is not counted.
    """

    device: torch.device
    budget: DeviceBudget | None = None


class BatchSampler:
    """Draws batches on the fly: the same that the sample stage writes.

    Holds the topology (memory, pages or map), the sampler's scratch memory, the labels and the ``ids`` of each split.

    Args:
        topology: Where neighbour lists are read from (:func:`outcrop.sampling.topology.load_topology`).
        memory_fraction: Part of the free budget that the scratch memory may take, and then the topology.
        at_once: Batches that are drawn at a time at the most. The more there are, the fewer reads a topology on disk
            takes, and the longer the first of them takes. None: a few. One is what :meth:`sample` needs.
        page_cache: Whether pages of a topology that is read by pages are kept.
        on: The GPU that draws, in place where the topology is in memory; None: the CPU. The batches are the same.
        ids: Node ids of a split, int64, or edges to be predicted, in place of those that the graph has.
    """

    def __init__(
        self,
        graph: Graph,
        config: SampleConfig,
        runtime: Runtime,
        *,
        topology: str = "automatic",
        memory_fraction: float | Fraction = memory_tables.SAMPLER.fraction,
        at_once: int | None = None,
        page_cache: bool = True,
        on: DrawingDevice | None = None,
        ids: Mapping[str, Chosen] | None = None,
    ):
        if config.sampler == EXTERNAL:
            raise ArgumentError("the batches came from elsewhere: they cannot be drawn again")
        given, chosen = _divided(ids or {})
        check_served(config, graph, chosen_links=bool(chosen))
        graph = graph.with_edge_rows(config.edge_rows)
        fanouts = every_fanout(config, graph)
        self.graph, self.config = graph, config
        positions = graph.has_edge_rows or config.edge_weights or config.edge_ids
        weights = config.sampler == "weighted" or config.edge_weights
        self._by_type = graph.is_typed or positions  # as positions come
        self._distinct = wants_distinct_edges(config, graph)
        self._runtime = runtime
        # All that is held is held from now on: what comes after may take the rest of the budget for caches.
        splits = config.splits if config.task != "link" else ()
        self.ids: dict[str, Ids] = {
            split: given[split] if split in given else split_ids(graph, runtime, split) for split in splits
        }
        # The sampler's scratch and the results that wait first: the topology can also stay on disk.
        free = int(runtime.budget.free_bytes * memory_fraction)
        placement = placement_of(topology, topology_bytes(graph), free, coming_bytes(runtime))
        on_disk = placement == "paged"
        predicted = next((one.edge_type for one in chosen.values()), None)
        bounds = BatchBounds(config, graph, predicted)
        self._wave = Wave(bounds, free, runtime, on_disk, at_once)
        if on_disk:  # more at a time want the same page: that is worth more than keeping pages
            epoch = max((-(-len(ids) // config.batch_size) for ids in self.ids.values()), default=_FEW)
            self._wave.widen(min(at_once or _FEW, epoch), int(runtime.budget.free_bytes * memory_fraction))
            if at_once is not None and runtime.budget.free_bytes >= memory_tables.MORE_WAITING_FROM:
                self._wave.widen(
                    min(at_once, epoch), memory_tables.MORE_WAITING.bytes_of(runtime.budget.free_bytes)
                )
        self.topology = load_topology(
            graph,
            runtime,
            # What looks anew may have less memory to look at: the wave is made for this one.
            placement=placement if on_disk or (placement == "map" and not weights) else topology,
            memory_fraction=memory_fraction,
            values=EdgeValues(weights, positions),
            page_cache=page_cache,
        )
        options = {
            **{name: getattr(config, name) for name in ("replace", "seed", "sampler")},
            "fanouts": fanouts if self._by_type else fanouts[0],
            "dependency": config.batch_dependency,
        }
        if self._by_type:
            options["positions"] = positions
        self._sampler: CoreSampler | DeviceSampler
        if on is None:
            most = self._wave.most_batch_bytes
            self._sampler = self.topology.sampler(
                runtime, self._wave.workers, self._wave.batches, max_batch_bytes=most, **options
            )
        else:
            from outcrop.sampling.gpu import DeviceSampler  # brings torch

            graph.require_one_type()
            if positions:
                what = "weights (--edge-weights)" if config.edge_weights else "ids of edges (--edge-ids)"
                what = "features of edges (--edge-rows)" if graph.has_edge_rows else what
                raise ArgumentError(
                    f"{what} come with batches that the CPU draws: sample on the CPU (--sample-on cpu)"
                )
            self._sampler = DeviceSampler(
                self.topology,
                on.device,
                in_place=self.topology.placement == "memory",
                budget=on.budget,
                host_budget=runtime.budget,
                most_seeds=bounds.num_seeds,
                **options,
            )
        self._labels = graph.array(runtime, "labels").memmap(check=True) if graph.has("labels") else None
        waiting = self._wave.batches + memory_tables.BATCH_BUFFERS
        self._links = (
            LinkSeeds(graph, config, self.topology, runtime, chosen, waiting)
            if config.task == "link"
            else None
        )
        if runtime.rehearsal is not None and on is None:
            needed = runtime.rehearsal.batch_bytes(self.topology.placement == "paged")
            if needed > self._wave.most_batch_bytes:
                raise BudgetError(
                    f"sampling one mini-batch needs {least_bytes(needed)}, {exact_bytes(self._wave.most_batch_bytes)} "
                    "are set aside for it"
                )

    @property
    def most_batch_bytes(self) -> int:
        """Counts the bytes that drawing a batch has needed so far, at the most; on the CPU."""
        assert isinstance(self._sampler, CoreSampler)
        return self._sampler.most_batch_bytes

    def num_batches(self, split: str) -> int:
        """Counts the mini-batches of one epoch of ``split``."""
        seeds = self._links.num_edges(split) if self._links else len(self.ids[split])
        return -(-seeds // self.config.batch_size)

    @property
    def together(self) -> int:
        """Counts the batches that are drawn together."""
        return self._wave.batches

    def epoch(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterator[BatchGraph]:
        """Draws the batches ``numbers`` of one epoch of ``split``, in this order; None: all of them.

        Raises:
            ArgumentError: ``split`` is none of ``config.splits``.
        """
        yield from self.begin(split, epoch, numbers)

    def begin(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterator[BatchGraph]:
        """Does what an epoch begins with, and returns its batches as :meth:`epoch` yields them."""
        if split not in self.config.splits:
            raise ArgumentError(f"split {split!r} is not sampled, only {', '.join(self.config.splits)}")
        if self._links is None:
            return self.batches(split, epoch, self._seeds_of_epoch(split, epoch), numbers)
        return self._batches_of_links(self._links, split, epoch, numbers)

    def _batches_of_links(
        self, links_of: LinkSeeds, split: str, epoch: int, numbers: Sequence[int] | None
    ) -> Iterator[BatchGraph]:
        code = SPLIT_CODES[split]
        every = range(self.num_batches(split)) if numbers is None else numbers
        for first, count in _consecutive(every, self._wave.batches):
            links = [links_of.batch(split, code, epoch, first + i) for i in range(count)]
            offsets = np.cumsum([0, *(len(link.seeds) for link in links)], dtype=np.int64)
            seeds = np.concatenate([link.seeds for link in links])
            drawn = self._draw(seeds, offsets, code, epoch, first)
            for parts, link in zip(drawn, links, strict=True):
                yield _with_links(self._finish(*parts), link)

    def batches(
        self, split: str, epoch: int, seeds: Ids, numbers: Sequence[int] | None = None
    ) -> Iterator[BatchGraph]:
        """Draws the batches ``numbers`` (None: all) of one epoch with these ``seeds``, in order, a wave at a time."""
        size = self.config.batch_size
        every = range(-(-len(seeds) // size)) if numbers is None else numbers
        for first, count in _consecutive(every, self._wave.batches):
            nodes = np.asarray(seeds[first * size : (first + count) * size], np.int64)
            offsets = np.minimum(np.arange(count + 1, dtype=np.int64) * size, len(nodes))
            for parts in self._draw(self._numbered(nodes), offsets, SPLIT_CODES[split], epoch, first):
                yield self._finish(*parts)

    def _draw(self, seeds: np.ndarray, offsets: np.ndarray, code: int, epoch: int, first: int) -> list[Parts]:
        return self._sampler.sample(seeds, offsets, code, epoch, first)

    def _numbered(self, seeds: np.ndarray) -> np.ndarray:
        """Returns the seeds in the numbering of all nodes."""
        return seeds + self.graph.seed_type.first if self.graph.is_typed else seeds

    def seeds(self, split: str, epoch: int, numbers: Sequence[int] | None = None) -> Iterator[Seeds]:
        """Yields what :meth:`sample` draws batches ``numbers`` (None: all) of an epoch of ``split`` from, in order."""
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
        """Has the GPU that draws keep these neighbour lists (:meth:`outcrop.sampling.gpu.DeviceSampler`)."""
        self._device_sampler.cache_lists(index, ids)

    @property
    def _device_sampler(self) -> DeviceSampler:
        assert not isinstance(self._sampler, CoreSampler)
        return self._sampler

    def _seeds_of_epoch(self, split: str, epoch: int) -> Ids:
        ids = self.ids[split]
        if isinstance(ids, range) and split != "train":  # takes no memory, whatever the graph
            return ids
        return epoch_seeds(ids, self.config, split, epoch)

    def look_up_rows(self, index: Any, tiers: np.ndarray | None, missing_stay: bool) -> None:
        """Has the GPU that draws look rows up (:meth:`outcrop.sampling.gpu.DeviceSampler.look_up_rows`)."""
        self._device_sampler.look_up_rows(index, tiers, missing_stay)

    def sample(
        self,
        seeds: Seeds,
        on_new_nodes: Callable[[np.ndarray], None],
        on_located: Callable[[int, LocatedRows], None] | None = None,
    ) -> BatchGraph:
        """Draws one batch, as :meth:`epoch` gives it.

        Args:
            on_new_nodes: Called with the seeds, and after each hop with the nodes first met in it: the next part of
                ``n_id``.
            on_located: Called in its place with the number of nodes and where their rows lie, if a GPU has looked them
                up.
        """
        if isinstance(self._sampler, CoreSampler):
            nodes = seeds.nodes if seeds.link is not None else self._numbered(seeds.nodes)
            self._sampler.begin(nodes, seeds.split, seeds.epoch, seeds.batch)
            on_new_nodes(nodes)
            for _ in self.config.fanouts:
                on_new_nodes(np.asarray(self._sampler.hop()))
            graph = self._finish(*self._sampler.finish())
        else:  # a GPU draws batches whole
            drawn, kept, rows = self._device_sampler.sample_kept(
                seeds.nodes, seeds.split, seeds.epoch, seeds.batch
            )
            graph = replace(self._finish(*drawn), on_device=kept)
            if rows is None or on_located is None:
                on_new_nodes(graph.n_id)
            else:
                on_located(graph.num_nodes, rows)
        return graph if seeds.link is None else _with_links(graph, seeds.link)

    def _finish(self, *parts: Any) -> BatchGraph:
        if self._by_type:
            nodes, edges = parts
            ids, per_hop = nodes[self.graph.seed_type.number]
            labels = seed_labels(self.graph, self._labels, ids[: per_hop[0]])
            batch = batch_of(self.graph, nodes, edges, labels)
            if self._distinct:
                batch = replace(batch, edges=tuple(one.with_distinct() for one in batch.edges))
            if self.graph.is_typed:
                return batch
            if self.config.edge_weights:
                batch = self._with_weights(batch)
            degree = self._degrees(ids) if self.config.degrees else None
            return replace(batch, degree=degree, untrimmed=self.config.sampler == "shadow")
        n_id, rowptr, col, nodes, edges = parts
        return BatchGraph.of_one_type(
            n_id,
            rowptr,
            col,
            tuple(nodes),
            tuple(edges),
            seed_labels(self.graph, self._labels, n_id[: nodes[0]]),
            degree=self._degrees(n_id) if self.config.degrees else None,
            untrimmed=self.config.sampler == "shadow",
        )

    def _with_weights(self, batch: BatchGraph) -> BatchGraph:
        """Adds the weights of its edges; positions, by which they are found, stay where edges have rows, or ids are
        asked for.
        """
        (edges,) = batch.edges
        assert edges.positions is not None
        weight = self.topology.weights_at(edges.positions)
        kept = self.graph.has_edge_rows or self.config.edge_ids
        positions = edges.positions if kept else None
        sums = self._weight_sums(batch.n_id) if wants_weight_sums(self.config) else None
        return replace(batch, edges=(replace(edges, positions=positions, weight=weight),), weight_sums=sums)

    def _weight_sums(self, n_id: np.ndarray) -> np.ndarray:
        if self.topology.placement == "paged":
            return self.topology.weight_sums(n_id)
        sums = np.empty((len(n_id), 2))
        assert isinstance(self._sampler, _core.NeighborSampler)
        self._sampler.weight_sums(n_id, sums.reshape(-1))
        return sums

    def _degrees(self, n_id: np.ndarray) -> np.ndarray:
        if self.topology.placement == "paged":
            return self.topology.degrees(n_id)
        degree = np.zeros(len(n_id), np.int32)
        assert not isinstance(self._sampler, _core.WaveSampler)
        self._sampler.degrees(n_id, degree)
        return degree


def _divided(ids: Mapping[str, Chosen]) -> tuple[dict[str, Ids], dict[str, ChosenEdges]]:
    """Returns the nodes, and the edges to be predicted, that callers chose for splits."""
    nodes: dict[str, Ids] = {}
    edges: dict[str, ChosenEdges] = {}
    for split, one in ids.items():
        if isinstance(one, ChosenEdges):
            edges[split] = one
        else:
            nodes[split] = one
    return nodes, edges


def _with_links(batch: BatchGraph, link: LinkBatch) -> BatchGraph:
    return replace(
        batch,
        edge_label_index=link.index,
        edge_label=link.label,
        edge_label_type=link.edge_type,
        edge_input_id=link.positions,
    )


def _consecutive(numbers: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Yields (first, count) of the stretches of consecutive ``numbers``, of at most ``most`` each."""
    at = 0
    while at < len(numbers):
        end = at + 1
        while end < min(len(numbers), at + most) and numbers[end] == numbers[end - 1] + 1:
            end += 1
        yield numbers[at], end - at
        at = end
