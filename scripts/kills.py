#!/usr/bin/env python3
"""Kills processes of commands that several processes work for, at seeded moments, and has the commands run again.

    scripts/kills.py [KILLS [SEED]] [--turn N] [--json FILE]       200 kills, seed 0

In turn: a training by torchrun with two or three ranks (a rank, and torchrun), ``prepare --workers`` (a worker, and the
command), ``prepare --ray`` on three raylets (a task, an owner, a raylet that is not the head, and the command) and a
training of embeddings in groups by torchrun with two to four ranks (a rank, and torchrun). Each turn kills one process
of each of these kinds, in an order of its own, several of them within one command where it lives that long: the script
waits until a process of the kind is there, then for a part of the seconds that such are there in an undisturbed run.
What a turn does follows from the seed and its number, up to what time does: ``--turn`` repeats one.

After each command every file, loss and parameter must be that of an undisturbed run, no process may be left that it has
started, and nothing in /dev/shm, which is the script's own where it runs as root. A command may end with an error only
where it was killed itself, or was told by one of its workers that it was killed before any had done a thing.
Ends with status 1 where one differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
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
from embed_support import knowledge_graph, random_triples, table_of
from namespaces import Process, descendants, is_alive, kill, status
from outcrop.bench.origin import origin
from outcrop.embed.checkpoint import FOLDER
from outcrop.nn import checkpoint as checkpoints
from outcrop.runtime.runtime import Runtime
from outcrop.store.tensors import digest

TESTS = Path(__file__).resolve().parents[1] / "tests"
BESIDE = Path(sys.prefix) / "beside-ray"  # where scripts/setup.sh installs Ray
OWN_SHM, MARK = "OUTCROP_KILLS_OWN_SHM", "OUTCROP_KILLS_MARK"
ENDED_SECONDS, COMMAND_SECONDS = 30, 300
READS, OWNS = "ray::_read_chunk", "ray::PieceOwner"  # titles of processes
COMMANDS = 4  # of a turn at most, until one of each kind is killed
QUIET = oc.Observer(progress=False)
PREPARE = ["--fanouts", "5,5", "--batch-size", "100", "--epochs", "2", "--memory", "16MiB", "--quiet"]


class Failure(Exception):
    """Says what is not as it must be."""


class Victim(NamedTuple):
    kind: str
    process: Process


class Window(NamedTuple):
    """Says when processes of a kind are there in an undisturbed run, in seconds since it began."""

    begin: float
    end: float


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
        kinds: What is killed in a turn, each once.
        ending: Those of them without which the command cannot go on.
        windows: When each kind is there.
    """

    name: str
    kinds: tuple[str, ...]
    ending: frozenset[str]
    environment: dict[str, str]

    def begin(self, out: Path) -> None:
        """Makes what the command begins with."""
        out.mkdir()

    def command(self, out: Path, chance: random.Random) -> list[str]:
        raise NotImplementedError

    def found(self, out: Path) -> dict[str, Any]:
        raise NotImplementedError

    def victims(self, command: Process, below: list[Process]) -> list[Victim]:
        raise NotImplementedError

    def after_kill(self, victim: Victim) -> None:
        """Makes good what the command cannot: a machine that is gone."""

    def after_failure(self) -> None:
        """Lets the next turn begin as the first one did."""

    def left(self) -> list[Process]:
        """Returns processes that work for a command that is over, beside those that have its environment."""
        return []

    def learn(self, folder: Path) -> None:
        """Runs the command undisturbed: what it makes is wanted of all others."""
        self._folder, seen, out = folder, dict[str, list[float]](), folder / "want"
        self.begin(out)
        began = time.monotonic()
        with self._started(out, random.Random(0)) as running:
            while running.process.poll() is None:
                for one in self._there(running):
                    seen.setdefault(one.kind, []).append(time.monotonic() - began)
                time.sleep(0.01)
            if not running.ended_well():
                raise Failure(f"{self.name}, undisturbed: {running.said()}")
        self.windows = {kind: Window(times[0], times[-1]) for kind, times in sorted(seen.items())}
        if missing := sorted(set(self.kinds) - set(self.windows)):
            raise Failure(f"{self.name}: no {missing} was seen in an undisturbed run")
        self.want = self.found(out)

    def turn(self, number: int, chance: random.Random, killed: list[str]) -> None:
        """Kills one process of each kind, in as many commands as that takes; adds to ``killed`` what was."""
        waiting = chance.sample(self.kinds, len(self.kinds))
        for again in range(COMMANDS):
            if waiting:
                self._disturb(self._folder / f"{number}-{again}", waiting, killed, chance)

    def _disturb(self, out: Path, waiting: list[str], killed: list[str], chance: random.Random) -> None:
        """Kills what is ``waiting``, one after another, until the command is done; moves those to ``killed``."""
        shm = set(os.listdir("/dev/shm"))
        self.begin(out)
        done = False
        while not done:
            with self._started(out, chance) as running:
                struck = list[Victim]()
                while waiting and (victim := self._kill_one(running, waiting[0], chance)) is not None:
                    struck.append(victim)
                    killed.append(waiting.pop(0))
                    self.after_kill(victim)
                    if victim.process == running.own:
                        break
                done = running.ended_well()
                if not done and not any(one.kind in self.ending for one in struck):
                    raise Failure(f"the command ended with {running.process.returncode}\n{running.said()}")
                require_ended([*marked(running.mark), *self.left()], "the command is over")
            if OWN_SHM in os.environ and (more := set(os.listdir("/dev/shm")) - shm):
                raise Failure(f"left in /dev/shm: {sorted(more)}")
        if wrong := differences(self.found(out), self.want):
            raise Failure(f"other {wrong}")
        shutil.rmtree(out)

    def _there(self, running: Running) -> list[Victim]:
        return self.victims(running.own, descendants(running.process.pid))

    def _kill_one(self, running: Running, kind: str, chance: random.Random) -> Victim | None:
        """Kills a process of a kind some time after one is there; None where the command is over before."""
        window, moment = self.windows[kind], None
        wait, choice = chance.uniform(0, window.end - window.begin), chance.random()
        while running.process.poll() is None:
            there = sorted(one for one in self._there(running) if one.kind == kind)
            if there and moment is None:
                moment = time.monotonic() + wait
            if there and moment is not None and time.monotonic() >= moment:
                victim = there[int(choice * len(there))]
                if self._kill(victim, running):
                    return victim
            running.require_time()
            time.sleep(0.01)
        return None

    def _kill(self, victim: Victim, running: Running) -> bool:
        """Kills a process unless it has become something else by now: a task is over in a tenth of a second."""
        kill(victim.process, signal.SIGSTOP)
        while is_alive(victim.process) and status(victim.process.pid)[:1] not in (["T"], []):
            time.sleep(0.0001)
        if victim not in self._there(running):
            kill(victim.process, signal.SIGCONT)
            return False
        kill(victim.process)
        return True

    @contextmanager
    def _started(self, out: Path, chance: random.Random) -> Iterator[Running]:
        running = Running(self.command(out, chance), self.environment, out.with_suffix(".log"))
        try:
            yield running
        finally:
            running.close()


