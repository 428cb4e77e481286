"""Graphs with types on disk: what is read is what was written, and what contradicts itself is refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import outcrop as oc
from artifact_support import manifest_at
from outcrop import _core
from outcrop.cli.describing import describe_all
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph
from outcrop.store.verify import add_page_sums, verify_artifact
from typed_reference import TypedGraph, typed_graphs
from typed_store import names_of, write_typed

# Three papers and two authors; a paper may cite itself, institutions are none.
SMALL = TypedGraph(
    (3, 2, 0),
    ((0, 0), (1, 0), (0, 1), (1, 2)),
    (((0, 1), (), (0,)), ((0, 1), (1,), ()), ((0,), (0, 1)), ()),
)
PARTS = {
    "n0.features": np.arange(12, dtype=np.float32).reshape(3, 4),
    "n1.features": np.arange(4, dtype=np.float16).reshape(2, 2),
    "n0.labels": np.array([1, -1, 0]),
    "n0.train": np.array([0, 2]),
}


@pytest.fixture
def small(tmp_path):
    return write_typed(tmp_path / "g.oc", SMALL, PARTS, {0: 2})


def edges_of(graph, r):
    pairs = [(u, v) for v, row in enumerate(graph.lists[r]) for u in row]
    return np.array(pairs, np.int64).reshape(-1, 2).T


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(typed_graphs(weighted=True))
def test_types_and_edges_are_those_that_were_written(tmp_path, reference):
    path = tmp_path / "g.oc"
    shutil.rmtree(path, ignore_errors=True)
    graph, (nodes, keys) = write_typed(path, reference), names_of(reference)
    assert [one.name for one in graph.node_types] == nodes
    assert [one.num_nodes for one in graph.node_types] == list(reference.sizes)
    assert [one.first for one in graph.node_types] == [reference.first_node(t) for t in range(len(nodes))]
    assert [one.key for one in graph.edge_types] == keys
    for r, one in enumerate(graph.edge_types):
        assert np.array_equal(graph.edge_index(one), edges_of(reference, r))
        assert np.array_equal(graph.edge_index(one.key), edges_of(reference, r))
        assert one.weighted == (reference.weights is not None and reference.weights[r] is not None)
    assert graph.num_lists == sum(reference.sizes[target] for _, target in reference.edge_types)
    assert graph.relations.num_lists == graph.num_lists
    assert graph.relations.first_lists == [one.first_list for one in graph.edge_types]
    assert graph.relations.num_weights == sum(one.num_edges for one in graph.edge_types if one.weighted)
    with Runtime() as runtime:
        assert verify_artifact(path, runtime)["format"] == "outcrop.graph"


def test_rows_labels_and_splits_belong_to_types(small):
    papers, authors, _ = small.node_types
    assert [(rows.owner, rows.array) for rows in small.row_files] == [
        (papers, "n0.features"),
        (authors, "n1.features"),
    ]
    assert small.feature_bytes == 48 + 8
    assert small.seed_type is papers
    assert (small.num_classes, small.feature_dim, small.label_kind) == (2, 4, "class")
    with Runtime() as runtime:
        assert small.split(runtime, "train").tolist() == [0, 2]
        assert np.array_equal(small.open_rows(runtime, small.row_files[1]).read("rows"), PARTS["n1.features"])


def test_a_type_is_asked_for_by_name_where_there_are_several(small):
    with pytest.raises(
        oc.ArgumentError, match=r"several edge types: name one of 't0 r0 t0', 't1 r1 t0', 't0 r2 t1'"
    ):
        small.edge_index()
    with pytest.raises(oc.ArgumentError, match="has no edge type 't0 likes t0': name one of 't0 r0 t0'"):
        small.edge_index(("t0", "likes", "t0"))


def test_two_types_with_labels_are_told_apart(tmp_path):
    parts = {"n0.labels": np.array([0, 1, 0]), "n1.train": np.array([1])}
    graph = write_typed(tmp_path / "g.oc", SMALL, parts, {0: 2})
    with pytest.raises(oc.ArgumentError, match=r"several node types of .* have labels or splits \(t0, t1\)"):
        _ = graph.num_classes
    bare = write_typed(tmp_path / "bare.oc", SMALL)
    with pytest.raises(oc.ArgumentError, match=r"none of the node types of .* \(t0, t1, t2\)"):
        bare.split(None, "train")  # type: ignore[arg-type]


def test_it_says_what_it_holds(small, tmp_path):
    text = repr(small)
    assert "nodes={'t0': 3, 't1': 2, 't2': 0}" in text
    assert "'t1 r1 t0': 3" in text
    assert "n0.features=3x4 float32" in text
    assert "n0.classes=2" in text
    (about,) = describe_all(tmp_path / "g.oc")
    assert about["version"] == 2
    papers = about["graph"]["node_types"][0]
    assert (papers["name"], papers["num_nodes"], papers["num_classes"]) == ("t0", 3, 2)
    assert (papers["feature_dim"], papers["feature_dtype"], papers["splits"]) == (4, "float32", {"train": 2})
    assert about["graph"]["edge_types"][1]["num_edges"] == 3
    assert about["graph"]["page_checksums"]


def test_what_serves_one_type_refuses_others_with_one_error(small, tmp_path):
    message = (
        r"g\.oc has types of nodes \(t0, t1, t2\) and of edges \('t0 r0 t0', .*\): what was asked for is there for "
        "graphs without types alone"
    )
    with pytest.raises(oc.ArgumentError, match=message):
        _ = small.row_file
    with pytest.raises(oc.ArgumentError, match=message):
        small.spec("features")
    with pytest.raises(oc.ArgumentError, match=message):
        oc.embed_prepare(small.path, tmp_path / "run")
    with pytest.raises(oc.ArgumentError, match="for model 'sage' choose rgcn"):
        oc.train(small.path, model="sage")


def test_labels_and_splits_are_those_of_the_type_of_the_seeds(small):
    assert small.seed_type.name == "t0"
    assert small.has("train")
    assert not small.has("valid")
    assert small.spec("labels").shape == (3,)


def test_pages_of_all_row_files_get_checksums(small, tmp_path):
    manifest = manifest_at(small.path / "manifest.json")
    for name in list(manifest["arrays"]):
        if name.endswith("_page_crc"):
            (small.path / manifest["arrays"].pop(name)["file"]).unlink()
    (small.path / "manifest.json").write_text(json.dumps(manifest))
    with Runtime() as runtime:
        assert add_page_sums(small.path, runtime) == ["indptr", "indices", "n0.features", "n1.features"]
    assert open_graph(small.path).digest() == small.digest()


def changed(folder, change):
    path = folder / "manifest.json"
    raw = manifest_at(path)
    change(raw["attributes"], raw["arrays"])
    path.write_text(json.dumps(raw))


def set_node(number, **fields):
    return lambda attributes, arrays: attributes["node_types"][number].update(fields)


def set_edge(number, **fields):
    return lambda attributes, arrays: attributes["edge_types"][number].update(fields)


def set_all(**fields):
    return lambda attributes, arrays: attributes.update(fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_all(node_types=[]), r"its node_types is '\[\]', a list of at least one table"),
        (set_all(node_types={"t0": 3}), "its node_types is .*, a list of at least one table"),
        (set_all(edge_types=[3]), "its edge_types is .*, a list of at least one table"),
        (set_node(0, name=""), "the name of node type 0 is '', text is needed"),
        (set_node(0, name=7), "the name of node type 0 is 7, text is needed"),
        (set_node(1, name="t0"), "node type 't0' is listed twice"),
        (set_node(0, num_nodes=-1), "num_nodes of node type 't0' is -1"),
        (set_node(0, num_nodes=True), "num_nodes of node type 't0' is True"),
        (set_node(0, num_nodes=4), "its node types have 6 nodes together, its num_nodes is 5"),
        (set_node(0, num_classes="2"), "num_classes of node type 't0' is '2'"),
        (set_node(0, num_classes=1 << 40), "node type 't0' says that it has 1099511627776 classes"),
        (set_node(0, num_classes=3, label_kind="regression"), "labels of kind regression and 3 classes are stored"),
        (set_node(0, label_kind="ranks"), "label kind 'ranks' is unknown"),
        (set_node(0, class_names=3), "node type 't0' has class names '3'"),
        (set_node(0, integer_names=3), "node type 't0' has 3 for 'integer_names', true or false"),
        (set_edge(0, source="t9"), "the source of edge type 0 is 't9', which is none of its node types"),
        (set_edge(0, target=["t0"]), "the target of edge type 0 is .'t0'., which is none of its node types"),
        (set_edge(1, relation=None), "the relation of edge type 1 is None, text is needed"),
        (set_edge(1, source="t0", relation="r0"), "edge type 't0 r0 t0' is listed twice"),
        (set_edge(0, num_edges=9), "its edge types have 15 edges together, its num_edges is 9"),
        (set_edge(0, num_edges=2.0), "num_edges of edge type 't0 r0 t0' is 2.0"),
        (set_edge(0, order="time"), "the order of edge type 't0 r0 t0' is 'time', 'source' was expected"),
        (set_edge(0, weighted=1), "edge type 't0 r0 t0' has 1 for 'weighted'"),
        (set_edge(0, weighted=True), "array 'edge_weight' is missing, and an edge type has weights"),
        (set_edge(0, target="t1"), "array 'indptr' has 9 rows, 8 were expected"),
        (lambda attributes, arrays: arrays.pop("indices"), "array 'indices' is missing"),
        (lambda attributes, arrays: arrays.update({"n3.train": arrays["n0.train"]}), "'n3.train' is of node type 3"),
        (lambda attributes, arrays: arrays.update({"n1.train": arrays["n0.features"]}), "'n1.train' has rows of sh"),
        (lambda attributes, arrays: arrays.update({"n1.features": arrays["n0.features"]}), "has 3 rows, 2 were exp"),
        (lambda attributes, arrays: arrays.update({"n1.labels": arrays["n0.labels"]}), "'n1.labels' has 3 rows, 2"),
        (lambda attributes, arrays: attributes.pop("node_types"), "lacks attribute 'node_types'"),
        (lambda attributes, arrays: attributes["edge_types"][0].pop("relation"), "lacks attribute 'relation'"),
    ],
)  # fmt: skip
def test_a_manifest_that_contradicts_itself_is_refused(small, change, message):
    changed(small.path, change)
    with pytest.raises(oc.FormatError, match=message) as caught:
        open_graph(small.path)
    assert str(small.path) in str(caught.value)


def test_counts_beyond_any_disk_are_refused(small):
    def change(attributes, arrays):
        attributes["node_types"][2]["num_nodes"] = 1 << 60
        attributes["node_types"].append({"name": "t3", "num_nodes": 0, "num_classes": 0})
        attributes["edge_types"].pop()
        attributes["num_nodes"] = 5 + (1 << 60)

    changed(small.path, change)
    with pytest.raises(oc.FormatError, match=f"it says that it has {5 + (1 << 60)} nodes"):
        open_graph(small.path)


@pytest.mark.parametrize(
    ("array", "position", "value", "message"),
    [
        ("indices", 0, 3, "edge 0 has source 3, nodes of type 't0' are 0 to 2"),
        ("indices", 3, 0, "edge 3 has source 0, nodes of type 't1' are 3 to 4"),
        ("indices", 0, 2, "the sources of a node fall at edge 1"),
        ("indptr", 3, 4, "offsets fall or leave the 3 edges of edge type 't0 r0 t0' near node 0"),
        ("indptr", 3, 2, r"ends with 2 the lists of edge type 't0 r0 t0', the graph has 3 edges up to there"),
        ("indptr", 1, 3, "offsets fall or leave"),
        ("n0.labels", 0, 2, "row 0 is 2, outside -1 to 1"),
        ("n0.train", 1, 3, "row 1 is 3, outside 0 to 2"),
        ("n0.train", 1, 0, "node ids do not rise"),
    ],
)
def test_verify_finds_lists_that_are_wrong_behind_right_checksums(tmp_path, array, position, value, message):
    """Writes the wrong values themselves, so that every checksum is right."""
    graph = write_typed(tmp_path / "g.oc", SMALL, PARTS, {0: 2})
    spec = graph.manifest.arrays[array]
    values = np.fromfile(graph.path / spec.file, spec.dtype, spec.shape[0])
    values[position] = value
    with (graph.path / spec.file).open("r+b") as file:
        file.write(values.tobytes())
    raw = manifest_at(graph.path / "manifest.json")
    raw["arrays"][array]["crc32c"] = _core.crc32c(values.view(np.uint8))
    raw["arrays"] = {name: one for name, one in raw["arrays"].items() if not name.endswith("_page_crc")}
    (graph.path / "manifest.json").write_text(json.dumps(raw))
    with Runtime() as runtime, pytest.raises(oc.FormatError, match=message):
        verify_artifact(graph.path, runtime)
