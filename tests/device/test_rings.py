"""Rows that kernels read from disk: where they land, in what order, and what it takes."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from device_under_test import FAKE
from device_under_test import NAME as GPU

from outcrop import _core
from outcrop.config import DeviceConfig, IoConfig, SampleConfig
from outcrop.errors import IoError
from outcrop.loading.modes import Online
from outcrop.loading.open import open_session
from outcrop.rows.rings import GpuDiskRows, RingFile, SlabRings, submitter
from outcrop.runtime import machine
from outcrop.runtime.hardware import HostCosts
from outcrop.runtime.runtime import Runtime
from outcrop.store import profile
from outcrop.store.arrays import ArrayWriter, DiskArray
from run_support import a_graph, as_rows, random_features

NODES, WIDTH = 600, 129
BY_RINGS = Online(row_reads="gpu")
ROWS = as_rows(random_features(NODES, WIDTH, "float32"))


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    with Runtime(threads=1) as runtime:
        return a_graph(tmp_path_factory.mktemp("rings") / "g", runtime, nodes=NODES, edges=5000, width=WIDTH)


def test_rows_land_in_the_memory_of_the_gpu(graph, gpu, monkeypatch):
    """They cross the bus once: no buffer of the host has them, and no copy takes them there or back."""
    sampling = SampleConfig(fanouts=(4, 4), batch_size=16, seed=3)
    with Runtime(threads=1) as runtime:
        with open_session(graph, runtime, BY_RINGS, config=sampling, device=DeviceConfig(GPU)) as session:
            count = 0
            monkeypatch.setattr(submitter.Kernels, "rows", None)
            monkeypatch.setattr(submitter.Kernels, "fetch", None)
            for batch in session.batches("train"):
                assert np.array_equal(as_rows(batch.x.cpu().numpy()), ROWS[batch.graph.n_id])
                count += 1
                del batch
            assert count > 2
        assert runtime.budget.by_tag["batch-rows"].peak_bytes == 0
        assert runtime.device_peaks["device-rows"] > 0


def test_kernels_of_rings_do_not_wait_for_others(graph, gpu, monkeypatch):
    """On an H200 hardly anything was read while gradients were computed: each small kernel waited for a large one."""
    streams, new_stream = [], gpu.new_stream
    monkeypatch.setattr(
        gpu, "new_stream", lambda *args, **named: streams.append(named) or new_stream(*args, **named),
        raising=False,
    )  # fmt: skip
    with Runtime(threads=1) as runtime:
        GpuDiskRows(graph.array(runtime, "features"), runtime, staging_bytes=64 << 10, device=GPU).close()
    assert streams == 2 * [{"high_priority": True}]


@pytest.fixture(params=["latest", "seed:5"])
def late(request, gpu):
    """On the fake GPU nothing runs before it must, or in a drawn order; a real one is late when it likes."""
    if FAKE:
        from fake.streams import schedule

        gpu.settle()
        gpu.streams.schedule = schedule(request.param)
    return gpu


def test_rows_come_after_what_the_caller_does_to_their_place(graph, late):
    with Runtime(threads=1) as runtime:
        source = GpuDiskRows(graph.array(runtime, "features"), runtime, staging_bytes=64 << 10, device=GPU)
        ids = np.arange(40, dtype=np.int64)
        out = torch.zeros(40 * ROWS.shape[1], dtype=torch.uint8, device=GPU)
        out.fill_(7)
        source.submit(ids, out).wait()
        assert np.array_equal(out.cpu().numpy().reshape(40, -1), ROWS[ids])
        source.close()


def test_waits_are_for_their_own_rows(graph, late):
    """Commands for the second half of the file are never answered: who waits for others' has them all the same."""
    faults, half = _core.RingFaults(), NODES // 2
    faults.shuffle, faults.silent_from = True, half * ROWS.shape[1] // 512
    with Runtime(threads=1) as runtime:
        source = GpuDiskRows(
            graph.array(runtime, "features"), runtime, staging_bytes=64 << 10, device=GPU, faults=faults
        )
        never = source.submit(
            np.arange(half + 1, half + 6), torch.zeros(5 * ROWS.shape[1], dtype=torch.uint8, device=GPU)
        )
        for count in (70, 1, 20):
            ids = np.random.default_rng(count).integers(0, half - 1, count)
            out = torch.zeros(count * ROWS.shape[1], dtype=torch.uint8, device=GPU)
            source.submit(ids, out).wait()
            assert np.array_equal(out.cpu().numpy().reshape(count, -1), ROWS[ids])
        assert not never.done
        assert source.commands == (96, 91)
        source.close()
        with pytest.raises(IoError, match="closed"):
            never.wait()


