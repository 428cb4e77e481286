"""Several processes train one model: losses, weights and scores of one process, for any number of them, and killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from artifact_support import manifest_at
from outcrop.nn import checkpoint as checkpoints
from outcrop.store.tensors import digest

QUIET = oc.Observer(progress=False)
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
LEARN = ("--hidden", "16", "--dropout", "0.3", "--epochs", "3", "--seed", "5", "--trace-losses")
BATCHES = 21
BESIDE_FAKETIME = Path(sys.prefix) / "beside-faketime"  # where scripts/setup.sh installs it


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty-one batches, of which some seeds have no labels."""
    folder, rng = tmp_path_factory.mktemp("ranks"), np.random.default_rng(0)
    labels = rng.integers(0, 3, 900)
    labels[rng.random(900) < 0.2] = -1
    labels[40:60] = -1  # all of a batch, where they are not shuffled
    parts = {
        "edges": rng.integers(0, 900, (8000, 2)),
        "features": rng.normal(size=(900, 12)).astype(np.float32),
        "labels": labels,
    }
    splits = {"train": np.arange(420), "valid": np.arange(420, 530), "test": np.arange(530, 660)}
    return oc.import_graph(parts, folder / "g.oc", splits=splits, progress=False).path


@pytest.fixture(scope="module")
def run(graph: Path) -> Path:
    sampling = oc.SampleConfig(fanouts=(4, 3), batch_size=20)
    out = graph.parent / "g.run"
    return oc.prepare(graph, out, sampling=sampling, epochs=3, memory="2MiB", observer=QUIET).path


def torchrun(world: int, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"),
        *more,
    ]


