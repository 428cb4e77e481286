"""Ids of one's own: from nodes to the names of the source and back, against the tables that were imported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch

import outcrop as oc
from artifact_support import memory_folder
from outcrop.errors import ArgumentError, FormatError
from outcrop.pyg import NeighborLoader
from outcrop.store import names as stored_names
from support import new_runtime

COUNT = 500
RNG = np.random.default_rng(4)
# Names of all lengths, an empty one, and some outside ASCII.
TEXT = ["", *(f"{'ä' * (i % 7)}n{i}" + "long" * (97 * (i % 41 == 0)) for i in range(1, COUNT))]
SPARSE = [int(i) for i in RNG.permutation(10**12 + 977 * np.arange(COUNT))]


def graph_of(folder: Path, ids: list[Any]) -> oc.Graph:
    """A ring of nodes that features.csv lists in the order of ``ids``."""
    folder.mkdir()
    column = pa.array(ids)
    pa_csv.write_csv(pa.table({"src": column, "dst": np.roll(ids, 1)}), folder / "edges.csv")
    features = {"id": column, "f0": np.arange(COUNT, dtype=np.float64)}
    pa_csv.write_csv(pa.table(features), folder / "features.csv")
    return oc.import_graph(
        f"arrays:{folder}", folder / "graph", oc.ImportConfig(reverse=True), progress=False
    )


@pytest.mark.parametrize("ids", [[*TEXT[1:], "last"], SPARSE], ids=["text", "integers"])
def test_nodes_get_their_names_and_names_their_nodes(
    tmp_path: Path, ids: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_names, "_FOUND_BYTES", 1000)  # many blocks
    graph = graph_of(tmp_path / "in", ids)
    assert graph.has_names
    assert graph.node_names() == ids
    assert graph.node_names(range(30, 40)) == ids[30:40]
    some = RNG.permutation(COUNT)[:60]
    wanted = [ids[node] for node in some]
    for nodes in (some, some.tolist(), torch.from_numpy(some), some.astype(np.uint16)):
        assert graph.node_names(nodes) == wanted
    assert graph.node_names([]) == []
    found = graph.node_ids(wanted)
    assert found.dtype == np.int64
    assert np.array_equal(found, some)
    assert graph.node_ids([wanted[3], wanted[0], wanted[3]]).tolist() == [some[3], some[0], some[3]]
    assert graph.node_ids([str(name) for name in wanted]).tolist() == some.tolist()
    assert graph.node_ids([]).tolist() == []
    with pytest.raises(ArgumentError, match=r"no node 'zoe' \(and 1 more of the given names\)"):
        graph.node_ids([wanted[0], "zoe", "yan"])
    for wrong in ([COUNT], [-1], [0.5], [[1]], "alice"):
        with pytest.raises(ArgumentError, match=f"integers from 0 to {COUNT - 1}"):
            graph.node_names(wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"0\.5 cannot name a node"):
        graph.node_ids([0.5])  # type: ignore[list-item]


def test_where_ids_are_node_numbers_they_are_the_names(tmp_path: Path) -> None:
    graph = graph_of(tmp_path / "in", list(range(COUNT)))
    assert not graph.has_names
    assert graph.node_names([7, 3]) == [7, 3]
    assert graph.node_ids([7, "3"]).tolist() == [7, 3]  # type: ignore[list-item]
    for unknown in (COUNT, -1, "x"):
        with pytest.raises(ArgumentError, match=f"no node '{unknown}'"):
            graph.node_ids([unknown])  # type: ignore[list-item]


def test_reading_names_takes_what_the_names_take(tmp_path: Path) -> None:
    """Empty names and those of any length, alone and side by side, in memory that the budget counts."""
    runtime = new_runtime("1MiB")
    specs, count = stored_names.write_names(runtime, tmp_path, TEXT, "names", "name_offsets")
    assert count == COUNT
    manifest = stored_names.Manifest("x", 1, specs)
    for nodes in (np.arange(COUNT), np.array([0]), np.array([5, 0, 1, 1, 499]), RNG.permutation(COUNT)):
        with stored_names._Names(runtime, tmp_path, manifest, stored_names.NAME_ARRAYS) as names:
            found = stored_names._strings(*names.of(nodes)).to_pylist()
        assert found == [TEXT[node] for node in nodes]


def test_damaged_offsets_are_named(tmp_path: Path) -> None:
    graph = graph_of(tmp_path / "in", SPARSE)
    path = graph.path / graph.spec("name_offsets").file
    offsets = np.fromfile(path, "<i8")
    offsets[4] = 1 << 40
    offsets.tofile(path)
    with pytest.raises(FormatError, match="name_offsets do not ascend"):
        graph.node_names([4, 300])


ANIMALS = ("cat", "dog", "eel")


class ItsOwnRow(torch.nn.Module):
    """Scores each node by its features."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return x * self.one


