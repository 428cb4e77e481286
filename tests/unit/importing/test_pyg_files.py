"""``pyg:FILE.pt``: the graph of a file is that of the object which was saved, block by block, and nothing is run."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset

import outcrop as oc
from outcrop.errors import ArgumentError, BudgetError, FormatError
from outcrop.importing.sources.pyg_file import read_pyg
from outcrop.importing.sources.typed import TypedColumns
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from support import new_runtime, shared_path
from torch_files import Call, foreign, pickled, rewritten, tensor_call, write_zip

NODES, EDGES = 40, 300
RNG = np.random.default_rng(0)


def plain(**more: Any) -> Data:
    return Data(
        x=torch.tensor(RNG.normal(size=(NODES, 6)), dtype=torch.float32),
        edge_index=torch.tensor(RNG.integers(0, NODES, (2, EDGES))),
        y=torch.arange(NODES) % 4,
        train_mask=torch.arange(NODES) % 2 == 0,
        val_mask=torch.arange(NODES) % 4 == 1,
        test_mask=torch.arange(NODES) % 4 == 3,
        **more,
    )


def arrays(graph: Graph) -> dict[str, np.ndarray]:
    names = [name for name in graph.manifest.arrays if not name.endswith("_page_crc")]
    return {name: np.array(graph.array(new_runtime(), name).memmap()) for name in names}


def load(path: Path, memory: str = "8MiB", **options: Any) -> Graph:
    config = oc.ImportConfig(**options)
    out = path.parent / "file.oc"
    return oc.import_graph(f"pyg:{path}", out, config, memory=memory, overwrite=True, progress=False)


def check(graph: Graph, data: Any, folder: Path, **options: Any) -> None:
    """The graph of the file is that of the object, notes included."""
    config = oc.ImportConfig(**options)
    of_object = oc.import_graph(data, folder / "object.oc", config, overwrite=True, progress=False)
    found, expected = arrays(graph), arrays(of_object)
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert np.array_equal(found[name], array, equal_nan=array.dtype.kind == "f"), name
    assert graph.manifest.attributes == of_object.manifest.attributes


def save(root: Any, path: Path, **options: Any) -> Path:
    torch.save(root, path, **options)
    return path


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("protocol", [2, 4])
def test_data(tmp_path: Path, protocol: int, zipped: bool) -> None:
    data = plain(edge_weight=torch.rand(EDGES), text="not taken", pos=torch.rand(NODES, 2))
    path = save(data, tmp_path / "d.pt", pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    graph = load(path)
    check(graph, data, tmp_path)
    assert any(note.endswith("d.pt that are not imported: pos, text") for note in graph.notes)


def old_data(data: Data) -> Data:
    """As PyG 1 pickled it: the attributes themselves."""
    old = Data.__new__(Data)
    old.__dict__.update({**data.to_dict(), "face": None, "__num_nodes__": None})
    return old


@pytest.mark.parametrize(
    "form",
    [
        lambda data: data.to_dict(),
        lambda data: (data.to_dict(), None, Data),
        lambda data: (data, None),
        lambda data: (data, {"x": torch.tensor([0, NODES]), "edge_index": [0, EDGES]}),
        lambda data: [data],
        old_data,
        lambda data: {
            name: value.numpy() if isinstance(value, torch.Tensor) else value
            for name, value in data.to_dict().items()
        },
        lambda data: (
            {"edge_index": data.edge_index, "features": data.x, "labels": data.y.tolist()}
            | {name: data[name] for name in ("train_mask", "val_mask", "test_mask")}
        ),
    ],
    ids=[
        "dict",
        "dict, slices, class",
        "data, slices",
        "slices of one",
        "list",
        "PyG 1",
        "NumPy",
        "our names",
    ],
)
def test_forms(tmp_path: Path, form: Any) -> None:
    data = plain()
    check(load(save(form(data), tmp_path / "d.pt")), data, tmp_path)


class OneGraph(InMemoryDataset):
    def __init__(self, root: Path, graphs: list[Data]):
        self.graphs = graphs
        super().__init__(str(root))

    @property
    def processed_file_names(self) -> str:
        return "data.pt"

    def process(self) -> None:
        self.save(self.graphs, self.processed_paths[0])


def test_what_a_dataset_writes(tmp_path: Path) -> None:
    data = plain()
    OneGraph(tmp_path / "one", [data])
    check(load(tmp_path / "one" / "processed" / "data.pt"), data, tmp_path)
    OneGraph(tmp_path / "two", [data, plain()])
    with pytest.raises(ArgumentError, match=r"holds 2 graphs, one is needed: .*dataset\[0\]"):
        load(tmp_path / "two" / "processed" / "data.pt")


@pytest.mark.parametrize(
    "more",
    [
        {"edge_attr": torch.rand(EDGES, 1)},
        {"edge_attr": torch.rand(EDGES, 3)},
        {"edge_attr": torch.rand(EDGES)},
        {"edge_weight": torch.rand(EDGES), "edge_attr": torch.rand(EDGES)},
        {"num_nodes": NODES},
        {"y": torch.rand(NODES, 3)},
        {"y": (torch.rand(NODES, 1) * 3).long()},
        {"x": torch.rand(6, NODES, dtype=torch.float64).T},
        {"x": torch.rand(NODES, 12).half()[:, ::2]},
        {"edge_index": torch.zeros(2, 0, dtype=torch.long)},
        {"edge_index": torch.randint(0, NODES, (EDGES, 2), dtype=torch.int32).T},
        {
            "x": None,
            "y": None,
            "num_nodes": NODES + 3,
            "train_mask": None,
            "val_mask": None,
            "test_mask": None,
        },
    ],
)
def test_values(tmp_path: Path, more: dict[str, Any]) -> None:
    data = plain()
    for name, value in more.items():
        data[name] = value
    check(load(save(data, tmp_path / "d.pt")), data, tmp_path)


def test_masks_of_many_splits(tmp_path: Path) -> None:
    data = plain()
    for name in ("train_mask", "val_mask", "test_mask"):
        data[name] = torch.stack([data[name], data[name].roll(1)], 1)
    path = save(data, tmp_path / "d.pt")
    for number in (0, 1):
        graph = load(path, split_index=number)
        check(graph, data, tmp_path, split_index=number)
        assert (
            f"of the 2 splits in the masks of {path}, number {number} is taken (--split-index)" in graph.notes
        )
    with pytest.raises(ArgumentError, match="has 2 splits, number 2 was asked for"):
        load(path, split_index=2)


def test_ids_instead_of_masks(tmp_path: Path) -> None:
    masked = plain()
    data = Data(x=masked.x, edge_index=masked.edge_index, y=masked.y)
    for name in ("train", "val", "test"):
        data[f"{name}_idx"] = masked[f"{name}_mask"].nonzero().reshape(-1)
    graph = load(save(data, tmp_path / "d.pt"))
    check(graph, masked, tmp_path)
    check(graph, data, tmp_path)
    both = plain(train_idx=torch.tensor([3]))
    graph = load(save(both, tmp_path / "d.pt"))
    check(graph, both, tmp_path)
    assert any("not imported: train_idx" in note for note in graph.notes)


def test_masks_of_uint8(tmp_path: Path) -> None:
    data = plain()
    old = Data(**{n: v.to(torch.uint8) if n.endswith("mask") else v for n, v in data.to_dict().items()})
    check(load(save(old, tmp_path / "d.pt")), data, tmp_path)
    old.val_mask[3] = 7
    with pytest.raises(FormatError, match=r"d\.pt: val_mask has 7; a mask has 0 and 1"):
        load(save(old, tmp_path / "d.pt"))


def test_adjacency_as_a_sparse_tensor(tmp_path: Path) -> None:
    """Rows of adj_t are targets."""
    data = plain(edge_attr=torch.rand(EDGES) + 0.5).coalesce()
    adjacency = torch.sparse_coo_tensor(data.edge_index.flip(0), data.edge_attr, (NODES, NODES))
    given = {name: value for name, value in data.to_dict().items() if not name.startswith("edge")}
    path = save(given | {"adj_t": adjacency.to_sparse_csr()}, tmp_path / "d.pt")
    check(load(path), data, tmp_path)
    with pytest.raises(ArgumentError, match=r"adj_t is a sparse tensor \(torch\.sparse_coo\)"):
        load(save(given | {"adj_t": adjacency}, tmp_path / "d.pt"))


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("form", ["coo", "again", "csr"])
def test_features_and_labels_as_sparse_tensors(tmp_path: Path, form: str, typed: bool) -> None:
    """Entries of the same place add up, as in a tensor that is not coalesced."""
    x = torch.where(torch.rand(NODES, 30) < 0.1, torch.rand(NODES, 30), 0)
    y = (torch.rand(NODES, 5) < 0.3).float()

    def stored(value: torch.Tensor) -> torch.Tensor:
        coo = value.to_sparse_coo()
        if form == "again":  # in another order, and twice
            turned = coo.indices().flip(1)
            return torch.sparse_coo_tensor(
                torch.cat([turned, turned], 1),
                torch.cat([coo.values().flip(0) * part for part in (0.25, 0.75)]),
                value.shape,
            )
        return coo if form == "coo" else value.to_sparse_csr()

    given = plain().to_dict()
    dense, sparse = given | {"x": x, "y": y}, given | {"x": stored(x), "y": y if typed else stored(y)}
    if typed:
        dense, sparse = (
            {"user": of, ("user", "knows", "user"): {"edge_index": of.pop("edge_index")}}
            for of in (dense, sparse)
        )
    graphs = []
    for name, of in (("dense", dense), ("sparse", sparse)):
        (tmp_path / name).mkdir()
        graphs.append(arrays(load(save(of, tmp_path / name / "d.pt"))))
    wanted, found = graphs
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert np.allclose(found[name], array, rtol=1e-6), name
        assert form == "again" or np.array_equal(found[name], array), name


def test_sparse_features_that_are_damaged(tmp_path: Path) -> None:
    data = plain()
    data.x = torch.sparse_coo_tensor([[0, NODES - 1], [1, 2]], torch.ones(2), (NODES, 4))
    path = save(data, tmp_path / "d.pt")
    assert load(path).feature_dim == 4
    for columns, rows, said in (
        (1 << 45, NODES, r"x.* has 35184372088832 columns; rows of at most 16777216"),
        (4, 1 << 45, r"x tells of 35184372088832 rows, more than its file has bytes"),
        (1, 1 << 61, r"x tells of 2305843009213693952 rows, more than its file has bytes"),
    ):
        for name in ("x", "y"):
            huge = plain()
            huge[name] = torch.sparse_coo_tensor([[0, 3], [0, 0]], torch.ones(2), (rows, columns))
            with pytest.raises(
                (ArgumentError, FormatError), match=said.replace("x", f"({name}|labels|features)", 1)
            ):
                load(save(huge, tmp_path / "d.pt"))
    # What is not a matrix of numbers is told where it is to be taken, and not looked at elsewhere.
    for odd, said in (
        (torch.sparse_coo_tensor([[0, 1], [1, 2]], torch.ones(2, 3), (NODES, 4, 3)), "sparse_coo"),
        (torch.sparse_coo_tensor([[0, 3]], torch.ones(2), (NODES,)), "sparse_coo"),
        (torch.sparse_coo_tensor([[0], [1], [1]], torch.ones(1), (NODES, 2, 2)), "sparse_coo"),
        (torch.sparse_coo_tensor([[0], [1]], torch.ones(1, dtype=torch.bfloat16), (NODES, 2)), "bfloat16"),
    ):
        data.x = odd
        with pytest.raises((ArgumentError, FormatError), match=said):
            load(save(data, tmp_path / "d.pt"))
        assert load(save(plain(extra=odd), tmp_path / "d.pt")).feature_dim == 6
    big = torch.sparse_coo_tensor(torch.zeros(2, 400_000, dtype=torch.long), torch.ones(400_000), (NODES, 4))
    data.x = big
    with pytest.raises(BudgetError):
        load(save(data, tmp_path / "d.pt"), memory="4MiB")
    assert load(path, memory="64MiB").feature_dim == 4


@pytest.mark.parametrize("pointers", [True, False])
def test_adjacency_of_torch_sparse(tmp_path: Path, pointers: bool) -> None:
    data = plain().coalesce()
    adjacency = torch.sparse_coo_tensor(data.edge_index.flip(0), torch.ones(data.num_edges), (NODES, NODES))
    adjacency = adjacency.coalesce()
    row, column = adjacency.indices()
    rowptr = adjacency.to_sparse_csr().crow_indices()
    given = {"_row": row, "_rowptr": None, "_col": column}
    if pointers:
        given |= {"_row": None, "_rowptr": rowptr}
    storages = {str(n): part.numpy().tobytes() for n, part in enumerate((row, rowptr, column))}
    tensors = {
        name: tensor_call((torch.LongStorage, str(n), "cpu", len(part)), 0, (len(part),))
        for n, (name, part) in enumerate((("_row", row), ("_rowptr", rowptr), ("_col", column)))
        if given[name] is not None
    }
    state = {"_row": None, "_rowptr": None, "_value": None, "_sparse_sizes": (NODES, NODES), **tensors}
    storage = Call(foreign("torch_sparse.storage", "SparseStorage"), state=state)
    adj_t = Call(foreign("torch_sparse.tensor", "SparseTensor"), state={"storage": storage})
    path = write_zip(tmp_path / "d.pt", pickled({"adj_t": adj_t}), storages)
    check(load(path), Data(edge_index=data.edge_index, num_nodes=NODES), tmp_path)


def typed() -> HeteroData:
    data = HeteroData()
    data["paper"].x = torch.rand(5, 3)
    data["author"].num_nodes = 4
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 3], [4, 1]])
    data.text = "both"
    return data


@pytest.mark.parametrize("form", [lambda data: data, lambda data: (data.to_dict(), None, HeteroData)])
def test_graphs_of_several_types_are_imported_with_them(tmp_path: Path, form: Any) -> None:
    data = typed()
    graph = load(save(form(data), tmp_path / "h.pt"))
    assert [(one.name, one.num_nodes) for one in graph.node_types] == [("paper", 5), ("author", 4)]
    with Runtime() as runtime:
        assert np.array_equal(graph.array(runtime, "n0.features").read("test"), data["paper"].x.numpy())
    assert graph.edge_index(("author", "writes", "paper")).tolist() == [[3, 0], [1, 4]]
    assert any("not imported: text" in note for note in graph.notes)


def columns_of(path: Path) -> TypedColumns:
    with Runtime("64MiB") as runtime, ExitStack() as held:
        found = read_pyg(path, runtime, held)
        assert isinstance(found, TypedColumns)
        for columns in (*found.nodes.values(), *found.edges.values(), found.graph):
            columns.update({k: np.array(v) for k, v in columns.items() if isinstance(v, np.ndarray)})
        return found


@pytest.mark.parametrize("form", [lambda data: data, lambda data: data.to_dict()])
@pytest.mark.parametrize("zipped", [True, False])
def test_columns_of_several_types(tmp_path: Path, form: Any, zipped: bool) -> None:
    data = typed()
    path = save(form(data), tmp_path / "h.pt", _use_new_zipfile_serialization=zipped)
    found = columns_of(path)
    assert list(found.nodes) == data.node_types
    assert list(found.edges) == data.edge_types
    assert np.array_equal(found.nodes["paper"]["x"], data["paper"].x.numpy())
    assert found.nodes["author"] == {"num_nodes": 4}
    edges = found.edges["author", "writes", "paper"]["edge_index"]
    assert np.array_equal(edges, data["author", "writes", "paper"].edge_index.numpy())
    assert found.graph == {"text": "both"}


def test_a_real_file_of_several_types(tmp_path: Path) -> None:
    """AIFB: one node type and 90 edge types; 140 nodes train, 36 are for the test."""
    path = shared_path("samples-pyg-pt", "hetero_data.pt")
    found = columns_of(path)
    assert list(found.edges) == [("v", str(number), "v") for number in range(90)]
    assert {name: len(value) for name, value in found.graph.items()} == {
        **dict.fromkeys(("train_idx", "train_y"), 140),
        **dict.fromkeys(("test_idx", "test_y"), 36),
    }
    for columns in found.edges.values():
        assert columns["edge_index"].dtype == np.int64
        assert columns["edge_index"].min() >= 0
        assert columns["edge_index"].max() < found.nodes["v"]["num_nodes"]
    graph = oc.import_graph(f"pyg:{path}", tmp_path / "g", progress=False)
    for one in graph.edge_types:
        edges = np.unique(found.edges["v", one.relation, "v"]["edge_index"], axis=1)
        assert np.array_equal(graph.edge_index(one), edges[:, np.lexsort(edges)])
    with pytest.raises(ArgumentError, match=r"pre_transform\.pt holds a str; a PyG Data is needed"):
        oc.import_graph(f"pyg:{path.parent / 'pre_transform.pt'}", tmp_path / "none", progress=False)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"x": torch.rand(3, 2)}, r"d\.pt has no edge_index; it has 'x'"),
        ({}, r"has no edge_index; it has nothing"),
        ([Data(), Data()], "holds 2 objects"),
        (torch.rand(3), "holds a torch._utils._rebuild_tensor_v2"),
        ({1: 2}, "has the key 1; names are needed"),
        ({"edge_index": torch.rand(3, 2)}, r"d\.pt: edge_index has shape \(3, 2\)"),
        ({"edge_index": torch.rand(2, 3)}, r"d\.pt: edges: node ids are float32"),
        ({"edge_index": {"a": 1}}, r"d\.pt: .*edge_index"),
        (
            {"edge_index": torch.zeros(2, 1).long(), "y": {"a": 1}},
            r"d\.pt: labels is a dict; save it as a tensor",
        ),
        ({"edge_index": torch.zeros(2, 1).long(), "num_nodes": "3"}, "num_nodes is 3; a number"),
        ({"edge_index": torch.zeros(2, 1).long(), "num_nodes": -1}, "num_nodes is -1; a number of nodes"),
        (
            {"edge_index": torch.zeros(2, 1).long(), "num_nodes": 2**70},
            "num_nodes is 11805916207174113034; a number of nodes",
        ),
        (
            {"edge_index": torch.zeros(2, 1).long(), "num_nodes": 2**40},
            "tells of 1099511627776 nodes, and has 1 edges",
        ),
        ({"edge_index": torch.full((2, 1), 7), "num_nodes": 3}, r"d\.pt.*names node 7, but there are 3"),
        ({"edge_index": torch.zeros(2, 1).long(), "x": torch.rand(3).bfloat16()}, "x is bfloat16, .*float()"),
        ({"a": {"x": 1}, ("a", "b"): {}}, "an edge type is three names"),
    ],
)
def test_what_cannot_be_imported(tmp_path: Path, given: Any, match: str) -> None:
    with pytest.raises((ArgumentError, FormatError), match=match):
        load(save(given, tmp_path / "d.pt"))


def test_many_nodes_may_be_meant(tmp_path: Path) -> None:
    path = save({"edge_index": torch.zeros(2, 1).long(), "num_nodes": 2_000_000}, tmp_path / "d.pt")
    with pytest.raises(ArgumentError, match="--num-nodes 2000000"):
        load(path, "64MiB")
    assert load(path, "64MiB", num_nodes=2_000_000).num_nodes == 2_000_000


class Mine(Data):
    """A class of the user's own."""


