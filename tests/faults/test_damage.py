"""Bytes of a graph that change after they were written: each use has the right result or names the file, never another.

Expected are rows of the features as they were written, and batches drawn before the damage.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop
from artifact_support import (
    differences,
    fresh_runtime,
    manifest_at,
    memory_folder,
    prepare,
    small_graph,
    tree,
)
from infer_support import a_model, odd_graph, save
from outcrop import _core
from outcrop.config import SampleConfig
from outcrop.errors import ChecksumError, FormatError
from outcrop.loading.modes import Mode, Partition
from outcrop.loading.open import open_session
from outcrop.sampling.sampler import BatchSampler
from outcrop.store.graph import PAGED, open_graph
from outcrop.store.manifest import PAGE_SUMS
from outcrop.store.verify import add_page_sums, describe, verify_artifact
from sampling_support import same

PAGE = 4096
MODES = ("packed", "memory", "online", "ondisk", "dynamic", "belady", "partition")


# Where disk space is named, test batches are not packed: their rows are read from the graph.
PREPARED = {"gpu_memory": 0, "disk_space": 1 << 30}


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    with memory_folder() as folder:
        prepare(small_graph(folder / "graph"), folder / "run", **PREPARED)
        yield folder


@pytest.fixture(scope="module")
def features(made: Path) -> np.ndarray:
    with fresh_runtime() as runtime:
        return open_graph(made / "graph").array(runtime, "features").memmap().copy()


@pytest.fixture
def copy(made: Path) -> Iterator[Path]:
    with memory_folder() as folder:
        shutil.copytree(made, folder, dirs_exist_ok=True)
        yield folder


def flip(data: np.ndarray, rng: np.random.Generator) -> None:
    data[rng.integers(len(data))] ^= 1 << rng.integers(8)


def burst(data: np.ndarray, rng: np.random.Generator) -> None:
    at = rng.integers(len(data) - 64)
    data[at : at + 64] = rng.integers(0, 256, 64)


def zero_page(data: np.ndarray, rng: np.random.Generator) -> None:
    at = int(rng.integers(len(data) // PAGE)) * PAGE
    data[at : at + PAGE] = 0


def a_bit_of_every_page(data: np.ndarray, rng: np.random.Generator) -> None:
    data[rng.integers(50) :: PAGE] ^= 4


DAMAGE: list[Callable[[np.ndarray, np.random.Generator], None]] = [
    flip,
    burst,
    zero_page,
    a_bit_of_every_page,
]


def damaged(path: Path, data_bytes: int, change: Callable, seed: int) -> Iterator[None]:
    before = path.read_bytes()
    data = np.memmap(path, np.uint8, "r+")[:data_bytes]
    change(data, np.random.default_rng(seed))
    data.flush()
    yield
    path.write_bytes(before)


def load(folder: Path, mode: str, features: np.ndarray) -> None:
    """Loads training and evaluation; what is delivered must be the rows that were written."""
    with fresh_runtime("6MiB") as runtime:
        given = Partition(partitions=6, resident=2) if mode == "partition" else mode
        run = None if mode == "partition" else folder / "run"
        config = SampleConfig(fanouts=(3, 3), batch_size=15)
        graph = open_graph(folder / "graph")
        _load(graph, runtime, given, run, config, features)


def _load(graph: Any, runtime: Any, mode: str | Mode, run: Path | None, config: Any, features: Any) -> None:
    with open_session(graph, runtime, mode, run_folder=run, config=config) as session:
        for split in ("train", "valid", "test"):
            with session.batches(split, 0) as batches:
                for batch in batches:
                    assert np.array_equal(batch.x.numpy(), features[batch.graph.n_id]), "wrong rows, silently"
                    del batch


@pytest.mark.parametrize("change", DAMAGE)
@pytest.mark.parametrize("mode", MODES)
def test_damaged_features_are_found_by_whatever_reads_them(
    copy: Path, features: np.ndarray, mode: str, change: Callable
) -> None:
    path = copy / "graph/features.bin"
    for seed in range(2):
        for _ in damaged(path, features.nbytes, change, seed):
            error = None
            try:
                load(copy, mode, features)
            except ChecksumError as caught:
                error = str(caught)
            assert error is None or str(path) in error, error
            # What reads all of it, and any page where all are damaged (packed reads rows of the graph to evaluate).
            assert error or (mode != "memory" and change is not a_bit_of_every_page)


@pytest.mark.parametrize("change", DAMAGE)
def test_preparing_refuses_damaged_features(copy: Path, features: np.ndarray, change: Callable) -> None:
    """It reads every byte: it must neither end well nor leave something to go on with that is wrong."""
    path = copy / "graph/features.bin"
    graph = open_graph(copy / "graph")
    for _ in damaged(path, features.nbytes, change, 3):
        with pytest.raises(ChecksumError, match=rf"{path}: the page at byte \d+ was damaged"):
            prepare(graph, copy / "other", **PREPARED)
        assert not (copy / "other/pack").exists()
    prepare(graph, copy / "other", **PREPARED)
    assert differences(tree(copy / "other/pack"), tree(copy / "run/pack")) == []


@pytest.mark.parametrize("change", DAMAGE)
@pytest.mark.parametrize("name", ["indptr", "indices", "labels", "edge_weight"])
def test_damaged_topology_and_labels_are_found_while_drawing(
    tmp_path: Path, make_runtime: Any, name: str, change: Callable
) -> None:
    """From memory, a map and by pages, with the offsets in memory and on disk."""
    weight = np.random.default_rng(0).random(40000).astype(np.float32)
    graph = small_graph(tmp_path / "graph", edge_weight=weight)
    path, config = (
        tmp_path / f"graph/{name}.bin",
        SampleConfig(fanouts=(4, 4), batch_size=15, sampler="weighted"),
    )

    def drawn(topology: str, memory: str | None) -> list:
        runtime = make_runtime(memory, threads=1)
        return list(BatchSampler(graph, config, runtime, topology=topology).epoch("train", 0))

    ways = (("memory", None), ("map", None), ("paged", None), ("paged", "700KiB"))
    expected = drawn(*ways[0])
    size = graph.spec(name).data_bytes
    for way in ways:
        for _ in damaged(path, size, change, 1):
            try:
                found = drawn(*way)
            except ChecksumError as error:
                assert str(path) in str(error), error  # noqa: PT017
                continue
            assert way[0] == "paged"
            assert change is not a_bit_of_every_page
            assert all(same(a, b) for a, b in zip(found, expected, strict=True)), (
                way,
                "other batches, silently",
            )


@pytest.mark.parametrize("method", ["layerwise", "sampled"])
@pytest.mark.parametrize("name", ["features", "indices", "indptr"])
def test_inference_refuses_damage(tmp_path: Path, make_runtime: Any, name: str, method: str) -> None:
    runtime = make_runtime()
    graph, _ = odd_graph(tmp_path / "graph", runtime)
    model = a_model("sage", graph.feature_dim, graph.num_classes)
    checkpoint = save(tmp_path / "ckpt", graph, "sage", model)
    path = tmp_path / f"graph/{name}.bin"
    for _ in damaged(path, graph.spec(name).data_bytes, a_bit_of_every_page, 0):
        with pytest.raises(ChecksumError, match=str(path)):
            outcrop.infer(
                graph,
                checkpoint=checkpoint,
                out=tmp_path / "out.npy",
                memory="4MiB",
                batch_size=64,
                method=method,
                fanouts=[3, 3],
            )
    assert not (tmp_path / "out.npy").exists()


def without_page_sums(graph: Path) -> None:
    """As an older Outcrop made it."""
    path = graph / "manifest.json"
    raw = manifest_at(path)
    for name in PAGED:
        if raw["arrays"].pop(name + PAGE_SUMS, None):
            (graph / f"{name}{PAGE_SUMS}.bin").unlink()
    path.write_text(json.dumps(raw, indent=1, sort_keys=True) + "\n")


def test_a_graph_without_checksums_of_pages_opens_and_gets_them(copy: Path, features: np.ndarray) -> None:
    before, digest = tree(copy / "graph"), open_graph(copy / "graph").digest()
    without_page_sums(copy / "graph")
    assert open_graph(copy / "graph").digest() == digest
    assert not describe(copy / "graph")["graph"]["page_checksums"]
    for mode in MODES:
        load(copy, mode, features)
    with fresh_runtime("1MiB") as runtime:
        assert add_page_sums(copy / "graph", runtime) == ["indptr", "indices", "features"]
        verify_artifact(copy / "graph", runtime)
        assert add_page_sums(copy / "graph", runtime) == []
    assert describe(copy / "graph")["graph"]["page_checksums"]
    assert differences(tree(copy / "graph"), before) == []
    load(copy, "packed", features)


def test_damage_gets_no_checksum(copy: Path, features: np.ndarray) -> None:
    without_page_sums(copy / "graph")
    manifest = (copy / "graph/manifest.json").read_bytes()
    for _ in damaged(copy / "graph/features.bin", features.nbytes, flip, 0):
        with fresh_runtime() as runtime, pytest.raises(ChecksumError, match=r"features\.bin"):
            add_page_sums(copy / "graph", runtime)
    assert (copy / "graph/manifest.json").read_bytes() == manifest


@pytest.mark.parametrize("sums", [True, False], ids=["page sums", "without"])
@pytest.mark.parametrize("after", ["sample", "plan"])
def test_a_graph_that_is_exchanged_while_it_is_prepared(copy: Path, sums: bool, after: str) -> None:
    graph = open_graph(copy / "graph")
    small_graph(copy / "another", seed=5)
    if not sums:
        for name in ("graph", "another"):
            without_page_sums(copy / name)
        graph = open_graph(copy / "graph")
    prepare(graph, copy / "new", **PREPARED, stop_after=after)
    (copy / "graph").rename(copy / "kept")
    (copy / "another").rename(copy / "graph")
    with pytest.raises((FormatError, ChecksumError), match=str(copy / "graph")):
        prepare(graph, copy / "new", **PREPARED)
    assert not (copy / "new/pack").exists()
    # With the first graph back the same command ends as if nothing had been.
    shutil.rmtree(copy / "graph")
    (copy / "kept").rename(copy / "graph")
    prepare(graph, copy / "new", **PREPARED)
    assert differences(tree(copy / "new/pack"), tree(copy / "run/pack")) == []


def replace_features(graph: Path) -> None:
    """As if another graph of the same shape had been put in place: its manifest and its features."""
    path = graph / "manifest.json"
    raw = manifest_at(path)
    spec = raw["arrays"]["features"]
    data = np.fromfile(graph / "features.bin", np.uint8)
    data[: spec["shape"][0] * spec["stride_bytes"] : 400] ^= 1
    (graph / "features.bin").write_bytes(data.tobytes())
    spec["crc32c"] = _core.crc32c(data[: spec["shape"][0] * spec["stride_bytes"]])
    path.write_text(json.dumps(raw, indent=1, sort_keys=True) + "\n")


def test_a_graph_that_is_exchanged_while_it_is_inferred(
    tmp_path: Path, make_runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outcrop.inference import layerwise as stage

    runtime = make_runtime()
    graph, _ = odd_graph(tmp_path / "graph", runtime)
    without_page_sums(tmp_path / "graph")
    graph = open_graph(tmp_path / "graph")
    checkpoint = save(tmp_path / "ckpt", graph, "sage", a_model("sage", graph.feature_dim, graph.num_classes))
    run_layer = stage.run_layer

    def exchanging(layer: Any, *rest: Any) -> Any:
        replace_features(tmp_path / "graph")
        return run_layer(layer, *rest)

    monkeypatch.setattr(stage, "run_layer", exchanging)
    with pytest.raises(FormatError, match="was replaced by another graph"):
        outcrop.infer(graph, checkpoint=checkpoint, out=tmp_path / "out.npy")
    assert not (tmp_path / "out.npy").exists()
