"""Nodes that text names are numbered by where their names appear first, whatever the budget: the oracle is pandas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outcrop.importing.graph import import_graph
from outcrop.importing.triples import import_triples
from outcrop.runtime import memory_tables
from outcrop.store.graph import Graph
from support import new_runtime

EDGES = 5000


def pairs() -> np.ndarray:
    """Names [EDGES, 2], of which new ones appear on both sides down to the end."""
    rng = np.random.default_rng(3)
    drawn = rng.integers(0, np.linspace(20, 2000, EDGES).astype(int)[:, None], (EDGES, 2))
    return np.char.add("person ", drawn.astype(str))


def edges_of(graph: Graph) -> set[tuple[int, int]]:
    return set(map(tuple, graph.edge_index().T.tolist()))


@pytest.mark.parametrize("block_bytes", [1 << 10, 16 << 10, 1 << 20])
@pytest.mark.parametrize("suffix", ["csv", "parquet", "categories.parquet"])
def test_edges(tmp_path: Path, suffix: str, block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    block = replace(memory_tables.READ_BLOCK, least=block_bytes, most=block_bytes)
    monkeypatch.setattr(memory_tables, "READ_BLOCK", block)
    names = pairs()
    frame = pd.DataFrame(names, columns=["src", "dst"])
    path = tmp_path / f"edges.{suffix}"
    if suffix == "csv":
        frame.to_csv(path, index=False)
    else:
        kind = pd.CategoricalDtype(["nobody", *sorted(set(names.ravel()))])  # with one that is not there
        frame = frame.astype(kind) if suffix.startswith("categories") else frame
        pq.write_table(pa.Table.from_pandas(frame), path)
    graph = import_graph(f"edges:{path}", tmp_path / "g", new_runtime("64MiB"))
    numbers, known = pd.factorize(names.ravel())
    assert graph.node_names(np.arange(graph.num_nodes)) == known.tolist()
    assert edges_of(graph) == set(map(tuple, numbers.reshape(-1, 2).tolist()))


@pytest.mark.parametrize("block_bytes", [1 << 10, 1 << 20])
def test_triples(tmp_path: Path, block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    block = replace(memory_tables.READ_BLOCK, least=block_bytes, most=block_bytes)
    monkeypatch.setattr(memory_tables, "READ_BLOCK", block)
    names = pairs()
    relations = np.char.add("r", (np.arange(EDGES) % 7).astype(str))
    (tmp_path / "kg").mkdir()
    lines = ("\t".join(row) for row in zip(names[:, 0], relations, names[:, 1], strict=True))
    (tmp_path / "kg" / "train.txt").write_text("\n".join(lines) + "\n")
    made = import_triples(str(tmp_path / "kg"), tmp_path / "t", new_runtime("64MiB"))
    numbers, known = pd.factorize(names.ravel())
    found = made.array(new_runtime("64MiB"), "train").memmap()
    assert made.num_entities == len(known)
    assert np.array_equal(found[:, [0, 2]], numbers.reshape(-1, 2))
    assert np.array_equal(found[:, 1], pd.factorize(relations)[0])
