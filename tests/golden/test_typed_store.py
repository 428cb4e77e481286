"""A graph with types, rows of edges and weights, as it was first written, is opened, verified and loaded for ever."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

import outcrop as oc
from artifact_support import differences, tree
from golden.make_typed_store import PREPARED, digests_of_batches, write_source
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph
from outcrop.store.verify import verify_artifact

ARCHIVE = Path(__file__).parent / "typed-1.tar.xz"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Debian's 3.11.2 has none
    shutil.unpack_archive(ARCHIVE, tmp_path, **safely)
    return tmp_path / "typed-1"


def test_it_is_verified_and_its_batches_are_the_same_bytes(store: Path, runtime: Runtime) -> None:
    expected = json.loads((store / "expected.json").read_bytes())
    for path in store.rglob("manifest.json"):
        verify_artifact(path.parent, runtime)
    graph = open_graph(store / "graph.oc")
    assert graph.manifest.version == 2
    assert graph.digest() == expected["graph_digest"]
    assert {"edge_weight", "e0.features", "e1.features", "e2.features"} <= set(graph.manifest.arrays)
    assert digests_of_batches(store) == expected["batches"]


def test_its_run_is_current(store: Path) -> None:
    before = tree(store / "run")
    oc.prepare(store / "graph.oc", store / "run", **PREPARED)
    assert differences(tree(store / "run"), before) == []


def test_importing_the_same_gives_the_same_arrays(store: Path, tmp_path: Path) -> None:
    write_source(tmp_path / "source")
    again = oc.import_graph(f"arrays:{tmp_path / 'source'}", tmp_path / "again.oc", progress=False)
    there = open_graph(store / "graph.oc")
    with Runtime() as runtime:
        for name in ("indptr", "indices", "edge_weight", "e0.features", "e1.features", "e2.features"):
            assert np.array_equal(
                again.array(runtime, name).read("test"), there.array(runtime, name).read("test")
            )
