"""Batches of the reference for typed sampling as models take them, and torch_geometric's own stacks on the same."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.nn import HeteroConv, HGTConv, SAGEConv
from torch_geometric.nn.module_dict import ModuleDict
from torch_geometric.utils import trim_to_layer

from outcrop.nn.hgt import Hgt
from outcrop.nn.schema import EdgeKey, GraphSchema, NodeSchema
from outcrop.nn.typed import TypedModel
from outcrop.nn.typed_models import ConvModel, Rgat, Rgcn, Rgine
from outcrop.store.batches import BatchGraph, Edges, Nodes
from outcrop.store.minibatch import MiniBatch
from typed_reference import TypedBatch, TypedGraph, fanouts_of, pick_some, sample, typed_graphs

HIDDEN = 8


def schema_of(
    graph: TypedGraph, seed_type: int, num_classes: int = 3, *, edge_rows: bool = False
) -> GraphSchema:
    """Describes the graph with types called n0, n1, .., relations r0, r1, .., and rows of 2, 3, .. values.

    With ``edge_rows``, edges of type r have rows of ``r % 3`` values.
    """
    nodes = tuple(NodeSchema(f"n{t}", t + 2, "float64") for t in range(len(graph.sizes)))
    edges = tuple((f"n{s}", f"r{r}", f"n{t}") for r, (s, t) in enumerate(graph.edge_types))
    widths = tuple(r % 3 for r in range(len(edges))) if edge_rows else ()
    return GraphSchema(nodes, edges, f"n{seed_type}", num_classes, edge_widths=widths)


def with_edges_to_all(graph: TypedGraph) -> TypedGraph:
    """Returns the graph with an edge type to each node type that had none."""
    led_to = {target for _, target in graph.edge_types}
    types, lists = list(graph.edge_types), list(graph.lists)
    for t, size in enumerate(graph.sizes):
        if t not in led_to:
            types.append((0, t))
            lists.append(tuple((v % graph.sizes[0],) if graph.sizes[0] else () for v in range(size)))
    return replace(graph, edge_types=tuple(types), lists=tuple(lists))


def batch_graph(batch: TypedBatch, seed_type: int) -> BatchGraph:
    edges = [
        Edges(
            np.cumsum([0, *map(len, rows)], dtype=np.int32),
            np.array([u for u, _ in chain(*rows)], np.int32),
            per_hop,
        )
        for rows, per_hop in zip(batch.rows, batch.edges_per_hop, strict=True)
    ]
    nodes = tuple(
        Nodes(np.array(ids, np.int64), per_hop)
        for ids, per_hop in zip(batch.nodes, batch.nodes_per_hop, strict=True)
    )
    return BatchGraph(nodes, tuple(edges), np.zeros(nodes[seed_type].per_hop[0], np.int64), seed_type)


def deliver(graph: BatchGraph, schema: GraphSchema, *, grad: bool = True) -> MiniBatch:
    """Returns the batch with rows that follow from type and id, of types that are not made."""
    rows = []
    for number, (node, nodes) in enumerate(zip(schema.node_types, graph.nodes, strict=True)):
        if not node.made:
            table = torch.randn(
                64, node.width, dtype=torch.float64, generator=torch.Generator().manual_seed(number)
            )
            rows.append(table[torch.from_numpy(nodes.ids)].clone().requires_grad_(grad))
    for number, edges in enumerate(graph.edges):
        if width := schema.edge_width(number):
            generator = torch.Generator().manual_seed(100 + number)
            rows.append(torch.randn(len(edges.col), width, dtype=torch.float64, generator=generator))
    return MiniBatch(graph, tuple(rows), torch.from_numpy(graph.labels))


@st.composite
def batches(
    draw: st.DrawFn, *, all_led_to: bool = True, edge_rows: bool = False
) -> tuple[MiniBatch, GraphSchema]:
    """Batches of random typed graphs, with seeds of one type."""
    graph = draw(typed_graphs())
    graph = with_edges_to_all(graph) if all_led_to else graph
    seed_type = draw(st.sampled_from([t for t, size in enumerate(graph.sizes) if size]))
    ids = st.integers(0, graph.sizes[seed_type] - 1)
    seeds = {seed_type: draw(st.lists(ids, unique=True, min_size=1, max_size=3))}
    fanouts = draw(fanouts_of(graph))
    drawn = sample(graph, seeds, len(fanouts[0]), pick_some(fanouts, draw(st.integers(0, 99))))
    schema = schema_of(graph, seed_type, edge_rows=edge_rows)
    return deliver(batch_graph(drawn, seed_type), schema), schema


def x_dict(model: TypedModel, batch: MiniBatch) -> dict[str, Tensor]:
    names = [node.name for node in model.schema.node_types]
    return dict(zip(names, model._rows_of(batch), strict=True))


def edge_index_dict(schema: GraphSchema, graph: BatchGraph) -> dict[tuple[str, str, str], Tensor]:
    pairs = zip(schema.edge_types, graph.edges, strict=True)
    return {key: torch.from_numpy(edges.edge_index()) for key, edges in pairs}


def hetero_convs(model: TypedModel, make: Callable[[nn.Module], nn.Module]) -> list[HeteroConv]:
    """Returns torch_geometric's ``HeteroConv`` of each layer, of modules like ours, with the state of ours."""
    found = []
    for own in model.convs:
        with warnings.catch_warnings():  # of types that no edge leads to
            warnings.simplefilter("ignore")
            conv = HeteroConv({key: make(one) for key, one in own.convs.items()})
        conv.double().load_state_dict(own.state_dict())
        found.append(conv)
    return found


