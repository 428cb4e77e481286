"""Data sets of the Open Graph Benchmark, against its own loader where it is there, and a loader in pandas."""

from __future__ import annotations

import gzip
import pathlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import outcrop as oc
from foreign_layouts import ForeignGraph, foreign_graph, write_gzip, write_ogb_text
from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.graph import import_graph
from outcrop.importing.sources.gzip_tables import open_gzip
from outcrop.store.graph import Graph
from outcrop.store.verify import verify_artifact
from support import held_bytes, import_ogb, new_runtime, shared_path

TORTURED = True
Loader = Callable[..., dict[str, Any]]


def get(graph: Graph, name: str) -> np.ndarray:
    return np.array(graph.array(new_runtime(), name).memmap())


def edges_of(graph: Graph) -> dict[tuple[int, int], float]:
    """(source, target) -> weight."""
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(get(graph, "indptr")))
    weights = get(graph, "edge_weight") if graph.has("edge_weight") else np.ones(graph.num_edges)
    pairs = zip(get(graph, "indices").tolist(), targets.tolist(), strict=True)
    return dict(zip(pairs, weights.tolist(), strict=True))


def run(folder: Path, memory: str | None = "32MiB", **options: Any) -> Graph:
    runtime = new_runtime(memory)
    graph = import_graph(f"ogb:{folder}", folder.parent / "graph", runtime, **options)
    assert held_bytes(runtime) == 0
    verify_artifact(graph.path, new_runtime())
    return graph


def fails(folder: Path, kind: type[Exception], match: str, **options: Any) -> None:
    runtime = new_runtime("32MiB")
    with pytest.raises(kind, match=match):
        import_graph(f"ogb:{folder}", folder.parent / "graph", runtime, **options)
    assert not (folder.parent / "graph").exists()
    assert held_bytes(runtime) == 0


def csv(path: Path) -> np.ndarray:
    return pd.read_csv(path, compression="gzip", header=None).to_numpy()


def load_by_pandas(
    raw_dir: str,
    add_inverse_edge: bool,
    additional_edge_files: list[str] = [],  # noqa: B006
) -> dict[str, Any]:
    """What OGB's documentation says of its raw files, for one graph."""
    raw, times = Path(raw_dir), 2 if add_inverse_edge else 1
    src, dst = csv(raw / "edge.csv.gz").T
    edges = np.stack([src, dst])
    if add_inverse_edge:  # each edge is followed by its inverse
        edges = np.stack([np.stack([src, dst]), np.stack([dst, src])], axis=2).reshape(2, -1)
    features = raw / "node-feat.csv.gz"
    graph = {
        "edge_index": edges,
        "num_nodes": int(csv(raw / "num-node-list.csv.gz")[0, 0]),
        "node_feat": csv(features).astype(np.float32) if features.exists() else None,
    }
    for name in additional_edge_files:
        graph[name] = np.repeat(csv(raw / f"{name}.csv.gz"), times, axis=0)
    return graph


