"""``outcrop prepare --ray --own-disks``: machines that share no folder. Each is a network namespace with mounts of its own."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import outcrop as oc
from artifact_support import differences, leftovers
from artifact_support import tree as every_file
from namespaces import Machine, NoNamespaces, descendants, kill, two_machines
from prepare_support import prepare
from raylets import environment

OPTIONS: dict[str, Any] = {"fanouts": (5, 5), "batch_size": 100, "epochs": 2, "memory": "16MiB", "parts": 4}
FLAGS = ["--fanouts", "5,5", "--batch-size", "100", "--epochs", "2", "--memory", "16MiB", "--parts", "4"]
SEEN, OWN = "/seen", "/own"
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

    def begin(self, graph: Path, *more: str) -> subprocess.Popen[str]:
        address = f"{self.machines[0].address}:6379"
        words = [sys.executable, "-m", "outcrop", "prepare", str(graph), str(self.run), *FLAGS]
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

    def close(self) -> None:
        for number in sorted(self.running, reverse=True):
            self.running[number].send_signal(signal.SIGTERM)
            self._wait(self.running[number])


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
    """Each machine has the files of one, but for parts of the other."""
    for number, parts in enumerate(expected):
        found = tree(raylets.run_of(number))
        assert parts_of(found, "pack") == parts
        if number:
            assert parts_of(found, "sample") == parts
        assert {name: want[name] == data for name, data in found.items()} == dict.fromkeys(found, True)
        lacking = [name for name in want if name not in found]
        assert all(name.startswith(("pack/records.", "sample/batches.")) for name in lacking), lacking
        assert leftovers(raylets.run_of(number)) == []


def test_each_machine_has_its_parts(raylets: Raylets, graph: Path, want: dict[str, bytes]) -> None:
    report = raylets.prepare(graph)
    check(raylets, want, ([0, 2], [1, 3]))
    one, two = (machine.address for machine in raylets.machines)
    assert report["machines"]["parts"] == {one: [0, 2], two: [1, 3]}
