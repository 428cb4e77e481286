"""Edges in buckets, against plain Python over the lines of the source."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from embed_support import buckets_of, knowledge_graph, named_edges, random_triples
from outcrop import _core
from outcrop.config import BucketConfig
from outcrop.embed.buckets import open_buckets
from outcrop.embed.negatives import Degrees
from outcrop.embed.numbering import Division, by_degree
from outcrop.errors import ArgumentError, BudgetError, ChecksumError, FormatError
from outcrop.importing.generate import generate_graph
from outcrop.store.triples import open_triples
from outcrop.store.verify import verify_artifact


def names_of(rows: np.ndarray) -> list[tuple[str, ...]]:
    prefix = ["n", "n"] if rows.shape[1] == 2 else ["n", "r", "n"]
    return [tuple(f"{p}{i}" for p, i in zip(prefix, row, strict=True)) for row in rows.tolist()]


@pytest.mark.parametrize("numbering", ["random", "id", "degree"])
@pytest.mark.parametrize("relations", [0, 5])
@pytest.mark.parametrize("partitions", [1, 4, 7])
def test_every_edge_is_in_its_bucket_once(tmp_path, make_runtime, numbering, relations, partitions):
    runtime = make_runtime()
    train, valid, test = (random_triples(60, relations, n, seed) for n, seed in ((900, 1), (100, 2), (80, 3)))
    source = knowledge_graph(tmp_path, runtime, train=train, valid=valid, test=test)
    buckets = buckets_of(source, tmp_path / "run", runtime, partitions, numbering=numbering)
    found = named_edges(buckets, runtime)
    for split, rows in (("train", train), ("valid", valid), ("test", test)):
        assert Counter(found[split]) == Counter(names_of(rows))
    assert found["valid"] == names_of(valid)  # in order
    assert (buckets.num_nodes, buckets.num_relations) == (60, relations)
    degrees = Counter(name for edge in names_of(train) for name in (edge[0], edge[-1]))
    entities = buckets.names(runtime, "entity")
    nodes = buckets.numbering(runtime).nodes(np.arange(60))
    stored = buckets.array(runtime, "degrees").read("test")
    assert {entities[n]: int(d) for n, d in zip(nodes, stored, strict=True)} == degrees
    verify_artifact(tmp_path / "run" / "buckets", runtime)


def test_edges_of_a_bucket_keep_their_order_and_numbers(tmp_path, make_runtime):
    runtime = make_runtime()
    train = random_triples(50, 3, 700)
    source = knowledge_graph(tmp_path, runtime, train=train)
    buckets = buckets_of(source, tmp_path / "run", runtime, 3, numbering="id")
    rows = open_triples(source).array(runtime, "train").read("test").astype(np.int64)
    starts = [0, 17, 34, 50]
    edges, at = buckets.array(runtime, "edges").read("test"), buckets.starts(runtime)
    for i in range(3):
        for j in range(3):
            mask = (np.digitize(rows[:, 0], starts[1:]) == i) & (np.digitize(rows[:, 2], starts[1:]) == j)
            expected = rows[mask] - [starts[i], 0, starts[j]]
            np.testing.assert_array_equal(edges[at[3 * i + j] : at[3 * i + j + 1]], expected)


def test_a_small_budget_spills_and_gives_the_same(tmp_path, make_runtime):
    train = random_triples(500, 4, 40_000)
    big, small = make_runtime(), make_runtime("1MiB")
    source = knowledge_graph(tmp_path, big, train=train)
    one = buckets_of(source, tmp_path / "a", big, 8)
    two = buckets_of(source, tmp_path / "b", small, 8)
    assert one.manifest.digest() == two.manifest.digest()
    assert small.budget.peak_bytes <= 1 << 20
    with pytest.raises(BudgetError, match="sorting edges takes"):
        buckets_of(source, tmp_path / "c", make_runtime("200KiB"), 8)
    assert not (tmp_path / "c" / "buckets").exists()


def test_sorter_spills_and_keeps_order(make_runtime, tmp_path):
    runtime = make_runtime()
    sorter = _core.BucketSorter(
        runtime.io, runtime.budget, runtime.workers, str(tmp_path), _core.BucketSorter.MIN_MEMORY_BYTES, 100, 10, 7
    )  # fmt: skip
    random = np.random.default_rng(0)
    s, r, t = random.integers(0, 100, 50_000), random.integers(0, 7, 50_000), random.integers(0, 100, 50_000)
    for part in np.array_split(np.arange(50_000), 13):
        sorter.add(s[part], r[part], t[part])
    found: list[np.ndarray] = []
    sorter.finish(lambda records: found.append(records.copy()))
    bucket = s // 10 * 10 + t // 10
    order = np.argsort(bucket, kind="stable")
    expected = np.stack([bucket, s % 10, r, t % 10], axis=1)[order]
    np.testing.assert_array_equal(np.concatenate(found), expected)
    assert sorter.spilled_bytes > 0
    np.testing.assert_array_equal(sorter.counts, np.bincount(bucket, minlength=100))
    with pytest.raises(ArgumentError, match=r"target 100 .* not in \[0, 100\)"):
        sorter.add(np.zeros(1, np.int64), None, np.full(1, 100))


def test_of_any_graph(tmp_path, make_runtime):
    runtime = make_runtime()
    graph = generate_graph(tmp_path / "g.oc", runtime, nodes=300, edges=3000, features=4)
    buckets = buckets_of(graph.path, tmp_path / "run", runtime, 3, numbering="id", test_fraction=0.2)
    indptr, indices = (graph.array(runtime, n).read("test").astype(np.int64) for n in ("indptr", "indices"))
    expected = Counter(
        zip(indices.tolist(), np.repeat(np.arange(300), np.diff(indptr)).tolist(), strict=True)
    )
    found: list[np.ndarray] = [buckets.array(runtime, "test").read("test")]
    edges, starts = buckets.array(runtime, "edges").read("test").astype(np.int64), buckets.starts(runtime)
    for bucket in range(9):
        i, j = divmod(bucket, 3)
        found.append(edges[starts[bucket] : starts[bucket + 1]] + np.array([100 * i, 100 * j]))
    assert Counter(map(tuple, np.concatenate(found).tolist())) == expected
    assert 0.15 < len(found[0]) / sum(expected.values()) < 0.25
    assert not buckets.has("entity_names")


def test_held_out_edges_do_not_depend_on_the_partitions(tmp_path, make_runtime):
    runtime = make_runtime()
    source = knowledge_graph(tmp_path, runtime, train=random_triples(80, 2, 2000))
    splits = []
    for p in (1, 5):
        options = {"valid_fraction": 0.1, "test_fraction": 0.2}
        buckets = buckets_of(source, tmp_path / f"run{p}", runtime, p, **options)
        found = named_edges(buckets, runtime)
        splits.append({k: sorted(v) for k, v in found.items()})
        assert len(found["test"]) + len(found["valid"]) + len(found["train"]) == 2000
    assert splits[0] == splits[1]


@pytest.mark.parametrize("fraction", [0.0, 0.2])
def test_numbering_by_degree_counts_the_edges_that_are_trained_on(tmp_path, make_runtime, fraction):
    runtime = make_runtime()
    source = knowledge_graph(tmp_path, runtime, train=random_triples(300, 3, 2000))
    found = buckets_of(source, tmp_path / "run", runtime, 5, numbering="degree", test_fraction=fraction)
    order, degrees = (found.array(runtime, name).read("test") for name in ("order", "degrees"))
    of_node = np.empty(300, np.int64)  # as stored, counted from the buckets themselves
    of_node[order] = degrees
    assert of_node.sum() == 2 * found.num_edges
    np.testing.assert_array_equal(order, by_degree(of_node, found.division))


def test_degrees_that_changed_are_not_drawn_by(tmp_path, make_runtime):
    """Parts of them are read, which have no checksums of their own: the whole is compared before."""
    runtime = make_runtime()
    source = knowledge_graph(tmp_path, runtime, train=random_triples(300, 3, 2000))
    found = buckets_of(source, tmp_path / "run", runtime, 3)
    Degrees(found.array(runtime, "degrees"), found.division, 2, runtime.budget).close()
    path = found.path / found.manifest.arrays["degrees"].file
    damaged = bytearray(path.read_bytes())
    damaged[403] ^= 0x40
    path.write_bytes(damaged)
    with pytest.raises(ChecksumError, match=r"degrees"):
        Degrees(found.array(runtime, "degrees"), found.division, 2, runtime.budget)


def test_dealing_by_degree_is_even():
    degrees = np.random.default_rng(0).zipf(1.5, 1003).clip(max=5000)
    division = Division(1003, 7)
    order = by_degree(degrees, division)
    assert sorted(order) == list(range(1003))
    sums = [degrees[order[division.starts[i] : division.starts[i + 1]]].sum() for i in range(7)]
    assert max(sums) - min(sums) <= degrees.max()
    assert division.place(np.array([0, 143, 144, 1002]))[0].tolist() == [0, 0, 1, 6]
    np.testing.assert_array_equal(np.diff(division.starts), [144, 144, 143, 143, 143, 143, 143])


def test_what_is_there_already_is_not_made_again(tmp_path, make_runtime):
    runtime = make_runtime()
    source = knowledge_graph(tmp_path, runtime, train=random_triples(30, 2, 100))
    run = tmp_path / "run"
    buckets_of(source, run, runtime, 3)
    stamp = (run / "buckets" / "manifest.json").stat().st_mtime_ns
    buckets_of(source, run, runtime, 3)
    assert (run / "buckets" / "manifest.json").stat().st_mtime_ns == stamp
    assert buckets_of(source, run, runtime, 4).division.parts == 4
    (run / "tables").mkdir()
    with pytest.raises(ArgumentError, match="holds embeddings of other buckets"):
        buckets_of(source, run, runtime, 5)


def test_bad_input_is_named(tmp_path, make_runtime):
    runtime = make_runtime()
    source = knowledge_graph(
        tmp_path, runtime, train=random_triples(30, 2, 100), test=random_triples(30, 2, 9)
    )
    with pytest.raises(ArgumentError, match="31 partitions, 31 slices in all, of 30 nodes"):
        buckets_of(source, tmp_path / "run", runtime, 31)
    with pytest.raises(ArgumentError, match="has test edges of its own"):
        buckets_of(source, tmp_path / "run", runtime, 3, test_fraction=0.1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(ArgumentError, match="in the way"):
        buckets_of(source, tmp_path / "other", runtime, 3)
    with pytest.raises(ArgumentError, match=r"0 partitions.*numbering 'x'.*fractions"):
        BucketConfig(0, "x", 0.5, 0.6)  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="no embedding run"):
        open_buckets(tmp_path / "nothing")
    buckets = buckets_of(source, tmp_path / "run", runtime, 3)
    with pytest.raises(FormatError, match=r"outcrop.buckets.*neither"):
        buckets_of(tmp_path / "run" / "buckets", tmp_path / "again", runtime, 3)
    raw = bytearray((buckets.path / "starts.bin").read_bytes())
    raw[8] ^= 0xFF
    (buckets.path / "starts.bin").write_bytes(raw)
    with pytest.raises(ChecksumError, match=r"starts\.bin"):
        open_buckets(tmp_path / "run").starts(runtime)
    (buckets.path / "edges.bin").write_bytes(b"")
    with pytest.raises(FormatError, match=r"edges\.bin"):
        open_buckets(tmp_path / "run")
