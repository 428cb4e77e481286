"""Every `outcrop bench gpu --name` runs, finds right rows and writes its schema; its figures say nothing here."""

from __future__ import annotations

import json

import pytest
from device_under_test import FAKE
from device_under_test import NAME as GPU
from test_training import product_of_rows

from outcrop import layers
from outcrop.bench import gpu_figures as bench
from outcrop.bench.gpu_figures import embeddings
from outcrop.bench.gpu_figures.measure import Sizes
from outcrop.bench.graphs import GraphShape

SMALL = Sizes(
    graph=GraphShape(name="small", nodes=2000, edges=10_000, features=20, train_fraction=0.1),
    table_bytes=1 << 20,
    counts=(16, 64),
    row_bytes=(256, 1024),
    embed_nodes=64,
    embed_edges=40,
    queries=100,
    negatives=20,
    dim=12,
    disk_rows=256,
    epochs=2,
    call_seconds=0.0,
)
WAYS = {
    "pytorch-direct-figure-3": {"copy"},
    "pytorch-direct-figure-6": {"ceiling", "gather", "naive", "copy", "pageable"},
    "pytorch-direct-figure-7": {"ceiling", "gather", "naive", "copy", "pageable"},
    "pytorch-direct-figure-8": {"copy", "in place", "in place, overlapped"},
    "legend-table-4": {"epoch"},
    "legend-table-7": {"epoch"},
    "legend-table-9": {"rings", "rows by rings", "by the host", "bus"},
    "legend-table-10": {"plain"} if FAKE else {"plain", "fused"},
    "legend-figure-8": {"epoch"},
    "legend-figure-9": {"reading", "gradients", "both"},
    "hyperion-figure-7": {"online"},
    "hyperion-figure-8": {
        "online, by the engine",
        "online, by rings",
        "online, spooling",
        "row by row",
        "memory",
    },
    "hyperion-figure-10": {"epoch"},
    "hyperion-figure-12": {"rings", "engine", "file"},
    "diskgnn-figure-8": {"epoch"},
    "diskgnn-figure-10": {"packed", "online", "belady", "partition", "memory"},
    "sampling": {"cpu", "device", "in place"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Graphs are made once."""
    return tmp_path_factory.mktemp("bench")


@pytest.mark.parametrize("name", bench.NAMES)
def test_every_benchmark_runs(name, folder, gpu, monkeypatch):
    if FAKE:
        monkeypatch.setattr(layers, "sampled_dot", product_of_rows)
        for ways, left_out in (
            (embeddings.ORDERS, ("beta", "legend", "best")),
            (embeddings.BUSY, ("overlapped", "overlapped, by rings")),
        ):
            for way in left_out:  # as test_embedding.py trains
                monkeypatch.delitem(ways, way)
    result = bench.run(name, folder, 1, lambda text: None, sizes=SMALL, device_name=GPU)
    result = json.loads(json.dumps(result))
    bench.validate(result)
    assert result["complete"]
    assert result["cases"]
    assert {way for case in result["cases"].values() for way in case["seconds"]} == WAYS[name]
    assert all(seconds > 0 for case in result["cases"].values() for seconds in case["seconds"].values())
    assert all(len(row) == len(result["columns"]) for row in result["rows"])
    assert len(result["bars"]) == BARS.get(name, 0)
    assert ("says" in result) == (name in BARS)


def test_what_was_interrupted_is_gone_on_with(tmp_path, folder, gpu):
    path, said = tmp_path / "result.json", []

    def interrupt(text: str) -> None:
        said.append(text)
        if text.endswith(": 1024 floats"):
            raise KeyboardInterrupt

    def measure(say):
        return bench.run("hyperion-figure-12", folder, 1, say, sizes=SMALL, device_name=GPU, path=path)

    with pytest.raises(KeyboardInterrupt):
        measure(interrupt)
    begun = json.loads(path.read_text())
    bench.validate(begun)
    assert (begun["complete"], list(begun["cases"])) == (False, ["128 floats", "256 floats", "512 floats"])
    assert begun["bars"] == []
    said.clear()
    ended = measure(said.append)
    assert [text for text in said if text.endswith("already measured")] == [
        f"hyperion-figure-12: {width} floats: already measured" for width in (128, 256, 512)
    ]
    assert {case: ended["cases"][case] for case in begun["cases"]} == begun["cases"]
    assert list(ended["cases"])[3:] == ["1024 floats"]
    path.write_text(json.dumps(begun | {"identity": "of other sources"}))
    said.clear()
    measure(said.append)
    assert not any(text.endswith("already measured") for text in said)


BARS = {
    "pytorch-direct-figure-6": 2,
    "pytorch-direct-figure-7": 2,
    "legend-table-10": 1,
    "legend-figure-9": 1,
    "hyperion-figure-12": 1,
    "diskgnn-figure-10": 1,
}
