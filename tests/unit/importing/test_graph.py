"""Import against independent parses: SciPy, NumPy, the csv and json modules."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifact_support import manifest_at
from outcrop import _core
from outcrop.config import ImportConfig
from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError, BudgetError, ChecksumError, FormatError
from outcrop.importing.graph import import_graph
from outcrop.importing.nodes import convert
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.store.verify import describe, verify_artifact
from sparse_reference import dense_rows, features_of
from support import held_bytes, new_runtime, read_names, shared_path

TORTURED = True
NODES = 50


def get(graph: Graph, name: str) -> np.ndarray:
    return np.array(graph.array(new_runtime(), name).memmap())


def edges_of(graph: Graph) -> list[tuple[int, int]]:
    """(source, target), by target."""
    return list(
        zip(
            get(graph, "indices").tolist(),
            np.repeat(np.arange(graph.num_nodes), np.diff(get(graph, "indptr"))).tolist(),
            strict=True,
        )
    )


def expected(src: Any, dst: Any) -> list[tuple[int, int]]:
    """Distinct edges by (target, source): a brute-force oracle."""
    return sorted(set(zip(map(int, src), map(int, dst), strict=True)), key=lambda e: (e[1], e[0]))


def make_folder(
    folder: Path, *, nodes: int = NODES, edges: int = 400, seed: int = 0, **arrays: np.ndarray
) -> Path:
    """A folder of arrays with edges; ``arrays`` are saved as .npy next to them."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = np.random.default_rng(seed).integers(0, nodes, (edges, 2))
    for name, array in {"edges": pairs, **arrays}.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def run(folder: Path, runtime: Runtime | None = None, out: Path | None = None, **options: Any) -> Graph:
    out = out or folder.parent / "graph"
    runtime = runtime or new_runtime("32MiB")
    graph = import_graph(f"arrays:{folder}", out, runtime, **options)
    assert held_bytes(runtime) == 0
    verify_artifact(out, runtime)
    return graph


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pairs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=60),
    duplicates=st.booleans(),
    loops=st.booleans(),
    reverse=st.booleans(),
)
def test_topology_equals_scipy(
    tmp_path: Path, pairs: list, duplicates: bool, loops: bool, reverse: bool
) -> None:
    make_folder(tmp_path / "in", edges=0)
    array = np.array(pairs, np.int32).reshape(-1, 2)
    np.save(tmp_path / "in/edges.npy", array)
    np.save(tmp_path / "in/labels.npy", np.zeros(10, np.int64))
    graph = run(tmp_path / "in", keep_duplicates=duplicates, keep_self_loops=loops, reverse=reverse)
    src, dst = array[:, 0], array[:, 1]
    if not loops:
        src, dst = src[src != dst], dst[src != dst]
    if reverse:
        apart = src != dst
        src, dst = np.concatenate([src, dst[apart]]), np.concatenate([dst, src[apart]])
    matrix = sp.coo_matrix((np.ones(len(src), int), (src, dst)), (10, 10)).tocsc()
    matrix.sort_indices()
    counts = matrix.data if duplicates else np.ones(matrix.nnz, int)
    assert np.array_equal(get(graph, "indices"), np.repeat(matrix.indices, counts))
    assert np.array_equal(
        np.diff(get(graph, "indptr")),
        np.add.reduceat(np.append(counts, 0), matrix.indptr[:-1]) * (np.diff(matrix.indptr) > 0),
    )
    about = graph.manifest.attributes
    assert about["edges_listed"] == len(pairs)
    assert about["self_loops_dropped"] == (0 if loops else sum(a == b for a, b in pairs))
    assert graph.num_edges + about["duplicates_dropped"] == len(src)


