"""Rows that kernels read from disk: where they land, in what order, and what it takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from device_under_test import NAME as GPU

from outcrop.api.run import open_session
from outcrop.config import DeviceConfig, IoConfig, SampleConfig
from outcrop.gpuio import GpuDiskRows, submitter
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


def test_rows_come_after_what_the_caller_does_to_their_place(graph, gpu):
    with Runtime(threads=1) as runtime:
        source = GpuDiskRows(graph.array(runtime, "features"), runtime, staging_bytes=64 << 10, device=GPU)
        ids = np.arange(40, dtype=np.int64)
        out = torch.zeros(40 * ROWS.shape[1], dtype=torch.uint8, device=GPU)
        out.fill_(7)
        source.submit(ids, out).wait()
        assert np.array_equal(out.cpu().numpy().reshape(40, -1), ROWS[ids])
        source.close()