def ended(
    command: Sequence[str], environment: dict[str, str] = ENVIRONMENT
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def trained(world: int, graph: Path, out: Path, *options: str, steps: int | None = 4) -> dict[str, Any]:
    """What ``outcrop train`` reports, with the digests of the weights in its checkpoint."""
    start = [sys.executable] if world == 1 else torchrun(world)
    accumulate = () if steps is None else ("--accumulate", str(steps))
    done = ended(
        [
            *(*start, "-m", "outcrop", "--", "train", str(graph), "--json", str(out / "report.json")),
            *("--checkpoint", str(out / "ckpt"), *LEARN, *accumulate, *options),
        ]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = checkpoints.read(out / "ckpt" / checkpoints.LAST)
    report = json.loads((out / "report.json").read_text())
    return report | {"weights": digest(last.model), "optimizer": digest(last.optimizer)}


def assert_equal(found: dict[str, Any], want: dict[str, Any]) -> None:
    same = ("batch_losses", "best_epoch", "test_accuracy", "test_metric", "weights", "optimizer")
    assert {name: found[name] for name in same} == {name: want[name] for name in same}
    for own, other in zip(found["epochs"], want["epochs"], strict=True):
        for name in ("loss", "valid_accuracy", "rows_by_level", "bytes_needed_from_disk"):
            assert own[name] == other[name], (own["epoch"], name)


@pytest.fixture(scope="module")
def want(graph: Path, run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = trained(1, graph, tmp_path_factory.mktemp("one"), "--run", str(run))
    assert len(found["batch_losses"]) == 3 * BATCHES
    assert found["ranks"] == {}
    return found


@pytest.mark.parametrize(
    "world", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)
def test_any_number_of_ranks_learns_what_one_process_does(
    graph: Path, run: Path, want: dict[str, Any], tmp_path: Path, world: int
) -> None:
    found = trained(world, graph, tmp_path, "--run", str(run))
    assert_equal(found, want)
    assert found["ranks"]["world"] == world
    assert found["ranks"]["accumulate"] == 4
    for own, other in zip(found["epochs"], want["epochs"], strict=True):
        assert own["bytes_read"] == other["bytes_read"] == sum(own["ranks"]["bytes_read"])
        assert min(own["ranks"]["bytes_read"]) > 0
    plan = json.loads((run / "run.json").read_text())["plan"]["memory"]
    assert found["peak_host_bytes"] <= world * plan
    cached = (run / "pack" / "host_cache.bin").stat().st_size
    assert sum(found["ranks"]["peak_host_bytes"]) <= world * want["peak_host_bytes"] - (world - 1) * cached


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["online", "memory"])
def test_modes_that_draw_give_each_rank_its_own_batches(graph: Path, tmp_path: Path, mode: str) -> None:
    options = ("--mode", mode, "--fanouts", "4,3", "--batch-size", "20")
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = trained(1, graph, tmp_path / "one", *options)
    two = trained(2, graph, tmp_path / "two", *options)
    same = ("batch_losses", "test_accuracy", "weights", "optimizer")
    assert {name: two[name] for name in same} == {name: one[name] for name in same}


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_pools_are_refreshed_for_all(graph: Path, tmp_path: Path, world: int) -> None:
    """One process prepares the next epoch while all train this one; what they learn is what one process learns."""
    options = ("--fanouts", "4,3", "--batch-size", "20", "--memory", "256MiB", "--sample-epochs", "1")
    found = []
    for processes in (1, world):
        out = tmp_path / str(processes)
        out.mkdir()
        found.append(trained(processes, graph, out, *options, "--refresh", "--run", str(out / "pools")))
        assert sorted(path.name for path in (out / "pools").iterdir()) == ["eval", "pool-2"]
    assert_equal(found[1], found[0])
    assert [pool["pool"] for pool in found[1]["pools"]] == [0, 1, 2]
    assert all(pool["beside"] for pool in found[1]["pools"])
    assert found[1]["distinct_epochs"] == 3


@pytest.mark.slow
def test_pools_need_memory_beside_training(graph: Path, tmp_path: Path) -> None:
    options = ("--fanouts", "4,3", "--batch-size", "20", "--memory", "400KiB", "--refresh", *LEARN)
    done = ended(
        [*torchrun(2), "-m", "outcrop", "--", "train", str(graph), "--run", str(tmp_path / "pools"), *options]
    )
    assert done.returncode != 0
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr.replace(
        'Traceback (most recent call last):\n  File "<frozen runpy>', ""
    )


@pytest.mark.slow
def test_the_first_rank_chooses_for_all(graph: Path, tmp_path: Path) -> None:
    found = trained(2, graph, tmp_path, "--memory", "auto", "--fanouts", "4,3", "--batch-size", "20")
    one = trained(1, graph, tmp_path, "--fanouts", "4,3", "--batch-size", "20", "--mode", "memory")
    assert found["batch_losses"] == one["batch_losses"]


@pytest.mark.slow
def test_another_number_of_ranks_goes_on(
    graph: Path, run: Path, want: dict[str, Any], tmp_path: Path
) -> None:
    """Two ranks, then three, then one: at steps within epochs, and the steps stay those of the checkpoint."""
    stops = (("2", 4), ("3", 9))
    for world, updates in stops:
        done = ended(
            torchrun(int(world), str(SCRIPT), str(graph), str(run), str(tmp_path / "ckpt"), str(updates)),
        )
        assert "stopped on purpose" in done.stderr, done.stderr
    found = trained(1, graph, tmp_path, "--run", str(run), steps=None)
    assert_equal(found, want)


@pytest.mark.slow
def test_ranks_go_on_from_a_checkpoint_after_so_many_steps(
    graph: Path, run: Path, want: dict[str, Any], tmp_path: Path
) -> None:
    """Of six steps an epoch, the fourth of the second one: two of two, and nine are done."""
    command = [*torchrun(2), str(SCRIPT), str(graph), str(run), str(tmp_path / "ckpt"), "9"]
    done = ended(command, ENVIRONMENT | {"STEPS": "2"})
    assert "stopped on purpose" in done.stderr, done.stderr
    meta = checkpoints.read(tmp_path / "ckpt" / checkpoints.LAST).meta
    assert (meta.epochs_done, meta.partial["batch"]) == (1, 8)
    found = trained(2, graph, tmp_path, "--run", str(run), "--checkpoint-steps", "2")
    assert_equal(found, want)


SCRIPT = Path(__file__).parents[1] / "ranks_script.py"


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("update", [1, 7, 16])
def test_a_rank_that_is_killed_is_started_again(
    graph: Path, run: Path, want: dict[str, Any], tmp_path: Path, rank: int, update: int
) -> None:
    start = torchrun(3, "--max-restarts=2")
    environment = ENVIRONMENT | {"KILLED_RANK": str(rank), "KILLED_MARK": str(tmp_path / "killed")}
    done = ended(
        [*start, str(SCRIPT), str(graph), str(run), str(tmp_path / "ckpt"), str(update)], environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "killed").exists()
    last = checkpoints.read(tmp_path / "ckpt" / checkpoints.LAST)
    assert (digest(last.model), last.meta.batch_losses) == (want["weights"], want["batch_losses"])


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100))
def test_ranks_are_killed_by_the_clock(
    graph: Path, run: Path, want: dict[str, Any], tmp_path: Path, seed: int
) -> None:
    """One rank or another, at any moment, once or twice; the same command goes on in the end."""
    rng = np.random.default_rng(seed)
    command = [
        *torchrun(int(rng.integers(2, 5))),
        str(SCRIPT),
        str(graph),
        str(run),
        str(tmp_path / "ckpt"),
        "0",
    ]
    for _ in range(int(rng.integers(1, 3))):
        with subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as started:
            time.sleep(rng.uniform(2, 9))
            ranks = [int(pid) for pid in children(started.pid)]
            if ranks:
                with suppress(ProcessLookupError):
                    os.kill(int(rng.choice(ranks)), signal.SIGKILL)
            started.wait(120)
    done = ended(command)
    assert done.returncode == 0, done.stderr
    last = checkpoints.read(tmp_path / "ckpt" / checkpoints.LAST)
    assert (digest(last.model), last.meta.batch_losses) == (want["weights"], want["batch_losses"])