class Running:
    """A command that was started; what it says goes to a file.

    Attributes:
        own: Its process.
        mark: What the processes that it starts have in their environment.
    """

    def __init__(self, command: list[str], environment: dict[str, str], log: Path):
        self.mark, self._log = f"{os.getpid()}-{time.monotonic_ns()}", log
        with log.open("w") as said:
            self.process = subprocess.Popen(
                command, env={**environment, MARK: self.mark}, stdout=said, stderr=subprocess.STDOUT
            )
        self.own, self._until = itself(self.process.pid), time.monotonic() + COMMAND_SECONDS

    def require_time(self) -> None:
        if time.monotonic() > self._until:
            raise Failure(f"nothing ended in {COMMAND_SECONDS} s\n{self.said()}")

    def ended_well(self) -> bool:
        """Waits for the end."""
        while self.process.poll() is None:
            self.require_time()
            time.sleep(0.02)
        return self.process.returncode == 0

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """Ends what is left of it."""
        for process in marked(self.mark):
            kill(process)
        self.process.wait()
        self._log.unlink()


class Torchrun(Work):
    """A command of ranks, that torchrun starts again where one is killed."""

    kinds, ending = ("rank", "torchrun"), frozenset({"torchrun"})
    worlds: tuple[int, ...]

    def __init__(self, folder: Path):
        self.environment = child_environment(
            OMP_NUM_THREADS="1",
            GLOO_SOCKET_IFNAME="lo",
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
            TMPDIR=str(folder),
        )

    def start(self, chance: random.Random) -> list[str]:
        self.world = chance.choice(self.worlds)
        ranks = ["--standalone", f"--nproc-per-node={self.world}", "--max-restarts=2"]
        return [sys.executable, "-m", "torch.distributed.run", *ranks, "-m", "outcrop", "--"]

    def victims(self, command: Process, below: list[Process]) -> list[Victim]:
        ranks = [Victim("rank", one) for one in below if "outcrop" in title(one)]
        return [*ranks, Victim("torchrun", command)]


