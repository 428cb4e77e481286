"""Batches on their way to a GPU: right for every way in which a loop can use them, and never waited for."""

from __future__ import annotations

import functools
import gc
import threading

import numpy as np
import pytest
import torch
from device_under_test import FAKE
from device_under_test import NAME as GPU
from tensor_bits import all_bits, bits

import outcrop
from outcrop.config import DeviceConfig
from outcrop.errors import ArgumentError
from outcrop.importing.graph import import_graph
from outcrop.loading import transfer
from outcrop.loading.device_buffers import DeviceBuffer
from outcrop.loading.open import open_session
from outcrop.runtime.memory_tables import DEVICE_BATCHES
from outcrop.runtime.runtime import Runtime
from outcrop.store.samples import open_samples
from outcrop.unified.gather import BUS_BLOCKS
from prepare_support import prepare
from run_support import a_run_of_all_levels


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return a_run_of_all_levels(folder, width=129, train=200, gpu_memory="230KiB", edge_ids=True)


def digest(batch):
    edges = batch.edge_index
    return all_bits([batch.x, batch.y, edges[0].contiguous(), edges[1].contiguous()])


def sums(made, device, loop, mode="packed"):
    """Two epochs of the loop, which calls back with results on the device; waited for at the very end."""
    found = []
    with outcrop.open_run(made[1]).loader(mode=mode, device=device, edge_ids=True) as loader:
        for _ in range(2):
            loop(loader, found.append)
    return torch.stack([x.cpu() for x in found]).tolist()


class Loops:
    """What people write. ``gpu`` is None on the CPU."""

    def __init__(self, gpu):
        self.gpu = gpu
        self.stream = None if gpu is None else gpu.new_stream(0)

    def plain(self, loader, see):
        for batch in loader:
            see(digest(batch))

    def reads_at_once(self, loader, see):
        """Waits for its own stream alone, as ``loss.item()`` does."""
        for batch in loader:
            see(digest(batch).cpu())

    def deletes_early(self, loader, see):
        for batch in loader:
            x, y = batch.x, batch.y
            edges = batch.edge_index.clone()
            del batch
            first = bits(x)
            del x
            see(torch.stack([first, bits(y), bits(edges)]))
            del y

    def keeps_one(self, loader, see):
        """One batch of the epoch stays until its end; the others go through the other buffer."""
        kept = None
        for batch in loader:
            see(digest(batch))
            if kept is None:
                kept = batch
            del batch
        see(digest(kept))

    def keeps_labels(self, loader, see):
        labels, ids, rows = [], [], []
        for batch in loader:
            labels.append(batch.y)
            ids.append(batch.input_id)
            rows.append(bits(batch.x))
            del batch
        see(torch.stack([bits(torch.cat(labels)), bits(torch.cat(ids)), bits(torch.stack(rows))]))

    def asks_on_a_stream(self, loader, see):
        if self.gpu is None:
            return self.plain(loader, see)
        with self.gpu.on_stream(self.stream):
            self.plain(loader, see)
        self.joined()

    def moves_to_a_stream(self, loader, see):
        """As with torch's own tensors: the stream waits for the one that has the batch, and is recorded."""
        for batch in loader:
            if self.gpu is None:
                see(digest(batch))
                continue
            fence = self.gpu.fence(self.gpu.stream(0))
            batch.x.record_stream(self.stream)
            self.gpu.record(batch.edge_index, self.stream)
            self.gpu.record(batch.y, self.stream)
            with self.gpu.on_stream(self.stream):
                self.gpu.wait(self.stream, fence)
                found = digest(batch)
            del batch
            self.joined()
            see(found.clone())
            self.gpu.record(found, self.gpu.stream(0))
            del found

    def lets_go_on_a_stream(self, loader, see):
        """Nothing is recorded: the batch goes where it was last used."""
        for batch in loader:
            if self.gpu is None:
                see(bits(batch.x))
                continue
            x = batch.x
            del batch
            with self.gpu.on_stream(self.stream):
                self.gpu.wait(self.stream, self.gpu.fence(self.gpu.stream(0)))
                found = bits(x)
                del x
            self.joined()
            see(found.clone())
            self.gpu.record(found, self.gpu.stream(0))

    def collects_elsewhere(self, loader, see):
        """Batches in circles, which a thread with a stream of its own finds."""
        for batch in loader:
            see(digest(batch))
            circle = [batch]
            circle.append(circle)
            del batch, circle
            thread = threading.Thread(target=self.collect)
            thread.start()
            thread.join()

    def collect(self):
        if self.gpu is None:
            gc.collect(1)
        else:
            with self.gpu.on_stream(self.gpu.new_stream(0)):
                gc.collect(1)

    def breaks(self, loader, see):
        for stop in (1, 3):
            loader.set_epoch(0)
            for number, batch in enumerate(loader):
                see(digest(batch))
                if number == stop:
                    break
            del batch

    def joined(self):
        """What was given to the stream comes before what is given now."""
        self.gpu.wait(self.gpu.stream(0), self.gpu.fence(self.stream))