@pytest.mark.parametrize(
    "form",
    [
        "npy",
        "npy-2xE",
        "npy-fortran",
        "npy-uint32",
        "npy-big-endian",
        "parquet",
        "parquet-named",
        "csv",
        "csv-header",
        "tsv-header",
        "txt-comments",
        "csv-swapped",
    ],
)
def test_every_form_of_edge_list(tmp_path: Path, form: str) -> None:
    folder = make_folder(tmp_path / "in")
    pairs = np.load(folder / "edges.npy")
    (folder / "edges.npy").unlink()
    src, dst = pairs.T
    if form.startswith("npy"):
        array = {
            "npy": pairs,
            "npy-2xE": np.ascontiguousarray(pairs.T),
            "npy-fortran": np.asfortranarray(pairs),
            "npy-uint32": pairs.astype(np.uint32),
            "npy-big-endian": pairs.astype(">i8"),
        }[form]
        np.save(folder / "edges.npy", array)
    elif form == "parquet":
        pq.write_table(
            pa.table({"a": src, "b": dst, "weight": np.ones(len(src))}),
            folder / "edges.parquet",
            row_group_size=64,
        )
    elif form == "parquet-named":
        pq.write_table(pa.table({"target": dst, "w": dst * 0.5, "source": src}), folder / "edges.parquet")
    elif form == "csv-swapped":
        pa_csv.write_csv(pa.table({"dst": dst, "src": src}), folder / "edges.csv")
    elif form == "txt-comments":
        lines = ["# a graph", "# FromNodeId\tToNodeId", *(f"{s}\t{d}" for s, d in pairs)]
        (folder / "edges.txt").write_text("\n".join(lines))
    else:
        kind, _, header = form.partition("-")
        separator = "," if kind == "csv" else "\t"
        lines = ([f"one{separator}two"] if header else []) + [f"{s}{separator}{d}" for s, d in pairs]
        (folder / f"edges.{kind}").write_text("\n".join(lines) + "\n")
    graph = run(folder)
    assert edges_of(graph) == expected(src, dst)
    assert graph.num_nodes == pairs.max() + 1


def test_two_by_two_is_read_as_rows(tmp_path: Path) -> None:
    make_folder(tmp_path / "in")
    np.save(tmp_path / "in/edges.npy", np.array([[0, 1], [2, 3]]))
    graph = run(tmp_path / "in")
    assert edges_of(graph) == [(0, 1), (2, 3)]


def test_graph_larger_than_the_budget(tmp_path: Path) -> None:
    """32 MB of edges and 20 MB of features within 4 MiB."""
    rng = np.random.default_rng(0)
    nodes = 20_000
    folder = make_folder(
        tmp_path / "in", nodes=nodes, edges=2_000_000, features=rng.random((nodes, 250), np.float32)
    )
    runtime = new_runtime("4MiB")
    graph = run(folder, runtime)
    assert runtime.budget.peak_bytes <= 4 << 20
    pairs = np.load(folder / "edges.npy")
    key = np.unique(pairs[:, 1] * nodes + pairs[:, 0])
    assert np.array_equal(get(graph, "indices"), key % nodes)
    assert np.array_equal(np.diff(get(graph, "indptr")), np.bincount(key // nodes, minlength=nodes))
    assert np.array_equal(get(graph, "features"), np.load(folder / "features.npy"))
    assert run(folder, new_runtime(threads=1), tmp_path / "other").digest() == graph.digest()


def test_budget_below_the_least_is_refused_with_the_number(tmp_path: Path) -> None:
    small = new_runtime("64KiB")
    least = small.budget.now_bytes + 1572864  # the I/O engine's own buffers, and what sorting needs
    with pytest.raises(BudgetError, match=f"raise the budget to at least {least} bytes"):
        run(make_folder(tmp_path / "in"), small)
    assert not (tmp_path / "graph").exists()
    run(make_folder(tmp_path / "in"), new_runtime(1572864 + (1 << 20)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "uint8", "int32", "bool"])
@pytest.mark.parametrize("width", [1, 7, 100, 343])
def test_features_come_back_bit_for_bit(tmp_path: Path, dtype: str, width: int) -> None:
    features = (np.random.default_rng(1).random((NODES, width)) * 100).astype(dtype)
    graph = run(make_folder(tmp_path / "in", features=features))
    got = get(graph, "features")
    assert graph.feature_dim == width
    assert got.dtype == (np.uint8 if dtype == "bool" else features.dtype)
    assert got.tobytes() == features.tobytes()


def test_parquet_features_and_text_labels(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "in")
    features = np.random.default_rng(1).random((NODES, 5)).astype(np.float32)
    pq.write_table(
        pa.table({f"f{i}": features[:, i] for i in range(5)}), folder / "features.parquet", row_group_size=7
    )
    words = [["cat", "dog", "ant"][i % 3] for i in range(NODES)]
    (folder / "labels.csv").write_text("label\n" + "\n".join(words) + "\n")
    graph = run(folder)
    assert np.array_equal(get(graph, "features"), features)
    assert graph.manifest.attributes["class_names"] == ["ant", "cat", "dog"]
    assert [["ant", "cat", "dog"][i] for i in get(graph, "labels")] == words
    (folder / "features.parquet").unlink()
    lists = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), 5)
    pq.write_table(pa.table({"x": lists}), folder / "features.parquet")
    assert np.array_equal(get(run(folder), "features"), features)


