"""Loading and training on the GPU: the batches, and the losses, of the CPU; and no byte more than --gpu-memory."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from device_under_test import FAKE
from device_under_test import NAME as GPU

from outcrop import _core
from outcrop.api.train import train
from outcrop.config import DeviceConfig
from outcrop.errors import ArgumentError, BudgetError, CorruptionError, IoError
from outcrop.loading.modes import Online, mode_with
from outcrop.loading.open import open_session
from outcrop.loading.transfer import _OnGpu
from outcrop.nn import layers
from outcrop.rows.rings import GpuDiskRows
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph
from outcrop.training import parts
from prepare_support import prepare
from run_support import a_graph, as_rows, random_features

DEVICE_BYTES = 210 << 10


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    with Runtime() as runtime:
        a_graph(folder / "graph", runtime, width=129, train=200)
    graph = open_graph(folder / "graph")
    # All levels are used: device cache, host cache, disk cache, packed rows.
    options = {"fanouts": (3, 3), "batch_size": 20, "memory": "1600KiB", "disk_space": "700KiB"}
    prepare(graph, folder / "run", **options, gpu_memory=DEVICE_BYTES)
    return graph, folder / "run"


@pytest.mark.parametrize("mode", ["packed", "memory", "online", "ondisk", "dynamic", "belady"])
def test_batches_are_those_of_the_cpu(made, mode, gpu):
    graph, run = made
    gpu.launched.clear()
    for split in ("train", "valid"):
        with Runtime() as a, Runtime() as b:
            to = DeviceConfig(GPU, DEVICE_BYTES)
            with (
                open_session(graph, a, mode, run_folder=run) as here,
                open_session(graph, b, mode, run_folder=run, device=to) as there,
            ):
                count = 0
                for ours, theirs in zip(here.batches(split), there.batches(split), strict=True):
                    assert theirs.x.device.type == theirs.y.device.type == GPU
                    assert torch.equal(theirs.x.cpu(), ours.x)
                    assert torch.equal(theirs.y.cpu(), ours.y)
                    assert np.array_equal(theirs.graph.n_id, ours.graph.n_id)
                    count += 1
                    del ours, theirs
                assert count > 1
            peaks = b.device_peaks
        assert sum(peaks.values()) <= DEVICE_BYTES
    assert bool(gpu.launched) == (mode in ("packed", "memory", "online"))


@pytest.mark.parametrize("mode", ["packed", "memory", "online", "ondisk"])
def test_paranoid_sees_the_rows_that_the_gpu_has(made, mode, gpu, monkeypatch):
    """They come back in pieces, of which the last is shorter; a bit that flips on the device is found."""
    graph, run = made
    asked = mode_with(mode, {"paranoid": True})
    to = DeviceConfig(GPU, DEVICE_BYTES)
    monkeypatch.setattr(
        memory_tables, "ROW_CHECK", replace(memory_tables.ROW_CHECK, least=0, most=3 * 129 * 4)
    )
    with Runtime() as runtime, open_session(graph, runtime, asked, run_folder=run, device=to) as session:
        assert runtime.budget.by_tag["row-check"].now_bytes == 4096
        compare_rows(made, mode, session.batches("train"))
    visit, features = _OnGpu.visit_rows, as_rows(random_features(600, 129, "float32"))

    def damaged(self, see, buffer):
        self.arrived.synchronize()
        with self.gpu.on_stream(self.stream):
            here = self.there[0].cpu()
            here.view(torch.uint8)[7, 5] ^= 8
            self.there[0].copy_(here)
        visit(self, see, buffer)

    monkeypatch.setattr(_OnGpu, "visit_rows", damaged)
    with Runtime() as runtime:
        with open_session(graph, runtime, mode, run_folder=run, device=to) as session:
            for batch in session.batches("train"):
                x = as_rows(batch.x.cpu().numpy())
                assert np.array_equal(x, features[batch.graph.n_id])  # nobody has asked for a look
                del batch
        with (
            open_session(graph, runtime, asked, run_folder=run, device=to) as session,
            pytest.raises(CorruptionError, match=r"batch 0 of .*1 bit differs"),
        ):
            list(session.batches("train"))


def compare_rows(made, mode, batches):
    """With those of the CPU."""
    with Runtime() as runtime, open_session(made[0], runtime, mode, run_folder=made[1]) as session:
        for ours, theirs in zip(session.batches("train"), batches, strict=True):
            assert torch.equal(theirs.x.cpu(), ours.x)
            del ours, theirs


def test_every_level_serves_rows(made, gpu):
    """The plan of this run has rows on the device, in the host, on disk and packed; the fake GPU assembles three."""
    graph, run = made
    with Runtime("900KiB") as runtime:
        with open_session(
            graph, runtime, Online(topology="map"), run_folder=run, device=DeviceConfig(GPU, DEVICE_BYTES)
        ) as session:
            loader = session.batches("train")
            compare_rows(made, "online", loader)
            assert all(loader.stats.rows_by_level[name] > 0 for name in ("device", "host", "disk"))
        assert sum(runtime.device_peaks.values()) <= DEVICE_BYTES
    with Runtime() as runtime:
        with open_session(
            graph, runtime, "packed", run_folder=run, device=DeviceConfig(GPU, DEVICE_BYTES)
        ) as session:
            loader = session.batches("train")
            compare_rows(made, "packed", loader)
            levels = loader.stats.rows_by_level
        assert all(levels[name] > 0 for name in ("device", "host", "disk_cache", "packed")), levels
        assert set(runtime.device_peaks) == {"device-cache", "device-batches"}
        assert sum(runtime.device_peaks.values()) <= DEVICE_BYTES


@pytest.mark.parametrize("mode", ["packed", "online"])
def test_without_device_memory_no_row_is_cached_there(made, gpu, tmp_path, mode):
    """``gpu_memory=0`` is no cache; batches take what they need of what is free."""
    graph, _ = made
    prepare(graph, tmp_path / "run", fanouts=(4, 4), batch_size=20, epochs=1, memory="2MiB", gpu_memory=0)
    options = {"run": tmp_path / "run", "epochs": 1, "trace_losses": True}
    losses = pytest.approx(train(graph, **options).batch_losses, rel=1e-5 if FAKE else 1e-3)
    report = train(graph, **options, mode=mode, device=GPU, gpu_memory=0)
    assert report.batch_losses == losses
    assert report.epochs[0]["rows_by_level"]["device"] == 0
    assert report.peak_device_by_tag.get("device-cache", 0) == 0
    report = train(graph, **options, mode="online", device=GPU, gpu_memory=0, sample_on="gpu")
    assert report.batch_losses == losses
    tags = report.peak_device_by_tag
    assert (
        tags.get("device-cache", 0)
        == tags.get("list-cache", 0)
        == 0
        < min(tags["sampling"], tags["sampled-batches"], tags["device-batches"])
    )
    report = train(graph, **options, mode="online", device=GPU, gpu_memory="1MiB")
    assert report.batch_losses == losses
    assert report.epochs[0]["rows_by_level"]["device"] > 0


def test_the_device_has_more_than_passes_through_the_host(made, gpu):
    """A device with room for more rows than the host's budget has: they are read a part at a time."""
    graph, run = made
    with Runtime("800KiB") as runtime, Runtime() as plain:
        there = DeviceConfig(GPU, 1 << 20)
        with (
            open_session(graph, runtime, Online(topology="map"), run_folder=run, device=there) as session,
            open_session(graph, plain, "online", run_folder=run) as reference,
        ):
            for ours, theirs in zip(reference.batches("train"), session.batches("train"), strict=True):
                assert torch.equal(theirs.x.cpu(), ours.x)
                del ours, theirs
        in_host = runtime.budget.by_tag["row-cache"].peak_bytes
        assert runtime.device_peaks["device-cache"] > 2 * in_host > 0
        assert sum(runtime.device_peaks.values()) <= 1 << 20


