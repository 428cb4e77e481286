"""Sampling of typed graphs in plain Python, and what any batch of one must be: dicts and loops, nothing of ours.

A node is (type, id within its type), an edge (edge type, target, place in the target's list). What of a list a batch
may see is :func:`visible`, which is all of it: a graph whose edges have times narrows it there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from hypothesis import strategies as st

Seeds = Mapping[int, Sequence[int]]  # node type -> ids within it; a type that is not there has none
Fanouts = Sequence[Sequence[int]]  # [edge type][hop]; -1 all neighbors, 0 none
Pick = Callable[
    [int, int, int, Sequence[int]], list[int]
]  # (edge type, target, hop, visible places) -> places


@dataclass(frozen=True)
class TypedGraph:
    """Holds the neighbor lists of each edge type.

    Attributes:
        sizes: Nodes of each node type.
        edge_types: (source type, target type) of each edge type.
        lists: ``lists[r][v]``: sources of the edges of type r to its target v, rising.
        weights: One for each edge, in the same form; None for edge types, or graphs, without.
    """

    sizes: tuple[int, ...]
    edge_types: tuple[tuple[int, int], ...]
    lists: tuple[tuple[tuple[int, ...], ...], ...]
    weights: tuple[tuple[tuple[float, ...], ...] | None, ...] | None = None

    def first_node(self, node_type: int) -> int:
        return sum(self.sizes[:node_type])

    def position(self, edge_type: int, target: int, place: int) -> int:
        """Numbers an edge within its type."""
        return sum(map(len, self.lists[edge_type][:target])) + place


@dataclass(frozen=True)
class TypedBatch:
    """Holds a batch, seeds first.

    Attributes:
        nodes: Ids of each node type.
        nodes_per_hop: ``[node type][hops + 1]``.
        rows: ``rows[r][i]``: (local source, position in the edge type) of the edges of type r to local target i. The
            position is None where nobody asked.
        edges_per_hop: ``[edge type][hops]``.
    """

    nodes: tuple[tuple[int, ...], ...]
    nodes_per_hop: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[tuple[tuple[int, int | None], ...], ...], ...]
    edges_per_hop: tuple[tuple[int, ...], ...]

    def without_positions(self) -> TypedBatch:
        return replace(
            self, rows=tuple(tuple(tuple((u, None) for u, _ in row) for row in rows) for rows in self.rows)
        )


def visible(graph: TypedGraph, edge_type: int, target: int) -> Sequence[int]:
    """Says which places of a list may be drawn."""
    return range(len(graph.lists[edge_type][target]))


def pick_all(edge_type: int, target: int, hop: int, places: Sequence[int]) -> list[int]:
    return list(places)


def pick_some(fanouts: Fanouts, seed: int) -> Pick:
    """Picks distinct places, as many as the fanout says, in rising order."""
    rng = random.Random(seed)

    def pick(edge_type: int, target: int, hop: int, places: Sequence[int]) -> list[int]:
        fanout = fanouts[edge_type][hop]
        few = fanout < 0 or len(places) <= fanout
        return list(places) if few else sorted(rng.sample(list(places), fanout))

    return pick


def sample(graph: TypedGraph, seeds: Seeds, hops: int, pick: Pick = pick_all) -> TypedBatch:
    """Samples type by type: a node is expanded once per edge type to its type, in the hop after it was met."""
    types, edge_types = range(len(graph.sizes)), graph.edge_types
    nodes = [list(seeds.get(t, ())) for t in types]
    nodes_per_hop = [[len(ids)] for ids in nodes]
    picked: list[list[tuple[int, list[int]]]] = [[] for _ in edge_types]  # (target, places)
    edges_per_hop: list[list[int]] = [[] for _ in edge_types]
    frontier = [list(ids) for ids in nodes]
    for hop in range(hops):
        met: list[set[int]] = [set() for _ in types]
        for r, (source, target) in enumerate(edge_types):
            rows = [(v, pick(r, v, hop, visible(graph, r, v))) for v in frontier[target]]
            picked[r] += rows
            edges_per_hop[r].append(sum(len(places) for _, places in rows))
            met[source] |= {graph.lists[r][v][p] for v, places in rows for p in places}
        frontier = [sorted(met[t] - set(nodes[t])) for t in types]
        for t in types:
            nodes[t] += frontier[t]
            nodes_per_hop[t].append(len(frontier[t]))
    local = [{node: i for i, node in enumerate(ids)} for ids in nodes]
    rows_of = [
        tuple(
            tuple((local[source][graph.lists[r][v][p]], graph.position(r, v, p)) for p in places)
            for v, places in picked[r]
        )
        for r, (source, _) in enumerate(edge_types)
    ]
    return TypedBatch(
        tuple(map(tuple, nodes)),
        tuple(map(tuple, nodes_per_hop)),
        tuple(rows_of),
        tuple(map(tuple, edges_per_hop)),
    )


def check(
    batch: TypedBatch,
    graph: TypedGraph,
    seeds: Seeds,
    fanouts: Fanouts,
    *,
    replaced: bool = False,
    weighted: bool = False,
    labor: bool = False,
) -> None:
    """Fails unless ``batch`` is one that neighbor sampling of ``graph``, or LABOR-0, can give."""
    hops = len(fanouts[0])
    hop_of = _check_nodes(batch, graph, seeds, hops)
    met: dict[tuple[int, int], int] = {}  # (type, local id) -> the first hop in which an edge leads from it
    for r, (source, target) in enumerate(graph.edge_types):
        if labor:
            _check_shared_numbers(batch, graph, r, hop_of[target], fanouts[r])
        assert len(batch.rows[r]) == sum(batch.nodes_per_hop[target][:hops])
        counts = [0] * hops
        for i, row in enumerate(batch.rows[r]):
            hop = hop_of[target][i]
            counts[hop] += len(row)
            _check_row(batch, graph, r, i, fanouts[r][hop], replaced=replaced, weighted=weighted, labor=labor)
            for u, _ in row:
                met[source, u] = min(hop + 1, met.get((source, u), hops))
        assert batch.edges_per_hop[r] == tuple(counts)
    for t, hops_of_type in enumerate(hop_of):
        for i, hop in enumerate(hops_of_type):
            assert hop == 0 or met.get((t, i)) == hop, "a node stands in the first hop that leads from it"


def _check_nodes(batch: TypedBatch, graph: TypedGraph, seeds: Seeds, hops: int) -> list[list[int]]:
    """Checks ids and their order; returns the hop in which each node was met."""
    assert len(batch.nodes) == len(batch.nodes_per_hop) == len(graph.sizes)
    assert len(batch.rows) == len(batch.edges_per_hop) == len(graph.edge_types)
    hop_of = []
    for t, (ids, per_hop) in enumerate(zip(batch.nodes, batch.nodes_per_hop, strict=True)):
        assert len(per_hop) == hops + 1
        assert sum(per_hop) == len(ids) == len(set(ids)), "a node stands once"
        assert all(0 <= node < graph.sizes[t] for node in ids)
        ends = [0, *accumulate(per_hop)]
        assert list(ids[: ends[1]]) == list(seeds.get(t, ())), "seeds come first"
        for begin, end in pairwise(ends[1:]):
            assert list(ids[begin:end]) == sorted(ids[begin:end])
        hop_of.append([hop for hop, n in enumerate(per_hop) for _ in range(n)])
    return hop_of


def _check_shared_numbers(
    batch: TypedBatch, graph: TypedGraph, r: int, hop_of: Sequence[int], fanouts: Sequence[int]
) -> None:
    """Checks that one number of each source, hop and edge type says which of its edges are kept.

    An edge to v is kept iff the number of its source is at most fanout / degree(v), so that the largest share that
    kept none of the edges of a source is below the smallest that kept one.
    """
    source, target = graph.edge_types[r]
    kept: dict[tuple[int, int], float] = {}
    dropped: dict[tuple[int, int], float] = {}
    for i, row in enumerate(batch.rows[r]):
        v, hop = batch.nodes[target][i], hop_of[i]
        share = 1.0 if fanouts[hop] < 0 else fanouts[hop] / max(len(graph.lists[r][v]), fanouts[hop], 1)
        there = {batch.nodes[source][u] for u, _ in row}
        for u in graph.lists[r][v]:
            if u in there:
                kept[hop, u] = min(share, kept.get((hop, u), 1.0))
            else:
                dropped[hop, u] = max(share, dropped.get((hop, u), 0.0))
        assert Counter(batch.nodes[source][u] for u, _ in row) == Counter(
            u for u in graph.lists[r][v] if u in there
        ), "copies of an edge have one number"
    assert all(dropped[key] < share for key, share in kept.items() if key in dropped)


def _check_row(
    batch: TypedBatch,
    graph: TypedGraph,
    r: int,
    i: int,
    fanout: int,
    *,
    replaced: bool,
    weighted: bool,
    labor: bool,
) -> None:
    """Checks that the edges to local target ``i`` are edges of their type, and as many as were to be drawn."""
    source, target = graph.edge_types[r]
    v = batch.nodes[target][i]
    neighbors, places, row = graph.lists[r][v], visible(graph, r, v), batch.rows[r][i]
    weights = graph.weights[r] if weighted and graph.weights is not None else None
    if weights is not None:
        places = [p for p in places if weights[v][p] > 0]
    if replaced:
        wanted = fanout if places else 0
    else:
        wanted = len(places) if fanout < 0 else min(fanout, len(places))
    assert len(row) == wanted or (labor and wanted < len(places))
    sources = [batch.nodes[source][u] for u, _ in row]
    allowed = Counter(neighbors[p] for p in places)
    assert set(sources) <= set(allowed) if replaced else Counter(sources) <= allowed
    positions = [p for _, p in row if p is not None]
    if positions:
        first = graph.position(r, v, 0)
        assert len(positions) == len(row)
        assert positions == sorted(positions)
        assert replaced or len(set(positions)) == len(positions)
        assert {p - first for p in positions} <= set(places)
        assert [neighbors[p - first] for p in positions] == sources


def flat(graph: TypedGraph) -> list[list[int]]:
    """Returns the lists of the graph without types, node t, i being ``first_node(t) + i``."""
    out: list[list[int]] = [[] for _ in range(sum(graph.sizes))]
    for r, (source, target) in enumerate(graph.edge_types):
        for v, sources in enumerate(graph.lists[r]):
            out[graph.first_node(target) + v] += [graph.first_node(source) + u for u in sources]
    return [sorted(sources) for sources in out]


@st.composite
def typed_graphs(draw: st.DrawFn, *, weighted: bool = False, most_nodes: int = 6) -> TypedGraph:
    """Small graphs with empty types, types of one node, isolated nodes, edge types without edges, repeated edges."""
    sizes = draw(st.lists(st.integers(0, most_nodes), min_size=1, max_size=4).filter(any))
    types = st.integers(0, len(sizes) - 1)
    edge_types = draw(st.lists(st.tuples(types, types), min_size=1, max_size=5))
    lists = []
    for source, target in edge_types:
        rows: list[list[int]] = [[] for _ in range(sizes[target])]
        if sizes[source] and sizes[target]:
            pair = st.tuples(st.integers(0, sizes[source] - 1), st.integers(0, sizes[target] - 1))
            for u, v in draw(st.lists(pair, max_size=3 * most_nodes)):
                rows[v].append(u)
        lists.append(tuple(tuple(sorted(row)) for row in rows))
    weights = None
    if weighted:
        one = st.sampled_from((0.0, 0.5, 1.0, 2.0))
        weights = tuple(
            tuple(tuple(draw(st.lists(one, min_size=len(row), max_size=len(row)))) for row in rows)
            if draw(st.booleans())
            else None
            for rows in lists
        )
    return TypedGraph(tuple(sizes), tuple(edge_types), tuple(lists), weights)


@st.composite
def seeds_of(draw: st.DrawFn, graph: TypedGraph) -> dict[int, list[int]]:
    """Seeds of one or several types, in any order."""
    out = {}
    for t, size in enumerate(graph.sizes):
        ids = draw(st.lists(st.integers(0, size - 1), unique=True, max_size=3)) if size else []
        if ids:
            out[t] = ids
    return out


@st.composite
def fanouts_of(draw: st.DrawFn, graph: TypedGraph, *, replaced: bool = False) -> list[list[int]]:
    """Fanouts of each edge type for one to three hops; 0 where there are several."""
    hops = draw(st.integers(1, 3))
    counts = [1, 2, 3, 10]
    if len(graph.edge_types) > 1:
        counts.append(0)
    if not replaced:
        counts.append(-1)
    one = st.sampled_from(counts)
    return [draw(st.lists(one, min_size=hops, max_size=hops)) for _ in graph.edge_types]
