"""Files that users have: rows by id, archives of SciPy and of Cora-ML's kind, MATLAB; what is left out is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.sparse as sp
from typer.testing import CliRunner

import outcrop as oc
from outcrop.cli.main import app
from outcrop.errors import ArgumentError, BudgetError, FormatError
from outcrop.importing.graph import import_graph
from outcrop.importing.sources.base import FeatureSource
from outcrop.importing.sources.folder import FILES
from outcrop.importing.sources.reorder import in_node_order
from outcrop.store.graph import Graph
from outcrop.store.manifest import EDGE_ENDINGS
from outcrop.store.verify import verify_artifact
from sparse_reference import features_of
from support import held_bytes, new_runtime, read_names, shared_path

NODES = 50
RNG = np.random.default_rng(0)
PAIRS = RNG.integers(0, NODES, (300, 2))
X = RNG.normal(size=(NODES, 4)).astype(np.float32)
SHUFFLED = RNG.permutation(NODES)


def get(graph: Graph, name: str) -> np.ndarray:
    return np.array(graph.array(new_runtime(), name).memmap())


def matrix_of(graph: Graph) -> np.ndarray:
    data = get(graph, "edge_weight") if graph.has("edge_weight") else np.ones(graph.num_edges, np.float32)
    shape = (graph.num_nodes, graph.num_nodes)
    return sp.csc_matrix((data, get(graph, "indices"), get(graph, "indptr")), shape).toarray()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An empty folder to import from; the graph lies beside it, within the folder of the test."""
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


def run(source: Path | str, memory: str = "32MiB", **options: Any) -> Graph:
    where = Path(str(source).partition(":")[2] or source)
    runtime = new_runtime(memory)
    text = source if isinstance(source, str) else f"arrays:{source}"
    graph = import_graph(text, where.parent / "graph", runtime, **options)
    assert held_bytes(runtime) == 0
    verify_artifact(graph.path, new_runtime("32MiB"))
    assert sorted(p.name for p in graph.path.iterdir()) == sorted(
        ["manifest.json", "imported.json", *(spec.file for spec in graph.manifest.arrays.values())]
    )
    return graph


def folder_of(path: Path, **parts: Any) -> Path:
    """A folder of arrays and tables; ``features_csv`` is written as features.csv."""
    path.mkdir(parents=True)
    for name, part in {"edges": PAIRS, **parts}.items():
        stem, _, suffix = name.partition("__")
        if isinstance(part, np.ndarray):
            np.save(path / f"{stem}.npy", part)
        elif suffix == "csv":
            pa_csv.write_csv(pa.table(part), path / f"{stem}.csv")
        else:
            pq.write_table(pa.table(part), path / f"{stem}.parquet", row_group_size=8)
    return path


def columns(rows: np.ndarray, ids: np.ndarray) -> dict[str, Any]:
    return {"id": ids} | {f"f{i}": rows[:, i] for i in range(rows.shape[1])}


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("order", [np.arange(NODES), SHUFFLED], ids=["in order", "shuffled"])
def test_features_by_id(tmp_path: Path, suffix: str, order: np.ndarray) -> None:
    graph = run(folder_of(tmp_path / "in", **{f"features__{suffix}": columns(X[order], order)}))
    assert np.array_equal(get(graph, "features"), X)
    assert not graph.has("names")


def test_features_in_lists_by_text_id_beside_a_node_table(tmp_path: Path) -> None:
    names = np.array([f"n{i}" for i in range(NODES)])
    edges = {"src": names[PAIRS[:, 0]], "dst": names[PAIRS[:, 1]]}
    features = {"node": names[SHUFFLED], "vector": list(X[SHUFFLED])}
    labels = {"id": names[:20], "label": np.arange(20) % 3}
    folder = folder_of(
        tmp_path / "in", nodes__csv={"id": names, "colour": names}, features=features, labels=labels
    )
    (folder / "edges.npy").unlink()
    pq.write_table(pa.table(edges), folder / "edges.parquet")
    graph = run(folder)
    assert np.array_equal(get(graph, "features"), X)
    assert read_names(graph, new_runtime()) == names.tolist()
    assert np.array_equal(get(graph, "labels"), np.where(np.arange(NODES) < 20, np.arange(NODES) % 3, -1))
    assert graph.notes[0] == f"columns of {folder / 'nodes.csv'} that are not imported: colour"


