"""Plans of the graphs that ship as descriptions, MAG240M and IGB: their sums against arithmetic on the files alone."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outcrop.advisor.described import SHIPPED, read_description
from outcrop.api.describe import describe
from outcrop.config import Limits, SampleConfig
from outcrop.config.described import DescribedEdges, DescribedGraph, DescribedNodes
from outcrop.importing.described import generate_described
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.sampler import BatchSampler

_SEEDS, _BATCHES, _SCALE = 8192, 12, 1 / 4096
_BYTES = {"float16": 2}


def most_nodes(of: dict[str, Any], seeds: int) -> dict[str, float]:
    """Bounds the nodes of each type in a batch: every draw of every edge type, reverses too, leads to another node."""
    (start,) = [nodes["name"] for nodes in of["nodes"] if nodes.get("train")]
    new, found = {start: float(seeds)}, defaultdict(float, {start: float(seeds)})
    ends = [(e["source"], e["target"]) for e in of["edges"]]
    ends += [(e["target"], e["source"]) for e in of["edges"] if e["reverse"]]
    for fanout in of["fanouts"]:
        drawn: dict[str, float] = defaultdict(float)
        for source, target in ends:
            drawn[source] += new.get(target, 0.0) * fanout
        new = drawn
        for name, count in new.items():
            found[name] += count
    return found


@pytest.mark.parametrize(("name", "memory"), [("mag240m", "16GB"), ("igbh-full", "60GB")])
def test_a_plan_adds_up(name: str, memory: str, tmp_path: Path) -> None:
    of = tomllib.loads((SHIPPED / f"{name}.toml").read_text())
    described = read_description(name)
    nodes = tuple(replace(n, train=min(n.train, _SEEDS * _BATCHES)) for n in described.graph.nodes)
    sampling = replace(described.sampling, batch_size=_SEEDS)
    few = replace(described, graph=replace(described.graph, nodes=nodes), sampling=sampling)
    plan = describe(
        few, hardware="workstation", limits=Limits(memory), scale=_SCALE, folder=tmp_path
    )  # batches are eight times as large as they ship, and so are buffers

    sizes = {n["name"]: n["num_nodes"] for n in of["nodes"]}
    widths = {n["name"]: _BYTES[n["dtype"]] * n["width"] for n in of["nodes"]}
    stored = sum(2 * e["num_edges"] for e in of["edges"])  # all with reverses
    lists = sum(sizes[e["source"]] + sizes[e["target"]] for e in of["edges"])
    rows_bytes = sum(sizes[n] * widths[n] for n in sizes)
    assert plan["graph"] == {
        "nodes": sum(sizes.values()),
        "edges": stored,
        "feature_bytes": rows_bytes,
        "topology_bytes": 8 * (lists + 1) + 4 * stored,
    }
    assert plan["batches"] == _BATCHES
    most = most_nodes(of, _SEEDS)
    assert set(plan["batch"]["rows"]) == set(sizes)
    for kind, rows in plan["batch"]["rows"].items():
        assert 0 < rows <= min(most[kind], sizes[kind] * of["near"] + 1 / _SCALE)
    assert plan["batch"]["rows"]["paper"] > _SEEDS
    assert plan["batch"]["bytes"] == sum(rows * widths[kind] for kind, rows in plan["batch"]["rows"].items())

    ways = {way["mode"]: way for way in plan["ways"]}
    graph_bytes = plan["graph"]["feature_bytes"] + plan["graph"]["topology_bytes"]
    for mode, cached_on in (("packed", ("host", "device")), ("online", ("host",))):
        way = ways[mode]
        wanted = cached = missed_bytes = 0
        for kind, levels in way["rows_by_level"].items():
            rows = sum(levels.values())
            assert rows == pytest.approx(plan["batch"]["rows"][kind] * _BATCHES, abs=_BATCHES)
            held = sum(levels.get(level, 0) for level in cached_on)
            wanted, cached = wanted + rows, cached + held
            missed_bytes += (rows - held) * widths[kind]
        assert way["cached_share"] == pytest.approx(cached / wanted, rel=1e-6)
        assert cached < wanted
        assert missed_bytes <= way["bytes_read"]
        assert way["disk_bytes"] == graph_bytes + way["run_bytes"]
    packed, wanted_bytes = ways["packed"], plan["batch"]["bytes"] * _BATCHES
    packed_bytes = sum(levels["packed"] * widths[kind] for kind, levels in packed["rows_by_level"].items())
    assert packed_bytes < min(wanted_bytes, packed["run_bytes"])
    assert ways["online"]["run_bytes"] == ways["memory"]["run_bytes"] == 0
    assert ways["memory"]["memory"] >= graph_bytes + wanted_bytes / _BATCHES


def test_only_a_part_is_near_the_training_nodes(tmp_path: Path) -> None:
    """No edge leads out of it, its nodes have as many edges as others on average, and training nodes are all there."""
    described = DescribedGraph(
        "g",
        (DescribedNodes("p", 20_000, train=900, skew=0.8), DescribedNodes("a", 5_000)),
        (DescribedEdges("a", "writes", "p", 60_000, True), DescribedEdges("p", "cites", "p", 80_000)),
        near=0.2,
    )
    with Runtime("64MiB") as runtime:
        graph = generate_described(tmp_path / "g.oc", described, runtime)
        train = graph.array(runtime, "train").read("t")
    writes, cites = (graph.edge_index(one.key) for one in described.edges)
    reached = {"p": np.zeros(20_000, bool), "a": np.zeros(5_000, bool)}
    reached["p"][train] = True
    before = -1
    while (now := sum(int(of.sum()) for of in reached.values())) > before:
        before = now
        for ends, kinds in ((writes, "ap"), (cites, "pp")):
            for source, target in ((0, 1), (1, 0)):
                at = reached[kinds[target]][ends[target]]
                reached[kinds[source]][ends[source][at]] = True
    assert len(np.unique(train)) == 900
    assert 0.15 * 20_000 < reached["p"].sum() <= 0.2 * 20_000  # the least wanted have no edge
    assert 0.15 * 5_000 < reached["a"].sum() <= 0.2 * 5_000
    for ends in (writes, cites):
        assert reached["p"][ends[1]].mean() == pytest.approx(0.2, abs=0.01)
    often = np.bincount(writes[1], minlength=20_000) >= 2
    assert often[train].mean() == pytest.approx(
        often[reached["p"]].sum() / 4000, abs=0.03
    )  # hubs and others alike


def brute_force(of: DescribedGraph, batch_size: int, fanouts: tuple[int, ...]) -> tuple[float, np.ndarray]:
    """Returns the rows of a batch, and how often each node of the one type is wanted, by NumPy alone."""
    draws, (nodes,), (edges,) = np.random.default_rng(7), of.nodes, of.edges
    near, rest = round(of.near * nodes.num_nodes), round((1 - of.near) * nodes.num_nodes)
    inside = draws.random(edges.num_edges) < of.near

    def ends() -> np.ndarray:
        unit = draws.random(edges.num_edges) ** (1 / (1 - nodes.skew))
        return np.where(inside, (unit * near).astype(int), near + (unit * rest).astype(int))

    source, target = ends(), ends()
    lists = []
    for of_list, drawn in ((target, source), (source, target)):
        first = np.searchsorted(np.sort(of_list), np.arange(nodes.num_nodes + 1))
        lists.append((first, drawn[np.argsort(of_list)]))
    often, total = np.zeros(nodes.num_nodes, int), 0
    seeds = draws.permutation(near)[: nodes.train].reshape(-1, batch_size)
    for batch in seeds:
        seen, frontier = set(batch.tolist()), set(batch.tolist())
        for fanout in fanouts:
            found: set[int] = set()
            for node in frontier:
                for first, neighbors in lists:
                    low, high = int(first[node]), int(first[node + 1])
                    picked = draws.choice(high - low, min(fanout, high - low), replace=False, shuffle=False)
                    found.update(neighbors[low + picked].tolist())
            frontier = found - seen
            seen |= found
        often[list(seen)] += 1
        total += len(seen)
    return total / len(seeds), often


@pytest.mark.slow
@pytest.mark.parametrize(("near", "skew"), [(0.15, 0.8), (0.2, 0.5)])  # of those that ship
@pytest.mark.parametrize("share", [0.1, 0.05])
def test_a_smaller_graph_stands_for_a_larger(near: float, skew: float, share: float, tmp_path: Path) -> None:
    """Rows of a batch to 5 %, the share of them that the hottest nodes serve to 0.02, against NumPy on the whole."""
    nodes = DescribedNodes("n", 200_000, train=4000, skew=skew)
    of = DescribedGraph("g", (nodes,), (DescribedEdges("n", "e", "n", 2_000_000, True),), near)
    rows, often = brute_force(of, 200, (6, 4))
    sampling = SampleConfig((6, 4), round(200 * share), splits=("train",))
    with Runtime() as runtime:
        small = generate_described(tmp_path / "g.oc", of.scaled(share), runtime)
        batches = [batch.nodes[0].ids for batch in BatchSampler(small, sampling, runtime).epoch("train", 0)]
    told = np.bincount(np.concatenate(batches).astype(int), minlength=small.num_nodes)
    assert len(batches) == 20
    assert told.sum() / 20 / share == pytest.approx(rows, rel=0.05)
    for rank in (0.04, 0.12):
        held, seen = (np.sort(x)[::-1][: round(rank * len(x))].sum() / x.sum() for x in (told, often))
        assert held == pytest.approx(seen, abs=0.02)
