"""What training sees does not depend on where the rows lie: every mode, width, dtype and budget gives the same bits."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import outcrop
from outcrop.api.train import TrainReport, train
from outcrop.config import IoConfig, PlanConfig, SampleConfig
from outcrop.errors import BudgetError
from outcrop.loading.open import open_session
from outcrop.loading.session import MODES
from outcrop.runtime.progress import SilentProgress
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.sampler import BatchSampler
from outcrop.sampling.seeds import epoch_seeds
from outcrop.store import run as runs
from outcrop.store.graph import Graph, open_graph
from outcrop.store.minibatch import MiniBatch
from outcrop.testing import write_graph
from prepare_support import prepare
from run_support import (
    DTYPES,
    ITEM_BYTES,
    PAGE,
    WIDTHS,
    a_graph,
    as_rows,
    config_with_cache,
    packed_run,
    random_features,
    sampled,
    skewed_edges,
)

Make = Callable[..., Runtime]
SAMPLING = {"fanouts": (3, 3), "batch_size": 20, "epochs": 2}
# Rows in host and device cache of 300 nodes: none, some, all; and with a device level between. Then what is on disk.
MIXES = {
    "none": (0, 0, "packed"),
    "host": (60, 0, "packed"),
    "all": (10**6, 0, "packed"),
    "device": (0, 40, "packed"),
    "device+host": (60, 40, "packed"),
    "device+all": (10**6, 40, "packed"),
}
SHARING = {
    "disk": (0, 0, "3,0"),
    "disk+packed": (0, 0, "2,1"),
    "host+disk": (20, 0, "100,0"),
    "host+disk+packed": (20, 0, "3,1"),
    "device+disk+packed": (0, 20, "4,2"),
    "device+host+disk+packed": (10, 10, "3,1"),
}


def a_run(graph: Graph, folder: Path, runtime: Runtime, mix: str, slots: int = 2, **sampling: Any) -> dict:
    """The run that ``prepare`` would make with budgets that give this mix of levels; returns what it predicts."""
    options = {**SAMPLING, **sampling}
    row_bytes = graph.spec("features").stride_bytes
    host, device, layout = (MIXES | SHARING)[mix]
    sample_set = sampled(graph, folder, runtime, **options)
    plan = config_with_cache(sample_set, row_bytes, min(host, graph.num_nodes), device, slots, layout=layout)
    run = packed_run(graph, folder, runtime, plan, **options)
    write_run_info(graph, folder, plan, options)
    return run.placement.predicted


def write_run_info(graph: Graph, folder: Path, plan: PlanConfig, options: dict) -> None:
    moved = {name: folder / name for name in ("sample", "plan", "pack")}
    aside = folder.with_name(folder.name + ".aside")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for name, path in moved.items():
        path.rename(aside / name)
    runs.write(folder, runs.RunInfo(f"../{graph.path.name}", graph.digest(), SampleConfig(**options), plan))
    for name, path in moved.items():
        (aside / name).rename(path)
    aside.rmdir()


def collect(
    graph: Graph,
    runtime: Runtime,
    mode: str,
    folder: Path,
    check: Callable[[MiniBatch], None],
    passes: tuple[tuple[str, int], ...],
) -> list[dict[str, Any]]:
    """Goes over the passes; per pass what was read and what the loader counted."""
    out = []
    with open_session(graph, runtime, mode, run_folder=folder) as session:
        for split, epoch in passes:
            before, batches = runtime.io.counters.read_bytes, session.batches(split, epoch)
            structures = []
            for batch in batches:
                check(batch)
                structures.append(batch.graph)
                del batch
            out.append(
                {
                    "graphs": structures,
                    "read": runtime.io.counters.read_bytes - before,
                    "needed": batches.stats.bytes_needed,
                    "levels": batches.stats.rows_by_level,
                }
            )
    return out


PASSES = (("train", 0), ("train", 1), ("train", 2), ("valid", 0), ("test", 0))


@pytest.mark.exact_io
@pytest.mark.parametrize("mixes", [MIXES, SHARING], ids=["packed", "shared"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_mode_delivers_the_same_rows(
    tmp_path: Path, make_runtime: Make, width: int, dtype: str, mixes: dict
):
    """Rows are ``features[n_id]``, structures those of the sampler, and packed reads what the plan predicts."""
    nodes = 300
    runtime = make_runtime(threads=1)
    graph = a_graph(tmp_path / "g", runtime, nodes=nodes, edges=2500, width=width, dtype=dtype, train=50)
    features = as_rows(random_features(nodes, width, dtype))
    labels = np.fromfile(graph.path / "labels.bin", "<i8", nodes)
    mix = list(mixes)[(WIDTHS.index(width) + DTYPES.index(dtype)) % len(mixes)]
    predicted = a_run(graph, tmp_path / "run", runtime, mix)
    expected = drawn(graph, runtime)

    def check(batch: MiniBatch) -> None:
        assert str(batch.x.dtype) == f"torch.{dtype}"
        assert batch.x.shape == (batch.graph.num_nodes, width)
        assert np.array_equal(
            batch.x.view(torch.uint8).numpy().reshape(batch.graph.num_nodes, -1), features[batch.graph.n_id]
        )
        assert np.array_equal(batch.y.numpy(), labels[batch.graph.n_id[: batch.graph.num_seeds]])

    for mode in MODES if mixes is MIXES else ("packed", "online"):
        found = collect(graph, make_runtime(threads=1), mode, tmp_path / "run", check, PASSES)
        for (split, epoch), one in zip(PASSES, found, strict=True):
            same_structures(one["graphs"], expected[split, epoch % 2 if split == "train" else 0])
            rows = sum(g.num_nodes for g in one["graphs"])
            assert sum(one["levels"].values()) == rows
            if mode == "packed" and split in predicted["epochs"]:
                forecast = predicted["epochs"][split][epoch % len(predicted["epochs"][split])]
                assert one["read"] == forecast["bytes_read"]
                assert one["needed"] == forecast["bytes_needed"]
                assert one["levels"] == forecast["rows_by_level"]
                # Padding: two parts of whole pages per record, the second begins anywhere in its first page.
                if mixes is MIXES:
                    assert one["read"] - one["needed"] < 3 * PAGE * len(one["graphs"])


def drawn(graph: Graph, runtime: Runtime) -> dict[tuple[str, int], list]:
    config = SampleConfig(**SAMPLING)
    sampler = BatchSampler(graph, config, runtime)
    return {
        (split, epoch): list(
            sampler.batches(split, epoch, epoch_seeds(graph.split(runtime, split), config, split, epoch))
        )
        for split, epoch in (("train", 0), ("train", 1), ("valid", 0), ("test", 0))
    }


def same_structures(got: list, expected: list) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert (a.nodes_per_hop, a.edges_per_hop) == (b.nodes_per_hop, b.edges_per_hop)
        assert all(np.array_equal(getattr(a, n), getattr(b, n)) for n in ("n_id", "rowptr", "col", "labels"))


@pytest.mark.exact_io
@pytest.mark.parametrize("backend", ["uring", "pread"])
@pytest.mark.parametrize("mix", [*MIXES, *SHARING])
def test_every_mix_of_levels_reads_what_it_predicts(
    tmp_path: Path, make_runtime: Make, mix: str, backend: str
):
    graph = a_graph(
        tmp_path / "g", make_runtime(threads=1), nodes=300, edges=2500, width=602, dtype="float16", train=50
    )
    features = as_rows(random_features(300, 602, "float16"))
    predicted = a_run(graph, tmp_path / "run", make_runtime(threads=1), mix)
    runtime = make_runtime(threads=2, io=IoConfig(backend=backend))

    def check(batch: MiniBatch) -> None:
        assert np.array_equal(as_rows(batch.x.numpy()), features[batch.graph.n_id])

    found = collect(graph, runtime, "packed", tmp_path / "run", check, PASSES[:4])
    total = {"device": 0, "host": 0, "disk_cache": 0, "packed": 0}
    for (split, epoch), one in zip(PASSES, found, strict=False):
        forecast = predicted["epochs"][split][epoch % len(predicted["epochs"][split])]
        assert (one["read"], one["levels"]) == (forecast["bytes_read"], forecast["rows_by_level"])
        total = {level: rows + one["levels"][level] for level, rows in total.items()}
    with_rows = {level for level, rows in total.items() if rows}
    assert with_rows == {
        "none": {"packed"},
        "host": {"host", "packed"},
        "all": {"host"},
        "device": {"device", "packed"},
        "device+host": {"device", "host", "packed"},
        "device+all": {"device", "host"},
    }.get(mix, {level.replace("disk", "disk_cache") for level in mix.split("+")})


@pytest.mark.exact_io
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("name", ["cost", "heuristic"])
def test_every_bound_on_disk_space_is_kept_and_changes_nothing(
    tmp_path: Path, make_runtime: Make, share: float, name: str
):
    """From the least that is possible to everything packed: never more on disk, the same rows, the reads predicted."""
    width = 101
    graph = a_graph(tmp_path / "g", make_runtime(threads=1), nodes=2000, edges=20000, width=width, train=600)
    options = {"fanouts": [4, 4], "batch_size": 30, "epochs": 3, "memory": "1800KiB", "layout": name}
    with pytest.raises(BudgetError, match="smallest --disk-space") as refused:
        prepare(graph, tmp_path / "run", **options, disk_space=10_000)
    least = int(re.search(r"smallest --disk-space that does is (\d+)", str(refused.value))[1])
    packed = {**options, "layout": "packed", "disk_space": "99x"}
    everything = prepare(graph, tmp_path / "all", **packed, stop_after="plan")
    bound = int(least + share * (everything.predicted["disk_bytes"] - least))
    peak = 0

    class Watching(SilentProgress):
        def advance(self, task: str, amount: int) -> None:
            nonlocal peak
            blocks = 0
            for file in tmp_path.glob("run/**/*"):
                with suppress(FileNotFoundError):  # a journal is written beside and renamed while this looks
                    if file.is_file() and "history" not in file.parts:
                        blocks += file.stat().st_blocks
            peak = max(peak, blocks * 512)

    runtime = make_runtime("1800KiB", threads=1, progress=Watching())
    report = prepare(graph, tmp_path / "run", **options, disk_space=bound, runtime=runtime)
    assert report.disk_bytes <= report.predicted["disk_bytes"] <= bound
    assert peak <= bound + 40 * PAGE  # the file system's own rounding of small files
    assert runtime.budget.peak_bytes <= runtime.budget.limit_bytes
    levels = report.predicted["epochs"]["train"][0]["rows_by_level"]
    assert (levels["disk_cache"] > 0) == (share < 1.0)
    features = as_rows(random_features(2000, width, "float32"))

    def check(batch: MiniBatch) -> None:
        assert np.array_equal(as_rows(batch.x.numpy()), features[batch.graph.n_id])

    loading = make_runtime("1800KiB", threads=1)
    found = collect(graph, loading, "packed", tmp_path / "run", check, PASSES[:4])
    for (split, epoch), one in zip(PASSES, found, strict=False):
        forecast = report.predicted["epochs"][split][epoch]
        assert (one["read"], one["levels"]) == (forecast["bytes_read"], forecast["rows_by_level"])


@pytest.mark.exact_io
def test_read_amplification_of_larger_batches_is_padding_alone(tmp_path, make_runtime):
    """With records of a few hundred KiB reads are within 2 % and three pages a batch of what is needed."""
    runtime = make_runtime(threads=1)
    graph = a_graph(tmp_path / "g", runtime, nodes=3000, edges=30000, width=128, train=600)
    a_run(graph, tmp_path / "run", runtime, "host", fanouts=(8, 8), batch_size=200, epochs=1)
    (one,) = collect(
        graph, make_runtime(threads=1), "packed", tmp_path / "run", lambda batch: None, (("train", 0),)
    )
    assert one["needed"] <= one["read"] <= 1.02 * one["needed"] + 3 * PAGE * len(one["graphs"])


# Training.


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A second thread only waits on matrices this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def problem(tmp_path: Path, make_runtime: Make, one_thread: None) -> Graph:
    """Labels that can be learned: the sign of the first two features' means over the neighbours."""
    nodes, edges = (
        400,
        np.unique(skewed_edges(400, 3000, 3), axis=1),
    )  # each once, so that its weight is known
    features = random_features(nodes, 37, "float32", 4)
    means = np.zeros((nodes, 2))
    np.add.at(means, edges[1], features[edges[0], :2])
    order = np.random.default_rng(5).permutation(nodes)
    return write_graph(
        tmp_path / "g",
        edges,
        nodes,
        make_runtime(threads=1),
        features=features,
        labels=(means > 0) @ [1, 2],
        edge_weight=np.random.default_rng(6).random(edges.shape[1]),
        splits={"train": order[:120], "valid": order[120:150], "test": order[150:200]},
    )


