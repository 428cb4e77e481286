"""The ``tables.toml`` that is shown where tables declare no keys: taken as it is, and corrected as it says."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import outcrop as oc
from outcrop.importing.graph import import_graph
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph

USERS = {
    "user_id": ["a", "b", "c"],
    "age": [1.0, 2.0, 3.0],
    "label": [0, 1, 0],
    "split": ["train", "test", "valid"],
}
FOLLOWS = {"from": ["a", "c"], "to": ["b", "a"]}
BUYS = {"user_id": ["c", "b"], "item_id": [20, 10], "price": [0.5, 1.5]}
ITEMS = {"item_id": [10, 20], **{f"x{i:02}": [1.0, 2.0] for i in range(20)}}


def imported(folder: Path, out: Path) -> Graph:
    with Runtime() as runtime:
        return import_graph(f"tables:{folder}", out, runtime)


def guess(folder: Path, **tables: dict) -> str:
    folder.mkdir()
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    with pytest.raises(oc.ArgumentError, match="no table says") as refused:
        imported(folder, folder / "g.oc")
    text = str(refused.value).partition("\n\n")[2]
    (folder / "tables.toml").write_text(text)
    return text


def edges(graph: Graph) -> dict[tuple[str, str, str], list[list[int]]]:
    return {one.key: graph.edge_index(one).tolist() for one in graph.edge_types}


def test_labels_and_splits_are_no_features(tmp_path: Path) -> None:
    guess(tmp_path / "shop", users=USERS, items=ITEMS, buys=BUYS)
    graph = imported(tmp_path / "shop", tmp_path / "g.oc")
    users = next(one for one in graph.node_types if one.name == "users")
    with Runtime() as runtime:
        assert graph.open_rows(runtime, graph.row_files[users.number]).memmap().shape == (3, 1)
    assert graph.num_classes == 2
    assert edges(graph)["buys", "f2p_item_id", "items"] == [[1, 0], [0, 1]]


def test_what_follows_whom_is_asked_where_there_are_two_types(tmp_path: Path) -> None:
    text = guess(tmp_path / "shop", users=USERS, items=ITEMS, follows=FOLLOWS)
    assert [one["name"] for one in tomllib.loads(text)["tables"]] == ["items", "users"]
    assert "links" not in tomllib.loads(text)
    assert '# other columns: "x00", "x01", "x02", "x03", 12 more, "x16", "x17", "x18", "x19"\n' in text
    before, asked, lines = text.partition("# Not taken: ")
    assert asked
    said = "\n".join(line.removeprefix("# ") for line in lines.splitlines()[1:]).replace('"?"', '"users"')
    (tmp_path / "shop" / "tables.toml").write_text(f"{before}\n{said}\n")
    graph = imported(tmp_path / "shop", tmp_path / "g.oc")
    assert edges(graph)["users", "follows", "users"] == [[2, 0], [0, 1]]


def test_two_columns_may_refer_to_the_only_type_with_keys(tmp_path: Path) -> None:
    """As a comment: two columns may as well be ids and labels, or settings."""
    text = guess(tmp_path / "people", users=USERS, follows=FOLLOWS, settings={"name": ["x"], "value": [1]})
    assert "links" not in tomllib.loads(text)
    before, _, lines = text.partition("# Not taken: ")
    asked = [line.removeprefix("# ") for line in lines.splitlines()[1:]]
    said = "\n".join(asked[: asked.index("#")])
    (tmp_path / "people" / "tables.toml").write_text(f"{before}\n{said}\n")
    graph = imported(tmp_path / "people", tmp_path / "g.oc")
    assert edges(graph)["users", "follows", "users"] == [[2, 0], [0, 1]]


def test_a_list_of_edges_alone(tmp_path: Path) -> None:
    folder = tmp_path / "edges"
    folder.mkdir()
    (folder / "follows.csv").write_text("from,to\na,b\n\\N,c\nc,a\n")
    with pytest.raises(oc.ArgumentError, match="no table says") as refused:
        imported(folder, tmp_path / "g.oc")
    lines = str(refused.value).partition("# Not taken: ")[2].splitlines()[1:]
    (folder / "tables.toml").write_text(
        "\n".join(line.removeprefix("# ").removeprefix("#") for line in lines)
    )
    graph = imported(folder, tmp_path / "g.oc")
    named = [graph.node_names(ends) for ends in edges(graph)["node", "follows", "node"]]
    assert sorted(zip(*named, strict=True)) == [("a", "b"), ("c", "a")]


def test_columns_that_may_be_coordinates_are_no_labels(tmp_path: Path) -> None:
    cities = {"id": [0, 1], "x": [0.0, 1.0], "y": [2.0, 3.0], "target": [1, 0], "land_id": [7, 7]}
    text = guess(tmp_path / "map", city=cities, land={"id": [7]})
    assert not any("label" in one for one in tomllib.loads(text)["tables"])


def test_rows_that_lead_from_one_to_another_may_be_edges(tmp_path: Path) -> None:
    """With the lines that the comment gives, in place of those above them."""
    text = guess(tmp_path / "shop", users=USERS, items=ITEMS, buys=BUYS)
    head, *tables = text.split("[[tables]]\n")
    rows = next(table for table in tables if 'name = "buys"' in table)
    lines = [line.removeprefix("# ") for line in rows.partition("in place of nodes:\n")[2].splitlines()]
    said = "\n".join(lines).replace('"COLUMN", ...', '"price"')
    rest = "".join(f"[[tables]]\n{table}" for table in tables if table is not rows)
    (tmp_path / "shop" / "tables.toml").write_text(f"{head}{rest}\n{said}\n")
    graph = imported(tmp_path / "shop", tmp_path / "g.oc")
    assert edges(graph)["users", "buys", "items"] == [[1, 2], [0, 1]]
    number = next(file.number for file in graph.row_files if file.owner in graph.edge_types)
    with Runtime() as runtime:
        prices = np.array(graph.open_rows(runtime, graph.row_files[number]).memmap())
    np.testing.assert_array_equal(prices, np.array([[1], [-1]], np.float32))  # 1.5 and 0.5, standardised
