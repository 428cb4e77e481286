#!/usr/bin/env python3
"""Fails every call that a command makes on its files, for threads or for memory, one in each run, and looks at what
comes of it.

    scripts/fail_calls.py [JOB ...] [--every N] [--kinds read,write,...] [--kill] [--at K] [--json FILE]

Each job is a command of ``outcrop`` on small input in a folder of its own. An undisturbed run counts the calls of each
kind (tests/faults/failing_calls.c) and says what the command makes. Then, for every k: the k-th call of a kind fails
with an error that such calls have, once or from then on, or moves half of what it was asked for. Of memory, pieces of
64 KiB and more count. The command must end within a minute, either with what the undisturbed run made, or with status 1
and one error that names a file or the cause, or says that memory ran out and what to do, without a traceback. The same
command, run again without faults, must then make what the undisturbed run made.

With ``--kill`` no call fails: the process is killed (SIGKILL) right before each call by which it changes or opens
files, and the same command must make all of it, and leave nothing else.

``--every N`` takes each N-th call alone, another share for each kind. Ends with status 1 where something was otherwise.
Runs are forks of this process, which has imported all; it needs gcc for the library that it is started with.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import ctypes
import errno
import gc
import importlib
import json
import mmap
import os
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import safetensors.numpy

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(Path(__file__).resolve().parent)]

from add_run import RunList  # noqa: E402

BESIDE = "hidden files"
LIBRARY, SECONDS = "OUTCROP_FAILING_CALLS", 60
MEMORY = "1600KiB"  # beside its buffers a third of the rows fits: some are cached, others are packed and read
OF_TYPES = "1500KiB"  # the same of a graph with types
TIMED = ("run.json", "imported.json", "timeline.json")  # say when, or how long
KINDS = {
    "open": 1, "read": 2, "write": 4, "sync": 8, "name": 16, "size": 32, "map": 64, "thread": 128, "memory": 256
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """Says how a call fails: with ``error``, 0 for one that moves half; ``once``, or all from that one on.

    An ``error`` below 0 is a signal, which the process gets in the place of an error.
    """

    error: int
    once: bool

    def __str__(self) -> str:
        if self.error < 0:
            return signal.Signals(-self.error).name
        if not self.error:
            return "half" if self.once else "half, from then on"
        return errno.errorcode[self.error] + ("" if self.once else ", from then on")


FAULTS = {
    "open": (Fault(errno.EIO, True), Fault(errno.EMFILE, True)),
    "read": (Fault(errno.EIO, True), Fault(0, True)),
    "write": (Fault(errno.ENOSPC, False), Fault(errno.EIO, True), Fault(0, True)),
    "sync": (Fault(errno.EIO, True),),
    "name": (Fault(errno.EIO, True), Fault(errno.EROFS, False)),
    "size": (Fault(errno.ENOSPC, True),),
    "map": (Fault(errno.ENOMEM, True),),
    "thread": (Fault(errno.EAGAIN, True),),
    "memory": (Fault(errno.ENOMEM, True), Fault(errno.ENOMEM, False)),
}
KILL = Fault(-signal.SIGKILL, True)
KILLED = ("open", "write", "sync", "name", "size")  # between two of these calls no file becomes another


@dataclass(frozen=True)
class Ended:
    """Says how a run ended: its status (negative: by a signal; None: it hung), what it printed, which call failed."""

    status: int | None
    said: str
    counted: int
    failed: int
    first: str


@dataclass
class Job:
    """A command on small input.

    Attributes:
        begin: Makes the folder that it runs in.
        command: What comes after ``outcrop``, with paths in that folder.
        found: What it has made, by name.
        spared: Kinds of calls that do not fail: Arrow, which reads CSV files, waits for ever for a thread of its own
            that could not be started.
    """

    name: str
    begin: Callable[[Path], None]
    command: Sequence[str]
    found: Callable[[Path], dict[str, Any]]
    spared: Sequence[str] = ()
    counted: dict[str, int] = field(default_factory=dict)
    want: dict[str, Any] = field(default_factory=dict)


class Shared:
    """Memory that the runs write what they have counted to."""

    def __init__(self, library: ctypes.CDLL):
        self._memory = mmap.mmap(-1, 4096)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._library = library

    def clear(self) -> None:
        self._memory[:] = bytes(4096)

    def begin(self, folder: Path, at: int, fault: Fault, kinds: int) -> None:
        given = (ctypes.c_char_p(str(folder).encode()), ctypes.c_void_p(self._address), ctypes.c_long(at))
        self._library.begin_failing(*given, fault.error, int(fault.once), kinds)

    def each(self, kinds: int) -> tuple[int, ...]:
        """Returns how many calls of each kind were made, counted or not."""
        ends = range(528, 528 + 8 * kinds, 8)
        return tuple(int.from_bytes(self._memory[at : at + 8], sys.byteorder) for at in ends)

    def counts(self) -> tuple[int, int, str]:
        counted, failed = (int.from_bytes(self._memory[at : at + 8], sys.byteorder) for at in (0, 8))
        return counted, failed, self._memory[16:528].split(b"\0", 1)[0].decode(errors="replace")


def run(shared: Shared, folder: Path, command: Sequence[str], at: int, fault: Fault, kind: str) -> Ended:
    """Runs a command in ``folder`` as a fork, with the ``at``-th call of a kind failing."""
    shared.clear()
    log = folder.with_suffix(".said")
    child = os.fork()
    if child == 0:
        be_the_command(
            folder, log, command, lambda: shared.begin(folder, at, fault, KINDS[kind]), lambda: None
        )
    ended = wait(child, log)
    return Ended(ended.status, ended.said, *shared.counts())


def wait(child: int, log: Path) -> Ended:
    """Waits for a fork, and says how it ended; one that was stopped goes on after a while, one that hangs is killed."""
    status, until = None, time.monotonic() + SECONDS
    while time.monotonic() < until:
        done, how = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if done and os.WIFSTOPPED(how):
            time.sleep(0.05)
            os.kill(child, signal.SIGCONT)
        elif done:
            status = os.waitstatus_to_exitcode(how)
            break
        time.sleep(0.002)
    else:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return Ended(status, log.read_text(errors="replace") if log.exists() else "", 0, 0, "")


def run_undisturbed(folder: Path, log: Path, command: Sequence[str]) -> Ended:
    """Runs a command in ``folder`` as a fork, which nothing disturbs; what it prints goes to ``log``."""
    child = os.fork()
    if child == 0:
        be_the_command(folder, log, command, lambda: None, lambda: None)
    return wait(child, log)


def be_the_command(
    folder: Path, log: Path, command: Sequence[str], begin: Callable[[], None], end: Callable[[], None]
) -> NoReturn:
    """Runs ``outcrop`` in this fork, between ``begin`` and ``end``, and ends as any Python does."""
    status = 70
    try:
        os.setsid()
        said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(said, number)
        from outcrop.cli import main

        os.chdir(folder)
        sys.argv = ["outcrop", *command]
        begin()
        main.run()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            with contextlib.suppress(BaseException):
                threading._shutdown()  # type: ignore[attr-defined]
                atexit._run_exitfuncs()
                sys.stdout.flush()
                sys.stderr.flush()
            end()
        finally:  # whatever comes: what follows is for the parent alone
            os._exit(status)


def wrong_of(ended: Ended, made: bool, job: Job, kind: str = "read") -> str:
    """Says what is not as it must be after a fault of a ``kind``; empty: nothing.

    Args:
        made: Whether all is there as undisturbed.
    """
    if ended.status is None:
        return f"hung for {SECONDS} s"
    if "Traceback" in ended.said:
        return "a traceback"
    if ended.status == 0:
        return "" if made else "status 0, and something else was made"
    if ended.status < 0:
        return f"ended by signal {-ended.status}"
    if ended.status != 1:
        return f"status {ended.status}"
    text = " ".join(ended.said.split())
    if "error:" not in text:
        return "no error is said"
    if "may be a bug of Outcrop" in text:
        return "it was not foreseen"
    said = text.partition("error:")[2]
    if kind == "memory":
        return (
            ""
            if "memory" in said and re.search("ulimit|--memory", said)
            else "the error does not say that memory ran out"
        )
    given = {word.rpartition(":")[2] for word in job.command[1:]} - {""}  # also FOLDER of arrays:FOLDER
    if not re.search(r"/|\.\w+", said) and not any(name in said for name in given):
        return "the error names no file"
    return ""


class Search:
    """Runs jobs with faults.

    Attributes:
        tried, named: How many faults there were, and after how many of them the command ended with an error.
        wrong: What was otherwise, with the fault that shows it.
    """

    def __init__(self, shared: Shared, folder: Path, say: Callable[[str], None]):
        self._shared, self._folder, self._say = shared, folder, say
        self.tried, self.named, self.wrong = Counter[str](), Counter[str](), list[str]()

    def learn(self, job: Job) -> None:
        """Runs the command undisturbed, twice: it must make the same."""
        for _ in range(2):
            with self._fresh(job) as folder:
                ended = run(self._shared, folder, job.command, 0, Fault(0, True), "read")
                if ended.status != 0:
                    raise SystemExit(f"{job.name}, undisturbed: status {ended.status}\n{ended.said}")
                job.counted = dict(zip(KINDS, self._shared.each(len(KINDS)), strict=True))
                found = job.found(folder)
                if job.want and (other := differences(found, job.want)):
                    raise SystemExit(f"{job.name}, undisturbed, makes other {other} each time")
                job.want = found
        self._say(f"{job.name}: {json.dumps(job.counted)}")

    def fail(self, job: Job, kind: str, at: int, fault: Fault) -> None:
        """Has one call fail, and the command run again."""
        with self._fresh(job) as folder:
            ended = run(self._shared, folder, job.command, at, fault, kind)
            other = differences(job.found(folder), job.want)
            made = ended.status == 0 and other in (
                [],
                [BESIDE],
            )  # what could not be removed, the next command removes
            killed = fault is KILL and ended.failed > 0 and ended.status == fault.error
            wrong = "" if killed else wrong_of(ended, made, job, kind)
            again = run(self._shared, folder, job.command, 0, Fault(0, True), kind)
            self.tried[job.name] += ended.failed > 0
            self.named[job.name] += ended.status == (fault.error if fault is KILL else 1)
            if again.status != 0:
                wrong = (
                    f"{wrong}; then the same command ends with {again.status}: {again.said.strip()[-500:]}"
                )
            elif other := differences(job.found(folder), job.want):
                wrong = f"{wrong}; then the same command makes other {other}"
        if wrong:
            self.wrong.append(f"{job.name}: {kind} {at}, {fault}: {ended.first}: {wrong.strip('; ')}")
            self._say(f"WRONG {self.wrong[-1]}\n   said: {' '.join(ended.said.split())[-600:]}")

    @contextlib.contextmanager
    def _fresh(self, job: Job) -> Iterator[Path]:
        folder = self._folder / "case"
        job.begin(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def tensors_of(name: str, data: bytes) -> Any:
    """Returns the tensors alone of a file of some: what it says of them has times. A broken file: its bytes."""
    if not name.endswith(".safetensors"):
        return data
    with contextlib.suppress(safetensors.SafetensorError):
        return {key: value.tobytes() for key, value in safetensors.numpy.load(data).items()}
    return data


def differences(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    return sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))


def make_inputs(made: Path) -> None:
    """Makes small inputs, by a child: threads that this process started would be missing in its forks."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _make_inputs(made)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    if os.waitpid(child, 0)[1]:
        raise SystemExit("the inputs could not be made")


