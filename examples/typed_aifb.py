"""Trains R-GCN on AIFB, an RDF graph in N-Triples: the research group of a person.

    python examples/typed_aifb.py aifb aifb.oc

The folder holds aifb_stripped.nt.gz and the tables trainingSet.tsv and testSet.tsv, which give labels and splits.
"""

import sys
from pathlib import Path

import outcrop as oc

folder, path = Path(sys.argv[1]), Path(sys.argv[2])
if path.exists():
    graph = oc.open_graph(path)
else:
    # types="all" keeps literals as entities, as torch_geometric's Entities does.
    graph = oc.import_graph(f"ntriples:{folder / 'aifb_stripped.nt.gz'}", path, oc.ImportConfig(types="all"))
print(f"{graph.num_nodes} entities, {len(graph.edge_types)} edge types, {graph.num_classes} groups")

report = oc.train(
    graph,
    model=oc.ModelConfig("rgcn", hidden=16, no_rows="random:64"),
    sampling=oc.SampleConfig(fanouts=[-1, -1], batch_size=140),
    training=oc.TrainConfig(learning_rate=0.01),
    memory="256MiB",
    epochs=30,
)
print(report)
accuracy = report.test_accuracy
