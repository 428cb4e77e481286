"""Graphs in memory import as NumPy, SciPy, NetworkX and PyG hold them, from whichever library a table is of."""

from __future__ import annotations

import contextlib
import importlib
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data, HeteroData

import outcrop as oc
from outcrop.errors import ArgumentError, FormatError, OutcropError
from outcrop.store.graph import Graph
from support import new_runtime, read_names

for library in ("polars", "pandas", "duckdb", "networkx"):  # whose imports set variables of the environment
    with contextlib.suppress(ImportError):
        importlib.import_module(library)

NODES, EDGES = 40, 300
RNG = np.random.default_rng(0)
PAIRS = RNG.integers(0, NODES, (EDGES, 2))
X = RNG.normal(size=(NODES, 6)).astype(np.float32)
Y = np.arange(NODES) % 4
TRAIN = np.arange(NODES) % 2 == 0
VALID = np.arange(NODES) % 4 == 1
SHUFFLED = RNG.permutation(NODES)
TWICE = pa.table({"a": [1], "b": [2], "c": [3]}).rename_columns(["src", "dst", "src"])


def get(graph: Graph, name: str) -> np.ndarray:
    return np.array(graph.array(new_runtime(), name).memmap())


def matrix_of(graph: Graph) -> np.ndarray:
    """Dense ``[N, N]``: weight, or 1, at (source, target)."""
    data = get(graph, "edge_weight") if graph.has("edge_weight") else np.ones(graph.num_edges, np.float32)
    shape = (graph.num_nodes, graph.num_nodes)
    return sp.csc_matrix((data, get(graph, "indices"), get(graph, "indptr")), shape).toarray()


def dense(pairs: np.ndarray, nodes: int = NODES) -> np.ndarray:
    found = np.zeros((nodes, nodes), np.float32)
    found[pairs[:, 0], pairs[:, 1]] = 1
    return found


def run(source: Any, folder: Path, **options: Any) -> Graph:
    return oc.import_graph(source, folder / "graph", memory="32MiB", overwrite=True, **options)


def check_parts(graph: Graph) -> None:
    assert np.array_equal(matrix_of(graph), dense(PAIRS))
    assert np.array_equal(get(graph, "features"), X)
    assert np.array_equal(get(graph, "labels"), Y)
    assert np.array_equal(get(graph, "train"), np.flatnonzero(TRAIN))
    assert np.array_equal(get(graph, "valid"), np.flatnonzero(VALID))


@pytest.mark.parametrize(
    "edges",
    [
        PAIRS,
        PAIRS.T,
        PAIRS.tolist(),
        torch.tensor(PAIRS),
        (PAIRS[:, 0], PAIRS[:, 1]),
        PAIRS.astype(np.uint32),
    ],
    ids=["Ex2", "2xE", "list", "tensor", "pair", "uint32"],
)
def test_arrays_of_every_kind(tmp_path: Path, edges: Any) -> None:
    parts = {"edges": edges, "features": torch.tensor(X), "labels": Y.tolist(), "train": TRAIN}
    check_parts(run(parts, tmp_path, splits={"valid": np.flatnonzero(VALID)}))
    splits = {"train_mask": parts.pop("train"), "val": np.flatnonzero(VALID), "test": None}
    check_parts(run({**parts, "splits": splits}, tmp_path))
    check_parts(run(parts, tmp_path, splits=splits))


def test_two_by_two_edge_index_is_sources_then_targets(tmp_path: Path) -> None:
    assert np.array_equal(
        matrix_of(run({"edge_index": [[0, 1], [1, 2]]}, tmp_path)), dense(np.array([[0, 1], [1, 2]]), 3)
    )
    pairs = run({"edges": [[0, 1], [1, 2]]}, tmp_path)
    assert np.array_equal(matrix_of(pairs), dense(np.array([[0, 1], [1, 2]]), 3))
    turned = run({"edge_index": [[0, 2], [1, 1]]}, tmp_path)
    assert np.array_equal(matrix_of(turned), dense(np.array([[0, 1], [2, 1]]), 3))


