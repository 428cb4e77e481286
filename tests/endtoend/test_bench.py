"""The benchmarks on graphs of a size at which they measure nothing: what they count must be right all the same."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embed_support import knowledge_graph, random_triples
from outcrop.bench import (
    checks,
    curves,
    embed,
    epoch,
    infer,
    layout,
    paranoid,
    pipeline,
    quality,
    small_batches,
)
from outcrop.bench import prepare as preparing
from outcrop.bench.epoch import Setting, ensure_graph
from outcrop.bench.graphs import GraphShape
from outcrop.errors import ArgumentError, BudgetError, ChecksumError
from outcrop.loading.open import open_session
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph
from outcrop.store.placement import open_placement
from prepare_support import prepare

SHAPE = GraphShape("tiny", nodes=20_000, edges=200_000, features=64, train_fraction=0.05)
SETTING = Setting(SHAPE, fanouts="5,5", batch_size=40, cap=0.5, hidden=16, epochs=2, rounds=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


def silent(text: str) -> None:
    assert text


@pytest.mark.slow
def test_layout_counts_what_planning_counts(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(layout, "_EPOCHS", 3)
    monkeypatch.setattr(layout, "_SEGMENTS", (10,))
    result = layout.run(folder, SETTING, silent)
    assert set(result["reordering"]) == {"whole", "10 batches"}
    for case in result["reordering"].values():
        assert case["amplification"] <= case["not_reordered"]
    segmented = result["reordering"]["10 batches"]
    assert segmented["amplification"] < result["reordering"]["whole"]["amplification"]
    shares = list(result["access_shares"].values())
    assert shares == sorted(shares)
    assert len(result["search"]) >= 1
    assert len(result["rows"]) == len(result["search"])
    for found in result["search"].values():
        if found["heuristic"] and found["brute_force"]:
            assert found["against_brute_force"] <= 1.05
    # The same layout through a plan reads the same rows.
    graph = open_graph(ensure_graph(folder, SHAPE, silent))
    options = {"fanouts": [5, 5], "batch_size": 40, "epochs": 3, "memory": SETTING.memory}
    with Runtime() as runtime:  # with room for all nodes at once, as the benchmark has
        prepare(graph, folder / "check.run", **options, layout="10,1", stop_after="plan", runtime=runtime)
        placement = open_placement(runtime, folder / "check.run" / "plan")
    wants = placement.files[0].num_packed.sum() + placement.files[0].cached_rows[:, 2].sum()
    read = placement.files[0].num_packed.sum() * 256 + placement.files[0].disk_pages.sum() * 4096
    assert segmented["amplification"] == pytest.approx(read / (wants * 256), rel=1e-12)


def test_what_spooling_takes_is_part_of_every_epoch():
    epochs = [{"seconds": 1.0, "load_seconds": 0.1, "bytes_read": 100} for _ in range(4)]
    pools = [{"waited_seconds": 0.5, "bytes_read": 0}, {"waited_seconds": 2.5, "bytes_read": 40}]
    spread = {"epochs": epochs, "pools": pools, "prepare": {"seconds": 5.0, "bytes_read": 60}}
    epoch.count_spooling(spread)
    assert epochs == [{"seconds": 3.0, "load_seconds": 2.1, "bytes_read": 125}] * 4
    bare = {"epochs": [{"seconds": 1.0, "load_seconds": 0.1, "bytes_read": 100}], "pools": [], "prepare": {}}
    epoch.count_spooling(bare)
    assert bare["epochs"][0]["seconds"] == 1.0


def test_like_is_compared_with_like(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Replayed batches with those replayed in memory, new ones with new ones, which are measured for that."""
    times = {
        "memory": 1.0,
        "packed": 1.5,
        "fresh": 6.0,
        "refresh": 8.0,
        "memory-fresh": 2.0,
        "packed-fresh": 3.0,
    }

    def trained(graph: Path, run: Path, setting: Setting, mode: str, epochs: int) -> dict:
        record = {"seconds": times[mode], "load_seconds": 0.0, "bytes_read": 1, "read_ops": 1}
        record |= {"bytes_needed_from_disk": 1, "rows_by_level": {}}
        counts = {"peak_host_bytes": 0, "peak_process_bytes": 0, "distinct_epochs": 1}
        return {"epochs": [record] * 2, "batch_losses": [0.0], **counts}

    monkeypatch.setattr(epoch, "train_once", trained)
    monkeypatch.setattr(epoch, "ensure_run", lambda *_: (folder, {}))
    monkeypatch.setattr(epoch, "bare_epoch_seconds", lambda *_: 0.5)
    result = epoch.epoch(folder, SETTING, ["memory", "packed", "fresh", "refresh", "packed-fresh"], silent)
    ratios = {mode: row["against_memory"] for mode, row in result["modes"].items()}
    want = {
        "memory": 1.0,
        "packed": 1.5,
        "fresh": 3.0,
        "refresh": 4.0,
        "packed-fresh": 1.5,
        "memory-fresh": 1.0,
    }
    assert ratios == want
    alone = epoch.epoch(folder, SETTING, ["packed", "memory"], silent)
    assert list(alone["modes"]) == ["packed", "memory"]