def a_sage(own: nn.Module) -> nn.Module:
    return SAGEConv(own.in_channels, own.out_channels, root_weight=own.root_weight)


Rows = dict[str, Tensor]  # by node type
Layer = Callable[[Rows, Mapping[EdgeKey, Tensor]], Rows]


@dataclass(frozen=True)
class PygModel:
    """The same model of torch_geometric's modules, with the state of ours.

    Attributes:
        enter, layers, between, leave: What is done to rows first, by each layer, after all layers but the last, and to
            what the last gives.
        parameters: By the names of ours.
    """

    layers: list[Layer]
    parameters: dict[str, Tensor]
    between: Callable[[Tensor], Tensor] = F.relu
    enter: Callable[[Rows], Rows] = dict
    leave: Callable[[Tensor], Tensor] = torch.Tensor.clone


def pyg_model(model: TypedModel) -> PygModel:
    if isinstance(model, Hgt):
        return _pyg_hgt(model)
    if isinstance(model, Rgcn):
        return _pyg_rgcn(model)
    # Modules of torch_geometric's own for attention and GINE, which are too many options to write again.
    convs = hetero_convs(model, copy.deepcopy if isinstance(model, ConvModel) else a_sage)
    parameters = {name: p for i, conv in enumerate(convs) for name, p in _named(f"convs.{i}.", conv).items()}
    layers = [partial(_with_attributes, conv) for conv in convs]
    between = F.elu if isinstance(model, Rgat) else F.relu
    if not isinstance(model, Rgine):
        return PygModel(layers, parameters, between)
    lins = copy.deepcopy(model.lin_dict)

    def enter(x: Rows) -> Rows:
        return {name: lins[name](rows) for name, rows in x.items()}

    return PygModel(layers, {**parameters, **_named("lin_dict.", lins)}, between, enter)


def _with_attributes(conv: HeteroConv, x: Rows, edges: Mapping, attributes: Mapping | None = None) -> Rows:
    given = {key: rows for key, rows in (attributes or {}).items() if key in edges}
    return conv(x, edges, edge_attr_dict=given) if given else conv(x, edges)


