"""Sample pools that are refreshed: pool k holds the batches of epochs kE to (k + 1)E - 1, or to the last one, and is
gone after them.

Where not even one epoch fits the disk, a pool holds a part of one (:mod:`outcrop.training.pool_numbers`): an epoch goes
from pool to pool. Of epochs that are replayed the same parts are prepared again each time.

While pool k trains, pool k + 1 is prepared by a process of its own, ``outcrop prepare-pool``: at the lowest CPU and
I/O priority, in a quarter of the memory budget, no faster than a given rate, dead when its parent is. Batches are
keyed by the number of their epoch, so the result is that of preparing all epochs at once, whatever the timing.

Folder: ``eval``, the batches of validation and test, prepared once; ``pool-<k>``, at most two at a time. Each is a run.
Disk: what ``eval`` takes, half of all at the most, and half of the rest for each pool. Memory: a quarter for
preparing, an eighth for ``eval`` (up to a third, where its batches do not fit in less), 1/32 stays free, training has
the rest.

Several processes train on the same pools: of each folder one process prepares, the first of its machine, or of all
machines where they see the same folder; the others wait for it where they need the next pool.

Where the budget is too small for that, and one process trains, all happens in turn, each with the whole of it: pool k
trains and is removed, pool k + 1 is prepared in this process, evaluation opens its batches when they are wanted. Any
budget that can prepare and train a run can refresh it so, and the one pool has all of the disk that ``eval`` leaves.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from outcrop.config import DeviceConfig, PlanConfig, SampleConfig, exact_bytes, least_bytes
from outcrop.errors import ArgumentError, BudgetError, OutcropError
from outcrop.loading.consecutive import ConsecutiveSession
from outcrop.loading.open import open_session
from outcrop.loading.session import LoadSession
from outcrop.preparation.draft import smallest_disk
from outcrop.preparation.prepare import PrepareReport, prepare_described
from outcrop.runtime import memory_tables, system
from outcrop.runtime.group import Group
from outcrop.runtime.memory_plan import Part
from outcrop.runtime.progress import Progress
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store import run as runs
from outcrop.store.lock import make_folders
from outcrop.training.batch_request import BatchRequest
from outcrop.training.pool_numbers import PoolNumbers

_POLL_SECONDS = 0.05
_MOST_STDERR_BYTES = 4096
_POOL_NAME = re.compile(r"pool-(\d+)")
EVAL = "eval"


@dataclass(frozen=True)
class PoolBudget:
    """Divides the memory budget of a training with sample pools.

    Attributes:
        prepare, evaluate, train: Bytes for preparing a pool, for the batches of evaluation, and for those of training;
            None: no limit.
        runtime: Bytes of the training process: ``train``, ``evaluate`` and what stays free.
        concurrent: Whether all happen at the same time; else they alternate, each with the whole budget.
    """

    prepare: int | None
    evaluate: int | None
    train: int | None
    runtime: int | None
    concurrent: bool = True

    @staticmethod
    def of(memory: int | None, evaluation: Part = memory_tables.EVALUATIONS[0]) -> PoolBudget:
        if memory is None:
            return PoolBudget(None, None, None, None)
        prepare, evaluate = memory_tables.POOL_PREPARE.bytes_of(memory), evaluation.bytes_of(memory)
        spare = memory_tables.POOL_SPARE.bytes_of(memory)
        return PoolBudget(prepare, evaluate, memory - prepare - evaluate - spare, memory - prepare)

    @staticmethod
    def possible(memory: int | None, concurrent: bool = True) -> Iterator[PoolBudget]:
        """Yields what to try in turn: all at the same time, with little for evaluation first; at last alternating."""
        if memory is None and concurrent:
            yield PoolBudget.of(None)
        for evaluation in memory_tables.EVALUATIONS if concurrent and memory is not None else ():
            yield PoolBudget.of(memory, evaluation)
        yield PoolBudget(memory, memory, memory, memory, concurrent=False)

    def pool_space(self, left: int | None) -> int | None:
        """Counts the bytes for one pool, of the disk that evaluation leaves."""
        return None if left is None else memory_tables.POOL_DISK.bytes_of(left) if self.concurrent else left

    def explain(self, error: BudgetError) -> BudgetError:
        """Returns ``error`` of the last of what is possible as one of the whole."""
        said = str(error)
        if error.limit == "disk" and error.smallest is not None:  # of what has at least half, or a quarter
            whole = error.smallest * (4 if self.concurrent else 2)
            said = said.replace(
                smallest_disk(error.smallest), f"--disk-space {least_bytes(whole)} is enough for it"
            )
        memory = (
            "memory has no limit" if self.train is None else f"{exact_bytes(self.train)} of memory for each"
        )
        return BudgetError(
            f"refreshing prepares and trains in turn ({memory}; of the disk evaluation has at most half, the pool the "
            f"rest), and one of them cannot: {said}"
            if not self.concurrent
            else f"refreshing divides the disk ({memory}; evaluation has at most half, each of two pools half of the "
            f"rest), and for one of them: {said}",
            limit=error.limit,
        )


@dataclass
class PoolRecord:
    """Records how one pool was used.

    Attributes:
        first_epoch, epochs: First of the epochs that it has batches of, and how many there are.
        waited_seconds: Seconds that training stood still for it, from the end of the pool before.
        disk_bytes: Bytes of its files.
        concurrent: Whether it was prepared while the one before it trained; else the two alternated.
        bytes_read, bytes_written: Bytes of preparing it in this process, between two pools; 0 where another did.
        batches: Which batches of its only epoch it holds, the first and how many, where these are a part of them; None:
            it holds whole epochs.
    """

    pool: int
    first_epoch: int
    epochs: int
    waited_seconds: float
    disk_bytes: int
    concurrent: bool
    bytes_read: int = 0
    bytes_written: int = 0
    batches: tuple[int, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields under their names in reports: ``concurrent`` is ``beside``; ``batches`` where they are
        a part of an epoch.
        """
        names = {"concurrent": "beside"}
        fields = {name: value for name, value in asdict(self).items() if name != "epochs"}
        if self.batches is None:
            del fields["batches"]
        return {names.get(name, name): value for name, value in fields.items()}


