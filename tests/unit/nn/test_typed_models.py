"""Models of graphs with node and edge types against torch_geometric's modules, in float64."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import batch_reference
import typed_batches
from batch_reference import random_adjacency
from outcrop.errors import ArgumentError
from outcrop.nn import layers, typed_layers
from outcrop.nn.models import TYPED_MODELS, build_model
from outcrop.nn.schema import GraphSchema, NodeSchema
from outcrop.nn.typed import TypedModel
from outcrop.store.minibatch import MiniBatch
from typed_batches import HIDDEN, pyg_forward
from typed_reference import TypedGraph, pick_all, sample

TIGHT = {"rtol": 1e-10, "atol": 1e-12}


def new_model(name: str, schema: GraphSchema, layers: int, **options) -> TypedModel:
    torch.manual_seed(1)
    model = build_model(name, schema, HIDDEN, schema.num_classes, layers, heads=2, **options).double()
    for parameter in model.parameters():  # torch_geometric starts biases at zero, which would hide mistakes
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def gradients(output: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    """Gradients of a random sum of the output; what has no part in it has gradient zero."""
    weights = torch.randn(output.shape, dtype=output.dtype, generator=torch.Generator().manual_seed(5))
    found = torch.autograd.grad((output * weights).sum(), wanted, allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=True)]


def assert_equal_to_torch_geometric(model: TypedModel, batch: MiniBatch) -> None:
    ours = model(batch)
    theirs, parameters = pyg_forward(model, batch)
    torch.testing.assert_close(ours, theirs, **TIGHT)
    own = dict(model.named_parameters())
    assert own.keys() == parameters.keys()
    rows = [one for one in batch.rows if one.requires_grad]  # those of edges do not
    mine = gradients(ours, [*rows, *own.values()])
    reference = gradients(theirs, [*rows, *(parameters[name] for name in own)])
    for a, b in zip(mine, reference, strict=True):
        torch.testing.assert_close(a, b, **TIGHT)


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("name", TYPED_MODELS)
@pytest.mark.parametrize("first", [True, False])
@given(drawn=typed_batches.batches())
def test_outputs_and_gradients_equal_torch_geometric(name, first, drawn):
    """Whichever product is taken first."""
    batch, schema = drawn
    with pytest.MonkeyPatch.context() as patch:
        for module in (layers, typed_layers):
            patch.setattr(module, "aggregate_first", lambda *_: first)
        assert_equal_to_torch_geometric(new_model(name, schema, batch.graph.hops), batch)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["rgat", "rtransformer", "rgine"])
@given(drawn=typed_batches.batches(edge_rows=True), data=st.data())
def test_with_rows_of_edges_they_equal_torch_geometric(name, drawn, data):
    """In a batch, and as a model of torch_geometric whose edges are in any order."""
    batch, schema = drawn
    model = new_model(name, schema, batch.graph.hops)
    assert_equal_to_torch_geometric(model, batch)
    indices = typed_batches.edge_index_dict(schema, batch.graph)
    orders = {key: data.draw(st.permutations(range(index.shape[1]))) for key, index in indices.items()}
    edges = {key: index[:, orders[key]] for key, index in indices.items()}
    rows = {key: rows[orders[key]] for key, rows in typed_batches.edge_attr_dict(model, batch).items()}
    x = typed_batches.x_dict(model, batch)
    whole = typed_batches.pyg_whole(model, x, edges, rows)
    torch.testing.assert_close(model(x, edges, rows), whole, **TIGHT)


def test_rows_of_edges_that_a_batch_does_not_have_are_asked_for():
    batch, schema = one_type()
    schema = replace(schema, edge_widths=(3,))
    with pytest.raises(ArgumentError, match="takes features of edges, and the batch has none"):
        new_model("rgat", schema, 2)(batch)
    assert GraphSchema.from_stored(json.loads(json.dumps(schema.as_stored()))) == schema
    assert "edge_widths" not in replace(schema, edge_widths=()).as_stored()


@given(drawn=typed_batches.batches(all_led_to=False))
def test_rgcn_keeps_nodes_that_no_edge_type_leads_to(drawn):
    batch, schema = drawn
    assert_equal_to_torch_geometric(new_model("rgcn", schema, batch.graph.hops), batch)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", TYPED_MODELS)
@given(drawn=typed_batches.batches(), data=st.data())
def test_called_with_edges_it_is_a_model_of_torch_geometric(name, drawn, data):
    """The subgraph as a graph of its own: its edges in any order, and every node a target in every layer."""
    batch, schema = drawn
    model = new_model(name, schema, 2)
    graph = batch.graph
    x = typed_batches.x_dict(model, batch)
    edges = {
        key: index[:, data.draw(st.permutations(range(index.shape[1])))]
        for key, index in typed_batches.edge_index_dict(schema, graph).items()
    }
    torch.testing.assert_close(model(x, edges), typed_batches.pyg_whole(model, x, edges), **TIGHT)


def one_type() -> tuple[MiniBatch, GraphSchema]:
    """A batch of a graph with one node type and one edge type, both unnamed as in the graphs of today."""
    adjacency = random_adjacency(60, 5, 0)
    x = torch.randn(60, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    batch = batch_reference.deliver(batch_reference.sample(adjacency, [3, 17, 58], (4, 3), 0), x)
    return batch, GraphSchema((NodeSchema("", 7, "float64"),), (("", "", ""),), "", 3)


def test_on_one_type_rsage_is_sage():
    batch, schema = one_type()
    model = new_model("rsage", schema, 2)
    sage = build_model("sage", 7, HIDDEN, 3, 2).double()
    sage.load_state_dict({name.replace("convs.<______>.", ""): v for name, v in model.state_dict().items()})
    batch.x.requires_grad_()
    ours, reference = model(batch), sage(batch)
    torch.testing.assert_close(ours, reference, rtol=1e-12, atol=1e-12)
    mine = gradients(ours, [batch.x, *model.parameters()])
    for a, b in zip(mine, gradients(reference, [batch.x, *sage.parameters()]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", TYPED_MODELS)
def test_graphs_without_names_of_types_will_do(name):
    batch, schema = one_type()
    assert new_model(name, schema, 2)(batch).shape == (3, 3)


MAG = GraphSchema(
    (
        NodeSchema("paper", 6, "float16"),
        NodeSchema("author", 4, "int8"),
        NodeSchema("institution", 5, made="random:5"),
    ),
    (
        ("paper", "cites", "paper"),
        ("author", "writes", "paper"),
        ("paper", "rev_writes", "author"),
        ("author", "affiliated", "institution"),
        ("institution", "rev_affiliated", "author"),
    ),
    "paper",
    3,
)
GRAPH = TypedGraph(
    (5, 4, 3),
    ((0, 0), (1, 0), (0, 1), (1, 2), (2, 1)),
    (
        ((1, 2), (0, 3), (), (4,), (0,)),
        ((0, 1), (2,), (3,), (0, 3), ()),
        ((0, 3), (0,), (1,), (2, 3)),
        ((0, 1), (2,), (3,)),
        ((0,), (0,), (1,), (2,)),
    ),
)


def a_batch(hops: int = 2) -> MiniBatch:
    drawn = sample(GRAPH, {0: [0, 3]}, hops, pick_all)
    batch = typed_batches.deliver(typed_batches.batch_graph(drawn, 0), MAG, grad=False)
    papers, authors = batch.rows
    return MiniBatch(batch.graph, (papers.half(), (authors * 20).to(torch.int8)), batch.y)


@pytest.mark.parametrize("name", TYPED_MODELS)
def test_rows_of_other_types_are_converted_and_rows_that_are_not_there_are_made(name):
    batch, model = a_batch(), new_model(name, MAG, 2).float()
    scores = model(batch)
    assert (scores.dtype, scores.shape) == (torch.float32, (2, 3))
    wide = MiniBatch(batch.graph, tuple(rows.float() for rows in batch.rows), batch.y)
    assert torch.equal(model(wide), scores)

    asked = []

    def other_rows(node_type: int, ids: np.ndarray) -> Tensor:
        asked.append((node_type, ids.tolist()))
        return torch.ones(len(ids), 5)

    model.make_rows = other_rows
    assert not torch.equal(model(batch), scores)
    assert asked == [(2, batch.graph.nodes[2].ids.tolist())]


@pytest.mark.parametrize("name", TYPED_MODELS)
def test_results_do_not_depend_on_where_the_rows_lie(name):
    batch, model = a_batch(), new_model(name, MAG, 2).float()
    rows = [rows.float() for rows in batch.rows]
    expected = model(MiniBatch(batch.graph, tuple(rows), batch.y))
    moved = [torch.empty(x.numel() + 16)[3 : 3 + x.numel()].view(x.shape).copy_(x) for x in rows]
    assert torch.equal(model(MiniBatch(batch.graph, tuple(moved), batch.y)), expected)


@pytest.mark.parametrize("name", TYPED_MODELS)
def test_layers_of_an_untrimmed_batch_take_all_of_it(name):
    """As many layers as wanted, each over all nodes, and scores of the seeds alone."""
    graph = a_batch(3).graph
    # Rows for all nodes: those first met in the last hop have none of their own.
    edges = []
    for number, (_, target) in enumerate(GRAPH.edge_types):
        missing = len(graph.nodes[target].ids) - graph.edges[number].num_rows
        rowptr = np.pad(graph.edges[number].rowptr, (0, missing), mode="edge")
        edges.append(replace(graph.edges[number], rowptr=rowptr))
    batch = typed_batches.deliver(replace(graph, edges=tuple(edges), untrimmed=True), MAG)
    for depth in (1, 2):
        model = new_model(name, MAG, depth)
        scores = model(batch)
        x = typed_batches.x_dict(model, batch)
        whole = model(x, typed_batches.edge_index_dict(MAG, batch.graph))
        torch.testing.assert_close(scores, whole[:2], **TIGHT)


def test_dropout_is_between_layers_while_training():
    batch, model = a_batch(), new_model("rsage", MAG, 2, dropout=0.5).float()
    assert not torch.equal(model(batch), model(batch))
    assert torch.equal(model.eval()(batch), model(batch))


@pytest.mark.parametrize("name", TYPED_MODELS)
def test_names_may_be_what_modules_have_themselves(name):
    nodes = (NodeSchema("keys", 2), NodeSchema("a.b", 3))
    schema = GraphSchema(nodes, (("keys", "to", "a.b"), ("a.b", "type", "keys")), "a.b", 2)
    model = new_model(name, schema, 1).float()
    edges = {key: torch.tensor([[0, 1], [1, 0]]) for key in schema.edge_types}
    assert model({"keys": torch.ones(2, 2), "a.b": torch.ones(2, 3)}, edges).shape == (2, 2)


def test_models_that_need_edges_to_a_type_without_are_refused():
    nodes = (NodeSchema("paper", 2), NodeSchema("author", 3))
    schema = GraphSchema(nodes, (("paper", "cites", "paper"), ("author", "writes", "paper")), "paper", 2)
    for name in TYPED_MODELS:
        build_model(name, schema, 4, 2, 1)  # authors give their own rows, nothing else is asked of them
    build_model("rgcn", schema, 4, 2, 2)
    with pytest.raises(ArgumentError, match=r"no edges lead to node type 'author'.*'rsage'.*--reverse.*rgcn"):
        build_model("rsage", schema, 4, 2, 2)


def test_other_batches_and_arguments_are_refused():
    model, batch = new_model("rsage", MAG, 2), a_batch()
    papers, authors = batch.rows
    with pytest.raises(ArgumentError, match="the model has 2 layers, the batches 3 hops"):
        model(a_batch(3))
    with pytest.raises(ArgumentError, match=r"'paper' have shape \[5, 4\], the model takes rows of 6 values"):
        model(MiniBatch(batch.graph, (papers[:, :4], authors), batch.y))
    with pytest.raises(ArgumentError, match="1 node types and 1 edge types, the graph of the model 3 and 5"):
        model(one_type()[0])
    with pytest.raises(
        ArgumentError, match="seeds of the batch are of node type 1, the model scores 'paper'"
    ):
        model(MiniBatch(replace(batch.graph, seed_type=1), batch.rows, batch.y))
    x, edges = typed_batches.x_dict(model, batch), typed_batches.edge_index_dict(MAG, batch.graph)
    made = x.pop("institution")
    with pytest.raises(
        ArgumentError, match=r"lack 'institution': .*; rows that .* are model.make_rows\(number"
    ):
        model(x, edges)
    x["institution"] = made
    del x["paper"], edges["author", "writes", "paper"]
    with pytest.raises(ArgumentError, match=r"lack 'paper', \('author', 'writes', 'paper'\)"):
        model(x, edges)
    with pytest.raises(ArgumentError, match="not with Tensor and NoneType"):
        model(papers)


def test_models_and_graphs_that_do_not_go_together_are_refused():
    with pytest.raises(
        ArgumentError, match="'rsage' computes graphs with node and edge types: give a GraphSchema"
    ):
        build_model("rsage", 7, 8, 3, 2)
    with pytest.raises(ArgumentError, match="'sage' computes graphs without types: choose rgcn"):
        build_model("sage", MAG, 8, 3, 2)
    with pytest.raises(ArgumentError, match="num_classes 4 are not the 3 of the graph"):
        build_model("rgcn", MAG, 8, 4, 2)
    with pytest.raises(
        ArgumentError,
        match="known: sage, gat, gcn, transformer, gine; of graphs with node and edge types: rgcn",
    ):
        build_model("gcnn", MAG, 8, 3, 2)


@pytest.mark.parametrize("name", TYPED_MODELS)
def test_autocast_rounds_factors_of_dense_products_alone(name):
    """Scores stay float32 and near those without it; gradients are float32 as the parameters are."""
    batch, model = a_batch(), new_model(name, MAG, 2).float()
    exact = model(batch).detach()
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(batch)
    assert scores.dtype == torch.float32
    assert not torch.equal(scores, exact)
    torch.testing.assert_close(scores, exact, rtol=0.1, atol=0.1 * float(exact.abs().max()))
    scores.sum().backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in model.parameters())
