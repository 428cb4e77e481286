"""Papers and citations of the Illinois Graph Benchmark, against what its own loader does with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from foreign_layouts import ForeignGraph, foreign_graph, write_igb
from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.graph import import_graph
from outcrop.importing.sources import igb
from outcrop.store.graph import Graph
from outcrop.store.verify import verify_artifact
from support import held_bytes, new_runtime

TORTURED = True
NODES = 60
MADE = foreign_graph(NODES, dim=1024, classes=19)
ALL = replace(MADE, labels=np.arange(NODES) * 7 % 19 * 1.0)  # a label for each node


def get(graph: Graph, name: str) -> np.ndarray:
    return np.array(graph.array(new_runtime(), name).memmap())


def edges_of(graph: Graph) -> set[tuple[int, int]]:
    """(source, target), each once."""
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(get(graph, "indptr")))
    pairs = list(zip(get(graph, "indices").tolist(), targets.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    return set(pairs)


def run(folder: Path, memory: str = "32MiB", **options: Any) -> Graph:
    runtime = new_runtime(memory)
    graph = import_graph(f"igb:{folder}", folder.parent / "graph", runtime, **options)
    assert held_bytes(runtime) == 0
    verify_artifact(graph.path, new_runtime())
    return graph


def fails(folder: Path, kind: type[Exception], match: str, **options: Any) -> None:
    runtime = new_runtime("32MiB")
    with pytest.raises(kind, match=match):
        import_graph(f"igb:{folder}", folder.parent / "graph", runtime, **options)
    assert not (folder.parent / "graph").exists()
    assert held_bytes(runtime) == 0


def load(folder: Path, raw: bool, classes: int, labelled: int = NODES) -> dict[str, np.ndarray]:
    """What ``IGB260MDGLDataset`` makes of the files, but for the edge to itself that it gives each node."""
    papers = folder / "processed/paper"
    label_file = papers / ("node_label_19.npy" if classes == 19 else "node_label_2K.npy")
    if raw:
        features = np.memmap(papers / "node_feat.npy", "float32", "r", shape=(NODES, 1024))
        labels = np.memmap(label_file, "float32", "r", shape=(NODES,))
    else:
        features, labels = np.load(papers / "node_feat.npy"), np.load(label_file)
    train, valid = int(labelled * 0.6), int(labelled * 0.2)
    masks = {split: np.zeros(NODES, bool) for split in SPLITS}
    masks["train"][:train] = True
    masks["valid"][train : train + valid] = True
    masks["test"][train + valid : labelled] = True
    return {"features": np.array(features), "labels": labels.astype(np.int64), **masks}


@pytest.mark.parametrize("classes", [None, 19, 2983])
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
def test_papers_are_what_the_loader_has(tmp_path: Path, classes: int | None, raw: bool, dtype: Any) -> None:
    folder = write_igb(tmp_path / "small", ALL, raw=raw, dtype=dtype)
    graph = run(folder, num_classes=classes)
    loaded = load(folder, raw, classes or 19)
    assert edges_of(graph) == set(map(tuple, ALL.edges.tolist()))
    assert np.array_equal(get(graph, "features"), loaded["features"])
    assert np.array_equal(get(graph, "labels"), loaded["labels"])
    assert graph.num_classes == (classes or 19)
    for split in SPLITS:
        assert np.array_equal(get(graph, split), np.flatnonzero(loaded[split]))


@pytest.mark.parametrize("classes", [19, 2983])
def test_the_first_papers_of_the_largest_have_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: int
) -> None:
    """Whatever its label file has beyond them; the numbers are those of the loader."""
    assert igb.LABELLED == {269_346_174: {19: 227_130_858, 2983: 157_675_969}}
    monkeypatch.setattr(igb, "LABELLED", {NODES: {19: 41, 2983: 33}})
    folder = write_igb(tmp_path / "full", ALL, raw=True)
    graph, labelled = run(folder, num_classes=classes), 41 if classes == 19 else 33
    loaded = load(folder, True, classes, labelled)
    assert np.array_equal(get(graph, "labels")[:labelled], loaded["labels"][:labelled])
    assert (get(graph, "labels")[labelled:] == -1).all()
    for split in SPLITS:
        assert np.array_equal(get(graph, split), np.flatnonzero(loaded[split]))


@pytest.mark.parametrize("raw", [False, True])
def test_a_label_file_of_the_first_papers(tmp_path: Path, raw: bool) -> None:
    folder = write_igb(tmp_path / "full", ALL, raw=raw)
    path = folder / "processed/paper/node_label_19.npy"
    if raw:
        ALL.labels[:50].astype(np.float32).tofile(path)
    else:
        np.save(path, ALL.labels[:50].astype(np.float32))
    graph = run(folder)
    assert np.array_equal(get(graph, "labels"), np.where(np.arange(NODES) < 50, ALL.labels, -1))
    assert [get(graph, split).tolist() for split in SPLITS] == [
        list(range(30)), list(range(30, 40)), list(range(40, 50))
    ]  # fmt: skip


def test_papers_without_a_label_are_in_no_split(tmp_path: Path) -> None:
    graph = run(write_igb(tmp_path / "small", MADE))
    labelled = np.flatnonzero(~np.isnan(MADE.labels))
    assert np.array_equal(np.concatenate([get(graph, split) for split in SPLITS]), labelled)
    assert len(get(graph, "train")) == int(len(labelled) * 0.6)
    assert np.array_equal(get(graph, "labels") >= 0, ~np.isnan(MADE.labels))


def test_features_may_be_stored_in_half(tmp_path: Path) -> None:
    graph = run(write_igb(tmp_path / "small", ALL), feature_dtype="float16", train_fraction=0.5)
    assert np.array_equal(get(graph, "features"), ALL.features.astype(np.float16))
    assert len(get(graph, "train")) == 30


def test_other_types_are_noted(tmp_path: Path) -> None:
    folder = write_igb(tmp_path / "small", ALL)
    for name in ("author", "paper__written_by__author"):
        (folder / "processed" / name).mkdir()
    note = f"types of {folder} that are not imported: author, paper__written_by__author"
    assert any(one.startswith(note) and "--types all" in one for one in run(folder).notes)


def test_the_same_import_again_keeps_the_graph(tmp_path: Path) -> None:
    source, out = f"igb:{write_igb(tmp_path / 'small', ALL)}", tmp_path / "g"
    oc.import_graph(source, out, progress=False)
    assert "is kept" in oc.import_graph(source, out, progress=False).notes[0]
    with pytest.raises(ArgumentError, match=r"num_classes \(there None, now 2983\)"):
        oc.import_graph(source, out, oc.ImportConfig(num_classes=2983), progress=False)


def change(path: str, array: Any) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / "processed" / path, array)


def cut(path: str, size: int) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        with (folder / "processed" / path).open("r+b") as file:
            file.truncate(size)

    return apply


def put(at: Any, value: Any, array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array[at] = value
    return array


FEATURES, LABELS, EDGES = (
    "paper/node_feat.npy",
    "paper/node_label_19.npy",
    "paper__cites__paper/edge_index.npy",
)


@pytest.mark.parametrize("name", [FEATURES, LABELS, EDGES])
def test_missing_files(tmp_path: Path, name: str) -> None:
    folder = write_igb(tmp_path / "small", ALL)
    (folder / "processed" / name).unlink()
    fails(folder, ArgumentError, rf"{name} is missing")


@pytest.mark.parametrize(
    ("raw", "spoil", "kind", "match"),
    [
        (True, cut(FEATURES, 7 * 4096 + 9), FormatError, r"node_feat\.npy has 28681 bytes .* 4096 bytes: row 7 is"),
        (True, cut(FEATURES, 7 * 4096), ArgumentError, r"node_label_19\.npy has 60 rows, .* features of 7 papers"),
        (True, cut(LABELS, 31), FormatError, r"node_label_19\.npy has 31 bytes .* 4 bytes: row 7 is torn"),
        (False, cut(FEATURES, 4096), FormatError, r"node_feat\.npy is truncated"),
        (False, cut(LABELS, 100), FormatError, r"node_label_19\.npy is no \.npy file or is torn"),
        (False, cut(EDGES, 1000), FormatError, r"edge_index\.npy is truncated"),
        (True, lambda f: (f / "processed" / EDGES).write_bytes(b"\0" * 64), FormatError, r"edge_index\.npy is no"),
        (False, change(EDGES, ALL.edges.T), FormatError, r"edge_index\.npy has shape \(2, 400\); \[edges, 2\]"),
        (False, change(EDGES, ALL.edges * 1.0), ArgumentError, r"edge_index\.npy: node ids are float64"),
        (False, change(EDGES, put((9, 1), 60, ALL.edges)), ArgumentError, r"edge_index\.npy, edge 9 .* names node 60"),
        (False, change(EDGES, put((9, 1), -1, ALL.edges)), ArgumentError, r"edge_index\.npy, edge 9 .* names node -1"),
        (False, change(FEATURES, ALL.features[:, 0]), FormatError, r"node_feat\.npy has shape \(60,\); features"),
        (False, change(FEATURES, put((8, 2), np.inf, ALL.features)), FormatError, r"node_feat\.npy: row 8, column 2"),
        (False, change(LABELS, put(5, 19, ALL.labels)), FormatError, r"19\.npy: row 5 is 19\.0; classes are 0 to 18"),
        (False, change(LABELS, put(5, 0.5, ALL.labels)), FormatError, r"19\.npy: row 5 is 0\.5; classes are whole"),
        (False, change(LABELS, ALL.labels[:, None]), FormatError, r"node_label_19\.npy is float64\(60, 1\); one"),
    ],
)  # fmt: skip
def test_spoiled_files(
    tmp_path: Path, raw: bool, spoil: Callable[[Path], object], kind: type[Exception], match: str
) -> None:
    folder = write_igb(tmp_path / "small", ALL, raw=raw)
    spoil(folder)
    fails(folder, kind, match, label_kind="class")


def test_classes_are_chosen_where_there_is_a_choice(tmp_path: Path) -> None:
    folder = write_igb(tmp_path / "igb" / "small", ALL)
    fails(folder, ArgumentError, r"has labels of 19 or 2983 classes, not of 20", num_classes=20)
    fails(
        folder.parent,
        ArgumentError,
        r"paper is no folder: igb:DIR is the folder of a size, such as igb/small",
    )
    with pytest.raises(
        ArgumentError, match=r"a number of classes \(19\) chooses among labels of igb; this source"
    ):
        import_graph({"edges": ALL.edges}, tmp_path / "g", new_runtime(), num_classes=19)


def test_features_twenty_times_the_budget(tmp_path: Path) -> None:
    """80 MB of features, as large and full have them."""
    nodes = 20_000
    features = (np.arange(nodes)[:, None] + np.arange(1024)).astype(np.float32)
    pairs = np.random.default_rng(0).integers(0, nodes, (100_000, 2))
    made = ForeignGraph(pairs, features, np.arange(nodes) % 19 * 1.0)
    folder = write_igb(tmp_path / "large", made, raw=True)
    runtime = new_runtime("4MiB")
    graph = import_graph(f"igb:{folder}", tmp_path / "graph", runtime)
    assert runtime.budget.peak_bytes <= 4 << 20
    assert np.array_equal(get(graph, "features"), features)
    assert edges_of(graph) == set(map(tuple, pairs.tolist()))
    assert np.array_equal(get(graph, "train"), np.arange(12_000))
