"""Nodes that batches can begin with: errors where a graph, or the node type that was chosen, has none."""

from __future__ import annotations

from outcrop.errors import ArgumentError
from outcrop.store.graph import Graph
from outcrop.store.graph_types import NodeType


def require_nodes(graph: Graph) -> None:
    """Raises ArgumentError where batches have no node to begin with; names the node type that has none."""
    if graph.seed_type.num_nodes == 0:
        raise ArgumentError(_no_nodes(graph))


def require_training_nodes(graph: Graph) -> None:
    """Raises ArgumentError where no node trains; names the node type that batches begin with, and what to do."""
    if graph.has("train") and graph.spec("train").shape[0] > 0:
        return
    if graph.is_typed and graph.seed_type.num_nodes == 0:
        raise ArgumentError(_no_nodes(graph))
    raise ArgumentError(
        f"{graph.path} has no training nodes{_of_type(graph)}: {_other_types(graph, training=True)}import it again "
        "with a train split, or with --train-fraction 0.6 --overwrite (ImportConfig(train_fraction=0.6), "
        "overwrite=True)"
    )


def _no_nodes(graph: Graph) -> str:
    others = _other_types(graph, training=False)
    return (
        f"{graph.path} has no nodes{_of_type(graph)}, so no batch has any: {others}import it again with some"
    )


def _of_type(graph: Graph) -> str:
    return f" of type {graph.seed_type.name!r}" if graph.is_typed else ""


def _other_types(graph: Graph, *, training: bool) -> str:
    """Says which node types have nodes, or some that train, and how batches begin with them."""
    arrays = graph.manifest.arrays

    def count(one: NodeType) -> int:
        train = arrays.get(one.array("train"))
        return (train.shape[0] if train else 0) if training else one.num_nodes

    names = " or ".join(repr(one.name) for one in graph.node_types if count(one))
    return f"choose {names} (--node-type, SampleConfig(node_type=...)), or " if names else ""