def trained(graph: Graph, folder: Path, mode: str, model: str = "sage", **options: Any) -> TrainReport:
    return train(
        graph,
        run=folder,
        mode=mode,
        trace_losses=True,
        hidden=16,
        dropout=0.2,
        **{"memory": "16MiB", "epochs": 3, "seed": 3, "model": model, **options},
    )


def result(report: TrainReport) -> tuple:
    return (
        report.batch_losses,
        [e["loss"] for e in report.epochs],
        [e["valid_accuracy"] for e in report.epochs],
        report.best_epoch,
        report.test_accuracy,
    )


@pytest.mark.parametrize("model", ["sage", "gat", "gcn"])
def test_training_gives_the_same_bits_in_every_mode(problem, tmp_path, make_runtime, model):
    """Three epochs over two sampled ones: the third replays the first."""
    a_run(problem, tmp_path / "run", make_runtime(threads=1), "device+host")
    reports = {mode: trained(problem, tmp_path / "run", mode, model) for mode in MODES}
    expected = result(reports["memory"])
    assert len(expected[0]) == 3 * 6
    assert len(set(expected[0])) == 18
    for mode, report in reports.items():
        assert result(report) == expected, mode
        assert report.peak_host_bytes <= 16 << 20
    levels = {mode: report.epochs[0]["rows_by_level"] for mode, report in reports.items()}
    assert all(levels["packed"][name] > 0 for name in ("device", "host", "packed"))
    assert (
        levels["online"]["host"] > 0
    )  # all that is wanted fits the cache; with less room: unit/loading/test_online.py
    assert levels["partition"]["host"] == sum(levels["memory"].values())


