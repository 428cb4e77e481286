"""Trains R-GCN on DBLP four-area as it was published, raw text tables with sparse ids: the area of an author.

    python examples/typed_dblp.py four-area dblp.oc

The folder holds author.txt, paper.txt, term.txt, conf.txt, the files of labels and the lists of links between them.
``dblp_four_area.toml`` says what their columns are; ids, reverses and labels follow from it.
"""

import shutil
import sys
from pathlib import Path

import outcrop as oc

folder, path = Path(sys.argv[1]), Path(sys.argv[2])
tables = folder / "tables.toml"
if not tables.exists():
    shutil.copy(Path(__file__).with_name("dblp_four_area.toml"), tables)

if path.exists():
    graph = oc.open_graph(path)
else:
    shares = oc.ImportConfig(train_fraction=0.2, valid_fraction=0.1, test_fraction=0.7)
    graph = oc.import_graph(f"tables:{folder}", path, shares)
print(graph)
report = oc.train(
    graph,
    # No type has features: each node gets random values that follow from its number, stored nowhere.
    model=oc.ModelConfig("rgcn", hidden=64, dropout=0.3, no_rows="random:64"),
    sampling=oc.SampleConfig(fanouts=[10, 20], batch_size=64),
    training=oc.TrainConfig(learning_rate=0.005, patience=5),
    memory="64MiB",
    epochs=30,
)
print(report)
accuracy = report.test_accuracy

# The same author by the key of the table: names stay with the graph.
first = graph.node_names([0], node_type="author")
print(f"author 0 is {first[0]} in author.txt")
