"""Rows that kernels read from disk: where they land, in what order, and what it takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from device_under_test import FAKE
from device_under_test import NAME as GPU

from outcrop import _core
from outcrop.api.run import open_session
from outcrop.config import DeviceConfig, IoConfig, SampleConfig
from outcrop.errors import IoError
from outcrop.gpuio import GpuDiskRows, RingFile, SlabRings, submitter
from outcrop.runtime import Runtime
from run_support import a_graph, as_rows, random_features

NODES, WIDTH = 600, 129
ROWS = as_rows(random_features(NODES, WIDTH, "float32"))


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    with Runtime(threads=1) as runtime:
        return a_graph(tmp_path_factory.mktemp("rings") / "g", runtime, nodes=NODES, edges=5000, width=WIDTH)


def test_rows_land_in_the_memory_of_the_gpu(graph, gpu, monkeypatch):
    """They cross the bus once: no buffer of the host has them, and no copy takes them there or back."""
    sampling = SampleConfig(fanouts=(4, 4), batch_size=16, seed=3)
    with Runtime(threads=1, io=IoConfig(initiator="gpu")) as runtime:
        with open_session(graph, runtime, "online", config=sampling, to=DeviceConfig(GPU)) as session:
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