@pytest.mark.parametrize(("mode", "policy"), [("dynamic", "lru"), ("dynamic", "sieve"), ("dynamic", "s3fifo"),
                                              ("belady", "sieve")])  # fmt: skip
def test_training_gives_the_same_bits_with_any_cache(problem, tmp_path, make_runtime, mode, policy):
    """In a budget that holds some of the rows; less is read than without a cache, and never more by belady."""
    a_run(problem, tmp_path / "run", make_runtime(threads=1), "none")
    expected = trained(problem, tmp_path / "run", "ondisk")
    memory = {"memory": "500KiB"}
    report = trained(problem, tmp_path / "run", mode, cache_policy=policy, **memory)
    assert result(report) == result(expected)
    assert report.peak_host_bytes <= 500 << 10
    assert report.peak_by_tag["row-cache"] > 0
    rows = [e["rows_by_level"] for e in report.epochs]
    assert all(e["host"] > 0 for e in rows)
    for ours, theirs in zip(report.epochs, expected.epochs, strict=True):
        assert ours["bytes_needed_from_disk"] == 37 * 4 * ours["rows_by_level"]["disk"]
        assert ours["bytes_needed_from_disk"] < theirs["bytes_needed_from_disk"]


@pytest.mark.parametrize("sampler", ["labor", "shadow", "weighted"])
def test_training_gives_the_same_bits_with_every_sampler(problem, tmp_path, make_runtime, sampler):
    """As above, with a model of more layers than hops where the sampler allows it; and drawn from disk on the fly."""
    layers = 3 if sampler == "shadow" else None
    a_run(problem, tmp_path / "run", make_runtime(threads=1), "device+host", sampler=sampler, seed=3)
    expected = result(trained(problem, tmp_path / "run", "memory", layers=layers))
    assert len(set(expected[0])) == 18
    for mode in ("packed", "online", "memmap"):
        report = trained(problem, tmp_path / "run", mode, layers=layers, topology="paged")
        assert result(report) == expected, mode
    fly = train(
        problem,
        mode="online",
        trace_losses=True,
        hidden=16,
        seed=3,
        dropout=0.2,
        memory="16MiB",
        epochs=3,
        fanouts=(3, 3),
        batch_size=20,
        sample_epochs=2,
        sampler=sampler,
        layers=layers,
        topology="paged",
    )
    assert result(fly) == expected


