"""Generate: synthetic graphs with labels, features and splits, streamed, larger than memory if asked.

Every block of nodes is a pure function of the seed (core/graph/generate.h), so the artifact is the same for
any budget and thread count. There are exactly ``edges`` distinct directed edges and no self-loops. ``sbm``
plants classes that a GNN learns clearly better than an MLP; the classes of ``rmat`` show in the features
only, apart from chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import outcrop._core as _core
from outcrop.config import GenerateConfig
from outcrop.errors import ArgumentError
from outcrop.importing.generate_typed import write_typed
from outcrop.importing.quantise import RowQuantiser, quantisation_for
from outcrop.importing.sources.base import block_bytes
from outcrop.importing.sources.split import Splitter
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import ArrayWriter, storage_dtype
from outcrop.store.graph import FORMAT, Graph, open_graph, version_for
from outcrop.store.manifest import ArraySpec, Manifest
from outcrop.store.quantised import ATTRIBUTE

_INT8_SCALE = 2.0**-5
# Of the expected maximum of `classes` normal numbers: where a classifier of single rows is right about half the time.
_SIGNAL_SHARE = 0.72


def _model(config: GenerateConfig) -> _core.GraphModel:
    model = _core.GraphModel()
    model.rmat = config.kind == "rmat"
    model.num_nodes, model.num_edges = config.nodes, config.edges
    model.num_classes, model.feature_dim = config.classes, config.features
    model.homophily, model.skew = config.homophily, config.skew
    model.a, model.b, model.c = config.a, config.b, config.c
    automatic = max(1.0, _SIGNAL_SHARE * math.sqrt(2 * math.log(max(config.classes, 2))))
    model.signal = automatic if config.signal is None else config.signal
    model.seed = config.seed & ((1 << 64) - 1)
    return model


def generate_graph(
    out: Path | str, runtime: Runtime, config: GenerateConfig | None = None, **options: Any
) -> Graph:
    """Generates a graph artifact at ``out``, replacing an artifact that is there.

    Args:
        config: What; ``options`` are fields of :class:`GenerateConfig` and may be given instead.

    Raises:
        ArgumentError: An impossible graph: more edges than pairs of nodes, more classes than nodes, ...
        BudgetError: The memory budget is too small.
        IoError: The operating system refused to write.
    """
    if config is not None and options:
        raise ArgumentError("give either config or single options")
    config = config or GenerateConfig(**options)
    out = Path(out)
    manifests.check_destination(out)
    if config.kind == "typed":
        with manifests.publishing(out) as work, runtime.trace.span("generate", nodes=config.nodes):
            write_typed(config, runtime, work)
        return open_graph(out)
    generator = _core.GraphGenerator(runtime.budget, _model(config))
    with (
        manifests.publishing(out) as work,
        runtime.trace.span("generate", nodes=config.nodes, edges=config.edges),
    ):
        arrays, attributes = _topology(generator, config, runtime, work)
        arrays["labels"] = _labels(generator, config, runtime, work)
        if config.features and config.quantises:
            attributes |= _quantised(generator, config, runtime, work, arrays)
        elif config.features:
            _features(generator, config, runtime, work).finish_into(arrays)
        arrays |= _splits(config, runtime, work)
        attributes |= {
            "num_nodes": config.nodes,
            "num_edges": config.edges,
            "num_classes": config.classes,
            "feature_dim": config.features,
            "undirected": False,
        }
        if config.features and config.dtype == "int8" and not config.quantises:
            attributes["feature_scale"] = _INT8_SCALE
        manifests.write(work, Manifest(FORMAT, version_for(attributes), arrays, attributes, config.stored()))
    return open_graph(out)


def _topology(
    generator: _core.GraphGenerator, config: GenerateConfig, runtime: Runtime, work: Path
) -> tuple[dict[str, ArraySpec], dict[str, Any]]:
    wide = config.nodes > 1 << 32
    index = np.dtype(np.int64 if wide else np.uint32)
    indptr = ArrayWriter(runtime, work, "indptr", "int64", page_sums=True)
    indices = ArrayWriter(runtime, work, "indices", index.name, page_sums=True)
    most_edges = max(1024, block_bytes(runtime) // index.itemsize)
    rows = max(64, min(1 << 16, most_edges // 16))
    edges_before = max_in_degree = empty = 0
    runtime.progress.start("edges", config.edges, "edges")
    with runtime.budget.reserve("generate", 4 * 8 * (rows + 1)):
        for start in range(0, config.nodes, rows):
            degrees = np.empty(min(rows, config.nodes - start), np.int64)
            generator.degrees(start, degrees, runtime.workers)
            ends = np.cumsum(degrees)
            indptr.append(np.concatenate([[0], ends])[start > 0 :] + edges_before)
            for first, last in _pieces(ends, most_edges):
                before = int(ends[first - 1]) if first else 0
                offsets = np.concatenate([[before], ends[first:last]]) - before
                if offsets[-1]:
                    out = runtime.budget.empty("generate", int(offsets[-1]) * index.itemsize)
                    generator.sources(start + first, offsets, out, wide, runtime.workers)
                    indices.append(out.view(index))
                runtime.progress.advance("edges", int(offsets[-1]))
            edges_before += int(ends[-1])
            max_in_degree, empty = max(max_in_degree, int(degrees.max())), empty + int((degrees == 0).sum())
    runtime.progress.finish("edges")
    specs: dict[str, ArraySpec] = {}
    for writer in (indptr, indices):
        writer.finish_into(specs)
    return specs, {"max_in_degree": max_in_degree, "nodes_without_in_edges": empty}


def _pieces(ends: np.ndarray, most_edges: int) -> list[tuple[int, int]]:
    """Returns ranges of nodes with at most ``most_edges`` edges each, or of one node."""
    pieces, first = [], 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most_edges, side="right")))
        pieces.append((first, last))
        first = last
    return pieces


def _labels(
    generator: _core.GraphGenerator, config: GenerateConfig, runtime: Runtime, work: Path
) -> ArraySpec:
    writer = ArrayWriter(runtime, work, "labels", "int64")
    rows = max(1024, block_bytes(runtime) // 8)
    out = runtime.budget.empty("generate", 8 * min(rows, config.nodes)).view(np.int64)
    for start in range(0, config.nodes, rows):
        block = out[: min(rows, config.nodes - start)]
        generator.labels(start, block, runtime.workers)
        writer.append(block)
    return writer.finish()


def _features(
    generator: _core.GraphGenerator, config: GenerateConfig, runtime: Runtime, work: Path
) -> ArrayWriter:
    storage = storage_dtype(config.dtype)
    writer = ArrayWriter(runtime, work, "features", config.dtype, (config.features,), page_sums=True)
    row_bytes = config.features * storage.itemsize
    rows = max(1, min(config.nodes, block_bytes(runtime) // row_bytes))
    out = runtime.budget.empty("generate", rows * row_bytes)
    runtime.progress.start("features", config.nodes, "rows")
    for start in range(0, config.nodes, rows):
        count = min(rows, config.nodes - start)
        block = out[: count * row_bytes]
        generator.features(start, count, config.dtype, block, runtime.workers)
        writer.append(block.view(storage).reshape(count, config.features))
        runtime.progress.advance("features", count)
    runtime.progress.finish("features")
    return writer


def _quantised(
    generator: _core.GraphGenerator,
    config: GenerateConfig,
    runtime: Runtime,
    work: Path,
    arrays: dict[str, ArraySpec],
) -> dict[str, Any]:
    """Writes the features in few bits, and what they are into ``arrays``; returns what the manifest says of them."""
    how = quantisation_for(config.dtype, config.scale, config.features)
    row_bytes = 4 * config.features
    rows = max(1, min(config.nodes, block_bytes(runtime) // row_bytes))
    out = runtime.budget.empty("generate", rows * row_bytes)
    quantiser = RowQuantiser(how, runtime, work, rows)

    def generate(task: str, take: Callable[[np.ndarray], None]) -> None:
        with runtime.task(task, config.nodes, "rows"):
            for start in range(0, config.nodes, rows):
                count = min(rows, config.nodes - start)
                block = out[: count * row_bytes]
                generator.features(start, count, "float32", block, runtime.workers)
                take(block.view(np.float32).reshape(count, config.features))
                runtime.progress.advance(task, count)

    if how.scale == "column":
        generate("ranges of columns", quantiser.widen)
    quantiser.begin()
    generate("features", quantiser.append)
    quantiser.finish_into(arrays)
    return {ATTRIBUTE: how.as_attribute()}


def _splits(config: GenerateConfig, runtime: Runtime, work: Path) -> dict[str, ArraySpec]:
    rows = max(1024, block_bytes(runtime) // 64)
    fractions = (config.train_fraction, config.valid_fraction, config.test_fraction)
    splitter = Splitter(config.seed, config.nodes, fractions)
    blocks = (np.arange(start, min(start + rows, config.nodes)) for start in range(0, config.nodes, rows))
    return splitter.write(blocks, runtime, work)