def children(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("loss", r"NumericError: epoch 0, batch \d+: the loss is"),
        (
            "options",
            r"ranks 0 and 1 do not train the same: they differ in weight_decay \(0.0, and 0.1\); start",
        ),
        ("evaluations", r"they differ in evaluate_every \(1, and 2\)"),
        ("steps", r"2 processes train, and a step has 1 batches \(--accumulate\)"),
        ("folder", r"is not the same folder for rank 1 as for rank 0"),
        ("mode", r"mode belady goes over whole epochs, which cannot be divided"),
        ("callback", r"rank 0 of 2 failed, and training ended: ValueError: of a callback"),
    ],
)
def test_what_is_wrong_in_one_rank_is_said_by_all(
    graph: Path, run: Path, tmp_path: Path, which: str, said: str
) -> None:
    (tmp_path / "logs").mkdir()
    start = torchrun(2, f"--log-dir={tmp_path / 'logs'}", "--redirects=3")
    done = ended(
        [*start, str(SCRIPT), str(graph), str(run), str(tmp_path / "ckpt"), "0"],
        ENVIRONMENT | {"WRONG": which},
    )
    assert done.returncode != 0
    texts = [path.read_text() for path in sorted((tmp_path / "logs").rglob("std*.log"))]
    both = "\n".join(texts)
    assert re.search(said, both), both
    assert "Connection closed" not in both.replace("lost a process", ""), both


@pytest.mark.slow
def test_a_callback_ends_the_training_of_all(graph: Path, run: Path, tmp_path: Path) -> None:
    """It is called in rank 0 alone; the others end with the same epoch."""
    done = ended(
        [*torchrun(2), str(SCRIPT), str(graph), str(run), str(tmp_path / "ckpt"), "0"],
        ENVIRONMENT | {"WRONG": "ending"},
    )
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"rank {rank} trained 2 epochs, ended early: True" in done.stdout


@pytest.mark.slow
def test_a_machine_keeps_its_budget(graph: Path, tmp_path: Path) -> None:
    """The smallest budget that is named works for both processes together, and no byte less does."""
    run = tmp_path / "small.run"
    sampling = oc.SampleConfig(fanouts=(4, 3), batch_size=20)
    limits = oc.Limits(memory="3MiB", processes=2)
    oc.prepare(graph, run, sampling=sampling, limits=limits, epochs=1, observer=QUIET)
    found = trained(2, graph, tmp_path, "--run", str(run))
    assert found["budget"]["memory"] == 3 << 20
    assert found["peak_host_bytes"] == sum(found["ranks"]["peak_host_bytes"]) <= 3 << 20
    start = [
        *torchrun(2),
        "-m",
        "outcrop",
        "--",
        "train",
        str(graph),
        "--run",
        str(run),
        "--epochs",
        "1",
        "--quiet",
    ]
    refused = ended([*start, "--memory", "64KiB"])
    assert refused.returncode != 0
    named = re.search(r"the smallest budget that can is (\d+) bytes", refused.stderr)
    assert named, refused.stderr
    least = int(named[1])
    assert ended([*start, "--memory", str(least)]).returncode == 0
    again = ended([*start, "--memory", str(least - 1)])
    assert f"the smallest budget that can is {least} bytes" in again.stderr


