"""Features in few bits on the GPU: rows come as they lie on disk, and are decoded there to the bits of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from device_under_test import NAME as GPU

import outcrop as oc
from outcrop.config import DeviceConfig
from outcrop.errors import NumericError
from outcrop.loading.open import open_session
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph
from prepare_support import prepare
from quantised_reference import FEW_BITS, WRONG_HEADS, any_features, change_row, dequantised
from run_support import skewed_edges

DEVICE_BYTES = 270 << 10
NODES, WIDTH = 600, 129


@pytest.fixture(scope="module", params=FEW_BITS, ids=lambda how: f"{how[0]}-{how[1]}")
def made(request, tmp_path_factory):
    dtype, by = request.param
    folder, rng = tmp_path_factory.mktemp("made"), np.random.default_rng(0)
    x, order = any_features(rng, NODES, WIDTH), rng.permutation(NODES)
    oc.import_graph(
        skewed_edges(NODES, 5000, 0),
        folder / "graph",
        features=x,
        labels=rng.integers(0, 5, NODES),
        splits={"train": order[:200], "valid": order[200:240]},
        config=oc.ImportConfig(feature_dtype=dtype, scale=by),
        progress=False,
    )
    graph = open_graph(folder / "graph")
    options = {"fanouts": (3, 3), "batch_size": 20, "memory": "1600KiB", "disk_space": "700KiB"}
    prepare(graph, folder / "run", **options, gpu_memory=DEVICE_BYTES)
    return graph, folder / "run", dequantised(x, dtype, by)


@pytest.mark.parametrize("mode", ["packed", "memory", "online", "dynamic"])
def test_batches_have_the_values(made, mode, gpu):
    graph, run, values = made
    with Runtime() as runtime:
        to = DeviceConfig(GPU, DEVICE_BYTES)
        with open_session(graph, runtime, mode, run_folder=run, device=to) as opened:
            for split in ("train", "valid"):
                count = 0
                for batch in opened.batches(split):
                    assert batch.x.device.type == GPU
                    assert batch.x.dtype == torch.float32
                    found = batch.x.cpu().numpy()
                    assert np.array_equal(found.view(np.uint32), values[batch.graph.n_id].view(np.uint32))
                    count += 1
                    del batch
                assert count > 1


def test_another_stream_may_use_a_batch(made, gpu):
    """What ``record_stream`` of the batch says holds for decoded rows and for all else that came with them."""
    graph, run, values = made
    with Runtime() as runtime:
        to = DeviceConfig(GPU, DEVICE_BYTES)
        with open_session(graph, runtime, "packed", run_folder=run, device=to) as opened:
            other, sums, wanted = gpu.new_stream(0), [], []
            for batch in opened.batches("train"):
                gpu.wait(other, gpu.fence(gpu.stream(0)))
                with gpu.on_stream(other):
                    sums.append(batch.x[:, 0].clone())
                batch.record_stream(other)
                wanted.append(values[batch.graph.n_id, 0])
                del batch
            gpu.fence(other).synchronize()
            for found, column in zip(sums, wanted, strict=True):
                assert np.array_equal(found.cpu().numpy().view(np.uint32), column.view(np.uint32))


def test_training_ends_where_rows_have_no_finite_values(tmp_path, gpu):
    """On a GPU nobody waits to look at rows while they are decoded: the loss says it, before parameters learn of it."""
    rng = np.random.default_rng(0)
    graph = oc.import_graph(
        skewed_edges(NODES, 5000, 0),
        tmp_path / "graph",
        features=rng.standard_normal((NODES, WIDTH)).astype(np.float32),
        labels=rng.integers(0, 5, NODES),
        splits={"train": np.arange(100), "valid": np.arange(100, 140)},
        config=oc.ImportConfig(feature_dtype="int8", scale="row"),
        progress=False,
    ).path
    change_row(graph, 7, WRONG_HEADS[0])
    with pytest.raises(NumericError, match="look for infinite or missing values in the features"):
        oc.train(
            graph,
            loading="memory",
            model=oc.ModelConfig("sage", hidden=8),
            sampling=oc.SampleConfig(fanouts=(3, 3), batch_size=20),
            training=oc.TrainConfig(epochs=1, device=GPU),
            limits=oc.Limits(gpu_memory=4 << 20),
            checkpoint=tmp_path / "ckpt",
            observer=oc.Observer(progress=False),
        )
    assert not list((tmp_path / "ckpt").glob("*.safetensors"))