def test_float_labels_with_nan_mean_none(tmp_path: Path) -> None:
    labels = np.arange(NODES) % 4.0
    labels[3] = np.nan
    graph = run(make_folder(tmp_path / "in", labels=labels), train_fraction=0.5)
    assert get(graph, "labels")[:5].tolist() == [0, 1, 2, -1, 0]
    assert graph.num_classes == 4
    assert 3 not in np.concatenate([get(graph, s) for s in SPLITS])


def test_feature_conversion_equals_torch(tmp_path: Path) -> None:
    features = np.random.default_rng(2).standard_normal((NODES, 9)).astype(np.float32) * 1e3
    folder = make_folder(tmp_path / "in", features=features)
    half = get(run(folder, feature_dtype="float16"), "features")
    assert np.array_equal(half, torch.tensor(features).half().numpy())
    brain = get(run(folder, feature_dtype="bfloat16"), "features")
    assert np.array_equal(brain.view(np.int16), torch.tensor(features).bfloat16().view(torch.int16).numpy())
    np.save(folder / "features.npy", brain)
    again = run(folder, bfloat16_bits=True)
    assert again.spec("features").dtype == "bfloat16"
    assert np.array_equal(get(again, "features"), brain)
    special = np.array([[0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4e38]], np.float32)
    assert np.array_equal(
        convert(special, "bfloat16").view(np.int16)[:, [0, 1, 2, 3, 5, 6]],
        torch.tensor(special).bfloat16().view(torch.int16).numpy()[:, [0, 1, 2, 3, 5, 6]],
    )
    features[7, 2] = 1e6
    np.save(folder / "features.npy", features)
    with pytest.raises(FormatError, match="row 7, column 2 is not finite as float16"):
        run(folder, feature_dtype="float16")


