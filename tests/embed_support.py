"""Small knowledge graphs and what tests of embeddings share."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from outcrop.config import BucketConfig
from outcrop.embed.buckets import Buckets
from outcrop.embed.prepare import prepare
from outcrop.embed.training import EmbeddingTrainer
from outcrop.importing.triples import import_triples
from outcrop.runtime.runtime import Runtime


def random_triples(nodes: int, relations: int, count: int, seed: int = 0) -> np.ndarray:
    """int64 [count, 3] or, without relations, [count, 2]; every node occurs."""
    random = np.random.default_rng(seed)
    ends = np.concatenate([np.arange(nodes), random.zipf(1.6, 2 * count) % nodes])[: 2 * count]
    random.shuffle(ends)
    columns = [ends[:count], ends[count:]]
    if relations:
        columns.insert(
            1, np.concatenate([np.arange(relations), random.integers(0, relations, count)])[:count]
        )
    return np.stack(columns, axis=1)


def write_triples(folder: Path, **splits: np.ndarray) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        prefix = ["n", "n"] if rows.shape[1] == 2 else ["n", "r", "n"]
        lines = ("\t".join(f"{p}{i}" for p, i in zip(prefix, row, strict=True)) for row in rows.tolist())
        (folder / f"{split}.txt").write_text("".join(line + "\n" for line in lines))
    return folder


def knowledge_graph(folder: Path, runtime: Runtime, **splits: np.ndarray) -> Path:
    """Imported: ids are given as names appear, so look names up to compare."""
    import_triples(str(write_triples(folder / "text", **splits)), folder / "kg", runtime)
    return folder / "kg"


def buckets_of(source: Path, run: Path, runtime: Runtime, partitions: int = 1, **options: object) -> Buckets:
    return prepare(source, run, BucketConfig(partitions, **{"slices": 1, **options}), runtime)  # type: ignore[arg-type]


def named_edges(buckets: Buckets, runtime: Runtime) -> dict[str, list[tuple[str, ...]]]:
    """All edges with names, by split; training edges also by bucket, as (split, i, j)."""
    numbering, division = buckets.numbering(runtime), buckets.division
    entities = buckets.names(runtime, "entity")
    relations = buckets.names(runtime, "relation") if buckets.num_relations else []

    def name(rows: np.ndarray) -> list[tuple[str, ...]]:
        ends = [[entities[i] for i in numbering.nodes(rows[:, c].astype(np.int64))] for c in (0, -1)]
        if rows.shape[1] == 2:
            return list(zip(*ends, strict=True))
        return list(zip(ends[0], [relations[i] for i in rows[:, 1]], ends[1], strict=True))

    found = {s: name(buckets.array(runtime, s).read("test")) for s in ("valid", "test") if buckets.count(s)}
    edges, starts, p = buckets.array(runtime, "edges").read("test"), buckets.starts(runtime), division.parts
    found["train"] = []
    for bucket in range(p * p):
        rows = edges[starts[bucket] : starts[bucket + 1]].astype(np.int64)
        i, j = divmod(bucket, p)
        assert not len(rows) or (rows[:, 0].max() < division.size(i) and rows[:, -1].max() < division.size(j))
        rows[:, 0] += division.starts[i]
        rows[:, -1] += division.starts[j]
        found["train"] += name(rows)
    return found


def fit(buckets: Buckets, run: Path, config, runtime: Runtime, **options) -> EmbeddingTrainer:
    """Trained to the end and closed."""
    made = EmbeddingTrainer(buckets, run, config, runtime, **options)
    try:
        made.result = made.run()  # type: ignore[attr-defined]
    finally:
        made.close()
    return made


def table_of(run: Path, runtime: Runtime, epoch: str = "best") -> tuple[np.ndarray, np.ndarray | None]:
    """float32 [nodes, stride] by node, vectors and optimizer state, and the vectors of relations."""
    from outcrop.embed.model import open_model

    trained = open_model(run, runtime, epoch)
    try:
        table, division = trained.table, trained.buckets.division
        out = np.empty((trained.num_nodes, table.shape.stride), np.float32)
        slab = runtime.budget.empty("test", table.slab_bytes)
        numbering = trained.buckets.numbering(runtime)
        for part in range(division.parts):
            table.load(part, slab)
            rows = np.arange(division.starts[part], division.starts[part + 1])
            out[numbering.nodes(rows)] = table.rows_of(slab)[: len(rows)]
        return out, trained.relations
    finally:
        trained.close()
