"""Generated graphs with types: the same bytes for any budget, the sizes that were asked for, classes that need both."""

from __future__ import annotations

import numpy as np
import pytest

import outcrop as oc
from outcrop.importing.generate import generate_graph
from outcrop.importing.generate_typed import typed_source
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.store.verify import verify_artifact

SMALL = {"kind": "typed", "nodes": 2230, "edges": 19_400, "features": 12, "classes": 6}


def generated(path, memory=None, **options) -> Graph:
    with Runtime(memory) as runtime:
        return generate_graph(path, runtime, oc.GenerateConfig(**{**SMALL, **options}))


def read(graph, name):
    with Runtime() as runtime:
        return graph.array(runtime, name).read("test")


def test_types_have_the_sizes_that_were_asked_for(tmp_path):
    graph = generated(tmp_path / "g.oc", train_fraction=0.01)
    assert {one.name: one.num_nodes for one in graph.node_types} == {
        "paper": 1200,
        "author": 1000,
        "topic": 20,
        "institution": 10,
    }
    forward = [one.key for one in graph.edge_types[:4]]
    assert forward == [
        ("paper", "cites", "paper"),
        ("author", "writes", "paper"),
        ("paper", "about", "topic"),
        ("author", "affiliated", "institution"),
    ]
    assert [one.key for one in graph.edge_types[4:]] == [(t, f"rev_{r}", s) for s, r, t in forward]
    listed = [one["edges_listed"] for one in graph.manifest.attributes["edge_types"]]
    assert listed[:4] == listed[4:] == [12_000, 4000, 2400, 1000]
    for one, back in zip(graph.edge_types[:4], graph.edge_types[4:], strict=True):
        edges = graph.edge_index(one)[::-1]
        assert np.array_equal(edges[:, np.lexsort(edges)], graph.edge_index(back))
    assert not np.equal(*graph.edge_index(("paper", "cites", "paper"))).any()
    assert {rows.array: (rows.spec.shape, rows.spec.dtype) for rows in graph.row_files} == {
        "n0.features": ((1200, 12), "float32"),
        "n1.features": ((1000, 6), "float16"),
        "n2.features": ((20, 3), "int8"),
    }
    assert graph.num_classes == 6
    assert np.bincount(read(graph, "n0.labels")).tolist() == [200] * 6
    assert [len(read(graph, f"n0.{split}")) for split in ("train", "valid", "test")] == [12, 60, 120]
    with Runtime() as runtime:
        verify_artifact(graph.path, runtime)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nodes": 60_000, "edges": 90_000, "edge_features": 16},
        {"features": 0, "edge_features": 1},
        {"classes": 1},
    ],
)
def test_the_same_bytes_for_any_budget(tmp_path, options):
    large, small = generated(tmp_path / "a.oc", **options), generated(tmp_path / "b.oc", "8MiB", **options)
    assert large.digest() == small.digest()
    for spec in large.manifest.arrays.values():
        assert (large.path / spec.file).read_bytes() == (small.path / spec.file).read_bytes()


