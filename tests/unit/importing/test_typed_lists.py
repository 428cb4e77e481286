"""The builder of lists, with edge types: against sorting edge type by edge type in NumPy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outcrop import _core
from outcrop.errors import ArgumentError
from outcrop.runtime.runtime import Runtime

LEAST = _core.CscBuilder.MIN_MEMORY_BYTES


def build(folder, sizes, edge_types, edges, *, weights=None, memory=LEAST, pieces=1, **options):
    """Returns what the builder says, ``indptr``, ``indices`` and ``edge_weight``; ``edges[r]`` is int64 [2, E]."""
    has = [weights is not None and w is not None for w in weights or edge_types]
    relations = _core.Relations(
        np.cumsum([0, *sizes]).tolist(),
        [(*ends, 0, weighted) for ends, weighted in zip(edge_types, has, strict=True)],
    )
    with Runtime() as runtime:
        builder = _core.CscBuilder(
            runtime.io,
            runtime.budget,
            runtime.workers,
            str(folder),
            memory_bytes=memory,
            relations=relations,
            **options,
        )
        for piece in range(pieces):  # edge types take turns
            for r, (src, dst) in enumerate(edges):
                part = slice(piece * len(src) // pieces, (piece + 1) * len(src) // pieces)
                weight = np.asarray(weights[r][part], np.float32) if weights is not None and has[r] else None
                builder.add(
                    np.ascontiguousarray(src[part]), np.ascontiguousarray(dst[part]), weight, edge_type=r
                )
        assert builder.edges_added == sum(len(src) for src, _ in edges)
        files = [str(folder / name) for name in ("indptr.bin", "indices.bin", "weights.bin")]
        result = builder.finish(files[0], files[1], weights_path=files[2] if any(has) else "")
    dtypes = [np.int64, np.int64 if result.wide else np.uint32, np.float32]
    counts = [result.num_lists + 1, result.num_edges, result.weights.data_bytes // 4]
    arrays = [
        np.fromfile(f, d, n) if n else np.zeros(0, d) for f, d, n in zip(files, dtypes, counts, strict=True)
    ]
    return result, arrays


def expected(sizes, edge_types, edges, *, weights=None, keep_duplicates=False, keep_self_loops=True):
    """Returns (indptr, indices, weights) and (edges, duplicates, loops) of each edge type."""
    first = np.cumsum([0, *sizes])
    lengths, sources, kept_weights, counts = [], [], [], []
    for r, (source, target) in enumerate(edge_types):
        src, dst = edges[r]
        w = np.asarray(weights[r], np.float32) if weights and weights[r] is not None else np.zeros(len(src))
        loops = np.zeros(len(src), bool)
        if not keep_self_loops and source == target:
            loops = src == dst
        src, dst, w = src[~loops], dst[~loops], w[~loops]
        order = np.lexsort((src, dst))  # stable
        src, dst, w = src[order], dst[order], w[order]
        again = np.zeros(len(src), bool)
        again[1:] = (src[1:] == src[:-1]) & (dst[1:] == dst[:-1])
        if keep_duplicates:
            again[:] = False
        lengths.append(np.bincount(dst[~again], minlength=sizes[target]))
        sources.append(src[~again] + first[source])
        if weights and weights[r] is not None:
            kept_weights.append(w[~again])
        counts.append((int((~again).sum()), int(again.sum()), int(loops.sum())))
    indptr = np.cumsum([0, *np.concatenate(lengths).tolist()])
    weight = np.concatenate(kept_weights) if kept_weights else np.zeros(0, np.float32)
    return (indptr, np.concatenate(sources), weight), counts


@st.composite
def many_edges(draw):
    sizes = draw(st.lists(st.integers(0, 7), min_size=1, max_size=4))
    types = st.integers(0, len(sizes) - 1)
    edge_types = draw(st.lists(st.tuples(types, types), min_size=1, max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    edges, weights = [], []
    for source, target in edge_types:
        n = draw(st.integers(0, 60)) if sizes[source] and sizes[target] else 0
        edges.append(
            np.stack([rng.integers(0, max(sizes[source], 1), n), rng.integers(0, max(sizes[target], 1), n)])
        )
        weights.append(rng.random(n).astype(np.float32) if draw(st.booleans()) else None)
    return sizes, edge_types, edges, weights


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(many_edges(), st.booleans(), st.booleans(), st.booleans(), st.integers(1, 3))
def test_lists_equal_those_sorted_type_by_type(tmp_path, graph, weighted, duplicates, loops, pieces):
    sizes, edge_types, edges, weights = graph
    options = {"keep_duplicates": duplicates, "keep_self_loops": loops}
    given_weights = weights if weighted and any(w is not None for w in weights) else None
    result, arrays = build(
        tmp_path,
        sizes,
        edge_types,
        edges,
        weights=given_weights,
        pieces=1 if given_weights else pieces,
        **options,
    )
    wanted, counts = expected(sizes, edge_types, edges, weights=given_weights, **options)
    for found, right in zip(arrays, wanted, strict=True):
        assert np.array_equal(found, right)
    assert [(r.num_edges, r.duplicates_dropped, r.self_loops_dropped) for r in result.relations] == counts
    degrees = np.diff(arrays[0])
    ends = np.cumsum([0, *(sizes[target] for _, target in edge_types)])
    assert [r.max_in_degree for r in result.relations] == [
        int(degrees[a:b].max(initial=0)) for a, b in pairwise(ends)
    ]
    assert result.max_in_degree == degrees.max(initial=0)
    assert (result.num_nodes, result.num_lists) == (sum(sizes), len(degrees))
    assert result.num_edges == sum(edges for edges, _, _ in counts)


def test_sorting_outside_memory_gives_the_same_lists(tmp_path):
    rng = np.random.default_rng(3)
    sizes, edge_types = [5000, 1, 800], [(0, 0), (2, 0), (0, 2), (1, 0), (2, 2)]
    edges = [
        np.stack([rng.integers(0, sizes[s], 40_000), rng.integers(0, sizes[t], 40_000)])
        for s, t in edge_types
    ]
    result, arrays = build(tmp_path, sizes, edge_types, edges, pieces=7, keep_self_loops=False)
    assert result.sort.runs > 3
    wanted, counts = expected(sizes, edge_types, edges, keep_self_loops=False)
    for found, right in zip(arrays, wanted, strict=True):
        assert np.array_equal(found, right)
    assert [(r.num_edges, r.duplicates_dropped, r.self_loops_dropped) for r in result.relations] == counts
    wide, same = build(tmp_path, sizes, edge_types, edges, memory=64 << 20, wide=True, keep_self_loops=False)
    assert wide.sort.runs == 0
    assert same[1].dtype == np.int64
    for found, right in zip(same, wanted, strict=True):
        assert np.array_equal(found, right)


def test_one_type_by_name_gives_the_bytes_of_a_graph_without_types(tmp_path):
    rng = np.random.default_rng(4)
    pairs = rng.integers(0, 300, (2, 5000))
    _, arrays = build(tmp_path, [300], [(0, 0)], [pairs])
    with Runtime() as runtime:
        builder = _core.CscBuilder(runtime.io, runtime.budget, runtime.workers, str(tmp_path), num_nodes=300)
        builder.add(*map(np.ascontiguousarray, pairs))
        result = builder.finish(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "indptr.bin").read_bytes()
    assert (tmp_path / "b").read_bytes() == (tmp_path / "indices.bin").read_bytes()
    assert [r.num_edges for r in result.relations] == [len(arrays[1])]


@pytest.mark.parametrize(
    ("edge", "edge_type", "message"),
    [
        ((3, 0), 0, "edge 1, of edge type 0, names source 3, but there are 3 nodes of that type"),
        ((0, 2), 0, "edge 1, of edge type 0, names target 2, but there are 2 nodes"),
        ((-1, 0), 0, "edge 1, of edge type 0, names source -1"),
        ((0, 0), 1, "edge 1, of edge type 1, names source 0, but there are 0 nodes"),
        ((0, 0), 2, "edges of type 2 are added, there are 2 edge types"),
    ],
)
def test_ids_outside_their_type_are_refused(tmp_path, edge, edge_type, message):
    relations = _core.Relations([0, 3, 5, 5], [(0, 1, 0, False), (2, 1, 0, False)])
    with Runtime() as runtime:
        builder = _core.CscBuilder(
            runtime.io, runtime.budget, runtime.workers, str(tmp_path), relations=relations
        )
        builder.add(np.array([2]), np.array([1]), edge_type=0)
        with pytest.raises(ArgumentError, match=message):
            builder.add(np.array([edge[0]]), np.array([edge[1]]), edge_type=edge_type)


def test_weights_are_asked_for_by_edge_type(tmp_path):
    relations = _core.Relations([0, 3], [(0, 0, 0, False), (0, 0, 0, True)])
    one = np.array([1])
    with Runtime() as runtime:
        builder = _core.CscBuilder(
            runtime.io, runtime.budget, runtime.workers, str(tmp_path), relations=relations
        )
        with pytest.raises(ArgumentError, match="weights are not expected"):
            builder.add(one, one, np.ones(1, np.float32), edge_type=0)
        with pytest.raises(ArgumentError, match="weights are missing"):
            builder.add(one, one, edge_type=1)
        with pytest.raises(ArgumentError, match="has weight -1"):
            builder.add(one, one, -np.ones(1, np.float32), edge_type=1)
        with pytest.raises(ArgumentError, match="an edge type of its own"):
            _core.CscBuilder(
                runtime.io, runtime.budget, runtime.workers, str(tmp_path), reverse=True, relations=relations
            )