@pytest.fixture(params=["pandas", "ogb"])
def load(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Loader:
    """The raw files as a dict of arrays."""
    if request.param == "pandas":
        return load_by_pandas
    reader = import_ogb("io.read_graph_raw", monkeypatch)
    return lambda *args, **options: reader.read_csv_graph_raw(*args, **options)[0]


def compare(folder: Path, graph: Graph, loaded: dict[str, Any]) -> None:
    """Compares a graph with what a loader of OGB gives, where each edge counts once."""
    weights = (
        loaded["edge_weight"][:, 0] if "edge_weight" in loaded else np.ones(loaded["edge_index"].shape[1])
    )
    edges: dict[tuple[int, int], float] = {}
    for pair, weight in zip(loaded["edge_index"].T.tolist(), weights.tolist(), strict=True):
        edges.setdefault((pair[0], pair[1]), weight)
    assert edges_of(graph) == edges
    assert graph.num_nodes == loaded["num_nodes"]
    assert np.array_equal(get(graph, "features"), loaded["node_feat"])
    labels = csv(folder / "raw/node-label.csv.gz")[:, 0]
    assert np.array_equal(get(graph, "labels"), np.where(np.isnan(labels), -1, labels))
    for split in SPLITS:
        (path,) = folder.glob(f"split/*/{split}.csv.gz")
        assert np.array_equal(get(graph, split), np.sort(csv(path)[:, 0]))


@pytest.mark.parametrize("name", ["ogbn_arxiv", "ogbn_products", "ogbl_collab"])
def test_a_data_set_in_text_is_what_ogb_loads(tmp_path: Path, name: str, load: Loader) -> None:
    weights, reverse = name == "ogbl_collab", name != "ogbn_arxiv"
    folder = write_ogb_text(tmp_path / name, foreign_graph(), weights=weights)
    graph = run(folder)
    files = ["edge_weight"] if weights else []
    compare(folder, graph, load(str(folder / "raw"), reverse, additional_edge_files=files))
    assert graph.manifest.attributes["undirected"] == reverse
    assert graph.num_classes == 4


@pytest.mark.parametrize("name", ["ogbn_arxiv", "ogbl_collab"])
def test_edges_that_are_listed_twice_are_kept_edge_for_edge(tmp_path: Path, name: str, load: Loader) -> None:
    """As often as OGB's loader gives them, inverses too, each with its own weight. But a loop is its own inverse, which
    OGB lists twice."""
    weights = name == "ogbl_collab"
    made = foreign_graph()
    again = [*range(len(made.edges)), *range(0, len(made.edges), 3), *range(0, len(made.edges), 6)]
    numbers = np.arange(1, len(again) + 1)
    twice = ForeignGraph(made.edges[again], made.features, made.labels, made.splits, numbers)
    folder = write_ogb_text(tmp_path / name, twice, weights=weights)
    graph = run(folder, keep_duplicates=True)
    loaded = load(str(folder / "raw"), weights, additional_edge_files=["edge_weight"] if weights else [])
    theirs = loaded["edge_index"].T.tolist()
    their_weights = loaded["edge_weight"][:, 0].tolist() if weights else [1.0] * len(theirs)
    expected = Counter((*pair, weight) for pair, weight in zip(theirs, their_weights, strict=True))
    for source, target, weight in expected:
        if weights and source == target:
            expected[source, target, weight] //= 2
    ours = graph.edge_index().T.tolist()
    our_weights = get(graph, "edge_weight").tolist() if weights else [1.0] * len(ours)
    assert len(theirs) > len({tuple(pair) for pair in theirs})
    assert Counter((*pair, weight) for pair, weight in zip(ours, our_weights, strict=True)) == expected


def test_options_replace_what_ogb_does(tmp_path: Path) -> None:
    folder = write_ogb_text(tmp_path / "ogbn_products", foreign_graph())
    graph = run(folder, reverse=False, train_fraction=0.5)
    compare_edges = set(map(tuple, foreign_graph().edges.tolist()))
    assert set(edges_of(graph)) == compare_edges
    labelled = np.count_nonzero(get(graph, "labels") >= 0)
    assert [len(get(graph, split)) for split in SPLITS] == np.diff(
        np.round(np.cumsum([0, 0.5, 0.2, 0.3]) * labelled).astype(int)
    ).tolist()


def test_labels_of_several_tasks(tmp_path: Path) -> None:
    """As ogbn-proteins has them, whose features are those of edges, stored for both directions of each."""
    labels = (np.random.default_rng(1).random((60, 12)) < 0.3).astype(float)
    made = foreign_graph()
    folder = write_ogb_text(tmp_path / "ogbn_proteins", ForeignGraph(made.edges, made.features, labels))
    (folder / "raw/node-feat.csv.gz").unlink()
    rows = np.random.default_rng(2).integers(0, 9, (len(made.edges), 8))
    write_gzip(folder / "raw/edge-feat.csv.gz", rows)
    write_gzip(folder / "raw/node_species.csv.gz", np.arange(60))
    graph = run(folder)
    assert not graph.has("features")
    assert (graph.label_kind, graph.num_classes) == ("multilabel", 12)
    assert np.array_equal(get(graph, "labels"), labels)
    pairs = list(zip(made.edges.tolist(), rows.tolist(), strict=True))
    pairs += [(edge[::-1], row) for edge, row in pairs if edge[0] != edge[1]]
    found = zip(graph.edge_index().T.tolist(), get(graph, "e0.features").tolist(), strict=True)
    assert sorted(found) == sorted(pairs)
    left = f"files of {folder / 'raw'} that are not imported: node_species.csv.gz"
    assert left in graph.notes


def test_one_of_several_splits(tmp_path: Path) -> None:
    folder = write_ogb_text(tmp_path / "ogbn_arxiv", foreign_graph(), "b")
    for split, nodes in (("train", [1]), ("valid", [2]), ("test", [4, 3])):
        write_gzip(folder / f"split/a/{split}.csv.gz", nodes)
    fails(folder, ArgumentError, r"split has 2 splits \(a, b\), number 2 was asked for", split_index=2)
    graph = run(folder)
    assert [get(graph, split).tolist() for split in SPLITS] == [[1], [2], [3, 4]]
    assert any("split 'a' is imported" in note and note.endswith("another: b") for note in graph.notes)
    assert np.array_equal(get(run(folder, split_index=1), "test"), np.sort(foreign_graph().splits["test"]))


def test_no_edges_and_no_splits(tmp_path: Path) -> None:
    made = foreign_graph()
    folder = write_ogb_text(tmp_path / "ogbn_arxiv", ForeignGraph(made.edges[:0], made.features, made.labels))
    graph = run(folder)
    assert (graph.num_nodes, graph.num_edges, graph.has("train")) == (60, 0, False)
    assert np.array_equal(get(graph, "features"), made.features)


def test_the_same_import_again_keeps_the_graph(tmp_path: Path) -> None:
    folder = write_ogb_text(tmp_path / "ogbn_arxiv", foreign_graph())
    source, out = f"ogb:{folder}", tmp_path / "g"
    oc.import_graph(source, out, progress=False)
    assert "is kept" in oc.import_graph(source, out, progress=False).notes[0]
    write_gzip(folder / "split/time/test.csv.gz", [59])
    with pytest.raises(ArgumentError, match=r"split/time/test\.csv\.gz \(which changed\)"):
        oc.import_graph(source, out, progress=False)


def cut(name: str, keep: float) -> Callable[[Path], object]:
    """Cuts the compressed bytes."""
    return lambda f: (f / name).write_bytes((f / name).read_bytes()[: int(keep * (f / name).stat().st_size)])


def line(name: str, number: int, text: str | None) -> Callable[[Path], object]:
    """Replaces a line, from 1, or leaves it out."""

    def spoil(folder: Path) -> None:
        lines = gzip.decompress((folder / name).read_bytes()).decode().splitlines()
        lines[number - 1 : number] = [] if text is None else [text]
        (folder / name).write_bytes(gzip.compress("\n".join([*lines, ""]).encode()))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "kind", "match"),
    [
        (cut("raw/edge.csv.gz", 0.6), FormatError, r"edge\.csv\.gz is torn"),
        (cut("raw/edge.csv.gz", 0.01), FormatError, r"edge\.csv\.gz is torn"),
        (cut("raw/node-feat.csv.gz", 0.9), FormatError, r"node-feat\.csv\.gz is torn"),
        (cut("raw/node-label.csv.gz", 0.9), FormatError, r"node-label\.csv\.gz is torn"),
        (cut("raw/num-node-list.csv.gz", 0.9), FormatError, r"num-node-list\.csv\.gz is torn"),
        (cut("split/time/valid.csv.gz", 0.9), FormatError, r"valid\.csv\.gz is torn"),
        (lambda f: (f / "raw/edge.csv.gz").write_text("1,2\n"), FormatError, r"edge\.csv\.gz is torn, or no text"),
        (lambda f: (f / "raw/edge.csv.gz").unlink(), ArgumentError, r"edge\.csv\.gz is missing"),
        (lambda f: (f / "raw/num-edge-list.csv.gz").unlink(), ArgumentError, r"num-edge-list\.csv\.gz is missing"),
        (lambda f: (f / "split/time/test.csv.gz").unlink(), ArgumentError, r"time/test\.csv\.gz is missing"),
        (line("raw/edge.csv.gz", 9, None), FormatError, r"edge\.csv\.gz has 399 rows.*says 400"),
        (line("raw/edge.csv.gz", 9, "1,2\n3,4"), FormatError, r"edge\.csv\.gz has 401 rows.*says 400"),
        (line("raw/edge.csv.gz", 9, "1,60"), ArgumentError, r"edge\.csv\.gz, line 9, column 'target' names node 60,"),
        (line("raw/edge.csv.gz", 9, "-1,6"), ArgumentError, r"edge\.csv\.gz, line 9, column 'source' names node -1,"),
        (line("raw/edge.csv.gz", 9, "1,x"), ArgumentError, r"edge\.csv\.gz, line 9, column 'target': 'x' is text"),
        (line("raw/edge.csv.gz", 9, "1,2,3"), FormatError, r"edge\.csv\.gz, line 9: Expected 2 columns, got 3"),
        (line("raw/edge.csv.gz", 1, "1,2,3"), FormatError, r"edge\.csv\.gz has 3 columns in line 1; 2 are needed"),
        (line("raw/node-feat.csv.gz", 60, None), ArgumentError, r"node-feat\.csv\.gz has 59 rows"),
        (line("raw/node-feat.csv.gz", 8, "1,2,3,4"), FormatError, r"node-feat\.csv\.gz, line 8: Expected 5 columns"),
        (line("raw/node-feat.csv.gz", 8, "1,2,a,4,5"), FormatError, r"line 8, column 'column_2': 'a' is no number"),
        (line("raw/node-feat.csv.gz", 8, "1,2,inf,4,5"), FormatError, r"line 8, column 'column_2' is not finite"),
        (line("raw/node-label.csv.gz", 5, None), ArgumentError, r"node-label\.csv\.gz.* has 59 rows"),
        (line("raw/node-label.csv.gz", 5, "-3"), FormatError, r"node-label\.csv\.gz, line 5, column 'column_0' is -3"),
        (line("raw/num-node-list.csv.gz", 1, "9"), ArgumentError, r"there are 9 nodes .* in .*num-node-list"),
        (line("raw/num-node-list.csv.gz", 1, "-9"), FormatError, r"num-node-list\.csv\.gz holds -9"),
        (line("raw/num-node-list.csv.gz", 1, "30\n30"), ArgumentError, r"lists several graphs; a data set of"),
        (line("split/time/train.csv.gz", 2, "77"), ArgumentError, r"train\.csv\.gz, line 2: split train lists node 77"),
        (line("split/time/train.csv.gz", 2, "1.5"), ArgumentError, r"train\.csv\.gz, line 2: 1\.5 is a decimal"),
        (lambda f: write_gzip(f / "split/time/test.csv.gz", [51, 9, 51]), ArgumentError,
         r"test\.csv\.gz, line 3: split test lists node 51 twice, first in .*test\.csv\.gz, line 1"),
        (lambda f: write_gzip(f / "raw/triplet-type-list.csv.gz", [0]), ArgumentError,
         r"num_nodes_dict\.npz is missing"),
        (lambda f: write_gzip(f / "raw/edge_reltype.csv.gz", [0]), ArgumentError,
         r"several types of nodes or edges \(edge_reltype.* import it from triples \(triples:DIR\)"),
    ],
)  # fmt: skip
def test_spoiled_text(
    tmp_path: Path, spoil: Callable[[Path], object], kind: type[Exception], match: str
) -> None:
    folder = write_ogb_text(tmp_path / "ogbn_arxiv", foreign_graph())
    spoil(folder)
    fails(folder, kind, match)


