"""Importing knowledge graphs, against plain Python over the lines of the files."""

from __future__ import annotations

import csv
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from outcrop.api.graph import import_triples as import_from_api
from outcrop.cli.main import app
from outcrop.errors import (
    ArgumentError,
    BudgetError,
    ChecksumError,
    FormatError,
    OutcropError,
    OutcropWarning,
)
from outcrop.importing.sources.kinds import kind_of_path
from outcrop.importing.triples import import_triples
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph
from outcrop.store.triples import Triples, open_triples
from outcrop.store.verify import describe, verify_artifact
from support import shared_path

SPLITS = ("train", "valid", "test")
Named = list[tuple[str, ...]]


def write(folder: Path, ending: str = "txt", delimiter: str = "\t", **splits: Named) -> Path:
    folder.mkdir(exist_ok=True)
    for split, triples in splits.items():
        text = "".join(delimiter.join(triple) + "\n" for triple in triples)
        (folder / f"{split}.{ending}").write_text(text, encoding="utf-8")
    return folder


def named(triples: Triples, runtime: Runtime, split: str) -> Named:
    """The stored triples with their names."""
    if not triples.count(split):
        return []
    entities, relations = (triples.names(runtime, kind) for kind in ("entity", "relation"))
    tables = [entities, relations, entities] if triples.width == 3 else [entities, entities]
    array = triples.array(runtime, split).read("test")
    assert array.dtype == np.uint32
    return [tuple(table[i] for table, i in zip(tables, row, strict=True)) for row in array.tolist()]


def check(folder: Path, out: Path, runtime: Runtime, splits: dict[str, Named]) -> Triples:
    triples = import_triples(str(folder), out, runtime)
    train = splits["train"]
    known = {name for triple in train for name in (triple[0], triple[-1])}
    relations = {triple[1] for triple in train if len(triple) == 3}
    for split, expected in splits.items():
        kept = [t for t in expected if {t[0], t[-1]} <= known and (len(t) == 2 or t[1] in relations)]
        assert named(triples, runtime, split) == kept
        if split != "train":
            assert triples.manifest.attributes[f"skipped_{split}"] == len(expected) - len(kept)
    assert (triples.num_entities, triples.num_relations) == (len(known), len(relations))
    assert len(set(triples.names(runtime, "entity"))) == len(known)
    verify_artifact(out, runtime)
    return triples


TRAIN: Named = [("a", "likes", "b"), ("b", "likes", "c"), ("c", "is", "c"), ("a", "likes", "b")]


@pytest.mark.parametrize(("ending", "delimiter"), [("txt", "\t"), ("txt", " "), ("tsv", "\t"), ("csv", ",")])
def test_text(tmp_path: Path, runtime: Runtime, ending: str, delimiter: str) -> None:
    splits = {"train": TRAIN, "valid": [("c", "likes", "a")], "test": [("b", "is", "a")]}
    check(write(tmp_path / "in", ending, delimiter, **splits), tmp_path / "out", runtime, splits)


def test_numbers_and_quotes_are_names(tmp_path: Path, runtime: Runtime) -> None:
    train = [
        ('"7', "0", "007"),
        ("7", "0", 'say "hi"'),
        ("Zürich, CH", "1", "#9"),
        ("null", "1", "NaN"),
        ("7", "x", "2.0"),
    ]
    check(write(tmp_path / "in", train=train), tmp_path / "out", runtime, {"train": train})


def test_edges_without_relations(tmp_path: Path, runtime: Runtime) -> None:
    splits: dict[str, Named] = {"train": [("1", "2"), ("2", "30"), ("30", "1")], "test": [("1", "30")]}
    triples = check(write(tmp_path / "in", **splits), tmp_path / "out", runtime, splits)
    assert triples.width == 2
    assert triples.names(runtime, "relation") == []