def _make_inputs(made: Path) -> None:
    import outcrop as oc

    quiet, random, source = oc.Observer(progress=False), np.random.default_rng(0), made / "source"
    source.mkdir(parents=True)
    np.save(source / "edges.npy", random.integers(0, 300, (2, 3000)))
    np.save(source / "features.npy", random.random((300, 200), np.float32))
    np.save(source / "labels.npy", random.integers(0, 5, 300))
    for name, begin in (("train", 0), ("valid", 60), ("test", 120)):
        np.save(source / f"{name}.npy", np.arange(begin, begin + 60))
    (made / "triples").mkdir()
    heads, relations, tails = (
        random.integers(0, 60, 400),
        random.integers(0, 4, 400),
        random.integers(0, 60, 400),
    )
    _make_shop(made / "shop", random)
    lines = [f"n{h}\tr{r}\tn{t}\n" for h, r, t in zip(heads, relations, tails, strict=True)]
    for name, begin, end in (("train", 0, 360), ("valid", 360, 380), ("test", 380, 400)):
        (made / "triples" / f"{name}.txt").write_text("".join(lines[begin:end]))
    oc.import_triples(made / "triples", made / "t.kg", progress=False)
    config = oc.BucketConfig(4)
    oc.embed_prepare(made / "t.kg", made / "t.emb", config, progress=False)
    shutil.copytree(made / "t.emb", made / "trained.emb")
    small = oc.EmbedConfig(dim=8, epochs=1, negatives=8, batch=50, chunk=10)
    oc.embed_train(made / "trained.emb", config=small, observer=quiet)
    graph = oc.import_graph(f"arrays:{source}", made / "g.oc", progress=False)
    sampling = oc.SampleConfig(fanouts=(3, 3), batch_size=20)
    oc.prepare(graph, made / "g.run", sampling=sampling, epochs=1, memory=MEMORY, observer=quiet)
    typed = oc.import_graph(f"tables:{made / 'shop'}", made / "typed.oc", progress=False)
    for of, model, checkpoint in ((graph, "sage", "ckpt"), (typed, "rgcn", "typed.ckpt")):
        oc.train(
            of,
            model=oc.ModelConfig(model, hidden=4),
            training=oc.TrainConfig(epochs=1),
            sampling=sampling,
            loading=oc.InMemory(),
            checkpoint=made / checkpoint,
            observer=quiet,
        )


