"""A folder that sequences work in, and what may come of every operation.

The oracle is the same command in another folder with the same artifacts, undisturbed and alone: what artifacts hold is
known by a digest, so that each command is run once for each state of what it reads and of what it finds.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifact_support import differences, tree
from support import script

from .operations import ARTIFACTS, BUILD, COMMANDS, EMBED, KINDS, Command, Operation

fail_calls = script("fail_calls")
SOURCES = ("source", "triples")
_TABLES = "tables/tables.bin"  # has a place for each slice that the checkpoint does not name
_MAY_LACK = (
    "last.safetensors",
    "tables/checkpoint.safetensors",
)  # where a model trains no more, or never did
_ENDED = {"SIGKILL": (-9,), "SIGTERM": (1, 143, -15), "SIGINT": (1, 130, -2), "SIGSTOP": (0,)}


@dataclass(frozen=True)
class Expected:
    """Says what an undisturbed command does: how it ends, what its artifact holds then, its calls of each kind."""

    status: int
    made: str
    calls: tuple[int, ...]
    said: str


@dataclass
class State:
    """Says what an artifact may hold.

    Attributes:
        may: Digests; empty text: it is not there.
        broken: It may be anything in between: what was to make it was disturbed.
        damaged: Files of it that somebody has changed, and what they hold since.
    """

    may: set[str] = field(default_factory=lambda: {""})
    broken: bool = False
    damaged: dict[str, str] = field(default_factory=dict)

    @property
    def unsure(self) -> bool:
        return self.broken or bool(self.damaged)

    @property
    def must_be_found(self) -> bool:
        """Tells whether files are damaged that a check of the artifact reads."""
        return any(
            name != _TABLES and Path(name).name not in fail_calls.TIMED and (held or name not in _MAY_LACK)
            for name, held in self.damaged.items()
        )


def digest(path: Path) -> str:
    """Names what an artifact holds, but for times; empty where it is not there."""
    if not path.exists():
        return ""
    return hashlib.blake2b(repr(sorted(_contents(path).items())).encode(), digest_size=12).hexdigest()


def _contents(path: Path) -> dict[str, Any]:
    if path.is_file():
        return {"": hashlib.blake2b(path.read_bytes()).hexdigest()}
    if (path / "last.safetensors").is_file() and (found := _learned(path)) is not None:
        return found
    return _by_file(path)


def _by_file(path: Path) -> dict[str, Any]:
    files = {name: data for name, data in tree(path).items() if Path(name).name not in fail_calls.TIMED}
    return {name: _hash_of(fail_calls.tensors_of(name, data)) for name, data in files.items()}


def _hash_of(held: bytes | dict[str, bytes]) -> str:
    parts = held if isinstance(held, bytes) else repr(sorted(held.items())).encode()
    return hashlib.blake2b(parts).hexdigest()


def _learned(path: Path) -> dict[str, Any] | None:
    """Returns the tensors of checkpoints: what else is in them has times; None where one is broken."""
    from outcrop.errors import OutcropError
    from outcrop.nn import checkpoint as checkpoints
    from outcrop.store import tensors

    found = {}
    try:
        for file in sorted(path.glob("*.safetensors")):
            at = checkpoints.read(file)
            found[file.name] = tensors.digest(at.model if file.stem == "last" else at.best or at.model)
    except OutcropError:
        return None
    return found


class Runner:
    """Runs commands in forks of this process, which has imported all (scripts/fail_calls.py)."""

    def __init__(self, shared: Any):
        self._shared = shared

    def start(self, folder: Path, command: Command, fault: Operation | None, at: int, log: Path) -> int:
        """Starts a command in ``folder``; None: its calls are not looked at."""
        child = os.fork()
        if child == 0:

            def begin() -> None:
                if fault is not None:
                    given = fail_calls.Fault(fault.number, not fault.lasting)
                    kinds = fail_calls.KINDS
                    wanted = kinds[fault.kind] if fault.kind else sum(kinds[kind] for kind in KINDS)
                    self._shared.begin(folder, at, given, wanted)

            fail_calls.be_the_command(folder, log, command.arguments, begin, lambda: None)
        return child

    def run(self, folder: Path, command: Command, fault: Operation | None, at: int) -> tuple[int | None, str]:
        """Runs one command and returns its status (None: it hung) and what it said."""
        self._shared.clear()
        log = folder.with_suffix(".said")
        return self.wait(self.start(folder, command, fault, at, log), log)

    def wait(self, child: int, log: Path) -> tuple[int | None, str]:
        ended = fail_calls.wait(child, log)
        return ended.status, ended.said

    def calls_of_each(self) -> tuple[int, ...]:
        return self._shared.each(len(KINDS))


class Oracle:
    """Runs commands undisturbed, each once for each state of the artifacts, and keeps what they made.

    Attributes:
        wrong: What two ways to the same result made differently.
    """

    def __init__(self, folder: Path, sources: Path, runner: Runner):
        self._folder, self._sources, self._runner = folder, sources, runner
        self._known: dict[tuple[Any, ...], Expected] = {}
        self._made_by: dict[str, str] = {}
        self._alike: dict[tuple[str, ...], tuple[str, str]] = {}
        self.wrong: list[str] = []

    def expect(self, command: Command, reads: Sequence[str], before: str) -> Expected:
        """Says what ``command`` does where what it reads holds ``reads`` and what it writes ``before``."""
        key = (command.arguments, *reads, before)
        if key not in self._known:
            self._known[key] = self._run(command, reads, before)
            self._compare(command, reads, before, self._known[key])
        return self._known[key]

    def _run(self, command: Command, reads: Sequence[str], before: str) -> Expected:
        folder = self._folder / "undisturbed"
        folder.mkdir(parents=True)
        for source in SOURCES:
            (folder / source).symlink_to(self._sources / source)
        for artifact, held in [*zip(command.reads, reads, strict=True), (command.writes, before)]:
            if held and artifact and not (folder / artifact).exists():
                copy(self._kept(held), folder / artifact)
        status, said = self._runner.run(folder, command, Operation(""), 0)
        made = digest(folder / command.writes) if command.writes else ""
        self.keep(folder / command.writes, made)
        shutil.rmtree(folder)
        if status not in (0, 1):
            raise RuntimeError(f"{command.arguments}, undisturbed: status {status}\n{said}")
        return Expected(status, made, self._runner.calls_of_each(), said)

    def keep(self, path: Path, held: str) -> None:
        """Keeps a copy of what ``path`` holds, which commands may be run on."""
        if held and not self._kept(held).exists():
            self._folder.mkdir(exist_ok=True)
            copy(path, self._kept(held))

    def holds_but_for(self, path: Path, held: str, damaged: dict[str, str]) -> bool:
        """Tells whether ``path`` holds what ``held`` names, but for files that are as damaged as they were."""
        if not held or path.is_file():
            return False
        others = set(differences(_by_file(path), _by_file(self._kept(held)))) - damaged.keys()
        return not others and all(digest(path / name) == was for name, was in damaged.items())

    def _kept(self, held: str) -> Path:
        return self._folder / held

    def _compare(self, command: Command, reads: Sequence[str], before: str, found: Expected) -> None:
        """What is alike must be the same, whichever way it came about."""
        if found.status or found.made in ("", before):
            return
        self._made_by.setdefault(found.made, command.alike)
        reading = list(zip(command.reads, reads, strict=True))
        runs = [self._made_by.get(held, "") for artifact, held in reading if artifact == "g.run"]
        if any(not made.startswith("prepare 3,3") for made in runs):
            return
        key = (command.alike, *(held for artifact, held in reading if artifact != "g.run"))
        way = f"{' '.join(command.arguments)} on {list(reads)}, from {before or 'nothing'}"
        made, first = self._alike.setdefault(key, (found.made, way))
        if made != found.made:
            self.wrong.append(f"{way} makes other than {first}")


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copyfile(source, target)


class World:
    """A folder that operations change, one after another.

    Attributes:
        counts: Operations, disturbances by kind, and how commands ended.
    """

    def __init__(
        self,
        folder: Path,
        sources: Path,
        runner: Runner,
        oracle: Oracle,
        wrong_of: Callable[[int | None, str, Command], str],
    ):
        self._folder, self._runner, self._oracle, self._wrong_of = folder, runner, oracle, wrong_of
        self._states = {artifact: State() for artifact in ARTIFACTS}
        self.counts: Counter[str] = Counter()
        folder.mkdir(parents=True)
        for source in SOURCES:
            (folder / source).symlink_to(sources / source)

    def do(self, operation: Operation) -> str:
        """Does one operation; returns what is not as it must be, or nothing."""
        self.counts["operations"] += 1
        if operation.name in ("damage", "remove"):
            self.counts[operation.name] += 1
            self._change(operation)
            return ""
        if operation.beside:
            self.counts["two at once"] += 1
            return self._two(operation)
        return self._one(operation)

    def settle(self) -> str:
        """Builds all there is, undisturbed: what is broken is made good, what somebody damaged is removed before."""
        for name in BUILD:
            state = self._states[COMMANDS[name].writes]
            if state.damaged or state.may - {""}:
                self._remove_where_refused(name, state)
            if wrong := self._one(Operation(name)):
                return f"in the end: {wrong}"
            state = self._states[COMMANDS[name].writes]
            if state.unsure or len(state.may) != 1 or "" in state.may:
                return f"in the end: {Operation(name)}: it cannot be made"
        hidden = sorted(path.name for path in self._folder.iterdir() if path.name.startswith("."))
        return f"in the end there are still {hidden}" if hidden else ""

    def _remove_where_refused(self, name: str, state: State) -> None:
        refused = any(expected.status for expected in self._expected(COMMANDS[name]))
        if state.damaged or refused:
            self._change(Operation("remove", artifact=COMMANDS[name].writes))

    def _expected(self, command: Command) -> list[Expected]:
        """Returns what the command does in every state that its artifacts may be in."""
        reads = [sorted(self._states[one].may) for one in command.reads]
        before = sorted(self._states[command.writes].may | {""}) if command.writes else [""]
        if command.writes and not self._states[command.writes].unsure:
            before = sorted(self._states[command.writes].may)
        combined = itertools.islice(itertools.product(*reads, before), 96)
        return [self._oracle.expect(command, one[:-1], one[-1]) for one in combined]

    def _one(self, operation: Operation) -> str:
        name, command = operation.name, COMMANDS[operation.name]
        expected = self._expected(command)
        unsure = any(self._states[one].unsure for one in {*command.reads, command.writes} - {""})
        at = 0
        if operation.disturbed:
            numbers = [KINDS.index(operation.kind)] if operation.kind else range(len(KINDS))
            calls = sum(expected[0].calls[number] for number in numbers)
            at = 1 + int(operation.at * calls)
            self.counts[operation.signal or f"{operation.kind} {operation.error}"] += 1
        status, said = self._runner.run(self._folder, command, operation, at)
        self.counts[f"status {status}"] += 1
        if wrong := self._ending(operation, status, said, expected, unsure):
            return f"{operation}: {wrong}: {' '.join(said.split())[-600:]}"
        if not command.writes:
            if status == 0 and name.startswith("verify") and self._states[command.arguments[1]].must_be_found:
                return f"{operation}: finds no damage"
            # Else it tells of what is there; verify also where what is damaged need not be found.
            whole = not any(
                self._states[one].broken or (name.startswith("verify") and self._states[one].damaged)
                for one in command.reads
            )
            if status == 0 and whole and said not in {one.said for one in expected if one.status == 0}:
                return f"{operation}: says other than an undisturbed command: {said}"
            return ""
        return self._after(operation, status, expected)

    def _ending(
        self, operation: Operation, status: int | None, said: str, expected: list[Expected], unsure: bool
    ) -> str:
        if status is None:
            return f"hung for {fail_calls.SECONDS} s"
        if "Traceback" in said:
            return "a traceback"
        if operation.signal and status in _ENDED[operation.signal] and status != 0:
            return ""
        if status == 1:
            if not operation.error and not unsure and not any(one.status for one in expected):
                return "an error where it must succeed"
            return self._wrong_of(status, said, COMMANDS[operation.name])
        if status != 0:
            return f"status {status}"
        if not operation.disturbed and not unsure and all(one.status for one in expected):
            return "succeeds where it cannot"
        return ""

    def _after(self, operation: Operation, status: int | None, expected: list[Expected]) -> str:
        """Compares what is there now with what may be, and remembers it."""
        artifact = COMMANDS[operation.name].writes
        state, held = self._states[artifact], digest(self._folder / artifact)
        made = {one.made for one in expected if one.status == 0}
        if status == 0:
            path, damaged = self._folder / artifact, state.damaged
            if held in made:
                self._states[artifact] = State({held})
            elif (
                COMMANDS[operation.name].goes_on
                and damaged
                and (alike := {one for one in made if self._oracle.holds_but_for(path, one, damaged)})
            ):  # it goes on with what is there, and did not have to read that
                self._states[artifact] = State(alike, damaged=damaged)
            else:
                return f"{operation}: made what an undisturbed command does not ({held}, not one of {sorted(made)})"
            return ""
        if not operation.disturbed and not state.unsure:
            if held in state.may:
                return ""
            command = COMMANDS[operation.name]
            if not command.goes_on or not any(self._states[one].damaged for one in command.reads):
                return f"{operation}: ended with an error, and {artifact} is another"
            # What was done before the damage was met stays, and is gone on with.
        steps = [one for step in COMMANDS[operation.name].steps() for one in self._expected(step)]
        made |= {one.made for one in steps if one.status == 0}
        if operation.name in EMBED and not state.damaged and held not in state.may | made:
            # It holds more than an epoch that is over has left; but who exports it must find such an epoch.
            self._oracle.keep(self._folder / artifact, held)
            if self._vectors({held}) - self._vectors(state.may | made):
                return f"{operation}: leaves vectors of no epoch"
            made.add(held)
        self._states[artifact] = State(state.may | made | {""}, broken=True, damaged=state.damaged)
        return ""

    def _vectors(self, states: set[str]) -> set[tuple[int, str]]:
        """Returns how exporting ends, and what it makes, in each state of the trained vectors that there are."""
        export, graphs = COMMANDS["embed export"], sorted(self._states["t.kg"].may - {""})
        found = [
            self._oracle.expect(export, (graph, held), "")
            for graph in graphs
            for held in sorted(states - {""})
        ]
        return {(one.status, one.made) for one in found}

    def _two(self, operation: Operation) -> str:
        """Two commands at once: each succeeds, or says what is in its way."""
        names = (operation.name, operation.beside)
        before = {name: self._expected(COMMANDS[name]) for name in names}
        for name in names:  # each may find what the other made
            if artifact := COMMANDS[name].writes:
                self._states[artifact].may |= {one.made for one in before[name] if one.status == 0}
        legal = {
            name: {one.made for one in [*before[name], *self._expected(COMMANDS[name])] if one.status == 0}
            for name in names
        }
        logs = [self._folder.with_suffix(f".said{number}") for number in range(2)]
        children = [
            self._runner.start(self._folder, COMMANDS[name], None, 0, log)
            for name, log in zip(names, logs, strict=True)
        ]
        ended = [self._runner.wait(child, log) for child, log in zip(children, logs, strict=True)]
        for name, (status, said) in zip(names, ended, strict=True):
            self.counts[f"status {status}"] += 1
            if status not in (0, 1) or "Traceback" in said:
                return f"{operation}: {name}: status {status}: {' '.join(said.split())[-600:]}"
            if status == 1 and (wrong := self._wrong_of(status, said, COMMANDS[name])):
                return f"{operation}: {name}: {wrong}: {' '.join(said.split())[-600:]}"
        for artifact in {COMMANDS[name].writes for name in names} - {""}:
            writers = [number for number, name in enumerate(names) if COMMANDS[name].writes == artifact]
            held, state = digest(self._folder / artifact), self._states[artifact]
            made = set[str]().union(*(legal[names[number]] for number in writers))
            if any(ended[number][0] == 0 for number in writers) and not state.damaged and held not in made:
                return f"{operation}: {artifact} is what neither makes"
            if all(ended[number][0] == 0 for number in writers) and held in made:
                self._states[artifact] = State({held})
            else:
                self._states[artifact] = State(state.may | made, broken=True, damaged=state.damaged)
        return ""

    def _change(self, operation: Operation) -> None:
        path = self._folder / operation.artifact
        if operation.name == "remove":
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)
            self._states[operation.artifact] = State()
            return
        if files := list(_files_of(path)):
            file = files[int(operation.place[0] * len(files))]
            before = digest(file)
            damage(file, operation.how, operation.place[1])
            if digest(file) != before and "history" not in file.parts:  # which no command reads
                name = "" if file == path else str(file.relative_to(path))
                self._states[operation.artifact].damaged[name] = digest(file)


def _files_of(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from sorted(one for one in path.rglob("*") if one.is_file() and not one.is_symlink())


def damage(file: Path, how: str, place: float) -> None:
    """Flips a bit of ``file``, cuts it there, or removes it."""
    if how == "remove":
        return file.unlink()
    data = bytearray(file.read_bytes())
    if data:
        at = int(place * len(data))
        if how == "cut":
            del data[at:]
        else:
            data[at] ^= 1 << int(place * 8191) % 8
    file.write_bytes(bytes(data))