@pytest.mark.parametrize("mix", MIXES)
def test_training_gives_the_same_bits_for_every_budget(problem, tmp_path, make_runtime, mix):
    a_run(problem, tmp_path / "reference", make_runtime(threads=1), "none")
    expected = result(trained(problem, tmp_path / "reference", "memmap"))
    a_run(problem, tmp_path / "run", make_runtime(threads=1), mix, slots=3)
    assert result(trained(problem, tmp_path / "run", "packed")) == expected


@pytest.mark.parametrize("slots", [2, 3, 6])
@pytest.mark.parametrize("backend", ["uring", "pread"])
def test_training_gives_the_same_bits_for_any_slots_and_backend(
    problem, tmp_path, make_runtime, monkeypatch, slots, backend
):
    a_run(problem, tmp_path / "reference", make_runtime(threads=1), "none")
    expected = result(trained(problem, tmp_path / "reference", "memory"))
    monkeypatch.setenv("OUTCROP_IO_BACKEND", backend)
    a_run(problem, tmp_path / "run", make_runtime(threads=2), "host", slots=slots)
    for mode in ("packed", "online", "ondisk"):
        report = trained(problem, tmp_path / "run", mode)
        assert report.io_backend == {"uring": "io_uring", "pread": "pread"}[backend]
        assert result(report) == expected


