"""Columns of words as features of tables with keys, against pandas.get_dummies."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import outcrop as oc
from outcrop.importing.graph import import_graph
from outcrop.importing.sources import tables as table_module
from outcrop.importing.sources.tables_folder import open_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph

ROWS = 60
RANDOM = np.random.default_rng(0)
TABLE = {
    "id": [f"u{i}" for i in range(ROWS)],
    "age": RANDOM.random(ROWS),
    "land": RANDOM.choice(["de", "Österreich", "b b", None], ROWS).tolist(),
    "level": [float(i % 4) if i % 5 else None for i in range(ROWS)],
    "paid": (RANDOM.random(ROWS) < 0.5).tolist(),
    "part": RANDOM.choice(["train", "valid", "test"], ROWS).tolist(),
}
LINKS = {
    "a": [f"u{i}" for i in RANDOM.integers(0, ROWS, 80)],
    "b": [f"u{i % ROWS}" if i % 9 else None for i in range(80)],
    "how": RANDOM.choice(["mail", "phone"], 80).tolist(),
    "hours": RANDOM.random(80),
}
TOML = """
[[tables]]
name = "user"
file = "user.{suffix}"
key = "id"
split = "part"
categories = {categories}
{more}

[[links]]
file = "calls.{suffix}"
source = "user"
relation = "calls"
target = "user"
"""


def write(folder: Path, suffix: str, categories: str, more: str = "", links: str = "") -> None:
    folder.mkdir(exist_ok=True)
    for name, columns in (("user", TABLE), ("calls", LINKS)):
        frame = pd.DataFrame(columns)
        if suffix == "csv":
            frame.to_csv(folder / f"{name}.csv", index=False)
        else:
            table = pa.table(columns)
            if name == "user":  # as pandas writes a category
                land = table["land"].combine_chunks().dictionary_encode()
                table = table.set_column(table.schema.get_field_index("land"), "land", land)
            pq.write_table(table, folder / f"{name}.parquet", row_group_size=7)
    text = TOML.format(suffix=suffix, categories=categories, more=more) + links
    (folder / "tables.toml").write_text(text)


def imported(folder: Path) -> Graph:
    with Runtime() as runtime:
        return import_graph(f"tables:{folder}", folder / "g.oc", runtime)


def rows(graph: Graph, number: int = 0) -> np.ndarray:
    with Runtime() as runtime:
        file = graph.row_files[number]
        found = np.array(graph.open_rows(runtime, file).memmap())
        return found if file.decoder is None else file.decoder.values(found, runtime.workers)


def standardised(values: pd.Series) -> np.ndarray:
    return ((values - values.mean()) / values.std(ddof=0)).fillna(0).to_numpy(np.float32)


def dummies(values: pd.Series) -> np.ndarray:
    return (
        pd.get_dummies(values.dropna().astype(str))
        .reindex(values.index, fill_value=False)
        .to_numpy(np.float32)
    )


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_words_become_columns(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside numbers; whole numbers and truth values may stand for kinds, an empty cell has none of the words."""
    monkeypatch.setattr(table_module, "block_bytes", lambda *_: 500)
    write(tmp_path / "t", suffix, '["land", "level", "paid"]')
    graph = imported(tmp_path / "t")
    frame = pd.DataFrame(TABLE)
    level = frame["level"].map(
        lambda x: None if pd.isna(x) else str(x).removesuffix(".0") if suffix == "parquet" else str(x)
    )
    paid = frame["paid"].map(
        {True: "true", False: "false"} if suffix == "parquet" else {True: "True", False: "False"}
    )
    expected = [standardised(frame["age"])[:, None], dummies(frame["land"]), dummies(level), dummies(paid)]
    np.testing.assert_allclose(rows(graph), np.concatenate(expected, 1), atol=1e-6)
    notes = " ".join(graph.notes)
    assert (
        "features are age (standardised); words became columns of 0 and 1: land 3, level 4, paid 2" in notes
    )


def test_words_alone_of_edges_and_nodes(tmp_path: Path) -> None:
    links = 'features = ["hours"]\ncategories = ["how"]\n'
    write(tmp_path / "t", "parquet", '["land", "land"]', "features = []", links)
    graph = imported(tmp_path / "t")
    np.testing.assert_array_equal(rows(graph), dummies(pd.DataFrame(TABLE)["land"]))
    frame = pd.DataFrame(LINKS)
    kept = frame[frame["b"].notna()]
    hours = ((frame["hours"] - frame["hours"].mean()) / frame["hours"].std(ddof=0))[kept.index].to_numpy(
        np.float32
    )
    expected = np.concatenate([hours[:, None], dummies(kept["how"])], 1)
    edges = graph.edge_index(("user", "calls", "user"))
    ends = np.stack([kept[end].str[1:].astype(int) for end in ("a", "b")])
    order = np.lexsort(np.concatenate([expected.T, ends[:1], ends[1:]]))
    found = rows(graph, 1)
    mine = np.lexsort(np.concatenate([found.T, edges[:1], edges[1:]]))
    np.testing.assert_array_equal(edges[:, mine], ends[:, order])
    np.testing.assert_allclose(found[mine], expected[order], atol=1e-6)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_many_words_stay_within_the_budget(tmp_path: Path, suffix: str) -> None:
    """Text is read in blocks of bytes: each becomes as many rows at a time as were asked for, of nodes and of edges."""
    folder, count, words = tmp_path / "t", 20_000, 400
    folder.mkdir()
    for name, columns in (
        ("user", {"id": range(count), "word": [f"w{i % words}" for i in range(count)]}),
        ("calls", {"a": [0] * count, "b": [1] * count, "how": [f"w{i % words}" for i in range(count)]}),
    ):
        frame = pd.DataFrame(columns)
        frame.to_csv(folder / f"{name}.csv", index=False) if suffix == "csv" else frame.to_parquet(
            folder / f"{name}.parquet"
        )
    text = TOML.format(suffix=suffix, categories='["word"]', more="").replace('split = "part"\n', "")
    (folder / "tables.toml").write_text(text + 'categories = ["how"]\n')
    with Runtime() as runtime:
        source = open_tables(folder, runtime)
        for features in (source.nodes[0].features, source.edges[0].features):
            assert features is not None
            seen = 0
            for block in features.blocks(300):
                assert block.shape[0] <= 300
                assert np.array_equal(np.flatnonzero(block)[:, None] % words, WORDS[seen : seen + len(block)])
                seen += len(block)
            assert seen == count


