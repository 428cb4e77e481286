"""Makes the store of a graph with types, rows of edges and weights, once; what is there is never made anew.

``python make_typed_store.py FOLDER`` made what ``typed-1.tar.xz`` holds, with version 2 of ``outcrop.graph`` as it was
first written. Tests of later versions open, verify and load it and compare with ``expected.json``.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

import outcrop as oc
from outcrop.loading.open import open_session
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph

PAPERS, AUTHORS = 120, 40
PREPARED: dict[str, Any] = {
    "sampling": oc.SampleConfig(fanouts=(3, 2), batch_size=10, edge_rows=True),
    "epochs": 2,
    "memory": "4MiB",
    "observer": oc.Observer(progress=False),
}
TOML = """
[[nodes]]
name = "paper"
features = "paper.npy"
labels = "venue.npy"
train = "train.npy"
valid = "valid.npy"
[[nodes]]
name = "author"
num_nodes = 40
[[edges]]
source = "paper"
relation = "cites"
target = "paper"
file = "cites.npy"
weights = "weights.npy"
features = "contexts.npy"
[[edges]]
source = "author"
relation = "writes"
target = "paper"
file = "writes.npy"
features = "places.npy"
reverse = true
"""


def write_source(folder: Path) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    arrays = {
        "paper": rng.standard_normal((PAPERS, 6)).astype(np.float32),
        "venue": rng.integers(0, 3, PAPERS),
        "train": np.arange(40),
        "valid": np.arange(50, 60),
        "cites": rng.integers(0, PAPERS, (600, 2)),
        "weights": rng.random(600).astype(np.float32),
        "contexts": rng.standard_normal((600, 20)).astype(np.float16),
        "writes": rng.integers(0, [AUTHORS, PAPERS], (300, 2)),
        "places": rng.integers(0, 9, (300, 1)).astype(np.int8),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    (folder / "graph.toml").write_text(TOML)


def digests_of_batches(folder: Path) -> list[str]:
    """Returns SHA-256 of structure and rows of every training batch of the run."""
    found, graph = [], open_graph(folder / "graph.oc")
    with (
        Runtime("4MiB") as runtime,
        open_session(graph, runtime, "packed", run_folder=folder / "run") as session,
    ):
        for epoch in range(2):
            for batch in session.batches("train", epoch):
                parts: list[Any] = [nodes.ids for nodes in batch.graph.nodes]
                for edges in batch.graph.edges:
                    parts += [edges.rowptr, edges.col, edges.positions]
                parts += [rows.numpy() for rows in batch.rows]
                content = b"".join(np.ascontiguousarray(part).tobytes() for part in parts if part is not None)
                found.append(hashlib.sha256(content).hexdigest())
                del batch, parts
    return found


def make(folder: Path) -> dict[str, Any]:
    source = folder.parent / "source"
    write_source(source)
    graph = oc.import_graph(f"arrays:{source}", folder / "graph.oc", progress=False)
    oc.prepare(graph, folder / "run", **PREPARED)
    return {"graph_digest": graph.digest(), "batches": digests_of_batches(folder)}


if __name__ == "__main__":
    out = Path(sys.argv[1])
    expected = make(out)
    shutil.rmtree(out / "run" / "history", ignore_errors=True)
    (out / "graph.oc" / "imported.json").unlink()
    (out / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
    shutil.make_archive(str(out), "xztar", out.parent, out.name)
