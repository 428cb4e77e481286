"""Import of published tables, against plain Python. Skipped where they are absent."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from outcrop.importing.graph import import_graph
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from support import shared_path
from table_oracle import in_order, links, pairs, standardised


def imported(tmp_path: Path, data: str, toml: str, memory: str = "16MiB") -> Graph:
    """Imports links to the files of ``data`` beside ``toml``."""
    folder = tmp_path / data
    folder.mkdir()
    for path in shared_path(data).iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "tables.toml").write_text(toml)
    with Runtime(memory) as runtime:
        return import_graph(f"tables:{folder}", tmp_path / "g.oc", runtime)


def cells(path: Path, delimiter: str, encoding: str = "utf-8") -> list[list[str]]:
    text = path.read_bytes().decode(encoding)
    return [line.rstrip("\r").split(delimiter) for line in text.split("\n") if line.strip("\r")]


def read(graph: Graph, name: str) -> np.ndarray:
    with Runtime() as runtime:
        return graph.array(runtime, name).read("test")


DBLP = """
[[tables]]
name = "author"
file = "author.txt"
columns = ["id", "name"]
key = "id"
[tables.labels]
file = "author_label.txt"
columns = ["id", "area", "name"]
key = "id"
label = "area"
[[tables]]
name = "paper"
file = "paper.txt"
columns = ["id", "title"]
encoding = "cp1252"
quotes = false
key = "id"
[[tables]]
name = "term"
file = "term.txt"
columns = ["id", "word"]
key = "id"
[[tables]]
name = "venue"
file = "conf.txt"
columns = ["id", "name"]
key = "id"
[[links]]
file = "paper_author.txt"
header = false
source = "paper"
relation = "written_by"
target = "author"
[[links]]
file = "paper_term.txt"
header = false
source = "paper"
relation = "has"
target = "term"
[[links]]
file = "paper_conf.txt"
header = false
source = "paper"
relation = "appears_at"
target = "venue"
"""


def test_dblp_four_area(tmp_path):
    folder = shared_path("dblp-four-area")
    graph = imported(tmp_path, "dblp-four-area", DBLP)
    files = {"author": "author.txt", "paper": "paper.txt", "term": "term.txt", "venue": "conf.txt"}
    encodings = dict.fromkeys(files, "utf-8") | {"paper": "cp1252"}
    keys = {
        name: [row[0] for row in cells(folder / file, "\t", encodings[name])] for name, file in files.items()
    }
    assert {one.name: one.num_nodes for one in graph.node_types} == {n: len(k) for n, k in keys.items()}
    assert [len(one) for one in keys.values()] == [14475, 14376, 8920, 20]
    for file, relation, target in (
        ("paper_author.txt", "written_by", "author"),
        ("paper_term.txt", "has", "term"),
        ("paper_conf.txt", "appears_at", "venue"),
    ):
        edges = links(cells(folder / file, "\t"), keys["paper"], keys[target])
        assert np.array_equal(graph.edge_index(("paper", relation, target)), in_order(edges))
        assert np.array_equal(graph.edge_index((target, f"rev_{relation}", "paper")), in_order(edges[::-1]))
    areas = {row[0]: int(row[1]) for row in cells(folder / "author_label.txt", "\t")}
    assert read(graph, "n0.labels").tolist() == [areas.get(key, -1) for key in keys["author"]]
    assert graph.num_classes == 4


MOVIES = """
[[tables]]
name = "user"
file = "u.user"
delimiter = "|"
columns = ["id", "age", "gender", "occupation", "zip"]
key = "id"
foreign_keys = { occupation = "occupation" }
[[tables]]
name = "occupation"
file = "u.occupation"
columns = ["name"]
key = "name"
[[tables]]
name = "film"
file = "u.item"
delimiter = "|"
encoding = "latin-1"
columns = ["id", "title", "day", "video", "url", GENRES]
features = [GENRES]
key = "id"
[[links]]
file = "u.data"
columns = ["user", "film", "rating", "time"]
source = "user"
relation = "rates"
target = "film"
weight = "rating"
"""


def test_ml_100k(tmp_path):
    folder = shared_path("ml-100k")
    toml = MOVIES.replace("GENRES", ", ".join(f'"g{i}"' for i in range(19)))
    graph = imported(tmp_path, "ml-100k", toml)
    users, films = cells(folder / "u.user", "|"), cells(folder / "u.item", "|", "latin-1")
    jobs = [row[0] for row in cells(folder / "u.occupation", "|")]
    ids = [row[0] for row in users], [row[0] for row in films]
    rated = cells(folder / "u.data", "\t")
    edges = links(rated, *ids)
    assert np.array_equal(graph.edge_index(("user", "rates", "film")), in_order(edges))
    assert np.array_equal(
        graph.edge_index(("user", "f2p_occupation", "occupation")),
        in_order(links([[row[0], row[3]] for row in users], ids[0], jobs)),
    )
    weights = np.array([float(row[2]) for row in rated], np.float32)[np.lexsort(edges)]
    assert np.array_equal(read(graph, "edge_weight")[: len(rated)], weights)
    assert np.allclose(
        read(graph, "n0.features"), standardised([[float(row[1]) for row in users]]), atol=1e-5
    )
    genres = np.array([row[5:24] for row in films], float).T
    assert np.allclose(read(graph, "n2.features"), standardised(genres.tolist()), atol=1e-5)


LASTFM = """
[[tables]]
name = "user"
from_keys = true
[[tables]]
name = "artist"
from_keys = true
[[tables]]
name = "tag"
from_keys = true
[[links]]
file = "user_artist.dat"
columns = ["user", "artist", "plays"]
source = "user"
relation = "listens"
target = "artist"
weight = "plays"
[[links]]
file = "artist_tag.dat"
header = false
source = "artist"
relation = "has"
target = "tag"
[[links]]
file = "user_user(original).dat"
header = false
source = "user"
relation = "knows"
target = "user"
reverse = false
"""


def test_lastfm(tmp_path):
    folder = shared_path("lastfm-magnn")
    graph = imported(tmp_path, "lastfm-magnn", LASTFM)
    names = ("user_artist", "artist_tag", "user_user(original)")
    plays, tagged, known = (np.array(cells(folder / f"{name}.dat", "\t"), np.int64) for name in names)
    users = np.unique([*plays[:, 0], *known.ravel()])
    artists, tags = np.unique([*plays[:, 1], *tagged[:, 0]]), np.unique(tagged[:, 1])
    assert [one.num_nodes for one in graph.node_types] == [len(users), len(artists), len(tags)]
    edges = np.stack([np.searchsorted(users, plays[:, 0]), np.searchsorted(artists, plays[:, 1])])
    assert np.array_equal(graph.edge_index(("user", "listens", "artist")), in_order(edges))
    assert np.array_equal(read(graph, "edge_weight")[: len(plays)], plays[np.lexsort(edges), 2])
    edges = np.stack([np.searchsorted(artists, tagged[:, 0]), np.searchsorted(tags, tagged[:, 1])])
    assert np.array_equal(graph.edge_index(("artist", "has", "tag")), in_order(edges))
    edges = np.searchsorted(users, known).T
    assert np.array_equal(graph.edge_index(("user", "knows", "user")), in_order(edges))


F1 = """
[[tables]]
name = "races"
file = "races.csv"
null = ["\\\\N"]
fill_short_lines = true
key = "raceId"
foreign_keys = { year = "seasons", circuitId = "circuits" }
[[tables]]
name = "seasons"
file = "seasons.csv"
key = "year"
[[tables]]
name = "circuits"
file = "circuits.csv"
null = ["\\\\N"]
key = "circuitId"
[[tables]]
name = "drivers"
file = "drivers.csv"
null = ["\\\\N"]
key = "driverId"
[[tables]]
name = "results"
file = "results.csv"
null = ["\\\\N"]
key = "resultId"
foreign_keys = { raceId = "races", driverId = "drivers" }
features = ["grid", "points", "milliseconds", "rank"]
label = "statusId"
"""


def test_f1(tmp_path):
    graph = imported(tmp_path, "f1", F1)
    tables = {}
    for name in ("races", "seasons", "circuits", "drivers", "results"):
        with shared_path("f1", f"{name}.csv").open(encoding="utf-8-sig", newline="") as file:
            tables[name] = list(csv.DictReader(file))
    assert {one.name: one.num_nodes for one in graph.node_types} == {n: len(t) for n, t in tables.items()}
    for source, column, target in (
        ("races", "year", "seasons"),
        ("races", "circuitId", "circuits"),
        ("results", "raceId", "races"),
        ("results", "driverId", "drivers"),
    ):
        edges = pairs(tables[source], column, [row[column] for row in tables[target]])
        assert np.array_equal(graph.edge_index((source, f"f2p_{column}", target)), in_order(edges))
        assert graph.edge_type((target, f"rev_f2p_{column}", source)).num_edges == len(tables[source])
    rows = [
        [None if row[name] == r"\N" else float(row[name]) for row in tables["results"]]
        for name in ("grid", "points", "milliseconds", "rank")
    ]
    assert np.allclose(read(graph, "n4.features"), standardised(rows), atol=1e-4)
    status = [int(row["statusId"]) for row in tables["results"]]
    assert [graph.class_names[label] for label in read(graph, "n4.labels")] == [str(one) for one in status]


PARQUET = """
[[tables]]
name = "driver"
from_keys = true
[[tables]]
name = "team"
from_keys = true
[[tables]]
name = "f1-results"
file = "f1-results.parquet"
foreign_keys = { DriverId = "driver", TeamName = "team" }
"""


def test_parquet_of_many_writers(tmp_path):
    """Numbers of every codec, encoding and type are those of pyarrow, and of text that has the right values."""
    base = shared_path("samples-parquet")
    files = [path for path in sorted(base.iterdir()) if path.suffix in (".parquet", ".csv")]
    others = [path for path in files if path.name != "f1-results.parquet"]
    toml = PARQUET + "".join(f'[[tables]]\nname = "{path.name}"\nfile = "{path.name}"\n' for path in others)
    graph = imported(tmp_path, "samples-parquet", toml)
    found = {of.array: read(graph, of.array) for of in graph.row_files}
    assert len(files) == 30
    assert len(found) == 24  # the others have text, bytes, times and lists alone
    for path in files:
        if path.suffix == ".csv":
            continue
        table = pq.read_table(path)
        of = graph.node_type(path.name if path in others else path.stem)
        assert of.num_nodes == table.num_rows
        numbers = [cells for one in table.columns if (cells := numbers_of(one)) is not None]
        assert (of.array("features") in found) == bool(numbers), path
        if numbers:
            assert np.allclose(found[of.array("features")], standardised(numbers), atol=1e-4), path
    for path in others:
        if path.suffix == ".csv":
            parquet = path.name.replace("_expect.csv", ".parquet")
            rows, right = (found[graph.node_type(name).array("features")] for name in (parquet, path.name))
            assert np.allclose(rows, right, atol=1e-4), path
    results = pq.read_table(base / "f1-results.parquet").to_pylist()
    for column, name in (("DriverId", "driver"), ("TeamName", "team")):
        edges = pairs(results, column, graph.node_names(node_type=name))
        assert np.array_equal(graph.edge_index(("f1-results", f"f2p_{column}", name)), in_order(edges))
        assert set(graph.node_names(node_type=name)) == {row[column] for row in results} - {None, ""}


def numbers_of(column: pa.ChunkedArray) -> list[float | None] | None:
    """Returns the cells of a column of numbers, or of text that says numbers; None where it has none."""
    types = pa.types
    kinds = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_string)
    if not any(kind(column.type) for kind in kinds):
        return None
    try:
        numbers = [math.nan if cell in (None, "") else float(cell) for cell in column.to_pylist()]
    except ValueError:
        return None
    found = [None if math.isnan(number) else number for number in numbers]
    return found if any(number is not None for number in found) else None