@pytest.mark.slow
def test_modes_that_draw_their_own_batches_begin_with_those_of_the_run(folder: Path):
    modes = ["memory", "packed", "online", "fresh", "direct", "refresh", "packed-fresh"]
    result = epoch.epoch(folder, SETTING, modes, silent)
    assert result["first_20_losses_identical"]
    rows = result["modes"]
    assert all(row["bytes_read"] > 0 for mode, row in rows.items() if not mode.startswith("memory"))
    new = {mode for mode, row in rows.items() if row["distinct_epochs"] == SETTING.epochs}
    assert new == {"fresh", "refresh", "packed-fresh", "memory-fresh"}
    assert not list(folder.glob("*.oc.run"))


@pytest.mark.slow
def test_pipeline_compares_the_same_losses(folder: Path):
    result = pipeline.run(folder, SETTING, ["packed", "online"], silent)
    assert len(result["cases"]) == 5
    for case in result["cases"].values():
        assert case["identical_losses"]
        assert case["sequential"]["bytes_read"] == case["overlapped"]["bytes_read"] > 0
        assert case["sequential"]["stages"]["compute"] > 0 < case["overlapped"]["stages"]["read"]
    assert list(pipeline.run(folder, SETTING, ["online"], silent)["cases"]) == ["online, full rate"]
    with pytest.raises(ArgumentError, match="memory"):
        pipeline.run(folder, SETTING, ["memory"], silent)


def test_small_batches_want_a_few_more_rows_of_the_same_seeds(folder: Path):
    cases = small_batches.run(folder, replace(SETTING, cap=2.0), silent)["cases"]
    rows = [cases[size]["rows"] for size in ("1024", "256", "64")]
    assert rows[0] < rows[1] < rows[2] < 3 * rows[0]
    batches = [cases[size]["batches"] for size in ("1024", "256", "64")]
    assert batches == [4, 10, 36]  # twice 1000 seeds, and 100 of two splits
    assert all(case["prepare_ns_per_row"] > 0 < case["load_ns_per_row"] for case in cases.values())
    assert cases["1024"]["prepare_against_1024"] == cases["1024"]["load_against_1024"] == 1


@pytest.mark.slow
def test_inference_in_memory_reads_and_writes_everything_once(folder: Path):
    setting = replace(SETTING, shape=replace(SHAPE, name="infer", features=256), cap=0.7)
    result = infer.run(folder, setting, silent, models=("sage", "gcn"), layers=(2,))
    for case in result["cases"]:
        assert case["memory"]["predicted"]
        assert 1 <= case["memory"]["against_floor"] < 1.1
        assert case["capped"]["bytes_moved"] >= case["memory"]["bytes_moved"]
        assert case["capped"]["peak_host_bytes"] <= setting.memory
        assert case["largest_difference"] < 1e-4
    evaluation = result["evaluation"]
    assert (evaluation["train_seeds"], evaluation["valid_seeds"]) == (200, 1000)
    assert len(evaluation["seconds"]["train.validate"]) == 1


def test_packing_batch_by_batch_writes_the_same_rows(folder: Path):
    result = preparing.run(folder, SETTING, silent)
    batched, naive = result["cases"]["batched"], result["cases"]["batch by batch"]
    assert naive["bytes_read"] > batched["bytes_read"] * 0.5
    assert naive["bytes_written"] > 0
    assert result["speed_up"] > 0


