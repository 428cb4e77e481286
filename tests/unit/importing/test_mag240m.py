"""Import of the layout of MAG240M, made small here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import outcrop as oc
from outcrop.importing.graph import import_graph
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph

SIZES = {"paper": 60, "author": 40, "institution": 5}
KEYS = (
    ("paper", "cites", "paper"),
    ("author", "writes", "paper"),
    ("author", "affiliated_with", "institution"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder, rng = tmp_path / "mag", np.random.default_rng(0)
    papers = folder / "processed" / "paper"
    papers.mkdir(parents=True)
    torch.save({**SIZES, "num_classes": 7}, folder / "meta.pt")
    splits = {
        "train": np.arange(20),
        "valid": np.arange(20, 30),
        "test-dev": np.arange(30, 33),
        "test-whole": np.arange(30, 40),
    }
    torch.save(splits, folder / "split_dict.pt")
    np.save(papers / "node_feat.npy", rng.random((60, 8)).astype(np.float16))
    labels = rng.integers(0, 5, 60).astype(np.float64)
    labels[30:] = np.nan
    np.save(papers / "node_label.npy", labels)
    np.save(papers / "node_year.npy", np.full(60, 2020))
    for source, relation, target in KEYS:
        edges = np.stack([rng.integers(0, SIZES[source], 150), rng.integers(0, SIZES[target], 150)])
        (folder / "processed" / f"{source}___{relation}___{target}").mkdir()
        np.save(folder / "processed" / f"{source}___{relation}___{target}" / "edge_index.npy", edges)
    return folder


def imported(folder: Path, **options) -> Graph:
    with Runtime("8MiB") as runtime:
        return import_graph(f"mag240m:{folder}", folder.parent / "g.oc", runtime, oc.ImportConfig(**options))


def read(graph: Graph, name: str) -> np.ndarray:
    with Runtime() as runtime:
        return graph.array(runtime, name).read("test")


@pytest.mark.parametrize("zipped", [True, False])
def test_everything_comes_back(folder, zipped):
    torch.save({**SIZES, "num_classes": 7}, folder / "meta.pt", _use_new_zipfile_serialization=zipped)
    graph = imported(folder, reverse=True)
    assert {one.name: one.num_nodes for one in graph.node_types} == SIZES
    assert [one.key for one in graph.edge_types[:3]] == list(KEYS)
    for key in KEYS:
        edges = np.unique(np.load(folder / "processed" / "___".join(key) / "edge_index.npy"), axis=1)
        assert np.array_equal(graph.edge_index(key), edges[:, np.lexsort(edges)])
        back = edges[::-1]
        assert np.array_equal(graph.edge_index((key[2], f"rev_{key[1]}", key[0])), back[:, np.lexsort(back)])
    rows = read(graph, "n0.features")
    assert rows.dtype == np.float16
    assert np.array_equal(rows, np.load(folder / "processed" / "paper" / "node_feat.npy"))
    labels = np.load(folder / "processed" / "paper" / "node_label.npy")
    assert np.array_equal(read(graph, "n0.labels"), np.where(np.isnan(labels), -1, labels))
    assert graph.num_classes == 7
    assert [len(read(graph, f"n0.{split}")) for split in ("train", "valid", "test")] == [20, 10, 3]
    assert [one.array for one in graph.row_files] == ["n0.features"]
    assert any("node_year.npy is not imported" in note for note in graph.notes)


def _save(name: str, value):
    return lambda folder: torch.save(value, folder / name)


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda folder: (folder / "meta.pt").unlink(), r"meta\.pt is missing: download"),
        (lambda folder: (folder / "split_dict.pt").write_bytes(b"PK"), r"split_dict\.pt"),
        (_save("meta.pt", {"paper": 60}), r"meta\.pt has no numbers of paper, author, institution, num_classes"),
        (_save("meta.pt", [1]), r"meta\.pt has no numbers"),
        (_save("meta.pt", {**SIZES, "paper": -1, "num_classes": 7}), r"meta\.pt has no numbers"),
        (_save("meta.pt", {**SIZES, "num_classes": 1 << 30}), "tells of 1073741824 classes"),
        (_save("meta.pt", {**SIZES, "author": 1 << 40, "num_classes": 7}), "tells of 1099511627776 nodes 'author'"),
        (_save("meta.pt", {**SIZES, "paper": 61, "num_classes": 7}), "has 60 rows .*, node type 'paper' has 61"),
        (_save("meta.pt", {**SIZES, "author": 3, "num_classes": 7}), "nodes 'author' are 0 to 2"),
        (_save("split_dict.pt", {"train": np.arange(3)}), r"split_dict\.pt has no papers of split valid"),
        (
            _save("split_dict.pt", {"train": np.arange(3), "valid": np.array([70]), "test": np.arange(5, 6)}),
            r"split_dict\.pt valid.*lists node 70, but there are 60",
        ),
        (
            lambda folder: np.save(folder / "processed/paper___cites___paper/edge_index.npy", np.zeros((3, 4), int)),
            r"edge_index\.npy has shape \(3, 4\); \[2, edges\] is needed",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(folder, spoil, match):
    spoil(folder)
    with pytest.raises((oc.ArgumentError, oc.FormatError), match=match):
        imported(folder)
    assert not (folder.parent / "g.oc").exists()


def test_a_file_that_changed_is_seen(folder):
    source, out = f"mag240m:{folder}", folder.parent / "g.oc"
    oc.import_graph(source, out, progress=False)
    assert "is kept" in oc.import_graph(source, out, progress=False).notes[0]
    path = folder / "processed" / "author___writes___paper" / "edge_index.npy"
    np.save(path, np.load(path)[:, :-1])
    with pytest.raises(oc.ArgumentError, match=r"edge_index\.npy \(which changed\)"):
        oc.import_graph(source, out, progress=False)
