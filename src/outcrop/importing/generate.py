"""Generate: synthetic graphs with labels, features and splits, streamed, larger than memory if asked.

Every block of nodes is a pure function of the seed (core/graph/generate.h), so the artifact is the same for
any budget and thread count. There are exactly ``edges`` distinct directed edges and no self-loops. ``sbm``
plants classes that a GNN learns clearly better than an MLP; the classes of ``rmat`` show in the features
only, apart from chance.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import outcrop._core as _core
from outcrop.errors import ArgumentError
from outcrop.importing.sources.base import block_bytes
from outcrop.importing.sources.split import Splitter
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.arrays import ArrayWriter, storage_dtype
from outcrop.store.graph import FORMAT, VERSION, Graph, open_graph
from outcrop.store.manifest import ArraySpec, Manifest

_INT8_SCALE = 2.0**-5
# Of the expected maximum of `classes` normal numbers: where a classifier of single rows is right about half the time.
_SIGNAL_SHARE = 0.72


@dataclass(frozen=True)
class GenerateConfig:
    """Says what to generate.

    Attributes:
        kind: ``sbm``: power-law degrees and planted classes; ``rmat``: R-MAT with Graph500's quadrants by default.
        nodes, edges: Exact counts; edges are directed and distinct.
        features: Columns; 0 = none.
        classes: Labels 0 .. classes - 1, equally frequent.
        dtype: float32, float16, bfloat16, or int8 in steps of 2^-5.
        train_fraction, valid_fraction, test_fraction: Shares of the nodes, rounded to whole nodes.
        homophily: sbm: chance that a source is drawn from the class of its target.
        skew: sbm: the degree of the k-th hottest node goes with k^-skew.
        a, b, c: rmat: chances of the quadrants (source bit, target bit) = 00, 01, 10; 11 has the rest.
        signal: Length of the class means, in units of the noise of one column; None = such that single rows are
            classified right about half the time.
    """

    kind: Literal["sbm", "rmat"] = "sbm"
    nodes: int = 100_000
    edges: int = 1_500_000
    features: int = 128
    classes: int = 16
    dtype: str = "float32"
    train_fraction: float = 0.1
    valid_fraction: float = 0.05
    test_fraction: float = 0.1
    homophily: float = 0.6
    skew: float = 0.67
    a: float = 0.57
    b: float = 0.19
    c: float = 0.19
    signal: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        problems = []
        fractions = (self.train_fraction, self.valid_fraction, self.test_fraction)
        if self.kind not in ("sbm", "rmat"):
            problems.append(f"kind {self.kind!r} is neither sbm nor rmat")
        if self.dtype not in ("float32", "float16", "bfloat16", "int8"):
            problems.append(f"dtype {self.dtype!r} is none of float32, float16, bfloat16, int8")
        if min(fractions) < 0 or sum(fractions) > 1 + 1e-9:
            problems.append(f"split fractions {fractions} are negative or exceed 1 together")
        if problems:
            raise ArgumentError("; ".join(problems))

    def model(self) -> _core.GraphModel:
        model = _core.GraphModel()
        model.rmat = self.kind == "rmat"
        model.num_nodes, model.num_edges = self.nodes, self.edges
        model.num_classes, model.feature_dim = self.classes, self.features
        model.homophily, model.skew = self.homophily, self.skew
        model.a, model.b, model.c = self.a, self.b, self.c
        automatic = max(1.0, _SIGNAL_SHARE * math.sqrt(2 * math.log(max(self.classes, 2))))
        model.signal = automatic if self.signal is None else self.signal
        model.seed = self.seed & ((1 << 64) - 1)
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
    generator = _core.GraphGenerator(runtime.budget, config.model())
    with (
        manifests.publishing(out) as work,
        runtime.trace.span("generate", nodes=config.nodes, edges=config.edges),
    ):
        arrays, attributes = _topology(generator, config, runtime, work)
        arrays["labels"] = _labels(generator, config, runtime, work)
        if config.features:
            _features(generator, config, runtime, work).finish_into(arrays)
        arrays |= _splits(config, runtime, work)
        attributes |= {
            "num_nodes": config.nodes,
            "num_edges": config.edges,
            "num_classes": config.classes,
            "feature_dim": config.features,
            "undirected": False,
        }
        if config.features and config.dtype == "int8":
            attributes["feature_scale"] = _INT8_SCALE
        manifests.write(work, Manifest(FORMAT, VERSION, arrays, attributes, asdict(config)))
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


def _splits(config: GenerateConfig, runtime: Runtime, work: Path) -> dict[str, ArraySpec]:
    rows = max(1024, block_bytes(runtime) // 64)
    fractions = (config.train_fraction, config.valid_fraction, config.test_fraction)
    splitter = Splitter(config.seed, config.nodes, fractions)
    blocks = (np.arange(start, min(start + rows, config.nodes)) for start in range(0, config.nodes, rows))
    return splitter.write(blocks, runtime, work)