def to_polars(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("polars").DataFrame(columns)


def to_pandas(columns: dict[str, Any]) -> Any:
    columns = {n: list(c) if np.ndim(c) > 1 else c for n, c in columns.items()}
    size = len(next(iter(columns.values())))
    return pytest.importorskip("pandas").DataFrame(columns, index=np.arange(size)[::-1] * 3)


def to_arrow(columns: dict[str, Any]) -> pa.Table:
    return pa.table({n: list(c) if np.ndim(c) > 1 else c for n, c in columns.items()})


def to_duckdb(columns: dict[str, Any]) -> Any:
    duckdb = pytest.importorskip("duckdb")
    return duckdb.connect().from_arrow(to_arrow(columns))


def to_batches(columns: dict[str, Any]) -> Any:
    """A table in batches of seven rows."""
    return pa.Table.from_batches(to_arrow(columns).to_batches(max_chunksize=7))


class OnlyDataframe:
    """What offers the dataframe protocol alone."""

    def __init__(self, columns: dict[str, Any]):
        self._table = to_arrow(columns)
        self.columns = list(columns)

    def __dataframe__(self, *args: Any, **kwargs: Any) -> Any:
        return self._table.__dataframe__(*args, **kwargs)


FRAMES = [to_arrow, to_batches, to_pandas, to_polars, to_duckdb, OnlyDataframe]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda f: f.__name__)
def test_tables_of_every_library(tmp_path: Path, frame: Callable) -> None:
    """By id in any order, names of classes with empty cells, and columns that mean nothing here are named."""
    names = np.array(["ant", "bee", "cat", ""])[Y]
    features = {"id": SHUFFLED} | {f"f{i}": X[SHUFFLED, i] for i in range(X.shape[1])}
    parts = {
        "edges": frame({"timestamp": np.arange(EDGES), "dst": PAIRS[:, 1], "src": PAIRS[:, 0]}),
        "features": frame(features),
        "labels": frame({"id": SHUFFLED[::-1], "label": names[SHUFFLED[::-1]]}),
        "splits": frame(
            {"id": np.arange(NODES), "split": np.where(TRAIN, "train", np.where(VALID, "val", ""))}
        ),
    }
    graph = run(parts, tmp_path)
    assert np.array_equal(get(graph, "labels"), np.where(Y == 3, -1, Y))
    assert graph.class_names == ("ant", "bee", "cat")
    assert np.array_equal(matrix_of(graph), dense(PAIRS))
    assert np.array_equal(get(graph, "features"), X)
    assert np.array_equal(get(graph, "train"), np.flatnonzero(TRAIN))
    assert any("edges that are not imported: timestamp" in note for note in graph.notes)


@pytest.mark.parametrize("frame", FRAMES[:-1], ids=lambda f: f.__name__)
def test_text_ids_and_lists(tmp_path: Path, frame: Callable) -> None:
    names = np.array([f"n{i:03}" for i in range(NODES)])
    parts = {
        "edges": frame(
            {"source": names[PAIRS[:, 0]], "target": names[PAIRS[:, 1]], "weight": np.full(EDGES, 2.0)}
        ),
        "features": frame({"id": names[SHUFFLED], "vector": X[SHUFFLED]}),
        "train": names[:5],
    }
    graph = run(parts, tmp_path, config=oc.ImportConfig(keep_duplicates=True))
    known = read_names(graph, new_runtime())
    assert known == names[SHUFFLED].tolist()
    assert np.array_equal(get(graph, "features"), X[SHUFFLED])
    counts = np.zeros((NODES, NODES), np.float32)
    np.add.at(counts, (PAIRS[:, 0], PAIRS[:, 1]), 2)
    assert np.array_equal(matrix_of(graph), counts[SHUFFLED][:, SHUFFLED])
    assert sorted(known[i] for i in get(graph, "train")) == names[:5].tolist()


def test_a_stream_is_read_once_for_edges(tmp_path: Path) -> None:
    table = to_batches({"src": PAIRS[:, 0], "dst": PAIRS[:, 1]})
    assert np.array_equal(
        matrix_of(run(table.to_reader(), tmp_path, config=oc.ImportConfig(num_nodes=NODES))), dense(PAIRS)
    )
    labels = pa.table({"label": Y}).to_reader()
    with pytest.raises(ArgumentError, match=r"labels can be read once only.*read_all"):
        run({"edges": table, "labels": labels}, tmp_path)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "csr_array"])
def test_scipy_matrices(tmp_path: Path, kind: str) -> None:
    pairs = np.unique(PAIRS, axis=0)
    data = RNG.uniform(0.5, 2, len(pairs)).astype(np.float32)
    matrix = sp.coo_matrix((data, pairs.T), (NODES, NODES))
    matrix = sp.csr_array(matrix) if kind == "csr_array" else matrix.asformat(kind)
    sparse = sp.random(NODES, 9, 0.2, "csr", rng=np.random.default_rng(1))
    graph = run(matrix, tmp_path, features=sparse, labels=Y)
    assert np.array_equal(matrix_of(graph), matrix.toarray())
    assert np.array_equal(get(graph, "features"), sparse.toarray())
    assert any("values of edges are kept as edge weights" in note for note in graph.notes)
    ones = run((matrix > 0).astype(np.int8), tmp_path)
    assert not ones.has("edge_weight")
    assert np.array_equal(matrix_of(ones), matrix.toarray() > 0)


