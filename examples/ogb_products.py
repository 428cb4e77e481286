"""Trains GraphSAGE on ogbn-products from OGB's own files, and hands scores to OGB's Evaluator in its format.

    python examples/ogb_products.py dataset/ogbn_products products.oc --memory 512MiB

The folder is the one that OGB's package unpacks. OGB's loader holds the graph in memory; here it is imported block by
block, and training holds no more than the budget.
"""

import argparse
from pathlib import Path

import numpy as np

import outcrop as oc

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("folder", type=Path)
parser.add_argument("graph", type=Path)
parser.add_argument("--memory", default="512MiB")
parser.add_argument("--epochs", type=int, default=10)
options = parser.parse_args()

path = options.graph
graph = oc.open_graph(path) if path.exists() else oc.import_graph(f"ogb:{options.folder}", path)
print(graph)
report = oc.train(
    graph,
    model=oc.ModelConfig("sage", hidden=256, dropout=0.5),
    sampling=oc.SampleConfig(fanouts=[15, 10, 5], batch_size=1024),
    training=oc.TrainConfig(learning_rate=0.003),
    memory=options.memory,
    epochs=options.epochs,
    checkpoint=oc.Checkpoints(f"{path}.ckpt", resume=False),
)
print(report)

# What OGB's Evaluator takes: a class for each node of the split, [num_nodes, 1].
with oc.Runtime() as runtime:
    test = graph.split(runtime, "test")
    labels = graph.array(runtime, "labels").read("labels")[test]
predicted = oc.predict(graph, f"{path}.ckpt", test, output="classes", memory=options.memory)
given = {"y_true": labels[:, None], "y_pred": np.asarray(predicted)[:, None]}
try:
    from ogb.nodeproppred import Evaluator

    accuracy = Evaluator("ogbn-products").eval(given)["acc"]
except ModuleNotFoundError:  # what it computes
    accuracy = float(np.mean(given["y_true"] == given["y_pred"]))
print(f"test accuracy {accuracy:.4f}")