def test_a_swap_comes_after_what_the_gpu_does_to_the_slabs(tmp_path, late):
    """What is written is what was computed until then; what is read over it is there when the swap is over."""
    pages = np.random.default_rng(3).integers(0, 256, (4, 3 * 4096), np.uint8)
    (tmp_path / "table").write_bytes(pages.tobytes())
    with Runtime(threads=1) as runtime:
        file = runtime.io.open(str(tmp_path / "table"), _core.OpenMode.pages)
        size = pages.shape[1]
        rings = SlabRings(RingFile(tmp_path / "table", file, 4, size, size), runtime, GPU, 64 << 10)
        slabs = torch.zeros(2, size, dtype=torch.uint8, device=GPU)
        slabs[0].fill_(5)
        slabs[1].fill_(6)
        moves = rings.swap(list(slabs), [0, None], [3 * size, size])
        moves.wait()
        assert np.array_equal(slabs.cpu().numpy(), pages[[3, 1]])
        rings.close()
        runtime.io.close(file)
    pages[0] = 5
    assert (tmp_path / "table").read_bytes() == pages.tobytes()


@pytest.mark.parametrize("runs", [0, 1], ids=["never", "once"])
def test_a_completion_kernel_that_never_runs_ends_the_wait(graph, gpu, monkeypatch, runs):
    """Rows that it took before are there; the error names the file, what is awaited, how long, and what to do."""
    launch, left = gpu.launch, [runs]

    def launch_few(name, entry, *arguments, **options):
        if entry == "io_complete":
            if not left[0]:
                return
            left[0] -= 1
        launch(name, entry, *arguments, **options)

    monkeypatch.setattr(gpu, "launch", launch_few)
    with Runtime(threads=1, io=IoConfig(ring_deadline_seconds=0.2)) as runtime:
        source = GpuDiskRows(graph.array(runtime, "features"), runtime, staging_bytes=64 << 10, device=GPU)
        wanted = [np.arange(count, dtype=np.int64) for count in (5, 300)]
        outs = [torch.zeros(len(ids) * ROWS.shape[1], dtype=torch.uint8, device=GPU) for ids in wanted]
        reads = [source.submit(ids, out) for ids, out in zip(wanted, outs, strict=True)]
        if runs:
            reads[0].wait()
            assert np.array_equal(outs[0].cpu().numpy().reshape(5, -1), ROWS[:5])
        with pytest.raises(
            IoError,
            match=r"features\.bin: \d+ of \d+ reads through rings had no answer within 0\.2 s: the kernel io_complete, "
            r"which takes them, was launched and did not run; look at the GPU .*open the rows again",
        ):
            reads[1].wait()
        with pytest.raises(IoError, match="had no answer"):
            source.submit(wanted[0], outs[0])
        source.close()
    gpu.settle()