class Background:
    """Runs a process that prepares the run described in ``folder``. :meth:`check` raises its error."""

    def __init__(self, folder: Path, memory: int | None, rate: int | None):
        self.folder = folder
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        command = system.outcrop_command("prepare-pool", str(folder), "--parent", str(os.getpid()))
        command += [] if memory is None else ["--memory", str(memory)]
        command += [] if rate is None else ["--rate", str(rate)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._stderr
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> bool:
        """Tells whether it is done.

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
    """Holds the pools of one training.

    Args:
        request: What is sampled; ``sampling.epochs`` is E, ``pool_batches`` what a pool has that holds a part of an
            epoch. Of its limits ``memory`` is the budget of everything, ``disk_space`` that of all files. ``rate``
            limits what preparing in the background reads and writes: what is prepared in turn has no training to spare,
            and no limit.
        folder: Where they lie; made where needed, removed by nobody but the user.
        group: Processes that train on them; all of them do the same in the same order. None: this one alone.

    Raises:
        ArgumentError: Several processes train, and pools are to hold parts of an epoch.
    """

    def __init__(self, request: BatchRequest, folder: Path, group: Group | None = None):
        self._group = group or Group()
        if request.pool_batches is not None and not self._group.alone:
            raise ArgumentError(
                f"{self._group.world} processes train on whole epochs: an epoch is prepared in parts for one process "
                "alone"
            )
        self._leads = True  # whether this process prepares what is in its folder
        self._graph, self._folder, self._config, self._plan = (
            request.graph,
            folder,
            request.sampling,
            request.limits,
        )
        self._rate, self._topology = request.rate, request.topology
        self._next_batch = request.next_batch
        self.numbers = PoolNumbers.of_request(request)
        self._mode = request.packed
        self._concurrent = request.concurrent
        self.budget = next(PoolBudget.possible(request.limits.memory, request.concurrent))
        self._eval_splits = tuple(
            s
            for s in self._config.splits
            if s != "train" and self._graph.has(s) and self._graph.spec(s).shape[0]
        )
        self._pool_space: int | None = None
        self._first = self._current = -1
        self._background: Background | None = None
        self._sessions: dict[str, LoadSession] = {}  # by the name of their folder
        self.records: list[PoolRecord] = []

    def _pool(self, number: int) -> Path:
        return self._folder / f"pool-{number}"

    def prepare(self, first_epoch: int | None, progress: Progress | None = None) -> PrepareReport | None:
        """Prepares what training begins with: the evaluation batches, and the pool of ``first_epoch`` (None: no pool).

        It has no more memory than preparing will have later, so what cannot work fails here.
        """
        group = self._group
        if group.alone:
            return self._prepare_first(first_epoch, progress)
        with group.together("making the folder of pools"), manifests.naming_files(self._folder):
            make_folders(self._folder)
        shared = all(group.gather(group.sees_folder_of_first(self._folder)))
        first = 0 if shared else group.first_of_machine
        self._leads = group.rank == first
        made = group.once_a_machine(
            lambda: self._prepare_first(first_epoch, progress) if self._leads else None
        )
        self.budget, self._first = group.gather((self.budget, self._first))[first]
        return made

    def _prepare_first(self, first_epoch: int | None, progress: Progress | None) -> PrepareReport | None:
        self._check_folder()
        failed = BudgetError()
        for budget in PoolBudget.possible(self._plan.memory, self._concurrent):
            if not (budget.concurrent or self._group.alone):
                break
            self.budget = budget
            try:
                with Runtime(self.budget.prepare, progress=progress) as runtime:
                    return self._prepare(first_epoch, runtime)
            except BudgetError as error:
                failed = error
        raise self.budget.explain(failed) from failed

    def _prepare(self, first_epoch: int | None, runtime: Runtime) -> PrepareReport | None:
        used = self._prepare_eval(runtime).disk_bytes if self._eval_splits else 0
        space = self._plan.disk_space
        self._pool_space = self.budget.pool_space(None if space is None else space - used)
        if first_epoch is None:
            self._remove_but(())
            return None
        number = self.numbers.number(first_epoch, self._next_batch)
        self._remove_but((number, number + 1) if self.budget.concurrent else (number,))
        self._describe_pool(number)
        self._first = number
        return prepare_described(self._pool(number), runtime)

    def _prepare_eval(self, runtime: Runtime) -> PrepareReport:
        space = self._plan.disk_space
        config = replace(self._config, splits=self._eval_splits, epochs=1)
        plan = replace(
            self._plan,
            gpu_memory=0,
            disk_space=None if space is None else memory_tables.EVALUATION_DISK.bytes_of(space),
            packed_splits=("valid",) if "valid" in self._eval_splits else self._eval_splits,
        )
        self._describe(self._folder / EVAL, config, replace(plan, memory=self.budget.evaluate))
        return prepare_described(self._folder / EVAL, runtime)

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
        config = self.numbers.config(number)
        plan = replace(self._plan, memory=self.budget.train, disk_space=self._pool_space)
        self._describe(self._pool(number), config, plan)

    def _describe(self, folder: Path, config: SampleConfig, plan: PlanConfig) -> None:
        with manifests.naming_files(folder):
            make_folders(self._folder)
        path = os.path.relpath(self._graph.path.resolve(), folder.resolve())
        runs.write(folder, runs.RunInfo(path, self._graph.digest(), config, plan))

    def _remove_but(self, kept: tuple[int, ...]) -> None:
        for found in self._folder.iterdir() if self._folder.is_dir() else ():
            match = _POOL_NAME.fullmatch(found.name)
            if match and int(match[1]) not in kept:
                manifests.remove(found)

    def session(
        self, split: str, epoch: int, runtime: Runtime, device: DeviceConfig
    ) -> LoadSession | ConsecutiveSession:
        """Opens loading of one epoch of ``split``; goes on to the next pool, and waits for it, where ``epoch`` needs
        it. Where pools hold parts of an epoch they are opened when their batches are asked for.
        """
        if split != "train":
            return self._open(EVAL, runtime, device)
        if self.numbers.part is None:
            return self._session(self.numbers.number(epoch), runtime, device)
        opening = partial(self._session, runtime=runtime, device=device)
        return ConsecutiveSession(self.numbers.of_epoch(epoch), opening, runtime)

    def _session(self, number: int, runtime: Runtime, device: DeviceConfig) -> LoadSession:
        if number == self._current:
            return self._open(self._pool(number).name, runtime, device)
        return self._switch(number, runtime, device)

    def _open(self, name: str, runtime: Runtime, device: DeviceConfig) -> LoadSession:
        if name not in self._sessions:
            if not self.budget.concurrent:
                self._close()
            self._sessions[name] = open_session(
                self._graph, runtime, self._mode, run_folder=self._folder / name, device=device
            )
        return self._sessions[name]

    def _close(self, kept: str = "") -> None:
        """Closes what is open, but for ``kept``."""
        for name in [name for name in self._sessions if name != kept]:
            self._sessions.pop(name).close()
        gc.collect()  # what cycles of the last pass hold must be back before the next buffers are taken

    def _switch(self, number: int, runtime: Runtime, device: DeviceConfig) -> LoadSession:
        started = time.monotonic()
        with self._group.together("closing a pool", patient=True):
            self._close(kept=EVAL if self.budget.concurrent else "")
        with self._group.together(f"waiting for pool {number}", patient=True):
            if self._background is not None:
                self._finish_background(runtime)
            if self._leads:
                self._remove_but((number,))
        made = None
        if not self.budget.concurrent and number != self._first:
            self._describe_pool(number)
            made = prepare_described(self._pool(number), runtime, self._topology)
        session = self._open(self._pool(number).name, runtime, device)
        self._current = number
        disk = system.bytes_of_files(self._pool(number))
        waited = time.monotonic() - started
        record = self._record(number, waited, disk)
        if made is not None:
            record.bytes_read, record.bytes_written = made.bytes_read, made.bytes_written
        self.records.append(record)
        runtime.trace.event("pool", pool=number, waited_seconds=waited)
        if self._leads and self.budget.concurrent and number + 1 < self.numbers.count:
            self._describe_pool(number + 1)
            self._background = Background(self._pool(number + 1), self.budget.prepare, self._rate)
        return session

    def _record(self, number: int, waited: float, disk_bytes: int) -> PoolRecord:
        numbers = self.numbers
        record = PoolRecord(
            number,
            numbers.first_epoch(number),
            numbers.epochs_a_pool,
            waited,
            disk_bytes,
            self.budget.concurrent,
        )
        if numbers.part is not None:
            held = numbers.batches_in(number)
            record.batches = (held.start, len(held))
        return record

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
        """Returns the records as reports have them."""
        return [record.as_dict() for record in self.records]

    def close(self) -> None:
        if self._background is not None:
            self._background.close()
            self._background = None
        self._close()