@pytest.fixture(scope="module")
def on_cpu(made):
    """Sums of a loop on the CPU, made once for each: schedules change nothing there."""

    @functools.cache
    def found(loop, mode="packed"):
        return sums(made, "cpu", getattr(Loops(None), loop), mode)

    return found


LOOPS = [name for name in vars(Loops) if name[0] != "_" and name not in ("joined", "collect")]


@pytest.mark.parametrize(
    ("loop", "mode"),
    [*((name, "packed") for name in LOOPS), ("deletes_early", "memory"), ("deletes_early", "ondisk")],
)
def test_loops_see_what_the_cpu_sees(made, gpu, loop, mode, on_cpu):
    assert sums(made, GPU, getattr(Loops(gpu), loop), mode) == on_cpu(loop, mode)


@pytest.mark.parametrize("mode", ["packed", "memory", "online"])
def test_batches_have_all_that_they_have_on_the_cpu(made, gpu, mode):
    here, there = (
        outcrop.open_run(made[1]).loader(device=device, mode=mode, edge_ids=True) for device in ("cpu", GPU)
    )
    with here, there:
        for ours, theirs in zip(here, there, strict=True):
            assert set(ours.keys()) == set(theirs.keys())
            for name, value in ours.to_dict().items():
                if isinstance(value, torch.Tensor):
                    assert theirs[name].device.type == GPU, name
                    assert theirs[name].dtype == value.dtype, name
                    assert torch.equal(theirs[name].cpu(), value), name
                else:
                    assert theirs[name] == value, name
            del ours, theirs


def test_all_of_a_batch_is_counted_in_the_memory_of_the_device(made, gpu):
    """What has an entry per node or edge lies in the batch's block: its bytes are those of the budget."""
    with (
        Runtime() as plain,
        Runtime() as runtime,
        open_session(made[0], plain, "packed", run_folder=made[1]) as reference,
        open_session(
            made[0], runtime, "packed", run_folder=made[1], device=DeviceConfig(GPU, 210 << 10)
        ) as session,
    ):
        for ours, batch in zip(reference.batches("train"), session.batches("train"), strict=True):
            begin = batch.x.data_ptr()
            for part in (batch.rowptr, batch.col):
                assert (part.data_ptr() - begin) % 256 == 0
                assert begin < part.data_ptr() < begin + (105 << 10)
            assert torch.equal(batch.x.cpu(), ours.x)
            del ours, batch, part


def test_pinned_memory_beside_the_budget_is_bounded(made, gpu, monkeypatch, on_cpu):
    """Two blocks, whatever the epoch: five quarters of four records, which is what the documentation promises."""
    buffers, stage = {}, DeviceBuffer.stage

    def watched(buffer, *args):
        buffers[id(buffer)] = buffer
        return stage(buffer, *args)

    monkeypatch.setattr(DeviceBuffer, "stage", watched)
    assert sums(made, GPU, Loops(gpu).plain) == on_cpu("plain")
    with Runtime() as runtime:
        most = open_samples(runtime, made[1] / "sample", made[0]).max_record_bytes
    assert len(buffers) == DEVICE_BATCHES
    sizes = [buffer.pinned_bytes for buffer in buffers.values()]
    assert all(256 < size <= 1.25 * (4 * most + 8 * 256) for size in sizes), (sizes, most)


