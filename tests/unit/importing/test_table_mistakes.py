"""Mistakes in tables and in tables.toml: each is named by file, row and value, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import outcrop as oc
from outcrop.importing.graph import import_graph
from support import held_bytes, new_runtime

TOML = """
[[tables]]
name = "team"
file = "teams.csv"
key = "id"
[[tables]]
name = "player"
file = "players.csv"
key = "id"
foreign_keys = { team = "team" }
[[links]]
file = "plays.csv"
source = "player"
relation = "plays"
target = "team"
weight = "hours"
"""
FILES = {
    "teams.csv": "id,size\n10,3\n20,4\n30,\n",
    "players.csv": "id,team,age,part\na,10,5,train\nb,,6,\nc,30,7,test\n",
    "plays.csv": "player,team,hours\na,10,1.5\nb,20,2\nc,30,0\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, text in (FILES | {"tables.toml": TOML}).items():
        (folder / name).write_text(text)
    return folder


def refused(folder: Path, match: str) -> None:
    runtime = new_runtime("8MiB")
    with pytest.raises((oc.ArgumentError, oc.FormatError), match=match):
        import_graph(f"tables:{folder}", folder.parent / "g.oc", runtime)
    assert held_bytes(runtime) == 0
    assert [path.name for path in folder.parent.iterdir()] == ["in"]


def test_it_is_imported_as_it_is(folder):
    graph = import_graph(f"tables:{folder}", folder.parent / "g.oc", new_runtime("8MiB"))
    assert [one.num_edges for one in graph.edge_types] == [2, 3, 2, 3]


@pytest.mark.parametrize(
    ("name", "old", "new", "match"),
    [
        ("teams.csv", "20,4", "10,4", r"teams\.csv, line 3, column 'id': node 10 is listed twice, first in line 2"),
        ("teams.csv", "20,4", ",4", r"teams\.csv, line 3, column 'id' is empty; every row needs"),
        ("teams.csv", "20,4", "x,4", r"plays\.csv, line 3, column 'team' names node '20', which .* 'x' is no integer"),
        ("teams.csv", "20,4", "20,4,5", r"teams\.csv, line 3: Expected 2 columns, got 3"),
        ("players.csv", "a,10", "a,15", r"players\.csv, line 2, column 'team' names node 15, which .*teams\.csv"),
        ("players.csv", "c,30", "c,x", r"players\.csv, line 4, column 'team': 'x' is text, and the keys .* integers"),
        ("players.csv", "c,30", "c,30.5", r"players\.csv, line 4, column 'team': 30\.5 is no integer and no text"),
        ("players.csv", "b,", "a,", r"players\.csv, line 3, column 'id': node 'a' is listed twice, first in line 2"),
        ("plays.csv", "b,20", "d,20", r"plays\.csv, line 3, column 'player' names node 'd', which .*players\.csv"),
        ("plays.csv", "20,2", "20,-2", r"plays\.csv, line 3, column 'hours' is -2\.0; weights are finite numbers"),
        ("plays.csv", "20,2", "20,x", r"plays\.csv, line 3, column 'hours': 'x' is no number; weights"),
        ("plays.csv", "20,2", "20,", r"plays\.csv, line 3, column 'hours' .*every row needs a value|'' is no number"),
        ("players.csv", "b,,6", "b,,1e999", r"players\.csv, line 3, column 'age' is not finite"),
        ("tables.toml", "", "x = 1\n", r"tables\.toml: 'x' is unknown there; it has database"),
        ("tables.toml", "", "tables = 3\n[[x", r"tables\.toml is no TOML"),
        ("tables.toml", 'key = "id"', 'kye = "id"', r"\[\[tables\]\] 0: 'kye' is unknown; known: name, file"),
        ("tables.toml", 'key = "id"', 'key = "no"', r"key names column 'no', which .*teams\.csv does not have \(it "),
        ("tables.toml", 'key = "id"\n[[t', "[[t", r"teams\.csv has no key, and other tables refer to its rows"),
        ("tables.toml", '"teams.csv"', '"none.csv"', r"file names '.*none\.csv', which is no file"),
        ("tables.toml", '"teams.csv"', '"../x.csv"', r"outside the folder: put the file, .* beside tables\.toml"),
        ("tables.toml", 'team = "team"', 'team = "town"', r"table is 'town', which is no name of \[\[tables\]\]"),
        ("tables.toml", 'team = "team"', "team = 3", r"foreign_keys 'team' is 3, the name of a table is needed"),
        ("tables.toml", '{ team = "team" }', '"team"', r"foreign_keys is 'team', a table is needed"),
        ("tables.toml", 'name = "team"', 'name = "player"', r"lists node type 'player' twice"),
        ("tables.toml", 'name = "team"', 'name = "te am"', r"names have no blanks"),
        ("tables.toml", 'key = "id"', 'key = "id"\nfeatures = ["id", "x"]', r"features names column 'x', which"),
        ("tables.toml", 'ers.csv"', 'ers.csv"\nfeatures = ["part"]', r"players\.csv, line 2, column 'part': 'train'"),
        ("tables.toml", 'ers.csv"', 'ers.csv"\nunknown_keys = "x"', r"unknown_keys is 'x'; write refuse or none"),
        ("tables.toml", 'ers.csv"', 'ers.csv"\ndelimiter = ", "', r"delimiter is ', ', one character is needed"),
        ("tables.toml", 'ers.csv"', 'ers.csv"\nencoding = "utf-16"', r"encoding is 'utf-16', which is none that can"),
        ("tables.toml", 'ers.csv"', 'ers.csv"\nheader = 1', r"header is 1, true or false is needed"),
        ("tables.toml", 'ers.csv"', 'ers.csv"\ncolumns = ["id"]', r"has 4 columns in its first line, 1 are named"),
        ("tables.toml", 'ers.csv"', 'ers.csv"\nsplit = "part"\ntrain = "teams.csv"', r"splits in more than one way"),
        ("tables.toml", 'ers.csv"', 'ers.csv"\nsplit = "age"', r"'5' is no split; write train, valid or test"),
        ("tables.toml", 'ers.csv"', 'ers.csv"\ntable = "x"', r"has 'file' and 'table', which is one of a database"),
        ("tables.toml", 'ers.csv"', 'ers.csv"\nfrom_keys = true', r"has from_keys and 'file': keys tell nothing"),
        ("tables.toml", 'weight = "hours"', 'features = ["player"]', r"plays\.csv, line 2, column 'player': 'a' is"),
        ("tables.toml", 'weight = "hours"', 'features = ["no"]', r"features names column 'no', which .*plays\.csv"),
        ("tables.toml", 'file = "plays.csv"', 'reverse = false', r"\[\[links\]\] 0 has no 'file' with the table"),
        ("tables.toml", '"plays"', '"f2p_team"', r"lists edge type 'player f2p_team team' twice"),
    ],
)  # fmt: skip
def test_mistakes_are_named(folder, name, old, new, match):
    path = folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    refused(folder, match)


def test_tables_that_nothing_joins_are_refused(folder):
    toml = TOML.partition("[[links]]")[0].replace('foreign_keys = { team = "team" }\n', "")
    (folder / "tables.toml").write_text(toml)
    refused(folder, r"has tables and no keys of others: say foreign_keys")


@pytest.mark.parametrize("keep", [0.0, 0.2, 0.9])
def test_a_torn_parquet_file_is_named(folder, keep):
    pq.write_table(pa.table({"id": np.arange(3), "size": [1, 2, 3]}), folder / "teams.parquet")
    path = folder / "teams.parquet"
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    (folder / "tables.toml").write_text(TOML.replace("teams.csv", "teams.parquet"))
    refused(folder, r"teams\.parquet is no Parquet file or is torn")


@pytest.mark.parametrize(
    ("found", "match"),
    [
        ({b"fkey_col_to_pkey_table": b"{"}, "its fkey_col_to_pkey_table is not what RelBench writes"),
        ({b"fkey_col_to_pkey_table": b"[1]"}, "its fkey_col_to_pkey_table is not what RelBench writes"),
        ({b"fkey_col_to_pkey_table": b'{"b": "x"}'}, r"column 'b' refers to a table 'x', and .*in has no such"),
        ({b"fkey_col_to_pkey_table": b'{"c": "t"}'}, "column 'c' refers to a table 't', and the file has no such"),
        ({b"fkey_col_to_pkey_table": b"{}", b"pkey_col": b'"z"'}, "its pkey_col is 'z', which is no column of it"),
        ({b"fkey_col_to_pkey_table": b"{}", b"pkey_col": b'"a"'}, "has tables and no keys of others"),
    ],
)  # fmt: skip
def test_odd_metadata_is_named(folder, found, match):
    for path in folder.iterdir():
        path.unlink()
    table = pa.table({"a": [0, 1], "b": [1, 0]})
    pq.write_table(table.replace_schema_metadata(found), folder / "t.parquet")
    refused(folder, match)


def test_a_folder_without_tables_is_refused(folder):
    for path in folder.iterdir():
        path.unlink()
    refused(folder, r"in has no tables \(\*\.parquet, .*\) and no tables\.toml")
    with pytest.raises(oc.ArgumentError, match="nothing is not there: tables:DIR is a folder"):
        import_graph(f"tables:{folder / 'nothing'}", folder.parent / "g.oc", new_runtime("8MiB"))
