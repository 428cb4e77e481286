"""What a sequence is made of: commands on the artifacts of a folder, and what disturbs them. Plain data, drawn from a
seed.
"""

from __future__ import annotations

import errno
import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

KINDS = (
    "open",
    "read",
    "write",
    "sync",
    "name",
    "size",
    "map",
    "thread",
)  # of calls: tests/faults/failing_calls.c
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGSTOP")
ERRORS = {
    "open": ("EIO", "EMFILE"),
    "read": ("EIO", "half"),
    "write": ("ENOSPC", "EIO", "half"),
    "sync": ("EIO",),
    "name": ("EIO", "EROFS"),
    "size": ("ENOSPC",),
    "map": ("ENOMEM",),
    "thread": ("EAGAIN",),
}
SPARED = {
    "import triples": ("thread",)
}  # Arrow aborts where a thread of its own is refused (scripts/fail_calls.py)
_ROOM = "1600KiB"  # some rows are cached, others packed (MEMORY of scripts/fail_calls.py)
_LITTLE = ("--memory", _ROOM, "--quiet")
_LEARN = ("--hidden", "4", "--quiet")
_VECTORS = ("--dim", "8", "--negatives", "8", "--chunk", "10", "--batch", "50", "--quiet")


@dataclass(frozen=True)
class Command:
    """A command of ``outcrop`` in the folder.

    Attributes:
        reads: Artifacts that it takes.
        writes: The artifact that it makes or goes on with; empty: none.
        alike: Names what comes of it: commands of one name make the same of the same artifacts.
        epochs: After each of them a checkpoint is written, which a command that is disturbed may leave.
        goes_on: Whether it goes on with what is there, and leaves what is done.
    """

    arguments: tuple[str, ...]
    reads: tuple[str, ...]
    writes: str
    alike: str
    epochs: int = 0
    goes_on: bool = False

    def steps(self) -> list[Command]:
        """Returns the commands that make what this one has made after each epoch but the last."""
        at = self.arguments.index("--epochs") + 1 if self.epochs else 0
        return [
            replace(
                self,
                arguments=(*self.arguments[:at], str(epochs), *self.arguments[at + 1 :]),
                alike=self.alike.replace(str(self.epochs), str(epochs)),
                epochs=epochs,
            )
            for epochs in range(1, self.epochs)
        ]


def _prepare(fanouts: str, *more: str) -> Command:
    sampling = ("--fanouts", fanouts, "--batch-size", "20", "--epochs", "2")
    arguments = ("prepare", "g.oc", "g.run", *sampling, *more, "--overwrite", *_LITTLE)
    alike = f"prepare {fanouts} {' '.join(more)}".strip()
    return Command(arguments, ("g.oc",), "g.run", alike, goes_on=True)


def _train(epochs: int, *mode: str) -> Command:
    sampling = () if "--run" in mode else ("--fanouts", "3,3", "--batch-size", "20")
    reads = ("g.oc", "g.run") if "--run" in mode else ("g.oc",)
    model = "other.ckpt" if "partition" in mode else "ckpt"  # other modes draw the same batches
    arguments = ("train", "g.oc", *mode, *sampling, "--epochs", str(epochs), "--checkpoint", model, *_LEARN)
    return Command(arguments, reads, model, f"train {model} {epochs}", epochs, goes_on=True)


def _embed(epochs: int) -> Command:
    arguments = ("embed", "train", "t.emb", "--epochs", str(epochs), *_VECTORS)
    return Command(arguments, ("t.kg",), "t.emb", f"embed train {epochs}", epochs, goes_on=True)


