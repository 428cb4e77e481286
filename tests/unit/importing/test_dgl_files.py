"""``dgl:FILE.bin``: what dgl.save_graphs wrote is read without DGL, and damaged files are refused."""

from __future__ import annotations

import tracemalloc
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from dgl_files import BY_SOURCE, BY_TARGET, PAIRS, Relation, graph, number, write, write_homogeneous
from outcrop.errors import ArgumentError, BudgetError, FormatError, OutcropError
from outcrop.importing.graph import import_graph
from outcrop.importing.sources.dgl_file import read_dgl
from outcrop.importing.sources.pickles import PickleReader
from outcrop.importing.sources.torch_file import KNOWN, TorchFile
from outcrop.importing.sources.typed import TypedColumns
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from support import new_runtime, shared_path

NODES, EDGES = 40, 300
RNG = np.random.default_rng(0)
PAIRS_OF_NODES = np.unique(RNG.integers(0, NODES, (EDGES, 2)), axis=0)
RNG.shuffle(PAIRS_OF_NODES)
WEIGHTS = RNG.random(len(PAIRS_OF_NODES)).astype(np.float32) + 0.5
COLUMNS = {
    "feat": RNG.normal(size=(NODES, 6)).astype(np.float32),
    "label": np.arange(NODES) % 4,
    "train_mask": np.arange(NODES) % 2 == 0,
    "val_mask": np.arange(NODES) % 4 == 1,
    "test_mask": np.arange(NODES) % 4 == 3,
}


def arrays(made: Graph) -> dict[str, np.ndarray]:
    names = [name for name in made.manifest.arrays if not name.endswith("_page_crc")]
    return {name: np.array(made.array(new_runtime(), name).memmap()) for name in names}


def load(path: Path, memory: str = "8MiB", **options: Any) -> Graph:
    out = path.parent / "file.oc"
    config = oc.ImportConfig(**options)
    return oc.import_graph(f"dgl:{path}", out, config, memory=memory, overwrite=True, progress=False)


def check(made: Graph, given: dict[str, Any], folder: Path) -> None:
    of_object = oc.import_graph(given, folder / "object.oc", overwrite=True, progress=False)
    found, expected = arrays(made), arrays(of_object)
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert np.array_equal(found[name], value), name
    assert made.manifest.attributes == of_object.manifest.attributes


def expected(**more: Any) -> dict[str, Any]:
    names = {
        "feat": "features",
        "label": "labels",
        "train_mask": "train",
        "val_mask": "valid",
        "test_mask": "test",
    }
    return {"edges": PAIRS_OF_NODES, **{names[name]: value for name, value in COLUMNS.items()}, **more}


@pytest.mark.parametrize("form", [PAIRS, BY_SOURCE, BY_TARGET], ids=["pairs", "by source", "by target"])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_graphs_of_one_type(tmp_path: Path, form: int, dtype: type) -> None:
    path = write_homogeneous(tmp_path / "g.bin", PAIRS_OF_NODES.astype(dtype), COLUMNS, NODES, form)
    check(load(path), expected(), tmp_path)


@pytest.mark.parametrize("form", [PAIRS, BY_SOURCE, BY_TARGET], ids=["pairs", "by source", "by target"])
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_weights_belong_to_the_edges_that_they_were_given_for(tmp_path: Path, form: int, shape: Any) -> None:
    more = {"weight": WEIGHTS.reshape(shape), "order": np.arange(len(WEIGHTS))}
    path = write_homogeneous(tmp_path / "g.bin", PAIRS_OF_NODES, COLUMNS, NODES, form, **more)
    made = load(path)
    check(made, expected(edge_weight=WEIGHTS), tmp_path)
    assert f"columns of the edges of {path} that are not imported: order" in made.notes


def test_nodes_without_edges_and_columns(tmp_path: Path) -> None:
    for form in (PAIRS, BY_SOURCE, BY_TARGET):
        path = write_homogeneous(tmp_path / "g.bin", np.zeros((0, 2), np.int64), {}, 7, form)
        check(load(path), {"edges": np.zeros((0, 2), np.int64), "num_nodes": 7}, tmp_path)


def test_lists_of_any_length(tmp_path: Path) -> None:
    """A node with more edges than are read at a time, and more nodes without edges than that."""
    edges = np.stack([np.arange(20_000) % 9999, np.full(20_000, 9_998)], 1)
    edges = np.unique(edges, axis=0)
    for form in (BY_SOURCE, BY_TARGET):
        path = write_homogeneous(tmp_path / "g.bin", edges, {}, 10_000, form)
        check(load(path, "2MiB"), {"edges": edges, "num_nodes": 10_000}, tmp_path)


