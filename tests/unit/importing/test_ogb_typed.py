"""Import of data sets of OGB with types, in both layouts, against the graph that was written."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import outcrop as oc
from foreign_types import ForeignTypes, check_same, foreign_types, read, write_ogb_arrays, write_ogb_text
from outcrop.importing.graph import import_graph
from outcrop.store.graph import Graph
from support import held_bytes, import_ogb, new_runtime

WRITES = ("author", "writes", "paper")


def made() -> ForeignTypes:
    graph = foreign_types()
    rows = np.arange(2 * len(graph.edges[WRITES]), dtype=np.float32).reshape(-1, 2)
    return replace(graph, edge_features={WRITES: rows})


def imported(folder: Path, memory: str = "8MiB", **options) -> Graph:
    out = folder.parent / "g.oc"
    return import_graph(f"ogb:{folder}", out, new_runtime(memory), oc.ImportConfig(**options))


@pytest.mark.parametrize("reverse", [None, True])
def test_text_comes_back(tmp_path, reverse):
    graph = imported(write_ogb_text(tmp_path / "ogbn_mag", foreign_types()), reverse=reverse)
    check_same(graph, foreign_types(), bool(reverse))
    notes = " ".join(graph.notes)
    assert "node-feat/paper/node_year.csv.gz" in notes
    assert "relations/author___writes___paper/edge_reltype.csv.gz" in notes


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint64])
def test_arrays_come_back(tmp_path, dtype):
    folder = write_ogb_arrays(tmp_path / "ogbn_x", foreign_types(), dtype)
    graph = imported(folder)
    check_same(graph, foreign_types())
    assert (
        f"years of {folder / 'raw'} are not imported, graphs have no times yet: node_year.npz" in graph.notes
    )


def test_files_of_rows_may_be_called_as_in_data_sets_without_types(tmp_path):
    folder = write_ogb_arrays(tmp_path / "ogbn_x", made())
    for name in ("node_feat", "edge_feat"):
        (folder / f"raw/{name}_dict.npz").rename(folder / f"raw/{name}.npz")
    graph = imported(folder, keep_duplicates=False)
    check_same(graph, made())
    assert sum(one.array("features") in graph.manifest.arrays for one in graph.edge_types) == 1


def test_a_split_in_a_torch_file_comes_before_text(tmp_path):
    """As the package has it."""
    folder = write_ogb_text(tmp_path / "ogbn_mag", foreign_types())
    chosen = {s: {"author": np.array([i])} for i, s in enumerate(("train", "valid", "test"))}
    torch.save(chosen, folder / "split/time/split_dict.pt")
    of_authors = {split: by_type["author"] for split, by_type in chosen.items()}
    check_same(imported(folder), replace(foreign_types(), splits={"author": of_authors}))


@pytest.mark.parametrize("write", [write_ogb_text, write_ogb_arrays])
def test_rows_of_edges_follow_their_edges(tmp_path, write):
    graph = imported(write(tmp_path / "ogbn_mag", made()))
    pairs, rows = made().edges[WRITES], made().edge_features[WRITES]
    order = np.lexsort((pairs[:, 0], pairs[:, 1]))  # duplicates are kept, in their order
    assert np.array_equal(graph.edge_index(WRITES), pairs[order].T)
    of = next(one for one in graph.edge_types if one.key == WRITES)
    assert np.array_equal(read(graph, of.array("features")), rows[order])


def test_splits_are_chosen_and_left_out(tmp_path):
    folder = write_ogb_text(tmp_path / "ogbn_mag", foreign_types())
    other = replace(
        foreign_types(),
        splits={"author": {s: np.array([i]) for i, s in enumerate(("train", "valid", "test"))}},
    )
    write_ogb_text(folder, other, "alphabet")
    check_same(imported(folder), other)
    check_same(imported(folder, split_index=1), foreign_types())
    check_same(imported(folder, split_protocol="none"), replace(foreign_types(), splits={}))
    with pytest.raises(oc.ArgumentError, match=r"has 2 splits \(alphabet, time\), number 2 was asked for"):
        imported(folder, split_index=2)


def line(name: str, number: int, text: str | None) -> Callable[[Path], None]:
    """Replaces a line of a compressed file, or leaves it out."""

    def spoil(folder: Path) -> None:
        path = folder / name
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        lines[number - 1 : number] = [] if text is None else [text]
        path.write_bytes(gzip.compress("".join(f"{one}\n" for one in lines).encode()))

    return spoil


def torn(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-12])


def refused(folder: Path, match: str) -> None:
    runtime, out = new_runtime("8MiB"), folder.parent / "g.oc"
    with pytest.raises((oc.ArgumentError, oc.FormatError), match=match):
        import_graph(f"ogb:{folder}", out, runtime)
    assert held_bytes(runtime) == 0
    assert not out.exists()


CITES = "raw/relations/paper___cites___paper"


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (
            line(f"{CITES}/edge.csv.gz", 9, "3,60"),
            r"edge\.csv\.gz, line 9.* names node 60 of 'paper', but nodes 'paper' are 0 to",
        ),
        (line(f"{CITES}/edge.csv.gz", 9, "3,x"), r"edge\.csv\.gz, line 9, column 'target': 'x' is"),
        (
            line(f"{CITES}/edge.csv.gz", 9, None),
            r"edge\.csv\.gz has 399 rows, and num-edge-list\.csv\.gz beside it says 400",
        ),
        (torn(f"{CITES}/edge.csv.gz"), r"edge\.csv\.gz"),
        (
            line("raw/num-node-dict.csv.gz", 1, "paper,author"),
            r"num-node-dict\.csv\.gz, line 2 has no number for each of paper, auth",
        ),
        (line("raw/num-node-dict.csv.gz", 2, "60,40,-7,0"), r"num-node-dict\.csv\.gz, line 2 has no number"),
        (line("raw/num-node-dict.csv.gz", 2, "1,1,1,1\n1,1,1,1"), r"num-node-dict\.csv\.gz lists 2 graphs"),
        (
            line("raw/num-node-dict.csv.gz", 2, "61,40,7,0"),
            r"node-feat\.csv\.gz has 60 rows, node type 'paper' has 61",
        ),
        (line("raw/num-node-dict.csv.gz", 2, f"60,{1 << 40},7,0"), r"tells of 1099511627776 nodes 'author'"),
        (
            line("raw/num-node-dict.csv.gz", 2, f"60,40,{'7' * 5000},0"),
            r"num-node-dict\.csv\.gz, line 2 has no",
        ),
        (
            line("raw/num-node-dict.csv.gz", 1, "paper,author,field,paper"),
            r"num-node-dict\.csv\.gz, line 1 names node type 'paper' twice",
        ),
        (
            line("raw/triplet-type-list.csv.gz", 3, "author,writes,paper"),
            r"triplet-type-list\.csv\.gz, line 3 lists 'author writes paper' twice",
        ),
        (torn("raw/num-node-dict.csv.gz"), r"num-node-dict\.csv\.gz is torn"),
        (
            line("raw/triplet-type-list.csv.gz", 2, "author,writes"),
            r"triplet-type-list\.csv\.gz, line 2: head, relation and tail",
        ),
        (
            line("raw/triplet-type-list.csv.gz", 2, "author,reads,paper"),
            r"author___reads___paper/num-edge-list\.csv\.gz is missing",
        ),
        (lambda f: (f / "raw/triplet-type-list.csv.gz").unlink(), r"triplet-type-list\.csv\.gz is missing"),
        (
            line("raw/nodetype-has-label.csv.gz", 2, "True,True,True,False"),
            r"field/node-label\.csv\.gz is missing, and nodetype",
        ),
        (
            line("raw/nodetype-has-label.csv.gz", 2, "True,True,yes,False"),
            r"line 2: 'yes' is neither True nor False",
        ),
        (line("raw/nodetype-has-label.csv.gz", 2, "True"), r"has no line of True and False below"),
        (
            line("raw/node-label/paper/node-label.csv.gz", 4, "red"),
            r"node-label\.csv\.gz, line 4.*'red' is no number",
        ),
        (
            line("raw/node-feat/author/node-feat.csv.gz", 4, "1,2"),
            r"node-feat\.csv\.gz, line 4: Expected 6 columns, got 2",
        ),
        (
            line("split/time/paper/train.csv.gz", 3, "60"),
            r"train\.csv\.gz, line 3: split train lists node 60, but there are 60",
        ),
        (
            line("split/time/nodetype-has-split.csv.gz", 2, "True,True,False,False"),
            r"author/train\.csv\.gz is missing",
        ),
    ],
)
def test_spoiled_text(tmp_path, spoil, match):
    folder = write_ogb_text(tmp_path / "ogbn_mag", foreign_types())
    spoil(folder)
    refused(folder, match)


def member(file: str, name: str, array: np.ndarray | None) -> Callable[[Path], None]:
    """Replaces a member of a ``.npz`` file, or leaves it out."""

    def spoil(folder: Path) -> None:
        path = folder / "raw" / f"{file}.npz"
        with np.load(path) as found:
            arrays = dict(found)
        arrays.pop(name, None)
        arrays |= {} if array is None else {name: array}
        np.savez(path, **arrays)

    return spoil


def splits(value: object) -> Callable[[Path], None]:
    return lambda folder: torch.save(value, folder / "split/random/split_dict.pt")


KEY = "paper___cites___paper"


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (
            member("num_nodes_dict", "paper", np.array([60, 60])),
            r"num_nodes_dict\.npz member 'paper' lists 2 graphs",
        ),
        (
            member("num_nodes_dict", "paper", np.array([59])),
            r"node_feat_dict\.npz member 'paper' has 60 rows .*has 59 nodes",
        ),
        (
            member("num_nodes_dict", "field", None),
            r"'field' is no node type of .*ogbn_x \(it has author, paper, venue\)",
        ),
        (
            member("num_edges_dict", KEY, np.array([399])),
            r"has shape \(2, 400\); num_edges_dict says \[2, 399\]",
        ),
        (
            member("num_edges_dict", KEY, None),
            r"num_edges_dict\.npz member 'paper___cites___paper' is missing",
        ),
        (
            member("edge_index_dict", "cites", np.zeros((2, 3))),
            r"has a member 'cites'; HEAD___RELATION___TAIL is needed",
        ),
        (
            member("edge_index_dict", KEY, np.full((2, 400), 60)),
            r"edge 0 \(the first is 0\) names node 60 of 'paper'",
        ),
        (member("edge_index_dict", KEY, np.zeros((2, 400))), r"node ids are float64, integers are needed"),
        (torn("raw/edge_index_dict.npz"), r"edge_index_dict\.npz.* is torn or no array"),
        (splits([1]), r"split_dict\.pt has no dict of nodes by type for split train"),
        (splits({"train": {"paper": 3}}), r"split_dict\.pt train paper is no list of nodes"),
        (
            splits({s: {"x": np.arange(i, i + 1)} for i, s in enumerate(("train", "valid", "test"))}),
            r"has splits of 'x'",
        ),
    ],
)
def test_spoiled_arrays(tmp_path, spoil, match):
    folder = write_ogb_arrays(tmp_path / "ogbn_x", foreign_types())
    spoil(folder)
    refused(folder, match)


@pytest.mark.parametrize("write", [write_ogb_text, write_ogb_arrays])
def test_smallest_budget_works_and_gives_the_same(tmp_path, write):
    folder, out = write(tmp_path / "ogbn_mag", foreign_types(scale=100, dim=12)), tmp_path / "g.oc"
    with pytest.raises(oc.BudgetError) as error:
        oc.import_graph(f"ogb:{folder}", out, memory="16KiB", progress=False)
    least = error.value.smallest
    assert least is not None
    digests = set()
    for memory in (least, 64 << 20):
        digests.add(
            oc.import_graph(f"ogb:{folder}", out, memory=memory, overwrite=True, progress=False).digest()
        )
    assert len(digests) == 1


def test_a_file_that_changed_is_seen(tmp_path):
    folder, out = write_ogb_text(tmp_path / "ogbn_mag", foreign_types()), tmp_path / "g.oc"
    oc.import_graph(f"ogb:{folder}", out, progress=False)
    assert "is kept" in oc.import_graph(f"ogb:{folder}", out, progress=False).notes[0]
    line("raw/node-label/paper/node-label.csv.gz", 1, "4")(folder)
    with pytest.raises(oc.ArgumentError, match=r"node-label\.csv\.gz"):
        oc.import_graph(f"ogb:{folder}", out, progress=False)


def without_empty(whole: ForeignTypes) -> ForeignTypes:
    """Returns the graph without the type that has no nodes: the package reads no empty file."""
    return replace(
        whole,
        sizes={name: size for name, size in whole.sizes.items() if size},
        edges={key: pairs for key, pairs in whole.edges.items() if len(pairs)},
    )


def test_ogb_reads_the_same(tmp_path, monkeypatch):
    """Its slices of rows of edges are empty in text, so there are none here."""
    reader = import_ogb("io.read_graph_raw", monkeypatch)
    given = without_empty(foreign_types())
    folder = write_ogb_text(tmp_path / "ogbn_mag", given)
    graph = imported(folder, keep_duplicates=True)
    nodes, edges = ["node_year"], ["edge_reltype"]
    (read_by_ogb,) = reader.read_csv_heterograph_raw(
        str(folder / "raw"), additional_node_files=nodes, additional_edge_files=edges
    )
    assert read_by_ogb["num_nodes_dict"] == {one.name: one.num_nodes for one in graph.node_types}
    assert list(read_by_ogb["edge_index_dict"]) == [one.key for one in graph.edge_types]
    for one in graph.edge_types:
        pairs = read_by_ogb["edge_index_dict"][one.key]
        order = np.lexsort(pairs)
        assert np.array_equal(graph.edge_index(one), pairs[:, order])
    labels = reader.read_node_label_hetero(str(folder / "raw"))
    splits = [reader.read_nodesplitidx_split_hetero(str(folder / "split" / "time"))]
    for one in graph.node_types:
        rows = read_by_ogb["node_feat_dict"].get(one.name)
        if rows is not None:
            assert np.array_equal(read(graph, one.array("features")), rows.astype(np.float32))
        if one.name in labels:
            of = labels[one.name][:, 0]
            assert np.array_equal(read(graph, one.array("labels")), np.where(np.isnan(of), -1, of))
    for split, by_type in zip(("train", "valid", "test"), splits[0], strict=True):
        for name, listed in by_type.items():
            assert np.array_equal(read(graph, graph.node_type(name).array(split)), np.sort(listed))


def test_ogb_reads_the_same_of_arrays(tmp_path, monkeypatch):
    reader = import_ogb("io.read_graph_raw", monkeypatch)
    given = without_empty(made())
    folder = write_ogb_arrays(tmp_path / "ogbn_x", given)
    (read_by_ogb,) = reader.read_binary_heterograph_raw(str(folder / "raw"))
    graph = imported(folder, keep_duplicates=True)
    assert read_by_ogb["num_nodes_dict"] == {one.name: one.num_nodes for one in graph.node_types}
    assert sorted(read_by_ogb["edge_index_dict"]) == [one.key for one in graph.edge_types]
    assert list(read_by_ogb["edge_feat_dict"]) == [WRITES]
    for one in graph.edge_types:
        pairs = read_by_ogb["edge_index_dict"][one.key]
        order = np.lexsort(pairs)
        assert np.array_equal(graph.edge_index(one), pairs[:, order])
        if one.key == WRITES:
            assert np.array_equal(
                read(graph, one.array("features")), read_by_ogb["edge_feat_dict"][WRITES][order]
            )
    for name, rows in read_by_ogb["node_feat_dict"].items():
        assert np.array_equal(read(graph, graph.node_type(name).array("features")), rows)


def test_what_ogb_saves_comes_back(tmp_path, monkeypatch):
    """Its saver writes the files that it wants of whoever contributes a data set."""
    io = import_ogb("io", monkeypatch)
    monkeypatch.setattr(torch, "load", partial(torch.load, weights_only=False))  # as it was before 2.6
    given = without_empty(made())
    labels = {"paper": given.labels["paper"]}
    saver = io.DatasetSaver("ogbn-x", is_hetero=True, version=1, root=str(tmp_path / "saved"))
    given_to_it = {
        "num_nodes_dict": given.sizes,
        "edge_index_dict": {key: pairs.T for key, pairs in given.edges.items()},
        "node_feat_dict": given.features,
        "edge_feat_dict": given.edge_features,
        "node_year": {name: np.full((len(rows), 1), 2012) for name, rows in given.features.items()},
    }
    saver.save_graph_list([given_to_it])
    saver.save_target_labels({name: of[:, None] for name, of in labels.items()})
    parts = ("train", "valid", "test")
    saver.save_split({s: {name: of[s] for name, of in given.splits.items()} for s in parts}, "time")
    (raw,) = tmp_path.rglob("raw")
    graph = imported(raw.parent, keep_duplicates=False)
    check_same(graph, replace(given, labels=labels))
    rows = [one.key for one in graph.edge_types if one.array("features") in graph.manifest.arrays]
    assert rows == [WRITES]
    assert any("not imported, graphs have no times yet: node_year.npz" in note for note in graph.notes)


MEMORY = 5 << 19


def write_text_of_many(folder: Path, given: ForeignTypes) -> Path:
    """Writes text whose rows come again every hundred."""
    write_ogb_text(
        folder, replace(given, features={name: rows[:100] for name, rows in given.features.items()})
    )
    for name, rows in given.features.items():
        path = folder / "raw" / "node-feat" / name / "node-feat.csv.gz"
        text = gzip.decompress(path.read_bytes())
        with gzip.open(path, "wb", 1) as file:
            for _ in range(len(rows) // 100):
                file.write(text)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_text_of_many, write_ogb_arrays])
def test_files_twenty_times_the_budget(tmp_path, write):
    """57 MB of rows and ids, of which no list is held whole."""
    given = foreign_types(scale=500, dim=1)
    block = np.arange(26_000, dtype=np.float32).reshape(100, 260) % 97 + np.float32(0.25)
    rows = {name: np.tile(block, (len(of) // 100, 1)) for name, of in given.features.items()}
    given = replace(given, features=rows)
    held = [*given.features.values(), *given.edges.values()]
    assert sum(array.nbytes for array in held) > 20 * MEMORY
    folder, runtime = write(tmp_path / "ogbn_x", given), new_runtime(MEMORY)
    graph = import_graph(f"ogb:{folder}", tmp_path / "g.oc", runtime)
    assert runtime.budget.peak_bytes <= MEMORY
    check_same(graph, given)


def test_a_header_that_is_no_python_is_named(tmp_path):
    folder = write_ogb_arrays(tmp_path / "ogbn_x", foreign_types())
    path = folder / "raw" / "edge_index_dict.npz"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data.replace(b"'fortran_order': ", b"'fortran_order':#"))
    refused(folder, r"edge_index_dict\.npz member .* is torn or no array")