def test_drawing_on_the_fly_equals_a_run(problem, tmp_path, make_runtime):
    a_run(problem, tmp_path / "run", make_runtime(threads=1), "host", seed=3)
    expected = result(trained(problem, tmp_path / "run", "packed", epochs=5))
    for mode in ("online", "memory", "memmap", "ondisk", "dynamic", "partition"):
        report = train(
            problem,
            mode=mode,
            trace_losses=True,
            hidden=16,
            seed=3,
            dropout=0.2,
            memory="16MiB",
            epochs=5,
            fanouts=(3, 3),
            batch_size=20,
            sample_epochs=2,
        )
        assert result(report) == expected, mode


def test_replayed_epochs_replay(problem, tmp_path, make_runtime):
    """One sampled epoch, four trained: batches repeat, so does what is read."""
    predicted = a_run(problem, tmp_path / "run", make_runtime(threads=1), "host", epochs=1)
    report = trained(problem, tmp_path / "run", "packed", epochs=4)
    assert result(report) == result(trained(problem, tmp_path / "run", "memory", epochs=4))
    assert {e["bytes_needed_from_disk"] for e in report.epochs} == {
        predicted["epochs"]["train"][0]["bytes_needed"]
    }
    assert result(trained(problem, tmp_path / "run", "packed", epochs=4)) == result(report)
    assert result(trained(problem, tmp_path / "run", "packed", epochs=4, seed=4)) != result(report)