@pytest.fixture(scope="module", params=["text", "integers"])
def zoo(request: pytest.FixtureRequest) -> Iterator[tuple[oc.Graph, list[Any], np.ndarray, list[str]]]:
    """A graph, and by row of its tables the ids, the features, and the labels that these score highest."""
    ids = [f"animal {i}" for i in range(COUNT)] if request.param == "text" else SPARSE
    kinds = RNG.integers(0, 3, COUNT)
    rows = np.zeros((COUNT, 3), np.float32)
    rows[np.arange(COUNT), kinds] = 1 + np.arange(COUNT)
    labels = [ANIMALS[kind] for kind in kinds]
    order = RNG.permutation(COUNT)
    with memory_folder() as folder:
        tables = {
            "edges": {"src": pa.array(ids), "dst": np.roll(ids, 1)},
            "features": {"id": pa.array(ids), **{f"f{i}": rows[:, i] for i in range(3)}},
            "labels": {"id": [ids[i] for i in order], "label": [labels[i] for i in order]},
            "splits": {"id": ids[40:70], "split": ["val"] * 30},
        }
        for name, columns in tables.items():
            pa_csv.write_csv(pa.table(columns), folder / f"{name}.csv")
        yield oc.import_graph(f"arrays:{folder}", folder / "graph", progress=False), ids, rows, labels


def test_results_carry_ids_and_class_names(
    zoo: tuple[oc.Graph, list[Any], np.ndarray, list[str]], tmp_path: Path
) -> None:
    graph, ids, rows, labels = zoo
    options: dict[str, Any] = {"model": ItsOwnRow(), "fanouts": [1], "memory": "8MiB", "progress": False}
    some = RNG.permutation(COUNT)[:50].tolist()
    for nodes, wanted in (("all", range(COUNT)), (some, some)):
        report = oc.infer(graph, out=tmp_path / "classes.parquet", output="classes", nodes=nodes, **options)
        assert report.peak_host_bytes <= 8 << 20
        table = pq.read_table(tmp_path / "classes.parquet")
        assert table.column_names == ["node", "name", "class", "class_name"]
        assert table["name"].to_pylist() == [ids[i] for i in wanted]
        assert table["class_name"].to_pylist() == [labels[i] for i in wanted]
        classes = oc.predict(graph, ItsOwnRow(), nodes, output="classes", fanouts=[1], progress=False)
        assert [graph.class_names[i] for i in classes] == table["class_name"].to_pylist()
        oc.infer(graph, out=tmp_path / "logits.parquet", nodes=nodes, **options)
        table = pq.read_table(tmp_path / "logits.parquet")
        assert table.column_names == ["node", "name", "logits"]
        told = table.schema.field("logits").metadata[b"class_names"]
        assert json.loads(told) == list(graph.class_names)
        own = dict(zip(ids, rows.tolist(), strict=True))
        assert table["logits"].to_pylist() == [own[name] for name in table["name"].to_pylist()]


def test_nodes_are_chosen_by_ids_of_the_source(
    zoo: tuple[oc.Graph, list[Any], np.ndarray, list[str]], tmp_path: Path
) -> None:
    graph, ids, rows, _ = zoo
    some = RNG.permutation(COUNT)[:20]
    names = [ids[i] for i in some]
    pa_csv.write_csv(pa.table({"note": ["x"] * 20, "id": names}), tmp_path / "mine.csv")
    np.save(tmp_path / "mine.npy", np.array([str(name) for name in names]))
    for nodes in (
        [str(name) for name in names],
        np.array([str(name) for name in names], object),
        graph.node_ids(names),
        tmp_path / "mine.csv",
        str(tmp_path / "mine.npy"),
    ):
        found = oc.predict(graph, ItsOwnRow(), nodes, fanouts=[1], progress=False)
        assert np.array_equal(found, rows[some])
    twice = [str(names[0]), str(names[1]), str(names[0])]
    with pytest.raises(ArgumentError, match=rf"node {re.escape(repr(names[0]))} is there more than once"):
        oc.predict(graph, ItsOwnRow(), twice, fanouts=[1], progress=False)
    for spelling in ("valid", "val"):
        found = oc.predict(graph, ItsOwnRow(), spelling, fanouts=[1], progress=False)
        assert np.array_equal(found, rows[40:70])
    loader = NeighborLoader(graph, num_neighbors=[1], input_nodes=[str(name) for name in names], batch_size=8)
    assert [name for b in loader for name in graph.node_names(b.n_id[: b.batch_size])] == names
    loader.close()
    pa_csv.write_csv(pa.table({"count": range(20), "animal": names}), tmp_path / "mine.csv")
    with pytest.raises(FormatError, match=r"mine\.csv has no column 'id' \(it has count, animal\)"):
        oc.predict(graph, ItsOwnRow(), tmp_path / "mine.csv", fanouts=[1], progress=False)
