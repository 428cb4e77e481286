"""Next uses of recorded batches, and what mode ``belady`` reads against the dynamic policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from cache_reference import POLICIES
from outcrop.errors import ArgumentError, IoError
from outcrop.loading.modes import Belady, mode_with
from outcrop.loading.open import open_session
from outcrop.rows import NextUses, schedule_of
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.store.manifest import scratch_file
from outcrop.store.samples import open_samples
from prepare_support import prepare
from run_support import a_graph, sampled

Make = Callable[..., Runtime]
EPOCHS, PER_EPOCH = 3, 5
OPTIONS = {"fanouts": (4, 4), "batch_size": 20, "epochs": EPOCHS}


@pytest.fixture
def graph(tmp_path: Path, make_runtime: Make) -> Graph:
    return a_graph(tmp_path / "g", make_runtime(threads=1), width=1024)


def test_the_schedule_is_the_pool_in_the_order_of_training(graph, tmp_path, make_runtime):
    samples = sampled(graph, tmp_path / "run", make_runtime(threads=1), **OPTIONS)
    train, valid = samples.group("train").all_batches(), list(samples.group("valid").batches(0))
    assert len(train) == EPOCHS * PER_EPOCH
    assert schedule_of(samples, ("train",)).tolist() == list(train)
    both = [train[:5], valid, train[5:10], valid, train[10:], valid]
    assert schedule_of(samples, ("train", "valid")).tolist() == [b for part in both for b in part]
    assert schedule_of(samples, ("nothing",)).tolist() == []
    with pytest.raises(ArgumentError, match="0 batches"):
        NextUses(samples, graph.row_file, schedule_of(samples, ()), make_runtime(threads=1))


@pytest.mark.parametrize("window", [1000, 600, 37])
@pytest.mark.parametrize("passes", [("train",), ("train", "valid")])
def test_next_uses(graph, tmp_path, make_runtime, monkeypatch, window, passes):
    """Against a look at every later batch, for windows of all and of few nodes."""
    runtime = make_runtime("64MiB", threads=1)
    samples = sampled(graph, tmp_path / "run", runtime, **OPTIONS)
    schedule = schedule_of(samples, passes)
    fraction = Fraction(1, runtime.budget.free_bytes // (4 * window))
    monkeypatch.setattr(memory_tables, "NEXT_USES", replace(memory_tables.NEXT_USES, fraction=fraction))
    uses = NextUses(samples, graph.row_file, schedule, runtime)
    assert not list((tmp_path / "run").glob(".*")), "a file was left"
    ids = [samples.read(b, np.zeros(samples.max_record_bytes, np.uint8)).n_id for b in schedule]
    table = np.zeros((2 * len(ids), graph.num_nodes), bool)
    for place in range(2 * len(ids)):
        table[place, ids[place % len(ids)]] = True
    for place, n_id in enumerate(ids):
        expected = place + 1 + table[place + 1 :, n_id].argmax(axis=0)
        assert np.array_equal(uses.read(place), expected)
    uses.close()


def test_places_follow_each_other(graph, tmp_path, make_runtime):
    runtime = make_runtime(threads=1)
    samples = sampled(graph, tmp_path / "run", runtime, **OPTIONS)
    uses = NextUses(samples, graph.row_file, schedule_of(samples, ("train", "valid")), runtime)
    valid, test = samples.group("valid").first, samples.group("test").first
    assert [uses.place_of(valid, after) for after in (-1, 4, 5, 11, 12, 20)] == [5, 5, 12, 12, 19, 5]
    assert uses.place_of(test, 3) is None
    uses.close()


@pytest.mark.parametrize("by", ["the next training", "the next prepare"])
def test_what_a_killed_process_left_is_removed(graph, tmp_path, make_runtime, by):
    """A kill between the making of the file and the removal of its name leaves it in the run."""
    runtime, run = make_runtime(threads=1), tmp_path / "run"
    prepare(graph, run, runtime=runtime, stop_after="sample", **OPTIONS)
    before, left = sorted(run.iterdir()), scratch_file(run)
    left.write_bytes(bytes(4096))
    (run / ".next-use-0.tmp").write_bytes(b"")  # as releases before called it
    if by == "the next training":
        samples = open_samples(runtime, run / "sample")
        NextUses(samples, graph.row_file, schedule_of(samples, ("train",)), runtime).close()
    else:
        prepare(graph, run, runtime=runtime, stop_after="sample", **OPTIONS)
    assert sorted(run.iterdir()) == before


def test_a_folder_that_cannot_be_written(graph, tmp_path, make_runtime, monkeypatch):
    runtime = make_runtime(threads=1)
    samples = sampled(graph, tmp_path / "run", runtime, **OPTIONS)
    samples.path = tmp_path / "gone" / "sample"
    with pytest.raises(IoError, match="gone"):
        NextUses(samples, graph.row_file, schedule_of(samples, ("train",)), runtime)


def rows_read(
    graph: Graph, run: Path, runtime: Runtime, mode: str, passes: tuple[str, ...], **options
) -> list:
    """(rows, bytes) from disk after every pass of five epochs, from the start."""
    out, rows, needed = [], 0, 0
    with open_session(
        graph, runtime, mode_with(mode, options), run_folder=run, epoch_splits=passes
    ) as session:
        for epoch in range(5):
            for split in passes:
                batches = session.batches(split, epoch)
                for batch in batches:
                    del batch
                rows += batches.stats.rows_by_level["disk"]
                needed += batches.stats.bytes_needed
                out.append((rows, needed))
    return out


@pytest.mark.parametrize("passes", [("train",), ("train", "valid")])
@pytest.mark.parametrize("capacity", [0, 50, 150, 400, 600])
def test_nothing_reads_less_than_belady(graph, tmp_path, make_runtime, capacity, passes):
    """With the same number of rows, after every pass; rows of whole pages, so the same holds for bytes read."""
    runtime = make_runtime(threads=1)
    prepare(graph, tmp_path / "run", runtime=runtime, stop_after="sample", **OPTIONS)
    read = {
        policy: np.array(
            rows_read(graph, tmp_path / "run", make_runtime(threads=1), "dynamic", passes,
                      cache_policy=policy, cache_rows=capacity)
        )
        for policy in POLICIES
    }  # fmt: skip
    best = np.array(
        rows_read(graph, tmp_path / "run", make_runtime(threads=1), "belady", passes, cache_rows=capacity)
    )
    for policy, theirs in read.items():
        assert (best <= theirs).all(), policy
    if capacity == 150:
        assert all(best[-1, 0] < theirs[-1, 0] for theirs in read.values())
    if capacity == 600:
        assert best[-1, 0] == read["lru"][-1, 0]


def test_reading_another_pass_than_planned_is_right_all_the_same(graph, tmp_path, make_runtime):
    runtime = make_runtime(threads=1)
    prepare(graph, tmp_path / "run", runtime=runtime, stop_after="sample", **OPTIONS)
    features = np.fromfile(graph.path / "features.bin", "<f4").reshape(600, 1024)
    with open_session(graph, runtime, Belady(cache_rows=200), run_folder=tmp_path / "run") as session:
        for split, epoch in [
            ("train", 2),
            ("test", 0),
            ("train", 0),
            ("valid", 0),
            ("train", 0),
            ("train", 1),
        ]:
            for batch in session.batches(split, epoch):
                assert np.array_equal(batch.x.numpy(), features[batch.graph.n_id])
                del batch
            for batch in session.batches(split, epoch):  # left early
                del batch
                break