def test_text_ids_by_first_appearance(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/edges.csv").write_text("source,target\nann,bob\nbob,çelik\nçelik,ann\nann,bob\n")
    graph = run(tmp_path / "in")
    names = read_names(graph, new_runtime())
    assert sorted(names) == ["ann", "bob", "çelik"]
    assert {(names[a], names[b]) for a, b in edges_of(graph)} == {
        ("ann", "bob"),
        ("bob", "çelik"),
        ("çelik", "ann"),
    }
    assert read_names(graph, new_runtime(), 1, 2) == names[1:2]


@pytest.mark.parametrize("kind", ["text", "numbers", "plain"])
def test_node_table_fixes_the_order(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    ids: list[Any] = {"text": ["d", "b", "c", "a"], "numbers": [70, -5, 30, 9], "plain": [0, 1, 2, 3]}[kind]
    pairs = [(0, 1), (2, 1), (3, 0)]
    lines = [
        f"{n},{label},{split}"
        for n, label, split in zip(ids, [1, 0, "", 2], ["train", "val", "", "test"], strict=True)
    ]
    (folder / "nodes.csv").write_text("id,label,split\n" + "\n".join(lines) + "\n")
    (folder / "edges.csv").write_text("src,dst\n" + "".join(f"{ids[a]},{ids[b]}\n" for a, b in pairs))
    np.save(folder / "features.npy", np.arange(8, dtype=np.float32).reshape(4, 2))
    graph = run(folder)
    assert edges_of(graph) == expected(*zip(*pairs, strict=True))
    assert get(graph, "labels").tolist() == [1, 0, -1, 2]
    assert {s: get(graph, s).tolist() for s in SPLITS} == {"train": [0], "valid": [1], "test": [3]}
    if kind == "plain":
        assert not graph.has("names")
    else:
        assert read_names(graph, new_runtime()) == [str(i) for i in ids]
    with (folder / "edges.csv").open("a") as file:
        file.write(f"{ids[0]},{'zz' if kind == 'text' else 999}\n")
    with pytest.raises(ArgumentError, match=r"zz|999"):
        run(folder)


def test_splits_as_ids_masks_and_table(tmp_path: Path) -> None:
    mask = np.zeros(NODES, bool)
    mask[[5, 30]] = True
    folder = make_folder(
        tmp_path / "in",
        train=np.array([9, 2, 4]),
        val=mask,
        test=np.array([], np.int64),
        labels=np.zeros(NODES, int),
    )
    graph = run(folder)
    assert {s: get(graph, s).tolist() for s in SPLITS} == {"train": [2, 4, 9], "valid": [5, 30], "test": []}
    for name in ("train", "val", "test"):
        (folder / f"{name}.npy").unlink()
    (folder / "splits.tsv").write_text("id\tsplit\n7\ttrain\n3\ttest\n1\ttrain\n")
    graph = run(folder)
    assert get(graph, "train").tolist() == [1, 7]
    assert get(graph, "test").tolist() == [3]
    assert not graph.has("valid")


def test_fraction_splits_are_keyed_and_exact(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "in", nodes=1000, labels=np.where(np.arange(1000) % 4 == 0, -1, 1))
    splits = {}
    for seed in (0, 0, 1):
        graph = run(folder, train_fraction=0.5, valid_fraction=0.25, split_seed=seed)
        found = [get(graph, s) for s in SPLITS]
        assert [len(f) for f in found] == [375, 187, 188]
        assert np.array_equal(np.sort(np.concatenate(found)), np.flatnonzero(np.arange(1000) % 4))
        splits.setdefault(seed, found[0])
        assert np.array_equal(splits[seed], found[0])
    assert not np.array_equal(splits[0], splits[1])


def test_per_class_splits(tmp_path: Path) -> None:
    labels = np.random.default_rng(0).integers(0, 3, 2000)
    folder = make_folder(tmp_path / "in", nodes=2000, labels=labels)
    graph = run(folder, split_protocol="per-class")
    assert np.bincount(labels[get(graph, "train")]).tolist() == [20] * 3
    assert np.bincount(labels[get(graph, "valid")]).tolist() == [30] * 3
    assert len(get(graph, "test")) == 2000 - 150
    graph = run(folder, split_protocol="planetoid")
    assert [len(get(graph, s)) for s in SPLITS] == [60, 500, 1000]
    assert len(np.unique(np.concatenate([get(graph, s) for s in SPLITS]))) == 1560


def test_no_edges_is_legal_no_nodes_is_not(tmp_path: Path) -> None:
    graph = run(make_folder(tmp_path / "in", edges=0, labels=np.zeros(NODES, int)))
    assert (graph.num_edges, graph.num_nodes) == (0, NODES)
    assert graph.manifest.attributes["nodes_without_in_edges"] == NODES
    with pytest.raises(ArgumentError, match="zero nodes"):
        run(make_folder(tmp_path / "empty", edges=0))
    with pytest.raises(ArgumentError, match="zero nodes"):
        run(make_folder(tmp_path / "none", edges=0, labels=np.zeros(0, int)))
    for text in ("", "src,dst\n"):
        (tmp_path / "in/edges.npy").unlink(missing_ok=True)
        (tmp_path / "in/edges.csv").write_text(text)
        assert run(tmp_path / "in").num_edges == 0


def test_describe_and_verify(tmp_path: Path) -> None:
    graph = run(
        make_folder(tmp_path / "in", labels=np.zeros(NODES, int), features=np.ones((NODES, 3), np.float16))
    )
    about = describe(graph.path)
    json.dumps(about)
    assert about["format"] == "outcrop.graph"
    assert about["graph"]["mean_in_degree"] == graph.num_edges / NODES
    assert about["arrays"]["features"] == {"dtype": "float16", "shape": [NODES, 3], "bytes": NODES * 6}
    with (graph.path / "features.bin").open("r+b") as file:
        file.seek(17)
        file.write(b"\xff")
    with pytest.raises(ChecksumError, match=r"features\.bin"):
        verify_artifact(graph.path, new_runtime())


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("indptr", 2, 1 << 40),
        ("indptr", 0, 1),
        ("indices", 0, NODES),
        ("indices", 1, 0),
        ("labels", 4, 7),
        ("train", 1, 0),
    ],
)
def test_verify_checks_structure_behind_right_checksums(
    tmp_path: Path, name: str, at: int, value: int
) -> None:
    graph = run(make_folder(tmp_path / "in", labels=np.zeros(NODES, int), train=np.arange(5, 10)))
    spec = graph.spec(name)
    data = np.fromfile(graph.path / spec.file, spec.dtype)
    data[at] = value
    if (name, at) == ("indices", 1):
        assert get(graph, "indptr")[1] >= 2
        data[0], data[1] = 9, 8  # falling within node 0
    data.tofile(graph.path / spec.file)
    crc = _core.crc32c(data.view(np.uint8)[: spec.data_bytes])
    path = graph.path / "manifest.json"
    manifest = manifest_at(path)
    manifest["arrays"][name]["crc32c"] = crc
    path.write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match=name):
        verify_artifact(graph.path, new_runtime())


