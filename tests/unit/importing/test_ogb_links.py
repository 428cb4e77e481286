"""Data sets of the Open Graph Benchmark in which edges are predicted, in the forms in which they are published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foreign_layouts import ForeignGraph, foreign_graph, write_gzip, write_ogb_text
from outcrop.config.sampling import SPLITS
from outcrop.importing.graph import import_graph
from outcrop.store.graph import Graph
from sparse_reference import features_of
from support import held_bytes, import_ogb, new_runtime

TORTURED = True
BUDGET = 4 << 20
MADE = foreign_graph()
RNG = np.random.default_rng(0)


def write(folder: Path, graph: ForeignGraph, splits: dict[str, dict[str, Any]], name: str) -> Path:
    """Writes a data set without labels and with edges to be predicted, as torch files of ``splits``."""
    write_ogb_text(folder, graph)
    (folder / "raw/node-label.csv.gz").unlink()
    (folder / "split" / name).mkdir(parents=True)
    for split, parts in splits.items():
        torch.save(parts, folder / "split" / name / f"{split}.pt", pickle_protocol=4)
    return folder


def run(folder: Path) -> Graph:
    runtime = new_runtime(BUDGET)
    graph = import_graph(f"ogb:{folder}", folder.parent / "graph", runtime)
    assert runtime.budget.peak_bytes <= BUDGET
    assert held_bytes(runtime) == 0
    return graph


def get(graph: Graph, name: str) -> np.ndarray:
    return np.array(graph.array(new_runtime(), name).memmap())


def pairs(count: int) -> np.ndarray:
    return RNG.integers(0, 60, (count, 2))


def without_splits(features: np.ndarray, weights: np.ndarray | None = None) -> ForeignGraph:
    return ForeignGraph(MADE.edges, features, MADE.labels, {}, MADE.weights if weights is None else weights)


def test_proteins_that_belong_together(tmp_path, monkeypatch):
    """ogbl-ppa: 58 columns of 0 and 1 say the species; edges are stored both ways; train has no negatives."""
    species = np.zeros((60, 58), np.int64)
    species[np.arange(60), RNG.integers(0, 58, 60)] = 1
    splits = {"train": {"edge": pairs(40)}}
    splits |= {split: {"edge": pairs(9), "edge_neg": pairs(30)} for split in ("valid", "test")}
    folder = write(tmp_path / "ogbl_ppa", without_splits(species), splits, "throughput")
    graph = run(folder)
    assert features_of(graph).dtype == np.float32
    assert np.array_equal(features_of(graph), species)
    assert graph.manifest.attributes["undirected"]
    assert not graph.has("labels")
    for split in SPLITS:
        assert np.array_equal(get(graph, f"{split}_edges"), splits[split]["edge"])
    where = folder / "split/throughput"
    assert f"negatives of {where} cannot be stored yet and are not imported: edge_neg" in graph.notes
    reader = import_ogb("io.read_graph_raw", monkeypatch)
    (loaded,) = reader.read_csv_graph_raw(str(folder / "raw"), True)
    assert np.array_equal(features_of(graph), loaded["node_feat"])
    edges = np.unique(loaded["edge_index"], axis=1)
    assert np.array_equal(graph.edge_index(), edges[:, np.lexsort(edges)])


def test_authors_that_write_together(tmp_path, monkeypatch):
    """ogbl-collab: edges have weights and years, and so have those to be predicted."""
    splits = {
        split: {"edge": pairs(9), "weight": np.ones(9, int), "year": np.full(9, year), "edge_neg": pairs(20)}
        for split, year in (("train", 2017), ("valid", 2018), ("test", 2019))
    }
    folder = write_ogb_text(tmp_path / "ogbl_collab", without_splits(MADE.features), weights=True)
    write(folder, without_splits(MADE.features), splits, "time")
    write_gzip(folder / "raw/edge_year.csv.gz", 1990 + np.arange(len(MADE.edges)) % 28)
    graph = run(folder)
    reader = import_ogb("io.read_graph_raw", monkeypatch)
    (loaded,) = reader.read_csv_graph_raw(
        str(folder / "raw"), True, additional_edge_files=["edge_weight", "edge_year"]
    )
    first: dict[tuple[int, int], float] = {}
    for pair, (weight,) in zip(loaded["edge_index"].T.tolist(), loaded["edge_weight"].tolist(), strict=True):
        first.setdefault((pair[0], pair[1]), weight)
    found = zip(map(tuple, graph.edge_index().T.tolist()), get(graph, "edge_weight").tolist(), strict=True)
    assert dict(found) == first
    raw, where = folder / "raw", folder / "split/time"
    assert set(graph.notes) >= {
        f"years of {raw} are not imported, graphs have no times yet: edge_year.csv.gz",
        f"years of {where} are not imported, graphs have no times yet: year",
        f"parts of {where} that are not imported: weight",
        f"negatives of {where} cannot be stored yet and are not imported: edge_neg",
    }


@pytest.mark.parametrize("tensors", [False, True])
def test_papers_with_a_thousand_negatives_each(tmp_path, tensors):
    """ogbl-citation2: 10 MB of negatives, which are left where they are; papers have years."""
    splits: dict[str, dict[str, Any]] = {}
    for split, count in (("train", 300), ("valid", 650), ("test", 1300)):
        source, target = pairs(count).T.copy()
        splits[split] = {"source_node": source, "target_node": target}
        if split != "train":
            splits[split]["target_node_neg"] = RNG.integers(0, 60, (count, 1000))
    wrap = torch.tensor if tensors else np.asarray
    saved = {split: {k: wrap(v) for k, v in parts.items()} for split, parts in splits.items()}
    folder = write(tmp_path / "ogbl_citation2", without_splits(MADE.features), saved, "time")
    write_gzip(folder / "raw/node_year.csv.gz", np.full(60, 2015))
    assert (folder / "split/time/test.pt").stat().st_size > 2 * BUDGET
    graph = run(folder)
    for split, parts in splits.items():
        assert np.array_equal(get(graph, f"{split}_edges").T, [parts["source_node"], parts["target_node"]])
    assert not graph.manifest.attributes["undirected"]
    assert set(graph.notes) >= {
        f"years of {folder / 'raw'} are not imported, graphs have no times yet: node_year.csv.gz",
        f"negatives of {folder / 'split/time'} cannot be stored yet and are not imported: target_node_neg",
    }
