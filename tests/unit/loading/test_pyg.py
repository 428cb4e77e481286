"""Batches in torch_geometric's form, under torch_geometric's own trimming and models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GraphSAGE
from torch_geometric.utils import trim_to_layer

from batch_reference import deliver, random_adjacency, sample
from outcrop.nn.models import build_model
from outcrop.pyg import to_pyg
from outcrop.store.minibatch import MiniBatch

SEEDS, FANOUTS = [7, 3, 40, 12], (3, 4, 2)


@pytest.fixture(scope="module")
def batch() -> MiniBatch:
    features = torch.randn(80, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return deliver(sample(random_adjacency(80, 4, 1), SEEDS, FANOUTS, labels=list(range(80))), features)


def test_fields(batch):
    data = to_pyg(batch)
    assert isinstance(data, Data)
    assert data.validate()
    assert data.x.data_ptr() == batch.x.data_ptr()
    assert data.n_id[: data.batch_size].tolist() == SEEDS == data.y.tolist()
    assert data.num_nodes == sum(data.num_sampled_nodes) == len(data.n_id)
    assert data.num_edges == sum(data.num_sampled_edges)
    assert data.edge_index.dtype == data.n_id.dtype == data.y.dtype == torch.int64


def test_every_edge_is_one_of_the_graph_and_points_at_its_target(batch):
    adjacency, data = random_adjacency(80, 4, 1), to_pyg(batch)
    source, target = data.n_id[data.edge_index].tolist()
    assert all(u in adjacency[v] for u, v in zip(source, target, strict=True))
    degrees = np.bincount(target, minlength=80)
    assert [degrees[v] for v in SEEDS] == [min(3, len(adjacency[v])) for v in SEEDS]


def test_trim_to_layer_keeps_what_blocks_keep(batch):
    data = to_pyg(batch)
    for layer, (sources, _, edges) in enumerate(batch.graph.layer_sizes()):
        x, edge_index, _ = trim_to_layer(
            layer, data.num_sampled_nodes, data.num_sampled_edges, data.x, data.edge_index
        )
        if layer:
            data.x, data.edge_index = x, edge_index
        assert (len(x), edge_index.shape[1]) == (sources, edges)
        assert edge_index.numel() == 0 or int(edge_index.max()) < sources


@pytest.mark.parametrize("kind", [GraphSAGE, GAT])
def test_trimmed_equals_untrimmed(batch, kind):
    data = to_pyg(batch)
    torch.manual_seed(0)
    model = kind(5, 8, num_layers=3, out_channels=4).double()
    whole = model(data.x, data.edge_index)
    trimmed = model(
        data.x,
        data.edge_index,
        num_sampled_nodes_per_hop=data.num_sampled_nodes,
        num_sampled_edges_per_hop=data.num_sampled_edges,
    )
    torch.testing.assert_close(trimmed[: data.batch_size], whole[: data.batch_size], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "kind"), [("sage", GraphSAGE), ("gcn", GCN)])
def test_our_model_equals_torch_geometrics_with_the_same_state(batch, name, kind):
    data = to_pyg(batch)
    torch.manual_seed(0)
    theirs = kind(5, 8, num_layers=3, out_channels=4).double()
    ours = build_model(name, 5, 8, 4, 3).double()
    ours.load_state_dict(theirs.state_dict())
    expected = theirs(
        data.x,
        data.edge_index,
        num_sampled_nodes_per_hop=data.num_sampled_nodes,
        num_sampled_edges_per_hop=data.num_sampled_edges,
    )[: data.batch_size]
    torch.testing.assert_close(ours(batch), expected, rtol=1e-10, atol=1e-12)