def test_sparse_labels_are_multilabel(tmp_path: Path) -> None:
    many = sp.random(NODES, 5, 0.3, "csr", rng=np.random.default_rng(1), data_rvs=np.ones)
    graph = run({"edges": PAIRS, "labels": many}, tmp_path)
    assert graph.label_kind == "multilabel"
    assert np.array_equal(get(graph, "labels"), many.toarray())


def test_pyg_data(tmp_path: Path) -> None:
    data = Data(
        x=torch.tensor(X),
        edge_index=torch.tensor(PAIRS.T),
        y=torch.tensor(Y)[:, None],
        train_mask=torch.tensor(np.stack([~TRAIN, TRAIN], 1)),
        val_mask=torch.tensor(np.stack([~VALID, VALID], 1)),
        pos=torch.zeros(NODES, 3),
    )
    graph = run(data, tmp_path, config=oc.ImportConfig(split_index=1))
    check_parts(graph)
    assert any(note == "parts of the Data that are not imported: pos" for note in graph.notes)
    other = run(data, tmp_path, labels=Y + 7, config=oc.ImportConfig(split_index=1))
    assert other.class_names == ("7", "8", "9", "10")
    weighted = Data(
        edge_index=torch.tensor(PAIRS.T), edge_attr=torch.full((EDGES, 1), 0.5), num_nodes=NODES + 3
    )
    graph = run(weighted, tmp_path)
    assert np.array_equal(matrix_of(graph), dense(PAIRS, NODES + 3) / 2)
    assert graph.num_nodes == NODES + 3


@pytest.mark.parametrize("name", ["val", "valid", "validation", "val_mask", "valid_mask", "validation_mask"])
def test_the_validation_split_has_any_of_its_names(tmp_path: Path, name: str) -> None:
    graph = run({"edges": PAIRS, "train": TRAIN, name: VALID}, tmp_path)
    assert np.array_equal(get(graph, "valid"), np.flatnonzero(VALID))
    data = Data(edge_index=torch.tensor(PAIRS.T), num_nodes=NODES)
    data[name] = torch.tensor(VALID)
    assert np.array_equal(get(run(data, tmp_path), "valid"), np.flatnonzero(VALID))