def _make_shop(folder: Path, random: np.random.Generator) -> None:
    """Makes tables with keys: users that have labels, items and purchases with features, which refer to both."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    users = [f"u{7 * i}" for i in range(90)]
    parts = ["train"] * 50 + ["valid"] * 20 + ["test"] * 20
    lines = [
        f"{user},{random.integers(18, 80)},{'abc'[random.integers(3)]},{part}"
        for user, part in zip(users, parts, strict=True)
    ]
    (folder / "user.csv").write_text("\n".join(["id,age,kind,part", *lines]) + "\n")
    items, bought = np.arange(1000, 1300), random.integers(0, (90, 300), (600, 2))
    keys = {"user": [users[i] for i in bought[:, 0]], "item": items[bought[:, 1]]}
    for name, columns, width in (("item", {"id": items}, 64), ("purchase", keys, 48)):
        rows = len(columns["item" if name == "purchase" else "id"])
        values = {f"x{i}": random.random(rows, np.float32) for i in range(width)}
        pq.write_table(pa.table({**columns, **values}), folder / f"{name}.parquet")
    (folder / "tables.toml").write_text(_SHOP)


_SHOP = """
[[tables]]
name = "user"
file = "user.csv"
key = "id"
label = "kind"
split = "part"

[[tables]]
name = "item"
file = "item.parquet"
key = "id"

