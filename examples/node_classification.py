"""Trains GraphSAGE on a graph that need not fit in memory: imported once, prepared, trained within a budget.

    python examples/node_classification.py npz:cora.npz cora.oc --memory 64MiB

The source may be anything that ``outcrop import`` reads (docs/sources.md). The second run finds the graph there.
"""

import argparse
from pathlib import Path

import outcrop as oc

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("source", help="such as npz:cora.npz or ogb:ogbn_products")
parser.add_argument("graph", type=Path, help="folder for the graph")
parser.add_argument("--memory", default="64MiB", help="for all that is held while training")
parser.add_argument("--epochs", type=int, default=20)
options = parser.parse_args()

if options.graph.exists():
    graph = oc.open_graph(options.graph)
else:
    graph = oc.import_graph(options.source, options.graph)
print(graph)

report = oc.train(
    graph,
    model=oc.ModelConfig("sage", hidden=64, dropout=0.5),
    sampling=oc.SampleConfig(fanouts=[10, 10], batch_size=64),
    training=oc.TrainConfig(learning_rate=0.01, weight_decay=5e-4),
    memory=options.memory,
    epochs=options.epochs,
    checkpoint=oc.Checkpoints(f"{options.graph}.ckpt", resume=False),
)
print(report)

# Scores of all nodes, layer by layer over the whole graph; predict gives what is largest.
classes = oc.predict(graph, f"{options.graph}.ckpt", output="classes", memory=options.memory)
print(f"class of the first nodes: {classes[:10].tolist()}")
accuracy = report.test_accuracy
