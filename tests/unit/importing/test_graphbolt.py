"""Data sets of GraphBolt, against the graph that was written, and a published one against NumPy."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import outcrop as oc
from foreign_layouts import ForeignGraph, foreign_graph, write_graphbolt
from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.graph import import_graph
from outcrop.store.graph import Graph
from outcrop.store.verify import verify_artifact
from support import held_bytes, new_runtime, shared_path

TORTURED = True
MADE = foreign_graph()
SETS = {"train": "train_set", "valid": "validation_set", "test": "test_set"}


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
    graph = import_graph(f"graphbolt:{folder}", folder.parent / "graph", runtime, **options)
    assert held_bytes(runtime) == 0
    verify_artifact(graph.path, new_runtime())
    return graph


def fails(folder: Path, kind: type[Exception], match: str, **options: Any) -> None:
    runtime = new_runtime("32MiB")
    with pytest.raises(kind, match=match):
        import_graph(f"graphbolt:{folder}", folder.parent / "refused", runtime, **options)
    assert not (folder.parent / "refused").exists()
    assert held_bytes(runtime) == 0


def labels_of(made: ForeignGraph) -> np.ndarray:
    """Labels of the seeds; the other nodes have none."""
    labels = np.full(made.num_nodes, -1)
    for nodes in made.splits.values():
        labels[nodes] = made.labels[nodes]
    return labels


def edit(change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Changes metadata.yaml."""

    def apply(folder: Path) -> None:
        root = yaml.safe_load((folder / "metadata.yaml").read_text())
        change(root)
        (folder / "metadata.yaml").write_text(yaml.safe_dump(root))

    return apply