def test_a_plan_for_several_processes_is_that_of_one_with_a_part_each(graph: Path, tmp_path: Path) -> None:
    """Buffers are for each process; what is left to each caches rows for all of them."""
    sampling = oc.SampleConfig(fanouts=(4, 3), batch_size=20)
    plans = []
    for name, limits in (
        ("one", oc.Limits(memory="1500KiB")),
        ("two", oc.Limits(memory="3000KiB", processes=2)),
    ):
        oc.prepare(graph, tmp_path / name, sampling=sampling, limits=limits, epochs=1, observer=QUIET)
        manifest = manifest_at(tmp_path / name / "plan" / "manifest.json")
        plans.append((manifest["attributes"]["memory"], manifest["config"]))
    (one, of_one), (two, of_two) = plans
    assert two["cache_bytes"] == 2 * one["cache_bytes"]
    assert {**two, "cache_bytes": 0} == {**one, "cache_bytes": 0}
    assert "processes" not in of_one
    assert of_two["processes"] == 2
    with pytest.raises(oc.ArgumentError, match="processes"):
        oc.Limits(processes=0)


@pytest.mark.slow
def test_a_rank_that_sees_an_older_checkpoint_is_found(graph: Path, run: Path, tmp_path: Path) -> None:
    """File systems of a network may show what a file was some seconds ago."""
    start = [*torchrun(2), str(SCRIPT), str(graph), str(run), str(tmp_path / "ckpt"), "8"]
    done = ended(start)
    assert "stopped on purpose" in done.stderr, done.stderr
    stale = ended([*start[:-1], "0"], ENVIRONMENT | {"WRONG": "stale"})
    assert stale.returncode != 0
    assert re.search(
        r"ranks 0 and 1 do not train the same: they differ in epochs done \(1, and 0\)", stale.stderr
    ), stale.stderr


@pytest.mark.slow
def test_where_processors_differ_all_follow_rank_0(graph: Path, run: Path, tmp_path: Path) -> None:
    done = ended(
        [*torchrun(2), str(SCRIPT), str(graph), str(run), str(tmp_path / "ckpt"), "0"],
        ENVIRONMENT | {"WRONG": "processor"},
    )
    assert done.returncode == 0, done.stderr
    assert "rank 1 has another kind of processor than rank 0" in done.stdout
    assert "moved in rank 1" in done.stdout  # and the epoch after it ended with equal parameters
    done = ended(
        [*torchrun(2), str(SCRIPT), str(graph), str(run), str(tmp_path / "other"), "0"],
        ENVIRONMENT | {"WRONG": "bits"},
    )
    assert done.returncode != 0
    assert "rank 1 has learned other parameters than rank 0 in epoch 0" in done.stderr


@pytest.mark.slow
def test_clocks_that_differ_change_nothing(
    graph: Path, run: Path, want: dict[str, Any], tmp_path: Path
) -> None:
    """Rank 1 lives three months later, also for the libraries that talk with the others."""
    library = next(BESIDE_FAKETIME.rglob("libfaketime.so.1"), None)
    if library is None:
        pytest.skip("no libfaketime: scripts/setup.sh test installs it")
    later = {"LD_PRELOAD": str(library), "FAKETIME": "+90d", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531"}
    command = [sys.executable, "-m", "outcrop", "--", "train", str(graph), "--run", str(run), *LEARN]
    command += ["--accumulate", "4", "--checkpoint", str(tmp_path / "ckpt"), "--checkpoint-minutes", "0"]
    told = ended(["date", "+%s"], ENVIRONMENT | later)
    assert float(told.stdout) > time.time() + 80 * 86400, told.stderr
    with subprocess.Popen(command, env=ENVIRONMENT | meeting | later | {"RANK": "1"}) as other:
        done = ended(command, ENVIRONMENT | meeting | {"RANK": "0"})
        assert (done.returncode, other.wait(60)) == (0, 0), done.stderr
    last = checkpoints.read(tmp_path / "ckpt" / checkpoints.LAST)
    assert (digest(last.model), last.meta.batch_losses) == (want["weights"], want["batch_losses"])
