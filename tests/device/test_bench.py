"""Every `outcrop bench gpu --name` runs, finds right rows and writes its schema; its figures say nothing here."""

from __future__ import annotations

import functools
import json
from types import SimpleNamespace

import pytest
from device_under_test import FAKE
from device_under_test import NAME as GPU
from test_training import product_of_rows

from outcrop.api.embed import embed_train
from outcrop.api.train import train
from outcrop.bench import gpu_figures as bench
from outcrop.bench.epoch import ensure_graph
from outcrop.bench.gpu_figures import breakdown, embeddings, epochs
from outcrop.bench.gpu_figures.measure import Sizes
from outcrop.bench.graphs import GraphShape
from outcrop.nn import layers
from outcrop.training import loop

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


@pytest.fixture(scope="module")
def losses_on_cpu(folder):
    """Mean losses of two epochs of a model, which replay their batches, on the CPU; made once for each model."""

    @functools.cache
    def found(model):
        graph = ensure_graph(folder, SMALL.graph, lambda text: None)
        options = {"fanouts": (10, 10), "batch_size": 1024, "sample_epochs": 1, "evaluate_every": 2}
        report = train(graph, mode="memory", model=model, epochs=2, test=False, progress=False, **options)
        return [epoch["loss"] for epoch in report.epochs]

    return found


@pytest.fixture
def losses_compared(losses_on_cpu, monkeypatch):
    """Trainings of benchmarks have the losses of the CPU, wherever rows and neighbor lists lie.

    Where each epoch draws new batches the first is compared. Those among resident partitions draw others. Embeddings
    whose slabs go through rings have the losses of those by the engine.
    """

    def compare(found, model):
        expected = losses_on_cpu(model)[: len(found)]
        assert found[: len(expected)] == pytest.approx(expected, rel=1e-4 if FAKE else 1e-3)

    def trained(graph, **options):
        report = train(graph, **options)
        if options["loading"].name != "partition":
            compare([epoch["loss"] for epoch in report.epochs], options.get("model", "sage"))
        return report

    def fitted(batches, valid, learning, *more, **options):
        result = loop.train(batches, valid, learning, *more, **options)
        compare([result.epochs[0].loss], learning.model.name)
        return result

    def embedded(run, config, **options):
        report = embed_train(run, config, **options)
        if options["io"] == "gpu":
            again = embed_train(run, config, **(options | {"io": "engine"}))
            found, expected = ([epoch["loss"] for epoch in one.epochs] for one in (report, again))
            assert found == (expected if FAKE else pytest.approx(expected, rel=1e-3))
        return report

    monkeypatch.setattr(embeddings, "embed_train", embedded)
    monkeypatch.setattr(epochs, "train", trained)
    monkeypatch.setattr(breakdown, "training", SimpleNamespace(train=fitted))


@pytest.mark.parametrize("name", bench.NAMES)
def test_every_benchmark_runs(name, folder, gpu, monkeypatch, losses_compared):
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
