"""The plan against NumPy: which rows are hottest, what everything takes, that refusals name what suffices."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from outcrop.config import PlanConfig
from outcrop.errors import ArgumentError, BudgetError
from outcrop.loading.open import open_session
from outcrop.preparation import cached_rows
from outcrop.preparation.plan import packed_batches
from outcrop.preparation.plan_memory import memory_plan
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.store.batches import BatchGraph
from outcrop.store.placement import Placement
from outcrop.store.samples import SampleSet
from outcrop.testing import write_graph
from prepare_support import prepare
from run_support import (
    a_graph,
    as_rows,
    config_with_cache,
    manifest_of,
    meta_size,
    packed_run,
    planned,
    random_features,
    round_up,
    sampled,
    span_of,
)

Made = tuple[object, SampleSet]


def batches_of(sample_set: SampleSet, split: str) -> list[BatchGraph]:
    buffer = np.zeros(sample_set.max_record_bytes, np.uint8)
    return [sample_set.read(b, buffer) for b in sample_set.groups[split].all_batches()]


def popularity(sample_set: SampleSet, splits: tuple[str, ...], num_nodes: int) -> np.ndarray:
    ids = [b.n_id for split in splits for b in batches_of(sample_set, split)]
    return np.bincount(np.concatenate(ids), minlength=num_nodes)


def with_few_test_batches(sample_set: SampleSet, splits: tuple[str, ...]) -> tuple[str, ...]:
    """By default batches of test nodes are packed where they are no more than those of training."""
    test, train = (len(sample_set.groups[split].all_batches()) for split in ("test", "train"))
    return (*splits, "test") if splits == ("train", "valid") and test <= train else splits


def hottest(counts: np.ndarray) -> np.ndarray:
    """Wanted nodes, most wanted first, of equals the lower id first."""
    order = np.lexsort((np.arange(len(counts)), -counts))
    return order[counts[order] > 0]


@pytest.fixture
def made(tmp_path: Path, make_runtime: Callable[..., Runtime]):
    runtime = make_runtime(threads=1)
    graph = a_graph(tmp_path / "g", runtime, width=25)
    return graph, sampled(graph, tmp_path, runtime), runtime


@pytest.mark.parametrize(
    ("host", "device"), [(0, 0), (1, 0), (40, 0), (0, 30), (25, 30), (10000, 0), (10000, 30), (0, 10000)]
)
@pytest.mark.parametrize("splits", [("train", "valid"), ("train",), ("train", "valid", "test")])
def test_the_hottest_rows_are_cached_nearest(made, tmp_path, host, device, splits):
    graph, sample_set, runtime = made
    config = config_with_cache(sample_set, 100, host, device, packed_splits=splits)
    placement = planned(graph, tmp_path, runtime, sample_set, config)
    splits = with_few_test_batches(sample_set, splits)
    ranked = hottest(popularity(sample_set, splits, graph.num_nodes))
    assert placement.files[0].device_ids.tolist() == sorted(ranked[:device].tolist())
    assert placement.files[0].host_ids.tolist() == sorted(ranked[device : device + host].tolist())
    check_tables(placement, sample_set, splits, row_bytes=100)


def check_tables(
    placement: Placement, sample_set: SampleSet, splits: tuple[str, ...], row_bytes: int
) -> None:
    """Rows per level, offsets and predictions, counted from the batches themselves."""
    offset, number, cached_total = 0, 0, {}
    for split in splits:
        group = sample_set.groups[split]
        for index, batch in enumerate(batches_of(sample_set, split)):
            in_host, in_device = (
                np.isin(batch.n_id, ids)
                for ids in (placement.files[0].host_ids, placement.files[0].device_ids)
            )
            assert not (in_host & in_device).any()
            missing = ~(in_host | in_device)
            hop = np.repeat(np.arange(len(batch.nodes_per_hop)), batch.nodes_per_hop)
            assert placement.packed_batches[number] == group.first + index
            assert (
                placement.files[0].packed_per_hop[number].tolist()
                == np.bincount(hop[missing], minlength=sample_set.hops + 1).tolist()
            )
            assert placement.files[0].cached_rows[number].tolist() == [in_host.sum(), in_device.sum(), 0]
            assert placement.offsets[number] == offset
            cached = int((~missing).sum())
            span = span_of(batch, cached, row_bytes)
            epoch = cached_total.setdefault((split, index // group.per_epoch), np.zeros(5, np.int64))
            epoch += [
                span,
                meta_size(batch, cached) + missing.sum() * row_bytes,
                in_device.sum(),
                in_host.sum(),
                missing.sum(),
            ]
            offset, number = offset + span, number + 1
    assert len(placement.packed_batches) == number
    assert placement.offsets.tolist()[-1] == offset == placement.predicted["record_bytes"]
    found = {
        (split, e): [
            r["bytes_read"],
            r["bytes_needed"],
            *(r["rows_by_level"][k] for k in ("device", "host", "packed")),
        ]
        for split, epochs in placement.predicted["epochs"].items()
        for e, r in enumerate(epochs)
    }
    assert found == {key: value.tolist() for key, value in cached_total.items()}
    total = np.sum(list(cached_total.values()), axis=0)
    assert placement.predicted["read_amplification"] == pytest.approx(total[0] / total[1], rel=1e-12)
    assert placement.predicted["cache_bytes"] == {
        "host": len(placement.files[0].host_ids) * row_bytes,
        "device": len(placement.files[0].device_ids) * row_bytes,
        "disk": 0,
    }


def test_small_counters_in_several_ranges_equal_one(tmp_path, make_runtime):
    """40,000 nodes do not fit the counters of a small budget at once."""
    generous = make_runtime(threads=1)
    graph = a_graph(tmp_path / "g", generous, nodes=40000, edges=150000, width=5, train=600)
    sample_set = sampled(graph, tmp_path, generous, batch_size=100)
    config = config_with_cache(sample_set, 20, 700, 300)
    planned(graph, tmp_path, generous, sample_set, config, "plan")
    tight = make_runtime("400KiB", threads=1)
    tight_samples = type(sample_set)(tight, sample_set.path, sample_set.manifest)
    assert memory_tables.PLAN_COUNTERS.bytes_of(tight.budget.free_bytes) < 4 * 40000
    planned(graph, tmp_path, tight, tight_samples, config, "again")
    assert manifest_of(tmp_path / "plan") == manifest_of(tmp_path / "again")
    assert tight.budget.peak_bytes <= 400 << 10


def test_choosing_rows_keeps_to_what_it_reserves(make_runtime):
    """16 bytes for each row that is chosen: its id, twice. Counted by tracemalloc."""
    nodes = 1 << 20
    counter = cached_rows.BatchCounter(
        nodes,
        SimpleNamespace(buffer_bytes=4),
        np.zeros(0, int),
        make_runtime(),
        4 * nodes,
    )
    counter._whole = True
    counter._counts[:] = np.arange(nodes) % 2 + 1
    tracemalloc.start()
    try:
        chosen = counter.top(np.array([0, nodes // 2, nodes // 2]), nodes)
        assert tracemalloc.get_traced_memory()[1] <= cached_rows.ID_BYTES * nodes + (4 << 20)
    finally:
        tracemalloc.stop()
    assert chosen.dtype == np.int64
    assert np.array_equal(chosen, np.arange(nodes))


def test_every_count_equal_takes_the_lowest_ids(tmp_path, make_runtime):
    """All batches are the whole ring: ties everywhere."""
    runtime = make_runtime(threads=1)
    ring = np.stack([np.arange(50), (np.arange(50) + 1) % 50])
    graph = write_graph(
        tmp_path / "g",
        ring,
        50,
        runtime,
        features=random_features(50, 10, "float32"),
        splits={"train": np.arange(50)},
    )
    sample_set = sampled(graph, tmp_path, runtime, batch_size=50, fanouts=(1,))
    placement = planned(graph, tmp_path, runtime, sample_set, config_with_cache(sample_set, 40, 12, 7))
    assert placement.files[0].device_ids.tolist() == list(range(7))
    assert placement.files[0].host_ids.tolist() == list(range(7, 19))


@pytest.mark.parametrize("options", [{}, {"disk_space": 1 << 30}, {"slots": 3}])
def test_the_parts_of_a_plan_are_the_bytes_of_the_plan(tmp_path, make_runtime, options):
    runtime = make_runtime()
    graph = a_graph(tmp_path / "g", runtime, width=24, dtype="float32", nodes=400, edges=3000, train=100)
    sample_set = sampled(graph, tmp_path / "s", runtime, fanouts=(3, 3), batch_size=20)
    for memory in (4 << 20, 9_876_543, 1 << 28):
        placement = planned(
            graph, tmp_path / str(memory), runtime, sample_set, PlanConfig(memory=memory, **options)
        )
        held, plan = placement.manifest.attributes["memory"], memory_plan(placement.manifest)
        assert plan is not None
        assert plan[memory_tables.ROW_CACHE] == held["cache_bytes"]
        assert plan[memory_tables.DISK_CACHE_SCRATCH] == held["shared_scratch_bytes"]
        assert plan[memory_tables.PACKED_BATCHES] == held["slots"] * held["slot_rows_bytes"]
        assert plan.left_bytes == 0
        assert sum(part.bytes for part in plan.parts) == memory == plan.as_dict()["limit_bytes"]
    placement = planned(graph, tmp_path / "unlimited", runtime, sample_set, PlanConfig(**options))
    assert memory_plan(placement.manifest) is None


def test_without_limit_every_wanted_row_is_cached(made, tmp_path):
    graph, sample_set, runtime = made
    placement = planned(graph, tmp_path, runtime, sample_set, PlanConfig())
    splits = with_few_test_batches(sample_set, ("train", "valid"))
    assert splits[-1] == "test"
    wanted = np.flatnonzero(popularity(sample_set, splits, graph.num_nodes))
    assert placement.files[0].host_ids.tolist() == wanted.tolist()
    assert not placement.files[0].num_packed.any()
    assert len(placement.files[0].device_ids) == 0
    check_tables(placement, sample_set, splits, 100)


def test_many_test_batches_are_not_packed(made, tmp_path):
    """They are needed once: nobody asked for a disk full of them, and where disk space is named, for any."""
    graph, sample_set, runtime = made
    few = planned(graph, tmp_path, runtime, sample_set, PlanConfig())
    assert {*sample_set.groups["test"].all_batches()} <= {*few.packed_batches.tolist()}
    groups = sample_set.groups
    fewer = len(groups["test"].all_batches()) - 1
    assert 0 < fewer < len(groups["train"].all_batches())
    groups["train"] = replace(groups["train"], epochs=1, per_epoch=fewer)
    many = packed_batches(sample_set, PlanConfig())
    assert not {*many.tolist()} & {*groups["test"].all_batches()}
    limited = packed_batches(sample_set, PlanConfig(disk_space=1 << 40))
    assert not {*limited.tolist()} & {*groups["test"].all_batches()}


def test_packed_split_that_is_not_there_is_left_out(tmp_path, make_runtime):
    runtime = make_runtime(threads=1)
    graph = write_graph(
        tmp_path / "g",
        np.array([[0, 1], [1, 2]]),
        3,
        runtime,
        features=np.zeros((3, 1), np.float32),
        splits={"train": np.arange(3)},
    )
    sample_set = sampled(graph, tmp_path, runtime)
    placement = planned(graph, tmp_path, runtime, sample_set, PlanConfig())
    assert list(placement.predicted["epochs"]) == ["train"]


def test_graph_without_features_is_refused(tmp_path, make_runtime):
    runtime = make_runtime(threads=1)
    graph = write_graph(
        tmp_path / "g", np.array([[0, 1], [1, 2]]), 3, runtime, splits={"train": np.arange(3)}
    )
    with pytest.raises(ArgumentError, match="no features"):
        planned(graph, tmp_path, runtime, sampled(graph, tmp_path, runtime), PlanConfig())


@pytest.mark.parametrize("width", [3, 100, 1433])
def test_a_refused_memory_budget_names_the_smallest_that_works(tmp_path, make_runtime, width):
    """It names one; that one carries preparing and a whole pass; a page less is refused."""
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), width=width)
    options = {"fanouts": (4, 4), "batch_size": 20}
    prepare(graph, tmp_path / "run", **options, stop_after="sample")
    with pytest.raises(BudgetError, match=r"the smallest budget that can is \d+ bytes") as refused:
        prepare(graph, tmp_path / "run", **options, memory="600KiB", runtime=make_runtime(threads=1))
    smallest = int(re.search(r"is (\d+) bytes", str(refused.value))[1])
    with pytest.raises(BudgetError, match=f"is {smallest} bytes"):
        prepare(graph, tmp_path / "run", **options, memory=smallest - 4096)
    runtime = make_runtime(smallest)
    prepare(graph, tmp_path / "run", **options, memory=smallest, runtime=runtime)
    features = as_rows(random_features(graph.num_nodes, width, "float32"))
    with open_session(graph, make_runtime(smallest), "packed", run_folder=tmp_path / "run") as session:
        for split in ("train", "valid", "test"):
            for batch in session.batches(split):
                assert np.array_equal(as_rows(batch.x.numpy()), features[batch.graph.n_id])
                del batch
    assert runtime.budget.peak_bytes <= smallest


def test_a_refused_budget_for_more_slots_names_enough_for_them(made, tmp_path):
    graph, sample_set, runtime = made
    with pytest.raises(BudgetError, match="cannot hold 5 mini-batches") as refused:
        planned(graph, tmp_path, runtime, sample_set, PlanConfig(memory=1 << 20, slots=5))
    smallest = int(re.search(r"is (\d+) bytes", str(refused.value))[1])
    assert planned(graph, tmp_path, runtime, sample_set, PlanConfig(memory=smallest, slots=5)).buffers == 5
    with pytest.raises(BudgetError):
        planned(graph, tmp_path, runtime, sample_set, PlanConfig(memory=smallest - 4096, slots=5))


def test_a_refused_device_budget_names_the_smallest_that_works(made, tmp_path):
    graph, sample_set, runtime = made
    with pytest.raises(BudgetError, match="device memory budget of 1000 bytes") as refused:
        planned(graph, tmp_path, runtime, sample_set, PlanConfig(gpu_memory=1000))
    smallest = int(re.search(r"is (\d+) bytes", str(refused.value))[1])
    planned(graph, tmp_path, runtime, sample_set, PlanConfig(gpu_memory=smallest))
    with pytest.raises(BudgetError):
        planned(graph, tmp_path, runtime, sample_set, PlanConfig(gpu_memory=smallest - 1))


def test_a_refused_disk_space_names_the_smallest_that_works(made, tmp_path):
    graph, sample_set, runtime = made
    config = config_with_cache(sample_set, 100, 40, disk_space=1 << 40)
    with pytest.raises(BudgetError, match="the limit is 5000") as refused:
        planned(graph, tmp_path, runtime, sample_set, replace(config, disk_space=5000))
    smallest = int(re.search(r"the smallest --disk-space that does is (\d+)", str(refused.value))[1])
    placement = planned(graph, tmp_path, runtime, sample_set, replace(config, disk_space=smallest))
    assert placement.predicted["disk_bytes"] == smallest
    with pytest.raises(BudgetError):
        planned(graph, tmp_path, runtime, sample_set, replace(config, disk_space=smallest - 1))


@pytest.mark.parametrize(
    ("layout", "said", "other"),
    [
        ("cost", "with every row that is not in memory stored once", False),
        ("heuristic", "with every row that is not in memory stored once", False),
        ("packed", "as packed", True),
        ("2,1", "in layout 2,1", True),
    ],
)
def test_a_refused_disk_space_says_how_rows_would_lie(made, tmp_path, layout: str, said: str, other: bool):
    """A layout that was asked for may take more than one that is searched for: the message says that there is one."""
    graph, sample_set, runtime = made
    config = config_with_cache(sample_set, 100, 40, disk_space=5000, layout=layout)
    with pytest.raises(BudgetError, match=f"of disk {said} \\(") as refused:
        planned(graph, tmp_path, runtime, sample_set, config)
    assert ("leave the layout to --layout cost" in str(refused.value)) is other


def test_a_run_takes_no_more_disk_than_it_was_allowed(tmp_path, make_runtime):
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), width=25)
    options = {"fanouts": (4, 4), "batch_size": 20, "memory": "3MiB", "epochs": 2}
    with pytest.raises(BudgetError) as refused:
        prepare(graph, tmp_path / "run", **options, disk_space=5000)
    smallest = int(re.search(r"the smallest --disk-space that does is (\d+)", str(refused.value))[1])
    report = prepare(graph, tmp_path / "run", **options, disk_space=smallest)
    files = [f for f in (tmp_path / "run").rglob("*") if f.is_file() and f.parent.name != "history"]
    assert sum(f.stat().st_size for f in files) == report.disk_bytes <= smallest


def test_predicted_disk_bytes_are_the_large_files(tmp_path, make_runtime):
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), width=25)
    runtime = make_runtime(threads=1)
    sample_set = sampled(graph, tmp_path / "r", runtime)
    run = packed_run(graph, tmp_path / "r", runtime, config_with_cache(sample_set, 100, 40, 9))
    files = [
        run.folder / "sample" / "batches.bin",
        *(run.folder / "pack" / f"{n}.bin" for n in ("records", "host_cache", "device_cache")),
    ]
    sizes = [f.stat().st_size for f in files]
    assert sum(sizes) <= run.placement.predicted["disk_bytes"]
    assert sizes[2:] == [round_up(40 * 100), round_up(9 * 100)]