@pytest.mark.slow
def test_embed_compares_the_same_trainings(folder: Path, tmp_path: Path, make_runtime, monkeypatch):
    monkeypatch.setattr(embed, "cases", lambda nodes: [embed.Case("few edges", nodes, nodes // 2)])
    knowledge = knowledge_graph(
        tmp_path, make_runtime(), train=random_triples(40, 3, 500), test=random_triples(40, 3, 40)
    )
    result = embed.run(folder, 2000, [knowledge], 1, silent)
    assert [r[0] for r in result["rows"]] == ["few edges"]
    for case in result["cases"].values():
        assert case["identical_losses"]
        assert case["swapping"]["bytes_read"] > case["resident"]["bytes_read"]
        assert len(case["swapping"]["waits"]) > 0
        assert case["bare_seconds"] > 0
    real = result["graphs"]["kg"]
    assert 0 < real["filtered_mrr"] <= 1
    assert real["edges"] == 500


@pytest.mark.slow
def test_embed_large_keeps_to_its_limit(folder: Path):
    result = embed.large(folder, embed.Large(100_000, epochs=1), silent)
    assert result["edges"] == result["epochs"][0]["edges"] > 150_000
    assert result["peak_host_bytes"] <= result["memory_bytes"] < result["table_bytes"]
    assert len(result["rows"][0]) == len(result["columns"])


@pytest.mark.slow
def test_curves_have_a_point_for_each_case(folder: Path):
    curve = curves.memory_curve(folder, SETTING, ["packed", "dynamic"], [0.001, 0.5, 0.9], silent)
    assert [p["cap"] for p in curve["modes"]["packed"]] == [0.5, 0.9]
    reads = [p["bytes_read"] for p in curve["modes"]["dynamic"]]
    assert reads == sorted(reads, reverse=True)
    scaled = curves.scale(folder, replace(SETTING, cap=1.5), [20_000, 40_000, 80_000], silent)
    assert [p["nodes"] for p in scaled["points"]] == [20_000, 40_000, 80_000]
    moved = [p["prepare_bytes"] for p in scaled["points"]]
    assert moved == sorted(moved)
    assert max(p["peak_host_bytes"] for p in scaled["points"]) <= scaled["memory"]


@pytest.mark.slow
def test_quality_finds_no_difference(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quality, "SEEDS", 2)
    graph = ensure_graph(folder, SHAPE, silent)
    result = quality.run([graph], folder, ["memory", "packed", "online"], SETTING, silent)
    found = result["graphs"]["tiny"]
    assert found["identical"]
    assert found["modes"]["packed"] == found["modes"]["memory"]
    assert found["modes"]["packed"]["test_accuracy"] > 0.3
    with pytest.raises(ArgumentError, match="--graph"):
        quality.run([], folder, ["memory"], SETTING, silent)


@pytest.mark.slow
def test_quality_of_features_in_few_bits(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quality, "SEEDS", 1)
    graph = ensure_graph(folder, SHAPE, silent)
    few = ["int8:column", "uint4:row"]
    result = quality.run([graph], folder, ["memory", "packed"], SETTING, silent, few)
    assert sorted(result["graphs"]) == ["tiny", "tiny-int8-column", "tiny-uint4-row"]
    sizes = [one["feature_bytes"] for one in result["graphs"].values()]
    assert sizes[0] == 4 * sizes[1] > 4 * SHAPE.nodes * (SHAPE.features // 2 + 8) == 4 * sizes[2]
    assert all(one["identical"] for one in result["graphs"].values())
    opened = open_graph(folder / "tiny-int8-column.oc")
    assert opened.num_edges == open_graph(graph).num_edges
    with pytest.raises(ArgumentError, match="features that are int8, a scale for each column"):
        quality.quantised(opened, "uint4:row", folder, silent)


def test_stages_one_after_another_deliver_the_same(folder: Path):
    graph = open_graph(ensure_graph(folder, SHAPE, silent))
    run = folder / "sequence.run"
    prepare(graph, run, fanouts=[5, 5], batch_size=40, memory=SETTING.memory, layout="5,1")
    with (
        Runtime(SETTING.memory) as runtime,
        open_session(graph, runtime, "packed", run_folder=run) as session,
    ):
        expected = [batch.x.clone() for batch in session.batches("train")]
        got = [batch.x.clone() for batch in session.batches("train", overlapped=False)]
        assert len(got) == len(expected)
        assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(got, expected, strict=True))
        with pytest.raises(BudgetError, match="held by the caller"):
            list(session.batches("train", overlapped=False))


def test_paranoid_compares_the_same_training_with_and_without(folder: Path):
    result = paranoid.run(folder, replace(SETTING, rounds=1), silent)
    assert list(result["cases"]) == ["2 epochs, packed", "2 epochs, online", "2 epochs, memory"]
    assert all(
        case[kind]["cpu_seconds"] > 0 for case in result["cases"].values() for kind in ("paranoid", "plain")
    )
    assert result["checksums"]["bytes"] == 4 * SHAPE.nodes


def test_checks_compares_what_is_checked_with_what_is_not(folder: Path, tmp_path: Path):
    result = checks.run(folder, replace(SETTING, rounds=1), silent)
    assert list(result["cases"]) == ["prepare", "2 epochs, online"]
    assert all(
        case[kind]["cpu_seconds"] > 0
        for case in result["cases"].values()
        for kind in ("checked", "unchecked")
    )
    assert not (folder / "tiny-unchecked.oc").exists()

    checked = Path(shutil.copytree(ensure_graph(folder, SHAPE, silent), tmp_path / "checked.oc"))
    unchecked = checks.without_checks(checked, tmp_path / "unchecked.oc")
    with (checked / "features.bin").open("r+b") as file:  # the same file in both
        file.seek(5)
        file.write(b"\xa5")
    options = {"fanouts": [5, 5], "batch_size": 40, "epochs": 1, "memory": SETTING.memory, "progress": False}
    with pytest.raises(ChecksumError, match=r"features\.bin"):
        prepare(checked, tmp_path / "checked.run", **options)
    prepare(unchecked, tmp_path / "unchecked.run", **options)
