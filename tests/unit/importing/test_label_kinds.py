"""Labels of every kind as NumPy has them: classes with gaps, multi-label, targets of regression."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from artifact_support import manifest_at
from outcrop.errors import ArgumentError, FormatError, OutcropError
from outcrop.importing.graph import import_graph
from outcrop.store.graph import Graph
from outcrop.store.verify import verify_artifact
from support import new_runtime

NODES = 30
RNG = np.random.default_rng(0)
MANY = RNG.integers(0, 2, (NODES, 5))
TARGETS = RNG.normal(size=(NODES, 3))


def run(folder: Path, labels: Any, **options: Any) -> Graph:
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "edges.npy", np.random.default_rng(1).integers(0, NODES, (90, 2)))
    if isinstance(labels, pa.Table):
        pq.write_table(labels, folder / "labels.parquet", row_group_size=7)
    else:
        np.save(folder / "labels.npy", labels)
    runtime = new_runtime("32MiB")
    graph = import_graph(f"arrays:{folder}", folder.parent / "graph", runtime, **options)
    verify_artifact(graph.path, runtime)
    return graph


def get(graph: Graph) -> np.ndarray:
    return np.array(graph.array(new_runtime(), "labels").memmap())


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.float64])
def test_classes_with_gaps_are_numbered_and_keep_their_names(tmp_path: Path, dtype: Any) -> None:
    values = np.array([0, 5, 1000, 10**12])[np.arange(NODES) % 4].astype(dtype)
    graph = run(tmp_path / "in", values)
    distinct, numbers = np.unique(values, return_inverse=True)
    assert np.array_equal(get(graph), numbers)
    assert graph.num_classes == 4
    assert graph.class_names == tuple(str(int(v)) for v in distinct)
    assert graph.label_kind == "class"


def test_classes_from_0_are_stored_as_they_are(tmp_path: Path) -> None:
    labels = np.where(np.arange(NODES) % 5 == 0, -1, np.arange(NODES) % 3)
    graph = run(tmp_path / "in", labels)
    assert np.array_equal(get(graph), labels)
    assert not {"label_kind", "class_names"} & set(graph.manifest.attributes)
    assert "label_kind" not in graph.manifest.config


def test_unlabelled_nodes_stay_so_where_classes_have_gaps(tmp_path: Path) -> None:
    labels = np.array([7, -1, 3] * 10)
    assert np.array_equal(get(run(tmp_path / "in", labels)), np.array([1, -1, 0] * 10))


def test_more_values_than_can_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay as they are where they can be 0 .. C - 1, and are no classes where they cannot."""
    monkeypatch.setattr("outcrop.importing.sources.labels.MAX_NAMED_CLASSES", 8)
    graph = run(tmp_path / "a/in", np.arange(NODES)[::-1])
    assert (get(graph)[0], graph.num_classes, graph.class_names) == (NODES - 1, NODES, ())
    with pytest.raises(ArgumentError, match=r"over 8 different values up to 290, too many for classes"):
        run(tmp_path / "b/in", np.arange(NODES) * 10)
    targets = run(tmp_path / "c/in", np.arange(NODES) * 10, label_kind="regression")
    assert np.array_equal(get(targets), np.arange(NODES) * 10.0)


def multilabel(array: np.ndarray) -> np.ndarray:
    """What is stored, by cell."""
    return np.array([[int(x) if x in (0, 1) else 255 for x in row] for row in array], np.uint8)


@pytest.mark.parametrize(
    "labels",
    [
        MANY,
        MANY.astype(bool),
        MANY.astype(np.uint8),
        np.where(np.arange(NODES)[:, None] % 4 == 0, -1, MANY),
        np.where(np.arange(NODES)[:, None] % 4 == 0, 255, MANY).astype(np.uint8),
        np.where(np.arange(NODES)[:, None] % 4 == 0, np.nan, MANY),
    ],
    ids=["int64", "bool", "uint8", "minus-1", "255", "nan"],
)
def test_multilabel(tmp_path: Path, labels: np.ndarray) -> None:
    graph = run(tmp_path / "in", labels, train_fraction=1.0)
    stored = get(graph)
    assert stored.dtype == np.uint8
    assert np.array_equal(stored, multilabel(labels))
    assert (graph.label_kind, graph.num_classes) == ("multilabel", 5)
    known = np.flatnonzero((multilabel(labels) != 255).any(axis=1))
    assert np.array_equal(graph.split(new_runtime(), "train"), known)