def undirected(src: np.ndarray, dst: np.ndarray, loops: bool) -> list[tuple[int, int]]:
    keep = np.ones(len(src), bool) if loops else src != dst
    return expected(np.concatenate([src[keep], dst[keep]]), np.concatenate([dst[keep], src[keep]]))


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "features", "nnz", "classes"),
    [("cora", 2708, 10556, 1433, 49216, 7), ("citeseer", 3312, None, 3703, 105165, 6)],
)
def test_sparse_archives(
    tmp_path: Path, name: str, nodes: int, edges: int | None, features: int, nnz: int, classes: int
) -> None:
    path = shared_path(f"gnnbench-{name}", f"{name}.npz")
    graph = import_graph(f"npz:{path}", tmp_path / "g", new_runtime("16MiB"))
    with np.load(path) as archive:
        adjacency, attributes = (
            sp.csr_matrix(
                (archive[f"{p}_data"], archive[f"{p}_indices"], archive[f"{p}_indptr"]), archive[f"{p}_shape"]
            )
            for p in ("adj", "attr")
        )
        labels, names = archive["labels"], archive["node_names"]
    coo = adjacency.tocoo()
    assert edges_of(graph) == undirected(coo.row, coo.col, loops=False)
    assert (graph.num_nodes, graph.feature_dim, graph.num_classes) == (nodes, features, classes)
    assert edges is None or graph.num_edges == edges
    dense = features_of(graph)
    assert np.count_nonzero(dense) == nnz
    assert np.array_equal(dense, attributes.toarray())
    assert np.array_equal(get(graph, "labels"), labels)
    assert read_names(graph, new_runtime()) == names.tolist()
    assert [len(get(graph, s)) for s in SPLITS] == [20 * classes, 30 * classes, nodes - 50 * classes]
    verify_artifact(tmp_path / "g", new_runtime())


def test_heterophilous_archive(tmp_path: Path) -> None:
    path = shared_path("hetero-tolokers", "tolokers.npz")
    graph = import_graph(f"npz:{path}", tmp_path / "g", new_runtime("64MiB"), split_index=3)
    with np.load(path) as archive:
        src, dst = archive["edges"].T
        assert np.array_equal(get(graph, "features"), archive["node_features"])
        assert np.array_equal(get(graph, "labels"), archive["node_labels"])
        for split, masks in (("train", "train_masks"), ("valid", "val_masks"), ("test", "test_masks")):
            assert np.array_equal(get(graph, split), np.flatnonzero(archive[masks][3]))
    assert (graph.num_nodes, graph.num_edges, graph.num_classes) == (11_758, 2 * 519_000, 2)
    key = np.unique(np.concatenate([dst * 11_758 + src, src * 11_758 + dst]))
    assert np.array_equal(get(graph, "indices"), key % 11_758)
    with pytest.raises(ArgumentError, match="10 splits"):
        import_graph(f"npz:{path}", tmp_path / "h", new_runtime(), split_index=10)


