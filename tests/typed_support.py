"""Typed graphs of the reference as the arrays that the core samples, and the core's batches in the reference's form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from outcrop import _core
from outcrop.runtime.runtime import Runtime
from typed_reference import Fanouts, Seeds, TypedBatch, TypedGraph

PAGE = 4096
RawParts = tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]  # of node types, of edge types


@dataclass(frozen=True)
class TypedArrays:
    """Holds ``indptr`` int64 [lists + 1], ``indices`` int64 [edges] and ``weights`` float32 of the edge types that have
    them, one edge type after the other."""

    graph: TypedGraph
    indptr: np.ndarray
    indices: np.ndarray
    weights: np.ndarray
    relations: Any

    def seeds(self, seeds: Seeds) -> list[int]:
        """Returns global ids, type by type."""
        return [self.graph.first_node(t) + i for t in sorted(seeds) for i in seeds[t]]


def arrays_of(graph: TypedGraph) -> TypedArrays:
    lengths = [len(row) for rows in graph.lists for row in rows]
    sources = [
        graph.first_node(source) + u
        for (source, _), rows in zip(graph.edge_types, graph.lists, strict=True)
        for u in chain(*rows)
    ]
    weights = graph.weights or (None,) * len(graph.edge_types)
    relations = _core.Relations(
        [0, *accumulate(graph.sizes)],
        [
            (*ends, sum(map(len, rows)), w is not None)
            for ends, rows, w in zip(graph.edge_types, graph.lists, weights, strict=True)
        ],
    )
    return TypedArrays(
        graph,
        np.cumsum([0, *lengths], dtype=np.int64),
        np.array(sources, np.int64),
        np.array([w for rows in weights if rows is not None for w in chain(*rows)], np.float32),
        relations,
    )


def _flat(arrays: TypedArrays, batches: Sequence[Seeds]) -> tuple[np.ndarray, np.ndarray]:
    seeds = [arrays.seeds(batch) for batch in batches]
    return np.array([s for batch in seeds for s in batch], np.int64), np.cumsum([0, *map(len, seeds)])


def batch_of(nodes: Sequence[tuple[Any, ...]], edges: Sequence[tuple[Any, ...]]) -> TypedBatch:
    """Turns a batch of the core into the form of the reference, and checks its types of numbers."""
    rows = []
    for rowptr, col, _, positions in edges:
        assert (rowptr.dtype, col.dtype) == (np.int32, np.int32)
        assert rowptr[0] == 0
        assert rowptr[-1] == len(col)
        places = [None] * len(col) if positions is None else positions.tolist()
        assert len(places) == len(col)
        pairs = list(zip(col.tolist(), places, strict=True))
        rows.append(tuple(tuple(pairs[a:b]) for a, b in pairwise(rowptr.tolist())))
    return TypedBatch(
        tuple(tuple(ids.tolist()) for ids, _ in nodes),
        tuple(tuple(per_hop) for _, per_hop in nodes),
        tuple(rows),
        tuple(tuple(edge[2]) for edge in edges),
    )


def draw_typed(
    arrays: TypedArrays,
    batches: Sequence[Seeds],
    fanouts: Fanouts,
    *,
    threads: int = 1,
    dtype: type = np.int64,
    **options: Any,
) -> list[TypedBatch]:
    """Draws from memory."""
    key = {name: options.pop(name, 0) for name in ("split", "epoch", "first_batch")}
    if options.get("sampler") == "weighted":
        options["weights"] = arrays.weights
    sampler = _core.NeighborSampler(
        _core.WorkerPool(threads),
        arrays.indptr,
        arrays.indices.astype(dtype, copy=False),
        [list(f) for f in fanouts],
        relations=arrays.relations,
        **options,
    )
    return [batch_of(*parts) for parts in sampler.sample(*_flat(arrays, batches), *key.values())]


@dataclass
class TypedOnDisk:
    """Holds a typed topology in files of its own, read by pages."""

    arrays: TypedArrays
    runtime: Runtime
    folder: Path
    pages: Any
    files: dict[str, Any]
    dtypes: dict[str, type]

    def draw(
        self, batches: Sequence[Seeds], fanouts: Fanouts, *, wave: int | None = None, **options: Any
    ) -> list[TypedBatch]:
        key = {name: options.pop(name, 0) for name in ("split", "epoch", "first_batch")}
        sampler = _core.WaveSampler(
            self.runtime.workers,
            self.pages,
            self.runtime.budget,
            [list(f) for f in fanouts],
            wave=wave or max(len(batches), 1),
            **options,
        )
        return [batch_of(*parts) for parts in sampler.sample(*_flat(self.arrays, batches), *key.values())]

    def mapped(self) -> TypedArrays:
        """Maps the same files."""
        arrays = {name: getattr(self.arrays, name) for name in self.files}
        return replace(
            self.arrays,
            **{
                name: np.memmap(self.folder / name, self.dtypes[name], "r", shape=values.shape)
                for name, values in arrays.items()
                if len(values)
            },
        )

    def close(self) -> None:
        for file in self.files.values():
            self.runtime.io.close(file)


def on_disk(
    arrays: TypedArrays,
    folder: Path,
    runtime: Runtime,
    *,
    dtype: type = np.uint32,
    scratch: int = 1 << 16,
    cache: int = 0,
    indptr_in_memory: bool = False,
) -> TypedOnDisk:
    files = {}
    for name, values in (
        ("indptr", arrays.indptr),
        ("indices", arrays.indices.astype(dtype)),
        ("weights", arrays.weights),
    ):
        data = values.tobytes()
        (folder / name).write_bytes(data + bytes(-len(data) % PAGE))
        files[name] = runtime.io.open(str(folder / name), _core.OpenMode.read)
    pages = _core.PagedTopology(
        runtime.io,
        runtime.budget,
        num_nodes=sum(arrays.graph.sizes),
        num_edges=len(arrays.indices),
        indptr=arrays.indptr if indptr_in_memory else None,
        indptr_file=None if indptr_in_memory else files["indptr"],
        indptr_cache_bytes=cache,
        indices_file=files["indices"],
        index_bytes=np.dtype(dtype).itemsize,
        indices_cache_bytes=cache,
        weights_file=files["weights"],
        weights_cache_bytes=cache,
        scratch_bytes=scratch,
        relations=arrays.relations,
    )
    dtypes = {"indptr": np.int64, "indices": dtype, "weights": np.float32}
    return TypedOnDisk(arrays, runtime, folder, pages, files, dtypes)
