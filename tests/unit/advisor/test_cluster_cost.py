"""What several machines are predicted to take: against what ranks do, batch by batch and message by message."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import outcrop as oc
from outcrop.advisor import cluster_cost, cost
from outcrop.advisor.cluster_cost import Cluster, PreparingWork
from outcrop.advisor.cost import LoadingWork, Workload
from outcrop.cli.main import app
from outcrop.config.cluster import parse_rate
from outcrop.errors import ArgumentError
from outcrop.loading.ranks import Ranks
from outcrop.runtime.hardware import Disk, Gpu, Hardware

HERE = Hardware("here", Disk("d", ((4096, 50_000.0), (1 << 20, 1500.0)), write_bytes_per_s=5e8), cores=8)
WORK = Workload(
    "packed", 60, 60_000, ((6e9, 600.0),), compute_s=30.0, loading=LoadingWork(6e9, 600, 6e9, 1e9, 0, 1e8)
)


def cluster(
    machines: int, processes: int, accumulate: int, rate: float = 1e9, latency: float = 0.0
) -> Cluster:
    return Cluster(HERE, machines, processes, accumulate, rate, latency)


@pytest.mark.parametrize("machines", [1, 2, 3, 5])
@pytest.mark.parametrize("processes", [1, 2])
def test_batches_and_bytes_are_those_of_ranks(machines: int, processes: int) -> None:
    """Every process sends a part of each of its batches' gradients to each other one, and its part of the sum."""
    world = machines * processes
    for accumulate in (world, world + 1, 3 * world):
        asked = cluster(machines, processes, accumulate)
        for batches in (1, 7, 60):
            shares = [Ranks(r, world, accumulate, "short").batches(batches) for r in range(world)]
            assert asked.most_batches(batches) == max(map(len, shares))
        gradient, sent = 720_720, 0
        for rank in range(processes):  # of the first machine, which has most
            own = len(Ranks(rank, world, accumulate, "short").batches(accumulate))
            for other in range(processes, world):
                sent += gradient // world * own + gradient // world
                assert other // processes != 0
        most = -(-accumulate // world)
        if all(
            len(Ranks(r, world, accumulate, "short").batches(accumulate)) == most for r in range(processes)
        ):
            assert cluster_cost.exchanged_bytes(asked, gradient) == pytest.approx(sent, rel=1e-4)


def test_one_machine_is_the_cost_model() -> None:
    found = cluster_cost.predict(cluster(1, 1, 1), WORK, 1e6)
    want = cost.predict(HERE, WORK)
    assert (found.epoch_s, found.exchange_s, found.bytes_sent, found.bound) == (
        want.epoch_s,
        0,
        0,
        want.bound,
    )
    prepared = cluster_cost.preparing_seconds(cluster(1, 1, 1), PreparingWork(9e9, 6e9, 3.0, 5e8))
    assert prepared == cost.packing_seconds(HERE, 9e9, 6e9, 5e8, 3.0)


def test_machines_divide_the_work_and_pay_for_the_exchange() -> None:
    one, four = (cluster_cost.predict(cluster(m, 1, 4, latency=1e-3), WORK, 4e8) for m in (1, 4))
    assert four.loading_s == pytest.approx(one.loading_s / 4, rel=0.1)
    # 15 steps; of a batch and of the sum three quarters go to others, at 1 GB/s; two messages of a millisecond.
    assert four.bytes_sent == 15 * 2 * 0.75 * 4e8
    assert four.exchange_s == pytest.approx(9.0 + 15 * 2e-3)
    assert four.bound == "exchange"
    assert one.exchange_s == 0


def test_each_process_has_a_gpu() -> None:
    gpu = replace(HERE, gpu=Gpu("g", 1e13, 1e12), bus_bytes_per_s=1e12)
    work = replace(WORK, reads=((0.0, 0.0),), loading=LoadingWork())
    found = [
        cluster_cost.predict(replace(cluster(1, processes, 4), hardware=gpu), work, 0.0).epoch_s
        for processes in (1, 2, 4)
    ]
    assert found == pytest.approx([30.0, 15.0, 7.5])
    on_cores = [cluster_cost.predict(cluster(1, processes, 4), work, 0.0).epoch_s for processes in (1, 4)]
    assert on_cores == pytest.approx([30.0, 30.0])  # the same cores


def test_preparing_is_bound_by_disk_network_or_shared_file_system() -> None:
    work = PreparingWork(1e12, 3e12, 100.0, 5e8)
    disk = cluster_cost.preparing_seconds(cluster(4, 1, 4, 1e10), work)
    assert disk == pytest.approx(100 + 1e12 / 4 / HERE.disk.bytes_per_s + 3e12 / 4 / 5e8)
    network = cluster_cost.preparing_seconds(cluster(4, 1, 4, 1e8), work)
    assert network == pytest.approx(100 + 3e12 / 4 * 0.75 / 1e8)
    most = cluster_cost.PreparedShare(3e11, 1e12, 8e11)  # of the machine that does most
    assert cluster_cost.preparing_seconds(cluster(4, 1, 4, 1e10), work, most) == pytest.approx(
        100 + 3e11 / HERE.disk.bytes_per_s + 1e12 / 5e8
    )
    assert cluster_cost.preparing_seconds(cluster(4, 1, 4, 1e8), work, most) == pytest.approx(
        100 + 8e11 / 1e8
    )
    shared = cluster_cost.preparing_seconds(replace(cluster(4, 1, 4, 1e10), shared_bytes_per_s=1e9), work)
    assert shared == pytest.approx(100 + 4e12 / 1e9)


def test_which_numbers_of_machines_are_predicted() -> None:
    def machines(**asked: object) -> list[int]:
        return [one.machines for one in cluster_cost.clusters(HERE, oc.ClusterConfig(**asked))]  # type: ignore[arg-type]

    assert machines(most_machines=1) == [1]
    assert machines(most_machines=6) == [1, 2, 4, 6]
    assert machines(most_machines=16, processes=2, accumulate=8) == [
        1,
        2,
        4,
    ]  # of more, some would have no batch


def test_rates_as_people_write_them() -> None:
    assert [parse_rate(text) for text in ("25Gbit/s", "100 mbit/s", "3GB/s", "1GiB/s", "8bit/s")] == [
        25e9 / 8,
        1e8 / 8,
        3e9,
        2**30,
        1,
    ]
    for text in ("25", "fast", "0Gbit/s", "25Gbit", ""):
        with pytest.raises(ArgumentError, match="rate"):
            parse_rate(text)
    for wrong in (
        {"most_machines": 0},
        {"processes": 0},
        {"accumulate": 0},
        {"latency": -1.0},
        {"network": "x"},
    ):
        with pytest.raises(ArgumentError):
            oc.ClusterConfig(**wrong)  # type: ignore[arg-type]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    parts = {
        "edges": rng.integers(0, 500, (3000, 2)),
        "features": rng.normal(size=(500, 12)).astype(np.float32),
        "labels": rng.integers(0, 3, 500),
    }
    oc.import_graph(parts, tmp_path / "g.oc", splits={"train": np.arange(300)}, progress=False)
    profile, out = tmp_path / "p.json", tmp_path / "o.json"
    command = ["advise", str(tmp_path / "g.oc"), "--fanouts", "3,3", "--batch-size", "20", "--memory", "8MiB"]
    command += ["--hidden", "16", "--machines", "3", "--network", "1Gbit/s", "--json", str(out)]
    assert not profile.exists()
    with pytest.raises(SystemExit) as ended:
        app(command)
    assert ended.value.code == 0
    said = capsys.readouterr().out
    found = json.loads(out.read_text())["cluster"]
    model = 2 * (12 * 16 + 16 * 3) + 16 + 3  # of two layers, each with two matrices and a bias
    assert found["gradient_bytes"] == 4 * model
    assert [row["machines"] for row in found["rows"]] == [1, 2, 3]
    assert [row["bytes_sent"] for row in found["rows"]] == [0, 8 * 4 * model, int(5 * 2 * 2 / 3 * 4 * model)]
    assert found["network_bytes_per_s"] == 1.25e8
    assert "gradients are" in said
