"""Two machines train one table of embeddings, each with a disk of its own: what crosses the wire, and a lost machine.

A machine is a network namespace here, with a folder that only it sees under the path that both use.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from embed_support import knowledge_graph, random_triples, table_of
from machines import (
    ENVIRONMENT,
    PORT,
    QUICK_SECONDS,
    Jobs,
    Machine,
    ending_all,
    eventually,
    ip,
    kill,
    two_machines,
)
from outcrop.embed.checkpoint import CHECKPOINT, FOLDER
from outcrop.runtime.runtime import Runtime

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces"),
]

DIM, EPOCHS, PARTITIONS, SLICES, NODES = 400, 3, 8, 2, 500
LEARN = (
    *("--dim", str(DIM), "--epochs", str(EPOCHS), "--negatives", "20", "--chunk", "64", "--batch", "256"),
    *("--start", "0.1", "--groups", "2", "--checkpoint-minutes", "0", "--seed", "5", "--quiet"),
)
HEADERS, FIXED = (
    0.10,
    300_000,
)  # of frames; of torchruns and processes that meet, and what they tell each other


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embed-machines")
    graph = knowledge_graph(folder, Runtime(), train=random_triples(NODES, 6, 9000))
    config = oc.BucketConfig(PARTITIONS, slices=SLICES)
    return oc.embed_prepare(graph, folder / "run", config, progress=False).path.parent


@pytest.fixture(scope="module")
def want(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    run = Path(shutil.copytree(prepared, tmp_path_factory.mktemp("one") / "run"))
    command = [sys.executable, *arguments(run, run / "report.json")]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return learned(run, run / "report.json")


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with ending_all(tmp_path) as made:
        yield made


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    with two_machines() as made:
        yield made


def arguments(run: Path, report: Path) -> list[str]:
    return ["-m", "outcrop", "--", "embed", "train", str(run), "--json", str(report), *LEARN]


def learned(run: Path, report: Path) -> tuple[Any, Any, Any]:
    losses = [epoch["loss"] for epoch in json.loads(report.read_text())["epochs"]]
    return *table_of(run, Runtime()), losses


class Disks:
    """Gives each machine a disk, which it sees as the folder ``here``."""

    def __init__(self, folder: Path, prepared: Path):
        self.folder, self.here = folder, folder / "here"
        self.here.mkdir()
        self.disks = [folder / "disk0", folder / "disk1"]
        for disk in self.disks:
            shutil.copytree(prepared, disk / "run")

    def start(
        self,
        jobs: Jobs,
        machines: tuple[Machine, Machine],
        name: str,
        *options: str,
        torchrun: bool = True,
    ) -> list[subprocess.Popen[bytes]]:
        """Starts the training on both machines, by torchrun or without it."""
        started, meeting = (
            [],
            {"WORLD_SIZE": "2", "MASTER_ADDR": machines[0].address, "MASTER_PORT": str(PORT)},
        )
        for rank, (disk, machine) in enumerate(zip(self.disks, machines, strict=True)):
            words = [*arguments(self.here / "run", disk / "report.json"), *options]
            command = machine.torchrun(words, machines[0], "2")
            if not torchrun:
                command = machine.command(sys.executable, *words)
            at = command.index(sys.executable)
            mount = ["sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', str(disk), str(self.here)]
            variables = {"GLOO_SOCKET_IFNAME": machine.device} | (
                {} if torchrun else meeting | {"RANK": str(rank), "GROUP_RANK": str(rank)}
            )
            started.append(
                jobs.start(f"{name}-{disk.name}", [*command[:at], *mount, *command[at:]], **variables)
            )
        return started

    def checkpoint(self, number: int) -> Path:
        return self.disks[number] / "run" / FOLDER / CHECKPOINT

    def joined(self) -> Path:
        """Returns the run as somebody has it who brings the files of both machines together."""
        run = self.folder / "joined"
        for disk in self.disks:
            shutil.copytree(disk / "run", run, dirs_exist_ok=True)
        return run


def assert_equal(found: tuple[Any, Any, Any], want: tuple[Any, Any, Any]) -> None:
    for one, other in zip(found[:2], want[:2], strict=True):
        np.testing.assert_array_equal(one, other)
    assert found[2] == want[2]


def test_machines_send_each_other_what_the_schedule_says(
    prepared: Path, want: Any, jobs: Jobs, machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    disks = Disks(tmp_path, prepared)
    before = [machine.sent_bytes() for machine in machines]
    for process in disks.start(jobs, machines, "train"):
        jobs.wait(process)
    sent = [machine.sent_bytes() - old for machine, old in zip(machines, before, strict=True)]
    assert_equal(learned(disks.joined(), disks.disks[0] / "report.json"), want)
    assert (disks.checkpoint(0)).read_bytes() == (disks.checkpoint(1)).read_bytes()
    for disk in disks.disks:  # a file of its own each
        assert len([*(disk / "run" / FOLDER).glob("tables*.bin")]) == 1
    rows = -(-NODES // (PARTITIONS * SLICES))
    slab = -(-rows * 2 * DIM * 4 // 4096) * 4096 + 4096
    moved = (
        2 * PARTITIONS // 4 * SLICES * EPOCHS
    )  # of a machine: one of its two blocks, after two rounds of three
    report = json.loads((disks.disks[0] / "report.json").read_text())
    assert [epoch["bytes_sent"] for epoch in report["epochs"]] == [2 * moved * slab // EPOCHS] * EPOCHS
    for one in sent:
        assert moved * slab < one < moved * slab * (1 + HEADERS) + FIXED, (sent, moved * slab)


def test_a_machine_that_is_lost_goes_on_with_its_disk(
    prepared: Path, want: Any, jobs: Jobs, machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    disks = Disks(tmp_path, prepared)
    one, two = disks.start(jobs, machines, "first")
    eventually(lambda: disks.checkpoint(1).exists(), QUICK_SECONDS, jobs.said())
    for process in jobs.below(two):
        kill(process)
    two.wait(QUICK_SECONDS)
    assert one.wait(QUICK_SECONDS) != 0
    for process in disks.start(jobs, machines, "second"):
        jobs.wait(process)
    assert_equal(learned(disks.joined(), disks.disks[0] / "report.json"), want)


def test_a_machine_that_is_lost_with_its_disk_is_replaced(
    prepared: Path, want: Any, jobs: Jobs, machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    """The other one goes on from its disk, as far as that has what the copy has."""
    disks, copy = Disks(tmp_path, prepared), ("--checkpoint-copy", str(tmp_path / "copy"))
    one, two = disks.start(jobs, machines, "first", *copy)
    eventually(lambda: (tmp_path / "copy" / "index.json").exists(), QUICK_SECONDS, jobs.said())
    for process in jobs.below(two):
        kill(process)
    two.wait(QUICK_SECONDS)
    assert one.wait(QUICK_SECONDS) != 0
    shutil.rmtree(disks.disks[1] / "run")
    shutil.copytree(prepared, disks.disks[1] / "run")
    for process in disks.start(jobs, machines, "second", *copy):
        jobs.wait(process)
    assert_equal(learned(disks.joined(), disks.disks[0] / "report.json"), want)
    assert len([*(tmp_path / "copy").iterdir()]) == PARTITIONS * SLICES + 2
    # And one machine alone, from the copy.
    run = Path(shutil.copytree(prepared, tmp_path / "alone"))
    command = [sys.executable, *arguments(run, tmp_path / "report.json"), *copy]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert_equal(learned(run, tmp_path / "report.json"), want)


def test_a_link_that_fails_without_a_word_ends_both(
    prepared: Path, want: Any, jobs: Jobs, machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    """Ranks without torchrun, which on the other machine waits for longer."""
    disks = Disks(tmp_path, prepared)
    started = disks.start(jobs, machines, "first", torchrun=False)
    eventually(lambda: disks.checkpoint(1).exists(), QUICK_SECONDS, jobs.said())
    ip("-n", machines[1].name, "link", "set", machines[1].device, "down")
    deadline = time.monotonic() + 75
    for process in started:
        assert process.wait(deadline - time.monotonic()) == 1, jobs.said()
    said = " ".join(jobs.said().split())
    for rank in (0, 1):
        assert f"error: rank {rank} of 2 lost a process that it trains with" in said, said
    ip("-n", machines[1].name, "link", "set", machines[1].device, "up")
    for process in disks.start(jobs, machines, "second"):
        jobs.wait(process)
    assert_equal(learned(disks.joined(), disks.disks[0] / "report.json"), want)
