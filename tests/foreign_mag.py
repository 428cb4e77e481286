"""Writes a small ogbn-mag file for file as it is published, with NumPy and gzip alone.

Of the published one it has the node types, the relations, which types have rows, labels and splits, the names and the
forms of all files, and splits by year. It is smaller, and the class of a paper can be learned: from its topics and
from its authors, which have no rows, and hardly from its own row.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foreign_layouts import write_gzip
from foreign_types import ForeignTypes, Key

CLASSES = 8
AFFILIATED: Key = ("author", "affiliated_with", "institution")
WRITES: Key = ("author", "writes", "paper")
CITES: Key = ("paper", "cites", "paper")
TOPIC: Key = ("paper", "has_topic", "field_of_study")


@dataclass(frozen=True)
class FaithfulMag:
    """Holds the graph, and ``years``, int64, of its papers, which are what the splits follow from."""

    graph: ForeignTypes
    years: np.ndarray


def faithful_mag(papers: int = 1600, dim: int = 32, seed: int = 0) -> FaithfulMag:
    """Returns the graph: class c has authors and fields of its own, and most links of its papers lead to these."""
    rng = np.random.default_rng(seed)
    sizes = {"author": papers // 2, "field_of_study": 5 * CLASSES, "institution": 12, "paper": papers}
    classes = rng.integers(0, CLASSES, papers)

    def linked(name: str, each: int, own: float) -> np.ndarray:
        """Draws ``each`` distinct nodes of a type for every paper; node i of a type is of class i % CLASSES."""
        nodes = rng.permuted(np.tile(np.arange(sizes[name]), (papers, 1)), axis=1)
        foreign = nodes % CLASSES != classes[:, None]
        later = foreign & (rng.random(nodes.shape) < own)  # what is of another class mostly stands behind
        first = np.take_along_axis(nodes, np.argsort(later, axis=1, kind="stable"), 1)[:, :each]
        return np.stack([np.repeat(np.arange(papers), each), first.ravel()])

    years = rng.choice(np.arange(2010, 2020), papers)
    centres = rng.standard_normal((CLASSES, dim))
    rows = (0.25 * centres[classes] + rng.standard_normal((papers, dim))).astype(np.float32)
    affiliated = [np.arange(sizes["author"]), rng.integers(0, sizes["institution"], sizes["author"])]
    edges = {
        AFFILIATED: np.stack(affiliated)[:, rng.permutation(sizes["author"])[: sizes["author"] * 9 // 10]],
        WRITES: linked("author", 3, 0.95)[::-1],
        CITES: linked("paper", 2, 0.8),
        TOPIC: linked("field_of_study", 3, 0.95),
    }
    times = {"train": years < 2018, "valid": years == 2018, "test": years > 2018}
    return FaithfulMag(
        ForeignTypes(
            sizes,
            {"paper": rows},
            {"paper": classes},
            {"paper": {split: np.flatnonzero(mask) for split, mask in times.items()}},
            {key: np.ascontiguousarray(pairs.T) for key, pairs in edges.items()},
        ),
        years,
    )


def write_mag(folder: Path, made: FaithfulMag) -> Path:
    """Writes the folder ``ogbn_mag`` of the ogb package; returns ``folder``."""
    raw, graph = folder / "raw", made.graph
    # The files list types in an order of their own, which is that of no name.
    listed = ["paper", "author", "institution", "field_of_study"]
    only_papers = [listed, [name == "paper" for name in listed]]
    write_gzip(raw / "num-node-dict.csv.gz", [listed, [graph.sizes[name] for name in listed]])
    write_gzip(raw / "triplet-type-list.csv.gz", [AFFILIATED, WRITES, CITES, TOPIC])
    for number, key in enumerate((AFFILIATED, WRITES, CITES, TOPIC)):
        relation, pairs = raw / "relations" / "___".join(key), graph.edges[key]
        write_gzip(relation / "edge.csv.gz", pairs)
        write_gzip(relation / "edge_reltype.csv.gz", np.full(len(pairs), number))
        write_gzip(relation / "num-edge-list.csv.gz", [len(pairs)])
    for name in ("nodetype-has-feat", "nodetype-has-label"):
        write_gzip(raw / f"{name}.csv.gz", only_papers)
    write_gzip(raw / "node-feat" / "paper" / "node-feat.csv.gz", graph.features["paper"])
    write_gzip(raw / "node-feat" / "paper" / "node_year.csv.gz", made.years)
    write_gzip(raw / "node-label" / "paper" / "node-label.csv.gz", graph.labels["paper"])
    split = folder / "split" / "time"
    write_gzip(split / "nodetype-has-split.csv.gz", only_papers)
    for name, nodes in graph.splits["paper"].items():
        write_gzip(split / "paper" / f"{name}.csv.gz", nodes)
    write_gzip(folder / "mapping" / "labelidx2venuename.csv.gz", [("label idx", "venue name"), (0, "ICML")])
    (folder / "RELEASE_v2.txt").touch()
    (folder / "processed").mkdir()  # where the package keeps a pickle, which nothing here reads
    return folder