def test_names_of_columns(tmp_path: Path) -> None:
    ids = {"train_idx": np.arange(5), "val_idx": np.arange(5, 9), "_ID": np.arange(NODES)}
    path = write_homogeneous(tmp_path / "g.bin", PAIRS_OF_NODES, ids, NODES)
    made = load(path)
    check(
        made,
        {"edges": PAIRS_OF_NODES, "num_nodes": NODES, "train": np.arange(5), "valid": np.arange(5, 9)},
        tmp_path,
    )
    assert f"parts of {path} that are not imported: _ID" in made.notes
    two = {"feat": COLUMNS["feat"], "features": COLUMNS["feat"]}
    with pytest.raises(ArgumentError, match="'features' and another column both give x: keep one"):
        load(write_homogeneous(tmp_path / "g.bin", PAIRS_OF_NODES, two, NODES))
    masks = np.stack([COLUMNS["train_mask"], COLUMNS["val_mask"]], 1)
    path = write_homogeneous(tmp_path / "g.bin", PAIRS_OF_NODES, {"train_mask": masks}, NODES)
    made = load(path, split_index=1)
    assert f"of the 2 splits in the masks of {path}, number 1 is taken (--split-index)" in made.notes
    assert np.array_equal(arrays(made)["train"], np.flatnonzero(COLUMNS["val_mask"]))
    bad = {"train_mask": np.full(NODES, 2, np.uint8)}
    with pytest.raises(FormatError, match="train_mask has 2; a mask has 0 and 1"):
        load(write_homogeneous(tmp_path / "g.bin", PAIRS_OF_NODES, bad, NODES))


SIZES = {"author": 4, "paper": 5}
WRITES = Relation("author", "writes", "paper", np.array([[0, 4], [3, 1]]), columns={"year": np.array([1, 2])})
CITES = Relation("paper", "cites", "paper", np.array([[1, 0], [2, 0]]), BY_TARGET)


def read(path: Path, **options: Any) -> list[TypedColumns]:
    with Runtime("64MiB") as runtime, ExitStack() as held:
        return read_dgl(path, runtime, held, **options)


def pairs_of(typed: TypedColumns, relation: tuple[str, str, str]) -> list[list[int]]:
    with Runtime("64MiB") as runtime:
        blocks = [np.stack(block[:2], 1) for block in typed.edges[relation]["edges"].blocks(runtime)]
        return np.concatenate(blocks).tolist()


def test_graphs_of_several_types_are_imported_with_them(tmp_path: Path) -> None:
    columns = {
        "paper": {
            "feat": np.arange(10, dtype=np.float32).reshape(5, 2),
            "train_mask": np.array([0, 1, 0, 1, 1], np.uint8),
        }
    }
    path = write(tmp_path / "g.bin", graph(SIZES, columns, [WRITES, CITES]), labels={"l": np.ones(3)})
    (typed,) = read(path)
    assert {name: list(columns) for name, columns in typed.nodes.items()} == {
        "author": ["num_nodes"],
        "paper": ["num_nodes", "feat", "train_mask"],
    }
    assert [typed.nodes[name]["num_nodes"] for name in SIZES] == [4, 5]
    assert pairs_of(typed, ("author", "writes", "paper")) == [[0, 4], [3, 1]]
    assert pairs_of(typed, ("paper", "cites", "paper")) == [[1, 0], [2, 0]]
    assert typed.edges["author", "writes", "paper"]["year"].tolist() == [1, 2]
    made = load(path)
    assert [(one.name, one.num_nodes) for one in made.node_types] == list(SIZES.items())
    assert made.edge_index(("author", "writes", "paper")).tolist() == [[3, 0], [1, 4]]
    assert made.edge_index(("paper", "cites", "paper")).tolist() == [[1, 2], [0, 0]]
    with Runtime() as runtime:
        assert np.array_equal(made.array(runtime, "n1.features").read("test"), columns["paper"]["feat"])
        assert made.split(runtime, "train").tolist() == [1, 3, 4]
    assert any("author writes paper that are not imported: year" in note for note in made.notes)


def test_weights_of_edges_of_several_types(tmp_path: Path) -> None:
    weighted = Relation(
        "author",
        "writes",
        "paper",
        np.array([[0, 4], [3, 1], [2, 1]]),
        columns={"weight": np.array([1.0, 2.0, 4.0])},
    )
    made = load(write(tmp_path / "g.bin", graph(SIZES, {}, [weighted, CITES])))
    assert made.edge_index(("author", "writes", "paper")).tolist() == [[2, 3, 0], [1, 1, 4]]
    with Runtime() as runtime:
        assert made.array(runtime, "edge_weight").read("test").tolist() == [4.0, 2.0, 1.0]
    assert [one.weighted for one in made.edge_types] == [True, False]