def test_musae_within_a_tenth_of_its_features(tmp_path: Path) -> None:
    folder = shared_path("musae-facebook")
    runtime = new_runtime("42MB")
    graph = import_graph(f"musae:{folder}", tmp_path / "g", runtime)
    assert runtime.budget.peak_bytes <= 42_000_000
    with (folder / "facebook_edges.csv").open() as file:
        src, dst = np.array([[int(a), int(b)] for a, b in list(csv.reader(file))[1:]]).T
    assert len(src) == 171_002
    assert edges_of(graph) == undirected(src, dst, loops=True)
    with (folder / "facebook_target.csv").open(encoding="utf-8") as file:
        types = [row["page_type"] for row in csv.DictReader(file)]
    names = graph.manifest.attributes["class_names"]
    assert [names[i] for i in get(graph, "labels")] == types
    assert (graph.num_nodes, graph.feature_dim, graph.num_classes) == (22_470, 4714, 4)
    listed = json.loads((folder / "facebook.json").read_text())
    features = graph.array(new_runtime(), "features").memmap()
    total = 0
    for start in range(0, 22_470, 2247):
        dense = dense_rows(features[start : start + 2247], graph.manifest.attributes["sparse"])
        rows, columns = np.nonzero(dense)
        total += len(rows)
        want = {(int(n) - start, c) for n, cs in listed.items() if start <= int(n) < start + 2247 for c in cs}
        assert set(zip(rows.tolist(), columns.tolist(), strict=True)) == want
        assert dense.max() == 1
    assert total == len({(n, c) for n, cs in listed.items() for c in cs})


def test_plain_edge_list_of_the_shared_path(tmp_path: Path) -> None:
    path = shared_path("soc-Epinions1", "soc-Epinions1.txt")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/edges.txt").symlink_to(path)
    graph = run(tmp_path / "in")
    pairs = np.loadtxt(path, np.int64, comments="#")
    assert (graph.num_nodes, graph.num_edges) == (pairs.max() + 1, 405_739)
    assert edges_of(graph) == expected(pairs[:, 0], pairs[:, 1])


def test_config_reports_all_problems_at_once() -> None:
    with pytest.raises(ArgumentError, match=r"feature dtype 'int4'.*split protocol 'x'.*fractions"):
        ImportConfig(feature_dtype="int4", split_protocol="x", train_fraction=0.9, valid_fraction=0.2)  # pyright: ignore


@pytest.mark.parametrize(
    "name", ["list.txt", "list.tsv", "list.csv", "list.parquet", "list.npy", "out.konect"]
)
def test_an_edge_list_by_itself(tmp_path, name):
    pairs = np.random.default_rng(3).integers(0, 40, (300, 2))
    path = tmp_path / name
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"from": pairs[:, 0], "to": pairs[:, 1]}), path)
    elif path.suffix == ".npy":
        np.save(path, pairs)
    else:
        mark = "%" if path.suffix == ".konect" else "#"
        delimiter = {".csv": ",", ".tsv": "\t"}.get(path.suffix, " ")
        lines = [f"{mark} nodes 40 edges 300", *(f"{a}{delimiter}{b}" for a, b in pairs)]
        path.write_text("\n".join(lines) + "\n")
    graph = import_graph(f"edges:{path}", tmp_path / "g.oc", new_runtime())
    assert edges_of(graph) == expected(pairs[:, 0], pairs[:, 1])
    assert graph.num_nodes == pairs.max() + 1
    assert "features" not in graph.manifest.arrays


def test_an_edge_list_of_names(tmp_path):
    (tmp_path / "list.csv").write_text("source,target,weight\nb,a,0.5\na,c,2\n")
    graph = import_graph(f"edges:{tmp_path / 'list.csv'}", tmp_path / "g.oc", new_runtime())
    assert list(read_names(graph, new_runtime())) == ["b", "a", "c"]
    assert edges_of(graph) == [(0, 1), (1, 2)]
    assert get(graph, "edge_weight").tolist() == [0.5, 2.0]


def test_an_edge_list_that_is_none(tmp_path):
    with pytest.raises(ArgumentError, match=r"no-such\.txt is no file: edges:FILE needs"):
        import_graph(f"edges:{tmp_path / 'no-such.txt'}", tmp_path / "g.oc", new_runtime())
    (tmp_path / "one.txt").write_text("1\n2\n")
    with pytest.raises(FormatError, match=r"one\.txt has 1 columns"):
        import_graph(f"edges:{tmp_path / 'one.txt'}", tmp_path / "g.oc", new_runtime())


def test_soc_epinions(tmp_path):
    path = shared_path("soc-Epinions1", "soc-Epinions1.txt")
    graph = import_graph(f"edges:{path}", tmp_path / "g.oc", new_runtime())
    assert (graph.num_nodes, graph.num_edges) == (75_877, 405_739)
