"""Trains R-GCN on ACM, a graph of papers, authors and subjects: the area of a paper.

    python examples/typed_acm.py heco-acm acm.oc

The folder holds the files of https://github.com/liun-online/HeCo, data/acm. Node and edge types come from
torch_geometric's HeteroData; a graph that does not fit in memory is imported from files (docs/sources.md).
"""

import sys
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
from torch_geometric.data import HeteroData

import outcrop as oc

folder, path = Path(sys.argv[1]), Path(sys.argv[2])


def acm() -> HeteroData:
    """Reads the files as torch_geometric would have the graph."""
    data = HeteroData()
    for name in ("paper", "author"):
        words = scipy.sparse.load_npz(folder / f"{name[0]}_feat.npz")
        data[name].x = torch.from_numpy(words.toarray().astype(np.float32))
    data["paper"].y = torch.from_numpy(np.load(folder / "labels.npy").astype(np.int64))
    for split in ("train", "val", "test"):
        mask = torch.zeros(data["paper"].num_nodes, dtype=torch.bool)
        mask[torch.from_numpy(np.load(folder / f"{split}_60.npy").astype(np.int64))] = True
        data["paper"][f"{split}_mask"] = mask
    for other in ("author", "subject"):
        ends = np.loadtxt(folder / f"p{other[0]}.txt", dtype=np.int64).T
        data["paper", "has", other].edge_index = torch.from_numpy(ends)
    data["subject"].num_nodes = int(data["paper", "has", "subject"].edge_index[1].max()) + 1
    return data


# Messages go along edges: reverse=True stores edges back, so that authors and subjects reach papers.
graph = oc.open_graph(path) if path.exists() else oc.import_graph(acm(), path, oc.ImportConfig(reverse=True))
print(graph)
report = oc.train(
    graph,
    model=oc.ModelConfig("rgcn", hidden=64, dropout=0.5, no_rows="random:32"),  # subjects have no features
    sampling=oc.SampleConfig(fanouts=[10, 10], batch_size=32),
    training=oc.TrainConfig(learning_rate=0.005, patience=5),
    memory="64MiB",
    epochs=30,
)
print(report)
accuracy = report.test_accuracy
