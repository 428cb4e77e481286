"""Data sets of the Open Graph Benchmark as arrays: members of .npz files, streamed whether or not they are deflated."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foreign_layouts import ForeignGraph, foreign_graph, write_gzip, write_ogb_arrays
from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.graph import import_graph
from outcrop.importing.sources.npz_members import NpzMember
from outcrop.store.graph import Graph
from outcrop.store.verify import verify_artifact
from support import held_bytes, import_ogb, new_runtime

TORTURED = True
MADE = foreign_graph()


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


def compare(graph: Graph, made: ForeignGraph) -> None:
    assert edges_of(graph) == set(map(tuple, made.edges.tolist()))
    assert np.array_equal(get(graph, "features"), made.features)
    assert np.array_equal(get(graph, "labels"), np.where(np.isnan(made.labels), -1, made.labels))
    for split in SPLITS:
        assert np.array_equal(get(graph, split), np.sort(made.splits[split]))


@pytest.mark.parametrize("deflated", [True, False])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint64, ">i8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_what_numpy_loads(tmp_path: Path, deflated: bool, dtype: Any, order: Any) -> None:
    pairs = np.array(MADE.edges.T, dtype, order=order)
    folder = write_ogb_arrays(tmp_path / "ogbn_papers100M", MADE, deflated=deflated, edge_index=pairs)
    graph = run(folder)
    compare(graph, MADE)
    path = folder / "raw/data.npz"
    assert f"years of {path} are not imported, graphs have no times yet: node_year" in graph.notes


def test_arrays_are_what_ogb_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = import_ogb("io.read_graph_raw", monkeypatch)
    folder = write_ogb_arrays(tmp_path / "ogbn_papers100M", MADE)
    loaded = reader.read_binary_graph_raw(str(folder / "raw"))[0]
    graph = run(folder)
    assert edges_of(graph) == set(map(tuple, loaded["edge_index"].T.tolist()))
    assert np.array_equal(get(graph, "features"), loaded["node_feat"])
    assert graph.num_nodes == loaded["num_nodes"]


@pytest.mark.parametrize("rows", [1, 7, 60, 1000])
@pytest.mark.parametrize("deflated", [True, False])
def test_rows_of_a_member(tmp_path: Path, rows: int, deflated: bool) -> None:
    folder = write_ogb_arrays(tmp_path / "x", MADE, deflated=deflated)
    runtime = new_runtime("32MiB")
    member = NpzMember(folder / "raw/data.npz", "node_feat")
    blocks = list(member.rows(runtime, rows))
    assert [len(block) for block in blocks[:-1]] == [min(rows, 60)] * (len(blocks) - 1)
    assert np.array_equal(np.concatenate(blocks), MADE.features)
    middle = np.concatenate(list(member.flat(runtime, rows, 11, 94)))
    assert np.array_equal(middle, MADE.features.ravel()[11:94])
    assert held_bytes(runtime) == 0


def test_without_features_labels_and_edges(tmp_path: Path) -> None:
    made = ForeignGraph(MADE.edges[:0], MADE.features, MADE.labels)
    folder = write_ogb_arrays(tmp_path / "x", made, node_feat=None, node_year=None)
    (folder / "raw/node-label.npz").unlink()
    graph = run(folder)
    assert (graph.num_nodes, graph.num_edges, graph.has("features"), graph.has("labels")) == (
        60,
        0,
        False,
        False,
    )


def member(name: str, array: Any) -> Callable[[Path], object]:
    """Replaces a member of data.npz, or leaves it out."""
    return lambda folder: write_ogb_arrays(folder, MADE, **{name: array})


def spoilt(
    spoil: Callable[[bytearray], object], name: str = "data", **options: Any
) -> Callable[[Path], object]:
    """Changes bytes of a file."""

    def write(folder: Path) -> None:
        path = write_ogb_arrays(folder, MADE, **options) / f"raw/{name}.npz"
        data = bytearray(path.read_bytes())
        spoil(data)
        path.write_bytes(data)

    return write


def cut(data: bytearray) -> None:
    del data[len(data) // 2 :]


def flip(data: bytearray) -> None:
    """Within the features, which are the largest member."""
    data[data.index(b"node_feat.npy") + 500] ^= 0xFF


def changed(array: np.ndarray, at: Any, value: Any) -> np.ndarray:
    array = array.copy()
    array[at] = value
    return array


PAIRS = np.ascontiguousarray(MADE.edges.T)


@pytest.mark.parametrize(
    ("write", "kind", "match"),
    [
        (spoilt(cut), FormatError, r"data\.npz member .* is torn or no array"),
        (spoilt(cut, "node-label"), FormatError, r"node-label\.npz member 'node_label' is torn or no array"),
        (spoilt(flip, deflated=False), FormatError, r"data\.npz member 'node_feat' is torn.*Bad CRC"),
        (spoilt(flip), FormatError, r"data\.npz member 'node_feat' is torn"),
        (member("edge_index", None), FormatError, r"member 'edge_index' is missing \(it has node_feat, node_year, num"),
        (member("num_nodes_list", None), FormatError, r"member 'num_nodes_list' is missing"),
        (member("num_nodes_list", np.array([30, 30])), ArgumentError, r"num_nodes_list' lists 2 graphs"),
        (member("num_nodes_list", np.array([60.0])), FormatError, r"num_nodes_list' is float64\(1,\)"),
        (member("num_nodes_list", np.array([61])), ArgumentError, r"60 rows of features, the graph has 61 nodes"),
        (member("num_edges_list", np.array([7])), FormatError, r"edge_index' has shape \(2, 400\).*says \[2, 7\]"),
        (member("edge_index", MADE.edges), FormatError, r"edge_index' has shape \(400, 2\).*says \[2, 400\]"),
        (member("edge_index", PAIRS * 1.0), ArgumentError, r"edge_index': node ids are float64, integers"),
        (member("edge_index", changed(PAIRS, (1, 9), 60)), ArgumentError, r"'edge_index', edge 9 .* names node 60"),
        (member("edge_index", changed(PAIRS, (0, 9), -1)), ArgumentError, r"'edge_index', edge 9 .* names node -1"),
        (member("edge_index", changed(PAIRS.astype(np.uint64), (0, 9), 2**63)), ArgumentError, r"id in row 9 does"),
        (member("node_feat", MADE.features[:-1]), ArgumentError, r"59 rows of features, the graph has 60 nodes"),
        (member("node_feat", MADE.features[:, 0]), FormatError, r"'node_feat' has shape \(60,\); features are"),
        (member("node_feat", np.asfortranarray(MADE.features)), FormatError, r"'node_feat' of shape .* columns first"),
        (member("node_feat", changed(MADE.features, (7, 3), np.nan)), FormatError, r"'node_feat': row 7, column 3"),
        (member("node_feat", np.array([[{}]] * 60, object)), FormatError, r"'node_feat' holds Python objects"),
        (member("node_feat", MADE.features.astype("S4")), FormatError, r"'node_feat' has elements of \|S4"),
    ],
)  # fmt: skip
def test_spoiled_arrays(
    tmp_path: Path, write: Callable[[Path], object], kind: type[Exception], match: str
) -> None:
    write(tmp_path / "ogbn_papers100M")
    fails(tmp_path / "ogbn_papers100M", kind, match)


@pytest.mark.parametrize(
    ("labels", "kind", "match"),
    [
        (MADE.labels[:-1, None], ArgumentError, r"node_label' has 59 rows|59 rows of labels"),
        (MADE.labels[:, None, None], FormatError, r"node_label' has shape \(60, 1, 1\)"),
        (np.full((60, 1), 1j), FormatError, r"node_label' holds complex128; labels are numbers"),
        (np.full((60, 1), -7), FormatError, r"node_label': row 0 is -7; classes count from 0"),
    ],
)
def test_spoiled_labels(tmp_path: Path, labels: np.ndarray, kind: type[Exception], match: str) -> None:
    folder = write_ogb_arrays(tmp_path / "x", MADE)
    np.savez(folder / "raw/node-label.npz", node_label=labels)
    fails(folder, kind, match)


def test_other_kinds_of_archives(tmp_path: Path) -> None:
    folder = write_ogb_arrays(tmp_path / "x", MADE)
    path = folder / "raw/data.npz"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    fails(folder, FormatError, r"member 'num_nodes_list' is encrypted or compressed unlike NumPy does")
    path.write_bytes(b"")
    fails(folder, FormatError, r"data\.npz member .* is torn or no array")
    (folder / "raw/edge_index_dict.npz").touch()
    fails(folder, ArgumentError, r"num_nodes_dict\.npz is missing")


def test_splits_name_their_rows(tmp_path: Path) -> None:
    folder = write_ogb_arrays(tmp_path / "x", MADE)
    write_gzip(folder / "split/time/valid.csv.gz", [0, 60])
    fails(
        folder,
        ArgumentError,
        r"valid\.csv\.gz, line 2: split valid lists node 60, but there are 60 nodes",
    )


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("deflated", [True, False])
def test_arrays_twenty_times_the_budget(tmp_path: Path, deflated: bool) -> None:
    """80 MB of features, 6 MB of edges; features repeat, so that they are quickly deflated."""
    made = foreign_graph(200_000, 400_000, 1)
    rows = np.arange(200_000)[:, None] % 13 * np.ones(100, np.float32)
    rows[:, 0] = np.arange(200_000)
    made = ForeignGraph(made.edges, rows.astype(np.float32), made.labels, made.splits)
    folder = write_ogb_arrays(tmp_path / "ogbn_papers100M", made, deflated=deflated)
    runtime = new_runtime("4MiB")
    graph = import_graph(f"ogb:{folder}", tmp_path / "graph", runtime, split_protocol="none")
    assert runtime.budget.peak_bytes <= 4 << 20
    assert edges_of(graph) == set(map(tuple, made.edges.tolist()))
    assert np.array_equal(get(graph, "features"), made.features)
    assert np.array_equal(get(graph, "labels"), np.where(np.isnan(made.labels), -1, made.labels))
