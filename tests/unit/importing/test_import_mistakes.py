"""A cell that is wrong in a table is named by file, line or row, column and value, whichever file it is in."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.graph import import_graph
from outcrop.runtime import memory_tables
from support import new_runtime

NODES, SPOILED = 50, 12
SCHEMES = {
    "plain": list(range(NODES)),
    "sparse": [1000 + 7 * i for i in range(NODES)],
    "text": [f"person-{i:03d}" for i in range(NODES)],
}
TABLES = ("edges", "features", "labels", "splits", "nodes")


def tables_of(ids: list[Any], with_nodes: bool) -> dict[str, dict[str, list[Any]]]:
    """A ring of nodes; features, labels and splits by id."""
    tables = {
        "edges": {"src": list(ids), "dst": [*ids[1:], ids[0]]},
        "features": {"id": list(ids), "f0": [0.5 + i for i in range(NODES)], "f1": [1.0] * NODES},
        "labels": {"id": ids[::2], "label": [i % 3 for i in range(0, NODES, 2)]},
        "splits": {"id": ids[::2], "split": ["train"] * (NODES // 2)},
    }
    return {**tables, "nodes": {"id": list(ids), "note": ["-"] * NODES}} if with_nodes else tables


def write(folder: Path, tables: dict[str, dict[str, list[Any]]], suffix: str) -> None:
    folder.mkdir()
    for name, columns in tables.items():
        if suffix == "parquet":
            # A column of Parquet has one type: where one cell is text, all are.
            fixed = {
                c: [v if v is None else str(v) for v in values]
                if any(isinstance(v, str) for v in values)
                else values
                for c, values in columns.items()
            }
            pq.write_table(pa.table(fixed), folder / f"{name}.parquet")
            continue
        lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        # An editor counts comments and empty lines, too.
        text = ["# by hand", *lines[:5], "", *lines[5:]]
        (folder / f"{name}.csv").write_text("\n".join(text) + "\n")


def failure(folder: Path) -> str:
    with pytest.raises((ArgumentError, FormatError)) as failed:
        import_graph(f"arrays:{folder}", folder.parent / "graph", new_runtime("32MiB"))
    assert not (folder.parent / "graph").exists()
    return str(failed.value)


def place(folder: Path, table: str, column: str, row: int, suffix: str) -> str:
    """Where the cell is, as somebody finds it who opens the file."""
    if suffix == "parquet":
        return f"{folder / table}.parquet, row {row} (the first is 0), column '{column}'"
    lines = (folder / f"{table}.csv").read_text().splitlines()
    rows = [number for number, line in enumerate(lines, 1) if line and not line.startswith("#")]
    return f"{folder / table}.csv, line {rows[row + 1]}, column '{column}'"


WRONG = [(scheme, wrong) for scheme in ("plain", "sparse") for wrong in ("12x", 12.5, 99999)]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("scheme", "wrong"), [*WRONG, ("text", "persn-012")])
def test_an_id_that_is_wrong_is_named(
    tmp_path: Path, table: str, scheme: str, wrong: Any, suffix: str
) -> None:
    tables = tables_of(SCHEMES[scheme], table == "nodes")
    column = "src" if table == "edges" else "id"
    if wrong == 12.5 and suffix == "parquet":
        tables[table][column] = [float(i) for i in tables[table][column]]
    tables[table][column][SPOILED] = wrong
    write(tmp_path / "in", tables, suffix)
    message = failure(tmp_path / "in")
    if (scheme, wrong) == ("sparse", 99999) and table in ("features", "nodes"):
        # Any integer may be right there: the message has the cell that misses a node, and the table that lacks it.
        assert str(tmp_path / "in" / table) in message
        table, column = ("edges", "src") if table == "features" else ("features", "id")
        wrong = SCHEMES[scheme][SPOILED]
    where = place(tmp_path / "in", table, column, SPOILED, suffix)
    assert where in message
    assert re.search(rf"{re.escape(str(wrong))}\b", message.replace(where, "")), message
    assert re.search(r"correct it|is the mistake in", message), message


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("table", TABLES)
def test_an_empty_id_is_named(tmp_path: Path, table: str, scheme: str, suffix: str) -> None:
    tables = tables_of(SCHEMES[scheme], table == "nodes")
    column = "src" if table == "edges" else "id"
    tables[table][column][SPOILED] = None if suffix == "parquet" else ""
    write(tmp_path / "in", tables, suffix)
    message = failure(tmp_path / "in")
    assert f"{place(tmp_path / 'in', table, column, SPOILED, suffix)} is empty; every row needs" in message


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("table", ["features", "labels", "nodes"])
def test_an_id_that_is_listed_twice_is_named_with_both_rows(
    tmp_path: Path, table: str, scheme: str, suffix: str
) -> None:
    tables = tables_of(SCHEMES[scheme], table == "nodes")
    twice = tables[table]["id"][3]
    tables[table]["id"][SPOILED] = twice
    write(tmp_path / "in", tables, suffix)
    message = failure(tmp_path / "in")
    assert message.startswith(place(tmp_path / "in", table, "id", SPOILED, suffix))
    first = place(tmp_path / "in", table, "id", 3, suffix).split(", ")[1]
    numbers = scheme != "text" and not (scheme == "sparse" and table == "labels")
    node = str(twice) if numbers else repr(str(twice))
    assert f"node {node} is listed twice, first in {first}: " in message


@pytest.mark.parametrize("again", ["train", "Val"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_node_in_two_splits_is_named_with_both_rows(
    tmp_path: Path, scheme: str, suffix: str, again: str
) -> None:
    tables = tables_of(SCHEMES[scheme], True)
    twice = tables["splits"]["id"][3]
    tables["splits"]["id"][SPOILED] = twice
    tables["splits"]["split"][SPOILED] = again
    write(tmp_path / "in", tables, suffix)
    first, second = (place(tmp_path / "in", "splits", "id", row, suffix) for row in (3, SPOILED))
    node = repr(str(twice)) if scheme != "plain" else str(twice)
    said = {
        "train": f"split train lists node {node} twice",
        "Val": f"node {node} is in split train and in split valid",
    }
    assert failure(tmp_path / "in") == f"{second}: {said[again]}, first in {first}: keep one of them"


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("names", [False, True])
def test_a_node_in_two_arrays_of_splits_is_named_with_both_rows(
    tmp_path: Path, mask: bool, names: bool
) -> None:
    ids = SCHEMES["text" if names else "sparse"]
    write(tmp_path / "in", {"nodes": {"id": ids}, "edges": {"src": ids, "dst": ids}}, "csv")
    nodes = np.array([4, 9, 2])
    train = np.isin(np.arange(NODES), nodes) if mask else np.array(ids)[nodes] if names else nodes
    np.save(tmp_path / "in" / "train.npy", train)
    np.save(tmp_path / "in" / "val.npy", np.array([ids[7], ids[9]]) if names else np.array([7, 9]))
    node = repr(ids[9]) if names else "9"
    assert failure(tmp_path / "in") == (
        f"{tmp_path / 'in' / 'val.npy'}, row 1 (the first is 0): node {node} is in split train and in split valid, "
        f"first in {tmp_path / 'in' / 'train.npy'}, row {9 if mask else 1} (the first is 0): keep one of them"
    )
    if not mask and not names:
        np.save(tmp_path / "in" / "val.npy", np.array([7, NODES]))
        assert failure(tmp_path / "in").startswith(
            f"{tmp_path / 'in' / 'val.npy'}, row 1 (the first is 0): split valid lists node {NODES}, but there are"
        )
        assert "if it is an id, list ids in a table 'splits'" in failure(tmp_path / "in")


def test_integers_of_splits_are_said_to_be_no_ids_where_nodes_have_others(tmp_path: Path) -> None:
    """They may be in the range of both, and nothing else would tell the user."""
    for scheme, ids in SCHEMES.items():
        folder = tmp_path / scheme
        tables = tables_of(ids, False)
        del tables["splits"]
        write(folder, tables, "csv")
        np.save(folder / "train.npy", np.arange(20))
        np.save(folder / "test.npy", np.arange(NODES) >= 40)  # a mask says what it means
        notes = import_graph(f"arrays:{folder}", tmp_path / f"{scheme}.oc", new_runtime()).notes
        about = [note for note in notes if "taken for the numbers of nodes" in note]
        assert len(about) == (scheme == "sparse")
        if about:
            assert about[0].startswith(
                f"{folder / 'train.npy'}: integers are taken for the numbers of nodes, 0 to 49"
            )


def test_whole_numbers_that_may_be_targets_are_said_to_be_so(tmp_path: Path) -> None:
    write(tmp_path / "in", tables_of(SCHEMES["plain"], False), "csv")
    (tmp_path / "in" / "labels.csv").unlink()
    np.save(tmp_path / "in" / "labels.npy", np.arange(NODES) - 7.0)
    said = failure(tmp_path / "in")
    assert "row 0 is -7; classes count from 0" in said
    assert "--label-kind regression" in said


def test_a_node_in_two_masks_of_an_archive_is_named(tmp_path: Path) -> None:
    masks = np.eye(3, NODES, dtype=bool)[:, None]
    masks[2, 0, 1] = True
    named = dict(zip(("train_masks", "val_masks", "test_masks"), masks, strict=True))
    rows, edges = np.ones((NODES, 2)), np.zeros((1, 2), int)
    np.savez(tmp_path / "a.npz", edges=edges, node_features=rows, node_labels=np.arange(NODES), **named)
    with pytest.raises(ArgumentError) as failed:
        import_graph(f"npz:{tmp_path / 'a.npz'}", tmp_path / "graph", new_runtime("32MiB"))
    assert str(failed.value) == (
        f"{tmp_path / 'a.npz'} test mask, row 1 (the first is 0): node 1 is in split valid and in split test, first in "
        f"{tmp_path / 'a.npz'} valid mask, row 1 (the first is 0): keep one of them"
    )


@pytest.mark.parametrize("wrong", [-0.5, float("inf")])
@pytest.mark.parametrize("source", ["arrays", "edges"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_an_impossible_weight_is_named(tmp_path: Path, suffix: str, source: str, wrong: float) -> None:
    tables: dict[str, dict[str, list[Any]]] = {
        "edges": {
            "src": list(range(NODES)),
            "weight": [0.5] * NODES,
            "dst": [(i + 1) % NODES for i in range(NODES)],
        }
    }
    tables["edges"]["weight"][SPOILED] = wrong
    write(tmp_path / "in", tables, suffix)
    where = place(tmp_path / "in", "edges", "weight", SPOILED, suffix)
    file = tmp_path / "in" / (f"edges.{suffix}" if source == "edges" else "")
    with pytest.raises(ArgumentError) as failed:
        import_graph(f"{source}:{file}", tmp_path / "graph", new_runtime("32MiB"))
    assert str(failed.value).startswith(
        f"{where} is {wrong}; weights are finite numbers and not negative: correct it"
    )


@pytest.mark.parametrize("side", ["src", "dst"])
@pytest.mark.parametrize("suffix", ["csv", "parquet", "npy"])
@pytest.mark.parametrize(
    ("options", "wrong"), [({}, -1), ({"num_nodes": NODES}, -1), ({"num_nodes": NODES}, NODES)]
)
def test_an_end_of_an_edge_out_of_range_is_named(
    tmp_path: Path, suffix: str, side: str, options: dict[str, int], wrong: int
) -> None:
    ends = {"src": list(range(NODES)), "dst": [(i + 1) % NODES for i in range(NODES)]}
    ends[side][SPOILED] = wrong
    path = tmp_path / "in" / f"edges.{suffix}"
    if suffix == "npy":
        path.parent.mkdir()
        np.save(path, np.array([ends["src"], ends["dst"]]))
        where = f"{path}, edge {SPOILED} (the first is 0)"
    else:
        write(path.parent, {"edges": ends}, suffix)
        where = place(path.parent, "edges", side, SPOILED, suffix).rpartition(", column")[0]
    for source in (f"arrays:{path.parent}", f"edges:{path}"):
        with pytest.raises(ArgumentError) as failed:
            import_graph(source, tmp_path / "graph", new_runtime("32MiB"), **options)
        assert re.match(rf"{re.escape(where)}(, column '{side}')? names node {wrong}, ", str(failed.value))


def test_the_weight_of_an_edge_that_is_dropped_does_not_matter(tmp_path: Path) -> None:
    tables: dict[str, dict[str, list[Any]]] = {"edges": {"src": [0, 1], "dst": [1, 1], "weight": [1.0, -1.0]}}
    write(tmp_path / "in", tables, "csv")
    graph = import_graph(
        f"arrays:{tmp_path / 'in'}", tmp_path / "graph", new_runtime("32MiB"), keep_self_loops=False
    )
    assert graph.num_edges == 1


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(("wrong", "says"), [("abc", "'abc' is "), (None, " is empty")])
def test_a_feature_that_is_no_number_is_named(tmp_path: Path, suffix: str, wrong: Any, says: str) -> None:
    tables = tables_of(SCHEMES["sparse"], False)
    tables["features"]["f1"][SPOILED] = "" if wrong is None and suffix == "csv" else wrong
    write(tmp_path / "in", tables, suffix)
    message = failure(tmp_path / "in")
    assert place(tmp_path / "in", "features", "f1", SPOILED, suffix) in message
    assert says in message


@pytest.mark.parametrize("word", ["NA", "nan", "null", "n/a"])
def test_a_word_for_no_value_is_shown(tmp_path: Path, word: str) -> None:
    """It is not called empty, and no row of features can be removed: each node needs one."""
    tables = tables_of(SCHEMES["sparse"], False)
    tables["features"]["f1"][SPOILED] = word
    write(tmp_path / "in", tables, "csv")
    message = failure(tmp_path / "in")
    where = place(tmp_path / "in", "features", "f1", SPOILED, "csv")
    assert message.startswith(f"{where} holds {word.strip()!r}, which stands for no value")
    assert "write a number there" in message
    assert "remove" not in message


def test_a_word_for_no_value_after_a_blank_is_text(tmp_path: Path) -> None:
    tables = tables_of(SCHEMES["sparse"], False)
    tables["features"]["f1"][SPOILED] = " n/a"
    write(tmp_path / "in", tables, "csv")
    where = place(tmp_path / "in", "features", "f1", SPOILED, "csv")
    assert failure(tmp_path / "in").startswith(f"{where}: ' n/a' is no number")


@pytest.mark.parametrize(("missing", "guessed"), [("p060", None), ("q012x", None), ("pp012", "p012")])
def test_only_what_may_be_meant_is_guessed(tmp_path: Path, missing: str, guessed: str | None) -> None:
    """Of ids with numbers those with another number are other nodes, not mistyped ones."""
    tables = tables_of([f"p{i:03d}" for i in range(NODES)], True)
    tables["edges"]["src"][SPOILED] = missing
    write(tmp_path / "in", tables, "csv")
    message = failure(tmp_path / "in")
    assert f"names node {missing!r}, which" in message
    assert ("nearly the same" in message) == (guessed is not None)
    assert guessed is None or f"{guessed!r} is nearly the same" in message


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("table", ["edges", "splits", "labels", "features"])
def test_a_blank_at_the_end_of_an_id_is_seen(tmp_path: Path, table: str, suffix: str) -> None:
    tables = tables_of([f"p{i:02d}" for i in range(NODES)], True)
    column = "src" if table == "edges" else "id"
    tables[table][column][SPOILED] += " "
    spoiled = tables[table][column][SPOILED]
    write(tmp_path / "in", tables, suffix)
    message = failure(tmp_path / "in")
    assert f"names node {spoiled!r}, which" in message
    assert f"{spoiled.strip()!r} is the same but for blanks?" in message


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_values_are_named_where_their_rows_are_in_another_order(tmp_path: Path, suffix: str) -> None:
    order = np.random.default_rng(0).permutation(NODES)
    tables = tables_of(SCHEMES["plain"], False)
    tables["features"] = {"id": order.tolist(), "f0": [1.0] * NODES, "f1": [2.0] * NODES}
    tables["features"]["f1"][SPOILED] = float("inf")
    tables["labels"] = {"id": order.tolist(), "label": [1] * NODES}
    write(tmp_path / "in", tables, suffix)
    where = place(tmp_path / "in", "features", "f1", SPOILED, suffix)
    assert failure(tmp_path / "in").startswith(f"{where} is not finite")
    tables["features"]["f1"][SPOILED] = 2.0
    tables["labels"]["label"][SPOILED] = -7
    write(tmp_path / "labels", tables, suffix)
    where = place(tmp_path / "labels", "labels", "label", SPOILED, suffix)
    assert failure(tmp_path / "labels").startswith(f"{where} is -7; classes count from 0")


@pytest.mark.parametrize(
    ("table", "column", "wrong", "says"),
    [
        ("edges", "src", "12x", "'12x' is no integer"),
        ("edges", "dst", "0.5", "'0.5' is no integer"),
        ("features", "f0", "abc", "'abc' is no number"),
        ("features", "id", "12x", "'12x' is no integer"),
    ],
)
def test_cells_far_down_are_named(
    tmp_path: Path, table: str, column: str, wrong: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below what decided of which type the column is."""
    monkeypatch.setattr(memory_tables, "READ_BLOCK", replace(memory_tables.READ_BLOCK, most=64 << 10))
    count = 30_000
    tables = {
        "edges": {"src": [7 * i for i in range(count)], "dst": [0] * count},
        "features": {"id": [7 * i for i in range(count)], "f0": [0.25] * count},
    }
    values: list[Any] = tables[table][column]
    values[count - 3] = wrong
    write(tmp_path / "in", tables, "csv")
    assert failure(tmp_path / "in").startswith(
        f"{place(tmp_path / 'in', table, column, count - 3, 'csv')}: {says}"
    )


