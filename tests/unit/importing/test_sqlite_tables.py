"""Import of SQLite files, against queries: keys that they declare, rows in their order whatever indexes there are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import outcrop as oc
from outcrop.importing.graph import import_graph
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from support import shared_path
from table_oracle import in_order, standardised

SCHEMA = """
CREATE TABLE Town (name TEXT PRIMARY KEY, size, oddly, photo BLOB) WITHOUT ROWID;
CREATE TABLE "Order" (
    id INTEGER PRIMARY KEY, town TEXT REFERENCES town, parent INTEGER REFERENCES "Order"(ID),
    price NUMERIC, code TEXT UNIQUE);
CREATE INDEX by_town ON "Order" (town, price);
CREATE TABLE "Order Line" (
    rowid TEXT, "order" INTEGER REFERENCES "Order", code TEXT REFERENCES "Order"(code), n INTEGER);
CREATE TABLE Tag (id INTEGER PRIMARY KEY);
CREATE TABLE Tagged (tag INTEGER REFERENCES Tag, "order" INTEGER REFERENCES "Order", PRIMARY KEY (tag, "order"));
CREATE TABLE Alone (x REAL);
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path, rng = tmp_path / "shop.sqlite", np.random.default_rng(0)
    with closing(sqlite3.connect(path)) as made, made:
        made.executescript(SCHEMA)
        towns = [f"town {i}" for i in rng.permutation(20)]
        made.executemany(
            "INSERT INTO Town VALUES (?, ?, ?, ?)",
            [
                (town, i if i % 2 else i / 4, "text" if i == 3 else i, b"\x00\xff")
                for i, town in enumerate(towns)
            ],
        )
        orders = [
            (
                7 * i + 3,
                towns[int(rng.integers(20))] if i % 6 else None,
                7 * (i // 2) + 3 if i else None,
                float(rng.integers(9)) if i % 5 else None,
                f"c{i:04}",
            )
            for i in rng.permutation(300).tolist()
        ]
        made.executemany('INSERT INTO "Order" VALUES (?, ?, ?, ?, ?)', orders)
        lines = [
            (f"r{i}", 7 * int(rng.integers(300)) + 3, f"c{int(rng.integers(300)):04}", i % 4)
            for i in range(900)
        ]
        made.executemany('INSERT INTO "Order Line" VALUES (?, ?, ?, ?)', lines)
        made.executemany("INSERT INTO Tag VALUES (?)", [(i,) for i in range(5)])
        tagged = {(int(rng.integers(5)), 7 * int(rng.integers(300)) + 3) for _ in range(400)}
        made.executemany("INSERT INTO Tagged VALUES (?, ?)", sorted(tagged))
        made.executemany("INSERT INTO Alone VALUES (?)", [(1.0,), (float("inf"),), (None,)])
    return path


@pytest.fixture
def asked(base: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(base)) as connection:
        yield connection


def imported(path: Path, out: Path, memory: str | None = None, **options) -> Graph:
    with Runtime(memory) as runtime:
        return import_graph(f"tables:{path}", out, runtime, oc.ImportConfig(**options))


def read(graph: Graph, name: str) -> np.ndarray:
    with Runtime() as runtime:
        return graph.array(runtime, name).read("test")


def rows_of(asked: sqlite3.Connection, table: str, column: str, order: str = "_rowid_") -> list:
    return [
        cell for (cell,) in asked.execute(f'SELECT "{column}" FROM "{table}" NOT INDEXED ORDER BY {order}')
    ]


def referring(asked: sqlite3.Connection, keys: list, table: str, column: str) -> np.ndarray:
    cells = rows_of(asked, table, column)
    found = [(row, keys.index(cell)) for row, cell in enumerate(cells) if cell is not None]
    return in_order(np.array(found).T)


def with_finite(base: Path) -> None:
    with closing(sqlite3.connect(base)) as made, made:
        made.execute("DELETE FROM Alone WHERE x > 2")


def test_declared_keys_become_edges(base, asked, tmp_path):
    with_finite(base)
    graph = imported(base, tmp_path / "g.oc")
    assert [one.name for one in graph.node_types] == ["Town", "Order", "Order_Line", "Tag", "Alone"]
    ids = rows_of(asked, "Order", "id")
    towns = rows_of(asked, "Town", "name", "name")
    expected = {
        ("Order", "f2p_town", "Town"): referring(asked, towns, "Order", "town"),
        ("Order", "f2p_parent", "Order"): referring(asked, ids, "Order", "parent"),
        ("Order_Line", "f2p_order", "Order"): referring(asked, ids, "Order Line", "order"),
        ("Order_Line", "f2p_code", "Order"): referring(
            asked, rows_of(asked, "Order", "code"), "Order Line", "code"
        ),
        ("Tag", "Tagged", "Order"): in_order(
            np.array(
                [(tag, ids.index(order)) for tag, order in asked.execute("SELECT tag, [order] FROM Tagged")]
            ).T
        ),
    }
    keys = [one.key for one in graph.edge_types]
    assert keys[:5] == list(expected)
    assert keys[5] == ("Town", "rev_f2p_town", "Order")
    assert keys[9] == ("Order", "rev_Tagged", "Tag")
    for key, edges in expected.items():
        assert np.array_equal(graph.edge_index(key), edges), key
        back = (key[2], f"rev_{key[1]}", key[0])
        assert np.array_equal(graph.edge_index(back), in_order(edges[::-1])), back


def test_columns_of_numbers_become_features(base, asked, tmp_path):
    with_finite(base)
    graph = imported(base, tmp_path / "g.oc")
    rows = {one.array: one for one in graph.row_files}
    assert list(rows) == ["n0.features", "n1.features", "n2.features", "n4.features"]
    sizes = rows_of(asked, "Town", "size", "name")
    assert np.allclose(read(graph, "n0.features"), standardised([sizes]), atol=1e-6)
    assert np.allclose(
        read(graph, "n1.features"), standardised([rows_of(asked, "Order", "price")]), atol=1e-6
    )
    assert np.allclose(
        read(graph, "n2.features"), standardised([rows_of(asked, "Order Line", "n")]), atol=1e-6
    )
    notes = " ".join(graph.notes)
    assert "nodes 'Town': features are size (standardised); not imported: oddly, photo" in notes


def test_what_is_not_finite_is_named(base, tmp_path):
    with pytest.raises(oc.FormatError, match=r"table 'Alone', row 1 .*column 'x' is not finite"):
        imported(base, tmp_path / "g.oc")


def test_a_toml_chooses_among_the_tables(base, asked, tmp_path):
    folder = tmp_path / "shop"
    folder.mkdir()
    base.rename(folder / "shop.sqlite")
    (folder / "tables.toml").write_text(
        'database = "shop.sqlite"\n[[tables]]\nname = "order"\ntable = "Order"\nkey = "id"\nlabel = "price"\n'
        'foreign_keys = { parent = "order" }\n[[tables]]\nname = "Tag"\nkey = "id"\n'
        '[[links]]\ntable = "Tagged"\nsource = "Tag"\nrelation = "on"\ntarget = "order"\n'
    )
    graph = imported(folder, tmp_path / "g.oc", label_kind="class")
    with closing(sqlite3.connect(folder / "shop.sqlite")) as connection:
        prices = rows_of(connection, "Order", "price")
    assert read(graph, "n0.labels").tolist() == [-1 if price is None else int(price) for price in prices]
    assert [one.key[1] for one in graph.edge_types] == ["f2p_parent", "on", "rev_f2p_parent", "rev_on"]
    assert graph.row_files == ()


def test_bytes_do_not_depend_on_the_budget(base, tmp_path):
    with_finite(base)
    digests = [imported(base, tmp_path / f"{m}.oc", m).digest() for m in ("6MiB", "1GiB")]
    assert len(set(digests)) == 1


def test_damage_is_named(base, tmp_path):
    whole = base.read_bytes()
    base.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(oc.FormatError, match=r"shop\.sqlite is torn, or cannot be read as a SQLite file"):
        imported(base, tmp_path / "g.oc")
    base.write_bytes(b"no database")
    with pytest.raises(oc.FormatError, match=r"shop\.sqlite is no SQLite file"):
        imported(base, tmp_path / "g.oc")
    base.write_bytes(whole[:100] + bytes(len(whole) - 100))
    with pytest.raises((oc.FormatError, oc.ArgumentError), match=r"shop\.sqlite"):
        imported(base, tmp_path / "g.oc")


def test_damaged_names_are_named(base, tmp_path):
    """What SQLite says of a damaged schema has the name in it, which may be no UTF-8."""
    damaged = (
        base.read_bytes()
        .replace(b"Town", b"T\xe4wn")
        .replace(b"CREATE TABLE T\xe4wn", b"CREATE TABXE T\xe4wn")
    )
    base.write_bytes(damaged)
    with pytest.raises(oc.FormatError, match=r"shop\.sqlite is torn, or cannot be read as a SQLite file"):
        imported(base, tmp_path / "g.oc")


def test_keys_that_lead_nowhere_are_named(base, tmp_path):
    with_finite(base)
    with closing(sqlite3.connect(base)) as made, made:
        made.execute('UPDATE "Order" SET parent = 999 WHERE id = 10')
    with pytest.raises(
        oc.ArgumentError, match=r"'Order', row 1 .*'parent' names node 999, which .*'Order' does not list"
    ):
        imported(base, tmp_path / "g.oc")
    with closing(sqlite3.connect(base)) as made, made:
        made.execute("CREATE TABLE Odd (x REFERENCES Gone)")
    with pytest.raises(
        oc.ArgumentError, match=r"'Odd'.*: column 'x' refers to a table 'Gone', which is not there"
    ):
        imported(base, tmp_path / "g.oc")


def test_chinook_has_every_declared_key(tmp_path):
    path = shared_path("chinook", "Chinook_Sqlite.sqlite")
    graph = imported(path.parent, tmp_path / "g.oc", memory="16MiB")
    sizes = {one.name: one.num_nodes for one in graph.node_types}
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as asked:
        for name, size in sizes.items():
            assert asked.execute(f"SELECT count(*) FROM {name}").fetchone() == (size,)
        for one in graph.edge_types[:9]:
            column, key = one.relation.removeprefix("f2p_"), f"{one.target.name}Id"
            keys = rows_of(asked, one.target.name, key)
            edges = referring(asked, keys, one.source.name, column)
            assert np.array_equal(graph.edge_index(one), edges), one.key
        tracks, lists = rows_of(asked, "Track", "TrackId"), rows_of(asked, "Playlist", "PlaylistId")
        pairs = asked.execute("SELECT PlaylistId, TrackId FROM PlaylistTrack")
        on = np.array([(lists.index(a), tracks.index(b)) for a, b in pairs]).T
        assert np.array_equal(graph.edge_index(("Playlist", "PlaylistTrack", "Track")), in_order(on))
        columns = [rows_of(asked, "Track", name) for name in ("Milliseconds", "Bytes", "UnitPrice")]
    number = next(one.number for one in graph.node_types if one.name == "Track")
    assert np.allclose(read(graph, f"n{number}.features"), standardised(columns), atol=1e-5)
    assert len(graph.edge_types) == 20


def test_northwind_is_shown_a_guess_that_works(tmp_path):
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "Northwind_small.sqlite").symlink_to(shared_path("northwind", "Northwind_small.sqlite"))
    with pytest.raises(oc.ArgumentError, match=r"to be corrected:\n\ndatabase = ") as refused:
        imported(folder, tmp_path / "g.oc")
    text = str(refused.value).partition("\n\n")[2]
    (folder / "tables.toml").write_text(text)
    with pytest.raises(oc.ArgumentError, match=r"'CustomerId' names node 'DUMO'.*unknown_keys"):
        imported(folder, tmp_path / "g.oc")
    (folder / "tables.toml").write_text(
        text.replace('name = "Order"\n', 'name = "Order"\nunknown_keys = "none"\n')
    )
    graph = imported(folder, tmp_path / "g.oc")
    counts = {" ".join(one.key): one.num_edges for one in graph.edge_types}
    assert counts["Order f2p_CustomerId Customer"] == 801
    assert counts["Territory rev_f2p_TerritoryId EmployeeTerritory"] == 49
    assert {one.name: one.num_nodes for one in graph.node_types}["CustomerDemographic"] == 0


def test_tables_of_many_columns(tmp_path: Path) -> None:
    """As many as SQLite allows."""
    count, rows = 1998, 4
    names = [f"c{i}" for i in range(count)]
    cells = np.arange(rows * count).reshape(rows, count) * 0.5
    path = tmp_path / "wide.sqlite"
    with closing(sqlite3.connect(path)) as made, made:
        columns = ", ".join(names)
        made.execute(f"CREATE TABLE Wide (id INTEGER PRIMARY KEY, next INTEGER REFERENCES Wide, {columns})")
        for row in range(rows):
            values = ", ".join(map(str, cells[row]))
            made.execute(f"INSERT INTO Wide VALUES ({row}, NULL, {values})")
    graph = imported(path, tmp_path / "g.oc", memory="64MiB")
    with Runtime() as runtime:
        found = np.array(graph.open_rows(runtime, graph.row_files[0]).memmap())
    np.testing.assert_allclose(found, standardised(cells.T.tolist()), rtol=1e-5, atol=1e-5)
