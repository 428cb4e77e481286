"""Training whose slabs go through rings and that a full disk, or a kill, ends: it goes on to the table of one that was
left alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from device_under_test import FAKE
from device_under_test import NAME as GPU

from embed_support import buckets_of, fit, knowledge_graph, random_triples, table_of
from outcrop import _core
from outcrop.api.embed import embed_train
from outcrop.config import DeviceConfig, EmbedConfig, SwapConfig
from outcrop.embed.buckets import open_buckets
from outcrop.errors import IoError
from outcrop.runtime.runtime import Runtime

CONFIG = EmbedConfig(
    model="complex",
    dim=8,
    epochs=3,
    negatives=12,
    batch=50,
    chunk=20,
    learning_rate=0.1,
    sweeps=2,
    optimizer="adagrad",
)
TO = DeviceConfig(GPU)
RINGS = {"device": TO, "resident": False, "swaps": SwapConfig(io="gpu")}


@pytest.fixture(scope="module")
def kg(tmp_path_factory):
    with Runtime() as runtime:
        return knowledge_graph(tmp_path_factory.mktemp("kg"), runtime, train=random_triples(90, 3, 400))


def run_of(kg, folder):
    """A run whose buckets are made."""
    with Runtime() as runtime:
        return buckets_of(kg, folder, runtime, 6, slices=3)


@pytest.fixture(scope="module")
def undisturbed(kg, tmp_path_factory):
    """The table of a training that nothing disturbs, with slabs that the engine moves."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    buckets = run_of(kg, run)
    with Runtime() as runtime:
        fit(buckets, run, CONFIG, runtime, device=TO, resident=False)
        return table_of(run, runtime)


@pytest.fixture(scope="module")
def begun(kg, tmp_path_factory):
    """A run after its first epoch, the table then, and how many bytes its later epochs write."""
    run = tmp_path_factory.mktemp("begun") / "run"
    buckets = run_of(kg, run)
    with Runtime() as runtime:
        fit(buckets, run, replace(CONFIG, epochs=1), runtime, **RINGS)
        table = table_of(run, runtime)
    ended = run.parent / "ended"
    shutil.copytree(run, ended)
    with Runtime() as runtime:
        fit(open_buckets(ended), ended, CONFIG, runtime, **RINGS)
        return run, table, runtime.io.counters.write_bytes


def same(run, expected):
    with Runtime() as runtime:
        for found, wanted in zip(table_of(run, runtime), expected, strict=True):
            if FAKE:
                assert np.array_equal(found, wanted)
            else:
                np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
def test_a_full_disk_ends_training_and_it_goes_on_when_there_is_room(
    begun, tmp_path, undisturbed, share, gpu
):
    """The disk is full when a share of what the later epochs write is written."""
    begun_run, checkpoint, written = begun
    run = tmp_path / "run"
    shutil.copytree(begun_run, run)
    faults = _core.FaultPlan()
    faults.disk_full_after_bytes = int(share * written)
    with Runtime(faults=faults) as runtime:
        with pytest.raises(IoError) as failed:
            fit(open_buckets(run), run, CONFIG, runtime, **RINGS)
        said = str(failed.value)
        del failed
    assert re.search(
        r"tables\.bin: of \d+ writes through rings there failed \d+ with status 0x280 \(cannot be written\): "
        r"cannot write .*tables\.bin.*No space left on device",
        said,
    ), said
    if share < 0.5:  # the second epoch is not over
        same(run, checkpoint)
    with Runtime() as runtime:
        fit(open_buckets(run), run, CONFIG, runtime, **RINGS)
    same(run, undisturbed)


KILLED = """
import json, os, signal, sys
sys.path[:0] = sys.argv[1].split(os.pathsep)
import torch_geometric
import device_under_test
gpu = device_under_test.begin()
from outcrop.api.embed import embed_train
from outcrop.config import EmbedConfig
launch, left = gpu.launch, int(sys.argv[3])
def launch_some(*arguments, **options):
    global left
    launch(*arguments, **options)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
gpu.launch = launch_some
config = EmbedConfig(**json.loads(sys.argv[4]))
embed_train(sys.argv[2], config, device=device_under_test.NAME, io="gpu", resident=False, progress=False)
"""


def test_a_kill_while_slabs_are_moved_loses_nothing_that_a_checkpoint_had(kg, tmp_path, undisturbed, gpu):
    run = tmp_path / "run"
    run_of(kg, run)
    whole = tmp_path / "whole"
    buckets = run_of(kg, whole)
    gpu.launched.clear()
    with Runtime() as runtime:
        fit(buckets, whole, CONFIG, runtime, **RINGS)
    same(whole, undisturbed)
    launches = len(gpu.launched)
    assert set(gpu.launched) == {"io_submit", "io_complete"}
    folders = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parent.parent)])
    for share in (0.2, 0.5):
        arguments = [folders, str(run), str(int(share * launches)), json.dumps(asdict(CONFIG))]
        command = [sys.executable, "-c", KILLED, *arguments]
        killed = subprocess.run(command, capture_output=True, text=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    report = embed_train(run, CONFIG, device=GPU, io="gpu", resident=False, progress=False)
    assert report.resumed_epoch == 1
    same(run, undisturbed)
