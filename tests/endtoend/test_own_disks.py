"""``outcrop prepare --ray --own-disks``: machines that share no folder, network namespaces with mounts of their own."""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import outcrop as oc
from artifact_support import leftovers
from artifact_support import tree as every_file
from namespaces import Machine, NoNamespaces, Process, descendants, kill, status, two_machines
from outcrop.runtime.runtime import Runtime
from outcrop.store.placement import open_placement
from prepare_support import prepare
from raylets import environment

OPTIONS: dict[str, Any] = {"fanouts": (5, 5), "batch_size": 100, "epochs": 2, "memory": "16MiB", "parts": 4}
FLAGS = ["--fanouts", "5,5", "--batch-size", "100", "--epochs", "2", "--memory", "16MiB", "--parts", "4"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces"),
    pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare: install util-linux"),
]


class Raylets:
    """A Ray cluster of two machines, each with a folder of its own at the same path, ``place``."""

    def __init__(self, machines: tuple[Machine, Machine], place: Path, variables: dict[str, str]):
        self.machines, self.place, self.variables = machines, place, variables
        self.disks = (place.parent / "disk0", place.parent / "disk1")
        for folder in (place, *self.disks):
            folder.mkdir(exist_ok=True)
        self.running: dict[int, subprocess.Popen[str]] = {}

    def on(self, number: int, *words: str) -> list[str]:
        mount = 'mount --make-rprivate / && mount --bind "$0" "$1" && shift && exec "$@"'
        own = ["unshare", "-m", "sh", "-c", mount, str(self.disks[number]), str(self.place), *words]
        return self.machines[number].command(*own)

    def start(self, number: int) -> None:
        words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus", "1", "--block"]
        words += ["--object-store-memory", "80000000", "--node-ip-address", self.machines[number].address]
        if number == 0:
            words += ["--head", "--port", "6379", "--include-dashboard", "false"]
        else:
            words += ["--address", f"{self.machines[0].address}:6379"]
        process = subprocess.Popen(
            self.on(number, *words),
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        if not any("Ray runtime started" in line for line in process.stdout):
            pytest.skip(f"Ray starts no cluster here (it ended with {process.wait(60)})")
        self.running[number] = process

    def lose(self, number: int) -> None:
        """Kills all that runs for the raylet of a machine."""
        process = self.running.pop(number)
        for one in descendants(process.pid):
            kill(one)
        process.kill()
        self._wait(process)

    def _wait(self, process: subprocess.Popen[str]) -> None:
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()

    def begin(self, graph: Path, *more: str, run: Path | None = None) -> subprocess.Popen[str]:
        address = f"{self.machines[0].address}:6379"
        words = [sys.executable, "-m", "outcrop", "prepare", str(graph), str(run or self.run), *FLAGS]
        return subprocess.Popen(
            self.on(0, *words, "--ray", address, "--own-disks", *more),
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def prepare(self, graph: Path, *more: str) -> dict[str, Any]:
        report = self.place.parent / "report.json"
        process = self.begin(graph, "--json", str(report), *more)
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
        return json.loads(report.read_text())

    @property
    def run(self) -> Path:
        return self.place / "g.run"

    def run_of(self, number: int) -> Path:
        return self.disks[number] / "g.run"

    def stop(self, number: int) -> None:
        """Has a machine leave the cluster, which knows it."""
        process = self.running.pop(number)
        process.send_signal(signal.SIGTERM)
        self._wait(process)

    def close(self) -> None:
        for number in sorted(self.running, reverse=True):
            self.stop(number)


@pytest.fixture
def raylets(tmp_path: Path) -> Iterator[Raylets]:
    with ExitStack() as closing:
        home = closing.enter_context(
            tempfile.TemporaryDirectory(prefix="oc-ray-", dir="/tmp", ignore_cleanup_errors=True)
        )
        variables = environment() | {
            "HOME": home,
            "RAY_TMPDIR": home,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        try:
            machines = closing.enter_context(two_machines("1gbit"))
        except NoNamespaces as why:
            pytest.skip(str(why))
        made = Raylets(machines, tmp_path / "place", variables)
        closing.callback(made.close)
        for number in (0, 1):
            made.start(number)
        yield made


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """51 MB of features."""
    config = oc.GenerateConfig(nodes=100_000, edges=800_000, features=128, train_fraction=0.02)
    return oc.generate_graph(tmp_path_factory.mktemp("own") / "g.oc", config, progress=False).path


@pytest.fixture(scope="module")
def want(graph: Path) -> dict[str, bytes]:
    prepare(graph, graph.parent / "want.run", **OPTIONS)
    return tree(graph.parent / "want.run")


def tree(run: Path) -> dict[str, bytes]:
    """All files of the stages."""
    return {
        name: data
        for name, data in every_file(run).items()
        if name.split("/")[0] in ("sample", "plan", "pack")
    }


def parts_of(files: dict[str, bytes], stage: str) -> list[int]:
    names = [name for name in files if name.startswith((f"{stage}/records.", f"{stage}/batches."))]
    return sorted(int(name.split(".")[-2]) for name in names)


def check(raylets: Raylets, want: dict[str, bytes], expected: tuple[list[int], list[int]]) -> None:
    """Each machine has the files of one, but for parts of the other; one without any may have been lost meanwhile."""
    for number, parts in enumerate(expected):
        found = tree(raylets.run_of(number))
        assert parts_of(found, "pack") == parts
        if parts:
            assert number == 0 or parts_of(found, "sample") == parts
            assert {name: want[name] == data for name, data in found.items()} == dict.fromkeys(found, True)
            lacking = [name for name in want if name not in found]
            assert all(name.startswith(("pack/records.", "sample/batches.")) for name in lacking), lacking
            assert leftovers(raylets.run_of(number)) == []


def test_each_machine_has_its_parts(raylets: Raylets, graph: Path, want: dict[str, bytes]) -> None:
    report = raylets.prepare(graph)
    check(raylets, want, ([0, 2], [1, 3]))
    one, two = (machine.address for machine in raylets.machines)
    assert report["machines"]["parts"] == {one: [0, 2], two: [1, 3]}
    assert report["machines"]["files_bytes_sent"] > 0
    again = raylets.prepare(graph)
    assert again["skipped"] == ["sample", "plan", "pack"]
    assert again["machines"] == {"parts": {one: [0, 2], two: [1, 3]}, "files_bytes_sent": 0}


def test_rows_that_are_sent_are_those_of_the_formula(raylets: Raylets, graph: Path) -> None:
    """Owners and chunks are dealt to two machines in turn: half of all rows goes to the other one."""
    moved = raylets.prepare(graph)["cluster"]
    with Runtime() as runtime:
        rows = open_placement(runtime, raylets.run_of(0) / "plan").files[0]
        every = (int(rows.num_packed.sum()) + len(rows.host_ids)) * rows.row_bytes
    assert moved["rows_bytes_sent"] == pytest.approx(every / 2, rel=0.1)
    assert moved["ids_bytes_sent"] * rows.row_bytes == moved["rows_bytes_sent"] * 8
    assert moved["spilled_bytes"] == 0


def test_a_lost_folder_is_made_again(raylets: Raylets, graph: Path, want: dict[str, bytes]) -> None:
    raylets.prepare(graph)
    shutil.rmtree(raylets.run_of(1))
    report = raylets.prepare(graph)
    assert report["skipped"] == ["sample", "plan"]
    check(raylets, want, ([0, 2], [1, 3]))


def test_one_lost_file_is_brought_again(raylets: Raylets, graph: Path, want: dict[str, bytes]) -> None:
    raylets.prepare(graph)
    (raylets.run_of(1) / "pack" / "host_cache.bin").unlink()
    shutil.rmtree(raylets.run_of(1) / "plan")
    assert raylets.prepare(graph)["skipped"] == ["sample", "plan", "pack"]
    check(raylets, want, ([0, 2], [1, 3]))


def test_the_command_is_killed_and_goes_on(raylets: Raylets, graph: Path, want: dict[str, bytes]) -> None:
    chance = random.Random(5)
    for _ in range(4):
        process = raylets.begin(graph, "--quiet")
        while not any("PieceOwner" in title for title in titles(raylets)) and process.poll() is None:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 1.5))
        for one in (*descendants(process.pid), process_of(process)):
            kill(one)
        process.communicate(timeout=60)
    raylets.prepare(graph)
    check(raylets, want, ([0, 2], [1, 3]))


def test_a_machine_is_lost_and_another_comes(raylets: Raylets, graph: Path, want: dict[str, bytes]) -> None:
    """What the lost one was to write the other one does, and hands it to the machine that comes in its place."""
    process = raylets.begin(graph, "--quiet")
    while not any("PieceOwner" in title for title in titles(raylets)) and process.poll() is None:
        time.sleep(0.02)
    raylets.lose(1)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    check(raylets, want, ([0, 1, 2, 3], []))
    shutil.rmtree(raylets.disks[1])
    raylets.disks[1].mkdir()
    raylets.start(1)
    report = raylets.prepare(graph)
    assert report["skipped"] == ["sample", "plan", "pack"]
    assert report["machines"]["parts"][raylets.machines[1].address] == [1, 3]
    check(raylets, want, ([0, 1, 2, 3], [1, 3]))


@pytest.mark.usefixtures("want")
def test_both_train_with_their_parts(raylets: Raylets, graph: Path, tmp_path: Path) -> None:
    learning = ["--epochs", "2", "--hidden", "16", "--accumulate", "4", "--trace-losses", "--quiet"]
    one = tmp_path / "one.json"
    subprocess.run(
        [
            *(sys.executable, "-m", "outcrop", "train", str(graph), "--run", str(graph.parent / "want.run")),
            *(*learning, "--json", str(one)),
        ],
        env=raylets.variables | {"OMP_NUM_THREADS": "1"},
        check=True,
        timeout=300,
    )
    raylets.prepare(graph)
    both = tmp_path / "both.json"
    running = [
        subprocess.Popen(
            raylets.on(
                number,
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={number}"),
                *(
                    "--nproc-per-node=1",
                    f"--master-addr={raylets.machines[0].address}",
                    "--master-port=29500",
                ),
                *("-m", "outcrop", "--", "train", str(graph), "--run", str(raylets.run), *learning),
                *("--json", str(both), "--checkpoint", str(tmp_path / "ckpt")),
            ),
            env=raylets.variables
            | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": raylets.machines[number].device},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in (0, 1)
    ]
    said = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    ours, theirs = (json.loads(path.read_text()) for path in (both, one))
    assert ours["batch_losses"] == theirs["batch_losses"]


def test_a_full_disk_of_one_machine_is_named(
    raylets: Raylets, graph: Path, want: dict[str, bytes], tmp_path: Path
) -> None:
    """The same command goes on when there is room."""
    image, disk = tmp_path / "image", raylets.disks[1]
    with image.open("wb") as file:
        file.truncate(200 << 20)
    raylets.stop(1)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    if subprocess.run(["mount", "-o", "loop", str(image), str(disk)], capture_output=True).returncode:
        pytest.skip("no loop devices here")
    try:
        room = shutil.disk_usage(disk).free
        with (disk / "others").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, room - (8 << 20))
        raylets.start(1)
        process = raylets.begin(graph)
        said, _ = process.communicate(timeout=120)
        assert process.returncode != 0, said
        told = " ".join(said.split())
        assert "No space left on device" in told, said
        assert str(raylets.run) in told.replace(" ", ""), said
        (disk / "others").unlink()
        raylets.prepare(graph)
        check(raylets, want, ([0, 2], [1, 3]))
    finally:
        raylets.stop(1)
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_machines_that_share_the_folder_are_told(raylets: Raylets, graph: Path, tmp_path: Path) -> None:
    """A run that lies outside of what each has for itself."""
    process = raylets.begin(graph, run=tmp_path / "shared.run")
    said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "leave --own-disks out" in " ".join(said.split()), said
    assert not (tmp_path / "shared.run").exists()


def test_a_machine_without_the_graph_is_told(raylets: Raylets, graph: Path) -> None:
    shutil.copytree(graph, raylets.disks[0] / "g.oc")
    process = raylets.begin(raylets.place / "g.oc")
    said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    told = " ".join(said.split())
    assert raylets.machines[1].address in told, said
    assert "outcrop fetch URI" in told, said


def titles(raylets: Raylets) -> list[str]:
    found = []
    for process in raylets.running.values():
        for one in descendants(process.pid):
            with suppress(OSError):
                found.append(Path(f"/proc/{one.pid}/cmdline").read_bytes().decode(errors="replace"))
    return [title for title in found if title.startswith("ray::")]


def process_of(process: subprocess.Popen[str]) -> Process:
    fields = status(process.pid)
    return Process(process.pid, int(fields[19]) if fields else -1)