def test_a_class_that_is_not_known_is_named_with_what_to_do(tmp_path: Path) -> None:
    data = plain()
    mine = Mine(**data.to_dict())
    path = save(mine, tmp_path / "d.pt")
    with pytest.raises(
        FormatError, match=r"d\.pt.*names \S+\.Mine, .*torch\.save\(data\.to_dict\(\), 'plain\.pt'\)"
    ):
        load(path)
    check(load(save(mine.to_dict(), tmp_path / "plain.pt")), data, tmp_path)  # as it says


def test_torch_is_not_loaded(tmp_path: Path) -> None:
    path = save(plain(), tmp_path / "d.pt")
    code = (
        "import sys, outcrop as oc\n"
        f"oc.import_graph('pyg:{path}', {str(tmp_path / 'g')!r}, progress=False)\n"
        "assert not {'torch', 'torch_geometric'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_twenty_times_as_large_as_the_budget(tmp_path: Path) -> None:
    nodes, limit = 80_000, 3 << 20
    data = Data(
        x=torch.rand(nodes, 200),
        edge_index=torch.randint(0, nodes, (2, 100_000)),
        y=torch.arange(nodes) % 7,
        train_mask=torch.arange(nodes) % 2 == 0,
    )
    path = save(data, tmp_path / "d.pt")
    assert path.stat().st_size > 20 * limit
    from outcrop.importing.graph import import_graph

    tracemalloc.start()
    try:
        with Runtime(limit) as runtime:
            before = tracemalloc.get_traced_memory()[0]
            graph = import_graph(f"pyg:{path}", tmp_path / "g", runtime)
            allocated = tracemalloc.get_traced_memory()[1] - before
            assert runtime.budget.peak_bytes <= limit
            assert allocated <= limit  # of Python and NumPy, whether the budget knows of it or not
    finally:
        tracemalloc.stop()
    assert np.array_equal(arrays(graph)["features"], data.x.numpy())


def test_deflated_and_big_endian_files(tmp_path: Path) -> None:
    data = Data(edge_index=torch.randint(0, NODES, (2, EDGES)), y=torch.arange(NODES))
    path = save(data, tmp_path / "d.pt")
    check(load(rewritten(path, tmp_path / "z.pt", zipfile.ZIP_DEFLATED)), data, tmp_path)
    check(load(rewritten(path, tmp_path / "b.pt", zipfile.ZIP_STORED, swap=True)), data, tmp_path)
    given = {"edge_index": data.edge_index, "x": np.arange(3 * NODES, dtype=">f4").reshape(NODES, 3)}
    swapped = Data(edge_index=data.edge_index, x=torch.arange(3.0 * NODES).reshape(NODES, 3))
    check(load(save(given, tmp_path / "n.pt")), swapped, tmp_path)


def test_a_path_alone_is_told_its_kind(tmp_path: Path) -> None:
    path = save(plain(), tmp_path / "d.pt")
    with pytest.raises(ArgumentError, match=rf"names no files; .*pyg:FILE.*; here perhaps 'pyg:{path}'"):
        oc.import_graph(str(path), tmp_path / "g", progress=False)
    with pytest.raises(FormatError, match="is a source, not a graph"):
        oc.open_graph(f"pyg:{path}")
