"""Graphs described in TOML by their published sizes; MAG240M and IGB ship (advisor/graphs)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outcrop.advisor.hardware import Table, count, parse_file, positive, refuse, text
from outcrop.config import SampleConfig, as_fanouts
from outcrop.config.described import VALUE_BYTES, DescribedEdges, DescribedGraph, DescribedNodes
from outcrop.errors import ArgumentError
from outcrop.store.graph import Graph
from outcrop.store.manifest import ArraySpec

SHIPPED = Path(__file__).parent / "graphs"


@dataclass(frozen=True)
class Description:
    """Describes a graph, and how batches of it are drawn.

    Attributes:
        classes: Classes that are learned.
    """

    graph: DescribedGraph
    sampling: SampleConfig
    classes: int

    @property
    def train(self) -> int:
        """Counts the nodes that batches begin with."""
        return sum(of.train for of in self.graph.nodes)


def read_description(name: str | Path) -> Description:
    """Reads a description from a TOML file, such as ``advisor/graphs/mag240m.toml``, or one that ships by name.

    Raises:
        ArgumentError: Keys are missing, unknown or have values that are not possible; all are named.
    """
    path, values = parse_file(name, SHIPPED)
    problems: list[str] = []
    top = Table(path, values, "", problems)
    nodes = tuple(_nodes(table) for table in top.tables("nodes"))
    edges = tuple(_edges(table) for table in top.tables("edges"))
    problems += _problems(nodes, edges)
    name_of = top.take("name", text, path.stem)
    sampling = SampleConfig(
        top.take("fanouts", as_fanouts, (10, 10)), top.take("batch_size", _positive, 1024), splits=("train",)
    )
    classes = top.take("classes", _positive, 2)
    near = top.take("near", _share, 1.0)
    top.end()
    refuse(path, problems, SHIPPED)
    return Description(DescribedGraph(name_of, nodes, edges, near), sampling, classes)


def _nodes(table: Table) -> DescribedNodes:
    width = table.take("width", count, 0)
    found = DescribedNodes(
        table.take("name", text, "", needed=True),
        table.take("num_nodes", _positive, 1, needed=True),
        table.take("dtype", _dtype, "float32", needed=width > 0),
        width,
        table.take("train", count, 0),
        table.take("skew", _skew, 0.5),
    )
    table.end()
    return found


def _edges(table: Table) -> DescribedEdges:
    source, relation, target = (
        table.take(key, text, "", needed=True) for key in ("source", "relation", "target")
    )
    num_edges = table.take("num_edges", _positive, 1, needed=True)
    found = DescribedEdges(source, relation, target, num_edges, table.take("reverse", _flag, False))
    table.end()
    return found


def _problems(nodes: tuple[DescribedNodes, ...], edges: tuple[DescribedEdges, ...]) -> list[str]:
    names = [of.name for of in nodes]
    problems = [
        f"node type {name!r} stands twice" for name in sorted({n for n in names if names.count(n) > 1})
    ]
    problems += [
        f"edge type {' '.join(of.key)!r} is between node types that are not there: {', '.join(names)} are"
        for of in edges
        if of.source not in names or of.target not in names
    ]
    if not edges:
        problems.append("there is no [[edges]]")
    if sum(of.train > 0 for of in nodes) != 1:
        problems.append("exactly one of [[nodes]] must say how many of its nodes train")
    if not any(of.width for of in nodes):
        problems.append("no [[nodes]] have rows: give one a width")
    return problems + [
        f"{of.train} of {of.num_nodes} nodes {of.name!r} train" for of in nodes if of.train > of.num_nodes
    ]


def _positive(value: Any) -> int:
    if count(value) < 1:
        raise ValueError("below 1")
    return int(value)


def _dtype(value: Any) -> str:
    if value not in VALUE_BYTES:
        raise ValueError(f"none of {', '.join(VALUE_BYTES)}")
    return value


def _skew(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError("not from 0 to below 1")
    return float(value)


def _share(value: Any) -> float:
    if positive(value) > 1:
        raise ValueError("above 1")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


def description_of(graph: Graph) -> Description:
    """Describes a graph with types that is there by its sizes; features of edges are left out.

    Raises:
        ArgumentError: It has no training nodes, or several types have, or no node type has features.
    """
    seeds = graph.seed_type
    if not graph.has("train"):
        raise ArgumentError(f"{graph.path} has no training nodes: import it with a split")
    rows = {rows.owner: rows.spec for rows in graph.row_files if rows.kind == "nodes"}
    if not rows:
        raise ArgumentError(f"nodes of {graph.path} have no features: nothing is read to train on it")
    train = graph.spec("train").shape[0]
    nodes = tuple(
        DescribedNodes(
            of.name, of.num_nodes, *_values(rows.get(of)), min(train, of.num_nodes) if of is seeds else 0
        )
        for of in graph.node_types
    )
    edges = tuple(DescribedEdges(*of.key, of.num_edges) for of in graph.edge_types)
    sampling = SampleConfig(splits=("train",))
    return Description(DescribedGraph(graph.path.name, nodes, edges), sampling, max(graph.num_classes, 2))


def _values(spec: ArraySpec | None) -> tuple[str, int]:
    """Returns type and number of the values of a row; as bytes where rows have gaps or values of other types."""
    if spec is None:
        return "float32", 0
    width = math.prod(spec.shape[1:])
    return (
        (spec.dtype, width)
        if VALUE_BYTES.get(spec.dtype, 0) * width == spec.stride_bytes
        else ("uint8", spec.stride_bytes)
    )


def with_sampling(description: Description, sampling: SampleConfig) -> Description:
    """Returns the description with other batches."""
    return replace(description, sampling=replace(sampling, splits=("train",)))
