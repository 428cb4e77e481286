"""Import of data sets of GraphBolt with types, against the graph that was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import outcrop as oc
from foreign_types import ForeignTypes, check_same, foreign_types, read, write_graphbolt
from outcrop.importing.graph import import_graph
from outcrop.store.graph import Graph
from support import held_bytes, new_runtime

WRITES = ("author", "writes", "paper")


def made(*, rows: bool = False, scale: int = 1) -> ForeignTypes:
    """Papers and authors have labels where they are seeds, and only there."""
    graph = foreign_types(scale)
    authors = np.split(np.random.default_rng(1).permutation(graph.sizes["author"])[:30], [15, 22])
    splits = graph.splits | {"author": dict(zip(("train", "valid", "test"), authors, strict=True))}
    labels = {}
    for name, of in graph.labels.items():
        labels[name] = np.full(len(of), np.nan)
        seeds = np.concatenate(list(splits[name].values()))
        labels[name][seeds] = of[seeds]
    edge_rows = np.arange(2 * len(graph.edges[WRITES]), dtype=np.float32).reshape(-1, 2)
    return replace(graph, labels=labels, splits=splits, edge_features={WRITES: edge_rows} if rows else {})


def imported(folder: Path, **options) -> Graph:
    out = folder.parent / "g.oc"
    return import_graph(f"graphbolt:{folder}", out, new_runtime("8MiB"), oc.ImportConfig(**options))


@pytest.mark.parametrize("form", ["csv", "numpy", "torch"])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_everything_comes_back(tmp_path, form, dtype):
    graph = imported(write_graphbolt(tmp_path / "small", made(), form=form, dtype=dtype), reverse=True)
    check_same(graph, made(), reversed_keys=True)
    assert [one.num_classes for one in graph.node_types] == [5, 5, 0, 0]
    assert not any("not imported" in note for note in graph.notes)


@pytest.mark.parametrize("form", ["csv", "numpy", "torch"])
def test_rows_of_edges_follow_their_edges(tmp_path, form):
    graph = imported(write_graphbolt(tmp_path / "small", made(rows=True), form=form))
    pairs, rows = made(rows=True).edges[WRITES], made(rows=True).edge_features[WRITES]
    order = np.lexsort((pairs[:, 0], pairs[:, 1]))
    assert np.array_equal(graph.edge_index(WRITES), pairs[order].T)
    of = next(one for one in graph.edge_types if one.key == WRITES)
    assert np.array_equal(read(graph, of.array("features")), rows[order])


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "metadata.yaml"
    root = yaml.safe_load(path.read_text())
    change(root)
    path.write_text(yaml.safe_dump(root))


def test_notes_name_what_is_left_out(tmp_path):
    folder = write_graphbolt(tmp_path / "small", made())
    np.save(folder / "pairs.npy", np.zeros((3, 2), int))
    np.save(folder / "year.npy", np.zeros((60, 1)))
    seeds = [{"type": "author:writes:paper", "data": [{"name": "seeds", "path": "pairs.npy"}]}]

    def add(root: dict[str, Any]) -> None:
        root["tasks"].append({"name": "links", "train_set": seeds})
        root["feature_data"].append({"domain": "node", "type": "paper", "name": "year", "path": "year.npy"})

    changed(folder, add)
    graph = imported(folder)
    check_same(graph, made())
    notes = " ".join(graph.notes)
    assert "tasks of" in notes
    assert "not imported: links" in notes
    assert "not imported: node paper year" in notes


def test_another_task_is_chosen(tmp_path):
    folder = write_graphbolt(tmp_path / "small", made())
    np.save(folder / "few.npy", np.array([3, 1]))
    few = {"name": "few", "train_set": [{"type": "field", "data": [{"name": "seeds", "path": "few.npy"}]}]}
    changed(folder, lambda root: root["tasks"].append(few))
    graph = imported(folder, split_index=1)
    assert read(graph, "n2.train").tolist() == [1, 3]
    assert [one.num_classes for one in graph.node_types] == [0, 0, 0, 0]
    with pytest.raises(oc.ArgumentError, match="has 2 tasks of nodes, number 2 was asked for"):
        imported(folder, split_index=2)


def entry(*path: str | int) -> Callable[..., Callable[[Path], None]]:
    """Says which value of ``metadata.yaml`` to replace, or with no value to remove."""

    def replaced(*value: Any) -> Callable[[Path], None]:
        def change(root: Any) -> None:
            for step in path[:-1]:
                root = root[step]
            root.pop(path[-1])
            if value:
                root[path[-1]] = value[0]

        return lambda folder: changed(folder, change)

    return replaced


def torn(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-8])


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (entry("graph", "nodes", 0, "num")(), r"graph: nodes\[0\] has no num"),
        (entry("graph", "nodes", 0, "num")(-3), r"num is '-3'; a number that is not negative"),
        (entry("graph", "nodes", 0, "num")(61), r"has 60 rows of features, node type 'paper' has 61 nodes"),
        (entry("graph", "nodes", 1, "num")(1 << 40), r"tells of 1099511627776 nodes 'author'"),
        (entry("graph", "nodes", 0, "type")(), r"nodes\[0\] has no type"),
        (entry("graph", "nodes", 0, "type")("author"), r"nodes\[1\]: 'author' is listed twice"),
        (
            entry("graph", "edges", 1, "type")("a:b"),
            r"edges\[1\]: type is 'a:b'; source:relation:target is needed",
        ),
        (entry("graph", "edges", 1, "type")("a:b:paper"), r"edges\[1\]: 'a' is no node type"),
        (entry("graph", "edges", 1, "type")("paper:cites:paper"), r"'paper:cites:paper' is listed twice"),
        (entry("feature_data", 0, "type")("x"), r"feature_data\[0\]: 'x' is no type of metadata\.yaml"),
        (entry("feature_data", 0, "type")(), r"feature_data\[0\] has no type"),
        (entry("tasks", 0, "train_set", 0, "type")("x"), r"a task has seeds of 'x', which is no node type"),
        (entry("tasks", 0, "train_set", 0, "type")("author"), r"type 'author' is listed twice"),
        (
            entry("tasks", 0, "num_classes")(2),
            r"classes.*num_classes of task 'classes' is 2|is \d; num_classes",
        ),
        (torn("edges0.npy"), r"edges0\.npy is truncated"),
        (torn("paper_feat.npy"), r"paper_feat\.npy is truncated"),
        (lambda f: (f / "edges1.npy").unlink(), r"edges1\.npy is missing, which metadata\.yaml names"),
        (
            lambda f: np.save(f / "edges1.npy", np.full((2, 3), 60)),
            r"edge 0 .* names node 60 of 'author', but",
        ),
        (lambda f: np.save(f / "edges1.npy", np.zeros((3, 3), int)), r"GraphBolt has edges as \[2, edges\]"),
        (
            lambda f: np.save(f / "author_train.npy", np.full(15, 40)),
            r"names node 40, but there are 40 nodes",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path, spoil, match):
    folder = write_graphbolt(tmp_path / "small", made())
    spoil(folder)
    runtime = new_runtime("8MiB")
    with pytest.raises((oc.ArgumentError, oc.FormatError), match=match):
        import_graph(f"graphbolt:{folder}", tmp_path / "g.oc", runtime)
    assert held_bytes(runtime) == 0
    assert not (tmp_path / "g.oc").exists()


@pytest.mark.parametrize("form", ["csv", "numpy"])
def test_smallest_budget_works_and_gives_the_same(tmp_path, form):
    folder, out = (
        write_graphbolt(tmp_path / "small", made(scale=100, rows=True), form=form),
        tmp_path / "g.oc",
    )
    with pytest.raises(oc.BudgetError) as error:
        oc.import_graph(f"graphbolt:{folder}", out, memory="16KiB", progress=False)
    least = error.value.smallest
    assert least is not None
    digests = {
        oc.import_graph(f"graphbolt:{folder}", out, memory=memory, overwrite=True, progress=False).digest()
        for memory in (least, 64 << 20)
    }
    assert len(digests) == 1


def test_a_file_that_changed_is_seen(tmp_path):
    folder, out = write_graphbolt(tmp_path / "small", made(rows=True)), tmp_path / "g.oc"
    oc.import_graph(f"graphbolt:{folder}", out, progress=False)
    assert "is kept" in oc.import_graph(f"graphbolt:{folder}", out, progress=False).notes[0]
    path = next(folder.glob("edge_feat*.npy"))
    np.save(path, np.load(path) + 1)
    with pytest.raises(oc.ArgumentError, match=r"edge_feat1\.npy"):
        oc.import_graph(f"graphbolt:{folder}", out, progress=False)
