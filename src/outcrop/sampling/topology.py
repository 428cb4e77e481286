"""The CSC topology of a graph: in memory where the budget allows it, else on disk, read by pages.

Paged: neighbour lists are read through the I/O engine, for several mini-batches at once, merged and sorted by page; a
cache keeps the pages that are wanted most (core/sampling/paged.h). ``indptr`` stays in memory where half of the share
holds it, else it is paged too. Mapped: through the system's page cache, which is no memory of ours and is dropped when
somebody needs it; much faster than paging as long as there is room for the whole topology, and much slower where not.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

import outcrop._core as _core
from outcrop.config import check_topology
from outcrop.runtime import memory_tables, system
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import DiskArray
from outcrop.store.graph import Graph

_AT_ONCE = 1 << 16  # weights that are read from disk at a time to be added up
_TORCH_BYTES = 256 << 20  # that a process takes more once it has imported it
_LIST_INDEX = 40  # bytes besides the neighbours of a cached list, most of them while it is read


@dataclass(frozen=True)
class EdgeValues:
    """Says what of edges is asked for, beside where they come from.

    Attributes:
        weights: Their weights.
        positions: Where they lie; in any case where they have rows.
    """

    weights: bool = False
    positions: bool = False


CoreSampler = _core.NeighborSampler | _core.WaveSampler
"""What draws mini-batches on the CPU, many at a time or one hop by hop: from memory, or from pages on disk."""


@dataclass(frozen=True)
class Topology:
    """Holds a topology: ``indptr`` int64 [N + 1], ``indices`` uint32 or int64 [E], ``weights`` float32 [E], as far as
    they are in memory.

    Attributes:
        pages: The same on disk, where the placement is ``paged``.
        files: What ``pages`` reads, kept open.
        relations: The types, where there are several or it is asked where edges lie; where ``pages`` read the lists,
            they know them.
        keeps_starts: Whether it is asked where edges lie: lists that are cached say it.
    """

    num_nodes: int
    num_edges: int
    placement: Literal["memory", "map", "paged"]
    indptr: np.ndarray | None
    indices: np.ndarray | None
    weights: np.ndarray | None = None
    pages: Any = None
    files: tuple[DiskArray, ...] = ()
    relations: _core.Relations | None = None
    keeps_starts: bool = False

    def sampler(self, runtime: Runtime, workers: Any, wave: int, **options: Any) -> CoreSampler:
        """Makes a sampler of mini-batches; ``options`` are those of ``_core.NeighborSampler``."""
        if self.pages is not None:
            return _core.WaveSampler(workers, self.pages, runtime.budget, wave=wave, **options)
        assert self.indptr is not None
        assert self.indices is not None
        return _core.NeighborSampler(
            workers,
            self.indptr,
            self.indices,
            weights=self.weights,
            relations=self.relations,
            **options,
        )

    def ranges(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Finds where the lists of nodes ``ids`` begin and end: ``indptr[ids], indptr[ids + 1]``."""
        if self.indptr is not None:
            return self.indptr[ids], self.indptr[ids + 1]
        ends = np.empty((len(ids), 2), np.int64)
        self.pages.read_ranges(np.ascontiguousarray(ids, np.int64), ends.reshape(-1))
        return ends[:, 0], ends[:, 1]

    def neighbors(self, positions: np.ndarray) -> np.ndarray:
        """Reads ``indices[positions]``, int64."""
        if self.indices is not None:
            return self.indices[positions].astype(np.int64)
        out = np.empty(len(positions), np.int64)
        self.pages.read_neighbors(np.ascontiguousarray(positions, np.int64), out)
        return out

    def lower_bounds(self, ids: np.ndarray, sources: np.ndarray) -> np.ndarray:
        """Finds the position in ``indices`` of the first neighbour of ``ids[i]`` that is not below ``sources[i]``."""
        low, high = self.ranges(ids)
        low, high = low.copy(), high.copy()
        while len(open_ := np.flatnonzero(low < high)):
            middle = (low[open_] + high[open_]) // 2
            below = self.neighbors(middle) < sources[open_]
            low[open_[below]] = middle[below] + 1
            high[open_[~below]] = middle[~below]
        return low

    def has_edges(self, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Tells, bool, whether there is an edge from ``sources[i]`` to ``targets[i]``."""
        at = self.lower_bounds(targets, sources)
        inside = np.flatnonzero(at < self.ranges(targets)[1])
        found = np.zeros(len(sources), bool)
        found[inside] = self.neighbors(at[inside]) == sources[inside]
        return found

    def edges(self, positions: np.ndarray, lists: range | None = None) -> np.ndarray:
        """Reads, int64 [n, 2], (source, number of the list) of the edges at ``positions`` of ``indices``.

        Lists equal ``np.searchsorted(indptr, positions, "right") - 1``. Of a graph without types they are the targets.

        Args:
            lists: Those that the edges are in; None: any of a graph without types.
        """
        if self.indptr is not None:
            found = np.searchsorted(self.indptr, positions, "right") - 1
        else:  # the first list that ends behind the position
            lists = range(self.num_nodes) if lists is None else lists
            low, high = (np.full(len(positions), end, np.int64) for end in (lists.start, lists.stop - 1))
            while len(open_ := np.flatnonzero(low < high)):
                middle = (low[open_] + high[open_]) // 2
                before = self.ranges(middle)[1] <= positions[open_]
                low[open_[before]] = middle[before] + 1
                high[open_[~before]] = middle[~before]
            found = low
        return np.stack([self.neighbors(positions), found], axis=1)

    def degrees(self, ids: np.ndarray) -> np.ndarray:
        """Counts, int32, in-neighbours of ``ids`` other than themselves."""
        begin, end = self.ranges(ids)
        loops = self.lower_bounds(ids, ids + 1) - self.lower_bounds(ids, ids)
        return (end - begin - loops).astype(np.int32)

    def weights_at(self, positions: np.ndarray) -> np.ndarray:
        """Reads the weights of the edges at ``positions``, float32 [n]."""
        if self.weights is not None:
            return self.weights[positions]
        out = np.empty(len(positions), np.float32)
        self._read_weights(positions, positions + 1, out)
        return out

    def _read_weights(self, begin: np.ndarray, end: np.ndarray, out: np.ndarray) -> None:
        """Reads the weights of edges ``begin[i]`` to ``end[i]``, one stretch after the other, from pages."""
        ends = np.stack([begin, end], axis=1).reshape(-1)
        self.pages.read_lists(np.ascontiguousarray(ends, np.int64), out.view(np.uint8), weights=True)

    def weight_sums(self, ids: np.ndarray) -> np.ndarray:
        """Adds up weights of edges that lead to ``ids``, read by pages, float64 [n, 2]: of those from others, and of
        the last edge from the node itself, 1 where there is none.

        Added in the order of a list, as the sampler adds those in memory: the same bits.
        """
        begin, end = self.ranges(ids)
        low, high = self.lower_bounds(ids, ids), self.lower_bounds(ids, ids + 1)
        out = np.zeros((len(ids), 2))
        out[:, 1] = 1.0
        offsets = np.concatenate([[0], np.cumsum(end - begin)])
        for at in range(0, int(offsets[-1]), _AT_ONCE):
            stop = min(at + _AT_ONCE, int(offsets[-1]))
            first, last = np.searchsorted(offsets, (at, stop - 1), "right") - 1
            lists = np.arange(first, last + 1)
            starts = begin[lists] + np.maximum(at - offsets[lists], 0)
            stops = np.minimum(end[lists], begin[lists] + stop - offsets[lists])
            weights = np.empty(stop - at, np.float32)
            self._read_weights(starts, stops, weights)
            owner = np.repeat(lists, stops - starts)
            position = np.arange(at, stop) - offsets[owner] + begin[owner]
            loop = (low[owner] <= position) & (position < high[owner])
            np.add.at(out[:, 0], owner[~loop], weights[~loop].astype(np.float64))
            out[owner[loop], 1] = weights[loop]
        return out

    def list_bytes(self, first: int, count: int) -> np.ndarray:
        """Counts, int64, bytes that the cached lists of nodes ``first .. first + count - 1`` take, with their index."""
        if self.indptr is not None:
            degrees = np.diff(self.indptr[first : first + count + 1])
        else:
            begin, end = self.ranges(np.arange(first, first + count, dtype=np.int64))
            degrees = end - begin
        return degrees * self._element_bytes + _LIST_INDEX

    @property
    def _element_bytes(self) -> int:
        if not self.files:
            assert self.indices is not None
            return self.indices.itemsize
        return self.files[1].dtype.itemsize + (self.files[2].dtype.itemsize if len(self.files) > 2 else 0)

    def cache_lists(self, index: Any, ids: np.ndarray, runtime: Runtime) -> None:
        """Has lists of ``ids`` (ascending, those of ``index``) taken from memory from now on, tag ``list-cache``."""
        begin, end = self.ranges(ids)
        ends = np.stack([begin, end], axis=1).reshape(-1)
        offsets = runtime.budget.empty("list-cache", 8 * (len(ids) + 1)).view(np.int64)
        np.cumsum(end - begin, out=offsets[1:])
        held = []
        for array in self.files[1:]:
            values = runtime.budget.empty("list-cache", int(offsets[-1]) * array.dtype.itemsize)
            self.pages.read_lists(ends, values, weights=array is not self.files[1])
            held.append(values)
        starts = None
        if self.keeps_starts:
            starts = runtime.budget.empty("list-cache", 8 * len(ids)).view(np.int64)
            starts[:] = begin
        self.pages.cache_lists(index, offsets, *held, starts=starts)

    def drop_lists(self) -> None:
        """Lists that were cached are read again, and their memory is given back. Not while a hop is drawn."""
        if self.pages is not None:
            self.pages.drop_lists()


def topology_bytes(graph: Graph) -> int:
    """Counts the bytes of ``indptr`` and ``indices``."""
    return graph.spec("indptr").data_bytes + graph.spec("indices").data_bytes


def placement_of(asked: str, wanted_bytes: int, available_bytes: int, coming_bytes: int | None = None) -> str:
    """Chooses ``memory`` where it fits; else ``map`` where the system can surely cache all of it; else ``paged``.

    A topology that the system cannot cache is read hundreds of times as slowly as one that it can: there has to be room
    for twice its bytes, or for a quarter more than them beside what is known to be taken still.

    Args:
        available_bytes: Of the budget, for a topology in memory.
        coming_bytes: What will be taken still (:func:`coming_bytes`); None: nobody knows.
    """
    check_topology(asked)
    if asked != "automatic":
        return asked
    if wanted_bytes <= available_bytes:
        return "memory"
    known = 2 * wanted_bytes if coming_bytes is None else wanted_bytes * 5 // 4 + coming_bytes
    return "map" if min(2 * wanted_bytes, known) <= system.available_memory() else "paged"


def coming_bytes(runtime: Runtime) -> int:
    """Returns what this process and those that share its memory will take still: the rest of their budgets, and what
    torch does where it is not loaded.
    """
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    loaded = spec is not None and not getattr(spec, "_initializing", False)  # not while a thread imports it
    processes = 1 if runtime.sharing is None else runtime.sharing.processes
    return processes * (runtime.budget.free_bytes + (0 if loaded else _TORCH_BYTES))


def load_topology(
    graph: Graph,
    runtime: Runtime,
    *,
    placement: str = "automatic",
    memory_fraction: float | Fraction = memory_tables.TOPOLOGY.fraction,
    values: EdgeValues = EdgeValues(),
    page_cache: bool = True,
) -> Topology:
    """Loads the topology whole if ``memory_fraction`` of the free budget holds it, else maps it or reads it by pages.

    Args:
        placement: ``memory``, ``map`` or ``paged``; ``automatic`` chooses among them (:func:`placement_of`).
        values: What of edges is asked for.
        page_cache: Where lists are read by pages, keep pages; without it little is held, and hot lists can be cached
            whole (:meth:`Topology.cache_lists`).

    Raises:
        FormatError: The graph has no edge weights, or an array is damaged.
        BudgetError: The placement that was asked for does not fit.
    """
    names = ("indptr", "indices", "edge_weight")[: 3 if values.weights else 2]
    arrays = [graph.array(runtime, name) for name in names]
    available = int(memory_fraction * runtime.budget.free_bytes)
    wanted = sum(a.spec.data_bytes for a in arrays)
    placement = placement_of(placement, wanted, available, coming_bytes(runtime))
    if placement == "paged":
        return _open_pages(graph, runtime, arrays, available, page_cache, values.positions)
    in_memory = placement == "memory"
    parts: list[np.ndarray | None] = [
        a.read("topology") if in_memory else a.memmap(check=True) for a in arrays
    ]
    for array in arrays:
        array.close()
    indptr, indices, weights = (*parts, None)[:3]
    placed: Literal["memory", "map"] = "memory" if in_memory else "map"
    return Topology(
        graph.num_nodes,
        graph.num_edges,
        placed,
        indptr,
        indices,
        weights,
        relations=_relations(graph, values.positions),
    )


def _relations(graph: Graph, positions: bool) -> _core.Relations | None:
    return graph.relations if graph.is_typed or graph.has_edge_rows or positions else None


def scratch_bytes(available: int, wanted_bytes: int, page_cache: bool) -> int:
    """Counts memory for reading a topology of ``wanted_bytes`` by pages, of ``available`` for it; 1.25 times as much
    more goes to the rounds."""
    least = _core.PagedTopology.MIN_SCRATCH_BYTES
    part = memory_tables.PAGE_SCRATCH if page_cache else memory_tables.LIST_SCRATCH
    return max(least, min(part.bytes_of(available), wanted_bytes))


def _open_pages(
    graph: Graph,
    runtime: Runtime,
    arrays: list[DiskArray],
    available: int,
    page_cache: bool,
    positions: bool,
) -> Topology:
    scratch = scratch_bytes(available, sum(a.spec.data_bytes for a in arrays), page_cache)
    left = max(available - scratch - _core.WaveSampler.round_bytes(scratch // 32), 0)
    few = arrays[0].spec.data_bytes <= memory_tables.LIST_STARTS.bytes_of(left)
    indptr = arrays[0].read("topology") if few else None
    if indptr is not None:
        left -= arrays[0].spec.data_bytes
    each = left // (len(arrays) - (indptr is not None)) if page_cache else 0
    pages = _core.PagedTopology(
        runtime.io,
        runtime.budget,
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        relations=_relations(graph, positions),
        indptr=indptr,
        indptr_file=arrays[0].file if indptr is None else None,
        indptr_cache_bytes=each,
        indices_file=arrays[1].file,
        index_bytes=arrays[1].dtype.itemsize,
        indices_cache_bytes=each,
        weights_file=arrays[2].file if len(arrays) > 2 else None,
        weights_cache_bytes=each,
        scratch_bytes=scratch,
    )
    for name, array in zip(("indptr", "indices", "edge_weight"), arrays, strict=False):
        if array.page_sums is not None and not (name == "indptr" and indptr is not None):
            pages.check_pages(name, array.page_sums.crcs, array.page_sums.remedy)
    return Topology(
        graph.num_nodes,
        graph.num_edges,
        "paged",
        indptr,
        None,
        None,
        pages,
        tuple(arrays),
        keeps_starts=graph.has_edge_rows or positions,
    )
