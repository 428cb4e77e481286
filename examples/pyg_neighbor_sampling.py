"""GraphSAGE on neighbour batches, written for torch_geometric's NeighborLoader, on a graph that lies on disk.

    outcrop import npz:cora.npz cora.oc --split planetoid
    python examples/pyg_neighbor_sampling.py cora.oc

Two lines differ from a script that has its graph in memory; they are marked.
"""

import sys

import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv

from outcrop.pyg import NeighborLoader, open_data  # was: from torch_geometric.loader import NeighborLoader

data = open_data(sys.argv[1])  # was: data = torch.load(sys.argv[1])
torch.manual_seed(int(sys.argv[2]) if len(sys.argv) > 2 else 0)


class SAGE(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        self.conv1 = SAGEConv(in_channels, hidden_channels)
        self.conv2 = SAGEConv(hidden_channels, out_channels)

    def forward(self, x, edge_index):
        x = F.dropout(self.conv1(x, edge_index).relu(), p=0.5, training=self.training)
        return self.conv2(x, edge_index)


train_loader = NeighborLoader(
    data, num_neighbors=[5, 5], batch_size=40, input_nodes=data.train_mask, shuffle=True
)
test_loader = NeighborLoader(data, num_neighbors=[-1, -1], batch_size=512, input_nodes=data.test_mask)
model = SAGE(data.num_features, 64, int(data.y.max()) + 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

for epoch in range(1, 13):
    model.train()
    for batch in train_loader:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch:2}: loss {loss:.4f}")

model.eval()
right = 0
with torch.no_grad():
    for batch in test_loader:
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        right += int((out.argmax(dim=-1) == batch.y[: batch.batch_size]).sum())
accuracy = right / int(data.test_mask.sum())
print(f"test accuracy {accuracy:.4f}")