def test_parquet(tmp_path: Path, runtime: Runtime) -> None:
    (tmp_path / "in").mkdir()
    columns = list(zip(*TRAIN, strict=True))
    pq.write_table(
        pa.table(dict(zip("hrt", map(list, columns), strict=True))), tmp_path / "in" / "train.parquet"
    )
    check(tmp_path / "in", tmp_path / "out", runtime, {"train": TRAIN})
    numbers = pa.table({"s": [5, 6], "t": [6, 5]})
    pq.write_table(numbers, tmp_path / "in" / "train.parquet")
    check(tmp_path / "in", tmp_path / "out", runtime, {"train": [("5", "6"), ("6", "5")]})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(data=st.data())
def test_any_names_round_trip(tmp_path: Path, data: st.DataObject) -> None:
    name = st.text(
        st.characters(exclude_characters="\t\r\n", exclude_categories=("Cs",)), min_size=1, max_size=6
    )
    triples = st.lists(st.tuples(name, name, name), min_size=1, max_size=20)
    train = data.draw(triples)
    with Runtime() as runtime:
        check(write(tmp_path / "in", train=train), tmp_path / "out", runtime, {"train": train})


@pytest.mark.parametrize("name", ["val", "validation"])
def test_valid_has_other_names(tmp_path: Path, runtime: Runtime, name: str) -> None:
    splits = {"train": TRAIN, "valid": TRAIN[:2], "test": TRAIN[1:2]}
    folder = write(tmp_path / "in", **splits)
    (folder / "valid.txt").rename(folder / f"{name}.txt")
    check(folder, tmp_path / "out", runtime, splits)
    (folder / "valid.txt").write_text((folder / f"{name}.txt").read_text())
    with pytest.raises(ArgumentError, match=rf"holds valid.txt and {name}.txt: keep one of them"):
        import_triples(folder, tmp_path / "again", runtime)


def test_unknown_names(tmp_path: Path, runtime: Runtime) -> None:
    splits = {
        "train": TRAIN,
        "valid": [("a", "likes", "zoe"), ("a", "is", "b"), ("a", "hates", "b")],
        "test": [("q", "is", "a")],
    }
    folder = write(tmp_path / "in", **splits)
    with pytest.warns(OutcropWarning) as caught:
        check(folder, tmp_path / "out", runtime, splits)
    told = [str(warning.message).removeprefix(str(folder)) for warning in caught]
    assert [text.partition(" triples name")[0] for text in told] == [
        "/valid.txt: 2 of 3",
        "/test.txt: 1 of 1",
    ]
    with pytest.raises(
        ArgumentError, match=r"valid\.txt: row 1 names 'zoe', which .*train\.txt does not have"
    ):
        import_triples(str(folder), tmp_path / "strict", runtime, unknown="error")
    assert not (tmp_path / "strict").exists()
    with pytest.raises(ArgumentError, match="unknown is 'maybe': pass skip or error"):
        import_triples(str(folder), tmp_path / "strict", runtime, unknown="maybe")


@pytest.mark.parametrize(
    ("text", "error", "why"),
    [
        ("a\tr\tb\nc\tr\n", FormatError, r"train\.txt .*#2.*xpected 3 columns, got 2"),
        ("a\tr\tb\nc\tr\td\te\n", FormatError, r"train\.txt .*#2.*xpected 3 columns, got 4"),
        ("a\tr\tb\tx\n", FormatError, r"train\.txt has 4 columns: triples have three"),
        ("a\n", FormatError, r"train\.txt has 1 columns"),
        ("", ArgumentError, r"train\.txt holds no triples"),
    ],
)
def test_malformed_lines(
    tmp_path: Path, runtime: Runtime, text: str, error: type[Exception], why: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "train.txt").write_text(text)
    with pytest.raises(error, match=why):
        import_triples(str(tmp_path / "in"), tmp_path / "out", runtime)
    assert list(tmp_path.iterdir()) == [tmp_path / "in"]