@pytest.fixture(scope="module")
def losses_of_8(made):
    """Of an epoch with 8 hidden features, on the CPU."""
    graph, run = made
    report = train(graph, run=run, hidden=8, epochs=1, trace_losses=True)
    return pytest.approx(report.batch_losses, rel=1e-5 if FAKE else 1e-3)


@pytest.mark.parametrize("strategy", ["GFCT", "hybrid"])
def test_fixed_strategies_change_where_rows_lie_and_nothing_else(made, gpu, strategy, losses_of_8):
    graph, run = made
    options = {"run": run, "mode": "online", "hidden": 8, "epochs": 1, "trace_losses": True, "device": GPU}
    options |= {"memory": "900KiB", "topology": "map", "gpu_memory": DEVICE_BYTES}
    auto, fixed = (train(graph, **options, cache_strategy=name) for name in ("auto", strategy))
    assert fixed.cache_strategy == strategy
    assert auto.batch_losses == losses_of_8
    assert fixed.batch_losses == (auto.batch_losses if FAKE else pytest.approx(auto.batch_losses, rel=1e-3))
    levels = [report.epochs[0]["rows_by_level"] for report in (auto, fixed)]
    assert sum(levels[0].values()) == sum(levels[1].values())
    # hybrid leaves a quarter of the device to lists, which nobody reads there: it has fewer rows.
    assert (levels[1]["device"] < 0.9 * levels[0]["device"]) == (strategy == "hybrid"), levels
    for given, said in (
        ({"mode": "memory"}, "--cache-strategy is for --mode online, not memory"),
        ({"gpu_memory": 0, "run": None}, r"fills the memory of a GPU: name one \(--device\), and how much"),
        ({"device": "cpu"}, "fills the memory of a GPU"),
        ({"cache_strategy": "GTCF"}, "which only sampling there reads: add --sample-on gpu"),
        ({"cache_strategy": "TGCF"}, "'TGCF' is unknown; known: auto, GTCF"),
    ):
        with pytest.raises(ArgumentError, match=said):
            train(graph, **({**options, "cache_strategy": strategy} | given))


