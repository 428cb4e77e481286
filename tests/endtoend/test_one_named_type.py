"""A graph of one named node and edge type is trained as one without names: the same losses, scores and weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import outcrop as oc
from outcrop.store.graph import Graph

NODES, FEATURES = 400, 24


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, Graph]:
    """Gives the same graph without names and with a name for its nodes."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("named")
    edges = torch.from_numpy(np.unique(rng.integers(0, NODES, (2, 4000)), axis=1))
    plain, named = Data(edge_index=edges), HeteroData()
    named["node", "to", "node"].edge_index = edges
    order = torch.from_numpy(rng.permutation(NODES))
    rows = torch.from_numpy(rng.standard_normal((NODES, FEATURES)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, 4, NODES))
    for nodes in (plain, named["node"]):
        nodes.x, nodes.y = rows, labels
        for name, begin, end in (("train", 0, 120), ("val", 120, 200), ("test", 200, 300)):
            nodes[f"{name}_mask"] = torch.zeros(NODES, dtype=torch.bool).index_fill_(
                0, order[begin:end], True
            )
    one, other = (
        oc.import_graph(data, folder / f"{number}.oc", progress=False)
        for number, data in enumerate((plain, named))
    )
    assert (one.is_typed, other.is_typed) == (False, True)
    return one, other


def trained(graph: Graph, model: oc.ModelConfig, mode: str) -> Any:
    return oc.train(
        graph,
        model=model,
        sampling=oc.SampleConfig(fanouts=(5, 4), batch_size=16, seed=2),
        training=oc.TrainConfig(trace_losses=True, seed=2),
        loading=mode,
        epochs=2,
        observer=oc.Observer(progress=False),
    )


@pytest.mark.parametrize(("unnamed", "named"), [("sage", "rsage"), ("transformer", "rtransformer")])
@pytest.mark.parametrize(("hidden", "mode"), [(16, "packed"), (64, "online")])
def test_one_named_type_is_trained_as_one_without_a_name(
    graphs: tuple[Graph, Graph], unnamed: str, named: str, hidden: int, mode: str
) -> None:
    """Either side of what costs less: the mean of rows that are mapped already, and the map of their mean."""
    options: dict[str, Any] = {"hidden": hidden, "heads": 4, "dropout": 0.2}
    plain, typed = (
        trained(graph, oc.ModelConfig(name, **options), mode)
        for graph, name in zip(graphs, (unnamed, named), strict=True)
    )
    assert len(plain.batch_losses) == 2 * -(-120 // 16)
    assert typed.batch_losses == plain.batch_losses
    assert [e["valid_metric"] for e in typed.epochs] == [e["valid_metric"] for e in plain.epochs]
    assert typed.test_metric == plain.test_metric
    weights = [list(report.model.state_dict().values()) for report in (plain, typed)]
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))
