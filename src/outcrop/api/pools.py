"""Sample pools that are refreshed: pool k holds the batches of epochs kE to (k + 1)E - 1, and is gone after them.

While pool k trains, pool k + 1 is prepared by a process of its own, ``outcrop prepare-pool``: at the lowest CPU and
I/O priority, in a quarter of the memory budget, no faster than a given rate, dead when its parent is. Batches are
keyed by the number of their epoch, so the result is that of preparing all epochs at once, whatever the timing.

Folder: ``eval``, the batches of validation and test, prepared once; ``pool-<k>``, at most two at a time. Each is a run.
Disk: what ``eval`` takes, half of all at the most, and half of the rest for each pool. Memory: a quarter for
preparing, an eighth for ``eval`` (up to a third, where its batches do not fit in less), 1/32 stays free, training has
the rest.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from outcrop.api.prepare import PrepareReport, prepare_described
from outcrop.api.run import open_session
from outcrop.config import DeviceConfig, PlanConfig, SampleConfig, format_bytes
from outcrop.errors import ArgumentError, BudgetError, OutcropError
from outcrop.runtime import Runtime
from outcrop.stages.load import LoadSession
from outcrop.store import manifest as manifests
from outcrop.store import run as runs
from outcrop.store.graph import Graph

_POLL_SECONDS = 0.05
_MOST_STDERR_BYTES = 4096
_EVAL_DIVISORS = (
    8,
    6,
    4,
    3,
)  # parts of the memory budget that evaluation has one of: the least that is enough
_POOL_NAME = re.compile(r"pool-(\d+)")
EVAL = "eval"


@dataclass(frozen=True)
class Shares:
    """Bytes of the memory budget for each; None = no limit."""

    prepare: int | None
    evaluate: int | None
    train: int | None
    runtime: int | None  # of the training process: train, evaluate and what stays free

    @staticmethod
    def of(memory: int | None, divisor: int = _EVAL_DIVISORS[0]) -> Shares:
        if memory is None:
            return Shares(None, None, None, None)
        quarter, evaluate = memory // 4, memory // divisor
        return Shares(quarter, evaluate, memory - quarter - evaluate - memory // 32, memory - quarter)

    def explain(self, error: BudgetError) -> BudgetError:
        """``error`` of one share as one of the whole."""
        memory = (
            "memory has no limit"
            if self.prepare is None
            else f"preparing has {format_bytes(self.prepare)} of memory, evaluation "
            f"{format_bytes(self.evaluate or 0)}, training {format_bytes(self.train or 0)}"
        )
        return BudgetError(
            f"refreshing divides the budgets ({memory}; of the disk evaluation has at most half, each of two pools "
            f"half of the rest), and for one of them: {error}"
        )


@dataclass
class PoolRecord:
    """One pool as it was used. ``waited_seconds``: training stood still for it."""

    pool: int
    first_epoch: int
    waited_seconds: float
    disk_bytes: int


class Background:
    """A process that prepares the run described in ``folder``. :meth:`check` raises its error."""

    def __init__(self, folder: Path, memory: int | None, rate: int | None):
        self.folder = folder
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        command = [sys.executable, "-m", "outcrop", "prepare-pool", str(folder), "--parent", str(os.getpid())]
        command += [] if memory is None else ["--memory", str(memory)]
        command += [] if rate is None else ["--rate", str(rate)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._stderr
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> bool:
        """Whether it is done.

        Raises:
            OutcropError: It failed or was killed; the message has its own.
        """
        code = self._process.poll()
        if code is None:
            return False
        if code == 0:
            return True
        if code < 0:
            why = f"it was killed by {signal.Signals(-code).name}: run the same command again to go on"
        else:
            self._stderr.seek(0, os.SEEK_END)
            self._stderr.seek(max(self._stderr.tell() - _MOST_STDERR_BYTES, 0))
            why = self._stderr.read().decode(errors="replace").strip().removeprefix("error: ")
        raise OutcropError(
            f"preparing {self.folder} in the background failed: {why or f'exit status {code}'}"
        )

    def wait(self, seconds: float) -> None:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return

    def close(self) -> None:
        """Ends it, if it is not done: what it prepared stays, to go on from."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._stderr.close()