def test_bad_sources(tmp_path: Path, runtime: Runtime) -> None:
    with pytest.raises(ArgumentError, match=r"holds no train\.txt"):
        import_triples(str(tmp_path), tmp_path / "out", runtime)
    folder = write(tmp_path / "in", train=TRAIN, valid=[("a", "b")])
    with pytest.raises(FormatError, match=r"valid\.txt has 2 columns"):
        import_triples(str(folder), tmp_path / "out", runtime)
    (folder / "valid.txt").write_bytes(b"\xff\xfe\t\xff\t\xff\n")
    with pytest.raises(FormatError, match=r"valid\.txt is not UTF-8 text"):
        import_triples(str(folder), tmp_path / "out", runtime)
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy" / "mine").touch()
    with pytest.raises(ArgumentError, match="in the way"):
        import_triples(str(folder), tmp_path / "busy", runtime)
    many = write(tmp_path / "many", train=[(f"entity number {i}", "r", "x") for i in range(30_000)])
    with Runtime("4MiB") as small, pytest.raises(BudgetError, match="node-names"):
        import_triples(str(many), tmp_path / "out", small)
    assert not (tmp_path / "out").exists()


def test_damage_is_found(tmp_path: Path, runtime: Runtime) -> None:
    import_triples(str(write(tmp_path / "in", train=TRAIN)), tmp_path / "out", runtime)
    assert describe(tmp_path / "out")["attributes"] == {"num_entities": 3, "num_relations": 2}
    names = tmp_path / "out" / "entity_names.bin"
    names.write_bytes(b"X" + names.read_bytes()[1:])
    with pytest.raises(ChecksumError, match="entity_names"):
        verify_artifact(tmp_path / "out", runtime)
    with pytest.raises(FormatError):
        open_triples(tmp_path / "in")


@pytest.mark.parametrize(
    ("name", "entities", "relations", "counts"),
    [
        ("FB15k-237", 14_505, 237, (272_115, 17_526, 20_438)),
        ("WN18RR", 40_559, 11, (86_835, 2_824, 2_924)),
        ("nations", 14, 55, None),
        ("umls", 135, 46, None),
    ],
)
def test_real_graphs(
    tmp_path: Path, name: str, entities: int, relations: int, counts: tuple[int, ...] | None
) -> None:
    folder = shared_path(name)
    lines = {s: (folder / f"{s}.txt").read_text(encoding="utf-8").splitlines() for s in SPLITS}
    splits: dict[str, Named] = {s: [tuple(line.split("\t")) for line in text] for s, text in lines.items()}
    with Runtime("32MiB") as runtime, warnings.catch_warnings():
        warnings.simplefilter("ignore", OutcropWarning)
        triples = check(folder, tmp_path / "out", runtime, splits)
    assert (triples.num_entities, triples.num_relations) == (entities, relations)
    if counts:
        assert tuple(triples.count(s) for s in SPLITS) == counts


def test_command_and_api(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", train=TRAIN, test=[("a", "is", "a")])
    options = ["import", f"triples:{folder}", str(tmp_path / "out"), "--json", str(tmp_path / "o.json")]
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "o.json").read_text())["attributes"]["num_entities"] == 3
    assert "num_relations" in done.output
    assert import_from_api(folder, tmp_path / "again").digest() == open_triples(tmp_path / "out").digest()


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (("head", "relation", "tail"), (0, 1, 2)),
        (("Source", "Target", "rel"), (0, 2, 1)),
        (("tail", "head", "relation"), (1, 2, 0)),
        (("subject", "object", "predicate"), (0, 2, 1)),
        (("to", "from"), (1, 0)),
    ],
)
@pytest.mark.parametrize("ending", ["tsv", "csv", "parquet"])
def test_columns_are_taken_by_their_names(
    tmp_path: Path, runtime: Runtime, ending: str, names: tuple[str, ...], order: tuple[int, ...]
) -> None:
    cells = [("a", "b", "c"), ("b", "c", "d"), ("d", "a", "b")]
    rows = [row[: len(names)] for row in cells]
    if ending == "parquet":
        columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        (tmp_path / "kg").mkdir()
        pq.write_table(pa.table(columns), tmp_path / "kg" / "train.parquet")
    else:
        write(tmp_path / "kg", ending, {"tsv": "\t", "csv": ","}[ending], train=[names, *rows])
    triples = import_triples(str(tmp_path / "kg"), tmp_path / "out", runtime)
    assert named(triples, runtime, "train") == [tuple(row[at] for at in order) for row in rows]
    told = (f"the first line of train.{ending} names its columns: {', '.join(names)}",)
    assert triples.notes == (() if ending == "parquet" else told)