class Training(Torchrun):
    name, worlds = "train", (2, 3)

    def __init__(self, folder: Path):
        graph = oc.generate_graph(
            folder / "train.oc", oc.GenerateConfig(nodes=3000, edges=20_000, features=16), progress=False
        )
        self._graph, self._run = graph.path, folder / "train.run"
        sampling = oc.SampleConfig(fanouts=(4, 3), batch_size=100)
        oc.prepare(graph, self._run, sampling=sampling, epochs=3, memory="8MiB", observer=QUIET)
        super().__init__(folder)

    def command(self, out: Path, chance: random.Random) -> list[str]:
        learn = ["--epochs", "3", "--dropout", "0.3", "--accumulate", "3", "--trace-losses"]
        kept = ["--checkpoint", str(out / "ckpt"), "--checkpoint-minutes", "0"]
        said = ["--json", str(out / "report.json")]
        return [*self.start(chance), "train", str(self._graph), "--run", str(self._run), *learn, *kept, *said]

    def found(self, out: Path) -> dict[str, Any]:
        last, report = (
            checkpoints.read(out / "ckpt" / checkpoints.LAST),
            json.loads((out / "report.json").read_text()),
        )
        same = {name: report[name] for name in ("batch_losses", "best_epoch", "test_accuracy")}
        return same | {"parameters": digest(last.model), "optimizer": digest(last.optimizer)}


class Embedding(Torchrun):
    name, worlds = "embed train", (2, 3, 4)

    def __init__(self, folder: Path):
        super().__init__(folder)
        triples = random_triples(500, 6, 9000)
        with Runtime() as runtime:
            graph = knowledge_graph(folder / "embed", runtime, train=triples, test=triples[:600])
        config = oc.BucketConfig(16, slices=2)
        self._prepared = oc.embed_prepare(graph, folder / "embed.run", config, progress=False).path.parent

    def begin(self, out: Path) -> None:
        shutil.copytree(self._prepared, out)
        self.worlds_tried = set[int]()

    def command(self, out: Path, chance: random.Random) -> list[str]:
        learn = ["--dim", "8", "--epochs", "3", "--negatives", "20", "--chunk", "16", "--batch", "64"]
        same = ["--start", "0.1", "--reciprocal", "--seed", "5", "--groups", "4", "--quiet"]
        kept = ["--checkpoint-minutes", "0", "--json", str(out.with_suffix(".json"))]
        started = self.start(chance)
        self.worlds_tried.add(self.world)
        return [*started, "embed", "train", str(out), *learn, *same, *kept]

    def found(self, out: Path) -> dict[str, Any]:
        """Returns vectors and losses. All files must be those of the processes that trained last: no others if the
        command that was started again after them found nothing more to train.
        """
        report = out.with_suffix(".json")
        losses = [epoch["loss"] for epoch in json.loads(report.read_text())["epochs"]]
        report.unlink()
        with Runtime() as runtime:
            nodes, relations = table_of(out, runtime)
        files = len([*(out / FOLDER).glob("tables*.bin")])
        hidden = {f"left: {name}": True for name in leftovers(out)}
        assert relations is not None
        return hidden | {
            "losses": losses,
            "nodes": nodes.tobytes(),
            "relations": relations.tobytes(),
            "files of other processes": files not in self.worlds_tried,
        }