class Pools:
    """The pools of one training.

    Args:
        folder: Where they lie; made where needed, removed by nobody but the user.
        config: What is sampled; ``config.epochs`` is E.
        plan: Limits of the whole; its ``memory`` is the budget of everything, ``disk_space`` of all files.
        epochs: Of the whole training.
        rate: Bytes per second that preparing in the background reads and writes at the most; None = no limit.
    """

    def __init__(
        self,
        graph: Graph,
        folder: Path,
        config: SampleConfig,
        plan: PlanConfig,
        epochs: int,
        rate: int | None,
    ):
        self._graph, self._folder, self._config, self._plan = graph, folder, config, plan
        self._epochs, self._rate = epochs, rate
        self.shares = Shares.of(plan.memory)
        self._eval_splits = tuple(
            s for s in config.splits if s != "train" and graph.has(s) and graph.spec(s).shape[0]
        )
        self._pool_space: int | None = None
        self._current, self._background = -1, None
        self._train: LoadSession | None = None
        self._eval: LoadSession | None = None
        self.records: list[PoolRecord] = []

    def _pool(self, number: int) -> Path:
        return self._folder / f"pool-{number}"

    def prepare(self, first_epoch: int | None, runtime: Runtime) -> PrepareReport | None:
        """Prepares what training begins with: the evaluation batches, and the pool of ``first_epoch`` (None: no pool).

        ``runtime`` has the memory that preparing in the background will have, so what cannot work fails here.
        """
        self._check_folder()
        space = self._plan.disk_space
        used = 0
        if self._eval_splits:
            used = self._prepare_eval(runtime).disk_bytes
        self._pool_space = None if space is None else (space - used) // 2
        if first_epoch is None:
            self._remove_but(())
            return None
        number = first_epoch // self._config.epochs
        self._remove_but((number, number + 1))
        self._describe_pool(number)
        try:
            return prepare_described(self._pool(number), runtime)
        except BudgetError as error:
            raise self.shares.explain(error) from error

    def _prepare_eval(self, runtime: Runtime) -> PrepareReport:
        space = self._plan.disk_space
        config = replace(self._config, splits=self._eval_splits, epochs=1)
        plan = replace(
            self._plan,
            gpu_memory=0,
            disk_space=None if space is None else space // 2,
            packed_splits=("valid",) if "valid" in self._eval_splits else self._eval_splits,
        )
        failed = BudgetError()
        for divisor in _EVAL_DIVISORS:
            self.shares = Shares.of(self._plan.memory, divisor)
            self._describe(self._folder / EVAL, config, replace(plan, memory=self.shares.evaluate))
            try:
                return prepare_described(self._folder / EVAL, runtime)
            except BudgetError as error:
                failed = error
        raise self.shares.explain(failed) from failed

    def _check_folder(self) -> None:
        if not self._folder.exists():
            return
        for found in self._folder.iterdir() if self._folder.is_dir() else (self._folder,):
            if not (found.is_dir() and (found.name == EVAL or _POOL_NAME.fullmatch(found.name))):
                raise ArgumentError(
                    f"{self._folder} holds {found.name} and so is no folder of sample pools: name another folder "
                    "with --run, or none"
                )

    def _describe_pool(self, number: int) -> None:
        config = replace(self._config, splits=("train",), first_epoch=number * self._config.epochs)
        plan = replace(self._plan, memory=self.shares.train, disk_space=self._pool_space)
        self._describe(self._pool(number), config, plan)

    def _describe(self, folder: Path, config: SampleConfig, plan: PlanConfig) -> None:
        with manifests.naming_files(folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        path = os.path.relpath(self._graph.path.resolve(), folder.resolve())
        runs.write(folder, runs.RunInfo(path, self._graph.digest(), config, plan))

    def _remove_but(self, kept: tuple[int, ...]) -> None:
        for found in self._folder.iterdir() if self._folder.is_dir() else ():
            match = _POOL_NAME.fullmatch(found.name)
            if match and int(match[1]) not in kept:
                shutil.rmtree(found)

    def session(self, split: str, epoch: int, runtime: Runtime, to: DeviceConfig) -> LoadSession:
        """Loading of one epoch of ``split``; goes on to the next pool, and waits for it, where ``epoch`` needs it."""
        if split != "train":
            if self._eval is None:
                self._eval = self._open(self._folder / EVAL, runtime, to)
            return self._eval
        number = epoch // self._config.epochs
        if number != self._current or self._train is None:
            self._switch(number, runtime, to)
        assert self._train is not None
        return self._train

    def _open(self, folder: Path, runtime: Runtime, to: DeviceConfig) -> LoadSession:
        return open_session(self._graph, runtime, "packed", run_folder=folder, to=to)

    def _switch(self, number: int, runtime: Runtime, to: DeviceConfig) -> None:
        started = time.monotonic()
        if self._train is not None:
            self._train.close()
            self._train = None
            gc.collect()  # what cycles of the last pass hold must be back before the next buffers are taken
        if self._background is not None:
            self._finish_background(runtime)
        self._remove_but((number,))
        self._train, self._current = self._open(self._pool(number), runtime, to), number
        disk = sum(f.stat().st_size for f in self._pool(number).rglob("*") if f.is_file())
        waited = time.monotonic() - started
        self.records.append(PoolRecord(number, number * self._config.epochs, waited, disk))
        runtime.trace.event("pool", pool=number, waited_seconds=waited)
        if (number + 1) * self._config.epochs < self._epochs:
            self._describe_pool(number + 1)
            self._background = Background(self._pool(number + 1), self.shares.prepare, self._rate)

    def _finish_background(self, runtime: Runtime) -> None:
        assert self._background is not None
        if not self._background.check():
            task = f"wait for {self._background.folder.name}"
            runtime.progress.start(task, 1, "pools")
            while not self._background.check():
                self._background.wait(_POLL_SECONDS)
            runtime.progress.finish(task)
        self._background.close()
        self._background = None

    def check(self) -> None:
        """Raises the error of what runs in the background. Cheap: called for every batch."""
        if self._background is not None:
            self._background.check()

    def as_dicts(self) -> list[dict[str, Any]]:
        return [asdict(record) for record in self.records]

    def close(self) -> None:
        if self._background is not None:
            self._background.close()
            self._background = None
        for session in (self._train, self._eval):
            if session is not None:
                session.close()
        self._train = self._eval = None