@pytest.mark.skipif(not FAKE, reason="asks the fake GPU for what it allocated")
@pytest.mark.parametrize("mode", ["packed", "online"])
def test_wide_targets_are_part_of_the_memory_of_the_gpu(gpu, tmp_path, mode):
    """All that is allocated there stays within --gpu-memory, the copies of targets that a loop may keep included."""
    random, nodes, columns = np.random.default_rng(1), 600, 400
    targets = random.normal(size=(nodes, columns)).astype(np.float32)
    (tmp_path / "in").mkdir()
    arrays = {
        "edges": random.integers(0, nodes, (5000, 2)),
        "features": random.normal(size=(nodes, 129)).astype(np.float32),
        "labels": targets,
        "train": np.arange(200),
    }
    for name, array in arrays.items():
        np.save(tmp_path / "in" / f"{name}.npy", array)
    with Runtime("32MiB") as runtime:
        graph = import_graph(f"arrays:{tmp_path / 'in'}", tmp_path / "graph", runtime)
    limit = 640 << 10
    prepare(
        graph, tmp_path / "run", fanouts=(3, 3), batch_size=20, epochs=1, memory="4MiB", gpu_memory=limit,
        disk_space="4MiB",
    )  # fmt: skip
    before = gpu.allocator.peak_bytes = gpu.allocator.now_bytes
    to, caches = DeviceConfig(GPU, limit), 0
    with (
        Runtime("4MiB") as runtime,
        open_session(graph, runtime, mode, run_folder=tmp_path / "run", device=to) as session,
    ):
        batches = session.batches("train")
        for batch in batches:
            ids = batch.graph.n_id
            assert np.array_equal(batch.x.cpu().numpy(), arrays["features"][ids])
            assert np.array_equal(batch.y.cpu().numpy(), targets[ids[: batch.graph.num_seeds]])
            del batch
        caches = batches.stats.rows_by_level["device"]
    assert caches > 0
    assert limit // 2 < gpu.allocator.peak_bytes - before <= limit


def test_kernels_that_read_the_host_take_few_processors(made, gpu, monkeypatch, on_cpu):
    expected = on_cpu("plain")
    launched, streams, launch, new_stream = [], [], gpu.launch, gpu.new_stream
    monkeypatch.setattr(
        gpu, "launch", lambda *args, **named: launched.append(args) or launch(*args, **named), raising=False
    )
    monkeypatch.setattr(
        gpu, "new_stream", lambda *args, **named: streams.append(named) or new_stream(*args, **named),
        raising=False,
    )  # fmt: skip
    assert sums(made, GPU, Loops(None).plain) == expected
    assert streams == [{"low_priority": True}]
    assert {args[1].split("_")[0]: args[-1] for args in launched} == {"assemble": BUS_BLOCKS}


@pytest.mark.parametrize("number", [0, -1])
def test_a_row_at_no_place_is_named_before_the_epoch_ends(made, gpu, monkeypatch, number):
    """In the first batch of an epoch, and in its last; ``number`` of it."""
    place_of, calls = transfer._row_addresses, []

    def damaged(table, count):
        found = place_of(table, count)
        calls.append(count)
        if len(calls) - 1 == number % num_batches:
            found[7] = np.uint64((1 << 56) + (1 << 40))
        return found

    monkeypatch.setattr(transfer, "_row_addresses", damaged)
    with outcrop.open_run(made[1]).loader(device=GPU) as loader:
        num_batches = len(loader)
        with pytest.raises(ArgumentError, match="row 7 of a batch is at no place: 0x100010000000000"):
            go_over(loader)
    calls.clear()
    to = DeviceConfig(GPU)
    with (
        Runtime() as runtime,
        open_session(made[0], runtime, "packed", run_folder=made[1], device=to) as session,
    ):
        with pytest.raises(ArgumentError, match="row 7 of a batch"):
            go_over(session.batches("train"))
        calls.clear()
        calls.append(0)
        if number == 0:  # the session is as good as before
            go_over(session.batches("train"))


def go_over(batches):
    for batch in batches:
        del batch


@pytest.mark.skipif(not FAKE, reason="counts what the fake GPU notes")
@pytest.mark.parametrize("overlapped", [False, True])
def test_the_host_waits_once_a_batch_and_not_in_the_thread_that_takes_it(made, gpu, monkeypatch, overlapped):
    """For pinned memory that comes round again; at the end of a pass, for whether all rows were found."""
    with Runtime() as runtime, open_session(made[0], runtime, "packed", run_folder=made[1]) as session:
        expected = [bits(batch.x).item() for batch in session.batches("train")]
    waits, host_wait = [], gpu.streams.host_wait
    monkeypatch.setattr(
        gpu.streams, "host_wait", lambda *args: waits.append(threading.get_ident()) or host_wait(*args)
    )
    to, found = DeviceConfig(GPU), []
    with (
        Runtime() as runtime,
        open_session(made[0], runtime, "packed", run_folder=made[1], device=to) as session,
    ):
        waits.clear()
        for batch in session.batches("train", overlapped=overlapped):
            found.append(bits(batch.x))
            del batch
        if overlapped:
            assert waits.count(threading.get_ident()) <= DEVICE_BATCHES
        else:
            assert len(waits) <= len(found)
        assert [x.item() for x in found] == expected