def drawn_edge_rows(seed: int, count: int) -> np.ndarray:
    """Makes rows of 16 numbers for so many edges again, in the order in which these are drawn, in blocks of 4096."""
    blocks = []
    for number in range(-(-count // 4096)):
        counter, key = np.array([0, 0, 0, number], np.uint64), np.array([seed, 80], np.uint64)
        numbers = np.random.Philox(counter=counter, key=key).random_raw(4096 * 16).view(np.uint16)
        sums = numbers.reshape(4096, 16, 4).sum(axis=2, dtype=np.int64)
        blocks.append(((sums - 131_070) / 2**15).astype(np.float32).astype(np.float16))
    return np.concatenate(blocks)[:count]


@pytest.mark.parametrize("memory", [None, "8MiB"])
def test_edges_have_the_rows_they_were_drawn_with(tmp_path, memory):
    """The rows of stored edges are found again by hand: of equal edges the first one stays, loops go."""
    seed = 3
    graph = generated(tmp_path / "g.oc", memory, edge_features=16, seed=seed)
    with Runtime() as runtime:
        config = oc.GenerateConfig(**SMALL, edge_features=16, seed=seed)
        blocks = typed_source(config, runtime).edges[0].edges()
        sources, targets = (np.concatenate(part) for part in zip(*blocks, strict=True))
    rows = drawn_edge_rows(seed, len(sources))
    assert len(rows) == graph.manifest.attributes["edge_types"][0]["edges_listed"] == 12_000
    for relation, ends in (("cites", (sources, targets)), ("rev_cites", (targets, sources))):
        key = ("paper", relation, "paper")
        _, first = np.unique(np.stack([ends[1], ends[0]]), axis=1, return_index=True)
        first = first[sources[first] != targets[first]]
        assert np.array_equal(graph.edge_index(key), np.stack([ends[0][first], ends[1][first]]))
        assert np.array_equal(read(graph, f"e{graph.edge_type(key).number}.features"), rows[first])
    assert len(graph.row_files) == 5


def test_rows_of_edges_change_nothing_else(tmp_path):
    without, graph = generated(tmp_path / "a.oc"), generated(tmp_path / "b.oc", edge_features=3)
    for name, spec in without.manifest.arrays.items():
        assert graph.manifest.arrays[name].crc32c == spec.crc32c
    more = set(graph.manifest.arrays) - set(without.manifest.arrays)
    assert {name for name in more if "page_crc" not in name} == {"e0.features", "e4.features"}


def test_another_seed_gives_another_graph(tmp_path):
    one, other = generated(tmp_path / "a.oc"), generated(tmp_path / "b.oc", seed=1)
    for array in ("indices", "n0.features", "n0.labels", "n0.train"):
        assert one.manifest.arrays[array].crc32c != other.manifest.arrays[array].crc32c
    assert generated(tmp_path / "c.oc", seed=-1).num_nodes == one.num_nodes


def test_the_bytes_stay_what_they_are(tmp_path):
    """The formulas are integers and products, so every machine makes these."""
    arrays = generated(tmp_path / "g.oc").manifest.arrays
    names = ("indices", "n0.features", "n1.features", "n2.features", "n0.labels", "n0.train")
    assert [arrays[name].crc32c for name in names] == CHECKSUMS


CHECKSUMS = [1448310007, 2897836442, 3621318382, 3321694375, 2357788544, 649736110]


def accuracy(columns, classes, train):
    """Fits classes to columns by least squares on some rows, and counts what is right among the others."""
    x = np.concatenate([*columns, np.ones((len(classes), 1))], axis=1)
    weights = np.linalg.lstsq(x[train], np.eye(classes.max() + 1)[classes[train]], rcond=None)[0]
    return float(np.mean((x[~train] @ weights).argmax(axis=1) == classes[~train]))


def mean_of(graph, key, rows):
    """Means of the rows of the sources, by target."""
    edges, target = graph.edge_index(key), graph.edge_type(key).target
    sums = np.zeros((target.num_nodes, rows.shape[1]))
    np.add.at(sums, edges[1], rows[edges[0]])
    return sums / np.maximum(np.bincount(edges[1], minlength=target.num_nodes), 1)[:, None]


def test_classes_need_citations_and_authors(tmp_path):
    graph = generated(tmp_path / "g.oc", nodes=11_150, edges=97_000, features=16, classes=16)
    classes, papers = read(graph, "n0.labels"), read(graph, "n0.features").astype(np.float64)
    authors = read(graph, "n1.features").astype(np.float64)
    cited = mean_of(graph, ("paper", "cites", "paper"), papers)
    written = mean_of(graph, ("author", "writes", "paper"), authors)
    train = np.random.default_rng(0).random(len(classes)) < 0.5
    alone, by_citations = accuracy([papers], classes, train), accuracy([papers, cited], classes, train)
    by_authors = accuracy([papers, written], classes, train)
    both = accuracy([papers, cited, written], classes, train)
    assert both > alone + 0.2
    assert both > by_citations + 0.05
    assert both > by_authors + 0.05
    # What citations show of the part that authors show is chance.
    assert accuracy([papers, cited], classes % 4, train) < 0.3
    assert accuracy([written], classes // 4, train) < 0.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 3}, "3 nodes are too few for 6 classes"),
        ({"classes": 1300}, "2230 nodes are too few for 1300 classes"),
        ({"classes": 0}, "0 classes, at least 1 is needed"),
        ({"edges": 10_000_000}, "edges 'paper cites paper' do not fit 1438800 pairs of nodes"),
        ({"dtype": "bfloat16"}, "papers have rows of float32, float16 or int8 here"),
        ({"edge_features": -1}, "edge features -1 are not possible"),
        (
            {"kind": "sbm", "edge_features": 4},
            "edge features 4 are not possible: .* this graph is of kind 'sbm'",
        ),
    ],
)
def test_impossible_graphs_are_refused(tmp_path, options, message):
    with pytest.raises(oc.ArgumentError, match=message):
        generated(tmp_path / "g.oc", **options)
    assert not (tmp_path / "g.oc").exists()


def test_the_same_options_keep_what_is_there(tmp_path):
    config = oc.GenerateConfig(**SMALL)
    first = oc.generate_graph(tmp_path / "g.oc", config, progress=False)
    before = (first.path / "manifest.json").stat().st_mtime_ns
    assert oc.generate_graph(tmp_path / "g.oc", config, progress=False).path == first.path
    assert (first.path / "manifest.json").stat().st_mtime_ns == before
    with pytest.raises(oc.ArgumentError, match="overwrite"):
        oc.generate_graph(tmp_path / "g.oc", oc.GenerateConfig(**{**SMALL, "seed": 2}), progress=False)