[[tables]]
name = "purchase"
file = "purchase.parquet"
foreign_keys = { user = "user", item = "item" }
"""


def learned(folder: Path) -> dict[str, Any]:
    """Returns the tensors of the checkpoints in ``ckpt``, or what is wrong with them."""
    from outcrop.errors import OutcropError
    from outcrop.nn import checkpoint as checkpoints
    from outcrop.store.tensors import digest

    found: dict[str, Any] = {BESIDE: sorted(p.name for p in folder.iterdir() if p.name.startswith("."))}
    for name in ("last", "best"):
        path = folder / "ckpt" / f"{name}.safetensors"
        if path.is_file():
            try:
                at = checkpoints.read(path)
                found[name] = digest(at.model if name == "last" else at.best or at.model)
            except OutcropError as broken:
                found[name] = str(broken)
    return found


def files_below(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Returns what files hold, of checkpoints the tensors, by path: those of these names in ``folder``, and below them.

    What says when, or how long something took, is left out; names of hidden files in ``folder`` are one entry more.
    """
    from artifact_support import tree

    made: dict[str, Any] = {BESIDE: sorted(p.name for p in folder.iterdir() if p.name.startswith("."))}
    for name in names:
        path = folder / name
        here = tree(path) if path.is_dir() else {"": path.read_bytes()} if path.is_file() else {}
        made |= {
            f"{name}/{inner}": tensors_of(inner, data)
            for inner, data in here.items()
            if Path(inner).name not in TIMED
        }
    return made