@pytest.mark.parametrize(
    ("spoil", "kind", "match"),
    [
        (line("raw/edge_weight.csv.gz", 7, None), FormatError, r"edge_weight\.csv\.gz has 399 rows; every edge needs"),
        (line("raw/edge_weight.csv.gz", 7, "1\n1"), FormatError, r"edge_weight\.csv\.gz has more rows than"),
        (line("raw/edge_weight.csv.gz", 7, "-2"), ArgumentError, r"edge_weight\.csv\.gz, line 7 is -2"),
        (line("raw/edge_weight.csv.gz", 7, "heavy"), FormatError, r"line 7, column 'weight': 'heavy' is no number"),
        (line("raw/edge_weight.csv.gz", 7, '""'), FormatError, r"edge_weight\.csv\.gz, line 7 is empty"),
    ],
)  # fmt: skip
def test_spoiled_weights(
    tmp_path: Path, spoil: Callable[[Path], object], kind: type[Exception], match: str
) -> None:
    folder = write_ogb_text(tmp_path / "ogbl_collab", foreign_graph(), weights=True)
    spoil(folder)
    fails(folder, kind, match)


@pytest.mark.parametrize("name", ["ogbn-products", "ogbn_products", "ogbn-papers100M"])
def test_the_name_of_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Names the folder that the package makes where it is told of no other, if there is none of the name itself."""
    monkeypatch.chdir(tmp_path)
    looked = rf"^{name}/raw and dataset/{name.replace('-', '_')}/raw are no folders: ogb:DIR"
    with pytest.raises(ArgumentError, match=looked):
        oc.import_graph(f"ogb:{name}", "g", progress=False)
    folder = write_ogb_text(tmp_path / "dataset" / name.replace("-", "_"), foreign_graph())
    graph = oc.import_graph(f"ogb:{name}", "g", progress=False)
    assert graph.manifest.attributes["undirected"] == (name != "ogbn-papers100M")
    assert "is kept" in oc.import_graph(f"ogb:{folder}", "g", progress=False).notes[0]
    write_gzip(folder / "split/time/test.csv.gz", [59])
    with pytest.raises(ArgumentError, match=r"split/time/test\.csv\.gz \(which changed\)"):
        oc.import_graph(f"ogb:{name}", "g", progress=False)
    made = ForeignGraph(foreign_graph().edges[:1], foreign_graph().features, foreign_graph().labels)
    write_ogb_text(tmp_path / name, made)
    assert oc.import_graph(f"ogb:{name}", "h", progress=False).manifest.attributes["edges_listed"] <= 2


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    fails(
        tmp_path / "x" / "ogbn-arxiv",
        ArgumentError,
        r"raw is no folder: ogb:DIR is the folder that the ogb package",
    )


def parts_of(seed: int, count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "edge": rng.integers(0, 60, (count, 2)),
        "edge_neg": rng.integers(0, 60, (9, 2)),
        "year": np.full(count, 2017),
    }


LINKS = {
    split: parts_of(seed, count)
    for seed, (split, count) in enumerate([("train", 50), ("valid", 7), ("test", 5)])
}
WAYS: list[dict[str, Any]] = [{}, {"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4}]


def save(path: Path, value: Any, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path, **options)


@pytest.mark.parametrize("mistake", [b"1,99", b"1,x", b"1,2,3", b"1,2"])
def test_a_tear_behind_a_mistake(tmp_path: Path, mistake: bytes) -> None:
    """Whichever is found first: Arrow reads ahead while edges are looked at."""
    folder = write_ogb_text(tmp_path / "ogbn_arxiv", foreign_graph())
    path = folder / "raw/edge.csv.gz"
    text = gzip.compress(b"1,2\n" * 20_000 + mistake + b"\n" + b"1,2\n" * 1_000_000)
    path.write_bytes(text[: len(text) * 9 // 10])
    with pytest.raises(
        (ArgumentError, FormatError), match=r"edge\.csv\.gz(, line 20001| is torn or unreadable: Trunc)"
    ):
        import_graph(f"ogb:{folder}", tmp_path / "graph", new_runtime("32MiB"))
    table = open_gzip(path, ("source", "target"))
    assert table.row_name(20_000) == "line 20001"
    assert table.row_name(1_019_999) == "line 1020000"  # in what is torn off


def link_folder(path: Path, name: str = "ogbl_collab") -> Path:
    made = foreign_graph()
    return write_ogb_text(path / name, ForeignGraph(made.edges, made.features, made.labels))


@pytest.mark.parametrize("options", WAYS, ids=["zip", "old", "protocol 4"])
@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("one_file", [False, True])
def test_edges_to_predict(tmp_path: Path, options: dict[str, Any], tensors: bool, one_file: bool) -> None:
    folder = link_folder(tmp_path)
    values = {s: {k: torch.tensor(v) if tensors else v for k, v in p.items()} for s, p in LINKS.items()}
    for split, value in values.items():
        if not one_file:
            save(folder / f"split/time/{split}.pt", value, **options)
    if one_file:
        save(folder / "split/time/split_dict.pt", values, **options)
    graph = run(folder)
    for split, parts in LINKS.items():
        assert np.array_equal(get(graph, f"{split}_edges"), parts["edge"])
    where = folder / "split/time"
    assert f"negatives of {where} cannot be stored yet and are not imported: edge_neg" in graph.notes
    assert f"years of {where} are not imported, graphs have no times yet: year" in graph.notes
    assert not run(folder, split_protocol="none").has("train_edges")


@pytest.mark.parametrize("tensors", [False, True])
def test_edges_to_predict_by_their_ends(tmp_path: Path, tensors: bool) -> None:
    """As ogbl-citation2 has them."""
    folder = link_folder(tmp_path, "ogbl_citation2")
    for split, parts in LINKS.items():
        source, target = parts["edge"].T.copy()
        value = {
            "source_node": source,
            "target_node": target,
            "target_node_neg": np.zeros((len(source), 4), int),
        }
        save(
            folder / f"split/time/{split}.pt",
            {k: torch.tensor(v) if tensors else v for k, v in value.items()},
        )
    graph = run(folder)
    for split, parts in LINKS.items():
        assert np.array_equal(get(graph, f"{split}_edges"), parts["edge"])


def test_splits_of_nodes_in_a_torch_file(tmp_path: Path) -> None:
    """As those have that ``ogb.io.DatasetSaver`` made."""
    folder, splits = link_folder(tmp_path, "ogbn_mine"), foreign_graph().splits
    save(folder / "split/random/split_dict.pt", splits)
    graph = run(folder)
    for split, nodes in splits.items():
        assert np.array_equal(get(graph, split), np.sort(nodes))
        write_gzip(folder / f"split/random/{split}.csv.gz", [7])  # which the package does not read then
    save(folder / "split/random/split_dict.pt", splits | {"test": np.array([3, 60])})
    fails_again(
        folder, ArgumentError, r"split_dict\.pt test, row 1 .*: split test lists node 60, but there are 60"
    )


def fails_again(folder: Path, kind: type[Exception], match: str) -> None:
    """Where a graph was imported before."""
    with pytest.raises(kind, match=match):
        import_graph(f"ogb:{folder}", folder.parent / "again", new_runtime("32MiB"))


def test_a_missing_split_of_edges_is_noted(tmp_path: Path) -> None:
    folder = link_folder(tmp_path)
    save(folder / "split/time/test.pt", LINKS["test"])
    graph = run(folder)
    assert graph.has("test_edges")
    assert f"{folder / 'split/time'} holds no edges of split train" in graph.notes


@pytest.mark.parametrize(
    ("value", "kind", "match"),
    [
        ({"edge": np.zeros((4, 3), int)}, FormatError, r"test\.pt edge has shape \(4, 3\); \[edges, 2\] is needed"),
        ({"edge": np.zeros((4, 2))}, ArgumentError, r"test\.pt edge: node ids are float64, integers are needed"),
        ({"edge": [1, 2]}, FormatError, r"test\.pt edge has no array"),
        ({"edge": np.array([[1, 2], [3, 60]])}, ArgumentError, r"test\.pt, edge 1 .* is \[3, 60\], there are 60 nodes"),
        ({"edge": torch.tensor([[1, -2]])}, ArgumentError, r"test\.pt, edge 0 .* is \[1, -2\], there are 60 nodes"),
        ({"pairs": np.zeros((4, 2), int)}, FormatError, r"test\.pt has pairs; edge, or source_node"),
        ({"source_node": np.arange(3), "target_node": np.arange(2)}, FormatError, r"has 3 sources and 2 targets"),
        ({"head": np.arange(2), "relation": np.arange(2)}, ArgumentError, r"several types .*test\.pt has relations"),
        ({"edge": pathlib.PurePosixPath("x")}, FormatError, r"test\.pt.*PurePosixPath.*download the data set again"),
    ],
)  # fmt: skip
def test_spoiled_edges_to_predict(tmp_path: Path, value: Any, kind: type[Exception], match: str) -> None:
    folder = link_folder(tmp_path)
    save(folder / "split/time/train.pt", LINKS["train"])
    save(folder / "split/time/test.pt", value)
    fails(folder, kind, match)


def test_torn_torch_files(tmp_path: Path) -> None:
    folder = link_folder(tmp_path)
    save(folder / "split/time/train.pt", LINKS["train"])
    cut("split/time/train.pt", 0.6)(folder)
    fails(folder, FormatError, r"train\.pt")
    (folder / "split/time/train.pt").unlink()
    save(folder / "split/time/split_dict.pt", {"train": LINKS["train"]})
    fails(folder, FormatError, r"split_dict\.pt has not the splits train, valid and test")


def test_edges_to_predict_twenty_times_the_budget(tmp_path: Path) -> None:
    """80 MB of tensors are never held whole."""
    folder = link_folder(tmp_path)
    pairs = torch.tensor(np.arange(10_000_000).reshape(-1, 2) % 60)
    save(folder / "split/time/train.pt", {"edge": pairs})
    runtime = new_runtime("4MiB")
    graph = import_graph(f"ogb:{folder}", tmp_path / "graph", runtime)
    assert runtime.budget.peak_bytes <= 4 << 20
    assert np.array_equal(graph.array(new_runtime(), "train_edges").memmap(), pairs.numpy())


def test_files_twenty_times_the_budget(tmp_path: Path) -> None:
    """80 MB of text: a block of rows many times over."""
    block = foreign_graph(1000, 4000, 90)
    folder = write_ogb_text(tmp_path / "ogbn_arxiv", block)
    for name, count in (("edge", 100), ("node-feat", 100), ("node-label", 100)):
        path = folder / "raw" / f"{name}.csv.gz"
        text = gzip.decompress(path.read_bytes())
        with gzip.open(path, "wb", 1) as file:
            for _ in range(count):
                file.write(text)
    write_gzip(folder / "raw/num-node-list.csv.gz", [100_000])
    write_gzip(folder / "raw/num-edge-list.csv.gz", [400_000])
    runtime = new_runtime("4MiB")
    graph = import_graph(f"ogb:{folder}", tmp_path / "graph", runtime)
    assert runtime.budget.peak_bytes <= 4 << 20
    assert (graph.num_nodes, graph.manifest.attributes["edges_listed"]) == (100_000, 400_000)
    features = graph.array(new_runtime(), "features").memmap()
    for start in range(0, 100_000, 1000):
        assert np.array_equal(features[start : start + 1000], block.features)


def test_drug_interactions(tmp_path: Path, load: Loader) -> None:
    """ogbl-ddi as it is published."""
    folder = shared_path("ogbl-ddi")
    graph = import_graph(f"ogb:{folder}", tmp_path / "graph", new_runtime("32MiB"))
    loaded = load(str(folder / "raw"), True)
    assert graph.num_nodes == loaded["num_nodes"] == 4267
    assert graph.num_edges == loaded["edge_index"].shape[1] == 2 * 1_067_911
    source, target = loaded["edge_index"]
    assert np.array_equal(get(graph, "indices"), np.sort(target * 4267 + source) % 4267)
    for split in ("valid", "test"):  # train.pt is not there
        parts = torch.load(folder / f"split/target/{split}.pt", weights_only=False)
        assert np.array_equal(get(graph, f"{split}_edges"), parts["edge"])
    assert not graph.has("train_edges")


def test_many_small_graphs_are_refused(tmp_path: Path) -> None:
    folder = shared_path("samples-ogb-molesol", "ogbg_molesol")
    with pytest.raises(
        ArgumentError, match=r"num-node-list\.csv\.gz lists several graphs; a data set of one graph"
    ):
        import_graph(f"ogb:{folder}", tmp_path / "graph", new_runtime())
