"""The reference of typed sampling: it passes its own checks, and what is no batch fails them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import typed_reference as reference

# papers 0..3, authors 0..1, venues (none): cites, writes, and published in, which has no edges
GRAPH = reference.TypedGraph(
    (4, 2, 0),
    ((0, 0), (1, 0), (2, 0)),
    (((1, 2, 3), (3,), (), (0,)), ((0, 1), (1,), (), ()), ((), (), (), ())),
)
FANOUTS = [[-1, -1], [-1, -1], [-1, -1]]


@settings(max_examples=200)
@given(st.data())
def test_what_the_reference_samples_passes_its_checks(data):
    graph = data.draw(reference.typed_graphs())
    seeds = data.draw(reference.seeds_of(graph))
    fanouts = data.draw(reference.fanouts_of(graph))
    batch = reference.sample(graph, seeds, len(fanouts[0]), reference.pick_some(fanouts, 1))
    reference.check(batch, graph, seeds, fanouts)
    reference.check(batch.without_positions(), graph, seeds, fanouts)


def test_a_batch_by_hand():
    batch = reference.sample(GRAPH, {0: [1]}, 2)
    assert batch == reference.TypedBatch(
        nodes=((1, 3, 0), (1,), ()),
        nodes_per_hop=((1, 1, 1), (0, 1, 0), (0, 0, 0)),
        rows=((((1, 3),), ((2, 4),)), (((0, 2),), ()), ((), ())),
        edges_per_hop=((1, 1), (1, 0), (0, 0)),
    )


def _broken(batch: reference.TypedBatch) -> dict[str, reference.TypedBatch]:
    papers, authors, venues = batch.nodes
    (cites, *rest), writes, published = batch.rows
    return {
        "another order of seeds": replace(batch, nodes=((*papers[1::-1], *papers[2:]), authors, venues)),
        "a node twice": replace(batch, nodes=((*papers[:-1], papers[0]), authors, venues)),
        "an id out of range": replace(batch, nodes=(papers, (*authors[:-1], 2), venues)),
        "a hop that does not rise": replace(batch, nodes=(papers, authors[::-1], venues)),
        "an edge too few": replace(batch, rows=((cites[1:], *rest), writes, published)),
        "an edge at another position": replace(
            batch, rows=(((cites[0], (cites[1][0], 2), (cites[2][0], 1)), *rest), writes, published)
        ),
        "an edge that is none": replace(
            batch, rows=((((0, None), *((u, None) for u, _ in cites[1:])), *rest), writes, published)
        ),
        "a row too few": replace(batch, rows=((cites, *rest), writes, ())),
        "another count of edges": replace(batch, edges_per_hop=((3, 0), *batch.edges_per_hop[1:])),
        "a node that nothing leads from": replace(batch, nodes_per_hop=((2, 1, 1), *batch.nodes_per_hop[1:])),
    }


@pytest.mark.parametrize("what", list(_broken(reference.sample(GRAPH, {0: [0, 1]}, 2))))
def test_what_is_no_batch_fails(what):
    seeds = {0: [0, 1]}
    batch = reference.sample(GRAPH, seeds, 2)
    reference.check(batch, GRAPH, seeds, FANOUTS)
    with pytest.raises(AssertionError):
        reference.check(_broken(batch)[what], GRAPH, seeds, FANOUTS)


def test_counts_follow_replacement_and_weights():
    weights = (((0.0, 1.0, 1.0), (1.0,), (), (0.0,)), ((1.0, 1.0), (1.0,), (), ()), ((), (), (), ()))
    graph = replace(GRAPH, weights=weights)
    whole = reference.sample(graph, {0: [0]}, 1)
    one_hop = [[-1], [-1], [-1]]
    reference.check(whole, graph, {0: [0]}, one_hop)
    with pytest.raises(AssertionError):  # the edge of weight zero
        reference.check(whole, graph, {0: [0]}, one_hop, weighted=True)
    with pytest.raises(AssertionError):
        reference.check(whole, graph, {0: [0]}, [[3], [3], [3]], replaced=True)
    assert reference.flat(graph) == [[1, 2, 3, 4, 5], [3, 5], [], [0], [], []]
