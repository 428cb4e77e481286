"""Edge weights and edges to be predicted: imported with the graph, in the order of its edges, whatever is spilled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from outcrop import _core
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.graph import import_graph
from outcrop.store.graph import Graph
from outcrop.store.verify import verify_artifact
from support import new_runtime

TORTURED = True


def imported(folder: Path, memory: str | None = None, **options) -> Graph:
    return import_graph(f"arrays:{folder}", folder.parent / "g", new_runtime(memory), **options)


def weights_of(graph: Graph) -> dict[tuple[int, int], float]:
    indptr, indices, weights = (
        graph.array(new_runtime(), name).memmap() for name in ("indptr", "indices", "edge_weight")
    )
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(indptr))
    return dict(zip(zip(indices.tolist(), targets.tolist(), strict=True), weights.tolist(), strict=True))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("memory", "edges"), [(None, 3000), ("4MiB", 200_000)])
def test_weights_follow_their_edges(tmp_path, reverse, memory, edges):
    """The second spills sorted runs. Of an edge that is listed twice the first weight stays."""
    rng = np.random.default_rng(0)
    pairs, weights = rng.integers(0, 700, (edges, 2)), rng.random(edges).astype(np.float32)
    source = tmp_path / "in"
    source.mkdir()
    np.save(source / "edges.npy", pairs)
    np.save(source / "edge_weight.npy", weights.astype(np.float64))
    graph = imported(source, memory, reverse=reverse)
    expected: dict[tuple[int, int], float] = {}
    for (s, t), w in zip(pairs.tolist(), weights.tolist(), strict=True):
        expected.setdefault((s, t), w)
        if reverse:
            expected.setdefault((t, s), w)
    assert weights_of(graph) == expected
    assert graph.spec("edge_weight").shape == (graph.num_edges,)
    verify_artifact(graph.path, new_runtime())
    indptr = graph.array(new_runtime(), "indptr").memmap()
    assert graph.num_edges == len(expected) == indptr[-1]


@pytest.mark.parametrize("name", ["weight", "edge_weight", "Weight"])
def test_weights_in_a_table(tmp_path, name):
    source = tmp_path / "in"
    source.mkdir()
    (source / "edges.csv").write_text(f"{name},src,dst\n0.5,0,1\n2,2,1\n0,1,0\n")
    assert weights_of(imported(source)) == {(0, 1): 0.5, (2, 1): 2.0, (1, 0): 0.0}


def test_wide_ids(tmp_path):
    runtime = new_runtime("1GiB")  # two sorts of the default size
    builder = _core.CscBuilder(
        runtime.io, runtime.budget, runtime.workers, str(tmp_path), num_nodes=5, wide=True, weighted=True
    )
    builder.add(np.array([4, 0, 3]), np.array([1, 1, 0]), np.array([1, 2, 3], np.float32))
    result = builder.finish(
        *(str(tmp_path / n) for n in ("indptr", "indices")), weights_path=str(tmp_path / "w")
    )
    assert result.wide
    assert np.fromfile(tmp_path / "indices", np.int64, 3).tolist() == [3, 0, 4]
    assert np.fromfile(tmp_path / "w", np.float32, 3).tolist() == [3, 2, 1]
    assert result.weights.data_bytes == 12
    plain = _core.CscBuilder(runtime.io, runtime.budget, runtime.workers, str(tmp_path), num_nodes=5)
    with pytest.raises(ArgumentError, match="not expected"):
        plain.add(np.array([0]), np.array([1]), np.ones(1, np.float32))


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_impossible_weights_are_refused(tmp_path, bad):
    source = tmp_path / "in"
    source.mkdir()
    np.save(source / "edges.npy", np.array([[0, 1], [1, 2], [2, 0]]))
    np.save(source / "edge_weight.npy", np.array([1, 1, bad]))
    with pytest.raises(
        ArgumentError,
        match=rf"edge_weight\.npy, row 2 \(the first is 0\) is {bad}; weights are finite numbers and not",
    ) as refused:
        imported(source)
    assert str(refused.value).startswith(str(source))
    assert "rename the weights" in str(refused.value)
    np.save(source / "edge_weight.npy", np.ones(2))
    with pytest.raises(FormatError, match="one number for each of 3 edges"):
        imported(source)


def test_edges_to_be_predicted(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    np.save(source / "edges.npy", np.array([[0, 1], [1, 2], [2, 0]]))
    np.save(source / "train_edges.npy", np.array([[2, 2], [0, 2]], np.int32))
    np.save(source / "test_edges.npy", np.zeros((0, 2), np.int64))
    graph = imported(source)
    assert graph.array(new_runtime(), "train_edges").memmap().tolist() == [[2, 2], [0, 2]]
    assert graph.spec("test_edges").shape == (0, 2)
    assert not graph.has("valid_edges")
    np.save(source / "train_edges.npy", np.array([[2, 3]]))
    with pytest.raises(ArgumentError, match=r"edge 0 of train_edges is \[2, 3\], there are 3 nodes"):
        imported(source)
    np.save(source / "train_edges.npy", np.array([2, 3]))
    with pytest.raises(FormatError, match=r"\[edges, 2\] is needed"):
        imported(source)