def test_edges_that_leave_their_types_are_refused(tmp_path: Path) -> None:
    wrong = Relation("author", "writes", "paper", np.array([[0, 4], [3, 5]]))
    with pytest.raises(ArgumentError, match="names node 5 of 'paper', but nodes 'paper' are 0 to 4"):
        load(write(tmp_path / "g.bin", graph(SIZES, {}, [wrong, CITES])))


def test_several_graphs_are_refused(tmp_path: Path) -> None:
    one = graph(SIZES, {}, [CITES])
    path = write(tmp_path / "g.bin", one, one)
    assert len(read(path)) == 2
    with pytest.raises(ArgumentError, match=r"g\.bin holds 2 graphs, one is needed"):
        load(path)
    with pytest.raises(ArgumentError, match="holds 0 graphs"):
        load(write(tmp_path / "g.bin"))


def test_a_real_file_of_several_types() -> None:
    """What DGL's own test asserts of it."""
    found = read(shared_path("samples-dgl-bin", "hetero1.bin"))
    follows, knows = ("user", "follows", "user"), ("user", "knows", "user")
    assert [sorted(typed.edges) for typed in found] == [[follows, knows], [follows], [knows]] * 2
    for number_of_graph, typed in enumerate(found):
        for relation in typed.edges:
            edges = [[0, 1], [1, 2], [2, 3]] if relation == follows else [[0, 2], [2, 3]]
            assert pairs_of(typed, relation) == edges
            assert typed.edges[relation]["edges"].others.dtype == (
                np.int64 if number_of_graph < 3 else np.int32
            )
    for typed in (found[2], found[5]):
        assert np.array_equal(typed.nodes["user"]["hh"], np.ones((4, 5)))


def test_a_real_file_of_the_first_form(tmp_path: Path) -> None:
    """The arrays beside it are those of one of its graphs: its number, nodes, ends of edges, and three columns."""
    found = read(shared_path("samples-dgl-bin", "1.bin"))
    assert len(found) == 100
    data = np.fromfile(shared_path("samples-dgl-bin", "1.npy"), np.uint8)
    begin = int(np.argmax(data == ord("\n"))) + 1
    with Runtime("64MiB") as runtime, ExitStack() as held:
        outer = PickleReader("1.npy", data[begin:], KNOWN, "", runtime, held).load()
        values = TorchFile.__new__(TorchFile)  # knows how pickles hold arrays
        values.path, values._runtime, values._held = Path("1.npy"), runtime, held
        index, nodes, source, target, *columns = (values.value(raw, "v") for raw in outer.state[4])
        typed = found[index]
        assert typed.nodes["_N"]["num_nodes"] == len(nodes)
        adjacency = typed.edges["_N", "_E", "_N"]["edges"]
        by_number = np.array(pairs_of(typed, ("_N", "_E", "_N")))
        ends = np.empty_like(by_number)
        ends[adjacency.numbers] = by_number
        assert np.array_equal(ends, np.stack([source, target], 1))
        for name, value in zip(("e1", "e2", "n1"), columns, strict=True):
            of = typed.nodes["_N"] if name == "n1" else typed.edges["_N", "_E", "_N"]
            assert np.array_equal(of[name], value)
    with pytest.raises(ArgumentError, match="holds 100 graphs"):
        oc.import_graph(f"dgl:{shared_path('samples-dgl-bin', '1.bin')}", tmp_path / "g", progress=False)


def whole() -> bytes:
    return graph(SIZES, {"paper": {"feat": np.ones((5, 2), np.float32)}}, [WRITES, CITES])


def test_any_damage_is_an_error_of_outcrop(tmp_path: Path) -> None:
    rng, refused = np.random.default_rng(1), 0
    data = write_homogeneous(
        tmp_path / "g.bin", PAIRS_OF_NODES[:9], {"feat": np.ones((NODES, 1))}, NODES
    ).read_bytes()
    for trial in range(400):
        broken = bytearray(data[: int(rng.integers(0, len(data)))] if trial % 4 == 0 else data)
        for _ in range(trial % 4):
            broken[int(rng.integers(4096 * (trial % 2), len(broken)))] = int(rng.integers(0, 256))
        (tmp_path / "g.bin").write_bytes(broken)
        try:
            load(tmp_path / "g.bin", "4MiB")
        except OutcropError:
            refused += 1
    assert refused > 150


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        (number(0xDD2E4FF046B4A13F), number(1), r"is no file of dgl\.save_graphs"),
        (number(0xDD2E4FF046B4A13F, 2), number(0xDD2E4FF046B4A13F, 3), "version 3 and graphs of kind 2"),
        (number(0xDD589FBE35224ABF), number(7), "has no a graph"),
        (number(0xDD6CD31205DFF127), number(7), "has no lists"),
        (number(0xDD61FFD305DFF127), number(7), "has no pairs"),
        (number(0xDD2E60F0F6B4A127, 1), number(0xDD2E60F0F6B4A127, 9), "edges of form 9"),
        (number(2, 4, 5), number(2, 4, 6), "other numbers of nodes than its edges 'writes'"),
        (number(2, 4, 5), number(1 << 60, 4, 5), "promises"),
        (number(6) + b"author", number(1 << 40) + b"author", "a name of"),
        (number(6) + b"author", number(6) + b"\xffuthor", "no text"),
        (number(5) + b"paper", number(6) + b"author", "damaged"),
        (number(5, 2, 40), number(5, 3, 40), r"an array of shape \(5, 3\) in 40 bytes"),
        (number(5, 2, 40), number(1 << 62, 1 << 62, 40), "an array of shape"),
        (b"\x02\x00\x00\x00\x02\x20\x01\x00", b"\x02\x00\x00\x00\x04\x20\x01\x00", "type 4 and 32 bits"),
        (b"\x02\x00\x00\x00\x02\x20\x01\x00", b"\xff\xff\x00\x00\x02\x20\x01\x00", "65535 axes"),
    ],
)
def test_what_is_damaged_is_named(tmp_path: Path, old: bytes, new: bytes, match: str) -> None:
    path = write(tmp_path / "g.bin", whole())
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))
    with pytest.raises(FormatError, match=rf"g\.bin.*{match}"):
        read(path)