@pytest.mark.parametrize("shape", [(EDGES,), (EDGES, 1)])
def test_one_column_with_values_below_0_is_no_weights(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """It is a feature of edges, as with more columns: weights are not negative."""
    values = np.linspace(-1, 1, EDGES, dtype=np.float32)
    data = Data(
        edge_index=torch.tensor(PAIRS.T), num_nodes=NODES, edge_attr=torch.tensor(values.reshape(shape))
    )
    graph = run(data, tmp_path)
    assert not graph.has("edge_weight")
    rows = get(graph, "e0.features")
    found = zip(graph.edge_index().T.tolist(), rows[:, 0].tolist(), strict=True)
    assert sorted(found) == sorted(zip(PAIRS.tolist(), values.tolist(), strict=True))
    torch.save(data, tmp_path / "data.pt")
    again = run(f"pyg:{tmp_path / 'data.pt'}", tmp_path)
    assert np.array_equal(get(again, "e0.features"), rows)


@pytest.mark.parametrize("directed", [True, False])
def test_networkx(tmp_path: Path, directed: bool) -> None:
    networkx = pytest.importorskip("networkx")
    names = [f"node {i}" for i in SHUFFLED]
    graph = networkx.DiGraph() if directed else networkx.Graph()
    for i, name in enumerate(names):
        graph.add_node(name, vector=X[i], age=float(i), club="ab"[i % 2], member=bool(TRAIN[i]))
    graph.add_edges_from((names[a], names[b]) for a, b in PAIRS)
    graph.add_edge(names[0], names[1], weight=4)
    found = run(
        graph,
        tmp_path,
        features=["age", "vector"],
        labels="club",
        splits={"train": "member", "test": [names[1]]},
    )
    order = list(graph.nodes)
    assert np.array_equal(matrix_of(found), networkx.to_numpy_array(graph, nodelist=order))
    assert np.array_equal(get(found, "features"), np.column_stack([np.arange(NODES), X]))
    assert found.class_names == ("a", "b")
    assert np.array_equal(get(found, "labels"), np.arange(NODES) % 2)
    assert np.array_equal(get(found, "train"), np.flatnonzero(TRAIN))
    assert get(found, "test").tolist() == [1]
    known = read_names(found, new_runtime())
    assert known == order
    plain = networkx.relabel_nodes(graph, {name: i for name, i in zip(names, SHUFFLED.tolist(), strict=True)})
    again = run(plain, tmp_path)
    assert np.array_equal(matrix_of(again), networkx.to_numpy_array(plain, nodelist=range(NODES)))
    assert not again.has("names")
    assert any("club" in note for note in again.notes)


@pytest.mark.parametrize(
    ("parts", "kind", "match"),
    [
        (lambda: HeteroData(), ArgumentError, r"the HeteroData has 0 node types and 0 edge types"),
        (lambda: {"edges": HeteroData()}, ArgumentError, r"HeteroData has several types.*to_homogeneous"),
        (lambda: {"edges": PAIRS, "colour": X}, ArgumentError, r"'colour' is no part of a graph; known: edges"),
        (lambda: {"features": X}, ArgumentError, r"no edges; it has features"),
        (lambda: {"edges": PAIRS, "x": X, "features": X}, ArgumentError, r"both give features"),
        (lambda: {"edges": PAIRS, "train": [1], "splits": {"train": [0]}}, ArgumentError, r"both give train"),
        (lambda: {"edges": PAIRS, "splits": {"x": X}}, ArgumentError, r"'x' is no split.* dict of train, valid, test"),
        (lambda: {"edges": PAIRS, "x": X[:-1], "labels": Y}, ArgumentError, r"features has 39 rows, labels has 40"),
        (lambda: {"edges": PAIRS.astype(float)}, ArgumentError, r"edges: node ids are float64"),
        (lambda: {"edges": PAIRS, "features": X[:, 0]}, FormatError, r"features has shape \(40,\)"),
        (lambda: object(), ArgumentError, r"builtins\.object cannot be imported as edges"),
        (lambda: sp.eye(3, 4, format="csr"), OutcropError, r"3 x 4, not square"),
        (lambda: {"edges": PAIRS, "features": torch.zeros(NODES, 2).bfloat16()}, ArgumentError, r"bfloat16_bits=True"),
        (lambda: {"edges": torch.eye(4).to_sparse()}, ArgumentError, r"edges is a sparse tensor \(torch.sparse_coo\)"),
        (lambda: {"edges": TWICE}, FormatError, r"two columns named 'src'"),
    ],
)  # fmt: skip
def test_what_is_no_graph_is_refused(
    tmp_path: Path, parts: Callable[[], Any], kind: type, match: str
) -> None:
    with pytest.raises(kind, match=match):
        run(parts(), tmp_path)
    assert not list(tmp_path.glob("*graph*"))


def test_parts_beside_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"features cannot be given beside 'arrays:x'"):
        run("arrays:x", tmp_path, features=X)
    with pytest.raises(ArgumentError, match=r"train cannot be given beside 'arrays:x'"):
        run("arrays:x", tmp_path, splits={"train": [0]})


def test_a_stream_is_never_held_whole(tmp_path: Path) -> None:
    """Of a hundred batches at most three are there at the same time: the one in work, and its neighbours."""
    made, gone, most = [], [], [0]
    schema = pa.schema([("src", pa.int64()), ("dst", pa.int64())])

    def batches() -> Iterator[pa.RecordBatch]:
        for seed in range(100):
            columns = np.random.default_rng(seed).integers(0, NODES, (2, 50))
            made.append(seed)
            weakref.finalize(columns, gone.append, seed)
            most[0] = max(most[0], len(made) - len(gone))
            yield pa.record_batch([pa.array(column) for column in columns], schema)

    graph = run(
        pa.RecordBatchReader.from_batches(schema, batches()),
        tmp_path,
        config=oc.ImportConfig(keep_duplicates=True),
    )
    assert graph.num_edges == 100 * 50
    assert 1 <= most[0] <= 3


def test_edge_weights_that_no_edge_has_are_refused(tmp_path: Path) -> None:
    graph = pytest.importorskip("networkx").path_graph(4)
    with pytest.raises(ArgumentError, match="no edge has the attribute 'nope'"):
        oc.import_graph(graph, tmp_path / "g.oc", edge_weight="nope")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [{"labels": "clup"}, {"splits": {"train": "member"}}])
def test_attributes_that_no_node_has_are_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    graph = pytest.importorskip("networkx").karate_club_graph()
    with pytest.raises(ArgumentError, match=r"no node has the attribute '\w+', .* nodes have club"):
        oc.import_graph(graph, tmp_path / "g.oc", **given)
    assert not list(tmp_path.iterdir())
