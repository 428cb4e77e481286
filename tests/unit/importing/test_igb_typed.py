"""Import of the Illinois Graph Benchmark with all its types, against the graph that was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import outcrop as oc
from foreign_types import ForeignTypes, check_same, foreign_types, read, write_igb
from outcrop.importing.graph import import_graph
from outcrop.importing.sources import igb
from outcrop.store.graph import Graph
from support import held_bytes, new_runtime


def made() -> ForeignTypes:
    """Every type has rows of 1024 numbers; papers with a label train, validate and test in the order of the file."""
    graph = foreign_types(dim=1024)
    rows = {
        name: np.full((size, 1024), size, np.float32) for name, size in graph.sizes.items()
    } | graph.features
    known = np.flatnonzero(~np.isnan(graph.labels["paper"]))
    train, valid = int(0.6 * len(known)), int(0.2 * len(known))
    parts = np.split(known, [train, train + valid])
    splits = {"paper": dict(zip(("train", "valid", "test"), parts, strict=True))}
    return replace(graph, features=rows, labels={"paper": graph.labels["paper"]}, splits=splits)


def imported(folder: Path, **options) -> Graph:
    out = folder.parent / "g.oc"
    return import_graph(f"igb:{folder}", out, new_runtime("8MiB"), oc.ImportConfig(types="all", **options))


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_all_types_come_back(tmp_path, raw, dtype):
    graph = imported(write_igb(tmp_path / "tiny", made(), raw=raw, dtype=dtype), reverse=True)
    check_same(graph, made(), reversed_keys=True)
    assert [one.name for one in graph.node_types] == ["paper", "author", "field", "venue"]
    assert graph.num_classes == 19
    assert graph.notes == () or not any("not imported" in note for note in graph.notes)


# The node types and relations of the published sizes, the last two of which only large and full have.
PUBLISHED = (
    ("paper", "cites", "paper"),
    ("paper", "written_by", "author"),
    ("author", "affiliated_to", "institute"),
    ("paper", "topic", "fos"),
    ("paper", "published", "journal"),
    ("paper", "venue", "conference"),
)
PUBLISHED_SIZES = {"paper": 50, "author": 30, "institute": 4, "fos": 9, "journal": 6, "conference": 5}


def published(labelled: int, labels: np.ndarray) -> ForeignTypes:
    """The first papers have a label; the first 60 % of these train, the next 20 % validate, as the loader has it."""
    rng = np.random.default_rng(3)
    train, valid = int(labelled * 0.6), int(labelled * 0.2)
    parts = np.split(np.arange(labelled), [train, train + valid])
    return ForeignTypes(
        PUBLISHED_SIZES,
        {
            name: rng.standard_normal((size, 1024)).astype(np.float32)
            for name, size in PUBLISHED_SIZES.items()
        },
        {"paper": np.where(np.arange(50) < labelled, labels, np.nan)},
        {"paper": dict(zip(("train", "valid", "test"), parts, strict=True))},
        {
            key: np.stack([rng.integers(0, PUBLISHED_SIZES[end], 90) for end in (key[0], key[2])], 1)
            for key in PUBLISHED
        },
    )


@pytest.mark.parametrize(("classes", "labelled"), [(19, 41), (2983, 33)])
@pytest.mark.parametrize("beyond", ["zeros", "nothing"])
def test_the_published_types_of_the_largest_size(tmp_path, monkeypatch, classes, labelled, beyond):
    """Its label files hold something, or nothing, for papers without a label; its rows have no header."""
    monkeypatch.setattr(igb, "LABELLED", {50: {19: 41, 2983: 33}})
    labels = np.arange(50) * 7 % 19 * (1.0 if classes == 19 else 150.0)
    whole = published(50, np.arange(50) * 7 % 19 * 1.0)
    folder = write_igb(tmp_path / "full", whole, raw=True)
    for name, count in (("19", 41), ("2K", 33)):
        of = whole.labels["paper"] * (1 if name == "19" else 150)
        of[count:] = 0
        of[: count if beyond == "nothing" else 50].astype(np.float32).tofile(
            folder / "processed" / "paper" / f"node_label_{name}.npy"
        )
    graph = imported(folder, num_classes=classes)
    check_same(graph, published(labelled, labels))
    assert graph.num_classes == classes


def test_the_other_labels_and_another_dtype(tmp_path):
    graph = imported(write_igb(tmp_path / "tiny", made()), num_classes=2983, feature_dtype="float16")
    labels = made().labels["paper"]
    assert np.array_equal(read(graph, "n0.labels"), np.where(np.isnan(labels), -1, 150 * labels))
    assert graph.num_classes == 2983
    assert np.array_equal(read(graph, "n1.features"), made().features["author"].astype(np.float16))


def test_papers_alone_are_the_default(tmp_path):
    folder = write_igb(tmp_path / "tiny", made())
    graph = import_graph(f"igb:{folder}", tmp_path / "g.oc", new_runtime("8MiB"))
    assert not graph.is_typed
    assert graph.num_nodes == 60
    assert any("author, author__writes__paper" in note and "--types all" in note for note in graph.notes)


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "processed" / name).unlink()


def edges(key: str, array: np.ndarray) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / "processed" / key / "edge_index.npy", array)


def torn(name: str) -> Callable[[Path], object]:
    return lambda f: (f / "processed" / name).write_bytes((f / "processed" / name).read_bytes()[:-2])


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (drop("author/node_feat.npy"), r"author/node_feat\.npy is missing"),
        (drop("author__writes__paper/edge_index.npy"), r"author__writes__paper/edge_index\.npy is missing"),
        (torn("field/node_feat.npy"), r"field/node_feat\.npy is (truncated|no \.npy)"),
        (
            edges("author__writes__paper", np.zeros((3, 4), int)),
            r"has shape \(3, 4\); \[edges, 2\] is needed",
        ),
        (
            edges("author__writes__paper", np.array([[0, 1], [40, 1]])),
            r"edge 1 \(the first is 0\) names node 40 of 'author'",
        ),
        (
            edges("author__writes__paper", np.array([[0, 60]])),
            r"edge 0 .* names node 60 of 'paper', but nodes 'paper' are 0",
        ),
        (edges("author__writes__paper", np.zeros((2, 2))), r"node ids are float64"),
        (lambda f: (f / "processed/a__b").mkdir(), r"a__b is called like no edge type"),
        (
            lambda f: (f / "processed/paper__in__room").mkdir(),
            r"room/node_feat\.npy is missing, and .*paper__in__room leads",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path, spoil, match):
    folder = write_igb(tmp_path / "tiny", made())
    spoil(folder)
    runtime = new_runtime("8MiB")
    with pytest.raises((oc.ArgumentError, oc.FormatError), match=match):
        import_graph(f"igb:{folder}", tmp_path / "g.oc", runtime, oc.ImportConfig(types="all"))
    assert held_bytes(runtime) == 0
    assert not (tmp_path / "g.oc").exists()


def test_raw_rows_that_end_early_are_named(tmp_path):
    folder = write_igb(tmp_path / "tiny", made(), raw=True)
    torn("author/node_feat.npy")(folder)
    with pytest.raises(
        oc.FormatError, match=r"author/node_feat\.npy has 163838 bytes and no header.* row 39 is torn"
    ):
        imported(folder)


def test_files_of_all_types_are_remembered(tmp_path):
    folder, out = write_igb(tmp_path / "tiny", made()), tmp_path / "g.oc"
    for options in (oc.ImportConfig(), oc.ImportConfig(types="all")):
        oc.import_graph(f"igb:{folder}", out, options, overwrite=True, progress=False)
        path = folder / "processed" / "author" / "node_feat.npy"
        np.save(path, np.load(path) + 1)
        if options.types is None:
            assert "is kept" in oc.import_graph(f"igb:{folder}", out, options, progress=False).notes[0]
        else:
            with pytest.raises(oc.ArgumentError, match=r"author/node_feat\.npy"):
                oc.import_graph(f"igb:{folder}", out, options, progress=False)


def test_smallest_budget_works_and_gives_the_same(tmp_path):
    folder, out = write_igb(tmp_path / "tiny", made()), tmp_path / "g.oc"
    options = oc.ImportConfig(types="all")
    with pytest.raises(oc.BudgetError) as error:
        oc.import_graph(f"igb:{folder}", out, options, memory="16KiB", progress=False)
    least = error.value.smallest
    assert least is not None
    digests = {
        oc.import_graph(f"igb:{folder}", out, options, memory=memory, overwrite=True, progress=False).digest()
        for memory in (least, 64 << 20)
    }
    assert len(digests) == 1