def test_feature_ids_with_gaps_are_the_nodes(tmp_path: Path) -> None:
    ids = 1000 + 7 * SHUFFLED
    graph = run(folder_of(tmp_path / "in", edges=1000 + 7 * PAIRS, features=columns(X[SHUFFLED], ids)))
    assert read_names(graph, new_runtime()) == [str(i) for i in ids]
    assert np.array_equal(get(graph, "features"), X[SHUFFLED])
    there = np.zeros((NODES, NODES))
    there[PAIRS[:, 0], PAIRS[:, 1]] = 1
    assert np.array_equal(matrix_of(graph), there[SHUFFLED][:, SHUFFLED])


@pytest.mark.parametrize("range_rows", [1, 7, 64, None])
def test_rows_are_put_in_order_in_ranges_that_fit(tmp_path: Path, range_rows: int | None) -> None:
    """Each row is written and read once, however many ranges there are."""
    reads = []

    def blocks(rows: int) -> Any:
        for start in range(0, NODES, rows):
            reads.append(start)
            yield X[SHUFFLED][start : start + rows]

    source = FeatureSource("x", X.dtype, NODES, X.shape[1], blocks, SHUFFLED)
    found = np.concatenate(list(in_node_order(source, new_runtime("32MiB"), tmp_path, 8, range_rows)))
    assert np.array_equal(found, X)
    assert reads == list(range(0, NODES, 8))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("parts", "kind", "match"),
    [
        ({"nodes": {"id": np.arange(NODES)}, "features": columns(X[:-2], np.arange(NODES - 2))}, ArgumentError,
         r"features\.parquet has no row for 2 of 50 nodes: 48, 49"),
        ({"nodes": {"id": np.arange(NODES)[::-1]}, "features": columns(X[:-9], np.arange(NODES - 9))}, ArgumentError,
         r"no row for 9 of 50 nodes: '49', '48', '47', '46', '45', \.\.\."),
        ({"features": columns(X, np.zeros(NODES, int))}, FormatError,
         r"features\.parquet, row 1 .*: node 0 is listed twice, first in row 0"),
        ({"features": columns(X[:40], np.r_[SHUFFLED[SHUFFLED < 39], 77])}, ArgumentError,
         r"names node \d+, which .*features\.parquet does not list"),
        ({"features": {"id": np.arange(NODES), "name": ["a"] * NODES, "f": X[:, 0]}}, FormatError,
         r"row 0 \(the first is 0\), column 'name': 'a' is text; features are numbers"),
        ({"features": {"f": X[:, 0], "v": list(X)}}, FormatError, r"column 'v' holds lists beside other columns"),
        ({"labels": {"id": [1, 2, 1], "label": [0, 1, 0]}}, FormatError,
         r"labels\.parquet, row 2 .*: node 1 is listed twice, first in row 0"),
        ({"labels": {"id": [1, 2, 90], "label": [0, 1, 0]}}, ArgumentError,
         r"row 2 .* names node 90, but there are 50"),
    ],
)  # fmt: skip
def test_rows_by_id_that_do_not_fit_are_named(tmp_path: Path, parts: dict, kind: type, match: str) -> None:
    with pytest.raises(kind, match=match):
        run(folder_of(tmp_path / "in", **parts))


