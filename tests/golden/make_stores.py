"""Makes the stores of a released version, once, with the code of that version; what is there is never made anew.

With 0.1 installed (at 9f87b95, the last commit before the second edition), ``python make_stores.py FOLDER`` made what
``stores-0.1.tar.xz`` holds. Tests of later versions open, verify, train, resume and predict from it and compare with
``expected.json``, which the released code worked out itself. For another version copy this file, not what it made.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np

import outcrop as oc
from outcrop.config import EmbedConfig
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph
from outcrop.testing import write_graph

try:
    from outcrop.loading.open import open_session
except ImportError:  # where 0.1 has it
    from outcrop.api.run import open_session  # type: ignore[no-redef]

NODES, EDGES, DIM = 300, 1500, 10
SAMPLING = {"fanouts": (3, 2), "batch_size": 10}
TRAINING = {"model": "sage", "hidden": 4, "dropout": 0.1, "learning_rate": 0.02, "trace_losses": True}
PREPARED = {**SAMPLING, "epochs": 2, "memory": 1_257_600, "gpu_memory": 22_600, "layout": "4,1"}


def graph_of_every_array(path: Path) -> None:
    rng = np.random.default_rng(0)
    edges = np.stack([(rng.random(EDGES) ** 2 * NODES).astype(np.int64), rng.integers(0, NODES, EDGES)])
    edges = np.unique(edges, axis=1)
    with Runtime("4MiB") as runtime:
        write_graph(
            path,
            edges,
            NODES,
            runtime,
            features=rng.standard_normal((NODES, DIM)).astype(np.float32),
            labels=rng.integers(-1, 3, NODES),
            splits={"train": np.arange(20), "valid": np.arange(40, 50), "test": np.arange(60, 70)},
            edge_weight=rng.random(edges.shape[1]).astype(np.float32),
            edge_splits={"train": edges[:, :300].T.copy(), "test": edges[:, 300:340].T.copy()},
        )


def digests_of_batches(folder: Path) -> dict[str, list[str]]:
    """SHA-256 of rows, structure and labels of every batch of the run, by split."""
    found: dict[str, list[str]] = {}
    with (
        Runtime("4MiB") as runtime,
        open_session(
            open_graph(folder / "graph.oc"), runtime, "packed", run_folder=folder / "run"
        ) as session,
    ):
        for split, epoch in (("train", 0), ("train", 1), ("valid", 0), ("test", 0)):
            with session.batches(split, epoch) as batches:
                for batch in batches:
                    parts = [
                        batch.x.numpy(),
                        *(getattr(batch.graph, n) for n in ("n_id", "rowptr", "col", "labels")),
                    ]
                    content = b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
                    found.setdefault(f"{split} {epoch}", []).append(hashlib.sha256(content).hexdigest())
                    del batch
    return found


def make(folder: Path) -> dict:
    graph_of_every_array(folder / "graph.oc")
    oc.prepare(folder / "graph.oc", folder / "run", **PREPARED)
    begun = oc.train(
        folder / "graph.oc",
        run=folder / "run",
        checkpoint=folder / "ckpt",
        epochs=1,
        memory="4MiB",
        **TRAINING,
    )
    elsewhere = folder.parent / "gone-on"
    shutil.copytree(folder / "ckpt", elsewhere)
    gone_on = oc.train(
        folder / "graph.oc", run=folder / "run", checkpoint=elsewhere, epochs=3, memory="4MiB", **TRAINING
    )
    oc.infer(folder / "graph.oc", checkpoint=folder / "ckpt", out=folder.parent / "logits.npy", memory="4MiB")
    embedding = EmbedConfig(epochs=1, model="dot", dim=4, negatives=16, batch=256, chunk=64, seed=1)
    oc.embed_prepare(
        folder / "graph.oc", folder / "embed", oc.BucketConfig(2, slices=4), dim=4, memory="4MiB"
    )
    oc.embed_train(folder / "embed", embedding, memory="4MiB")
    return {
        "graph_digest": open_graph(folder / "graph.oc").digest(),
        "batches": digests_of_batches(folder),
        "batch_losses": gone_on.batch_losses,
        "begun_losses": begun.batch_losses,
        "best_epoch": gone_on.best_epoch,
        "logits_sum": np.load(folder.parent / "logits.npy").astype(float).sum(0).tolist(),
        "embedding_mrr": float(oc.embed_eval(folder / "embed").mrr),
    }


if __name__ == "__main__":
    out = Path(sys.argv[1])
    expected = make(out)
    for times in [*out.rglob("history"), *out.rglob("timeline.json")]:
        shutil.rmtree(times) if times.is_dir() else times.unlink()
    (out / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
    shutil.make_archive(str(out), "xztar", out.parent, out.name)
