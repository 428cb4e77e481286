"""Import of the layout of MAG240M, made small here."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import outcrop as oc
from outcrop.importing.graph import import_graph
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from support import import_ogb

MEMORY = 5 << 19
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
        "test-challenge": np.arange(33, 40),
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
    papers = folder / "processed" / "paper"
    assert f"years of {papers} are not imported, graphs have no times yet: node_year.npy" in graph.notes


def test_pairs_that_are_listed_twice_are_kept(folder):
    """The reader of OGB maps edge_index.npy as it is: with keep_duplicates each column of it is an edge."""
    for key in KEYS:
        path = folder / "processed" / "___".join(key) / "edge_index.npy"
        edges = np.load(path)
        np.save(path, np.concatenate([edges, edges[:, ::3], edges[:, ::6]], axis=1))
    graph = imported(folder, keep_duplicates=True)
    for key in KEYS:
        edges = np.load(folder / "processed" / "___".join(key) / "edge_index.npy")
        assert len(np.unique(edges, axis=1).T) < len(edges.T)
        assert np.array_equal(graph.edge_index(key), edges[:, np.lexsort(edges)])


TEST = np.arange(59, 36, -1)
HALVES = {"train": np.arange(20), "valid": np.arange(20, 30)}


@pytest.mark.parametrize(
    ("tests", "tensors"),
    [
        *(({"test": TEST[:count]}, count % 2 == 0) for count in (0, *range(5, 10))),
        ({"test-dev": TEST[:1], "test-whole": TEST[:3], "test-challenge": TEST[1:3]}, False),
        ({"test": TEST, "test-dev": TEST[:1]}, True),
    ],
)
def test_papers_for_tests_are_those_of_ogb(folder, monkeypatch, tests, tensors):
    """Its reader makes test-dev of test, also where the file has one."""
    lsc = import_ogb("lsc", monkeypatch)
    monkeypatch.setattr(torch, "load", partial(torch.load, weights_only=False))  # as it was before 2.6
    splits = HALVES | tests
    torch.save({s: torch.tensor(a) if tensors else a for s, a in splits.items()}, folder / "split_dict.pt")
    (folder.parent / "mag240m_kddcup2021").symlink_to(folder)
    (folder / "RELEASE_v1.txt").touch()
    loaded = lsc.MAG240MDataset(str(folder.parent))
    graph = imported(folder)
    for split, called in (("train", "train"), ("valid", "valid"), ("test", "test-dev")):
        assert np.array_equal(read(graph, f"n0.{split}"), np.sort(loaded.get_idx_split(called)))
    assert {one.name: one.num_nodes for one in graph.node_types} == {
        "paper": loaded.num_papers,
        "author": loaded.num_authors,
        "institution": loaded.num_institutions,
    }
    assert graph.num_classes == loaded.num_classes
    assert np.array_equal(read(graph, "n0.features"), loaded.paper_feat)
    for source, _, target in KEYS:
        edges = np.unique(loaded.edge_index(source, target), axis=1)
        assert np.array_equal(graph.edge_index((source, _, target)), edges[:, np.lexsort(edges)])


@pytest.mark.slow
def test_files_twenty_times_the_budget(folder):
    """53 MB: rows of papers, pairs of ids and papers for tests are never held whole."""
    papers, edges, rng = 100_000, 150_000, np.random.default_rng(1)
    sizes = {"paper": papers, "author": 50_000, "institution": 500}
    of_paper, rows = folder / "processed" / "paper", np.empty((papers, 230), np.float16)
    rows[:] = np.arange(papers)[:, None] % 2039 + np.arange(230) % 2
    np.save(of_paper / "node_feat.npy", rows)
    np.save(of_paper / "node_label.npy", np.arange(papers) % 7 * 1.0)
    torch.save({**sizes, "num_classes": 7}, folder / "meta.pt")
    torch.save(HALVES | {"test": np.arange(30, 30_030)}, folder / "split_dict.pt")
    written = {}
    for key in KEYS:
        pairs = np.stack([rng.integers(0, sizes[key[0]], edges), rng.integers(0, sizes[key[2]], edges)])
        np.save(folder / "processed" / "___".join(key) / "edge_index.npy", pairs)
        written[key] = np.unique(pairs[1] * papers + pairs[0])  # as they are stored
    assert sum(path.stat().st_size for path in folder.rglob("*.npy")) > 20 * MEMORY
    with Runtime(MEMORY) as runtime:
        graph = import_graph(f"mag240m:{folder}", folder.parent / "g.oc", runtime)
        assert runtime.budget.peak_bytes <= MEMORY
    assert np.array_equal(read(graph, "n0.features"), rows)
    dev = np.arange(30_000)
    assert np.array_equal(read(graph, "n0.test"), 30 + dev[dev % 5 < 3])
    for key, pairs in written.items():
        assert np.array_equal(graph.edge_index(key), [pairs % papers, pairs // papers])


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
            _save("split_dict.pt", HALVES | {"test-dev": TEST, "test-whole": TEST}),
            r"split_dict\.pt has neither papers of split test nor of test-challenge: download",
        ),
        (
            _save("split_dict.pt", HALVES | {"test": np.array([30, 31, 32, 33, 34, 35, 30])}),
            r"split_dict\.pt test\[index % 5 < 3\], row 4 .* split test lists node 30 twice, first in .*, row 0 ",
        ),
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