def test_several_label_columns_by_id(tmp_path: Path) -> None:
    many = RNG.integers(0, 2, (NODES, 3))
    table = {"node_id": SHUFFLED[:30], **{f"tag{i}": many[SHUFFLED[:30], i] for i in range(3)}}
    graph = run(folder_of(tmp_path / "in", labels__csv=table))
    known = np.isin(np.arange(NODES), SHUFFLED[:30])
    assert np.array_equal(get(graph, "labels"), np.where(known[:, None], many, 255))


def test_dropped_columns_and_one_way_edges_are_said(tmp_path: Path) -> None:
    table = {"src": PAIRS[:, 0], "dst": PAIRS[:, 1], "timestamp": PAIRS[:, 0], "type": PAIRS[:, 1]}
    folder = folder_of(tmp_path / "in", edges=table)
    note = f"columns of {folder / 'edges.parquet'} that are not imported: timestamp, type"
    distinct = np.unique(PAIRS, axis=0)
    back = {tuple(pair) for pair in distinct.tolist()}
    without = sum((b, a) not in back for a, b in back)
    assert without > len(back) / 2
    graph = run(folder)
    assert graph.notes[0] == note
    dropped = (
        f"{len(PAIRS) - len(distinct)} of {len(PAIRS)} edges join nodes that another one joins, and were dropped; "
        "--keep-duplicates (keep_duplicates=True) keeps them"
    )
    assert graph.notes[1] == dropped
    assert f"{without} of {len(back)} looked at have none back" in graph.notes[2]
    assert run(f"edges:{folder / 'edges.parquet'}").notes[0] == note
    assert run(folder, reverse=True).notes == (note,)
    assert run(folder, reverse=False).notes == (note, dropped)
    both = folder_of(tmp_path / "both", edges=np.concatenate([distinct, distinct[:, ::-1]]))
    assert not any("none back" in said for said in run(both).notes)


def archive(**parts: Any) -> dict[str, np.ndarray]:
    """A graph in the layout of Cora-ML as published: ``adj_matrix.data``, ``attr_matrix.data``, ..."""
    found = {}
    for name, matrix in parts.items():
        found |= {f"{name}.{part}": getattr(matrix, part) for part in ("data", "indices", "indptr")}
        found[f"{name}.shape"] = np.array(matrix.shape)
    return found


@pytest.mark.parametrize("dense", [False, True])
def test_archive_of_cora_ml_kind_equals_scipy(tmp_path: Path, dense: bool) -> None:
    adjacency = sp.random(NODES, NODES, 0.1, "csr", rng=np.random.default_rng(2), data_rvs=np.ones)
    features = sp.random(NODES, 9, 0.2, "csr", np.float32, rng=np.random.default_rng(3))
    parts = archive(adj_matrix=adjacency) | (
        {"attr_matrix": features.toarray()} if dense else archive(attr_matrix=features)
    )
    names = np.array([{"node": 1}], object)
    np.savez(
        tmp_path / "cora_ml.npz", **parts, labels=np.arange(NODES) % 7, idx_to_node=names, allow_pickle=True
    )
    graph = run(f"npz:{tmp_path / 'cora_ml.npz'}")
    wanted = ((adjacency + adjacency.T).toarray() > 0) & ~np.eye(NODES, dtype=bool)
    assert np.array_equal(matrix_of(graph), wanted)
    assert np.array_equal(get(graph, "features"), features.toarray())
    assert graph.num_classes == 7


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
@pytest.mark.parametrize("scheme", ["npz", "scipy"])
def test_save_npz(tmp_path: Path, kind: str, scheme: str) -> None:
    matrix = sp.random(NODES, NODES, 0.1, kind, np.float32, rng=np.random.default_rng(2))
    sp.save_npz(tmp_path / "m.npz", matrix)
    assert np.array_equal(matrix_of(run(f"{scheme}:{tmp_path / 'm.npz'}")), matrix.toarray())


