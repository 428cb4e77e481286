"""Small graphs with features of any width and dtype, prepared runs, and what they must hold, worked out with NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from artifact_support import manifest_at
from outcrop.config import PlanConfig, SampleConfig, Size
from outcrop.errors import BudgetError
from outcrop.preparation.pack import pack
from outcrop.preparation.plan import plan
from outcrop.preparation.plan_memory import divide_host_memory
from outcrop.preparation.sample import sample
from outcrop.runtime.runtime import Runtime
from outcrop.store import packed, samples
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.store.graph_types import NodeType, RowFile
from outcrop.store.manifest import ArraySpec
from outcrop.store.placement import Placement, open_placement
from outcrop.testing import write_graph
from prepare_support import prepare

WIDTHS = (1, 7, 100, 128, 343, 602, 768, 1024, 1433)
DTYPES = ("float32", "float16", "bfloat16", "int8")
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
PAGE = 4096


def random_features(nodes: int, width: int, dtype: str, seed: int = 0) -> np.ndarray:
    """Values of a normal distribution as they are stored; bfloat16 as its 16 bits."""
    values = np.random.default_rng(seed).standard_normal((nodes, width)).astype(np.float32)
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return (values * 20).astype(np.int8) if dtype == "int8" else values.astype(dtype)


def as_rows(array: np.ndarray) -> np.ndarray:
    """The bytes of each row: uint8 [rows, row_bytes]."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1)


def skewed_edges(nodes: int, edges: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([(rng.random(edges) ** 3 * nodes).astype(np.int64), rng.integers(0, nodes, edges)])


def a_graph(
    path: Path,
    runtime: Runtime,
    *,
    nodes: int = 600,
    edges: int = 5000,
    width: int = 16,
    dtype: str = "float32",
    train: int = 90,
    seed: int = 0,
    features: np.ndarray | None = None,
    weighted: bool = False,
) -> Graph:
    """Features are :func:`random_features`; train, valid and test are disjoint; labels 0 to 4, some absent."""
    rng = np.random.default_rng(seed + 1)
    order = rng.permutation(nodes)
    splits = {
        "train": order[:train],
        "valid": order[train : train + 25],
        "test": order[train + 25 : train + 60],
    }
    labels = rng.integers(0, 5, nodes)
    labels[rng.random(nodes) < 0.1] = -1
    return write_graph(
        path,
        skewed_edges(nodes, edges, seed),
        nodes,
        runtime,
        labels=labels,
        splits=splits,
        features=random_features(nodes, width, dtype, seed) if features is None else features,
        feature_dtype=dtype,
        edge_weight=rng.random(edges).astype(np.float32) if weighted else None,
    )


@dataclass
class Stages:
    """The three artifacts of a run, open."""

    graph: Graph
    folder: Path
    samples: samples.SampleSet
    placement: Placement
    records: packed.PackedRecords | None

    def batch(self, number: int) -> BatchGraph:
        return self.samples.read(number, np.zeros(self.samples.max_record_bytes, np.uint8))

    def batches(self) -> list[BatchGraph]:
        """Of the whole sample set."""
        return [self.batch(b) for b in range(self.samples.num_batches)]


def sampled(graph: Graph, folder: Path, runtime: Runtime, **options: object) -> samples.SampleSet:
    config = SampleConfig(**{"fanouts": (4, 4), "batch_size": 20, "epochs": 2, **options})
    sample(graph, config, folder / "sample", runtime)
    return samples.open_samples(runtime, folder / "sample")


def planned(
    graph: Graph,
    folder: Path,
    runtime: Runtime,
    sample_set: samples.SampleSet,
    config: PlanConfig,
    name: str = "plan",
) -> Placement:
    plan(graph, sample_set, config, folder / name, runtime)
    return open_placement(runtime, folder / name)


def packed_run(graph: Graph, folder: Path, runtime: Runtime, config: PlanConfig, **options: object) -> Stages:
    sample_set = sampled(graph, folder, runtime, **options)
    placement = planned(graph, folder, runtime, sample_set, config)
    pack(graph, sample_set, placement, folder / "pack", runtime)
    return Stages(
        graph,
        folder,
        sample_set,
        placement,
        packed.open_packed(runtime, folder / "pack", placement, sample_set),
    )


def a_run_of_all_levels(
    folder: Path, *, width: int, train: int, gpu_memory: Size, **options: Any
) -> tuple[Graph, Path]:
    """Makes a graph and a run of it, so small that rows come from every level: both caches, the disk's, packed."""
    with Runtime() as runtime:
        graph = a_graph(folder / "graph", runtime, width=width, train=train)
    run = folder / "run"
    prepare(
        graph, run, fanouts=(3, 3), batch_size=20, epochs=2, memory="1600KiB", gpu_memory=gpu_memory,
        disk_space="900KiB", **options,
    )  # fmt: skip
    return graph, run


def config_with_cache(
    sample_set: samples.SampleSet,
    row_bytes: int,
    rows: int,
    device_rows: int = 0,
    slots: int = 2,
    **options: Any,
) -> PlanConfig:
    """A plan config whose host cache has room for ``rows`` rows and some bytes."""
    low, high = 1, 1 << 40

    def cache(memory: int) -> int:
        try:
            return divide_host_memory(
                sample_set, PlanConfig(memory=memory, slots=slots, **options), (rows_of_nodes(row_bytes),)
            ).cache_bytes
        except BudgetError:
            return -1

    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if cache(middle) >= rows * row_bytes else (middle + 1, high)
    batches = 2 * (sample_set.max_nodes * row_bytes + 4 * sample_set.max_record_bytes)
    gpu = batches + device_rows * row_bytes + row_bytes // 2 if device_rows else 0
    return PlanConfig(memory=low + row_bytes // 2, slots=slots, gpu_memory=gpu, **options)


def rows_of_nodes(row_bytes: int) -> RowFile:
    """A row file of the only node type of a graph."""
    nodes = NodeType(0, "", 0, 1 << 40, 0)
    return RowFile(
        0, nodes, "features", ArraySpec("features.bin", "uint8", (1 << 40, row_bytes), row_bytes, 0, 0)
    )


def manifest_of(folder: Path) -> dict:
    return manifest_at(folder / "manifest.json")


def round_up(count: int, to: int = PAGE) -> int:
    return (count + to - 1) // to * to


def meta_size(batch: BatchGraph, cached: int, id_bytes: int = 4) -> int:
    """Bytes of the structure of a record, from the layout as documented: 64 words, then sections in whole words."""
    sections = (
        len(batch.n_id) * id_bytes,
        len(batch.rowptr) * 4,
        len(batch.col) * 4,
        len(batch.labels) * 8,
        cached * 8,
    )
    return 512 + sum(round_up(s, 8) for s in sections)


def span_of(batch: BatchGraph, cached: int, row_bytes: int) -> int:
    """Bytes of a whole record on disk."""
    packed_rows = len(batch.n_id) - cached
    rows = round_up(cached * row_bytes % PAGE + packed_rows * row_bytes) if packed_rows else 0
    return round_up(meta_size(batch, cached)) + rows
