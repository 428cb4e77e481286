"""Import of tables with keys, against plain Python: text, Parquet with metadata, and what a tables.toml says."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import outcrop as oc
from outcrop.importing.graph import import_graph
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.store.verify import verify_artifact
from sparse_reference import features_of
from table_oracle import in_order, pairs, standardised

TEAMS = [{"code": f"t{i:03}", "town": f"town {i % 3}", "founded": 1900 + i} for i in range(12)]
PLAYERS = [
    {
        "id": 10 * i + 7,
        "team": f"t{i % 11:03}" if i % 5 else "",
        "captain": 10 * (i // 4) + 7 if i % 3 else None,
        "goals": i * i % 17 if i % 7 else None,
        "height": 1.5 + i / 100,
        "role": ("keeper", "forward", "")[i % 3],
        "part": ("train", "valid", "test", "")[i % 4],
    }
    for i in range(40)
]
TOML = """
[[tables]]
name = "team"
file = "teams.csv"
key = "code"
features = []

[[tables]]
name = "player"
file = "players.tsv"
null = ["none"]
key = "id"
foreign_keys = { team = "team", captain = { table = "player", relation = "led_by", reverse = "leads" } }
label = "role"
split = "part"

[[links]]
file = "fans.txt"
delimiter = "|"
header = false
columns = ["fan", "team", "share"]
source = "player"
relation = "likes"
target = "team"
weight = "share"
reverse = false
"""
FANS = [(10 * (i * 7 % 40) + 7, f"t{i % 12:03}", i / 8) for i in range(30)]


def write_csv(path: Path, rows: list[dict], delimiter: str = ",", none: str = "") -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(rows[0])
        writer.writerows([none if cell is None else cell for cell in row.values()] for row in rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "league"
    folder.mkdir()
    write_csv(folder / "teams.csv", TEAMS)
    write_csv(folder / "players.tsv", PLAYERS, "\t", "none")
    (folder / "fans.txt").write_text("".join(f"{fan}|{team}|{share}\n" for fan, team, share in FANS))
    (folder / "tables.toml").write_text(TOML)
    return folder


def imported(path: Path, out: str = "g.oc", memory: str | None = None, **options) -> Graph:
    with Runtime(memory) as runtime:
        return import_graph(f"tables:{path}", path.parent / out, runtime, oc.ImportConfig(**options))


def read(graph: Graph, name: str) -> np.ndarray:
    with Runtime() as runtime:
        return graph.array(runtime, name).read("test")


def test_everything_comes_back(folder):
    graph = imported(folder)
    assert [(one.name, one.num_nodes) for one in graph.node_types] == [("team", 12), ("player", 40)]
    codes, ids = [team["code"] for team in TEAMS], [player["id"] for player in PLAYERS]
    of_team, led = pairs(PLAYERS, "team", codes), pairs(PLAYERS, "captain", ids)
    expected = {
        ("player", "f2p_team", "team"): of_team,
        ("player", "led_by", "player"): led,
        ("player", "likes", "team"): np.array([(ids.index(a), codes.index(b)) for a, b, _ in FANS]).T,
        ("team", "rev_f2p_team", "player"): of_team[::-1],
        ("player", "leads", "player"): led[::-1],
    }
    assert [one.key for one in graph.edge_types] == list(expected)
    for key, edges in expected.items():
        assert np.array_equal(graph.edge_index(key), in_order(edges)), key
    assert [rows.array for rows in graph.row_files] == ["n1.features"]
    rows = standardised([[player[name] for player in PLAYERS] for name in ("goals", "height")])
    assert np.allclose(read(graph, "n1.features"), rows, atol=1e-6)
    assert graph.class_names == ("forward", "keeper")
    classes = {"": -1, "forward": 0, "keeper": 1}
    assert read(graph, "n1.labels").tolist() == [classes[player["role"]] for player in PLAYERS]
    for split in ("train", "valid", "test"):
        assert read(graph, f"n1.{split}").tolist() == [i for i in range(40) if PLAYERS[i]["part"] == split]
    shares = {(codes.index(team), ids.index(fan)): share for fan, team, share in FANS}
    assert read(graph, "edge_weight").tolist() == [shares[key] for key in sorted(shares)]
    assert any("nodes 'team': not imported: town, founded" in note for note in graph.notes)
    assert any("features are goals, height (standardised" in note for note in graph.notes)
    assert any("features = [...]" in note for note in graph.notes)
    with Runtime() as runtime:
        verify_artifact(graph.path, runtime)


def test_names_are_kept_by_type(folder):
    graph = imported(folder)
    ids = [player["id"] for player in PLAYERS]
    assert graph.node_type("team").name == "team"
    assert graph.node_names(node_type="team") == [team["code"] for team in TEAMS]
    assert graph.node_names([3, 1], "player") == [ids[3], ids[1]]
    assert graph.has_names  # those of players, which have labels
    assert graph.node_names() == ids
    assert graph.node_ids([ids[5], ids[0]]).tolist() == [5, 0]
    assert graph.node_ids(["t004"], "team").tolist() == [4]
    with pytest.raises(oc.ArgumentError, match="has no node 't004'"):
        graph.node_ids(["t004"])
    with pytest.raises(oc.ArgumentError, match="has no node type 'fan': name one of 'team', 'player'"):
        graph.node_names(node_type="fan")
    with pytest.raises(oc.ArgumentError, match="integers from 0 to 11"):
        graph.node_names([12], "team")


@pytest.mark.parametrize(("keys", "names"), [("01", [0, 1]), ("10", [1, 0]), ("1x", ["1", "x"])])
@pytest.mark.parametrize("referred", [True, False])
def test_names_are_integers_where_all_keys_are(folder, keys, names, referred):
    (folder / "teams.csv").write_text(f"code,leader\n{keys[0]},{keys[1]}\n{keys[1]},{keys[1]}\n")
    (folder / "a.csv").write_text("n,leader\n5,0\n6,0\n")
    other = "team" if referred else "a"
    (folder / "tables.toml").write_text(
        f'[[tables]]\nname = "team"\nfile = "teams.csv"\nkey = "code"\nunknown_keys = "none"\n'
        f'foreign_keys = {{ leader = "{other}" }}\n[[tables]]\nname = "a"\nfile = "a.csv"\nkey = "n"\n'
    )
    if not referred and names[1] == "x":
        (folder / "teams.csv").write_text("code,leader\n1,5\nx,6\n")
    graph = imported(folder)
    assert graph.node_names(node_type="team") == names
    assert graph.node_names(node_type="a") == [5, 6]
    assert ("n0.names" in graph.manifest.arrays) == (names != [0, 1])


def test_large_keys_are_not_rounded(folder):
    """Beside a key that is printed as a float, as pandas does where others are empty."""
    keys = [2**53 + 1, 2**53, 5, 2**62 + 3]
    (folder / "teams.csv").write_text("code,leader\n" + "".join(f"{key},\n" for key in keys))
    cells = [f"{keys[0]}", "5.0", "", f"{keys[3]}", f"{keys[1]}.0", "+5"]
    (folder / "a.csv").write_text("n,leader\n" + "".join(f"{n},{cell}\n" for n, cell in enumerate(cells)))
    (folder / "tables.toml").write_text(
        '[[tables]]\nname = "team"\nfile = "teams.csv"\nkey = "code"\n'
        '[[tables]]\nname = "a"\nfile = "a.csv"\nkey = "n"\nforeign_keys = { leader = "team" }\n'
    )
    graph = imported(folder, reverse=False)
    found = graph.edge_index(("a", "f2p_leader", "team")).T.tolist()
    assert sorted(found) == [[0, 0], [1, 2], [3, 3], [4, 1], [5, 2]]
    table = pa.table({"n": [0, 1], "leader": pa.array([5.0, float(2**53 + 2)])})
    pq.write_table(table, folder / "a.parquet")
    toml = (folder / "tables.toml").read_text().replace("a.csv", "a.parquet")
    (folder / "tables.toml").write_text(toml)
    with pytest.raises(oc.ArgumentError, match=r"a\.parquet, row 1.*'leader'.*beyond 2\^53"):
        imported(folder, "other.oc")


def test_no_reverse_leaves_the_keys_alone(folder):
    graph = imported(folder, reverse=False)
    assert [one.key[1] for one in graph.edge_types] == ["f2p_team", "led_by", "likes"]


def test_bytes_do_not_depend_on_the_budget(folder):
    many = [
        PLAYERS[i % 40] | {"id": i * 3 + 1, "captain": (i // 2) * 3 + 1, "height": 1 + i / 7}
        for i in range(9000)
    ]
    many[8999] |= {"goals": 0.5}  # the first number with a fraction is in the last row
    write_csv(folder / "players.tsv", many, "\t", "none")
    (folder / "fans.txt").write_text("1|t001|1\n")
    digests = [imported(folder, f"{memory}.oc", memory).digest() for memory in ("6MiB", "64MiB", "1GiB")]
    assert len(set(digests)) == 1
    small = [PLAYERS[i % 40]["goals"] for i in range(8999)] + [0.5]
    graph = imported(folder)
    rows = standardised([small, [row["height"] for row in many]])
    assert np.allclose(read(graph, "n1.features"), rows, atol=1e-5)


def test_integers_with_zeros_in_front_are_text(folder):
    (folder / "teams.csv").write_text("code,town\n001,a\n1,b\n")
    (folder / "players.tsv").write_text(
        "id\tteam\tcaptain\trole\tpart\n5\t1\t5\tx\ttrain\n6\t001\tnone\ty\ttest\n"
    )
    (folder / "fans.txt").write_text("5|001|1\n")
    graph = imported(folder)
    assert graph.edge_index(("player", "f2p_team", "team")).tolist() == [[1, 0], [0, 1]]


def test_keys_with_decimal_points_are_integers_where_pandas_wrote_them(folder):
    text = "id\tteam\tcaptain\trole\tpart\n5\tt001\t6.0\tx\ttrain\n6\t\t\ty\ttest\n"
    (folder / "players.tsv").write_text(text)
    (folder / "fans.txt").write_text("5|t001|1\n")
    assert imported(folder).edge_index(("player", "led_by", "player")).tolist() == [[0], [1]]


def test_labels_and_splits_of_tables_of_their_own(folder):
    toml = (folder / "tables.toml").read_text().replace('label = "role"\nsplit = "part"\n', "")
    labels = '[tables.labels]\nfile = "roles.csv"\nkey = "who"\nlabel = "role"\nsplit = "part"\n'
    (folder / "tables.toml").write_text(toml.replace("\n[[links]]", f"{labels}\n[[links]]"))
    listed = [PLAYERS[i] for i in (5, 3, 8)]
    write_csv(folder / "roles.csv", [{"who": p["id"], "role": p["role"], "part": p["part"]} for p in listed])
    graph = imported(folder)
    classes = {PLAYERS[i]["role"]: i for i in (5, 3, 8)}
    labels_of = read(graph, "n1.labels")
    assert np.flatnonzero(labels_of >= 0).tolist() == [i for i in (3, 5, 8) if PLAYERS[i]["role"]]
    assert len(classes) == 2
    assert graph.num_classes == len({role for role in classes if role})
    assert read(graph, "n1.valid").tolist() == [5]
    keys = '[tables.labels]\nfile = "roles.csv"\nkey = "who"\nlabel = "role"\n'
    files = 'train = "train.csv"\nvalid = "valid.npy"\n'
    (folder / "tables.toml").write_text(toml.replace("\n[[links]]", f"{files}{keys}\n[[links]]"))
    (folder / "train.csv").write_text("id\n57\n17\n")
    np.save(folder / "valid.npy", np.array([0, 3]))
    graph = imported(folder)
    assert [read(graph, f"n1.{split}").tolist() for split in ("train", "valid")] == [[1, 5], [0, 3]]
    (folder / "train.csv").write_text("id\n57\n7\n")
    with pytest.raises(
        oc.ArgumentError, match=r"valid\.npy, row 0 .*node 0 is in split train and in split valid"
    ):
        imported(folder)


def test_nodes_that_keys_name(folder):
    toml = '[[tables]]\nname = "fan"\nfrom_keys = true\n[[tables]]\nname = "team"\nfrom_keys = true\n'
    toml += '[[links]]\nfile = "fans.txt"\ndelimiter = "|"\ncolumns = ["fan", "team", "share"]\n'
    (folder / "tables.toml").write_text(toml + 'source = "fan"\nrelation = "likes"\ntarget = "team"\n')
    graph = imported(folder)
    fans = sorted({fan for fan, _, _ in FANS})
    teams = list(dict.fromkeys(team for _, team, _ in FANS))
    assert [one.num_nodes for one in graph.node_types] == [len(fans), len(teams)]
    edges = np.array([(fans.index(fan), teams.index(team)) for fan, team, _ in FANS]).T
    assert np.array_equal(graph.edge_index(("fan", "likes", "team")), in_order(edges))


@pytest.mark.parametrize("memory", ["6MiB", None])
def test_columns_of_links_become_rows_of_edges(folder, memory):
    toml = (folder / "tables.toml").read_text()
    toml = toml.replace('weight = "share"', 'features = ["share", "hours"]').replace(
        '"share"]\ns', '"share", "hours"]\ns'
    )
    (folder / "tables.toml").write_text(toml)
    fans = [(*one, i % 7 if i % 4 else None) for i, one in enumerate(FANS * 40)]
    fans[3] = ("", *fans[3][1:])  # no edge
    lines = (f"{fan}|{team}|{share}|{'' if hours is None else hours}\n" for fan, team, share, hours in fans)
    (folder / "fans.txt").write_text("".join(lines))
    graph = imported(folder, memory=memory)
    of = graph.edge_type(("player", "likes", "team"))
    codes, ids = [team["code"] for team in TEAMS], [player["id"] for player in PLAYERS]
    rows = standardised([[fan[column] for fan in fans] for column in (2, 3)])
    kept = [number for number, fan in enumerate(fans) if fan[0] != ""]
    edges = np.array([(ids.index(fans[i][0]), codes.index(fans[i][1])) for i in kept]).T
    order = np.lexsort(edges)  # with the target first; duplicates in the order of the file
    assert np.array_equal(graph.edge_index(of), edges[:, order])
    assert np.allclose(read(graph, of.array("features")), rows[kept][order], atol=1e-6)


def test_other_text(folder):
    """Another encoding, quotes that are letters, lines that end early, and a mark at the begin of the file."""
    (folder / "teams.csv").write_bytes('code;name\nt1;"Zürich\nt2;Genève"\n'.encode("latin-1"))
    (folder / "players.tsv").write_bytes(b"\xef\xbb\xbfid\tteam\tage\n1\tt1\t30\n2\n\n3\tt2\n")
    (folder / "tables.toml").write_text(
        '[[tables]]\nname = "team"\nfile = "teams.csv"\nencoding = "latin-1"\nquotes = false\nkey = "code"\n'
        '[[tables]]\nname = "player"\nfile = "players.tsv"\nkey = "id"\nfill_short_lines = true\n'
        'foreign_keys = { team = "team" }\n'
    )
    graph = imported(folder)
    assert [one.num_nodes for one in graph.node_types] == [2, 3]
    assert graph.edge_index(("player", "f2p_team", "team")).tolist() == [[0, 2], [0, 1]]
    assert features_of(graph, "n1.features").tolist() == [[0.0], [0.0], [0.0]]


@pytest.mark.parametrize("quotes", [True, False])
def test_quotes_in_cells_of_lines_that_end_early(folder, quotes):
    """Where quotes are letters they stay as they are, and where they are none cells have what is between them."""
    names = ['t"1', '"t2"', "t3"]
    (folder / "teams.csv").write_text(
        "code,size,name\n" + "".join(f"{name},{i}\n" for i, name in enumerate(names))
    )
    (folder / "players.csv").write_text("id,team\n1,t3\n")
    (folder / "tables.toml").write_text(
        f'[[tables]]\nname = "team"\nfile = "teams.csv"\nquotes = {str(quotes).lower()}\nkey = "code"\n'
        "fill_short_lines = true\n"
        '[[tables]]\nname = "player"\nfile = "players.csv"\nkey = "id"\nforeign_keys = { team = "team" }\n'
    )
    graph = imported(folder)
    assert graph.node_names(node_type="team") == (['t"1', "t2", "t3"] if quotes else names)


def test_a_cell_that_is_too_long_is_named(folder):
    (folder / "teams.csv").write_text("code,name\n" + "t1\n" * 40 + f"t2,{'x' * 140_000}\n")
    (folder / "tables.toml").write_text(
        '[[tables]]\nname = "team"\nfile = "teams.csv"\nfill_short_lines = true\nfeatures = []\n'
        'foreign_keys = { name = "team" }\n'
    )
    with pytest.raises(
        oc.FormatError, match=r"teams\.csv, line 42: a cell cannot be read .*leave fill_short"
    ):
        imported(folder)


def relbench(
    folder: Path, tables: dict[str, tuple[pa.Table, str | None, dict[str, str], str | None]]
) -> None:
    for name, (table, key, keys, time) in tables.items():
        said = {"pkey_col": key, "fkey_col_to_pkey_table": keys, "time_col": time}
        metadata = {name: json.dumps(value).encode() for name, value in said.items()}
        pq.write_table(table.replace_schema_metadata(metadata), folder / f"{name}.parquet")


def test_parquet_as_relbench_saves_it(tmp_path):
    folder = tmp_path / "db"
    folder.mkdir()
    days = pa.array(np.arange(6), pa.int64()).cast(pa.timestamp("s"))
    events = pa.table(
        {
            "user": pa.array([0, 1, None, 3, 3, 0], pa.int64()),
            "item": [1, 1, 0, 0, 1, 0],
            "amount": pa.array([1.5, None, 2.5, 8.0, 0.0, 1.0]),
            "paid": [True, False, True, True, None, False],
            "at": days,
            "note": list("abcdef"),
        }
    )
    relbench(
        folder,
        {
            "users": (pa.table({"id": np.arange(4), "age": [30, 40, None, 50]}), "id", {}, None),
            "items": (pa.table({"id": [0, 1], "name": ["x", "y"]}), "id", {}, None),
            "events": (events, None, {"user": "users", "item": "items"}, "at"),
        },
    )
    graph = imported(folder)
    assert imported(tmp_path, "h.oc").digest() == graph.digest()  # the folder of the data set
    assert [(one.name, one.num_nodes) for one in graph.node_types] == [
        ("events", 6),
        ("items", 2),
        ("users", 4),
    ]
    assert graph.edge_index(("events", "f2p_user", "users")).tolist() == [[0, 5, 1, 3, 4], [0, 0, 1, 3, 3]]
    assert graph.edge_index(("items", "rev_f2p_item", "events")).tolist() == [[1, 1, 0, 0, 1, 0], [*range(6)]]
    rows = standardised([[1.5, None, 2.5, 8, 0, 1], [1, 0, 1, 1, None, 0]])
    assert np.allclose(read(graph, "n0.features"), rows, atol=1e-6)
    assert any("column 'at' is not imported: nodes have no times yet" in note for note in graph.notes)
    assert any("not imported: at, note" in note for note in graph.notes)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_text_of_every_kind_names_rows(tmp_path, kind):
    folder = tmp_path / "db"
    folder.mkdir()
    plain = isinstance(kind, pa.DictionaryType)
    keys, cells = pa.array(["b", "a"], pa.string()), pa.array(["a", None, "", "b"], pa.string())
    keys, cells = (one.dictionary_encode() if plain else one.cast(kind) for one in (keys, cells))
    relbench(
        folder,
        {
            "users": (pa.table({"id": keys, "age": pa.array([1, 2])}), "id", {}, None),
            "events": (pa.table({"user": cells}), None, {"user": "users"}, None),
        },
    )
    graph = imported(folder)
    assert graph.edge_index(("events", "f2p_user", "users")).tolist() == [[3, 0], [0, 1]]
    assert graph.node_names(node_type="users") == ["b", "a"]


@pytest.mark.parametrize(
    ("keys", "cells", "match"),
    [
        (pa.array([b"a", b"b"]), [b"a"], r"users\.parquet, row 0 .*'id': b'a' is no integer and no text"),
        (pa.array([[1], [2]]), [1], r"column 'id': \[1\] is no integer and no text"),
        (
            pa.array(["a", "b"]),
            [[1]],
            r"events\.parquet column 'user' holds list.*; keys are text or integers",
        ),
        (pa.array([1, 2]), [[1]], r"events\.parquet, row 0 .*column 'user': \[1\] is no integer and no text"),
        (pa.array([1, 2**63 + 1], pa.uint64()), [1], r"users\.parquet, row \d .*column 'id'"),
        (pa.array([1.5, 2]), [1], r"column 'id': 1\.5 is no integer and no text"),
        (pa.array([None, None], pa.int64()), [1], r"column 'id' is empty"),
    ],
)
def test_what_can_be_no_key_is_named(tmp_path, keys, cells, match):
    folder = tmp_path / "db"
    folder.mkdir()
    tables = {"users": (pa.table({"id": keys}), "id", {}, None)}
    relbench(folder, tables | {"events": (pa.table({"user": cells}), None, {"user": "users"}, None)})
    with pytest.raises((oc.ArgumentError, oc.FormatError), match=match):
        imported(folder)


def test_undeclared_tables_are_shown_a_guess_that_works(folder):
    (folder / "tables.toml").unlink()
    write_csv(folder / "matches.csv", [{"match_id": i, "home_team_id": i % 4, "goals": i} for i in range(5)])
    write_csv(folder / "teams.csv", [{"team_id": i, "name": f"t{i}"} for i in range(4)])
    write_csv(folder / "fans.csv", [{"match_id": i % 5, "team_id": i % 3} for i in range(9)])
    (folder / "players.tsv").unlink()
    with pytest.raises(oc.ArgumentError, match=r"no table says which of its columns are keys") as refused:
        imported(folder)
    (folder / "tables.toml").write_text(str(refused.value).partition("\n\n")[2])
    graph = imported(folder)
    assert [one.key for one in graph.edge_types][:2] == [
        ("matches", "f2p_home_team_id", "teams"),
        ("matches", "fans", "teams"),
    ]


def test_a_file_that_changed_is_seen(folder):
    source, out = f"tables:{folder}", folder.parent / "g.oc"
    oc.import_graph(source, out, progress=False)
    assert "is kept" in oc.import_graph(source, out, progress=False).notes[0]
    (folder / "fans.txt").write_text("7|t001|2\n")
    with pytest.raises(oc.ArgumentError, match=r"fans\.txt"):
        oc.import_graph(source, out, progress=False)


def test_what_is_filled_and_what_is_dropped_is_said(folder, tmp_path):
    (folder / "fans.txt").write_text("".join(f"{fan}|{team}|1\n" for fan, team, _ in [*FANS, *FANS[:4]]))
    (folder / "tables.toml").write_text(TOML.replace('weight = "share"', 'features = ["share"]'))
    notes = " ".join(imported(folder, tmp_path / "kept.oc").notes)
    empty = sum(player["goals"] is None for player in PLAYERS)
    assert (
        f"features are goals, height (standardised); empty cells became 0: goals {empty} of {len(PLAYERS)} rows"
        in notes
    )
    assert "edges 'player likes team': features are share (standardised)" in notes
    assert "dropped" not in notes
    (folder / "tables.toml").write_text(TOML.replace('weight = "share"\n', ""))
    notes = " ".join(imported(folder, tmp_path / "g.oc").notes)
    assert f"were dropped: 4 of {len(FANS) + 4} 'player likes team'; --keep-duplicates" in notes


def test_of_many_columns_with_empty_cells_the_worst_are_named(tmp_path):
    columns = {f"c{i}": [None if row < i else float(row) for row in range(9)] for i in range(6)}
    (tmp_path / "wide").mkdir()
    pq.write_table(pa.table(columns | {"id": list(range(9)), "of": [0] * 9}), tmp_path / "wide" / "w.parquet")
    (tmp_path / "wide" / "tables.toml").write_text(
        '[[tables]]\nname = "w"\nfile = "w.parquet"\nkey = "id"\nforeign_keys = { of = "w" }\n'
    )
    said = "empty cells became 0: in 5 columns, most in c5 5, c4 4, c3 3 of 9 rows"
    assert said in " ".join(imported(tmp_path / "wide", tmp_path / "g.oc").notes)
