"""Both sides of benchmark ``typed-sampling`` draw from the lists that a search of the graph by hand finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from outcrop.bench import typed_sampling
from outcrop.bench.epoch import Setting, ensure_graph
from outcrop.bench.graphs import TYPED
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph, open_graph

SHAPE = replace(TYPED, name="small", nodes=2230, edges=9000, features=2, train_fraction=0.05, edge_features=0)
TWO = (("author", "writes", "paper"), ("paper", "rev_writes", "author"))


def searched(graph: Graph, keys, batch: np.ndarray, fanouts: list[int]) -> tuple[int, int]:
    """Counts lists and edges of a batch, hop by hop; only whole lists lead on, so fanouts before the last are -1."""
    ends = {key: graph.edge_index(key) for key in keys}
    met = {one.name: set() for one in graph.node_types}
    frontier = {name: set() for name in met}
    frontier["paper"] = set(batch.tolist())
    lists = edges = 0
    for fanout in fanouts:
        for name, nodes in frontier.items():
            met[name] |= nodes
        found = {name: set() for name in met}
        for key, (sources, targets) in ends.items():
            wanted = np.isin(targets, list(frontier[key[2]]))
            lists += len(frontier[key[2]])
            lengths = np.bincount(targets[wanted])
            edges += int(np.minimum(lengths, fanout if fanout >= 0 else len(sources)).sum())
            found[key[0]] |= set(sources[wanted].tolist())
        frontier = {name: nodes - met[name] for name, nodes in found.items()}
    return lists, edges


@pytest.mark.parametrize("fanouts", ["3", "-1,-1", "-1,2"])
def test_both_sides_draw_from_the_same_lists(tmp_path: Path, fanouts: str) -> None:
    graph = open_graph(ensure_graph(tmp_path, SHAPE, lambda _: None))
    setting = Setting(SHAPE, fanouts, batch_size=16)
    with Runtime() as runtime:
        train = graph.array(runtime, "n0.train").read("test")
    assert len(train) == 60
    result = typed_sampling.run(tmp_path, setting, lambda _: None)
    hops = [int(part) for part in fanouts.split(",")]
    for case, keys in (("every edge type", [one.key for one in graph.edge_types]), ("one list a node", TWO)):
        counts = [searched(graph, keys, train[at : at + 16], hops) for at in range(0, 60, 16)]
        lists, edges = (sum(of) for of in zip(*counts, strict=True))
        for side in ("typed", "one type"):
            found = result["cases"][case][side]
            assert (found["lists"], found["edges"]) == (lists, edges)
        assert result["cases"][case]["ratio"] > 0
    assert [row[0] for row in result["rows"]] == list(result["cases"])
