"""Sparse rows on the GPU: rows come as they lie on disk, and are decoded there to the bits of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from device_under_test import NAME as GPU

import outcrop as oc
from outcrop.config import DeviceConfig
from outcrop.errors import NumericError
from outcrop.loading.open import open_session
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph
from prepare_support import prepare
from run_support import skewed_edges
from sparse_reference import bag_of_words, change_head, mostly_zeros, same_bits

DEVICE_BYTES = 520 << 10
NODES, WIDTH = 600, 329


def features(kind: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (
        bag_of_words(rng, NODES, WIDTH, 20) if kind == "words" else mostly_zeros(rng, NODES, WIDTH, 15, kind)
    )


def imported(path, x):
    rng = np.random.default_rng(1)
    order = rng.permutation(NODES)
    oc.import_graph(
        skewed_edges(NODES, 5000, 0),
        path,
        features=x,
        labels=rng.integers(0, 5, NODES),
        splits={"train": order[:200], "valid": order[200:240]},
        config=oc.ImportConfig(allow_nonfinite=True),
        progress=False,
    )
    return open_graph(path)


@pytest.fixture(scope="module", params=["words", "float16", "int8"])
def made(request, tmp_path_factory):
    folder, x = tmp_path_factory.mktemp("made"), features(request.param)
    graph = imported(folder / "graph", x)
    assert graph.row_file.decoder is not None
    options = {"fanouts": (3, 3), "batch_size": 20, "memory": "1900KiB", "disk_space": "700KiB"}
    prepare(graph, folder / "run", **options, gpu_memory=DEVICE_BYTES)
    return graph, folder / "run", x


@pytest.mark.parametrize("mode", ["packed", "memory", "online", "dynamic"])
def test_batches_have_the_values(made, mode, gpu):
    graph, run, x = made
    with Runtime() as runtime:
        to = DeviceConfig(GPU, DEVICE_BYTES)
        with open_session(graph, runtime, mode, run_folder=run, device=to) as opened:
            for split in ("train", "valid"):
                count = 0
                for batch in opened.batches(split):
                    assert batch.x.device.type == GPU
                    assert same_bits(batch.x.cpu(), x[batch.graph.n_id])
                    count += 1
                    del batch
                assert count > 1


def test_training_ends_where_a_row_lies(tmp_path, gpu):
    """On a GPU nobody waits to look at rows while they are decoded: the loss says it, before parameters learn of it."""
    graph = imported(tmp_path / "graph", features("words")).path
    change_head(graph, 7, [1, WIDTH])
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