def test_lists_that_are_none(tmp_path: Path) -> None:
    edges = np.array([[0, 1], [1, 2], [3, 2]])
    data = write_homogeneous(tmp_path / "g.bin", edges, {}, 4, BY_SOURCE).read_bytes()
    good = np.array([0, 1, 2, 2, 3]).tobytes()
    assert good in data
    for bad, match in (
        ([0, 9, 2, 2, 3], "ends before it begins"),
        ([1, 1, 2, 2, 3], "do not go from 0 to the 3"),
    ):
        (tmp_path / "g.bin").write_bytes(data.replace(good, np.array(bad).tobytes()))
        with pytest.raises(FormatError, match=rf"g\.bin.*{match}"):
            load(tmp_path / "g.bin")
    at = data.rfind(number(1, 2, 2))
    (tmp_path / "g.bin").write_bytes(data[:at] + number(1, 2, 77) + data[at + 24 :])
    with pytest.raises(ArgumentError, match=r"edge 2 .*names node 77, but there are 4"):
        load(tmp_path / "g.bin")


def test_more_nodes_than_the_file_can_have(tmp_path: Path) -> None:
    data = graph({"_N": 7}, {}, [Relation("_N", "_E", "_N", np.zeros((1, 2), np.int64))])
    for many in (1 << 40, (1 << 64) - 1):
        path = write(tmp_path / "g.bin", data.replace(number(7), number(many)))
        with pytest.raises(ArgumentError, match=f"g.bin tells of {many} nodes, and has 1 edges in"):
            load(path)


def test_many_values_are_paid_for(tmp_path: Path) -> None:
    """A list of empty lists takes more memory than its bytes in the file."""
    data = write(tmp_path / "g.bin", whole()).read_bytes()
    at = data.index(number(2, 4, 5))
    (tmp_path / "g.bin").write_bytes(data[:at] + number(1 << 18) + bytes(8 << 18))
    with Runtime("4MiB") as runtime, ExitStack() as held, pytest.raises(BudgetError):
        read_dgl(tmp_path / "g.bin", runtime, held)


def test_what_is_no_file_of_dgl(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="is no file"):
        load(tmp_path / "g.bin")
    for data in (b"", bytes(5000)):
        (tmp_path / "g.bin").write_bytes(data)
        with pytest.raises(FormatError, match=r"g\.bin is no file of dgl\.save_graphs, or is torn"):
            load(tmp_path / "g.bin")


@pytest.mark.parametrize("form", [PAIRS, BY_TARGET], ids=["pairs", "lists"])
def test_a_file_twenty_times_as_large_as_the_budget(tmp_path: Path, form: int) -> None:
    nodes, limit = 40_000, 3 << 20
    rng = np.random.default_rng(2)
    columns = {"feat": rng.random((nodes, 360), np.float32), "label": np.arange(nodes) % 7}
    edges = rng.integers(0, nodes, (500_000, 2))
    weight = rng.random(len(edges), np.float32)
    path = write_homogeneous(tmp_path / "g.bin", edges, columns, nodes, form, weight=weight)
    assert path.stat().st_size > 20 * limit
    tracemalloc.start()
    try:
        with Runtime(limit) as runtime:
            before = tracemalloc.get_traced_memory()[0]
            made = import_graph(f"dgl:{path}", tmp_path / "graph", runtime)
            assert runtime.budget.peak_bytes <= limit
            assert tracemalloc.get_traced_memory()[1] - before <= limit
    finally:
        tracemalloc.stop()
    assert np.array_equal(arrays(made)["features"], columns["feat"])