def test_a_line_that_is_called_otherwise_is_a_triple(tmp_path: Path, runtime: Runtime) -> None:
    """Where one cell alone is a usual name, and in Parquet, whose columns then stand in the usual order."""
    rows = [("head", "part_of", "body"), ("tail", "part_of", "body")]
    write(tmp_path / "kg", train=rows)
    assert named(import_triples(str(tmp_path / "kg"), tmp_path / "out", runtime), runtime, "train") == rows
    (tmp_path / "p").mkdir()
    columns = dict(zip(("head", "x", "y"), map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns), tmp_path / "p" / "train.parquet")
    assert named(import_triples(str(tmp_path / "p"), tmp_path / "o", runtime), runtime, "train") == rows


def test_a_quote_that_is_not_closed_is_named(tmp_path: Path, runtime: Runtime) -> None:
    (tmp_path / "kg").mkdir()
    (tmp_path / "kg" / "train.csv").write_text('a,r,b\n"c d,r,e\nf,r,g\n')
    with pytest.raises(FormatError, match=r"train\.csv.*a quote that is not closed.*as \.tsv"):
        import_triples(str(tmp_path / "kg"), tmp_path / "out", runtime)


def test_quotes_of_csv_stand_around_cells(tmp_path: Path, runtime: Runtime) -> None:
    rows = [("a, x", "r", 'b "b"\nb'), ("c", "r", "two\nlines")]
    (tmp_path / "kg").mkdir()
    with (tmp_path / "kg" / "train.csv").open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    triples = import_triples(str(tmp_path / "kg"), tmp_path / "out", runtime)
    assert named(triples, runtime, "train") == rows


@pytest.mark.parametrize("option", [["--reverse"], ["--train-fraction", "0.5"], ["--drop-duplicates"]])
def test_options_of_graphs_are_refused(tmp_path: Path, option: list[str]) -> None:
    write(tmp_path / "kg", train=[("a", "r", "b")])
    asked = ["import", f"triples:{tmp_path / 'kg'}", str(tmp_path / "out"), *option]
    with pytest.raises(ArgumentError, match="what graphs have"):
        CliRunner().invoke(app, asked, catch_exceptions=False)
    np.save(tmp_path / "edges.npy", np.array([[0, 1], [1, 2]]))
    asked = ["import", f"edges:{tmp_path / 'edges.npy'}", str(tmp_path / "out"), "--unknown", "error"]
    with pytest.raises(ArgumentError, match="--unknown is about triples"):
        CliRunner().invoke(app, asked, catch_exceptions=False)
    assert not (tmp_path / "out").exists()
    asked = [
        "import",
        f"triples:{tmp_path / 'kg'}",
        str(tmp_path / "out"),
        "--no-reverse",
        "--keep-duplicates",
    ]
    assert CliRunner().invoke(app, asked, catch_exceptions=False).exit_code == 0  # what they are anyway


def test_a_folder_of_triples_is_known_by_its_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "kg", train=[("a", "r", "b")])
    for command, says in (
        (["import", str(folder), str(tmp_path / "out")], f"here perhaps 'triples:{folder}'"),
        (["embed", "prepare", str(folder), str(tmp_path / "e")], f"outcrop import triples:{folder} OUT"),
    ):
        with pytest.raises(OutcropError, match=re.escape(says)):
            CliRunner().invoke(app, command, catch_exceptions=False)
    (folder / "tables.toml").write_text("")
    assert kind_of_path(folder) == "tables"
    (folder / "tables.toml").rename(folder / "graph.toml")
    assert kind_of_path(folder) == "arrays"
    (folder / "graph.toml").unlink()
    import_from_api(folder, tmp_path / "kg.oc", progress=False)
    with pytest.raises(FormatError, match=r"is 'outcrop.triples'.*outcrop embed prepare takes it"):
        open_graph(tmp_path / "kg.oc")