def test_neighbour_lists_are_cached_where_they_are_sampled(made, gpu, losses_of_8):
    """Strategies that fill the GPU with topology do, others do not; batches are the same."""
    graph, run = made
    options = {"run": run, "mode": "online", "hidden": 8, "epochs": 1, "trace_losses": True, "device": GPU}
    options |= {"memory": "1600KiB", "topology": "memory", "sample_on": "gpu", "gpu_memory": "320KiB"}
    found = {name: train(graph, **options, cache_strategy=name) for name in ("auto", "GTCF", "CTGF")}
    assert found["auto"].batch_losses == losses_of_8
    for report in found.values():
        assert report.batch_losses == (
            found["auto"].batch_losses if FAKE else pytest.approx(found["auto"].batch_losses, rel=1e-3)
        )
        assert sum(report.peak_device_by_tag.values()) <= 320 << 10
    there = {name: report.peak_device_by_tag.get("list-cache", 0) for name, report in found.items()}
    rows = {name: report.epochs[0]["rows_by_level"]["device"] for name, report in found.items()}
    assert there["GTCF"] > there["CTGF"], there
    assert rows["GTCF"] < rows["CTGF"], rows


def product_of_rows(rowptr, col, left, right):
    """outcrop.nn.sparse.sampled_dot without a sparse matrix, which the fake GPU does not have."""
    row = torch.repeat_interleave(torch.arange(len(rowptr) - 1).to(col.device), rowptr.diff())
    return (left.index_select(0, row) * right.index_select(0, col)).sum(1)


@pytest.fixture(scope="module")
def on_cpu(made):
    """Trains on the CPU, once for each ``model``: schedules change nothing there."""
    reports = {}

    def found(model, **options):
        if model not in reports:
            reports[model] = train(made[0], model=model, **options)
        return reports[model]

    return found


@pytest.mark.parametrize("model", ["sage", "gat", "gcn"])
def test_losses_are_those_of_the_cpu(made, model, gpu, monkeypatch, on_cpu):
    graph, run = made
    if FAKE and model == "gat":
        monkeypatch.setattr(layers, "sampled_dot", product_of_rows)
    options = {"model": model, "hidden": 8, "heads": 2, "epochs": 2, "trace_losses": True}
    if model == "gcn":
        options |= {"fanouts": (3, 3), "batch_size": 20, "mode": "online"}
        runs: dict = {}
    else:
        runs = {"run": run}
    reference = on_cpu(**runs, **options)
    report = train(graph, **runs, **options, device=GPU, gpu_memory=DEVICE_BYTES)
    assert report.batch_losses == pytest.approx(reference.batch_losses, rel=1e-5 if FAKE else 1e-3)
    assert report.test_accuracy == reference.test_accuracy
    assert 0 < sum(report.peak_device_by_tag.values()) <= DEVICE_BYTES
    for mode, sample_on in (("memory", "cpu"), ("online", "gpu")):
        gpu.launched.clear()
        again = train(
            graph,
            **runs,
            **(options | {"mode": mode}),
            device=GPU,
            sample_on=sample_on,
            gpu_memory=4 * DEVICE_BYTES,
        )
        assert ("sampling" in again.peak_device_by_tag) == (sample_on == "gpu")
        assert sum(again.peak_device_by_tag.values()) <= 4 * DEVICE_BYTES
        assert ("sample_fetch_32" in gpu.launched) == (sample_on == "gpu")
        assert again.batch_losses == (
            report.batch_losses if FAKE else pytest.approx(report.batch_losses, rel=1e-3)
        )


