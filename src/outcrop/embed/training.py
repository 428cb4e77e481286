"""Training: the units of every epoch in order, swaps meanwhile, checkpoints from which a killed run goes on.

What is learned depends on the buckets, the order and the configuration alone: a run whose partitions are all in memory
and one that swaps have the same table, bit for bit, on one machine.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import outcrop._core as _core
from outcrop.config import CPU, DeviceConfig, EmbedConfig, SwapConfig
from outcrop.device import gpu_named, resolve
from outcrop.device.budget import DeviceBudget
from outcrop.embed.buckets import Buckets
from outcrop.embed.buffer import Buffer, SwapRecord
from outcrop.embed.checkpoint import (
    CHECKPOINT,
    FOLDER,
    FORMAT,
    VERSION,
    Checkpoint,
    Position,
    is_there,
    newest,
)
from outcrop.embed.checkpoint_copy import copy_of
from outcrop.embed.edges import TrainingEdges
from outcrop.embed.files import ProcessTable, TableState
from outcrop.embed.gpu import GpuBuffer, GpuStepper
from outcrop.embed.moves import SliceMoves, Transfer
from outcrop.embed.negatives import Degrees, Pool, degree_bytes
from outcrop.embed.schedule import UNIT_EDGES, Schedule, TrainUnit, key_pair
from outcrop.embed.schedules import make_schedule
from outcrop.embed.scores import score_function
from outcrop.embed.step import Relations, Stepper, stride
from outcrop.embed.tables import FILE, RowShape, SlotTable, Start, Table, slab_rows
from outcrop.errors import ArgumentError, FormatError, NumericError, renaming
from outcrop.runtime import memory_tables
from outcrop.runtime import progress as progress_of
from outcrop.runtime.keyed_random import key_of
from outcrop.runtime.runtime import Runtime
from outcrop.store.manifest import temporary_file, write_atomic
from outcrop.store.tensors import require_equal, write_tensors

TIMELINE = "timeline.json"
_MOST_SPANS = 4096
READ_EDGE_BYTES = 12  # of an edge as it lies on disk
UNIT_EDGE_BYTES = 56  # of an edge of a unit: rows of its ends, relation, place in the order, what makes them
Span = tuple[float, float, int, int]  # begin, end, buckets of slices, edges
_FREE_FIELDS = ("epochs",)  # may change when training goes on
_DISTANCES = ("transe-l1", "transe-l2", "rotate")


@dataclass
class EpochRecord:
    """Records one epoch, of all processes together.

    Attributes:
        loss: Mean of both sides over all edges.
        seconds: Time that the slowest process took.
        waits: Seconds waited for each swap, by the process that waited longest.
        bytes_sent: Bytes of slices that went from process to process.
    """

    epoch: int
    edges: int
    loss: float
    seconds: float
    waits: list[float] = field(default_factory=list)
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_sent: int = 0

    @property
    def edges_per_s(self) -> float:
        return self.edges / self.seconds if self.seconds else 0.0


def together(records: Sequence[EpochRecord]) -> EpochRecord:
    """Returns what the records of all processes come to."""
    return replace(
        records[0],
        seconds=max(one.seconds for one in records),
        waits=max((one.waits for one in records), key=sum),
        bytes_read=sum(one.bytes_read for one in records),
        bytes_written=sum(one.bytes_written for one in records),
        bytes_sent=sum(one.bytes_sent for one in records),
    )


@dataclass
class EmbeddingResult:
    """Says what a training did. ``edges_of_bucket``: int64 [p * p], of slices: how many were trained."""

    records: list[EpochRecord]
    resident: bool
    resumed_epoch: int | None
    edges_of_bucket: np.ndarray


def start_of(config: EmbedConfig) -> Start:
    """Tells how the first vectors are drawn."""
    deviation = config.start
    if deviation is None:
        deviation = 1 / math.sqrt(config.dim) if config.model in _DISTANCES else 1e-3
    return Start(deviation * math.sqrt(3), int(key_of(config.seed & (1 << 64) - 1, 3)[0]))


def relation_shape(num_relations: int, config: EmbedConfig) -> tuple[int, int] | None:
    """Returns rows of the table of relations, and floats of each; None for a score function without any."""
    width = score_function(config.model, config.dim).relation_width(config.dim)
    rows = max(num_relations, 1) * (2 if config.reciprocal else 1)
    return (rows, stride(config, width)) if width else None


def make_relations(buckets: Buckets, config: EmbedConfig, runtime: Runtime) -> Relations | None:
    """Returns fresh vectors for all relations; None for a score function without any."""
    shape = relation_shape(buckets.num_relations, config)
    if shape is None:
        return None
    width = score_function(config.model, config.dim).relation_width(config.dim)
    (rows, floats), count = shape, max(buckets.num_relations, 1)
    table = runtime.budget.empty("relations", rows * floats * 4).view(np.float32).reshape(rows, floats)
    start = start_of(config)
    bound = math.pi if config.model == "rotate" else start.bound
    ids = np.arange(rows, dtype=np.int64)
    _core.start_rows(table, width, ids, bound, start.key ^ 1, runtime.workers)
    return Relations(table, count, config.reciprocal)


def open_table(
    buckets: Buckets, path: Path, config: EmbedConfig, runtime: Runtime, *, read_only: bool = False
) -> Table:
    """Returns the table in the file ``path``, made where it is not there unless it is to be read only."""
    shape = RowShape(config.dim, stride(config, config.dim))
    numbering = buckets.numbering(runtime)
    kind = Table if path.name == FILE else SlotTable
    return kind(path, buckets.division, shape, start_of(config), numbering, runtime, read_only=read_only)


def largest_unit(schedule: Schedule, epochs: Iterable[int]) -> int:
    """Returns the most edges that a unit of ``epochs`` has."""
    return max((unit.num_edges for epoch in epochs for unit in schedule.all_units(epoch)), default=0)


def fits_in_memory(buckets: Buckets, config: EmbedConfig, free_bytes: int) -> bool:
    """Tells whether all partitions fit beside what a batch and the edges of a unit need."""
    floats = stride(config, config.dim)
    table = buckets.division.parts * slab_rows(buckets.division, floats) * floats * 4
    unit = min(buckets.num_edges, UNIT_EDGES) * (UNIT_EDGE_BYTES + READ_EDGE_BYTES)
    if config.by_degree:
        unit += degree_bytes(buckets.division, min(config.buffer, buckets.partitions) * buckets.slices)
    return table <= min(memory_tables.WHOLE_TABLE.bytes_of(free_bytes), free_bytes - unit)


@dataclass
class _Place:
    """Says where the training runs, and what is made there."""

    stepper: Stepper
    buffer: Callable[[Table, int], Buffer]
    free_bytes: Callable[[], int]
    peak_by_tag: Callable[[], dict[str, int]]


def _place(
    device: DeviceConfig,
    swaps: SwapConfig,
    buckets: Buckets,
    config: EmbedConfig,
    relations: Relations | None,
    runtime: Runtime,
) -> _Place:
    gpu = gpu_named(device.name)
    if gpu is None:
        return _Place(
            Stepper(config, relations, runtime),
            lambda table, slots: Buffer(table, slots, runtime),
            lambda: runtime.budget.free_bytes,
            dict,
        )
    place = resolve(device.name)
    budget = DeviceBudget(gpu, place, device.memory_bytes)
    return _Place(
        GpuStepper(config, relations, runtime, gpu, place, budget),
        lambda table, slots: GpuBuffer(table, slots, runtime, budget, buckets.slices, swaps.io == "gpu"),
        lambda: budget.free_bytes,
        budget.by_tag,
    )


class EmbeddingTrainer:
    """Runs one training.

    Args:
        resident: Hold all partitions instead of ``config.buffer``; None: where the budget has room for them, and one
            process trains.
        fresh: Start over even if there is a checkpoint.
        swaps: How partitions are swapped; None: by the engine, while training goes on.
        device: Where the partitions in memory lie, and training runs.
        checkpoint_seconds: Time between checkpoints within an epoch, with several groups after a round; every epoch
            ends with one.
        runtime: With the processes that train together, each those groups of partitions whose number, modulo the
            processes, is its rank.
        on_unit: Called after every unit with (epoch, unit, mean loss so far).
    """

    def __init__(
        self,
        buckets: Buckets,
        run: Path,
        config: EmbedConfig,
        runtime: Runtime,
        *,
        resident: bool | None = None,
        fresh: bool = False,
        checkpoint_seconds: float = 300.0,
        swaps: SwapConfig | None = None,
        device: DeviceConfig = CPU,
        on_unit: Callable[[int, TrainUnit, float], None] | None = None,
    ):
        self.buckets, self.config, self.runtime = buckets, config, runtime
        self.folder, self._group = run / FOLDER, runtime.group
        swaps = swaps or SwapConfig()
        self._checkpoint_seconds, self._swaps, self._on_unit = checkpoint_seconds, swaps, on_unit
        score = score_function(config.model, config.dim)
        if config.reciprocal and not score.has_relations:
            raise ArgumentError(f"model {config.model} has no relations: leave --reciprocal out")
        self._path = self.folder / CHECKPOINT
        self.records: list[EpochRecord] = []
        self._at = Position()
        self._step = 0
        together = self._group.together
        with together("reading the buckets", patient=True):
            starts = buckets.starts(runtime)
            self.schedule = make_schedule(buckets, config, starts)
            self.relations = make_relations(buckets, config, runtime)
        copy = self._copy = copy_of(config, self.folder, self._group)
        found = None if fresh else self._newest()
        with ExitStack() as refused:  # until nothing more can be: a table that was not there goes again
            with together("taking the checkpoint", patient=True):
                self._place = _place(device, swaps, buckets, config, self.relations, runtime)
                self._stepper = self._place.stepper
                stored = None if found is None else self._restore(found)
            self.resumed = None if found is None else self._at.epoch
            if copy is not None:
                stored = copy.take_over(stored)

            def open_file(
                path: Path, read_only: bool
            ) -> Table:  # without the trainer, which then ends with its last use
                return open_table(buckets, path, config, runtime, read_only=read_only)

            self._tables = ProcessTable(self.folder, stored, open_file, self._group, refused, copy)
            self.table = self._tables.table
            if stored is not None:
                self._begin_table()
            with together("taking memory", patient=True):
                self._stepper.begin()
                if resident is None:
                    resident = self._group.alone and fits_in_memory(buckets, config, self._place.free_bytes())
                slots = buckets.division.parts if resident else self.schedule.most_resident
                self._moves = None if self._group.alone else SliceMoves(self.table, runtime)
                self.buffer = self._place.buffer(self.table, slots)
                self._degrees = None
                if config.by_degree:
                    array, most = buckets.array(runtime, "degrees"), self.schedule.most_resident
                    self._degrees = Degrees(array, buckets.division, most, runtime.budget)
                self._edges = TrainingEdges(buckets, runtime)
                self._check_room()
            if self._moves is not None:
                self._moves.begin()
            if stored is None:  # not before everything else is there
                self._begin_table()
            self._copy_first = copy is not None and copy.begin(
                self.table, fresh=fresh, fetched=self._tables.fetched
            )
            refused.pop_all()
        self._counts = np.zeros(buckets.division.parts**2, np.int64)
        self._spans: list[Span] = []
        self._begun = 0.0

    def _begin_table(self) -> None:
        holders = self.schedule.holders(self._at.epoch, self._at.round) % self._group.world
        self._tables.begin(self._path, holders, self.runtime)
        if self._group.leads:  # of a machine that went down; where all is trained, no other is written
            temporary_file(self.folder / TIMELINE).unlink(missing_ok=True)

    def _check_room(self) -> None:
        """Raises BudgetError where a unit of any epoch would not fit beside what is held."""
        budget, schedule = self.runtime.budget, self.schedule

        def need(edges: int) -> int:
            return self._edges.bytes_of(edges) + UNIT_EDGE_BYTES * edges

        if need(schedule.most_edges) > budget.free_bytes:  # a bound that no unit may reach: look closer
            edges = largest_unit(schedule, range(self._at.epoch, self.config.epochs))
            budget.reserve("edges", need(edges)).release()

    # Checkpoints

    def _identity(self) -> dict[str, Any]:
        config = {k: v for k, v in self.config.as_stored().items() if k not in _FREE_FIELDS}
        return {**config, "buckets digest": self.buckets.manifest.digest()}

    def _newest(self) -> Checkpoint | None:
        """Returns the checkpoint to go on from, if there is one."""
        return newest(self._path, self._group) if self._copy is None else self._copy.newest()

    def _restore(self, found: Checkpoint) -> TableState:
        """Takes over what a checkpoint has, but for the table; says where that is."""
        with ExitStack() as naming:
            if self._copy is not None and self._copy.is_origin:
                naming.enter_context(renaming(str(self.folder), self._copy.uri))
            return self._taken(found)

    def _taken(self, found: Checkpoint) -> TableState:
        require_equal(self._path, found.meta.get("identity", {}), self._identity())
        try:
            if self.relations is not None:
                self.relations.rows[:] = found.tensors["relations"].numpy()
            self._at = Position.of_stored(found.meta)
            self._step = self._at.step
            self.records = [EpochRecord(**record) for record in found.meta["records"]]
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"{self._path} lacks or garbles a field ({error}): train again with --fresh"
            ) from None
        return TableState.of_checkpoint(found, self._path)

    def _save(self, at: Position) -> None:
        """Puts the state at ``at`` on disk."""
        group = self._group
        with self.runtime.trace.span("embed.checkpoint", epoch=at.epoch, unit=at.unit):
            with group.together("writing vectors for a checkpoint", patient=True):
                if self._moves is not None:
                    self._moves.finish()
                self.buffer.flush()
                self._stepper.sync_relations()
                self.table.sync()
            table = self._tables.state()
            tensors = {} if self.relations is None else {"relations": torch.from_numpy(self.relations.rows)}
            meta = {
                "identity": self._identity(),
                **at.stored(),
                "records": [asdict(record) for record in self.records],
                "table": table.stored(),
            }
            plain = json.loads(json.dumps(meta))
            for first in dict.fromkeys(group.gather(group.first_of_machine)):
                # One after the other: machines that see one folder would replace the same file.
                with group.together("writing a checkpoint", patient=True):
                    if group.rank == first and not is_there(self._path, plain):
                        write_tensors(self._path, FORMAT, VERSION, tensors, plain)
            self._tables.keep(table)
            if self._copy is not None:
                with self.runtime.trace.span("embed.copy"):
                    self._copy.push(self.table)
        self._at = at
        self._saved = time.monotonic()

    @property
    def _is_due(self) -> bool:
        return time.monotonic() - self._saved > self._checkpoint_seconds

    # Training

    @property
    def at(self) -> Position:
        """Returns how far the training is, by the last checkpoint."""
        return self._at

    def run(self, until: int | None = None) -> EmbeddingResult:
        """Trains what is left of ``config.epochs``, or of so many as ``until`` says, with a checkpoint at their end.

        Raises:
            NumericError: The loss is infinite or not a number.
            IoError, ChecksumError: A partition cannot be written or read.
            RankError: Another process failed.
        """
        progress, epochs, edges = self.runtime.progress, self.config.epochs, self.schedule.num_edges
        self._saved = time.monotonic()
        if self._copy_first:
            self._save(self._at)
        with self.runtime.task("embed", epochs * edges, "edges"):
            progress_of.skip(progress, "embed", min(self._at.epoch, epochs) * edges)
            for epoch in range(self._at.epoch, epochs if until is None else min(until, epochs)):
                with self.runtime.trace.span("embed.epoch", epoch=epoch):
                    self._one_epoch(epoch)
        counts = np.sum(self._group.gather(self._counts), axis=0)
        return EmbeddingResult(self.records, self.buffer.holds_all, self.resumed, counts)

    def _one_epoch(self, epoch: int) -> None:
        runtime, buffer, schedule, at = self.runtime, self.buffer, self.schedule, self._at
        self._begun, before, swaps = time.perf_counter(), runtime.io.counters, len(buffer.swaps)
        self._spans = []
        sent, loss = self._bytes_sent, at.loss
        done = sum(unit.num_edges for turn in range(at.round) for unit in schedule.units_of_all(epoch, turn))
        progress_of.skip(runtime.progress, "embed", done)
        for turn in range(at.round, schedule.rounds):
            if schedule.groups == 1:
                loss = self._train_group(epoch, 0, 0, at.unit, loss)
            else:
                loss = self._one_round(epoch, turn, loss)
            if turn + 1 < schedule.rounds and self._group.agree("a round", [self._is_due])[0, 0]:
                self._save(Position(epoch, turn + 1, 0, self._step, loss))
        after = runtime.io.counters
        record = EpochRecord(
            epoch,
            schedule.num_edges,
            loss / (2 * schedule.num_edges),
            time.perf_counter() - self._begun,
            [swap.waited for swap in buffer.swaps[swaps:]],
            after.read_bytes - before.read_bytes,
            after.write_bytes - before.write_bytes,
            self._bytes_sent - sent,
        )
        self.records.append(together(self._group.gather(record)))
        if self._group.leads:  # before the checkpoint, whose names are synced
            self._write_timeline(epoch, [s for s in buffer.swaps[swaps:] if s.evicted])
        self._save(Position(epoch + 1, 0, 0, self._step))
        runtime.trace.event("embed.record", **asdict(self.records[-1]))

    @property
    def _bytes_sent(self) -> int:
        return 0 if self._moves is None else self._moves.bytes_sent

    def _one_round(self, epoch: int, turn: int, loss: float) -> float:
        """Trains a round of all groups; the loss of the epoch with it.

        All groups begin with the same vectors of relations, and what each of them changes is added up afterwards.
        """
        group, before = self._group, self._step
        start = None if self.relations is None else self.relations.rows.copy()
        own = range(group.rank, self.schedule.groups, group.world)
        numbers: list[float] = []
        changes: list[np.ndarray] = []
        if self._moves is not None:
            self._moves.expect(self._transfers(epoch, turn))
        with group.together(f"training round {turn} of epoch {epoch}", patient=True):
            for number in own:
                self._step = before
                if self.relations is not None:
                    self.relations.rows[:] = start
                    self._stepper.begin()
                numbers += [self._train_group(epoch, turn, number, 0, 0.0), self._step - before]
                if self.relations is not None and start is not None:
                    self._stepper.sync_relations()
                    changes.append((self.relations.rows - start).ravel())
            if self._moves is not None:
                self._moves.finish(earlier=True)
                group.wait_for_others(self._moves.advance)  # who still trains may be sending to this process
        most = 2 * -(-self.schedule.groups // group.world)
        found = group.agree("the losses of a round", [*numbers, *[0.0] * (most - len(numbers))])
        order = [(number % group.world, number // group.world) for number in range(self.schedule.groups)]
        self._step = before
        for rank, place in order:
            loss += float(found[rank, 2 * place])
            self._step += int(found[rank, 2 * place + 1])
        if self.relations is not None and start is not None:
            total = group.sum_rows(np.stack(changes), order).reshape(start.shape)
            self.relations.rows[:] = self._with_changes(start, total)
            self._stepper.begin()
        return loss

    def _with_changes(self, start: np.ndarray, total: np.ndarray) -> np.ndarray:
        """Returns rows of relations, float32 [n, stride], that groups began with at ``start`` and changed by ``total``.

        State that is a mean of gradients, as Adam has it, changes by the mean of the changes.
        """
        if self.config.optimizer == "adam":
            width = score_function(self.config.model, self.config.dim).relation_width(self.config.dim)
            total[:, width:] /= self.schedule.groups
        return start + total

    def _transfers(self, epoch: int, turn: int) -> list[Transfer]:
        """Returns what moves between processes after a round of an epoch; nothing after the last."""
        if turn + 1 == self.schedule.rounds:
            return []
        world = self._group.world
        source, target = (self.schedule.holders(epoch, t) % world for t in (turn, turn + 1))
        return [
            Transfer(part, int(source[part]), int(target[part]))
            for part in np.flatnonzero(source != target).tolist()
        ]

    def _train_group(self, epoch: int, turn: int, number: int, skip: int, loss: float) -> float:
        """Trains a group of partitions in a round of an epoch, from unit ``skip`` on.

        Returns ``loss``, the sum of what the units before came to, with that of these.
        """
        runtime, buffer, schedule = self.runtime, self.buffer, self.schedule
        units = schedule.units(epoch, turn, number)
        done = sum(unit.num_edges for unit in islice(units, skip))
        progress = partial(self._progress, epoch, turn, schedule.edges_of(epoch, turn, number))
        progress_of.skip(runtime.progress, "embed", done)
        leaving: set[int] = set()
        if self._moves is not None:
            own = schedule.holders(epoch, turn) == number
            leaving = {one.part for one in self._transfers(epoch, turn) if own[one.part]}
        pool: tuple[tuple[int, ...], Pool] | None = None
        swap = None
        for unit in units:
            if (
                not buffer.swapping
                and swap is None  # one that was put off would be lost
                and unit.number > skip
                and schedule.groups == 1
                and self._is_due
            ):
                self._save(Position(epoch, 0, unit.number, self._step, loss))
            if not buffer.swapping:
                self._wait_for(unit.state)
                buffer.enter(unit.state)  # where training goes on, or a sweep begins with another state
            swap = unit.swap or swap
            if unit.swap and not unit.exposed and self._swaps.prefetch:
                self._begin_swap(unit.swap)
                swap = None
            if pool is None or pool[0] != unit.pool:
                pool = (unit.pool, Pool(unit.pool, self.buckets.division, self._degrees))
            started = time.perf_counter()
            loss = self._train(epoch, unit, pool[1], loss, done, progress)
            self._spans.append(
                (started - self._begun, time.perf_counter() - self._begun, len(unit.pieces), unit.num_edges)
            )
            done += unit.num_edges
            if self._on_unit:
                self._on_unit(epoch, unit, loss / max(2 * done, 1))
            if unit.last:
                if swap:
                    self._begin_swap(swap)
                    swap = None
                buffer.end_swap()
                self._offer(leaving & {*unit.leaving})
                leaving -= {*unit.leaving}
        buffer.leave(leaving)
        self._offer(leaving)
        return loss

    def _progress(self, epoch: int, turn: int, edges: int, done: int) -> float:
        """Returns the share of the training that lies behind a group which has trained ``done`` of its ``edges`` in a
        round of an epoch.
        """
        return (epoch + (turn + done / edges) / self.schedule.rounds) / self.config.epochs

    def _begin_swap(self, swap: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
        self._wait_for(swap[1])
        self.buffer.begin_swap(*swap)

    def _wait_for(self, parts: Iterable[int]) -> None:
        """Waits until ``parts`` have come from other processes."""
        if self._moves is not None:
            with self.runtime.trace.span("embed.wait_for_slices"):
                self._moves.wait_for(parts)

    def _offer(self, parts: Iterable[int]) -> None:
        if self._moves is not None:
            self._moves.offer(parts)

    def _write_timeline(self, epoch: int, swaps: list[SwapRecord]) -> None:
        """Writes what the report draws of the epoch that ended last, in seconds since it began."""
        what = {
            "epoch": epoch,
            "trained": self._spans[:_MOST_SPANS],
            "swaps": [
                {**asdict(s), "begin": s.begin - self._begun, "moved": s.moved - self._begun}
                for s in swaps[:_MOST_SPANS]
            ],
        }
        write_atomic(self.folder / TIMELINE, json.dumps(what).encode())

    def _train(
        self,
        epoch: int,
        unit: TrainUnit,
        pool: Pool,
        loss: float,
        done: int,
        progress: Callable[[int], float],
    ) -> float:
        """Trains one unit. ``loss``: the sum over the ``done`` edges of this epoch before; that with those of this
        unit.

        Args:
            progress: Returns the share of the training behind so many edges of this epoch.
        """
        config, buffer, seed = self.config, self.buffer, self.config.seed
        if not unit.num_edges:
            return loss
        with self.runtime.budget.reserve("edges", UNIT_EDGE_BYTES * unit.num_edges):
            source, relation, target = self._rows_of(unit)
            random = np.random.Generator(np.random.Philox(key=key_pair(seed, 4, *unit.key)))
            order = random.permutation(len(source))
            buffer.touch(*unit.pool)  # negatives are in all of them
            begun: deque[tuple[Callable[[], float], int]] = deque()
            before = done
            for number, at in enumerate(range(0, len(source), config.batch)):
                batch = order[at : at + config.batch]
                negatives = []
                for chunk in range(-(-len(batch) // config.chunk)):
                    key = key_pair(seed, 5, *unit.key, number, chunk)
                    part, row = pool.draw(config.negatives, (int(key[0]), int(key[1])), config.by_degree)
                    negatives.append(buffer.base[part] + row)
                self._step += 1
                self._stepper.rate_share = config.rate_share(progress(before + at))
                told = self._stepper.start(
                    buffer.rows,
                    source[batch],
                    relation[batch] if self.relations else None,
                    target[batch],
                    negatives,
                    self._step,
                )
                begun.append((told, len(batch)))
                buffer.note_end()
                if self._moves is not None:
                    self._moves.advance()
                    self._group.check_others()
                if len(begun) > self._stepper.ahead:
                    loss, done = self._note(epoch, *begun.popleft(), loss, done)
            for told, count in begun:
                loss, done = self._note(epoch, told, count, loss, done)
        return loss

    def _note(
        self, epoch: int, told: Callable[[], float], count: int, loss: float, done: int
    ) -> tuple[float, int]:
        """Returns the loss and edges of the epoch with those of a batch of ``count`` edges."""
        value = told()
        if not math.isfinite(value):
            raise NumericError(
                f"epoch {epoch}: the loss is {value}; lower the learning rate ({self.config.learning_rate})"
            )
        loss, done = loss + value, done + count
        self.runtime.progress.note("embed", f"epoch {epoch}, loss {loss / (2 * done):.4f}{self._waits()}")
        self.runtime.progress.advance("embed", count)
        return loss, done

    def _rows_of(self, unit: TrainUnit) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the row of the source, relation and row of the target of every edge: int64, uint32, int64 [n]."""
        edges, base = self._edges.read(unit.pieces), self.buffer.base
        lengths = unit.pieces[:, 3] - unit.pieces[:, 2]
        buckets = unit.pieces[:, 0] * self.buckets.division.parts + unit.pieces[:, 1]
        np.add.at(self._counts, buckets, lengths)
        source = np.repeat(base[unit.pieces[:, 0]], lengths) + edges[:, 0]
        target = np.repeat(base[unit.pieces[:, 1]], lengths) + edges[:, -1]
        relation = edges[:, 1].copy() if edges.shape[1] == 3 else np.zeros(len(edges), np.uint32)
        return source, relation, target

    def _waits(self) -> str:
        buffer = self.buffer
        return "" if buffer.holds_all else f", waited {buffer.waited:.1f} s for {len(buffer.swaps)} swaps"

    def close(self) -> None:
        self.runtime.note_device_peaks(self._place.peak_by_tag())
        self._stepper.close()
        self.buffer.close()
        self.table.close()
        self._edges.close()
        if self._degrees is not None:
            self._degrees.close()
