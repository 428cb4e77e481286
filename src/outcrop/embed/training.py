"""Training: the units of every epoch in order, swaps meanwhile, checkpoints from which a killed run goes on.

What is learned depends on the buckets, the order and the configuration alone: a run whose partitions are all in memory
and one that swaps have the same table, bit for bit, on one machine.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
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
from outcrop.embed.edges import TrainingEdges
from outcrop.embed.gpu import GpuBuffer, GpuStepper
from outcrop.embed.negatives import Pool
from outcrop.embed.orders import make_order
from outcrop.embed.schedule import Schedule, TrainUnit, key_pair
from outcrop.embed.scores import score_function
from outcrop.embed.step import Relations, Stepper, stride
from outcrop.embed.tables import RowShape, Start, Table, slab_rows
from outcrop.errors import ArgumentError, FormatError, NumericError
from outcrop.runtime import memory_tables
from outcrop.runtime.keyed_random import key_of
from outcrop.runtime.runtime import Runtime
from outcrop.store.manifest import write_atomic
from outcrop.store.tensors import read_tensors, require_equal, write_tensors

FOLDER, CHECKPOINT, TIMELINE = "tables", "checkpoint.safetensors", "timeline.json"
_MOST_SPANS = 4096
UNIT_EDGE_BYTES = 56  # of an edge of a unit: rows of its ends, relation, place in the order, what makes them
Span = tuple[float, float, int, int]  # begin, end, buckets of slices, edges
FORMAT, VERSION = "outcrop.embedding", 2
_FREE_FIELDS = ("epochs",)  # may change when training goes on
_DISTANCES = ("transe-l1", "transe-l2", "rotate")


@dataclass
class EpochRecord:
    """Records one epoch. ``loss``: mean of both sides over all edges. ``waits``: seconds waited for each swap."""

    epoch: int
    edges: int
    loss: float
    seconds: float
    waits: list[float] = field(default_factory=list)
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def edges_per_s(self) -> float:
        return self.edges / self.seconds if self.seconds else 0.0


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
    buckets: Buckets, folder: Path, config: EmbedConfig, runtime: Runtime, *, read_only: bool = False
) -> Table:
    """Returns the table of ``folder``, made where it is not there unless it is to be read only."""
    shape = RowShape(config.dim, stride(config, config.dim))
    numbering = buckets.numbering(runtime)
    return Table(folder, buckets.division, shape, start_of(config), numbering, runtime, read_only=read_only)


def fits_in_memory(buckets: Buckets, config: EmbedConfig, free_bytes: int) -> bool:
    """Tells whether all partitions fit beside what a batch needs."""
    floats = stride(config, config.dim)
    table = buckets.division.parts * slab_rows(buckets.division, floats) * floats * 4
    return table <= memory_tables.WHOLE_TABLE.bytes_of(free_bytes)


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
        resident: Hold all partitions instead of ``config.buffer``; None: where the budget has room for them.
        fresh: Start over even if there is a checkpoint.
        swaps: How partitions are swapped; None: by the engine, while training goes on.
        device: Where the partitions in memory lie, and training runs.
        checkpoint_seconds: Time between checkpoints within an epoch; every epoch ends with one.
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
        self.folder = run / FOLDER
        swaps = swaps or SwapConfig()
        self._checkpoint_seconds, self._swaps, self._on_unit = checkpoint_seconds, swaps, on_unit
        score = score_function(config.model, config.dim)
        if config.reciprocal and not score.has_relations:
            raise ArgumentError(f"model {config.model} has no relations: leave --reciprocal out")
        partitions = buckets.partitions
        order = make_order(config.order, partitions, min(config.buffer, partitions))
        self.schedule = Schedule(order, buckets.slices, buckets.starts(runtime), config.seed, config.sweeps)
        self._path = self.folder / CHECKPOINT
        self.records: list[EpochRecord] = []
        self._epoch = self._unit = self._step = 0
        self._loss = 0.0
        self.relations = make_relations(buckets, config, runtime)
        checkpoint = self._read() if self._path.exists() and not fresh else None
        self._place = _place(device, swaps, buckets, config, self.relations, runtime)
        self._stepper = self._place.stepper
        with ExitStack() as refused:  # until nothing more can be: a table that was not there goes again
            self._open_table(refused)
            self.resumed = self._restore(checkpoint)
            self._stepper.begin()
            if resident is None:
                resident = fits_in_memory(buckets, config, self._place.free_bytes())
            slots = (partitions if resident else max(map(len, order.states))) * buckets.slices
            self.buffer = self._place.buffer(self.table, slots)
            self._degrees = buckets.array(runtime, "degrees") if config.by_degree else None
            self._edges = TrainingEdges(buckets, runtime)
            self._check_room()
            if checkpoint is None:  # not before everything else is there
                self._path.unlink(missing_ok=True)
                self.table.clear()
            refused.pop_all()
        self._counts = np.zeros(buckets.division.parts**2, np.int64)

    def _check_room(self) -> None:
        """Raises BudgetError where a unit of any epoch would not fit beside what is held."""
        budget, schedule = self.runtime.budget, self.schedule

        def need(edges: int) -> int:
            return self._edges.bytes_of(edges) + UNIT_EDGE_BYTES * edges

        if need(schedule.most_edges) > budget.free_bytes:  # which no unit may have: look closer
            epochs = range(self._epoch, self.config.epochs)
            most = max((unit.num_edges for epoch in epochs for unit in schedule.units(epoch)), default=0)
            budget.reserve("edges", need(most)).release()

    def _open_table(self, refused: ExitStack) -> None:
        """Opens the table, made where it is not there; ``refused`` closes it, and removes it if it was made."""
        made = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        if made:
            refused.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.table = open_table(self.buckets, self.folder, self.config, self.runtime)
        refused.callback(self.table.close)

    # Checkpoints

    def _identity(self) -> dict[str, Any]:
        config = {k: v for k, v in self.config.as_stored().items() if k not in _FREE_FIELDS}
        return {**config, "buckets digest": self.buckets.manifest.digest()}

    def _read(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        tensors, meta = read_tensors(self._path, FORMAT, VERSION)
        require_equal(self._path, meta.get("identity", {}), self._identity())
        return tensors, meta

    def _restore(self, found: tuple[dict[str, torch.Tensor], dict[str, Any]] | None) -> int | None:
        if found is None:
            return None
        tensors, meta = found
        try:
            if self.relations is not None:
                self.relations.rows[:] = tensors["relations"].numpy()
            self._epoch, self._unit, self._step = meta["epoch"], meta["unit"], meta["step"]
            self._loss = meta["loss"]
            self.records = [EpochRecord(**record) for record in meta["records"]]
            self.table.restore(meta["table"])
        except FormatError:  # says what is wrong itself
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"{self._path} lacks or garbles a field ({error}): train again with --fresh"
            ) from None
        return self._epoch

    def _save(self, epoch: int, unit: int, loss: float) -> None:
        """Puts on disk the state before ``unit`` of ``epoch``."""
        with self.runtime.trace.span("embed.checkpoint", epoch=epoch, unit=unit):
            self.buffer.flush()
            self._stepper.sync_relations()
            self.table.sync()
            tensors = {} if self.relations is None else {"relations": torch.from_numpy(self.relations.rows)}
            meta = {
                "identity": self._identity(),
                "epoch": epoch,
                "unit": unit,
                "step": self._step,
                "loss": loss,
                "records": [asdict(record) for record in self.records],
                "table": self.table.state(),
            }
            write_tensors(self._path, FORMAT, VERSION, tensors, json.loads(json.dumps(meta)))
            self.table.keep()
        self._saved = time.monotonic()

    # Training

    def run(self) -> EmbeddingResult:
        """Trains what is left of ``config.epochs``.

        Raises:
            NumericError: The loss is infinite or not a number.
            IoError, ChecksumError: A partition cannot be written or read.
        """
        progress, epochs = self.runtime.progress, self.config.epochs
        self._saved = time.monotonic()
        with self.runtime.task("embed", epochs * self.schedule.num_edges, "edges"):
            progress.advance("embed", min(self._epoch, epochs) * self.schedule.num_edges)
            for epoch in range(self._epoch, epochs):
                with self.runtime.trace.span("embed.epoch", epoch=epoch):
                    self._one_epoch(epoch)
        return EmbeddingResult(self.records, self.buffer.holds_all, self.resumed, self._counts)

    def _one_epoch(self, epoch: int) -> None:
        runtime, buffer = self.runtime, self.buffer
        skip, loss = (self._unit, self._loss) if epoch == self._epoch else (0, 0.0)
        begin, before, swaps = time.perf_counter(), runtime.io.counters, len(buffer.swaps)
        spans: list[Span] = []
        units = [unit for unit in self.schedule.units(epoch) if unit.number >= skip]
        edges_before = self.schedule.num_edges - sum(unit.num_edges for unit in units)
        runtime.progress.advance("embed", edges_before)
        pool: tuple[tuple[int, ...], Pool] | None = None
        done, swap = edges_before, None
        for unit in units:
            if (
                not buffer.swapping
                and swap is None  # one that was put off would be lost
                and unit.number > skip
                and time.monotonic() - self._saved > self._checkpoint_seconds
            ):
                self._save(epoch, unit.number, loss)
            if not buffer.swapping:
                buffer.enter(unit.state)  # where training goes on, or a sweep begins with another state
            swap = unit.swap or swap
            if unit.swap and not unit.exposed and self._swaps.prefetch:
                buffer.begin_swap(*unit.swap)
                swap = None
            if pool is None or pool[0] != unit.pool:
                pool = (unit.pool, self._pool(unit.pool))
            started = time.perf_counter()
            loss = self._train(epoch, unit, pool[1], loss, done)
            spans.append((started - begin, time.perf_counter() - begin, len(unit.pieces), unit.num_edges))
            done += unit.num_edges
            if self._on_unit:
                self._on_unit(epoch, unit, loss / max(2 * done, 1))
            if unit.last:
                if swap:
                    buffer.begin_swap(*swap)
                    swap = None
                buffer.end_swap()
        after = runtime.io.counters
        self.records.append(
            EpochRecord(
                epoch,
                self.schedule.num_edges,
                loss / (2 * self.schedule.num_edges),
                time.perf_counter() - begin,
                [swap.waited for swap in buffer.swaps[swaps:]],
                after.read_bytes - before.read_bytes,
                after.write_bytes - before.write_bytes,
            )
        )
        self._epoch, self._unit, self._loss = epoch + 1, 0, 0.0
        self._save(epoch + 1, 0, 0.0)
        self._write_timeline(epoch, spans, [s for s in buffer.swaps[swaps:] if s.evicted], begin)
        runtime.trace.event("embed.record", **asdict(self.records[-1]))

    def _write_timeline(self, epoch: int, spans: list[Span], swaps: list[SwapRecord], begin: float) -> None:
        """Writes what the report draws of the epoch that ended last, in seconds since it began."""
        what = {
            "epoch": epoch,
            "trained": spans[:_MOST_SPANS],
            "swaps": [
                {**asdict(s), "begin": s.begin - begin, "moved": s.moved - begin} for s in swaps[:_MOST_SPANS]
            ],
        }
        write_atomic(self.folder / TIMELINE, json.dumps(what).encode())

    def _pool(self, slices: tuple[int, ...]) -> Pool:
        degrees = None
        if self._degrees is not None:
            starts = self.buckets.division.starts
            degrees = [
                self._degrees.read("degrees", int(starts[part]), int(starts[part + 1])) for part in slices
            ]
        return Pool(slices, self.buckets.division, degrees)

    def _train(self, epoch: int, unit: TrainUnit, pool: Pool, loss: float, done: int) -> float:
        """Trains one unit. ``loss``: the sum over the ``done`` edges of this epoch before; that with those of this
        unit.
        """
        config, buffer, seed = self.config, self.buffer, self.config.seed
        if not unit.num_edges:
            return loss
        with self.runtime.budget.reserve("edges", UNIT_EDGE_BYTES * unit.num_edges):
            source, relation, target = self._rows_of(unit)
            random = np.random.Generator(np.random.Philox(key=key_pair(seed, 4, epoch, unit.number)))
            order = random.permutation(len(source))
            buffer.touch(*unit.pool)  # negatives are in all of them
            begun: deque[tuple[Callable[[], float], int]] = deque()
            for number, at in enumerate(range(0, len(source), config.batch)):
                batch = order[at : at + config.batch]
                negatives = []
                for chunk in range(-(-len(batch) // config.chunk)):
                    key = key_pair(seed, 5, epoch, unit.number, number, chunk)
                    part, row = pool.draw(config.negatives, (int(key[0]), int(key[1])), config.by_degree)
                    negatives.append(buffer.base[part] + row)
                self._step += 1
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
