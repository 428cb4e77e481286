"""Trains a model of one's own on a graph with types: GraphSAGE made typed by torch_geometric's to_hetero.

    python examples/typed_acm.py heco-acm acm.oc
    python examples/own_typed_model.py acm.oc

Batches are HeteroData with NeighborLoader's fields. Two lines differ from a script that has its graph in memory; they
are marked.
"""

import sys

import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv, to_hetero

from outcrop.pyg import NeighborLoader  # was: from torch_geometric.loader import NeighborLoader

data = sys.argv[1]  # was: data = torch.load(...)
loaders = {
    split: NeighborLoader(
        data, num_neighbors=[10, 10], input_nodes=split, batch_size=64, shuffle=split == "train", seed=0
    )
    for split in ("train", "test")
}


class SAGE(torch.nn.Module):
    def __init__(self, hidden: int, out: int):
        super().__init__()
        self.conv1 = SAGEConv((-1, -1), hidden)
        self.conv2 = SAGEConv((-1, -1), out)

    def forward(self, x, edge_index):
        return self.conv2(F.relu(self.conv1(x, edge_index)), edge_index)


def rows(batch):
    """Subjects have no features: all of them begin alike."""
    for store in batch.node_stores:
        if "x" not in store:
            store.x = torch.ones(store.num_nodes, 1)
    return batch.x_dict


torch.manual_seed(0)
sample = next(iter(loaders["train"]))
target = next(name for name in sample.node_types if "y" in sample[name])
model = to_hetero(SAGE(64, 3), sample.metadata())
with torch.no_grad():
    model(rows(sample), sample.edge_index_dict)  # finds the widths
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)

for epoch in range(1, 11):
    for batch in loaders["train"]:
        size = batch[target].batch_size
        out = model(rows(batch), batch.edge_index_dict)[target][:size]
        loss = F.cross_entropy(out, batch[target].y[:size])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = count = 0
    for batch in loaders["test"]:
        size = batch[target].batch_size
        with torch.no_grad():
            out = model(rows(batch), batch.edge_index_dict)[target][:size]
        right += int((out.argmax(1) == batch[target].y[:size]).sum())
        count += size
    accuracy = right / count
    print(f"epoch {epoch}: loss {loss:.3f}, test accuracy {accuracy:.3f}")