def jobs(made: Path) -> list[Job]:
    """Returns the jobs, which begin with copies of what :func:`make_inputs` has made."""
    from outcrop.preparation import pack

    usual = pack.LOG_WORTH_BYTES

    def copies(*names: str, by_log: bool = False) -> Callable[[Path], None]:
        def begin(folder: Path) -> None:
            pack.LOG_WORTH_BYTES = -(1 << 60) if by_log else usual  # for the forks to come
            folder.mkdir()
            for name in names:
                shutil.copytree(made / name, folder / name)

        return begin

    def files_of(*names: str) -> Callable[[Path], dict[str, Any]]:
        return lambda folder: files_below(folder, names)

    learn = ["--epochs", "2", "--hidden", "4", "--checkpoint", "ckpt", "--quiet"]
    vectors = ["--dim", "8", "--epochs", "2", "--negatives", "8", "--chunk", "10", "--batch", "50", "--quiet"]
    same, little = ["--fanouts", "3,3", "--batch-size", "20"], ["--memory", MEMORY, "--quiet"]
    few = ["--fanouts", "3,3", "--batch-size", "10"]
    return [
        Job("import", copies("source"), ["import", "arrays:source", "g.oc", "--quiet"], files_of("g.oc")),
        Job("prepare", copies("g.oc"), ["prepare", "g.oc", "g.run", *same, "--epochs", "1", *little],
            files_of("g.oc", "g.run")),
        Job("prepare by a log", copies("g.oc", by_log=True),
            ["prepare", "g.oc", "g.run", *same, "--epochs", "1", *little], files_of("g.oc", "g.run")),
        Job("train packed", copies("g.oc", "g.run"), ["train", "g.oc", "--run", "g.run", *learn], learned),
        Job("train online", copies("g.oc"),
            ["train", "g.oc", "--mode", "online", "--disk-space", "0", "--memory", "700KiB", *same, *learn], learned),
        Job("train", copies("g.oc"), ["train", "g.oc", "--memory", MEMORY, *same, *learn], learned),
        Job("infer", copies("g.oc", "ckpt"),
            ["infer", "g.oc", "--checkpoint", "ckpt", "--out", "out.npy", "--quiet"], files_of("out.npy")),
        Job("train refreshed", copies("g.oc"),
            ["train", "g.oc", "--refresh", "--sample-epochs", "1", "--memory", "2MiB", *same, *learn], learned),
        Job("import tables", copies("shop"), ["import", "tables:shop", "typed.oc", "--quiet"], files_of("typed.oc"),
            spared=["thread"]),
        Job("prepare typed", copies("typed.oc"),
            ["prepare", "typed.oc", "typed.run", *few, "--epochs", "1", "--memory", OF_TYPES, "--quiet"],
            files_of("typed.oc", "typed.run")),
        Job("train typed", copies("typed.oc"),
            ["train", "typed.oc", "--model", "rgcn", *few, "--memory", OF_TYPES, *learn], learned),
        Job("infer typed", copies("typed.oc", "typed.ckpt"),
            ["infer", "typed.oc", "--checkpoint", "typed.ckpt", "--out", "out.npy", "--quiet"], files_of("out.npy")),
        Job("import triples", copies("triples"), ["import", "triples:triples", "t.kg", "--quiet"], files_of("t.kg"),
            spared=["thread"]),
        Job("embed prepare", copies("t.kg"), ["embed", "prepare", "t.kg", "t.emb", "--partitions", "4", *little],
            files_of("t.emb")),
        Job("embed train", copies("t.kg", "t.emb"), ["embed", "train", "t.emb", *vectors], files_of("t.emb")),
        Job("embed train ranked", copies("t.kg", "t.emb"),
            ["embed", "train", "t.emb", *vectors, "--evaluate-every", "1"], files_of("t.emb")),
        Job("embed export", copies("t.kg", "trained.emb"), ["embed", "export", "trained.emb", "--quiet"],
            files_of("trained.emb/export")),
        Job("verify", copies("g.oc", "g.run"), ["verify", "g.run"], files_of("g.oc", "g.run")),
    ]  # fmt: skip


