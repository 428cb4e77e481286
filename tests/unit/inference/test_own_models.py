"""Inference with models that Outcrop did not train, against the same module on the whole graph in memory."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.nn import GATv2Conv, GINConv, SAGEConv
from torch_geometric.nn.models import GAT, GCN, GraphSAGE

import outcrop as oc
from infer_support import a_model, as_float, odd_graph
from outcrop.errors import ArgumentError, IoError
from outcrop.nn.models import build_model
from outcrop.nn.schema import GraphSchema
from run_support import random_features
from typed_infer_support import a_typed_model, expected, save_typed, whole_of

pytestmark = pytest.mark.leaks(
    "env", reason="torch sets TORCHINDUCTOR_CACHE_DIR when its compiler is first imported"
)
WIDTH, CLASSES = 20, 5


@pytest.fixture
def made(tmp_path, make_runtime):
    """A graph with loops, repeated edges, a hub and lonely nodes; its features, and its edges."""
    graph, edges = odd_graph(
        tmp_path / "g", make_runtime(threads=1), nodes=700, edges=4000, width=WIDTH, hub_edges=900
    )
    return graph, as_float(random_features(700, WIDTH, "float32"), "float32"), torch.from_numpy(edges)


def random_biases(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.3)
    return model


def own(name):
    torch.manual_seed(1)
    return random_biases(
        {
            "sage": lambda: GraphSAGE(WIDTH, 16, 3, CLASSES, dropout=0.5, act="tanh"),
            "sage without bias": lambda: GraphSAGE(WIDTH, 16, 2, CLASSES, bias=False),
            "gcn": lambda: GCN(WIDTH, 16, 2, CLASSES, act="elu"),
            "gcn without bias": lambda: GCN(WIDTH, 16, 2, CLASSES, bias=False),
            "gat": lambda: GAT(WIDTH, 16, 2, CLASSES, heads=4),
            "gat of one layer": lambda: GAT(WIDTH, 8, 1, CLASSES, heads=2, concat=False, negative_slope=0.1),
            "hidden only": lambda: GraphSAGE(WIDTH, 12, 2),
        }[name]()
    )


@pytest.mark.parametrize(
    "name",
    ["sage", "sage without bias", "gcn", "gcn without bias", "gat", "gat of one layer", "hidden only"],
)
def test_stacks_are_computed_layer_by_layer(made, tmp_path, name):
    graph, x, edges = made
    model = own(name).train()
    before = copy.deepcopy(model.state_dict())
    report = oc.infer(graph, model=model, out=tmp_path / "o.npy", memory="1MiB")
    assert report.method == "layerwise"
    assert len(report.layers) == model.num_layers
    assert model.training  # as it was, in every respect
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    with torch.no_grad():
        expected = model.eval()(x, edges).numpy()
    assert np.abs(np.load(tmp_path / "o.npy") - expected).max() < 1e-4 * np.abs(expected).max()


def test_outcrops_own_models_in_hand(made, tmp_path):
    graph, x, edges = made
    model = a_model("gcn", WIDTH, CLASSES)
    oc.infer(graph, model=model, out=tmp_path / "o.npy")
    with torch.no_grad():
        expected = model.convs[1](model.convs[0](x, edges).relu(), edges).numpy()
    assert np.abs(np.load(tmp_path / "o.npy") - expected).max() < 1e-4 * np.abs(expected).max()


class Mixed(torch.nn.Module):
    """What nobody but itself knows how to compute."""

    def __init__(self):
        super().__init__()
        self.first = SAGEConv(WIDTH, 16, aggr="max")
        self.norm = torch.nn.BatchNorm1d(16)
        self.second = GATv2Conv(16, 8, heads=2)
        self.last = GINConv(torch.nn.Linear(16, CLASSES))

    def forward(self, x, edge_index):
        assert not self.training
        assert not torch.is_grad_enabled()
        x = self.norm(self.first(x, edge_index)).relu()
        return self.last(self.second(x, edge_index), edge_index)


@pytest.mark.parametrize("nodes", ["all", [5, 3, 699, 0]])
def test_other_modules_are_scored_in_batches(made, tmp_path, nodes):
    """With all neighbours of every hop a batch has all that its seeds depend on."""
    graph, x, edges = made
    torch.manual_seed(2)
    model = Mixed().train()
    model.norm.eval()
    report = oc.infer(
        graph, model=model, out=tmp_path / "o.npy", nodes=nodes, fanouts=[-1, -1, -1], batch_size=64
    )
    assert (report.method, report.columns) == ("sampled", CLASSES)
    assert (model.training, model.norm.training, model.first.training) == (True, False, True)
    with torch.no_grad():
        expected = model.eval()(x, edges).numpy()
    expected = expected if isinstance(nodes, str) else expected[nodes]
    assert np.abs(np.load(tmp_path / "o.npy") - expected).max() < 1e-4 * np.abs(expected).max()


def test_what_is_left_of_another_model_is_not_used(made, tmp_path, monkeypatch):
    """Weights do not say what a model computes."""
    graph, x, edges = made
    model = GraphSAGE(WIDTH, 16, 2, CLASSES, act="relu")
    with monkeypatch.context() as patch:
        patch.setattr("outcrop.inference.export.export", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            oc.infer(graph, model=model, out=tmp_path / "o.npy")
    other = GraphSAGE(WIDTH, 16, 2, CLASSES, act="tanh")
    other.load_state_dict(model.state_dict())
    report = oc.infer(graph, model=other, out=tmp_path / "o.npy")
    assert report.resumed_layers == 0
    with torch.no_grad():
        expected = other.eval()(x, edges).numpy()
    assert np.abs(np.load(tmp_path / "o.npy") - expected).max() < 1e-4 * np.abs(expected).max()


class Sub(GraphSAGE):
    def forward(self, *arguments, **options):
        return super().forward(*arguments, **options) * 2


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: Sub(WIDTH, 8, 2, 3), "Sub is no GraphSAGE, GCN or GAT"),
        (lambda: GraphSAGE(WIDTH, 8, 2, 3, norm="batch_norm"), "normalisation layers"),
        (lambda: GCN(WIDTH, 8, 2, 3, jk="cat"), "jumping knowledge"),
        (lambda: GraphSAGE(WIDTH, 8, 2, 3, aggr="max"), "layer 0, SAGEConv, is not the mean"),
        (lambda: GAT(WIDTH, 8, 2, 3, v2=True), "layer 0, GATv2Conv, is unknown"),
        (lambda: GCN(WIDTH, 8, 2, 3).double(), "not float32"),
        (lambda: GraphSAGE(-1, 8, 2, 3), "has no parameters yet"),
    ],
)
def test_models_that_are_no_known_stack_need_fanouts(made, tmp_path, model, why):
    graph, _, _ = made
    for options in ({}, {"method": "layerwise", "fanouts": [3, 3]}):
        with pytest.raises(
            ArgumentError, match=rf"cannot be computed layer by layer: .*{why}.*; give fanouts"
        ):
            oc.infer(graph, model=model(), out=tmp_path / "o.npy", **options)


def test_arguments_are_checked(made, tmp_path):
    graph, _, _ = made
    with pytest.raises(ArgumentError, match="one of them"):
        oc.infer(graph, out=tmp_path / "o.npy")
    with pytest.raises(ArgumentError, match="wants features of width 7"):
        oc.infer(graph, model=GCN(7, 8, 2, 3), out=tmp_path / "o.npy")
    with pytest.raises(ArgumentError, match=r"Linear cannot be called with features \[2, 20\]"):
        oc.infer(graph, model=torch.nn.Linear(WIDTH, 3), fanouts=[2], out=tmp_path / "o.npy")


def test_predictions_as_an_array(made, tmp_path):
    graph, x, edges = made
    model, ids = own("sage").eval(), np.array([6, 600, 3, 41])
    with torch.no_grad():
        scores = model(x, edges)[ids]
    found = oc.predict(graph, model, ids, memory="4MiB", folder=tmp_path / "..", progress=False)
    assert (found.dtype, found.shape) == (np.float32, (4, CLASSES))
    np.testing.assert_allclose(found, scores.numpy(), rtol=1e-4, atol=1e-5)
    classes = oc.predict(graph, model, ids, output="classes", memory="4MiB", progress=False)
    assert classes.dtype == np.int64
    np.testing.assert_array_equal(classes, scores.argmax(1).numpy())
    folder = tmp_path / "empty"
    folder.mkdir()
    with pytest.raises(ArgumentError, match="output 'labels' is unknown"):
        oc.predict(graph, model, output="labels", folder=folder, progress=False)
    assert not list(folder.iterdir())  # nothing is left, whatever happened
    with pytest.raises(IoError, match="nowhere"):
        oc.predict(graph, model, folder=tmp_path / "nowhere", progress=False)


def test_models_that_take_features_of_edges_need_edges_that_have_some(made):
    graph = made[0]
    for name, inputs in (("gat", (graph.feature_dim, 3)), ("gine", (graph.feature_dim, 3))):
        model = build_model(name, inputs, 16, graph.num_classes, 2)
        with pytest.raises(ArgumentError, match=r"takes features of edges of width 3, .* has none"):
            oc.predict(graph, model, fanouts=(2, 2), progress=False)
    schema = replace(GraphSchema.of(graph), edge_widths=(3,))
    with pytest.raises(ArgumentError, match=r"features of width 0 \(the model: 3\)"):
        oc.predict(graph, a_typed_model("rgat", schema, 2), fanouts=(2, 2), progress=False)


def test_a_graph_transformer_is_scored_layer_by_layer_and_in_sampled_batches(made):
    graph, x, edges = made
    model = build_model("transformer", graph.feature_dim, 16, graph.num_classes, 2).eval()
    with torch.no_grad():
        want = model(x, edges).numpy()
    for options in ({}, {"fanouts": (-1, -1), "method": "sampled"}):
        found = oc.predict(graph, model, memory="16MiB", progress=False, **options)
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_a_model_of_graphs_with_types_scores_a_graph_without_as_one_of_one_type(made, tmp_path):
    graph = made[0]
    schema = GraphSchema.of(graph)
    model = a_typed_model("rgcn", schema, 2)
    kept = save_typed(tmp_path / "kept", graph, "rgcn", model)
    for memory in (None, "1MiB"):
        found = oc.predict(graph, kept, memory=memory, progress=False)
        want = expected(model, whole_of(graph, model))
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