class Preparing(Work):
    """Prepares a run; ``found`` are its files."""

    environment: dict[str, str]
    more: list[str]

    def __init__(self, graph: Path):
        self._graph = graph

    def begin(self, out: Path) -> None:
        """Leaves the folder to the command."""

    def command(self, out: Path, chance: random.Random) -> list[str]:
        return [sys.executable, "-m", "outcrop", "prepare", str(self._graph), str(out), *PREPARE, *self.more]

    def found(self, out: Path) -> dict[str, Any]:
        hidden = {f"left: {name}": True for name in leftovers(out)}
        return hidden | {name: data for name, data in tree(out).items() if name != "run.json"}


class Workers(Preparing):
    name, more = "prepare --workers", ["--workers", "3"]
    kinds, ending = ("worker", "command"), frozenset({"worker", "command"})

    def __init__(self, graph: Path):
        super().__init__(graph)
        self.environment = child_environment()

    def victims(self, command: Process, below: list[Process]) -> list[Victim]:
        workers = [Victim("worker", one) for one in below if "spawn_main" in title(one)]
        return [*workers, Victim("command", command)]


class RayCluster(Preparing):
    """Prepares on a cluster of three raylets, which has a home and a temporary folder of its own."""

    name = "prepare --ray"
    kinds, ending = ("task", "owner", "raylet", "command"), frozenset({"command"})

    def __init__(self, graph: Path, home: str):
        super().__init__(graph)
        variables = child_environment(RAY_USAGE_STATS_ENABLED="0", HOME=home, RAY_TMPDIR=home)
        variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], str(BESIDE)])
        self.environment = variables
        self._begin_cluster()

    def _begin_cluster(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(TESTS / "ray_cluster.py"), "3"],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.more = ["--parts", "3", "--ray", self._hear()]
        self._head = next(one for one in self._processes() if "raylet/raylet" in title(one))

    def _hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def _processes(self) -> list[Process]:
        """Returns all of the cluster, in the order of their starts, also those whose raylet is gone."""
        found, session = list[Process](), str(self.process.pid)
        for path in Path("/proc").iterdir():
            if path.name.isdigit() and (fields := status(int(path.name)))[3:4] == [session]:
                found.append(Process(int(path.name), int(fields[19])))
        return sorted(found, key=lambda one: (one.started, one.pid))

    def victims(self, command: Process, below: list[Process]) -> list[Victim]:
        """Returns raylets only while something works for the command: they are there long before."""
        found, working = [Victim("command", command)], False
        for process in self._processes():
            said = title(process)
            if said.startswith(READS):
                found.append(Victim("task", process))
            elif said.startswith(OWNS):
                found.append(Victim("owner", process))
            elif "raylet/raylet" in said and process != self._head:
                found.append(Victim("raylet", process))
            working = working or said.startswith((READS, OWNS))
        return [one for one in found if working or one.kind != "raylet"]

    def after_kill(self, victim: Victim) -> None:
        if victim.kind == "raylet":
            assert self.process.stdin is not None
            self.process.stdin.write("add\n")
            self.process.stdin.flush()
            if self._hear() != "done":
                raise Failure("no raylet could be added")

    def after_failure(self) -> None:
        for process in self._processes():
            kill(process)
        self.process.wait()
        self._begin_cluster()

    def left(self) -> list[Process]:
        return [one for one in self._processes() if title(one).startswith((READS, OWNS))]

    def close(self) -> None:
        processes = self._processes()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(120)
        require_ended(processes, "the cluster of Ray")


@contextmanager
def every_work(folder: Path) -> Iterator[list[Work]]:
    config = oc.GenerateConfig(nodes=100_000, edges=800_000, features=128, train_fraction=0.02)
    graph = oc.generate_graph(folder / "g.oc", config, progress=False).path
    works: list[Work] = [Training(folder), Workers(graph)]
    with tempfile.TemporaryDirectory(prefix="oc-ray-", dir="/tmp", ignore_cleanup_errors=True) as home:
        cluster = RayCluster(graph, home) if BESIDE.is_dir() else None
        try:
            yield [*works, *([] if cluster is None else [cluster]), Embedding(folder)]
        finally:
            if cluster is not None:
                cluster.close()


