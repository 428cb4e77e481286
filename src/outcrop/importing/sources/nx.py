"""NetworkX graphs as parts: nodes are numbered, attributes of nodes become features, labels and splits by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError
from outcrop.importing.sources.parts import Parts
from outcrop.runtime.runtime import Runtime

_EDGE_BYTES = 20  # two int64 ids and a float32 weight


def networkx_parts(
    graph: Any, named: dict[str, Any], runtime: Runtime, held: ExitStack
) -> tuple[dict[str, Any], Parts]:
    """Returns the parts of a NetworkX graph, directed or not, multigraph or not.

    Nodes 0 .. N - 1 keep their numbers; others are numbered in the order of ``graph.nodes`` and keep their names.
    Edges have weights where one of them has an attribute ``weight`` (1 where it is absent), or the attribute that
    ``named["edge_weight"]`` says.

    Args:
        named: What was asked for. ``features``: an attribute (a number or a vector) or a list of them; ``labels``: an
            attribute; ``train``, ``valid``, ``test``: an attribute that is true, or a list of nodes. Other values
            pass through.
        held: Keeps the budget of the edges, 20 bytes each.

    Raises:
        ArgumentError: A node lacks an attribute that is asked for as feature, or no node has one that is asked for
            otherwise.
    """
    nodes = list(graph.nodes)
    count = len(nodes)
    plain = all(type(node) is int and 0 <= node < count for node in nodes)
    nodes = sorted(nodes) if plain else nodes
    index = {node: number for number, node in enumerate(nodes)}
    held.enter_context(runtime.budget.reserve("import", _EDGE_BYTES * graph.number_of_edges()))
    parts = {name: _resolved(graph, nodes, index, name, value) for name, value in named.items()}
    weight = named.get("edge_weight", "weight")
    asked = "edge_weight" in named
    parts["edges"] = _edges(graph, index)
    if isinstance(weight, str):
        parts["edge_weight"] = _weights(graph, weight)
        if asked and parts["edge_weight"] is None and graph.number_of_edges():
            raise ArgumentError(
                f"no edge has the attribute {weight!r}: name another as edge_weight, or leave it out"
            )
    used = {
        a
        for value in named.values()
        for a in ([value] if isinstance(value, str) else value)
        if isinstance(a, str)
    }
    first = graph.nodes[nodes[0]] if nodes else {}
    left = [str(attribute) for attribute in first if attribute not in used]
    return parts, Parts(
        "networkx graph",
        {},
        num_nodes=count,
        names=None if plain else lambda: (str(node) for node in nodes),
        integer_names=not plain and all(type(node) is int and abs(node) < 1 << 63 for node in nodes),
        reverse=not graph.is_directed(),
        notes=(f"node attributes that are not imported: {', '.join(left)}",) if left else (),
    )


def _edges(graph: Any, index: dict[Any, int]) -> np.ndarray:
    def ends() -> Iterator[int]:
        for source, target in graph.edges():
            yield index[source]
            yield index[target]

    return np.fromiter(ends(), np.int64, 2 * graph.number_of_edges()).reshape(-1, 2)


def _weights(graph: Any, attribute: str) -> np.ndarray | None:
    found = [given for *_, given in graph.edges(data=attribute)]
    if all(weight is None for weight in found):
        return None
    return np.array([1.0 if weight is None else weight for weight in found], np.float32)


def _resolved(graph: Any, nodes: list[Any], index: dict[Any, int], name: str, value: Any) -> Any:
    """Returns a part that is given by the names of attributes, or by nodes."""
    if name == "features" and (isinstance(value, str) or _is_words(value)):
        return _features(graph, nodes, [value] if isinstance(value, str) else list(value))
    if name == "labels" and isinstance(value, str):
        return _attribute(graph, nodes, name, value)
    if name in SPLITS:
        if isinstance(value, str):
            return np.array([bool(given) for given in _attribute(graph, nodes, name, value)])
        if isinstance(value, list | tuple | set):
            unknown = next((node for node in value if node not in index), None)
            if unknown is not None:
                raise ArgumentError(f"{name} lists {unknown!r}, which is no node of the graph")
            return np.array([index[node] for node in value], np.int64)
    return value


def _attribute(graph: Any, nodes: list[Any], name: str, attribute: str) -> list[Any]:
    """Lists what the nodes have as ``attribute``, None where one has none."""
    found = [graph.nodes[node].get(attribute) for node in nodes]
    if nodes and all(given is None for given in found):
        have = sorted({str(known) for node in nodes for known in graph.nodes[node]})
        raise ArgumentError(
            f"no node has the attribute {attribute!r}, which is named as {name}; nodes have {', '.join(have) or 'none'}"
        )
    return found


def _is_words(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)


def _features(graph: Any, nodes: list[Any], attributes: list[str]) -> np.ndarray:
    rows = []
    for node in nodes:
        given = graph.nodes[node]
        missing = next((a for a in attributes if given.get(a) is None), None)
        if missing is not None:
            raise ArgumentError(
                f"node {node!r} has no attribute {missing!r}, which is asked for as a feature"
            )
        rows.append(np.concatenate([np.atleast_1d(given[a]) for a in attributes]))
    if len({len(row) for row in rows}) > 1:
        raise ArgumentError(f"attribute {', '.join(attributes)} differs in length from node to node")
    return np.array(rows)