@pytest.mark.parametrize("mix", ["none", "host", "device+host"])
def test_training_within_the_planned_budget(problem, tmp_path, mix):
    """``prepare`` and ``train`` as users call them, each inside its limit."""
    gpu = "60KiB" if "device" in mix else 0
    memory = {"none": "1400KiB", "host": "1800KiB", "device+host": "1800KiB"}[mix]
    outcrop.prepare(
        problem, tmp_path / "run", fanouts=(3, 3), batch_size=10, epochs=2, memory=memory, gpu_memory=gpu
    )
    report = train(problem, run=tmp_path / "run", mode="packed", epochs=3, hidden=16, trace_losses=True)
    limit = report.budget["memory"]
    assert limit is not None
    assert report.peak_host_bytes <= limit
    expected = train(
        problem, run=tmp_path / "run", mode="memory", memory="16MiB", epochs=3, hidden=16, trace_losses=True
    )
    assert result(report) == result(expected)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_features_that_are_no_numbers_stay_what_they_are(tmp_path, make_runtime, dtype):
    """Import may be told to accept them; every bit of a NaN, infinity or negative zero arrives."""
    nodes, runtime = 200, make_runtime(threads=1)
    bits = np.random.default_rng(0).integers(0, 256, (nodes, 9 * ITEM_BYTES[dtype]), np.uint8)
    features = bits.view(dtype)
    features[:4] = [[np.nan], [np.inf], [-np.inf], [-0.0]]
    source = tmp_path / "source"
    source.mkdir()
    np.save(source / "edges.npy", skewed_edges(nodes, 1500, 0).T)
    np.save(source / "features.npy", features)
    np.save(source / "labels.npy", np.arange(nodes) % 3)
    graph = outcrop.import_graph(
        f"arrays:{source}",
        tmp_path / "g",
        outcrop.ImportConfig(allow_nonfinite=True, train_fraction=0.3, valid_fraction=0.1),
    )
    assert not np.isfinite(features).all()
    graph = open_graph(graph.path)
    a_run(graph, tmp_path / "run", runtime, "device+host")

    def check(batch: MiniBatch) -> None:
        assert np.array_equal(as_rows(batch.x.numpy()), bits[batch.graph.n_id])

    for mode in MODES:
        assert collect(graph, make_runtime(threads=1), mode, tmp_path / "run", check, PASSES)


def test_torch_geometric_batches_of_a_run(problem, tmp_path):
    run = outcrop.prepare(problem, tmp_path / "run", fanouts=(3, 3), batch_size=20, memory="3MiB")
    features = np.fromfile(problem.path / "features.bin", "<f4", 400 * 37).reshape(400, 37)
    for mode in MODES:
        count = 0
        for data in run.loader(0, mode=mode):
            assert np.array_equal(data.x.numpy(), features[data.n_id.numpy()])
            count += 1
            del data
        assert count == 6


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("mode", ["online", "dynamic", "belady", "ondisk", "memmap"])
def test_an_open_session_has_all_the_memory_that_it_needs(
    tmp_path: Path, make_runtime: Make, mode: str
) -> None:
    """Caches take what is left of the budget, down to a row: nothing may be wanted after that."""
    nodes = 24_000
    graph = write_graph(
        tmp_path / "g",
        skewed_edges(nodes, 30_000, 3),
        nodes,
        make_runtime(threads=1),
        features=random_features(nodes, 64, "float32", 4),
        labels=np.arange(nodes) % 3,
        splits={"train": np.arange(20_000), "valid": np.arange(20_000, nodes)},
    )
    prepare(graph, tmp_path / "run", memory="64MiB", fanouts=(2,), batch_size=1000, seed=2)
    opened = 0
    for budget in range(2 << 20, 8 << 20, 700_001):
        with Runtime(budget) as runtime:
            try:
                session = open_session(graph, runtime, mode, run_folder=tmp_path / "run")
            except BudgetError:
                continue
            opened += 1
            with session:
                assert [sum(1 for _ in session.batches(split, 0)) for split in ("train", "valid")] == [20, 4]
    assert opened >= 3