class Soak:
    """Kills in turn, and counts.

    Attributes:
        killed: How many of each kind, after which all was as it must be or not.
        failed: What was not, by turn.
    """

    def __init__(self, seed: int, say: Callable[[str], None]):
        self._seed, self._say = seed, say
        self.killed, self.failed, self.turns = Counter[str](), dict[int, str](), 0
        self.seconds = 0.0

    def run(self, kills: int, only: int | None) -> None:
        """Goes on until so many are killed, one of each kind among them, or does one turn alone."""
        began = time.monotonic()
        with (
            tempfile.TemporaryDirectory(prefix="outcrop-kills-") as name,
            every_work(Path(name)) as works,
        ):
            for number, work in enumerate(works):
                if only is None or only % len(works) == number:
                    (Path(name) / f"{number}").mkdir()
                    work.learn(Path(name) / f"{number}")
                    seen = {kind: f"{at.begin:.1f} to {at.end:.1f} s" for kind, at in work.windows.items()}
                    self._say(f"{work.name}, undisturbed: {json.dumps(seen)}")
            every = {f"{work.name}: {kind}" for work in works for kind in work.kinds}
            turns = itertools.count() if only is None else [only]
            for turn in turns:
                killed = self._turn(works[turn % len(works)], turn)
                self.turns += 1
                self.seconds = time.monotonic() - began
                self._say(
                    f"{self.killed.total()} of {kills} kills, {len(self.failed)} failed, {self.seconds:.0f} s, "
                    f"turn {turn}: {works[turn % len(works)].name}: {', '.join(killed) or 'nothing'}"
                )
                if self.killed.total() >= kills and (self.failed or every <= self.killed.keys()):
                    break

    def _turn(self, work: Work, turn: int) -> list[str]:
        killed = list[str]()
        try:
            work.turn(turn, random.Random(f"{self._seed} {turn}"), killed)
        except Failure as why:
            self.failed[turn] = f"{work.name}, killed: {killed}: {why}"
            self._say(f"FAILED turn {turn} of seed {self._seed}: {self.failed[turn]}")
            work.after_failure()
        self.killed.update(f"{work.name}: {kind}" for kind in killed)
        return killed


def in_own_shm() -> int | None:
    """Runs this again with a /dev/shm of its own, where root does it; None where that cannot be, or is so."""
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or unshare is None or OWN_SHM in os.environ:
        return None
    mounted = 'mount -t tmpfs shm /dev/shm || exit 77; exec "$@"'
    apart = [unshare, "--mount", "--propagation=private", "sh", "-c", mounted, "sh"]
    code = subprocess.run([*apart, sys.executable, *sys.argv], env={**os.environ, OWN_SHM: "1"}).returncode
    return None if code == 77 else code


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kills", type=int, nargs="?", default=200)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--turn", type=int, help="does this turn alone")
    parser.add_argument("--json", type=Path, help="writes what was killed")
    asked = parser.parse_args()
    if (code := in_own_shm()) is not None:
        return code
    begun, soak = origin("kills"), Soak(asked.seed, lambda text: print(text, flush=True))
    soak.run(asked.kills, asked.turn)
    counts = dict(sorted(soak.killed.items()))
    print(f"{soak.killed.total()} kills, {len(soak.failed)} failed: {json.dumps(counts)}", flush=True)
    if asked.json is not None:
        result = {
            **begun,
            "seed": asked.seed,
            "turns": soak.turns,
            "seconds": soak.seconds,
            "kills": soak.killed.total(),
            "own_shared_memory": OWN_SHM in os.environ,
            "failed": {str(turn): why for turn, why in soak.failed.items()},
            "columns": ["killed", "times"],
            "rows": [[kind, str(times)] for kind, times in counts.items()],
        }
        asked.json.write_text(json.dumps(result, indent=1))
    return len(soak.failed) > 0


if __name__ == "__main__":
    sys.exit(main())