@pytest.mark.parametrize(("reads_per_s", "threads"), [(None, 256), (2e5, 32), (2e7, 160)])
def test_the_submitting_block_is_that_of_equation_2(graph, gpu, tmp_path, monkeypatch, reads_per_s, threads):
    """Hyperion, Equation 2: reads per second of the profile that is kept, times 6.5 us, in whole warps."""
    monkeypatch.setenv("OUTCROP_CACHE", str(tmp_path))
    if reads_per_s is not None:
        key, host = profile.key_of(graph.path, machine.describe(probe=False)), HostCosts()
        reads = ((4096, reads_per_s),)
        found = profile.Profile(
            key, 2, 1 << 30, reads, 1e-4, 1e9, 1e9, 1e9, host, {}, measured_at=time.time()
        )
        profile.write(profile.default_path(key), found)
    grids, launch = [], gpu.launch

    def launched(name, entry, device, warps, arguments, most_blocks=0, block_threads=256):
        if entry == "io_submit":
            grids.append((-(-warps * 32 // block_threads), block_threads))
        launch(name, entry, device, warps, arguments, most_blocks, block_threads)

    monkeypatch.setattr(gpu, "launch", launched, raising=False)
    sampling = SampleConfig(fanouts=(4, 4), batch_size=16, seed=3)
    with (
        Runtime(threads=1) as runtime,
        open_session(graph, runtime, BY_RINGS, config=sampling, device=DeviceConfig(GPU)) as session,
    ):
        for batch in session.batches("train"):
            assert np.array_equal(as_rows(batch.x.cpu().numpy()), ROWS[batch.graph.n_id])
            del batch
    assert set(grids) == {(1, threads)}


@pytest.mark.parametrize(("num_files", "num_queues"), [(3, 3), (3, 2), (2, 1)])
def test_one_kernel_submits_to_the_queues_of_several_disks(
    graph, late, tmp_path, monkeypatch, num_files, num_queues
):
    """A block for each queue that rows are asked of; rows are those of the features, whoever waits first."""
    grids, launch, gpu = [], late.launch, late

    def launched(name, entry, device, warps, arguments, most_blocks=0, block_threads=256):
        if entry == "io_submit":
            grids.append((-(-warps * 32 // block_threads), block_threads))
        launch(name, entry, device, warps, arguments, most_blocks, block_threads)

    monkeypatch.setattr(gpu, "launch", launched, raising=False)
    faults = _core.RingFaults()
    faults.shuffle = True
    with Runtime(threads=1) as runtime:
        files = []
        for number in range(1, num_files):
            writer = ArrayWriter(runtime, tmp_path, f"stripe-{number}", "uint8", (ROWS.shape[1],))
            writer.append(np.ascontiguousarray(ROWS[number::num_files]))
            files.append(DiskArray(runtime, tmp_path, writer.finish()))
        source = GpuDiskRows(
            graph.array(runtime, "features"),
            runtime,
            staging_bytes=96 << 10,
            device=GPU,
            faults=faults,
            block_threads=64,
            stripes=files,
            num_queues=num_queues,
        )
        wanted = [
            np.random.default_rng(seed).integers(0, NODES, count) for seed, count in enumerate((300, 7, 90))
        ]
        one_file = np.arange(0, NODES, num_files)[:5]  # of the first file alone
        wanted.append(one_file)
        outs = [torch.zeros(len(ids) * ROWS.shape[1], dtype=torch.uint8, device=GPU) for ids in wanted]
        reads = [source.submit(ids, out) for ids, out in zip(wanted, outs, strict=True)]
        for at in (2, 0, 3, 1):
            reads[at].wait()
            assert np.array_equal(outs[at].cpu().numpy().reshape(len(wanted[at]), -1), ROWS[wanted[at]])
        grids_so_far = len(grids)
        source.submit(one_file, outs[3]).wait()
        assert grids[grids_so_far:] == [(1, 64)]
        assert grids[0] == (num_queues, 64)
        assert {blocks for blocks, _ in grids} <= set(range(1, num_queues + 1))
        of_queue = np.concatenate([*wanted, one_file]) % num_files % num_queues
        expected = np.bincount(of_queue, minlength=num_queues).tolist()
        assert source.commands_by_queue == [(n, n) for n in expected]
        source.close()