@pytest.mark.parametrize("form", ["csv", "numpy", "torch"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
def test_a_task_of_nodes(tmp_path: Path, form: str, dtype: Any) -> None:
    folder = write_graphbolt(tmp_path / "small", MADE, form=form, dtype=dtype, classes=9)
    graph = run(folder)
    assert edges_of(graph) == set(map(tuple, MADE.edges.tolist()))
    assert np.array_equal(get(graph, "features"), MADE.features)
    assert np.array_equal(get(graph, "labels"), labels_of(MADE))
    assert (graph.num_nodes, graph.num_classes) == (60, 9)
    for split in SPLITS:
        assert np.array_equal(get(graph, split), np.sort(MADE.splits[split]))


def test_two_edges_are_two_columns(tmp_path: Path) -> None:
    """Of shape [2, 2] the rows are sources and targets here, other than in arrays:DIR."""
    folder = write_graphbolt(
        tmp_path / "small", ForeignGraph(np.array([[1, 2], [3, 4]]), MADE.features, MADE.labels)
    )
    assert edges_of(run(folder)) == {(1, 2), (3, 4)}


def test_without_edges_features_and_tasks(tmp_path: Path) -> None:
    for form in ("csv", "numpy"):
        made = ForeignGraph(MADE.edges[:0], MADE.features, MADE.labels)
        folder = write_graphbolt(tmp_path / form, made, form=form)
        edit(lambda root: (root.pop("feature_data"), root.pop("tasks")))(folder)
        graph = run(folder)
        assert (graph.num_nodes, graph.num_edges, graph.has("features"), graph.has("labels")) == (
            60,
            0,
            False,
            False,
        )


def add_links(folder: Path, *, old: bool = False, negatives: bool = False) -> dict[str, np.ndarray]:
    """Adds a task of edges to be predicted; returns the positives."""
    rng, task = np.random.default_rng(4), dict[str, Any](name="link_prediction")
    found = {}
    for split, key in SETS.items():
        pairs = rng.integers(0, 60, (30, 2))
        labels = np.ones(30, np.int64)
        data = [("node_pairs" if old else "seeds", pairs)]
        if negatives and split != "train":
            labels[rng.permutation(30)[:20]] = 0
            data += [("labels", labels), ("indexes", np.arange(30) % 10)]
        if old:
            data += [("negative_dsts", rng.integers(0, 60, (30, 3)))]
        found[split] = pairs[labels == 1]
        for name, array in data:
            np.save(folder / f"{split}_{name}_of_links.npy", array)
        items = [{"name": n, "format": "numpy", "path": f"{split}_{n}_of_links.npy"} for n, _ in data]
        task[key] = [{"type": None, "data": items}]
    edit(lambda root: root["tasks"].append(task))(folder)
    return found


@pytest.mark.parametrize(("old", "negatives"), [(False, False), (False, True), (True, False)])
def test_a_task_of_edges(tmp_path: Path, old: bool, negatives: bool) -> None:
    folder = write_graphbolt(tmp_path / "small", MADE)
    positives = add_links(folder, old=old, negatives=negatives)
    graph = run(folder)
    for split, pairs in positives.items():
        assert np.array_equal(get(graph, f"{split}_edges"), pairs)
    note = "negatives of task 'link_prediction' cannot be stored yet and are not imported"
    assert (note in graph.notes) == (old or negatives)
    assert ("data of task 'link_prediction' that are not imported: negative_dsts" in graph.notes) == old
    assert np.array_equal(get(graph, "train"), np.sort(MADE.splits["train"]))
    assert not run(folder, split_protocol="none").has("train_edges")


def test_edges_name_their_rows(tmp_path: Path) -> None:
    folder = write_graphbolt(tmp_path / "small", MADE)
    positives = add_links(folder, negatives=True)
    path = folder / "valid_seeds_of_links.npy"
    pairs = np.load(path)
    row = int(np.flatnonzero(np.load(folder / "valid_labels_of_links.npy"))[2])
    assert np.array_equal(pairs[row], positives["valid"][2])
    pairs[row, 1] = 60
    np.save(path, pairs)
    fails(
        folder, ArgumentError, rf"valid_seeds_of_links\.npy, edge {row} .* is \[\d+, 60\], there are 60 nodes"
    )


def test_one_of_several_tasks(tmp_path: Path) -> None:
    folder = write_graphbolt(tmp_path / "small", MADE)
    other = np.array([0, 2, 4])
    np.save(folder / "others.npy", other)
    task = {"name": "other", "train_set": [{"data": [{"name": "seed_nodes", "path": "others.npy"}]}]}
    edit(lambda root: root["tasks"].append(task))(folder)
    graph = run(folder)
    assert np.array_equal(get(graph, "train"), np.sort(MADE.splits["train"]))
    assert f"tasks of {folder} that are not imported: other" in graph.notes
    graph = run(folder, split_index=1)
    assert (get(graph, "train").tolist(), graph.has("labels"), graph.has("test")) == ([0, 2, 4], False, False)
    fails(folder, ArgumentError, r"has 2 tasks of nodes, number 2 was asked for", split_index=2)


def test_features_of_which_one_is_taken(tmp_path: Path) -> None:
    folder = write_graphbolt(tmp_path / "small", MADE)
    np.save(folder / "year.npy", np.arange(60))
    add = [{"domain": "node", "name": "year", "format": "numpy", "path": "year.npy"},
           {"domain": "edge", "name": "weight", "format": "numpy", "path": "nowhere.npy"}]  # fmt: skip
    edit(lambda root: root["feature_data"].extend(add))(folder)
    graph = run(folder)
    assert np.array_equal(get(graph, "features"), MADE.features)
    assert f"features of {folder} that are not imported: edge weight, node year" in graph.notes
    edit(lambda root: root["feature_data"].pop(0))(folder)
    assert np.array_equal(get(run(folder), "features"), np.arange(60)[:, None])
    edit(lambda root: root["feature_data"].append({**add[0], "name": "month"}))(folder)
    fails(
        folder,
        ArgumentError,
        r"several features of nodes \(year, month\) and none called feat or features or x",
    )


def test_labels_in_several_columns(tmp_path: Path) -> None:
    folder = write_graphbolt(tmp_path / "small", MADE)
    tags = (np.random.default_rng(0).random((60, 4)) < 0.5).astype(np.int64)
    for split, nodes in MADE.splits.items():
        np.save(folder / f"{split}_labels.npy", tags[nodes])
    graph = run(folder)
    assert graph.label_kind == "multilabel"
    seeds = np.concatenate(list(MADE.splits.values()))
    expected = np.full((60, 4), 255)
    expected[seeds] = tags[seeds]
    assert np.array_equal(get(graph, "labels"), expected)


def test_the_same_import_again_keeps_the_graph(tmp_path: Path) -> None:
    folder = write_graphbolt(tmp_path / "small", MADE)
    source, out = f"graphbolt:{folder}", tmp_path / "g"
    oc.import_graph(source, out, progress=False)
    (folder / "beside.npy").write_bytes(b"not of the data set")
    assert "is kept" in oc.import_graph(source, out, progress=False).notes[0]
    np.save(folder / "test_labels.npy", np.load(folder / "test_labels.npy"))
    with pytest.raises(ArgumentError, match=r"test_labels\.npy \(which changed\)"):
        oc.import_graph(source, out, progress=False)


def saved(name: str, array: Any) -> Callable[[Path], object]:
    return lambda folder: np.save(folder / f"{name}.npy", array)


def cut(name: str) -> Callable[[Path], object]:
    return lambda f: (f / name).write_bytes((f / name).read_bytes()[: (f / name).stat().st_size * 2 // 3])


def text(yaml_text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "metadata.yaml").write_text(yaml_text)


def put(array: np.ndarray, at: Any, value: Any) -> np.ndarray:
    array = array.copy()
    array[at] = value
    return array


PAIRS, TRAIN = MADE.edges.T.copy(), MADE.splits["train"]
TYPES = {
    "graph": {"nodes": [{"type": t, "num": 9} for t in "ab"], "edges": [{"type": "a:r:b", "path": "e.csv"}]}
}


@pytest.mark.parametrize(
    ("spoil", "kind", "match"),
    [
        (cut("edges.npy"), FormatError, r"edges\.npy is truncated"),
        (cut("feat.npy"), FormatError, r"feat\.npy is truncated"),
        (cut("train_seeds.npy"), FormatError, r"train_seeds\.npy is truncated"),
        (lambda f: (f / "feat.npy").unlink(), ArgumentError, r"feat\.npy is missing, which metadata\.yaml names for"),
        (lambda f: (f / "edges.npy").unlink(), ArgumentError, r"edges\.npy is missing, which metadata\.yaml names for"),
        (saved("edges", MADE.edges), FormatError, r"edges\.npy has shape \(400, 2\); GraphBolt has edges as"),
        (saved("edges", PAIRS * 1.0), ArgumentError, r"edges\.npy: node ids are float64"),
        (saved("edges", put(PAIRS, (1, 9), 60)), ArgumentError, r"edges\.npy, edge 9 .* names node 60, but"),
        (saved("feat", MADE.features[:-1]), ArgumentError, r"feat\.npy has 59 rows of features, the graph has 60"),
        (saved("feat", MADE.features[None]), FormatError, r"feat\.npy has shape \(1, 60, 5\); features are"),
        (saved("train_seeds", put(TRAIN, 3, 60)), ArgumentError,
         r"train_seeds\.npy, row 3 .* names node 60, but there"),
        (saved("train_seeds", put(TRAIN, 3, TRAIN[1])), ArgumentError,
         r"train_seeds\.npy, row 3 .*: split train lists node \d+ twice, first in .*train_seeds\.npy, row 1"),
        (saved("train_seeds", TRAIN[:, None]), FormatError,
         r"seeds of task .* are \[nodes\], or \[edges, 2\] in each set"),
        (saved("train_seeds", TRAIN * 1.0), ArgumentError, r"train_seeds\.npy: node ids are float64"),
        (saved("train_labels", TRAIN[1:]), FormatError,
         r"train_labels\.npy has 24 labels of int64; a number for each .* 25"),
        (saved("train_labels", put(TRAIN * 0, 4, 9)), FormatError, r"train_labels\.npy, row 4 .* is 9; num_classes of"),
        (saved("train_labels", put(TRAIN * 0, 4, -2)), FormatError,
         r"train_labels\.npy, row 4 .* is -2; classes count"),
        (saved("train_labels", np.ones((25, 2), int)), FormatError, r"labels of task .* have different columns"),
        (text("a: [1"), FormatError, r"metadata\.yaml is no YAML: while parsing"),
        (text("a: " + "[" * 9000), FormatError, r"metadata\.yaml is no YAML"),
        (text("!!python/object/apply:os.system ['true']"), FormatError,
         r"is no YAML: could not determine a constructor"),
        (text("[1, 2]"), FormatError, r"metadata\.yaml is list; entries with names are needed"),
        (text("dataset_name: x"), FormatError, r"metadata\.yaml has no entry graph"),
        (text("graph: {nodes: 5}"), FormatError, r"graph: nodes is int; a list is needed"),
        (text("graph: {nodes: [{num: 5}]}"), FormatError, r"graph lists no nodes, or no edges"),
        (text("graph: {nodes: [{num: -5}], edges: [{path: e.csv}]}"), FormatError,
         r"nodes\[0\]: num is '-5'; a number that"),
        (text("graph: {nodes: [{type: a}], edges: [{path: e.csv}]}"), FormatError, r"nodes\[0\] has no num"),
        (text("graph: {nodes: [{num: 5}], edges: [{path: 7}]}"), FormatError,
         r"edges\[0\] has no path, or one that is"),
        (text("graph: {nodes: [{num: 5}], edges: [{path: e.parquet}]}"), FormatError, r"has the format ''; csv, numpy"),
        (text("graph_topology: {type: FusedCSCSamplingGraph}"), ArgumentError, r"nothing but a graph that GraphBolt"),
        (text(yaml.safe_dump(TYPES)), ArgumentError, r"e\.csv is missing, which metadata\.yaml names"),
        (edit(lambda root: root["tasks"][0]["train_set"].append({"data": []})), ArgumentError,
         r"train_set lists 2 types"),
        (edit(lambda root: root["tasks"][0]["train_set"][0]["data"][0].update(name="roots")), FormatError,
         r"task 'node_classification' has no seeds for train; it has roots, labels"),
    ],
)  # fmt: skip
def test_spoiled_folders(
    tmp_path: Path, spoil: Callable[[Path], object], kind: type[Exception], match: str
) -> None:
    folder = write_graphbolt(tmp_path / "small", MADE, classes=4)
    spoil(folder)
    fails(folder, kind, match)


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (
            lambda f: (f / "edges.csv").write_text("1,2\n3,60\n"),
            r"edges\.csv, line 2, column 'target' names node 60",
        ),
        (
            lambda f: (f / "edges.csv").write_text("source,target\n3,6\n"),
            r"line 1, column 'source': 'source' is text",
        ),
        (
            lambda f: (f / "edges.csv").write_text("1,2\n3,4,5\n"),
            r"edges\.csv, line 2: Expected 2 columns, got 3",
        ),
        (
            lambda f: (f / "edges.csv").unlink(),
            r"edges\.csv is missing, which metadata\.yaml names for edges",
        ),
    ],
)
def test_spoiled_edges_in_text(tmp_path: Path, spoil: Callable[[Path], object], match: str) -> None:
    folder = write_graphbolt(tmp_path / "small", MADE, form="csv")
    spoil(folder)
    fails(folder, (ArgumentError, FormatError), match)  # pyright: ignore[reportArgumentType]


def test_classes_of_edges_are_refused(tmp_path: Path) -> None:
    folder = write_graphbolt(tmp_path / "small", MADE)
    add_links(folder, negatives=True)
    np.save(folder / "test_labels_of_links.npy", np.arange(30) % 3)
    fails(
        folder,
        ArgumentError,
        r"test_labels_of_links\.npy, row 2 .* is 2; labels of edges are 1, or 0 for negatives",
    )


def test_torch_files_that_hold_something_else(tmp_path: Path) -> None:
    folder = write_graphbolt(tmp_path / "small", MADE, form="torch")
    torch.save({"x": 1}, folder / "feat.pt")
    fails(folder, FormatError, r"feat\.pt holds no tensor")
    torch.save(torch.zeros(60, 3, dtype=torch.bfloat16), folder / "feat.pt")
    fails(folder, FormatError, r"feat\.pt.* is bfloat16")


def test_without_pyyaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_graphbolt(tmp_path / "small", MADE)
    monkeypatch.setitem(sys.modules, "yaml", None)
    fails(folder, ArgumentError, r"metadata\.yaml cannot be read without PyYAML: pip install pyyaml")


def test_a_preprocessed_folder(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    fails(
        tmp_path / "small", ArgumentError, r"metadata\.yaml is missing: graphbolt:DIR is a folder that has it"
    )
    (tmp_path / "small/preprocessed").mkdir()
    fails(
        tmp_path / "small",
        ArgumentError,
        r"nothing but a graph that GraphBolt preprocessed, a pickle, which is not",
    )


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("form", ["numpy", "torch", "csv"])
def test_files_twenty_times_the_budget(tmp_path: Path, form: str) -> None:
    """80 MB of features and 10 MB of edges."""
    nodes = 50_000
    rows = np.arange(nodes * 400, dtype=np.float32).reshape(nodes, 400)
    pairs = np.random.default_rng(0).integers(0, nodes, (600_000, 2))
    folder = write_graphbolt(tmp_path / "large", ForeignGraph(pairs, rows, np.arange(nodes) % 5), form=form)
    runtime = new_runtime("4MiB")
    graph = import_graph(f"graphbolt:{folder}", tmp_path / "graph", runtime)
    assert runtime.budget.peak_bytes <= 4 << 20
    assert np.array_equal(get(graph, "features"), rows)
    assert edges_of(graph) == set(map(tuple, pairs.tolist()))


def test_cora(tmp_path: Path) -> None:
    """As it was published, but for its features, which the folder lacks."""
    folder = shared_path("samples-graphbolt-cora")
    fails_at = tmp_path / "cora"
    shutil.copytree(folder, fails_at)
    fails(fails_at, ArgumentError, r"node-feat\.npy is missing, which metadata\.yaml names for feat")
    (fails_at / "metadata.yaml").chmod(0o644)
    edit(lambda root: root.pop("feature_data"))(fails_at)
    graph = run(fails_at)
    edges = np.loadtxt(folder / "edges.csv", np.int64, delimiter=",")
    assert edges_of(graph) == set(map(tuple, edges.tolist()))
    assert (graph.num_nodes, graph.num_edges, graph.num_classes) == (2708, len(edges), 7)
    labels = np.full(2708, -1)
    for split in SPLITS:
        seeds = np.load(folder / f"nodeclassification/{split}-node.npy")
        labels[seeds] = np.load(folder / f"nodeclassification/{split}-label.npy")
        assert np.array_equal(get(graph, split), np.sort(seeds))
    assert np.array_equal(get(graph, "labels"), labels)
    for split in ("train", "test"):
        pairs = np.load(folder / f"linkprediction/{split}-node-pairs.npy")
        assert np.array_equal(get(graph, f"{split}_edges"), pairs)
