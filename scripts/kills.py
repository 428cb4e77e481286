#!/usr/bin/env python3
"""Kills processes of commands that several processes work for, at seeded moments, and has the commands run again.

    scripts/kills.py [KILLS [SEED]]       200 kills, seed 0

In turn: a training by torchrun with two or three ranks (a rank, or torchrun), ``prepare --workers`` (a worker, or the
command) and ``prepare --ray`` on three raylets (a task, an owner, a raylet that is not the head, or the command). After
each every file, loss and parameter must be that of an undisturbed run, no process may be left that the command has
started, and nothing in /dev/shm, which is the script's own where it runs as root. Ends with status 1 where one differs.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import outcrop as oc
from artifact_support import child_environment, differences, leftovers, tree
from namespaces import Process, descendants, is_alive, kill
from outcrop.nn import checkpoint as checkpoints
from outcrop.store.tensors import digest

TESTS = Path(__file__).resolve().parents[1] / "tests"
BESIDE = Path(sys.prefix) / "beside-ray"  # where scripts/setup.sh installs Ray
OWN_SHM, MARK = "OUTCROP_KILLS_OWN_SHM", "OUTCROP_KILLS_MARK"
OTHERS_SHARE = 0.75  # of kills: of what works for a command, once that is there
ENDED_SECONDS, COMMAND_SECONDS, AGAIN = 30, 300, 4
QUIET = oc.Observer(progress=False)
PREPARE = ["--fanouts", "5,5", "--batch-size", "100", "--epochs", "2", "--memory", "16MiB", "--quiet"]


class Failure(Exception):
    """Says what is not as it must be."""


class Victim(NamedTuple):
    kind: str
    process: Process


def title(process: Process) -> str:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def marked(mark: str) -> list[Process]:
    """Returns the processes that a command has started, whoever their parents are now: they have its environment."""
    found, entry = list[Process](), f"{MARK}={mark}".encode()
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                if entry in (path / "environ").read_bytes().split(b"\0"):
                    found.append(itself(int(path.name)))
            except OSError:
                continue
    return found


def itself(pid: int) -> Process:
    return Process(pid, int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]))


def require_ended(processes: Sequence[Process], what: str) -> None:
    deadline = time.monotonic() + ENDED_SECONDS
    while left := [process for process in processes if is_alive(process)]:
        if time.monotonic() > deadline:
            said = [f"{process.pid} {title(process)}" for process in left]
            for process in left:
                kill(process)
            raise Failure(f"{what}: {len(left)} processes live on: {said}")
        time.sleep(0.05)


class Work:
    """A command, what of it is killed, and what it must make: in a folder of its own each time.

    Attributes:
        seconds: What it takes undisturbed.
    """

    name: str
    seconds = 1.0
    environment: dict[str, str]

    def command(self, out: Path, chance: random.Random) -> list[str]:
        raise NotImplementedError

    def found(self, out: Path) -> dict[str, Any]:
        raise NotImplementedError

    def victims(self, command: Process, below: list[Process]) -> list[Victim]:
        raise NotImplementedError

    def after_kill(self, victim: Victim) -> None:
        """Makes good what the command cannot: a machine that is gone."""

    def left(self) -> list[Process]:
        """Returns processes that work for a command that is over, beside its own children."""
        return []

    def learn(self, folder: Path) -> None:
        """Runs the command undisturbed: what it makes is wanted of all others."""
        started = time.monotonic()
        self._end(self._start(self.command(folder / "want", random.Random(0))), "undisturbed")
        self.seconds, self.want = time.monotonic() - started, self.found(folder / "want")

    def _start(self, command: list[str], mark: str = "") -> subprocess.Popen[str]:
        environment = {**self.environment, MARK: mark}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def _end(self, process: subprocess.Popen[str], what: str, *, may_fail: bool = False) -> bool:
        try:
            said, _ = process.communicate(timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failure(f"{what}: nothing ended in {COMMAND_SECONDS} s") from None
        if process.returncode != 0 and not may_fail:
            raise Failure(f"{what}: ended with {process.returncode}\n{said[-4000:]}")
        return process.returncode == 0

    def _kill_one(self, process: subprocess.Popen[str], chance: random.Random) -> Victim | None:
        """Kills what works for a command, or the command, at some moment; None where that is over before."""
        own, others = itself(process.pid), chance.random() < OTHERS_SHARE
        wait = chance.uniform(0, self.seconds / 4 if others else self.seconds)
        moment = None
        while process.poll() is None:
            there = [
                one for one in self.victims(own, descendants(process.pid)) if one.process != own or not others
            ]
            if there and moment is None:
                moment = time.monotonic() + wait
            if there and moment is not None and time.monotonic() >= moment:
                kind = chance.choice(sorted({one.kind for one in there}))
                victim = chance.choice(sorted(one for one in there if one.kind == kind))
                kill(victim.process)
                return victim
            time.sleep(0.01)
        return None

    def disturb(self, out: Path, chance: random.Random) -> str | None:
        """Kills one process at some moment; returns what it was, None where the command was over before."""
        shm, command = set(os.listdir("/dev/shm")), self.command(out, chance)
        mark = f"{os.getpid()}-{out.name}"
        process = self._start(command, mark)
        victim = self._kill_one(process, chance)
        if victim is not None:
            self.after_kill(victim)
        what = f"{self.name}, {victim.kind if victim else 'nothing'} killed"
        done = self._end(process, what, may_fail=True)
        require_ended([*marked(mark), *self.left()], what)
        for _ in range(AGAIN):
            if done:
                break
            done = self._end(self._start(self.command(out, chance), mark), what, may_fail=True)
        if not done:
            self._end(self._start(self.command(out, chance), mark), what)
        require_ended([*marked(mark), *self.left()], what)
        found = self.found(out)
        if wrong := differences(found, self.want):
            raise Failure(f"{what}: other {wrong}")
        if OWN_SHM in os.environ and (more := set(os.listdir("/dev/shm")) - shm):
            raise Failure(f"{what}: left in /dev/shm: {sorted(more)}")
        shutil.rmtree(out)
        return None if victim is None else victim.kind


class Training(Work):
    name = "torchrun"

    def __init__(self, folder: Path):
        graph = oc.generate_graph(
            folder / "train.oc", oc.GenerateConfig(nodes=3000, edges=20_000, features=16), progress=False
        )
        self._graph, self._run = graph.path, folder / "train.run"
        sampling = oc.SampleConfig(fanouts=(4, 3), batch_size=100)
        oc.prepare(graph, self._run, sampling=sampling, epochs=3, memory="8MiB", observer=QUIET)
        self.environment = child_environment(
            OMP_NUM_THREADS="1",
            GLOO_SOCKET_IFNAME="lo",
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
            TMPDIR=str(folder),
        )

    def command(self, out: Path, chance: random.Random) -> list[str]:
        ranks = ["--standalone", f"--nproc-per-node={chance.choice((2, 3))}", "--max-restarts=2"]
        learn = [
            "--run",
            str(self._run),
            "--epochs",
            "3",
            "--dropout",
            "0.3",
            "--accumulate",
            "3",
            "--trace-losses",
        ]
        learn += [
            "--checkpoint",
            str(out / "ckpt"),
            "--checkpoint-minutes",
            "0",
            "--json",
            str(out / "report.json"),
        ]
        out.mkdir(exist_ok=True)
        start = [sys.executable, "-m", "torch.distributed.run", *ranks, "-m", "outcrop", "--"]
        return [*start, "train", str(self._graph), *learn]

    def found(self, out: Path) -> dict[str, Any]:
        last, report = (
            checkpoints.read(out / "ckpt" / checkpoints.LAST),
            json.loads((out / "report.json").read_text()),
        )
        same = {name: report[name] for name in ("batch_losses", "best_epoch", "test_accuracy")}
        return same | {"parameters": digest(last.model), "optimizer": digest(last.optimizer)}

    def victims(self, command: Process, below: list[Process]) -> list[Victim]:
        ranks = [Victim("rank", one) for one in below if "outcrop" in title(one)]
        return [*ranks, Victim("torchrun", command)]


class Preparing(Work):
    """Prepares a run; ``found`` are its files."""

    environment: dict[str, str]
    more: list[str]

    def __init__(self, graph: Path):
        self._graph = graph

    def command(self, out: Path, chance: random.Random) -> list[str]:
        return [sys.executable, "-m", "outcrop", "prepare", str(self._graph), str(out), *PREPARE, *self.more]

    def found(self, out: Path) -> dict[str, Any]:
        hidden = {f"left: {name}": True for name in leftovers(out)}
        return hidden | {name: data for name, data in tree(out).items() if name != "run.json"}


class Workers(Preparing):
    name, more = "prepare --workers", ["--workers", "3"]

    def __init__(self, graph: Path):
        super().__init__(graph)
        self.environment = child_environment()

    def victims(self, command: Process, below: list[Process]) -> list[Victim]:
        workers = [Victim("worker", one) for one in below if "spawn_main" in title(one)]
        return [*workers, Victim("command", command)]


class RayCluster(Preparing):
    """Prepares on a cluster of three raylets, which has a home and a temporary folder of its own."""

    name = "prepare --ray"

    def __init__(self, graph: Path, home: str):
        super().__init__(graph)
        variables = child_environment(RAY_USAGE_STATS_ENABLED="0", HOME=home, RAY_TMPDIR=home)
        variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], str(BESIDE)])
        self.environment = variables
        self.process = subprocess.Popen(
            [sys.executable, str(TESTS / "ray_cluster.py"), "3"],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.more = ["--parts", "3", "--ray", self._hear()]
        self._head = next(one for one in descendants(self.process.pid) if "raylet/raylet" in title(one))

    def _hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def _working(self, *names: str) -> list[Process]:
        below = descendants(self.process.pid)
        return [one for one in below if any(f"ray::{name}" in title(one) for name in names)]

    def victims(self, command: Process, below: list[Process]) -> list[Victim]:
        found = [Victim("command", command)]
        for process in descendants(self.process.pid):
            said = title(process)
            if said.startswith("ray::_read_chunk"):
                found.append(Victim("task", process))
            elif said.startswith("ray::PieceOwner"):
                found.append(Victim("owner", process))
            elif "raylet/raylet" in said and process != self._head:
                found.append(Victim("raylet", process))
        return found

    def after_kill(self, victim: Victim) -> None:
        if victim.kind == "raylet":
            assert self.process.stdin is not None
            self.process.stdin.write("add\n")
            self.process.stdin.flush()
            if self._hear() != "done":
                raise Failure("no raylet could be added")

    def left(self) -> list[Process]:
        return self._working("_read_chunk", "PieceOwner")

    def close(self) -> None:
        below = descendants(self.process.pid)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(120)
        require_ended(below, "the cluster of Ray")


@contextmanager
def every_work(folder: Path) -> Iterator[list[Work]]:
    config = oc.GenerateConfig(nodes=50_000, edges=400_000, features=128, train_fraction=0.02)
    graph = oc.generate_graph(folder / "g.oc", config, progress=False).path
    works: list[Work] = [Training(folder), Workers(graph)]
    with tempfile.TemporaryDirectory(prefix="oc-ray-", dir="/tmp", ignore_cleanup_errors=True) as home:
        cluster = RayCluster(graph, home) if BESIDE.is_dir() else None
        try:
            yield [*works, *([] if cluster is None else [cluster])]
        finally:
            if cluster is not None:
                cluster.close()


def soak(kills: int, seed: int, say: Callable[[str], None]) -> int:
    """Returns how many kills were followed by something that is not as it must be."""
    failed, killed, began = 0, Counter[str](), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="outcrop-kills-") as name, every_work(Path(name)) as works:
        for work in works:
            (Path(name) / work.name.replace(" ", "")).mkdir()
            work.learn(Path(name) / work.name.replace(" ", ""))
            say(f"{work.name}: {work.seconds:.1f} s undisturbed")
        turn = 0
        while sum(killed.values()) < kills:
            work, chance = works[turn % len(works)], random.Random(f"{seed} {turn}")
            try:
                kind = work.disturb(Path(name) / work.name.replace(" ", "") / f"{turn}", chance)
            except Failure as why:
                failed, kind = failed + 1, "what failed"
                say(f"FAILED turn {turn} of seed {seed}: {why}")
            turn += 1
            if kind is not None:
                killed[f"{work.name}: {kind}"] += 1
            done = (
                f"{sum(killed.values())} of {kills} kills, {failed} failed, {time.monotonic() - began:.0f} s"
            )
            say(f"{done}: {work.name}, {kind}")
    say(f"{sum(killed.values())} kills, {failed} failed: {json.dumps(dict(sorted(killed.items())))}")
    return failed


def main(kills: str = "200", seed: str = "0") -> int:
    unshare = shutil.which("unshare")
    if os.geteuid() == 0 and unshare is not None and OWN_SHM not in os.environ:
        mounted = 'mount -t tmpfs shm /dev/shm || exit 77; exec "$@"'
        started = [
            unshare,
            "--mount",
            "--propagation=private",
            "sh",
            "-c",
            mounted,
            "sh",
            sys.executable,
            *sys.argv,
        ]
        code = subprocess.run(started, env={**os.environ, OWN_SHM: "1"}).returncode
        if code != 77:
            return code
    return soak(int(kills), int(seed), lambda text: print(text, flush=True)) > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