def test_a_line_with_another_number_of_cells_is_named(tmp_path: Path) -> None:
    write(tmp_path / "in", tables_of(SCHEMES["plain"], False), "csv")
    path = tmp_path / "in" / "edges.csv"
    lines = path.read_text().splitlines()
    lines[20] += ",3"
    path.write_text("\n".join(lines))
    assert failure(tmp_path / "in").startswith(
        f"{path}, line 21: Expected 2 columns, got 3: correct the line"
    )


def test_a_line_with_another_number_of_cells_behind_a_huge_cell_is_named(tmp_path: Path) -> None:
    """Python's reader, which looks for the line, takes no cell that is so long; Arrow's has said what is wrong."""
    write(tmp_path / "in", tables_of(SCHEMES["plain"], False), "csv")
    features = tmp_path / "in" / "features.csv"
    lines = [f"{row},2,3" for row in range(NODES)]
    features.write_text("\n".join(["id,f0,f1", *lines * 2000, "1," + "9" * 140_000 + ",3", "1,2,3,4", ""]))
    assert str(features) in failure(tmp_path / "in")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_labels_whose_ids_have_another_name_are_not_taken_by_position(tmp_path: Path, suffix: str) -> None:
    tables = tables_of(SCHEMES["text"], False)
    tables["labels"] = {"user": SCHEMES["text"][::-1], "label": [i % 3 for i in range(NODES)]}
    write(tmp_path / "in", tables, suffix)
    message = failure(tmp_path / "in")
    assert message.startswith(
        f"{tmp_path / 'in' / 'labels'}.{suffix} has no column 'id', and nodes have ids: call the column"
    )
    assert "(there are user, label), or leave user out" in message
    tables["labels"] = {"label": [i % 3 for i in range(NODES)]}  # by position, plainly
    write(tmp_path / "rows", tables, suffix)
    graph = import_graph(f"arrays:{tmp_path / 'rows'}", tmp_path / "graph", new_runtime("32MiB"))
    labels = graph.array(new_runtime("32MiB"), "labels").memmap()
    assert np.array_equal(labels, np.arange(NODES) % 3)


@pytest.mark.parametrize("how", ["byte order mark", "semicolons"])
def test_tables_as_spreadsheets_write_them(tmp_path: Path, how: str) -> None:
    for scheme in ("plain", "text"):
        write(tmp_path / scheme, tables_of(SCHEMES[scheme], False), "csv")
        plain = import_graph(
            f"arrays:{tmp_path / scheme}", tmp_path / f"{scheme}.plain", new_runtime("32MiB")
        )
        for path in (tmp_path / scheme).glob("*.csv"):
            text = path.read_text()
            if how == "semicolons":
                path.write_text(text.replace(",", ";").partition("\n")[2])  # a comment first has no delimiter
            else:
                path.write_text("\ufeff" + text.partition("\n")[2])
        graph = import_graph(
            f"arrays:{tmp_path / scheme}", tmp_path / f"{scheme}.sheet", new_runtime("32MiB")
        )
        assert graph.digest() == plain.digest()
