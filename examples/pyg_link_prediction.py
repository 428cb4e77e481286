"""Predicts what users will buy, written for torch_geometric's LinkNeighborLoader, on a graph that lies on disk.

    python examples/pyg_link_prediction.py shop.oc

The data are made up: users buy what their group likes. RandomLinkSplit holds purchases out, as in memory. Two lines
differ from a script that has its graph in memory; they are marked.
"""

import sys

import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from torch_geometric.data import HeteroData
from torch_geometric.nn import GraphSAGE, to_hetero

import outcrop as oc
from outcrop.pyg import LinkNeighborLoader  # was: from torch_geometric.loader import LinkNeighborLoader

torch.manual_seed(0)
BOUGHT = ("user", "bought", "item")
likes, kind = torch.randint(0, 5, (2000,)), torch.randint(0, 5, (500,))
pairs = torch.stack([torch.randint(0, 2000, (60_000,)), torch.randint(0, 500, (60_000,))])
pairs = pairs[:, likes[pairs[0]] == kind[pairs[1]]].unique(dim=1)

shop = HeteroData()
shop["user"].x = torch.randn(2000, 8)  # tells nothing: only purchases say what a user likes
shop["item"].x = F.one_hot(kind, 5) + torch.randn(500, 5)
shop[BOUGHT].edge_index = pairs
split = T.RandomLinkSplit(
    disjoint_train_ratio=0.3,
    add_negative_train_samples=False,
    edge_types=BOUGHT,
    rev_edge_types=("item", "rev_bought", "user"),
)
train, _, test = split(T.ToUndirected()(shop))

data = oc.import_graph(train, sys.argv[1], overwrite=True)  # was: data = train
train_loader = LinkNeighborLoader(
    data,
    num_neighbors=[10, 10],
    edge_label_index=(BOUGHT, train[BOUGHT].edge_label_index),
    neg_sampling="binary",
    batch_size=512,
    shuffle=True,
)
test_loader = LinkNeighborLoader(
    data,
    num_neighbors=[10, 10],
    edge_label_index=(BOUGHT, test[BOUGHT].edge_label_index),  # half of them were not bought
    edge_label=test[BOUGHT].edge_label,
    batch_size=512,
)
model = to_hetero(GraphSAGE((-1, -1), 32, num_layers=2), train.metadata())


def score(batch):
    h = model({name: x.float() for name, x in batch.x_dict.items()}, batch.edge_index_dict)
    user, item = batch[BOUGHT].edge_label_index
    return (h["user"][user] * h["item"][item]).sum(dim=1)


with torch.no_grad():
    score(next(iter(train_loader)))  # finds the widths
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(1, 9):
    for batch in train_loader:
        loss = F.binary_cross_entropy_with_logits(score(batch), batch[BOUGHT].edge_label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss:.4f}")

with torch.no_grad():
    found = [(score(batch), batch[BOUGHT].edge_label) for batch in test_loader]
scores, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
auc = (scores[labels == 1][:, None] > scores[labels == 0]).float().mean()
print(f"AUC of held-out purchases {auc:.3f}")