def test_kernels_read_rows_through_rings(made, gpu):
    graph, run = made
    ids = np.random.default_rng(1).integers(0, 600, 900)
    rows, faults = as_rows(random_features(600, 129, "float32")), _core.RingFaults()
    faults.shuffle, faults.fail_at = True, 2500
    with Runtime() as runtime:
        array = graph.array(runtime, "features")
        source = GpuDiskRows(array, runtime, staging_bytes=64 << 10, device=GPU, faults=faults)
        gpu.launched.clear()
        there, here = torch.zeros(rows[ids].size, dtype=torch.uint8, device=GPU), np.zeros_like(rows[ids])
        first, second = source.submit(ids, there), source.submit(ids[::-1], here.reshape(-1))
        assert set(gpu.launched) == {"io_submit"}
        second.wait()
        first.wait()
        assert np.array_equal(here, rows[ids[::-1]])
        assert np.array_equal(there.cpu().numpy().reshape(here.shape), rows[ids])
        assert set(gpu.launched) == {"io_submit", "io_complete"}
        with pytest.raises(IoError, match=r"features\.bin: .*made to fail.*open the rows again"):
            source.read_rows(ids, here.reshape(-1))
        source.close()
    mode = Online(row_reads="gpu")
    with Runtime() as a, Runtime() as b:
        gpu.launched.clear()
        with (
            open_session(graph, a, "online", run_folder=run) as ours,
            open_session(graph, b, mode, run_folder=run, device=DeviceConfig(GPU)) as theirs,
        ):
            for x, y in zip(ours.batches("train"), theirs.batches("train"), strict=True):
                assert torch.equal(y.x.cpu(), x.x)
                del x, y
        assert "io_submit" in gpu.launched


def test_keeping_batches_is_an_error_not_a_hang(made, gpu):
    graph, run = made
    with Runtime() as runtime, open_session(graph, runtime, "packed", run_folder=run) as session:
        first = [
            as_rows(b.x.numpy()).copy() for _, b in zip(range(2), session.batches("train"), strict=False)
        ]
    kept = []
    with (
        Runtime() as runtime,
        open_session(graph, runtime, "packed", run_folder=run, device=DeviceConfig(GPU)) as session,
    ):
        with pytest.raises(BudgetError, match=r"all 2 batch buffers .* raise --gpu-memory"):  # noqa: PT012
            for batch in session.batches("train"):
                kept.append(batch)
        for kept_one, rows in zip(kept, first, strict=True):
            assert np.array_equal(as_rows(kept_one.x.cpu().numpy()), rows)
        del kept, kept_one, batch
        gc.collect()
        for batch, rows in zip(session.batches("train"), first, strict=False):
            assert np.array_equal(as_rows(batch.x.cpu().numpy()), rows)
            del batch


def test_a_buffer_is_not_written_while_something_reads_it(made, gpu):
    """The fence of what trained on it is passed before the next batch comes into it."""
    graph, run = made
    with (
        Runtime() as plain,
        Runtime() as runtime,
        open_session(graph, plain, "packed", run_folder=run) as reference,
        open_session(graph, runtime, "packed", run_folder=run, device=DeviceConfig(GPU)) as session,
    ):
        seen = {}
        for ours, batch in zip(reference.batches("train"), session.batches("train"), strict=True):
            address = batch.x.data_ptr()
            seen[address] = seen.get(address, 0) + 1
            view = batch.x[1:]
            assert torch.equal(view.cpu(), ours.x[1:])
            del batch
            assert torch.equal(view.cpu(), ours.x[1:])  # a view keeps the buffer
            del ours, view
        assert len(seen) == 2
        assert sum(seen.values()) > 4


def test_more_than_there_is_is_refused_before_anything_is_read(made, gpu):
    graph, run = made
    gpu.total_bytes = 100 << 10
    try:
        with pytest.raises(BudgetError, match=rf"{GPU}\S* has .* free, --gpu-memory asks for"):
            train(graph, run=run, epochs=1, device=GPU, gpu_memory=DEVICE_BYTES)
        with pytest.raises(BudgetError, match="device-batches do not fit"):
            train(graph, run=run, mode="memory", epochs=1, device=GPU, gpu_memory="1KiB")
    finally:
        gpu.total_bytes = 0


def test_what_was_not_planned_for_so_little_is_refused(made, gpu):
    graph, run = made
    with pytest.raises(BudgetError, match=r"for device-(cache|batches) do not fit"):
        train(graph, run=run, epochs=1, device=GPU, gpu_memory=DEVICE_BYTES // 2)


@pytest.mark.parametrize("memory", ["1640KiB", "64MiB"])
def test_epochs_in_parts_learn_what_whole_epochs_do(made, gpu, monkeypatch, memory):
    """On one device, bit for bit: in turn, and beside training."""
    graph, _ = made
    options = {
        "fanouts": (3, 3), "batch_size": 20, "epochs": 2, "hidden": 8, "trace_losses": True, "device": GPU,
        "gpu_memory": DEVICE_BYTES, "memory": memory, "progress": False,
    }  # fmt: skip
    want = train(graph, mode="online", **options)
    monkeypatch.setattr(parts, "choose_parts", lambda *_: parts.PartChoice(3, 8 << 20, "as the test says"))
    found = train(graph, mode="packed", **options)
    assert found.batch_losses == want.batch_losses
    assert {pool["beside"] for pool in found.pools} == {memory == "64MiB"}
    assert [pool["batches"] for pool in found.pools] == [(0, 3), (3, 3), (6, 3), (9, 1)] * 2
