"""Files that list nodes, as ``outcrop infer --nodes`` takes them: what they hold, and which cell is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import outcrop as oc
from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.sources.node_list import read_ids

NAMES = [f"shop-{i:02d}" for i in range(20)]


@pytest.fixture
def graph(tmp_path: Path) -> oc.Graph:
    table = pa.table({"src": NAMES, "dst": [*NAMES[1:], NAMES[0]]})
    features = pa.table({"id": NAMES, "x": np.arange(20.0)})
    return oc.import_graph({"edges": table, "features": features}, tmp_path / "g", progress=False)


def written(path: Path, ids: list[str | None]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"id": pa.array(ids, pa.string())}), path)
    else:
        path.write_text("\n".join(["id", *(i or "" for i in ids)]) + "\n")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_ids_are_found(graph: oc.Graph, tmp_path: Path, suffix: str) -> None:
    nodes = np.array([7, 0, 19])
    listed = [NAMES[i] for i in nodes]
    assert np.array_equal(read_ids(written(tmp_path / f"n{suffix}", listed), graph), nodes)


@pytest.mark.parametrize(("suffix", "row"), [(".csv", "line 4"), (".parquet", "row 2 (the first is 0)")])
def test_a_wrong_id_is_named_where_it_stands(graph: oc.Graph, tmp_path: Path, suffix: str, row: str) -> None:
    path = written(tmp_path / f"n{suffix}", [NAMES[3], NAMES[4], "shp-05", "elsewhere"])
    with pytest.raises(ArgumentError) as refused:
        read_ids(path, graph)
    assert str(refused.value) == (
        f"{path}, {row}, column 'id' names node 'shp-05', which {graph.path} does not have (rows with unknown ids: 2): "
        "correct it, or remove the row"
    )


def test_an_empty_cell_is_named(graph: oc.Graph, tmp_path: Path) -> None:
    path = written(tmp_path / "n.parquet", [NAMES[3], None])
    with pytest.raises(FormatError, match=r"row 1 \(the first is 0\), column 'id' is empty"):
        read_ids(path, graph)


@pytest.mark.parametrize(
    ("suffix", "rows"),
    [
        (".csv", ("line 5, column 'id'", "line 3")),
        (".parquet", ("row 3 (the first is 0), column 'id'", "row 1 (the first is 0)")),
        (".npy", ("row 3 (the first is 0)", "row 1 (the first is 0)")),
    ],
)
def test_an_id_that_is_listed_twice_is_named_as_the_file_has_it(
    graph: oc.Graph, tmp_path: Path, suffix: str, rows: tuple[str, str]
) -> None:
    path, ids = tmp_path / f"n{suffix}", [NAMES[i] for i in (9, 3, 8, 3, 9)]
    if suffix == ".npy":
        np.save(path, np.array(ids))
    else:
        written(path, list(ids))
    with pytest.raises(ArgumentError) as refused:
        read_ids(path, graph)
    assert str(refused.value) == (
        f"{path}, {rows[0]}: node 'shop-03' is listed twice, first in {rows[1]}: remove one of them"
    )


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npy"])
def test_a_list_without_nodes_is_refused(graph: oc.Graph, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"n{suffix}"
    if suffix == ".npy":
        np.save(path, np.zeros(0))
    else:
        written(path, [])
    with pytest.raises(ArgumentError) as refused:
        read_ids(path, graph)
    assert str(refused.value).startswith(f"{path} lists no nodes: ")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            "shop-03",
            "'shop-03' is a node of {}; nodes are given as 'all', or as a file that lists them: .npy of node",
        ),
        ("3", "there is no file '3'; nodes are given as 'all', or as a file"),
        ("nodes.csv", "nodes.csv cannot be read: there is no such file; nodes are given as 'all', or as"),
    ],
)
def test_what_is_no_file_is_told_what_is_expected(graph: oc.Graph, given: str, says: str) -> None:
    with pytest.raises(FormatError) as refused:
        read_ids(Path(given), graph)
    assert str(refused.value).startswith(says.format(graph.path))
