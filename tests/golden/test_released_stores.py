"""Graphs, runs and embedding runs that version 0.1 wrote are opened, verified and used for ever.

``expected.json`` is what version 0.1 worked out from them itself (make_stores.py).
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import outcrop as oc
from artifact_support import differences, tree
from golden.make_stores import PREPARED, TRAINING, digests_of_batches
from outcrop.cli.main import app
from outcrop.errors import FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph
from outcrop.store.verify import add_page_sums, describe, verify_artifact

ARCHIVE = Path(__file__).parent / "stores-0.1.tar.xz"


@pytest.fixture
def released(tmp_path: Path) -> Path:
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Debian's 3.11.2 has none
    shutil.unpack_archive(ARCHIVE, tmp_path, **safely)
    return tmp_path / "stores-0.1"


@pytest.fixture
def expected(released: Path) -> dict:
    return json.loads((released / "expected.json").read_bytes())


def test_every_array_kind_is_verified(released: Path, expected: dict, runtime: Runtime) -> None:
    found = {path.parent: verify_artifact(path.parent, runtime) for path in released.rglob("manifest.json")}
    assert {path.relative_to(released).as_posix(): about["format"] for path, about in found.items()} == {
        "graph.oc": "outcrop.graph",
        "run/sample": "outcrop.sample",
        "run/plan": "outcrop.plan",
        "run/pack": "outcrop.pack",
        "embed/buckets": "outcrop.buckets",
    }
    graph = open_graph(released / "graph.oc")
    assert graph.digest() == expected["graph_digest"]
    assert set(graph.manifest.arrays) == {
        *("indptr", "indices", "edge_weight", "features", "labels", "train", "valid", "test"),
        *("train_edges", "test_edges"),
    }
    assert {"host_cache", "device_cache", "disk_cache"} <= set(describe(released / "run/pack")["arrays"])


def test_batches_are_the_same_bytes(released: Path, expected: dict) -> None:
    assert digests_of_batches(released) == expected["batches"]


def test_a_run_is_current_and_stays_so_when_checksums_of_pages_are_added(
    released: Path, expected: dict, runtime: Runtime
) -> None:
    before = tree(released / "run")
    assert add_page_sums(released / "graph.oc", runtime) == ["indptr", "indices", "edge_weight", "features"]
    assert open_graph(released / "graph.oc").digest() == expected["graph_digest"]
    oc.prepare(released / "graph.oc", released / "run", **PREPARED)
    assert differences(tree(released / "run"), before) == []
    assert digests_of_batches(released) == expected["batches"]


def test_the_command_adds_checksums_that_see_damage(released: Path) -> None:
    graph = released / "graph.oc"

    def answer(*arguments: str) -> str:
        done = CliRunner().invoke(app, [*arguments, str(graph)])
        assert done.exit_code == 0, done.output
        return " ".join(done.output.split())

    assert "page checksums none: outcrop verify" in answer("info")
    assert "every checksum right" in answer("verify", "--add-checksums")
    assert "page checksums none" not in answer("info")
    features = graph / "features.bin"
    data = bytearray(features.read_bytes())
    data[len(data) // 2] ^= 1
    features.write_bytes(data)
    with pytest.raises(FormatError, match=r"features\.bin"):
        oc.train(graph, mode="memory", fanouts=[3, 3], batch_size=20, epochs=1, progress=False)


def test_training_goes_on_and_predicts(released: Path, expected: dict, tmp_path: Path) -> None:
    graph, run, ckpt = (released / name for name in ("graph.oc", "run", "ckpt"))
    oc.infer(graph, checkpoint=ckpt, out=tmp_path / "logits.npy", memory="4MiB")
    assert np.load(tmp_path / "logits.npy").astype(float).sum(0) == pytest.approx(
        expected["logits_sum"], rel=1e-4
    )
    result = oc.train(graph, run=run, checkpoint=ckpt, epochs=3, memory="4MiB", **TRAINING)
    assert result.batch_losses == pytest.approx(expected["batch_losses"], rel=1e-4)
    assert (
        result.batch_losses[: len(expected["begun_losses"])] == expected["begun_losses"]
    )  # not trained again
    assert result.best_epoch == expected["best_epoch"]


def test_embeddings_are_evaluated_and_exported(released: Path, expected: dict, tmp_path: Path) -> None:
    assert oc.embed_eval(released / "embed").mrr == pytest.approx(expected["embedding_mrr"], rel=1e-4)
    oc.embed_export(released / "embed", out=tmp_path / "exported")
    assert [np.load(path).shape for path in sorted(tmp_path.glob("exported/*.npy"))][:1] == [(300, 4)]
