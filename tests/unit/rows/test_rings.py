"""Rows through rings: the split calls, what goes wrong, training. tests/cpp/test_io_queue.cpp has what lies below."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from outcrop import _core
from outcrop.api.train import train
from outcrop.cli.main import app
from outcrop.config import IoConfig
from outcrop.errors import ArgumentError, IoError
from outcrop.rows.rings import GpuDiskRows
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph, open_graph
from run_support import a_graph, as_rows, random_features

NODES, WIDTH = 500, 150
ROW = WIDTH * 4
FEATURES = as_rows(random_features(NODES, WIDTH, "float32"))
STAGING = 64 << 10
Make = Callable[..., Runtime]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    path = tmp_path_factory.mktemp("made") / "g"
    with Runtime(threads=1) as runtime:
        a_graph(path, runtime, nodes=NODES, edges=900, width=WIDTH)
    return open_graph(path)


def faults_of(**options: float) -> _core.RingFaults:
    faults = _core.RingFaults()
    for name, value in options.items():
        setattr(faults, name, value)
    return faults


def rings(graph: Graph, runtime: Runtime, staging: int = STAGING, deadline: float = 30, **faults: float):
    return GpuDiskRows(
        graph.array(runtime, "features"),
        runtime,
        staging_bytes=staging,
        deadline_seconds=deadline,
        faults=faults_of(**faults),
    )


def some_ids(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, NODES, count)


def test_submit_and_complete_are_two_calls(graph, make_runtime):
    """Several may be under way, more than the rings hold, waited for in any order, or never."""
    runtime = make_runtime(threads=1)
    source = rings(graph, runtime, shuffle=True, delay_us=100)
    assert 0 < runtime.budget.by_tag["ring-staging"].now_bytes <= STAGING
    for turn in range(3):
        wanted = [some_ids(count, 10 * turn + i) for i, count in enumerate((40, 0, 300, 1, 40))]
        outs = [np.zeros(len(ids) * ROW, np.uint8) for ids in wanted]
        reads = [source.submit(ids, out) for ids, out in zip(wanted, outs, strict=True)]
        assert [r.done for r in reads] == [False, True, False, False, False]
        reads.pop()  # nobody waits for it
        for i in (3, 0, 2):
            reads[i].wait()
            reads[i].wait()
        for ids, out in zip(wanted[:4], outs, strict=False):
            assert np.array_equal(out.reshape(-1, ROW), FEATURES[ids])
    for bad in (np.zeros(18 * ROW, np.uint8)[::2], np.zeros(9 * ROW, np.int8), np.zeros(9 * ROW, np.uint16)):
        with pytest.raises(ArgumentError, match="contiguous bytes"):
            source.submit(some_ids(9, 1), bad)
    left = source.submit(some_ids(9, 1).astype(np.int32), np.zeros(9 * ROW, np.uint8))
    source.close()
    with pytest.raises(IoError, match=r"features\.bin: these rows were closed"):
        left.wait()
    with pytest.raises(IoError, match="closed"):
        source.submit(some_ids(9, 1), np.zeros(9 * ROW, np.uint8))


def test_threads_take_turns(graph, make_runtime):
    source, wrong = rings(graph, make_runtime(threads=1), shuffle=True), []

    def read(seed: int) -> None:
        for i in range(5):
            ids, out = some_ids(60, 100 * seed + i), np.zeros(60 * ROW, np.uint8)
            source.read_rows(ids, out)
            wrong.append(not np.array_equal(out.reshape(-1, ROW), FEATURES[ids]))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [False] * 15
    source.close()


@settings(max_examples=25, deadline=None)
@given(
    hung=st.integers(1, 12),
    sizes=st.lists(st.integers(1, 90), min_size=1, max_size=5),
    delay=st.sampled_from([0, 50]),
    seed=st.integers(0, 1000),
)
def test_a_wait_is_for_its_own_rows(graph, hung, sizes, delay, seed):
    """Commands of one thread are never answered; another's come in any order, and are all there when it has waited."""
    half = NODES // 2
    with Runtime(threads=1) as runtime:
        faults = {"shuffle": True, "delay_us": delay, "seed": seed, "silent_from": half * ROW // 512}
        source = rings(graph, runtime, deadline=600, **faults)
        never = source.submit(half + 1 + some_ids(hung, seed) % (half - 1), np.zeros(hung * ROW, np.uint8))
        said = []

        def wait_for_ever() -> None:
            try:
                never.wait()
            except IoError as error:
                said.append(str(error))

        waiting = threading.Thread(target=wait_for_ever)
        waiting.start()
        wanted = [some_ids(size, seed + i) % (half - 2) for i, size in enumerate(sizes)]
        outs = [np.zeros(len(ids) * ROW, np.uint8) for ids in wanted]
        reads = [source.submit(ids, out) for ids, out in zip(wanted, outs, strict=True)]
        for i in np.random.default_rng(seed).permutation(len(reads)):
            reads[i].wait()
            assert np.array_equal(outs[i].reshape(-1, ROW), FEATURES[wanted[i]])
        assert not never.done
        assert source.commands == (hung + sum(sizes), sum(sizes))
        source.close()
        waiting.join()
    assert said == [f"{graph.path / 'features.bin'}: these rows were closed"]


def test_a_forked_child_is_told_and_leaves_the_rings_alone(graph, make_runtime):
    source, ids, out = rings(graph, make_runtime(threads=1)), some_ids(50, 1), np.zeros(50 * ROW, np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking where there are threads
        child = os.fork()
    if child == 0:
        try:
            source.read_rows(ids, out)
        except IoError as error:
            source.close()
            os._exit(7 if "served in the process that was forked" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    source.read_rows(ids, out)
    assert np.array_equal(out.reshape(-1, ROW), FEATURES[ids])
    source.close()


def test_rows_longer_than_a_command_and_a_queue_of_one(tmp_path, make_runtime):
    runtime = make_runtime(threads=1)
    graph = a_graph(tmp_path / "g", runtime, nodes=80, edges=900, width=5001, train=10)
    source, features = rings(graph, runtime, 1), as_rows(random_features(80, 5001, "float32"))
    ids, out = some_ids(30, 1) % 80, np.zeros(30 * 5001 * 4, np.uint8)
    source.read_rows(ids, out)
    assert np.array_equal(out.reshape(30, -1), features[ids])
    source.close()


def test_reads_that_fail_are_told_and_others_are_right(graph, make_runtime):
    source, failed = rings(graph, make_runtime(threads=1), error_probability=0.01, shuffle=True), 0
    for turn in range(40):
        ids, out = some_ids(50, turn), np.full(50 * ROW, 170, np.uint8)
        said = ""
        try:
            source.read_rows(ids, out)
        except IoError as error:
            said = str(error)
        untouched = int((out.reshape(50, ROW) == 170).all(axis=1).sum())
        right = int((out.reshape(50, ROW) == FEATURES[ids]).all(axis=1).sum())
        assert right == 50 - untouched
        told = f"of 50 reads through rings there failed {untouched} with status 0x281 (unreadable)"
        assert (told in said and "features.bin" in said) if untouched else not said
        failed += bool(untouched)
    assert 3 < failed < 37
    source.close()


def test_the_deadline_is_that_of_the_runtime_and_restarts_with_rows_that_come(graph, make_runtime):
    """Rows of which some come again and again may take longer than the deadline in all."""
    runtime = make_runtime(threads=1, io=IoConfig(ring_deadline_seconds=0.8))
    ids, out = some_ids(150, 1), np.zeros(150 * ROW, np.uint8)
    # A queue of one command, so that the kernel looks again for each.
    source = GpuDiskRows(
        graph.array(runtime, "features"), runtime, staging_bytes=1, faults=faults_of(delay_us=20_000)
    )
    began = time.monotonic()
    source.read_rows(ids, out)
    assert time.monotonic() - began > 0.8
    assert np.array_equal(out.reshape(-1, ROW), FEATURES[ids])
    source.close()
    source = GpuDiskRows(
        graph.array(runtime, "features"), runtime, staging_bytes=1, faults=faults_of(die_at=3)
    )
    with pytest.raises(IoError, match=r"features\.bin: 147 of 150 reads .* within 0\.8 s: the disk hangs"):
        source.read_rows(ids, out)
    source.close()


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_deadline_that_is_no_time_is_refused(seconds):
    with pytest.raises(
        ArgumentError, match=r"ring_deadline_seconds=.* is no time to wait for a disk; give seconds"
    ):
        IoConfig(ring_deadline_seconds=seconds)


@pytest.mark.parametrize("kind", ["die_at", "fail_at", "repeat_at"])
def test_a_queue_that_is_lost_ends_with_an_error(graph, make_runtime, kind):
    why = {"die_at": "within 0.05 s: the disk hangs, or", "fail_at": "made to fail", "repeat_at": "within"}
    runtime = make_runtime(threads=1)
    # Completion 1 is taken with the one before: an id that came round meanwhile is that of another command.
    at = 1 if kind == "repeat_at" else 70
    source = rings(graph, runtime, deadline=0.05 if kind == "die_at" else 600, **{kind: at})
    ids, out = some_ids(400, 3), np.full(400 * ROW, 170, np.uint8)
    for _ in range(2):  # the second fails before it begins
        with pytest.raises(IoError, match=rf"features\.bin: .* reads .*{why[kind]}.*open the rows again"):
            source.read_rows(ids, out)
    right = (out.reshape(-1, ROW) == FEATURES[ids]).all(axis=1)
    assert np.array_equal(right, (out.reshape(-1, ROW) != 170).any(axis=1))
    source.close()
    again = rings(graph, runtime)
    again.read_rows(ids, out)
    assert np.array_equal(out.reshape(-1, ROW), FEATURES[ids])
    again.close()


def test_what_the_engine_says_is_handed_on(graph, tmp_path, make_runtime):
    faults = _core.FaultPlan()
    faults.error_probability = 1
    source = rings(graph, make_runtime(threads=1, faults=faults))
    with pytest.raises(
        IoError, match=r"status 0x281 \(unreadable\): cannot read .*features\.bin: Input/output"
    ):
        source.read_rows(some_ids(5, 1), np.zeros(5 * ROW, np.uint8))
    source.close()
    runtime = make_runtime(threads=1)
    graph = open_graph(shutil.copytree(graph.path, tmp_path / "copy"))
    with (graph.path / "features.bin").open("r+b") as file:
        file.truncate(ROW * 400)
    with pytest.raises(IoError, match=r"of 240000 bytes holds 400 rows, not 500: the file is truncated"):
        rings(graph, runtime)


def test_losses_are_those_of_mode_memory(tmp_path):
    with Runtime(threads=1) as runtime:
        graph = a_graph(tmp_path / "g", runtime, nodes=400, edges=3000, width=20, train=120)
    drawn = {"fanouts": (3, 3), "batch_size": 20}
    wanted = train(graph, mode="memory", hidden=8, epochs=1, trace_losses=True, test=False, **drawn)
    options = ["--hidden", "8", "--epochs", "1", "--trace-losses", "--fanouts", "3,3", "--batch-size", "20"]
    line = ["train", str(graph.path), "--mode", "online", "--io", "gpu", "--json", str(tmp_path / "json")]
    ended = CliRunner().invoke(app, [*line, *options])
    assert ended.exit_code == 0, ended.output
    assert "--io gpu on the CPU: kernels of the CPU read through the rings" in ended.stderr
    found = json.loads((tmp_path / "json").read_text())
    assert found["batch_losses"] == wanted.batch_losses
    assert len(wanted.batch_losses) == 6
    assert found["peak_by_tag"]["ring-staging"] > 0
    with pytest.raises(ArgumentError, match="--io is for --mode online, not packed: leave it out"):
        train(graph, mode="packed", io="gpu", **drawn)
    with pytest.raises(ArgumentError, match="io 'nvme' is unknown; known: engine, gpu"):
        train(graph, mode="online", io="nvme", **drawn)


@pytest.mark.slow
def test_a_million_reads_from_a_file(tmp_path, make_runtime):
    runtime = make_runtime(threads=1, io=IoConfig(direct=False))
    graph = a_graph(tmp_path / "g", runtime, nodes=50_000, edges=900, width=18)
    features = as_rows(random_features(50_000, 18, "float32"))
    source = rings(graph, runtime, 1 << 20, shuffle=True)
    for turn in range(20):
        ids, out = np.random.default_rng(turn).integers(0, 50_000, 50_000), np.zeros(50_000 * 72, np.uint8)
        source.read_rows(ids, out)
        assert np.array_equal(out.reshape(-1, 72), features[ids])
    source.close()