@pytest.mark.parametrize(
    ("labels", "options"),
    [
        (TARGETS, {}),
        (TARGETS[:, 0], {}),
        (TARGETS[:, :1], {}),
        (np.where(np.arange(NODES)[:, None] % 4 == 0, np.nan, TARGETS), {}),
        (np.arange(NODES), {"label_kind": "regression"}),
        (np.arange(2 * NODES).reshape(-1, 2), {"label_kind": "regression"}),
    ],
    ids=["NxT", "N", "Nx1", "nan", "int", "int-NxT"],
)
def test_regression(tmp_path: Path, labels: np.ndarray, options: dict) -> None:
    graph = run(tmp_path / "in", labels, train_fraction=1.0, **options)
    wanted = labels[:, 0] if labels.shape[1:] == (1,) else labels
    assert np.array_equal(get(graph), wanted.astype(np.float32), equal_nan=True)
    assert graph.label_kind == "regression"
    assert graph.num_classes == (wanted.shape[1] if wanted.ndim == 2 else 1)
    known = np.flatnonzero(~np.isnan(wanted.reshape(NODES, -1)).all(axis=1))
    assert np.array_equal(graph.split(new_runtime(), "train"), known)


def test_tables_of_lists_and_of_columns(tmp_path: Path) -> None:
    rows: list = [None if n % 4 == 0 or n < 14 else MANY[n].tolist() for n in range(NODES)]
    wanted = np.array([[255] * 5 if row is None else row for row in rows])
    assert np.array_equal(get(run(tmp_path / "a/in", pa.table({"y": rows}))), wanted)
    columns = pa.table({f"target_{i}": TARGETS[:, i] for i in range(3)})
    assert np.array_equal(get(run(tmp_path / "b/in", columns)), TARGETS.astype(np.float32))
    booleans = pa.table({"label": [None if n % 3 == 0 else n % 2 == 0 for n in range(NODES)]})
    wanted = np.array([-1 if n % 3 == 0 else int(n % 2 == 0) for n in range(NODES)])
    assert np.array_equal(get(run(tmp_path / "c/in", booleans)), wanted)


@pytest.mark.parametrize(
    ("labels", "options", "kind", "match"),
    [
        (MANY * 3, {}, ArgumentError, r"labels\.npy has 5 columns of int64.*--label-kind"),
        (MANY, {"label_kind": "class"}, ArgumentError, r"5 columns; classes need one"),
        (TARGETS, {"label_kind": "multilabel"}, ArgumentError, r"other values than 0, 1"),
        (TARGETS, {"label_kind": "many"}, ArgumentError, r"'many' is none of class, multilabel, regression"),
        (TARGETS * 1e300, {}, FormatError, r"row 0 is .*not finite as float32"),
        (MANY, {"split_protocol": "per-class"}, ArgumentError, r"multilabel; split protocol 'per-class'"),
        (np.zeros((NODES, 2, 2)), {}, FormatError, r"shape \(30, 2, 2\)"),
    ],
)
def test_what_no_kind_fits_is_refused(
    tmp_path: Path, labels: np.ndarray, options: dict, kind: type, match: str
) -> None:
    with pytest.raises(kind, match=match):
        run(tmp_path / "in", labels, **options)
    assert not list(tmp_path.glob("*graph*"))


def test_a_manifest_that_contradicts_its_labels_is_refused(tmp_path: Path) -> None:
    graph = run(tmp_path / "in", MANY)
    for old, new in (('"label_kind": "multilabel"', '"label_kind": "class"'), ("multilabel", "fuzzy")):
        path = graph.path / "manifest.json"
        text = json.dumps(manifest_at(path))
        path.write_text(text.replace(old, new))
        with pytest.raises(OutcropError, match=r"labels of kind class|label kind 'fuzzy' is unknown"):
            verify_artifact(graph.path, new_runtime())
        path.write_text(text)


