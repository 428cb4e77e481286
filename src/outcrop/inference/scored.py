"""Chooses how a model is scored: layer by layer, or in sampled batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import nn

from outcrop import device as devices
from outcrop.config import as_fanouts
from outcrop.config.places import is_uri
from outcrop.errors import ArgumentError
from outcrop.inference import layer_sums
from outcrop.inference.stack import as_stack
from outcrop.inference.whole import WholeModel
from outcrop.nn import checkpoint as checkpoints
from outcrop.nn.hgt import Hgt
from outcrop.nn.models import Model
from outcrop.nn.typed import TypedModel
from outcrop.nn.typed_models import ConvModel, MeanModel
from outcrop.store.graph import Graph
from outcrop.store.graph_types import NodeType
from outcrop.store.remote import without_keys

METHODS = ("layerwise", "sampled")


@dataclass(frozen=True)
class ScoringRequest:
    """Says what is scored, and how.

    Attributes:
        fanouts: Fanouts of sampled batches, one per layer; None: not known.
        fanouts_by_type: Those of edge types that have others.
        kind: Kind of the labels that were learned: ``class``, ``multilabel`` or ``regression``.
        class_names: Names of the classes that were learned, where they are known; else empty.
        any_graph: The model was trained on another graph, whose labels may mean something else.
    """

    model: Model | TypedModel | WholeModel
    method: str
    fanouts: tuple[int, ...] | None
    kind: str = "class"
    class_names: tuple[str, ...] = ()
    fanouts_by_type: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    any_graph: bool = False

    @property
    def takes_edge_rows(self) -> bool:
        """Tells whether the model takes features of edges."""
        return not isinstance(self.model, WholeModel) and any(_edge_widths(self.model))

    @property
    def adds_up(self) -> bool:
        """Tells whether layers add up parts of what lists name, so that they are computed out of core."""
        return not isinstance(self.model, WholeModel) and _adds_up(self.model)

    def seed_type(self, graph: Graph) -> NodeType:
        """Returns the type of the nodes that are scored."""
        if isinstance(self.model, TypedModel):
            return graph.node_types[self.model.schema.seed_number]
        return graph.node_types[0]


def what_is_scored(
    graph: Graph,
    checkpoint: str | Path | None,
    model: nn.Module | None,
    method: str | None,
    fanouts: Sequence[int] | None,
    any_graph: bool,
    device: str,
) -> ScoringRequest:
    """Checks what is to be scored."""
    if method not in (None, *METHODS):
        raise ArgumentError(f"method {method!r} is unknown; known: {', '.join(METHODS)}")
    if (checkpoint is None) == (model is None):
        raise ArgumentError("give a checkpoint folder or a model of your own, one of them")
    devices.resolve(device)
    if graph.feature_bytes == 0 and not graph.is_typed:
        raise ArgumentError(f"{graph.path} has no features to infer from: import them with the graph")
    asked = None if fanouts is None else as_fanouts(fanouts)
    if checkpoint is not None:
        return _of_checkpoint(graph, checkpoint, method, asked, any_graph, device)
    assert model is not None
    stack, why = as_stack(model)
    name = type(model).__name__
    if isinstance(stack, TypedModel):
        _require_schema(graph, stack, name)
        of = graph.node_types[stack.schema.seed_number]
        how = _method_for(stack, name, method, asked)
        return ScoringRequest(stack.to(devices.resolve(device)), how, asked, of.label_kind, of.class_names)
    graph.require_one_type(f"scoring {name}")
    if stack is not None:
        width = layer_sums.widths(stack.convs[0])[0]
        if width != graph.feature_dim:
            raise ArgumentError(
                f"the model wants features of width {width}, {graph.path} has {graph.feature_dim}"
            )
        _require_edge_width(graph, stack, "the model")
        known = graph.label_kind, graph.class_names
        how = _method_for(stack, name, method, asked)
        return ScoringRequest(stack.to(devices.resolve(device)), how, asked, *known)
    if method == "layerwise" or asked is None:
        raise ArgumentError(
            f"the model cannot be computed layer by layer: {why}; give fanouts to score it in sampled batches, as "
            "sampling=InferSampling(fanouts=(-1, -1)) has all neighbors of two hops"
        )
    return ScoringRequest(
        WholeModel(model, graph.feature_dim), "sampled", asked, graph.label_kind, graph.class_names
    )


def _of_checkpoint(
    graph: Graph,
    checkpoint: str | Path,
    method: str | None,
    fanouts: tuple[int, ...] | None,
    any_graph: bool,
    device: str,
) -> ScoringRequest:
    model, meta = checkpoints.load_best(checkpoint, device)
    if is_uri(checkpoint):
        checkpoint = without_keys(str(checkpoint))
    if isinstance(model, Model):
        _require_width(graph, checkpoint, meta.config["in_dim"])
        _require_edge_width(graph, model, str(checkpoint))
    else:
        _require_schema(graph, model, str(checkpoint))
    same_graph = meta.inputs.get("graph", graph.digest()) == graph.digest()
    if not any_graph and not same_graph:
        raise ArgumentError(
            f"{checkpoint} was trained on another graph than {graph.path}, or on another state of it: use that one, "
            "or pass --any-graph (any_graph=True) if the features mean the same"
        )
    method = _method_for(model, str(checkpoint), method, fanouts)
    trained = meta.inputs.get("sampling", {})
    by_type: dict[str, tuple[int, ...]] = {}
    if fanouts is None and trained.get("fanouts") is not None:
        fanouts = tuple(trained["fanouts"])
        by_type = {name: tuple(one) for name, one in dict(trained.get("fanouts_by_type", ())).items()}
    request = ScoringRequest(model, method, fanouts, meta.config.get("label_kind", "class"))
    # Another graph may number its classes otherwise.
    class_names = request.seed_type(graph).class_names if same_graph else ()
    return replace(request, class_names=class_names, fanouts_by_type=by_type, any_graph=not same_graph)


def _method_for(
    model: Model | TypedModel, name: str, method: str | None, fanouts: tuple[int, ...] | None
) -> str:
    """Returns how a model is scored, where ``method`` and ``fanouts`` were asked for.

    Raises:
        ArgumentError: It would be computed layer by layer, and takes features of edges, or has layers that are not
            added up by parts.
    """
    if _adds_up(model):
        return method or "layerwise"
    if method == "layerwise" or (method is None and fanouts is None):
        takes = any(_edge_widths(model))
        why = "takes features of edges" if takes else "has layers that are not added up by parts"
        raise ArgumentError(
            f"{name} {why}, so it is not computed layer by layer: score it in sampled batches, with --method sampled "
            "(method='sampled')"
        )
    return "sampled"


def _adds_up(model: Model | TypedModel) -> bool:
    if isinstance(model, TypedModel):
        known = isinstance(model, MeanModel | ConvModel | Hgt)
    else:
        known = all(layer_sums.has_sums(conv) for conv in model.convs)
    return known and not any(_edge_widths(model))


def _edge_widths(model: Model | TypedModel) -> tuple[int, ...]:
    """Returns how wide the features of edges are that a model takes, per type of edges; 0: it takes none."""
    if isinstance(model, TypedModel):
        return model.schema.edge_widths
    return (layer_sums.edge_width(model.convs[0]),)


def _require_edge_width(graph: Graph, model: Model, name: str) -> None:
    """Raises ArgumentError where the edges of a graph have not the features that ``model`` takes."""
    want = _edge_widths(model)[0]
    have = graph.row_files[-1].width if graph.has_edge_rows else 0
    if want and want != have:
        raise ArgumentError(
            f"{name} takes features of edges of width {want}, {graph.path} has "
            + (f"some of width {have}" if have else "none")
            + ": use the graph that it was trained on, or train on this one"
        )


def _require_width(graph: Graph, checkpoint: str | Path, in_dim: int) -> None:
    if graph.is_typed:
        graph.require_one_type(f"the model in {checkpoint}")
    if in_dim != graph.feature_dim:
        raise ArgumentError(
            f"{checkpoint} was trained on features of width {in_dim}, {graph.path} has {graph.feature_dim}: use the "
            "graph that it was trained on, or train on this one"
        )


def _require_schema(graph: Graph, model: TypedModel, name: str) -> None:
    """Raises ArgumentError where ``graph`` has other types, or rows of another width, than those of the model."""
    schema = model.schema
    rows = {one.owner.number: one.width for one in graph.row_files if one.kind == "nodes"}
    have = [(one.name, rows.get(one.number, 0)) for one in graph.node_types]
    want = [(node.name, 0 if node.made else node.width) for node in schema.node_types]
    differing = [
        f"node type {a[0]!r} with rows of width {a[1]} (the model: {b[0]!r}, {b[1]})"
        for a, b in zip(have, want, strict=False)
        if a != b
    ]
    keys = tuple(one.key for one in graph.edge_types)
    if len(have) != len(want) or keys != schema.edge_types:
        theirs = ", ".join(repr(" ".join(key)) for key in schema.edge_types)
        differing.append(f"other types of nodes or edges (the model: {theirs})")
    of_edges = {one.owner.number: one.width for one in graph.row_files if one.kind == "edges"}
    differing += [
        f"edges {' '.join(key)!r} with features of width {of_edges.get(number, 0)} (the model: {width})"
        for number, (key, width) in enumerate(zip(keys, schema.edge_widths, strict=False))
        if width not in (0, of_edges.get(number, 0))
    ]
    differing += [
        f"{one.num_nodes} nodes of type {one.name!r}, whose rows were learned (the model: {node.num_nodes})"
        for one, node in zip(graph.node_types, schema.node_types, strict=False)
        if node.is_learned and node.num_nodes != one.num_nodes
    ]
    if differing:
        raise ArgumentError(
            f"{name} is of a graph with other types than {graph.path}, which has {'; '.join(differing)}: use the graph "
            "that it was trained on, or train on this one"
        )