COMMANDS = {
    "import": Command(("import", "arrays:source", "g.oc", "--overwrite", "--quiet"), (), "g.oc", "import"),
    "import both ways": Command(
        ("import", "arrays:source", "g.oc", "--reverse", "--overwrite", "--quiet"),
        (),
        "g.oc",
        "import reverse",
    ),
    "prepare": _prepare("3,3"),
    "prepare fewer": _prepare("2,2"),
    "prepare in parts": _prepare("3,3", "--parts", "2"),
    "prepare shared": _prepare("3,3", "--layout", "heuristic", "--disk-space", "1000KiB"),
    "train packed": _train(2, "--run", "g.run"),
    "train": _train(2, "--memory", _ROOM),
    "train online": _train(2, "--mode", "online", "--memory", "1MiB"),
    "train direct": _train(2, "--mode", "online", "--disk-space", "0", "--memory", "1MiB"),
    "train refreshed": _train(3, "--refresh", "--sample-epochs", "1", "--memory", "3MiB"),
    "train longer": _train(3, "--mode", "memory"),
    "train on disk": _train(3, "--mode", "ondisk"),
    "train memmap": _train(3, "--mode", "memmap"),
    "train dynamic": _train(3, "--mode", "dynamic", "--memory", "1MiB"),
    "train belady": _train(2, "--run", "g.run", "--mode", "belady"),
    "train partition": _train(2, "--mode", "partition", "--memory", "1200KiB"),
    "infer": Command(
        ("infer", "g.oc", "--checkpoint", "ckpt", "--out", "out.npy", "--quiet"),
        ("g.oc", "ckpt"),
        "out.npy",
        "infer",
    ),
    "verify graph": Command(("verify", "g.oc"), ("g.oc",), "", "verify graph"),
    "verify model": Command(("verify", "ckpt"), ("ckpt",), "", "verify model"),
    "verify run": Command(("verify", "g.run"), ("g.oc", "g.run"), "", "verify run"),
    "import triples": Command(
        ("import", "triples:triples", "t.kg", "--overwrite", "--quiet"), (), "t.kg", "import triples"
    ),
    "embed prepare": Command(
        ("embed", "prepare", "t.kg", "t.emb", "--partitions", "4", "--overwrite", *_LITTLE),
        ("t.kg",),
        "t.emb",
        "embed prepare",
        goes_on=True,
    ),
    "embed train": _embed(1),
    "embed longer": _embed(2),
    "verify vectors": Command(("verify", "t.emb"), ("t.kg", "t.emb"), "", "verify vectors"),
    "embed eval": Command(("embed", "eval", "t.emb"), ("t.kg", "t.emb"), "", "embed eval"),
    "embed export": Command(
        ("embed", "export", "t.emb", "--out", "vectors", "--quiet"),
        ("t.kg", "t.emb"),
        "vectors",
        "embed export",
    ),
}
EMBED = tuple(name for name, command in COMMANDS.items() if command.writes == "t.emb" and command.epochs)
ARTIFACTS = tuple(dict.fromkeys(command.writes for command in COMMANDS.values() if command.writes))
# Commands that build all there is, each on what those before it made.
BUILD = (
    "import", "prepare", "train packed", "infer", "import triples", "embed prepare", "embed train", "embed export"
)  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """One step of a sequence.

    Attributes:
        name: A command, or ``damage`` or ``remove``.
        beside: A command that runs at the same time.
        signal: Sent to the command by one of its own calls.
        error: With which calls of ``kind`` fail, by name; ``half``: they move half of what they should.
        lasting: Whether all calls fail from that one on.
        at: Which call: the part of those that an undisturbed run makes, 0 to 1.
        artifact: What is damaged or removed.
        how: ``flip``, ``cut`` or ``remove`` a file of it.
        place: Which file, and where in it: parts from 0 to 1.
    """

    name: str
    beside: str = ""
    signal: str = ""
    error: str = ""
    kind: str = ""
    lasting: bool = False
    at: float = 0.0
    artifact: str = ""
    how: str = ""
    place: tuple[float, float] = (0.0, 0.0)

    @property
    def disturbed(self) -> bool:
        return bool(self.signal or self.error)

    @property
    def number(self) -> int:
        """Returns what the library is told of the fault: an error, 0 for half, minus a signal."""
        if self.signal:
            return -signal.Signals[self.signal].value
        return 0 if self.error in ("", "half") else getattr(errno, self.error)

    def as_dict(self) -> dict[str, Any]:
        """Returns what is not as it is by itself."""
        plain = type(self)(self.name)
        return {
            "name": self.name,
            **{key: value for key, value in asdict(self).items() if value != getattr(plain, key)},
        }

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Operation:
        if unknown := set(told) - {one.name for one in fields(cls)}:
            raise ValueError(f"an operation has no {sorted(unknown)}")
        found = cls(**{**told, "place": tuple(told.get("place", (0.0, 0.0)))})
        for name in (found.name, found.beside):
            if name not in ("", "damage", "remove", *COMMANDS):
                raise ValueError(f"there is no command {name!r}")
        return found

    def __str__(self) -> str:
        if self.name == "remove":
            return f"rm -rf {self.artifact}"
        if self.name == "damage":
            return f"# {self.how} a file of {self.artifact}, at {self.place}"
        said = f"outcrop {' '.join(COMMANDS[self.name].arguments)}"
        if self.beside:
            said += f" & outcrop {' '.join(COMMANDS[self.beside].arguments)}; wait"
        if self.signal:
            said += f"  # {self.signal} by a call of its own, {self.at:.3f} of all"
        if self.error:
            said += f"  # {self.kind}: {self.error}{', from then on' if self.lasting else ''}, {self.at:.3f} of all"
        return said


def draw(seed: str, length: int) -> list[Operation]:
    """Draws a sequence: mostly commands in an order that makes sense, half of them disturbed. Equal for equal seeds."""
    chance = random.Random(seed)
    return list(_drawn(chance, length))


def _drawn(chance: random.Random, length: int) -> Iterator[Operation]:
    plan: Sequence[str] = BUILD
    for _ in range(length):
        if not plan and chance.random() < 0.4:  # a while in the order of work, else anything
            first = chance.randrange(len(BUILD))
            plan = BUILD[first : first + chance.randint(1, 4)]
        name, plan = (plan[0], plan[1:]) if plan else (chance.choice(list(COMMANDS)), ())
        what = chance.random()
        if what < 0.08:
            how, place = chance.choice(("flip", "cut", "remove")), (chance.random(), chance.random())
            yield Operation("damage", artifact=chance.choice(ARTIFACTS), how=how, place=place)
        elif what < 0.12:
            yield Operation("remove", artifact=chance.choice(ARTIFACTS))
        elif what < 0.2:
            beside = name if chance.random() < 0.5 else chance.choice(list(COMMANDS))
            yield Operation(name, beside=beside)
        elif what < 0.45:
            yield Operation(name, signal=chance.choice(SIGNALS), at=chance.random())
        elif what < 0.6:
            kind = chance.choice([one for one in KINDS if one not in SPARED.get(name, ())])
            error, lasting = chance.choice(ERRORS[kind]), chance.random() < 0.3
            yield Operation(name, error=error, kind=kind, lasting=lasting, at=chance.random())
        else:
            yield Operation(name)