def test_a_label_that_makes_numbers_text_is_noted(tmp_path: Path) -> None:
    """One mistyped cell makes names of all classes, or a class of every target: that is said, with where it is."""
    words = np.array([str(i % 4) for i in range(NODES)], object)
    words[17] = "3x"
    graph = run(tmp_path / "in", pa.table({"label": words}))
    assert graph.class_names == ("0", "1", "2", "3", "3x")
    (note,) = (note for note in graph.notes if "3x" in note)
    assert "labels.parquet, row 17 (the first is 0), column 'label' is '3x', unlike the other labels" in note
    names = np.array(["bakery", "butcher", "florist"])[np.arange(NODES) % 3]
    graph = run(tmp_path / "names" / "in", pa.table({"label": names}))
    assert not any("unlike" in note for note in graph.notes)
    names[4] = "NA"
    graph = run(tmp_path / "missing" / "in", pa.table({"label": names}))
    assert any("'NA' is taken for the name of a class; leave the cells" in note for note in graph.notes)


CLASSES = ("Theory", "Methods", "Networks")


@pytest.mark.parametrize("by_id", [False, True])
def test_a_class_of_one_node_among_large_ones_is_noted(tmp_path: Path, by_id: bool) -> None:
    """A mistyped name makes a class of its own, which nobody sees among many."""
    words = np.resize(np.array(CLASSES, object), 42)
    words[17] = "Theroy"
    ids = {"id": np.arange(42)[::-1]} if by_id else {}
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({**ids, "label": words}), tmp_path / "in" / "labels.parquet")
    np.save(tmp_path / "in" / "edges.npy", np.array([[0, 41]]))
    graph = import_graph(f"arrays:{tmp_path / 'in'}", tmp_path / "graph", new_runtime("32MiB"))
    assert graph.class_names == ("Methods", "Networks", "Theory", "Theroy")
    (note,) = (note for note in graph.notes if "Theroy" in note)
    assert note == (
        f"{tmp_path / 'in' / 'labels.parquet'}, row 17 (the first is 0), column 'label' is 'Theroy', and no other node "
        "is of that class, while half of the classes have 13 nodes or more: correct it if it is a mistake; 'Theory' "
        "is nearly the same"
    )


def test_only_the_first_classes_of_one_node_are_listed(tmp_path: Path) -> None:
    words = np.resize(np.array(CLASSES, object), 90)
    words[[3, 40, 41, 77]] = ["a", "b", "c", "d"]
    np.save(tmp_path / "labels.npy", words.astype(str))
    np.save(tmp_path / "edges.npy", np.zeros((1, 2), int))
    graph = import_graph(f"arrays:{tmp_path}", tmp_path / "graph", new_runtime("32MiB"))
    assert not [
        note for note in graph.notes if "no other node" in note
    ]  # half of all classes are of one node
    words = np.resize(np.array(["x", "y", "z", "v", "w", *CLASSES], object), 160)
    words[[3, 40, 41, 77]] = ["a", "b", "c", "d"]
    np.save(tmp_path / "labels.npy", words.astype(str))
    graph = import_graph(f"arrays:{tmp_path}", tmp_path / "graph", new_runtime("32MiB"))
    said = [note for note in graph.notes if "no other node" in note]
    assert [note.partition(" is ")[0] for note in said] == [
        f"{tmp_path / 'labels.npy'}: row {row}" for row in (3, 40, 41)
    ]
    assert said[-1].endswith("(classes of a single node: 4)")


def test_small_classes_and_empty_cells_are_not_noted(tmp_path: Path) -> None:
    words = np.array(["", *CLASSES], object)[np.arange(NODES) % 4]
    words[17] = "Theroy"  # classes of 7 and 8 nodes
    assert not [n for n in run(tmp_path / "in", pa.table({"label": words})).notes if "no other node" in n]