def edge_attr_dict(model: TypedModel, batch: MiniBatch) -> dict[EdgeKey, Tensor]:
    pairs = zip(model.schema.edge_types, model._edge_rows_of(batch), strict=True)
    return {key: rows for key, rows in pairs if rows is not None}


def _pyg_rgcn(model: Rgcn) -> PygModel:
    layers, parameters = [], {}
    for i, conv in enumerate(hetero_convs(model, a_sage)):
        lins = ModuleDict({name: nn.Linear(*lin.weight.shape[::-1]) for name, lin in model.roots[i].items()})
        lins.double().load_state_dict(model.roots[i].state_dict())

        def layer(x: Rows, edges: Mapping[EdgeKey, Tensor], conv=conv, lins=lins) -> Rows:
            out = conv(x, edges)
            return {name: lins[name](rows) + out.get(name, 0) for name, rows in x.items()}

        layers.append(layer)
        parameters |= {**_named(f"convs.{i}.", conv), **_named(f"roots.{i}.", lins)}
    return PygModel(layers, parameters)


def _pyg_hgt(model: Hgt) -> PygModel:
    """The model of torch_geometric's examples."""
    schema, first = model.schema, model.convs[0]
    whole = nn.Module()
    whole.lin_dict = nn.ModuleDict({n.name: nn.Linear(n.width, HIDDEN) for n in schema.node_types})
    metadata = [n.name for n in schema.node_types], list(schema.edge_types)
    whole.convs = nn.ModuleList(HGTConv(HIDDEN, HIDDEN, metadata, first.heads) for _ in model.convs)
    whole.lin = nn.Linear(HIDDEN, schema.num_classes)
    whole.double().load_state_dict(model.state_dict())

    def enter(x: Rows) -> Rows:
        return {name: whole.lin_dict[name](rows).relu_() for name, rows in x.items()}

    return PygModel(list(whole.convs), _named("", whole), lambda out: out, enter, whole.lin)


def pyg_forward(model: TypedModel, batch: MiniBatch) -> tuple[Tensor, dict[str, Tensor]]:
    """Computes scores with torch_geometric's modules and ``trim_to_layer``: (scores, its parameters by our names)."""
    theirs, schema, graph = pyg_model(model), model.schema, batch.graph
    x, edges = theirs.enter(x_dict(model, batch)), edge_index_dict(schema, graph)
    nodes_per_hop = {n.name: list(g.per_hop) for n, g in zip(schema.node_types, graph.nodes, strict=True)}
    edges_per_hop = {k: list(g.per_hop) for k, g in zip(schema.edge_types, graph.edges, strict=True)}
    attributes = edge_attr_dict(model, batch)
    for index, layer in enumerate(theirs.layers):
        x, edges, attributes = trim_to_layer(
            index, nodes_per_hop, edges_per_hop, x, edges, attributes or None
        )
        there = {key: e for key, e in edges.items() if key[0] in x and key[2] in x}
        x = layer(x, there, attributes) if attributes else layer(x, there)
        if index < len(theirs.layers) - 1:
            x = {name: theirs.between(out) for name, out in x.items()}
    return theirs.leave(x[schema.seed_type][: graph.num_seeds]), theirs.parameters


def pyg_whole(
    model: TypedModel,
    x: Rows,
    edges: Mapping[EdgeKey, Tensor],
    attributes: Mapping[EdgeKey, Tensor] | None = None,
) -> Tensor:
    """Computes scores of all nodes of the seeds' type with torch_geometric's modules."""
    theirs = pyg_model(model)
    out = x = theirs.enter(x)
    for layer in theirs.layers:
        out = layer(x, edges, attributes) if attributes else layer(x, edges)
        x = {name: theirs.between(rows) for name, rows in out.items()}
    return theirs.leave(out[model.schema.seed_type])


def _named(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    return {prefix + name: parameter for name, parameter in module.named_parameters()}