ORDER = np.argsort(np.argsort([f"w{i}" for i in range(400)], kind="stable"))
WORDS = np.tile(ORDER, 50)[:, None]


@pytest.mark.parametrize("links", ['categories = ["how"]\n', "features = []\n"])
def test_edges_without_a_word_have_no_rows(tmp_path: Path, links: str) -> None:
    write(tmp_path / "t", "parquet", "[]", links=links)
    table = pq.read_table(tmp_path / "t" / "calls.parquet")
    empty = pa.nulls(len(table), pa.string())
    pq.write_table(table.set_column(2, "how", empty), tmp_path / "t" / "calls.parquet")
    assert len(imported(tmp_path / "t").row_files) == 1


def test_words_for_no_value_are_words_of_categories(tmp_path: Path) -> None:
    """As the country code of Namibia; of numbers they stand for none, and of all columns where that is said."""
    write(tmp_path / "t", "csv", '["land"]')
    frame = pd.DataFrame(TABLE)
    frame["land"] = frame["land"].fillna(" NA")
    frame.to_csv(tmp_path / "t" / "user.csv", index=False)
    frame["land"] = frame["land"].str.strip()
    np.testing.assert_array_equal(rows(imported(tmp_path / "t"))[:, -4:], dummies(frame["land"]))
    text = (tmp_path / "t" / "tables.toml").read_text()
    (tmp_path / "t" / "tables.toml").write_text(text.replace('key = "id"', 'key = "id"\nnull = ["NA"]'))
    with Runtime() as runtime:
        graph = import_graph(f"tables:{tmp_path / 't'}", tmp_path / "n.oc", runtime)
    np.testing.assert_array_equal(rows(graph)[:, -3:], dummies(frame["land"].replace("NA", None)))


def test_words_of_a_database(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    write(folder, "csv", '["land"]')
    with closing(sqlite3.connect(folder / "shop.sqlite")) as base:
        frame = pd.DataFrame(TABLE).assign(level=None)
        frame.to_sql("user", base, index=False)
    text = 'database = "shop.sqlite"\n' + (folder / "tables.toml").read_text()
    (folder / "tables.toml").write_text(text.replace('file = "user.csv"', ""))
    np.testing.assert_array_equal(rows(imported(folder))[:, -3:], dummies(frame["land"]))


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    write(tmp_path / "t", "csv", "[]")
    notes = " ".join(imported(tmp_path / "t").notes)
    assert "not imported: land, paid" in notes
    assert "columns of words are features where tables.toml lists them: categories = [...]" in notes


@pytest.mark.parametrize(
    ("categories", "more", "message"),
    [
        ('["gone"]', "", r"categories names column 'gone', which .*user\.csv does not have"),
        (
            '["land"]',
            'features = ["age", "land"]',
            "categories and features name column 'land': keep one of them",
        ),
        ('["part"]', "", "categories and split name column 'part'"),
        ('["id"]', "", "categories and key name column 'id'"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, categories: str, more: str, message: str) -> None:
    write(tmp_path / "t", "csv", categories, more)
    with pytest.raises(oc.ArgumentError, match=message):
        imported(tmp_path / "t")


def test_too_many_words(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    write(folder, "parquet", '["land"]')
    columns = {**TABLE, "id": [f"u{i}" for i in range(1001)], "land": [f"{i}" for i in range(1001)]}
    columns = {
        name: (list(cells) * 17)[:1001] if len(cells) != 1001 else cells for name, cells in columns.items()
    }
    pq.write_table(pa.table(columns), folder / "user.parquet")
    with pytest.raises(
        oc.FormatError, match=r"column 'land' holds more than 1,000 different words.*leave it out"
    ):
        imported(folder)


def test_lists_have_no_words(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    write(folder, "parquet", '["land"]')
    pq.write_table(pa.table({**TABLE, "land": [[1]] * ROWS}), folder / "user.parquet")
    with pytest.raises(oc.FormatError, match=r"holds list<.*no words"):
        imported(folder)


def test_words_among_features_lead_to_categories(tmp_path: Path) -> None:
    write(tmp_path / "t", "csv", "[]", 'features = ["land"]')
    with pytest.raises(oc.FormatError, match=r"is no number.*named in categories"):
        imported(tmp_path / "t")
