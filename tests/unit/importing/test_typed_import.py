"""Import of graphs with types: against NumPy edge type by edge type, and against drawing in plain Python."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import outcrop as oc
from outcrop import _core
from outcrop.importing.graph import import_graph
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph, open_graph
from outcrop.store.verify import verify_artifact
from typed_reference import TypedGraph, pick_all, sample
from typed_store import names_of
from typed_support import TypedArrays, draw_typed

PAPERS, AUTHORS, TOPICS = 50, 40, 3


@pytest.fixture
def folder(tmp_path):
    """Papers, authors, topics without rows, and a type of no nodes."""
    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    np.save(folder / "paper.npy", rng.random((PAPERS, 4), np.float32))
    np.save(folder / "author.npy", rng.integers(-5, 5, (AUTHORS, 3)).astype(np.int8))
    np.save(folder / "venue.npy", rng.integers(0, 6, PAPERS))
    np.save(folder / "train.npy", np.arange(30))
    np.save(folder / "valid.npy", np.arange(PAPERS) >= 45)
    np.save(folder / "cites.npy", rng.integers(0, PAPERS, (2, 300)))
    np.save(folder / "writes.npy", np.stack([rng.integers(0, AUTHORS, 200), rng.integers(0, PAPERS, 200)], 1))
    table = pa.table(
        {"src": rng.integers(0, PAPERS, 60), "dst": rng.integers(0, TOPICS, 60), "weight": rng.random(60)}
    )
    pyarrow.csv.write_csv(table, folder / "about.csv")
    (folder / "graph.toml").write_text(
        """
        [[nodes]]
        name = "paper"
        features = "paper.npy"
        labels = "venue.npy"
        train = "train.npy"
        val = "valid.npy"
        [[nodes]]
        name = "author"
        features = "author.npy"
        [[nodes]]
        name = "topic"
        num_nodes = 3
        [[nodes]]
        name = "nothing"
        num_nodes = 0
        [[edges]]
        source = "paper"
        relation = "cites"
        target = "paper"
        file = "cites.npy"
        [[edges]]
        source = "author"
        relation = "writes"
        target = "paper"
        file = "writes.npy"
        reverse = "written_by"
        [[edges]]
        source = "paper"
        relation = "about"
        target = "topic"
        file = "about.csv"
        reverse = true
        """
    )
    return folder


def imported(folder: Path, out: str = "g.oc", memory: str | None = None, **options) -> Graph:
    with Runtime(memory) as runtime:
        return import_graph(f"arrays:{folder}", folder.parent / out, runtime, oc.ImportConfig(**options))


def sorted_edges(edges: np.ndarray, *, duplicates: bool = False) -> np.ndarray:
    """Returns int64 [2, E] by target, then by source."""
    edges = np.asarray(edges, np.int64)
    edges = edges if duplicates else np.unique(edges, axis=1)
    return edges[:, np.lexsort((edges[0], edges[1]))]


def read(graph: Graph, name: str) -> np.ndarray:
    with Runtime() as runtime:
        return graph.array(runtime, name).read("test")


def test_everything_comes_back(folder):
    graph = imported(folder)
    assert [(one.name, one.num_nodes, one.num_classes) for one in graph.node_types] == [
        ("paper", PAPERS, 6),
        ("author", AUTHORS, 0),
        ("topic", TOPICS, 0),
        ("nothing", 0, 0),
    ]
    assert [one.key for one in graph.edge_types] == [
        ("paper", "cites", "paper"),
        ("author", "writes", "paper"),
        ("paper", "about", "topic"),
        ("paper", "written_by", "author"),
        ("topic", "rev_about", "paper"),
    ]
    cites, writes = np.load(folder / "cites.npy"), np.load(folder / "writes.npy").T
    about = pyarrow.csv.read_csv(folder / "about.csv")
    topics = np.stack([about["src"].to_numpy(), about["dst"].to_numpy()])
    for key, edges in zip(
        [one.key for one in graph.edge_types],
        [cites, writes, topics, writes[::-1], topics[::-1]],
        strict=True,
    ):
        assert np.array_equal(graph.edge_index(key), sorted_edges(edges)), key
    for array, file in (
        ("n0.features", "paper"),
        ("n1.features", "author"),
        ("n0.labels", "venue"),
        ("n0.train", "train"),
    ):
        stored = read(graph, array)
        assert np.array_equal(stored, np.load(folder / f"{file}.npy"))
        assert stored.dtype == np.load(folder / f"{file}.npy").dtype
    assert read(graph, "n0.valid").tolist() == list(range(45, 50))
    assert [rows.array for rows in graph.row_files] == ["n0.features", "n1.features"]
    # Of an edge that is listed twice the first weight stays; both directions have it.
    first = {}
    for s, d, w in zip(*topics.tolist(), about["weight"].to_numpy().astype(np.float32), strict=True):
        first.setdefault((s, d), w)
    forward, back = (
        graph.edge_index(("paper", "about", "topic")),
        graph.edge_index(("topic", "rev_about", "paper")),
    )
    wanted = [first[e] for e in zip(*forward.tolist(), strict=True)] + [
        first[e[::-1]] for e in zip(*back.tolist(), strict=True)
    ]
    assert read(graph, "edge_weight").tolist() == wanted
    assert [one.weighted for one in graph.edge_types] == [False, False, True, False, True]
    said = graph.manifest.attributes["edge_types"][0]
    assert said["edges_listed"] == 300
    assert said["num_edges"] + said["duplicates_dropped"] == 300
    with Runtime() as runtime:
        verify_artifact(graph.path, runtime)
    assert not [path for path in graph.path.iterdir() if path.is_dir()]


def test_options_go_to_the_types_that_have_what_they_are_about(folder):
    graph = imported(
        folder, feature_dtype="float16", train_fraction=0.5, keep_duplicates=True, keep_self_loops=False
    )
    assert {rows.array: rows.spec.dtype for rows in graph.row_files} == {
        "n0.features": "float16",
        "n1.features": "float16",
    }
    assert len(read(graph, "n0.train")) == 25
    assert "n1.train" not in graph.manifest.arrays
    cites = np.load(folder / "cites.npy")
    kept = cites[:, cites[0] != cites[1]]
    assert np.array_equal(graph.edge_index(("paper", "cites", "paper")), sorted_edges(kept, duplicates=True))
    # Author 3 and paper 3 are two nodes: such an edge is no loop.
    writes = np.load(folder / "writes.npy").T
    assert (writes[0] == writes[1]).any()
    assert graph.edge_index(("author", "writes", "paper")).shape[1] == 200


def test_reverses_are_added_or_left_out_on_request(folder):
    every = imported(folder, "all.oc", reverse=True)
    assert [one.key for one in every.edge_types][3:] == [
        ("paper", "rev_cites", "paper"),
        ("paper", "written_by", "author"),
        ("topic", "rev_about", "paper"),
    ]
    cites = np.load(folder / "cites.npy")
    assert np.array_equal(every.edge_index(("paper", "rev_cites", "paper")), sorted_edges(cites[::-1]))
    none = imported(folder, "none.oc", reverse=False)
    assert len(none.edge_types) == 3


def test_a_type_that_no_edge_leads_to_is_noted(folder):
    graph = imported(folder)
    assert any("no edge type leads to nodes 'nothing'" in note for note in graph.notes)
    assert not any("no edge type leads" in note for note in imported(folder, reverse=False).notes)


def test_the_same_bytes_for_any_budget(folder):
    rng = np.random.default_rng(1)
    np.save(folder / "cites.npy", rng.integers(0, PAPERS, (2, 60_000)))
    np.save(
        folder / "writes.npy", np.stack([rng.integers(0, AUTHORS, 50_000), rng.integers(0, PAPERS, 50_000)])
    )
    large, small = imported(folder), imported(folder, "small.oc", "2MiB", num_classes=None)
    assert large.digest() == small.digest()
    for spec in large.manifest.arrays.values():
        assert (large.path / spec.file).read_bytes() == (small.path / spec.file).read_bytes()


def test_edges_and_rows_larger_than_the_budget(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(2)
    edges = np.stack([rng.integers(0, 30_000, 400_000), rng.integers(0, 7, 400_000)])
    np.save(folder / "e.npy", edges)
    np.save(folder / "x.npy", rng.random((30_000, 64), np.float32))
    (folder / "graph.toml").write_text(
        '[[nodes]]\nname = "a"\nfeatures = "x.npy"\n[[nodes]]\nname = "b"\nnum_nodes = 7\n'
        '[[edges]]\nsource = "a"\nrelation = "r"\ntarget = "b"\nfile = "e.npy"\nreverse = true\n'
    )
    with Runtime("3MiB") as runtime:
        graph = import_graph(f"arrays:{folder}", tmp_path / "g.oc", runtime)
        assert runtime.budget.peak_bytes <= 3 << 20
    assert np.array_equal(graph.edge_index(("a", "r", "b")), sorted_edges(edges))
    assert np.array_equal(graph.edge_index(("b", "rev_r", "a")), sorted_edges(edges[::-1]))
    assert np.array_equal(read(graph, "n0.features"), np.load(folder / "x.npy"))


def test_a_budget_that_is_too_small_names_the_smallest(folder):
    source, out = f"arrays:{folder}", folder.parent / "g.oc"
    with pytest.raises(oc.BudgetError) as caught:
        oc.import_graph(source, out, memory="100KiB", progress=False)
    smallest = caught.value.smallest
    assert smallest is not None
    assert oc.import_graph(source, out, memory=smallest, progress=False).num_edges > 0
    with pytest.raises(oc.BudgetError):
        oc.import_graph(source, out, memory=smallest - 4096, overwrite=True, progress=False)


def test_the_same_import_again_keeps_what_is_there(folder):
    source, out = f"arrays:{folder}", folder.parent / "g.oc"
    oc.import_graph(source, out, progress=False)
    again = oc.import_graph(source, out, progress=False)
    assert "is kept" in again.notes[0]
    edges = np.load(folder / "writes.npy")
    np.save(folder / "writes.npy", edges[:-1])
    with pytest.raises(oc.ArgumentError, match=r"differs in writes.npy \(which changed\)"):
        oc.import_graph(source, out, progress=False)


def write_reference(folder: Path, reference: TypedGraph) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names, keys = names_of(reference)
    text = "".join(
        f'[[nodes]]\nname = "{n}"\nnum_nodes = {s}\n' for n, s in zip(names, reference.sizes, strict=True)
    )
    rng = np.random.default_rng(5)
    for r, (source, relation, target) in enumerate(keys):
        pairs = [(u, v) for v, row in enumerate(reference.lists[r]) for u in row]
        np.save(folder / f"{r}.npy", rng.permutation(np.array(pairs, np.int64).reshape(-1, 2)))
        text += f'[[edges]]\nsource = "{source}"\nrelation = "{relation}"\ntarget = "{target}"\nfile = "{r}.npy"\n'
    (folder / "graph.toml").write_text(text)


@st.composite
def graphs(draw: st.DrawFn) -> TypedGraph:
    from typed_reference import typed_graphs

    return draw(typed_graphs(most_nodes=5))


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs(), st.booleans(), st.data())
def test_drawing_all_neighbors_equals_plain_python(tmp_path, reference, duplicates, data):
    shutil.rmtree(tmp_path, ignore_errors=True)
    write_reference(tmp_path / "data", reference)
    graph = imported(tmp_path / "data", keep_duplicates=duplicates, reverse=False)
    assert graph.manifest.version == 2
    if not duplicates:
        lists = tuple(tuple(tuple(sorted(set(row))) for row in rows) for rows in reference.lists)
        reference = TypedGraph(reference.sizes, reference.edge_types, lists)
    arrays = TypedArrays(
        reference,
        read(graph, "indptr"),
        read(graph, "indices").astype(np.int64),
        np.zeros(0, np.float32),
        graph.relations,
    )
    seeds = {
        t: data.draw(st.lists(st.integers(0, size - 1), unique=True, max_size=3))
        for t, size in enumerate(reference.sizes)
        if size
    }
    hops = data.draw(st.integers(1, 3))
    (batch,) = draw_typed(arrays, [seeds], [[-1] * hops] * len(reference.edge_types), positions=True)
    assert batch == sample(reference, seeds, hops, pick_all)


NODES = '[[nodes]]\nname = "a"\nnum_nodes = 5\n[[nodes]]\nname = "b"\nfeatures = "x.npy"\n'
EDGES = '[[edges]]\nsource = "a"\nrelation = "r"\ntarget = "b"\nfile = "e.npy"\n'


@pytest.fixture
def small(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    np.save(folder / "x.npy", np.zeros((4, 2), np.float32))
    np.save(folder / "e.npy", np.array([[0, 3], [4, 0], [1, 1]]))
    np.save(folder / "flat.npy", np.zeros(4))
    np.save(folder / "three.npy", np.zeros((3, 2)))
    np.save(folder / "high.npy", np.array([[0, 3], [4, 4]]))
    np.save(folder / "negative.npy", np.array([[-1, 3], [4, 0]]))
    np.save(folder / "decimal.npy", np.array([[0.5, 3], [4, 0]]))
    np.save(folder / "weights.npy", np.array([1.0, -2.0, 3.0]))
    np.save(folder / "twice.npy", np.array([1, 1]))
    np.save(folder / "five.npy", np.array([1, 5]))
    (folder / "torn.npy").write_bytes(b"\x93NUMPY")
    (folder / "ids.csv").write_text("id,f\n0,1\n1,2\n2,3\n3,4\n")
    (folder / "words.csv").write_text("src,dst\nann,3\nbob,0\n")
    return folder


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[nodes]\n", r"graph\.toml is no TOML: .*correct it"),
        ("\xff", r"graph\.toml is no TOML"),
        ("a = " + "[" * 100_000, r"graph\.toml is no TOML"),
        ('[paper]\nname = "a"\n', r"'paper' is unknown there; it has \[\[nodes\]\] and \[\[edges\]\]"),
        ("", r"graph\.toml has no \[\[nodes\]\]"),
        (NODES, r"graph\.toml has no \[\[edges\]\]: write a table \[\[edges\]\] for each edge type"),
        ('[nodes]\nname = "a"\n' + EDGES, r"has no \[\[nodes\]\]"),
        (NODES + '[[nodes]]\nname = "a"\nnum_nodes = 1\n' + EDGES, "lists node type 'a' twice"),
        (NODES + EDGES + EDGES, "lists edge type 'a r b' twice"),
        (NODES + "colour = 3\n" + EDGES, r"\[\[nodes\]\] 1: 'colour' is unknown; known: name, num_nodes, features"),
        (NODES + EDGES + "colour = 3\n", r"\[\[edges\]\] 0: 'colour' is unknown; known: source, relation"),
        ("[[nodes]]\nnum_nodes = 3\n" + EDGES, r"\[\[nodes\]\] 0 has no 'name': add it"),
        ('[[nodes]]\nname = ""\nnum_nodes = 3\n' + EDGES, "name is '', text is needed"),
        ('[[nodes]]\nname = "a b"\nnum_nodes = 3\n' + EDGES, "name is 'a b'; names have no blanks"),
        ('[[nodes]]\nname = "a"\n' + EDGES, r"does not tell how many nodes 'a' there are: add num_nodes"),
        ('[[nodes]]\nname = "a"\nnum_nodes = -1\n' + EDGES, "num_nodes is -1, a whole number"),
        ('[[nodes]]\nname = "a"\nnum_nodes = true\n' + EDGES, "num_nodes is True, a whole number"),
        ('[[nodes]]\nname = "a"\nnum_nodes = 1e3\n' + EDGES, "num_nodes is 1000.0, a whole number"),
        (f'[[nodes]]\nname = "a"\nnum_nodes = {1 << 60}\n' + EDGES, f"num_nodes is {1 << 60}, a whole"),
        (NODES.replace("= 5", f"= {1 << 40}") + EDGES, f"tells of {1 << 40} nodes 'a', and has 3 edges"),
        (NODES + "num_nodes = 3\n" + EDGES, "num_nodes of 'b' in .* has 3 rows, .*x.npy has 4 rows"),
        (NODES.replace("x.npy", "no.npy") + EDGES, r"features names '.*no\.npy', which is no file"),
        (NODES.replace("x.npy", "a\\u0000b") + EDGES, "features names .*, which is no file"),
        (NODES.replace("x.npy", "../x.npy") + EDGES, r"features is '\.\./x\.npy', outside the folder"),
        (NODES.replace('"x.npy"', "3") + EDGES, "features is 3, the name of a file is needed"),
        (NODES.replace("x.npy", "graph.toml") + EDGES, "cannot be read: features is one of .npy, .parquet"),
        (NODES.replace("x.npy", "flat.npy") + EDGES, r"flat.npy has shape \(4,\); features are"),
        (NODES.replace("x.npy", "torn.npy") + EDGES, r"torn\.npy is no \.npy file or is torn"),
        (NODES.replace("x.npy", "ids.csv") + EDGES, "has a column 'id': rows of a graph with types are in the order"),
        (NODES + 'labels = "ids.csv"\n' + EDGES, "has a column 'id': rows of a graph with types"),
        (NODES + 'labels = "three.npy"\n' + EDGES, "x.npy has 4 rows, .*three.npy has 3 rows"),
        (NODES + 'train = "twice.npy"\n' + EDGES, r"twice\.npy.*split train lists node 1 twice"),
        (NODES + 'train = "five.npy"\n' + EDGES, r"split train lists node 5, but there are 4 nodes \(0 to 3\)"),
        (NODES + 'train = "ids.csv"\n' + EDGES, "is a table; train is a .npy file here"),
        (NODES + 'val = "five.npy"\nvalid = "five.npy"\n' + EDGES, "gives split 'valid' twice"),
        (NODES + EDGES.replace('"a"', '"c"'), r"source is 'c', which is no node type \(there are a, b\)"),
        (NODES + EDGES.replace('"r"', '"r s"'), "relation is 'r s'; names have no blanks"),
        (NODES + EDGES.replace('file = "e.npy"', ""), "has no 'file' with the edges 'a r b'"),
        (NODES + EDGES.replace("e.npy", "three.npy"), "three.npy: node ids are float64, integers are needed"),
        (NODES + EDGES.replace("e.npy", "flat.npy"), r"flat.npy has shape \(4,\); \[edges, 2\] or \[2, edges\]"),
        (NODES + EDGES.replace("e.npy", "decimal.npy"), "node ids are float64, integers are needed"),
        (NODES + EDGES.replace("e.npy", "high.npy"), r"high.npy, edge 1 .* names node 4 of 'b', but nodes 'b' are 0"),
        (NODES + EDGES.replace("e.npy", "negative.npy"), r"edge 0 .* names node -1 of 'a', but nodes 'a' are 0 to 4"),
        (NODES + EDGES.replace("e.npy", "words.csv"), "'ann' is text; integers are needed for the ids"),
        (NODES + EDGES + 'weights = "weights.npy"\n', r"weights\.npy.* is -2\.0; weights are finite"),
        (NODES + EDGES + 'weights = "flat.npy"\n', r"flat\.npy has shape \(4,\) of float64; one number for each of 3"),
        (NODES + EDGES.replace("e.npy", "words.csv") + 'weights = "weights.npy"\n', "weights belong to edges in .npy"),
        (NODES + EDGES + "reverse = 3\n", "reverse is 3, text is needed"),
        (
            NODES + EDGES + "reverse = true\n" + EDGES.replace('"a"', '"x"').replace('"b"', '"a"')
            .replace('"x"', '"b"').replace('"r"', '"rev_r"').replace("e.npy", "high.npy"),
            "has an edge type 'b rev_r a', which is what the reverse of 'a r b' would be called",
        ),
        ('[[nodes]]\nname = "a"\nnum_nodes = 0\n[[nodes]]\nname = "b"\nnum_nodes = 0\n' + EDGES, "has zero nodes"),
    ],
)  # fmt: skip
def test_a_hostile_description_is_refused(small, text, message):
    (small / "graph.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises((oc.ArgumentError, oc.FormatError), match=message) as caught:
        imported(small)
    assert str(small) in str(caught.value)
    assert not (small.parent / "g.oc").exists()


def test_options_that_say_nothing_of_types_are_refused(small):
    (small / "graph.toml").write_text(NODES + EDGES)
    with pytest.raises(
        oc.ArgumentError, match="several node types, so 9 as the number of nodes says too little"
    ):
        imported(small, num_nodes=9)
    with pytest.raises(oc.ArgumentError, match="has no labels: nodes of a type with labels are divided"):
        imported(small, train_fraction=0.5)
    graph = imported(small)
    assert graph.edge_index().tolist() == [[4, 1, 0], [0, 1, 3]]


def test_a_folder_in_place_of_the_description_is_refused(small):
    (small / "graph.toml").mkdir()
    with pytest.raises(oc.ArgumentError, match=r"graph\.toml is no file"):
        imported(small)


def test_one_named_type_has_the_lists_of_a_graph_without_types(small):
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 9, (2, 80))
    np.save(small / "e.npy", edges)
    (small / "graph.toml").write_text('[[nodes]]\nname = "a"\nnum_nodes = 9\n' + EDGES.replace('"b"', '"a"'))
    named = imported(small)
    with Runtime() as runtime:
        plain = import_graph({"edges": edges, "num_nodes": 9}, small.parent / "p.oc", runtime)
    assert (named.manifest.version, plain.manifest.version) == (2, 1)
    for name in ("indptr", "indices"):
        assert named.manifest.arrays[name] == plain.manifest.arrays[name]
        assert (named.path / f"{name}.bin").read_bytes() == (plain.path / f"{name}.bin").read_bytes()
    assert open_graph(named.path).relations.num_lists == plain.relations.num_lists
    assert isinstance(plain.relations, _core.Relations)