def started_with_library(arguments: Sequence[str]) -> ctypes.CDLL:
    """Returns the library, which this process has loaded before all others; starts it anew where it has not."""
    if LIBRARY not in os.environ:
        with tempfile.TemporaryDirectory(prefix="outcrop-calls-") as folder:
            library = Path(folder) / "failing_calls.so"
            source = TESTS / "faults" / "failing_calls.c"
            subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
            more = {LIBRARY: str(library), "LD_PRELOAD": str(library), "OUTCROP_IO_BACKEND": "pread"}
            more |= {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
            raise SystemExit(subprocess.run([sys.executable, *arguments], env=os.environ | more).returncode)
    return ctypes.CDLL(os.environ[LIBRARY])


def import_all() -> None:
    """Imports what commands do, once for all forks, which would copy and look through it where it were collected."""
    import outcrop

    for name in ("torch_geometric", "typer._adapters", "encodings.unicode_escape", "numpy.ctypeslib"):
        importlib.import_module(name)
    for module in pkgutil.walk_packages(outcrop.__path__, "outcrop."):
        if not module.name.startswith(("outcrop.bench", "outcrop.device", "outcrop.__main__")):
            with contextlib.suppress(ImportError):  # of what is for GPUs alone
                importlib.import_module(module.name)
    importlib.import_module("torch_geometric.nn").SAGEConv(1, 1)  # writes a module of its own, once
    importlib.import_module("pydantic").TypeAdapter(int)  # looks for plugins, once
    for unload in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        unload.atexit = False  # torch's of its operators: a third of the time that a short command takes
    gc.collect()
    gc.freeze()


def have_products_buffers() -> None:
    """Multiplies matrices, whose buffers MKL keeps: where it gets none it adds up in another order, in silence."""
    import torch

    for size in (16, 64, 256):
        torch.ones(size, size) @ torch.ones(size, size)


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser of what is typed for a search over jobs, which ``doc`` describes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", help="by name; all unless given")
    parser.add_argument("--json", type=Path, help="adds what was tried to the searches that this file lists")
    return parser


def chosen_jobs(inputs: Path, names: Sequence[str]) -> list[Job]:
    """Makes the inputs of all jobs in ``inputs``; returns the jobs with these names, all where there are none.

    Raises:
        SystemExit: There is no job of such a name.
    """
    known = {job.name: job for job in jobs(inputs)}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"there is no job {unknown[0]!r}: {', '.join(known)}")
    make_inputs(inputs)
    return [job for job in known.values() if not names or job.name in names]