def test_what_an_archive_may_be_is_listed(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", foo=np.ones(3))
    with pytest.raises(
        FormatError, match=r"holds foo; .*adj_indptr.*adj_matrix\.data.*save_npz.*node_features"
    ):
        run(f"npz:{tmp_path / 'x.npz'}")
    sp.save_npz(tmp_path / "d.npz", sp.dia_matrix(np.eye(3)))
    with pytest.raises(FormatError, match=r"format 'dia': save it as csr, csc or coo"):
        run(f"npz:{tmp_path / 'd.npz'}")


def test_matlab(tmp_path: Path) -> None:
    network = sp.random(NODES, NODES, 0.1, "csc", rng=np.random.default_rng(2), data_rvs=np.ones)
    group = sp.random(NODES, 5, 0.3, "csc", rng=np.random.default_rng(3), data_rvs=np.ones)
    path = tmp_path / "blog.mat"
    scipy.io.savemat(path, {"network": network, "group": group, "features": X, "made_by": "me"})
    graph = run(f"mat:{path}")
    assert np.array_equal(matrix_of(graph), network.toarray())
    assert np.array_equal(get(graph, "labels"), group.toarray())
    assert np.array_equal(get(graph, "features"), X)
    assert graph.label_kind == "multilabel"
    assert f"variables of {path} that are not imported: made_by" in graph.notes
    scipy.io.savemat(path, {"A": network.toarray(), "Y": np.arange(NODES) % 3 + 1})
    graph = run(f"mat:{path}")
    assert np.array_equal(matrix_of(graph), network.toarray())
    assert np.array_equal(get(graph, "labels"), np.arange(NODES) % 3)
    assert graph.class_names == ("1", "2", "3")


def test_blogcatalog(tmp_path: Path) -> None:
    path = shared_path("blogcatalog/blogcatalog.mat")
    contents = scipy.io.loadmat(path)
    runtime = new_runtime("256MiB")
    graph = import_graph(f"mat:{path}", tmp_path / "graph", runtime)
    csc = sp.csc_matrix(contents["network"])
    csc.sort_indices()
    assert np.array_equal(get(graph, "indptr"), csc.indptr)
    assert np.array_equal(get(graph, "indices"), csc.indices)
    assert np.array_equal(get(graph, "labels"), contents["group"].toarray())


@pytest.mark.parametrize(
    ("write", "match"),
    [
        (lambda path: path.write_bytes(b"MATLAB 5.0 nothing"), r"no MATLAB file or is torn"),
        (lambda path: scipy.io.savemat(path, {"a": [[1, 2]]}), r"1 x 2, not square"),
        (
            lambda path: scipy.io.savemat(path, {"foo": np.eye(3)}),
            r"holds foo; the network is looked for as network",
        ),
        (lambda path: scipy.io.savemat(path, {"a": np.eye(3), "net": np.eye(3)}), r"may both be its edges"),
        (lambda path: scipy.io.savemat(path, {"a": np.array(["x"], object)}), r"no matrix of numbers"),
    ],
)
def test_spoiled_matlab(tmp_path: Path, write: Callable[[Path], object], match: str) -> None:
    write(tmp_path / "x.mat")
    with pytest.raises((ArgumentError, FormatError), match=match):
        run(f"mat:{tmp_path / 'x.mat'}")


@pytest.mark.parametrize("node", [5_000_000, 2**32 - 1, 2**62])
def test_an_id_far_above_the_edges_is_refused_before_it_is_written(tmp_path: Path, node: int) -> None:
    path = tmp_path / "e.csv"
    path.write_text(f"src,dst\n0,1\n1,{node}\n")
    with pytest.raises(ArgumentError, match=rf"e\.csv, line 3 names node {node}.*--num-nodes {node + 1}"):
        run(f"edges:{path}")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["e.csv"]


def test_num_nodes_says_how_many_nodes_there_are(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text("src,dst\n0,1\n1,1500000\n")
    graph = run(f"edges:{path}", num_nodes=1_500_003)
    assert graph.num_nodes == 1_500_003
    path.write_text("src,dst\n0,1\n1,900000\n")
    assert run(f"edges:{path}").num_nodes == 900_001
    with pytest.raises(ArgumentError, match="has 50 nodes; 60 were given"):
        run(folder_of(tmp_path / "in", features=X), num_nodes=60)


def test_the_command_says_what_was_left_out_and_what_classes_were_called(tmp_path: Path) -> None:
    table = {"src": PAIRS[:, 0], "dst": PAIRS[:, 1], "timestamp": PAIRS[:, 0]}
    folder = folder_of(tmp_path / "in", edges=table, labels=7 * (np.arange(NODES) % 3))

    def outcrop(*options: str) -> str:
        command = ["import", f"arrays:{folder}", str(tmp_path / "graph"), "--overwrite", *options]
        done = CliRunner().invoke(app, command, catch_exceptions=False)
        assert done.exit_code == 0
        return done.stdout

    said = outcrop()
    words = " ".join(said.split())
    assert "that are not imported: timestamp" in words
    assert "labels are not 0 to 2: 0, 7, 14 are stored as classes 0 to 2" in words
    assert "--reverse (ImportConfig(reverse=True)) adds" in words
    assert "0, 7, 14" in next(line for line in said.splitlines() if line.startswith("class_names"))
    assert "--reverse" not in outcrop("--no-reverse")
    options = ("--reverse", "--label-kind", "regression", "--num-nodes", "50")
    about = json.loads(outcrop("--json", "-", "--quiet", *options))
    assert [note.partition(" ")[0] for note in about["notes"]] == ["columns", "labels"]
    assert about["attributes"]["label_kind"] == "regression"
    assert about["config"]["num_nodes"] == 50


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_row_numbers_that_pandas_wrote_are_no_source(tmp_path: Path, name: str) -> None:
    """Of ``frame.to_csv(path)``: the first column has no name."""
    lines = [f"{name},u,i", *(f"{row},{u},{v}" for row, (u, v) in enumerate(PAIRS.tolist()))]
    (tmp_path / "edges.csv").write_text("\n".join(lines))
    np.savetxt(tmp_path / "plain.csv", PAIRS, fmt="%d", delimiter=",")
    found = [
        import_graph(f"edges:{tmp_path / file}", tmp_path / f"{file}.oc", new_runtime())
        for file in ("edges.csv", "plain.csv")
    ]
    assert (matrix_of(found[0]) == matrix_of(found[1])).all()


@pytest.mark.parametrize("ids_are", ["numbers", "words", "numbers but for one"])
def test_a_cell_that_makes_all_ids_text_is_named(tmp_path, ids_are):
    ends = [[str(a), str(b)] for a, b in PAIRS]
    if ids_are == "words":
        ends = [[f"n{a}", f"n{b}"] for a, b in ends]
    elif ids_are == "numbers but for one":
        ends[7][1] = "1O"
    (tmp_path / "edges.csv").write_text("\n".join(["src,dst", *map(",".join, ends)]) + "\n")
    graph = run(f"edges:{tmp_path / 'edges.csv'}")
    assert graph.has("names") == (ids_are != "numbers")
    said = [note for note in graph.notes if "are text" in note]
    if ids_are == "numbers but for one":
        (note,) = said
        assert str(tmp_path / "edges.csv") in note
        assert "because of 1 that are no whole numbers, such as '1O'" in note
    else:
        assert not said


def test_python_users_see_the_notes(tmp_path, monkeypatch, capsys):
    (tmp_path / "edges.csv").write_text("src,dst,colour\n0,1,red\n1,2,blue\n")
    monkeypatch.setenv("OUTCROP_PROGRESS", "1")
    for progress in (True, False):
        out = tmp_path / f"graph-{progress}"
        graph = oc.import_graph(f"edges:{tmp_path / 'edges.csv'}", out, progress=progress)
        assert "colour" in graph.notes[0]
        assert (f"note: {graph.notes[0]}\n" in capsys.readouterr().err) == progress


def test_a_graph_without_edges_or_nodes_for_validation_is_noted(tmp_path: Path) -> None:
    """Both train: without validation the last epoch's model is kept, without edges neighbours say nothing."""

    def notes(valid: list[int] | None, edges: list[list[int]]) -> list[bool]:
        folder = tmp_path / f"{valid}-{len(edges)}"
        folder.mkdir()
        np.save(folder / "features.npy", np.ones((5, 2), np.float32))
        np.save(folder / "edges.npy", np.array(edges, np.int64).reshape(-1, 2))
        if valid is not None:
            np.save(folder / "train.npy", np.array([0, 1]))
            np.save(folder / "valid.npy", np.array(valid, np.int64))
        found = import_graph(f"arrays:{folder}", tmp_path / "graph", new_runtime("32MiB"), reverse=True).notes
        words = "no nodes are for validation, so training keeps", "the graph has no edges"
        return [any(note.startswith(word) for note in found) for word in words]

    assert notes([3], [[0, 1]]) == [False, False]
    assert notes([], [[0, 1]]) == [True, False]
    assert notes([3], []) == [False, True]
    assert notes(None, [[0, 1]]) == [False, False]


@pytest.mark.parametrize("ending", [".npy", ".parquet", ".csv", ".tsv", ".txt"])
@pytest.mark.parametrize("command", ["train", "info", "prepare", "verify"])
def test_a_folder_of_files_that_can_be_imported_is_told_how(
    tmp_path: Path, command: str, ending: str
) -> None:
    """Newcomers name the folder of their files where a graph is wanted."""
    folder = tmp_path / "my data"
    folder.mkdir()
    (folder / f"edges{ending}").touch()
    last = [str(tmp_path / "run")] if command == "prepare" else []
    ended = CliRunner().invoke(app, [command, str(folder), *last])
    assert isinstance(ended.exception, FormatError)
    assert str(ended.exception).endswith(
        f"it holds a list of edges, so make a graph of it first: outcrop import 'arrays:{folder}' OUT"
    )


def test_a_file_that_can_be_imported_is_told_how(tmp_path: Path) -> None:
    path = tmp_path / "edges.csv"
    path.touch()
    with pytest.raises(FormatError, match=f"make a graph of it: outcrop import edges:{path} OUT$"):
        oc.open_graph(path)
    (tmp_path / "notes.md").touch()
    for other in (tmp_path / "notes.md", tmp_path / "nothing"):
        with pytest.raises(FormatError) as refused:
            oc.open_graph(other)
        assert "edges:" not in str(refused.value)


def test_endings_of_edges_are_those_that_are_imported() -> None:
    assert FILES["edges"] == ("edges", EDGE_ENDINGS)


def test_names_of_classes_with_commas_are_quoted(tmp_path: Path) -> None:
    """Without quotes three classes looked like five."""
    labels = np.resize(np.array(["Sales, retail", "Sales", " x", "'a'", "..."], object), NODES)
    folder = folder_of(tmp_path / "in", edges=PAIRS)
    pq.write_table(pa.table({"label": labels}), folder / "labels.parquet")
    graph = run(folder)
    told = CliRunner().invoke(app, ["info", str(graph.path)], env={"COLUMNS": "200"}).stdout
    (line,) = (line for line in told.splitlines() if line.startswith("class_names"))
    assert line.split(maxsplit=1)[1] == """' x', "'a'", '...', Sales, 'Sales, retail'"""


@pytest.mark.parametrize("scheme", ["csr", "csc", "coo"])
def test_a_folder_of_sparse_matrices(source: Path, scheme: str) -> None:
    """SciPy's own reading of the files is the oracle; features keep their type, whatever the format."""
    rng = np.random.default_rng(5)
    edges = sp.random(40, 40, 0.1, random_state=1, data_rvs=lambda n: rng.integers(1, 9, n).astype("f4"))
    features = sp.random(40, 300, 0.02, random_state=2, dtype=np.float32)
    sp.save_npz(source / "edges.npz", edges.asformat(scheme))
    sp.save_npz(source / "features.npz", features.asformat(scheme))
    graph = run(source)
    assert np.array_equal(matrix_of(graph), edges.toarray())
    assert graph.row_file.dtype == "float32"
    assert np.array_equal(features_of(graph), features.toarray())


def test_sparse_matrices_that_are_none(source: Path) -> None:
    np.save(source / "edges.npy", np.array([[0, 1], [1, 2]]))
    np.savez(source / "features.npz", x=np.eye(3))
    with pytest.raises(FormatError, match=r"features\.npz has no member 'data': it is no matrix that scipy"):
        run(source)
    sp.save_npz(source / "features.npz", sp.csr_matrix(np.eye(4, dtype="f4")))
    (source / "labels.csv").write_text("label\n0\n1\n1\n")
    with pytest.raises(ArgumentError, match=r"labels\.csv column 'label' has 3 rows, the graph has 4 nodes"):
        run(source)
    np.save(source / "features.npy", np.eye(3))
    with pytest.raises(ArgumentError, match=r"features\.npy and features\.npz: keep one of them"):
        run(source)
    (source / "features.npy").unlink()
    torn = (source / "features.npz").read_bytes()[:-40]
    (source / "features.npz").write_bytes(torn)
    with pytest.raises(FormatError, match=r"features\.npz is no \.npz archive or is torn"):
        run(source)


def test_a_matrix_of_columns_is_turned_within_the_budget(source: Path) -> None:
    """What turning takes is refused before it is taken."""
    np.save(source / "edges.npy", np.stack([np.arange(50_000), np.roll(np.arange(50_000), 1)]))
    words = sp.random(50_000, 2000, 0.01, "csc", random_state=3, dtype=np.float32)
    sp.save_npz(source / "features.npz", words)
    with pytest.raises(BudgetError, match="import"):
        run(source, memory="20MiB")


def test_entries_in_any_order_are_sorted_within_the_budget(tmp_path: Path) -> None:
    """A file of a few bytes may say that it has 10^12 rows: what that takes is refused, not tried."""
    for rows in (10**12, 10**7):
        sp.save_npz(tmp_path / "m.npz", sp.coo_matrix(([1.0], ([1], [2])), (rows, rows)))
        with pytest.raises(BudgetError, match="import"):
            run(f"npz:{tmp_path / 'm.npz'}", memory="64MiB")
    none = np.zeros(0, np.int32)
    np.savez(tmp_path / "m.npz", format=b"coo", shape=[-3, -3], row=none, col=none, data=np.zeros(0))
    with pytest.raises(FormatError, match=r"the shape \[-3, -3\] is not two sizes"):
        run(f"npz:{tmp_path / 'm.npz'}")
    sp.save_npz(tmp_path / "m.npz", sp.coo_matrix(([1.0], ([1], [2])), (10**5, 10**5)))
    assert run(f"npz:{tmp_path / 'm.npz'}", memory="64MiB").num_nodes == 10**5


def test_columns_that_are_taken_for_ends_without_a_name_are_said(tmp_path):
    table = tmp_path / "e.csv"
    table.write_text("score,g1,g2\n0.5,a,b\n0.7,b,c\n")
    with new_runtime() as runtime:
        notes = import_graph(f"edges:{table}", tmp_path / "g.oc", runtime).notes
    assert any(note.startswith("'score' and 'g1' are taken for source and target") for note in notes)
    table.write_text("score,src,dst\n0.5,a,b\n0.7,b,c\n")
    with new_runtime() as runtime:
        notes = import_graph(f"edges:{table}", tmp_path / "h.oc", runtime).notes
    assert not any("taken for" in note for note in notes)
