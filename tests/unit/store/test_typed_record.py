"""Records of batches with several types of nodes, edges and row files: round trips, damage, and lies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outcrop import _core
from outcrop.errors import ChecksumError, FormatError
from outcrop.store import record
from outcrop.store.address_table import AddressTable
from outcrop.store.batches import BatchGraph, DistinctEdges
from outcrop.store.record import RecordSizes
from outcrop.store.record_contents import Bounds
from section_support import as_batch
from typed_reference import TypedGraph, pick_some, sample, typed_graphs

HOPS = 2


@st.composite
def batches(draw: st.DrawFn) -> tuple[TypedGraph, BatchGraph]:
    graph = draw(typed_graphs())
    having = [t for t, count in enumerate(graph.sizes) if count]
    seed_type = draw(st.sampled_from(having)) if having else 0
    seeds = draw(st.sets(st.integers(0, graph.sizes[seed_type] - 1))) if having else set()
    fanouts = [[draw(st.sampled_from([-1, 0, 1, 2])) for _ in range(HOPS)] for _ in graph.edge_types]
    drawn = sample(graph, {seed_type: sorted(seeds)}, HOPS, pick_some(fanouts, seed=draw(st.integers(0, 99))))
    batch = as_batch(drawn, seed_type)
    recorded = draw(st.sampled_from(["nothing", "positions", "distinct"]))
    if recorded == "nothing":
        batch = replace(batch, edges=tuple(replace(edges, positions=None) for edges in batch.edges))
    elif recorded == "distinct":
        batch = with_repeats(batch, draw(st.integers(0, 99)))
    return graph, batch


def with_repeats(batch: BatchGraph, seed: int) -> BatchGraph:
    """The batch with edges that may stand for another of their row, as if that had been drawn twice."""
    rng, made = np.random.default_rng(seed), []
    for edges in batch.edges:
        assert edges.positions is not None
        same_row = rng.random(len(edges.positions)) < 0.5
        for begin in edges.rowptr[:-1]:
            same_row[begin : begin + 1] = False
        positions = edges.positions.copy()
        for at in np.flatnonzero(same_row):
            positions[at] = positions[at - 1]
        made.append(replace(edges, positions=positions).with_distinct())
    return replace(batch, edges=tuple(made))


def tables(data: st.DataObject, counts: list[int]) -> tuple[AddressTable, ...]:
    """An address table for each of row files that have as many rows in the batch."""
    made = []
    for count in counts:
        level = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        parts = []
        for which in (1, 2, 3):
            positions = np.flatnonzero(np.array(level, int) == which).astype(np.int32)
            parts += [positions, positions[::-1] * 3]
        made.append(AddressTable(*parts))
    return tuple(made)


def bounds_of(graph: TypedGraph) -> Bounds:
    edges = [sum(map(len, lists)) for lists in graph.lists]
    return Bounds(graph.sizes, edges, graph.edge_types)


def same(ours: BatchGraph, theirs: BatchGraph) -> None:
    assert (ours.seed_type, ours.untrimmed) == (theirs.seed_type, theirs.untrimmed)
    assert np.array_equal(ours.labels, theirs.labels)
    for a, b in zip(ours.nodes, theirs.nodes, strict=True):
        assert (a.per_hop, a.ids.tolist()) == (b.per_hop, b.ids.tolist())
        assert a.ids.dtype == np.int64
    for a, b in zip(ours.edges, theirs.edges, strict=True):
        assert (a.per_hop, a.rowptr.tolist(), a.col.tolist()) == (
            b.per_hop,
            b.rowptr.tolist(),
            b.col.tolist(),
        )
        positions = [[] if edges.positions is None else edges.positions.tolist() for edges in (a, b)]
        assert positions[0] == positions[1]
        assert (a.distinct is None) == (b.distinct is None) or not len(b.col)
        if a.distinct is not None and b.distinct is not None:
            assert a.distinct.per_hop == b.distinct.per_hop
            assert a.distinct.ids.tolist() == b.distinct.ids.tolist()
            assert a.distinct.index.tolist() == b.distinct.index.tolist()


@given(st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=3), st.booleans())
def test_distinct_edges_are_those_of_numpy(hops: list[list[int]], falling: bool) -> None:
    positions = [np.array(one if falling else sorted(one), np.int64) + 10 * k for k, one in enumerate(hops)]
    found = DistinctEdges.of(np.concatenate([np.zeros(0, np.int64), *positions]), list(map(len, hops)))
    wanted = [np.unique(one, return_inverse=True) for one in positions]
    assert found.per_hop == tuple(len(ids) for ids, _ in wanted)
    assert found.ids.tolist() == [row for ids, _ in wanted for row in ids]
    assert found.ids[found.index].tolist() == [row for one in positions for row in one]
    again = DistinctEdges.recorded(found.ids, found.index, list(map(len, hops)))
    assert again is not None
    assert again.per_hop == found.per_hop


@pytest.mark.parametrize("index", [[0, 1, 5], [0, 1, -1], [0, 0, 1], [0, 1, 3]])
def test_an_index_that_lies_is_refused(index: list[int]) -> None:
    """A row that is not there, or one that no edge takes."""
    graph = TypedGraph((3, 2), ((1, 0), (0, 1)), (((0, 1), (), (1,)), ((0,), (2,))))
    batch = as_batch(sample(graph, {0: [0, 2]}, 2, pick_some([[-1, -1]] * 2, seed=0)))
    batch = replace(batch, edges=tuple(edges.with_distinct() for edges in batch.edges))
    bounds = bounds_of(graph)
    same(record.decode(record.encode(batch, (), 4), "here", bounds)[0], batch)
    first = batch.edges[0]
    assert first.distinct is not None
    assert len(first.col) == 3
    lie = replace(first, distinct=replace(first.distinct, index=np.array(index, np.int32)))
    with pytest.raises(FormatError, match="here: its edges are not those of its positions"):
        record.decode(record.encode(replace(batch, edges=(lie, *batch.edges[1:])), (), 4), "here", bounds)


@given(batches(), st.data(), st.sampled_from([4, 8]))
@settings(max_examples=150, deadline=None)
def test_round_trip(made: tuple[TypedGraph, BatchGraph], data: st.DataObject, id_bytes: int) -> None:
    graph, batch = made
    counts = [len(nodes.ids) for nodes in batch.nodes]
    chosen = tables(data, counts[: data.draw(st.integers(1, len(counts)))])
    blob = record.encode(batch, chosen, id_bytes)
    size = int(RecordSizes.of(batch, chosen).meta_bytes(id_bytes))
    assert len(blob) == -(-size // 4096) * 4096
    assert not blob[size:].any()
    back, read = record.decode(blob, "here", replace(bounds_of(graph), row_files=None))
    same(back, batch)
    for ours, theirs in zip(read, chosen, strict=True):
        for a, b in zip(ours.columns(), theirs.columns(), strict=True):
            assert np.array_equal(a, b)


@given(batches(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_changed_byte_is_noticed(made: tuple[TypedGraph, BatchGraph], data: st.DataObject) -> None:
    graph, batch = made
    blob = record.encode(batch, (), 4)
    for _ in range(20):
        at, bit = data.draw(st.integers(0, len(blob) - 1)), data.draw(st.integers(0, 7))
        blob[at] ^= 1 << bit
        with pytest.raises((FormatError, ChecksumError), match="here"):
            record.decode(blob, "here", bounds_of(graph))
        blob[at] ^= 1 << bit
    record.decode(blob, "here", bounds_of(graph))


@given(batches(), st.data())
@settings(max_examples=150, deadline=None)
def test_headers_that_lie_end_with_an_error(made: tuple[TypedGraph, BatchGraph], data: st.DataObject) -> None:
    """Any number in the header or in the counts behind it, with a checksum that is right: an error, or the batch."""
    graph, batch = made
    blob = record.encode(batch, (), 4)
    words = blob[: 512 + RecordSizes.of(batch).counts_bytes].view("<i8")
    at = data.draw(st.integers(2, len(words) - 1).filter(lambda word: word != 10))
    words[at] = data.draw(st.sampled_from([-1, 0, 1, 2, 3, 5, 8, 1 << 16, 1 << 31, 1 << 61, (1 << 63) - 1]))
    words[10] = 0
    words[10] = _core.crc32c(blob)
    try:
        back, _ = record.decode(blob, "here", bounds_of(graph))
    except FormatError as error:
        assert str(error).startswith("here")  # noqa: PT017 (either may be)
    else:
        record.decode(record.encode(back, (), 4), "here", bounds_of(graph))


def test_what_an_edge_type_may_not_have() -> None:
    """Ids of another type's range, an edge to a node that is not met by then, a position beyond the edge type."""
    graph = TypedGraph((3, 2), ((1, 0), (0, 1)), (((0, 1), (), (1,)), ((0,), (2,))))
    batch = as_batch(sample(graph, {0: [0, 2]}, 2, pick_some([[-1, -1]] * 2, seed=0)))
    bounds = bounds_of(graph)
    record.decode(record.encode(batch, (), 4), "here", bounds)
    authors, first = batch.nodes[1], batch.edges[0]
    assert first.positions is not None

    def other(**changes: Any) -> BatchGraph:
        return replace(batch, edges=(replace(first, **changes), *batch.edges[1:]))

    lies = {
        "a node id is not below 2": replace(
            batch, nodes=(batch.nodes[0], replace(authors, ids=authors.ids + 1))
        ),
        "the position of an edge is not below 3": other(positions=first.positions + 1),
        "comes from a node that is not met": other(col=first.col + 5),
        "rows for": other(rowptr=np.append(first.rowptr, first.rowptr[-1])),
    }
    for said, lie in lies.items():
        with pytest.raises(FormatError, match=said):
            record.decode(record.encode(lie, (), 4), "here", bounds)
    with pytest.raises(FormatError, match="it has 2 edge types, the graph 1"):
        record.decode(record.encode(batch, (), 4), "here")