def list_of_jobs(asked: argparse.Namespace, experiment: str, ended: str = "ended with an error") -> RunList:
    """Returns where what is done to each job is to be noted, of which the newest counts: ``job``, ``calls`` (what can
    fail in it), ``tried``, ``named`` (how often it ``ended`` so), ``wrong``.

    Raises:
        SystemExit: A part of a job would be noted as the whole.
    """
    if asked.json is not None and asked.at is not None:
        raise SystemExit("--json is about whole jobs: leave out --at")
    return RunList(asked.json, experiment, partial(rows_of, ended))


def rows_of(ended: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Puts the newest search of each job, and of what was done to it where that differs, into a table."""
    newest = {(run["job"], run["of"]): run for run in runs}
    alike = len({of for _, of in newest}) == 1
    return {
        "tried": sum(run["tried"] for run in newest.values()),
        "wrong": sum(len(run["wrong"]) for run in newest.values()),
        "columns": ["command", *([] if alike else ["what"]), "calls", "tried", ended, "wrong"],
        "rows": [
            [job, *([] if alike else [of]), *(f"{run[key]:,}" for key in ("calls", "tried", "named")),
             str(len(run["wrong"]))]
            for (job, of), run in newest.items()
        ],
    }  # fmt: skip


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--every", type=int, default=1, help="takes each N-th call alone")
    parser.add_argument("--kinds", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--kill", action="store_true", help="kills the command in place of failing a call")
    parser.add_argument("--at", type=int, help="takes this call alone")
    asked = parser.parse_args()
    asked.kinds = asked.kinds or ",".join(KILLED if asked.kill else KINDS)
    if unknown := set(asked.kinds.split(",")).difference(KINDS):
        parser.error(f"there is no kind {', '.join(sorted(unknown))} of calls: {', '.join(KINDS)}")
    library = started_with_library(sys.argv)
    from artifact_support import memory_folder

    import_all()
    what = "kills" if asked.kill else "faults"
    have_products_buffers()
    noted = list_of_jobs(asked, *(("kill-calls", "killed") if asked.kill else ("fail-calls",)))
    shared, began = Shared(library), time.monotonic()
    with memory_folder() as folder:
        chosen = chosen_jobs(folder / "made", asked.jobs)
        search = Search(shared, folder, lambda text: print(text, flush=True))
        for job in chosen:
            search.learn(job)
            before, since = len(search.wrong), time.monotonic()
            for number, kind in enumerate(asked.kinds.split(",")):
                if kind in job.spared:
                    continue
                first = 1 + number % asked.every
                calls = [asked.at] if asked.at else range(first, job.counted[kind] + 1, asked.every)
                for at in calls:
                    for fault in (KILL,) if asked.kill else FAULTS[kind]:
                        search.fail(job, kind, at, fault)
            print(f"{job.name}: {search.tried[job.name]} {what}, {len(search.wrong)} wrong so far, "
                  f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
            noted.add({
                "job": job.name, "of": asked.kinds, "every": asked.every, "kinds": job.counted,
                "calls": sum(job.counted[kind] for kind in asked.kinds.split(",")),
                "tried": search.tried[job.name], "named": search.named[job.name], "wrong": search.wrong[before:],
                "seconds": time.monotonic() - since,
            })  # fmt: skip
    named = f"{search.named.total()} {'killed' if asked.kill else 'named'}"
    print(f"{search.tried.total()} {what}, {named}, {len(search.wrong)} wrong")
    return len(search.wrong) > 0


if __name__ == "__main__":
    sys.exit(main())
