"""Training: the units of every epoch in order, swaps meanwhile, checkpoints from which a killed run goes on.

What is learned depends on the buckets, the order and the configuration alone: a run whose partitions are all in memory
and one that swaps have the same table, bit for bit, on one machine.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outcrop import _core
from outcrop import checkpoint as checkpoints
from outcrop.config import EmbedConfig
from outcrop.embed.buckets import Buckets
from outcrop.embed.buffer import Buffer, SwapRecord
from outcrop.embed.negatives import Pool
from outcrop.embed.orders import make_order
from outcrop.embed.schedule import Schedule, Unit, key_pair
from outcrop.embed.scores import score_function
from outcrop.embed.step import Relations, Stepper, stride
from outcrop.embed.tables import RowShape, Start, Table, slab_rows
from outcrop.errors import ArgumentError, FormatError, NumericError
from outcrop.links import key_of
from outcrop.runtime import Runtime
from outcrop.store.manifest import write_atomic

FOLDER, CHECKPOINT, TIMELINE = "tables", "checkpoint.safetensors", "timeline.json"
_MOST_SPANS = 4096
FORMAT, VERSION = "outcrop.embedding", 1
_FREE_FIELDS = ("epochs",)  # may change when training goes on
_DISTANCES = ("transe-l1", "transe-l2", "rotate")


@dataclass
class EpochRecord:
    """``loss``: mean of both sides over all edges. ``waits``: seconds that each swap was waited for."""

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
class FitResult:
    records: list[EpochRecord]
    resident: bool
    resumed_epoch: int | None
    bucket_counts: dict[tuple[int, int], int]


def start_of(config: EmbedConfig) -> Start:
    """How the first vectors are drawn."""
    deviation = config.start
    if deviation is None:
        deviation = 1 / math.sqrt(config.dim) if config.model in _DISTANCES else 1e-3
    return Start(deviation * math.sqrt(3), int(key_of(config.seed & (1 << 64) - 1, 3)[0]))


def make_relations(buckets: Buckets, config: EmbedConfig, runtime: Runtime) -> Relations | None:
    """Fresh vectors for all relations; None for a score function without any."""
    width = score_function(config.model, config.dim).relation_width(config.dim)
    if not width:
        return None
    count = max(buckets.num_relations, 1)
    rows = count * (2 if config.reciprocal else 1)
    floats = stride(config, width)
    table = runtime.budget.empty("relations", rows * floats * 4).view(np.float32).reshape(rows, floats)
    start = start_of(config)
    bound = math.pi if config.model == "rotate" else start.bound
    ids = np.arange(rows, dtype=np.int64)
    _core.start_rows(table, width, ids, bound, start.key ^ 1, runtime.workers)
    return Relations(table, count, config.reciprocal)


def open_table(
    buckets: Buckets, folder: Path, config: EmbedConfig, runtime: Runtime, *, read_only: bool = False
) -> Table:
    """The table of ``folder``, made where it is not there unless it is to be read only."""
    shape = RowShape(config.dim, stride(config, config.dim))
    numbering = buckets.numbering(runtime)
    return Table(folder, buckets.division, shape, start_of(config), numbering, runtime, read_only=read_only)


def fits_in_memory(buckets: Buckets, config: EmbedConfig, free_bytes: int) -> bool:
    """Whether all partitions fit beside what a batch needs."""
    floats = stride(config, config.dim)
    table = buckets.division.parts * slab_rows(buckets.division, floats) * floats * 4
    return table <= free_bytes * 0.9


class Fit:
    """One training.

    Args:
        resident: Hold all partitions instead of ``config.buffer``; None: where the budget has room for them.
        fresh: Start over even if there is a checkpoint.
        prefetch: Swap while training goes on; without, after it, for comparison.
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
        prefetch: bool = True,
        on_unit: Callable[[int, Unit, float], None] | None = None,
    ):
        self.buckets, self.config, self.runtime = buckets, config, runtime
        self.folder = run / FOLDER
        self._checkpoint_seconds, self._prefetch, self._on_unit = checkpoint_seconds, prefetch, on_unit
        score = score_function(config.model, config.dim)
        if config.reciprocal and not score.has_relations:
            raise ArgumentError(f"model {config.model} has no relations: leave --reciprocal out")
        p = buckets.division.parts
        order = make_order(config.order, p, min(config.buffer, p))
        self._starts = buckets.starts(runtime)
        self.schedule = Schedule(order, self._starts, config.seed)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path = self.folder / CHECKPOINT
        self.records: list[EpochRecord] = []
        self._epoch = self._unit = self._step = 0
        self._loss = 0.0
        self.relations = make_relations(buckets, config, runtime)
        found = self._read() if self._path.exists() and not fresh else None
        self._stepper = Stepper(config, self.relations, runtime)
        self.table = open_table(buckets, self.folder, config, runtime)
        try:
            self.resumed = self._restore(found)
            if resident is None:
                resident = fits_in_memory(buckets, config, runtime.budget.free_bytes)
            slots = p if resident else max(len(state) for state in order.states)
            self.buffer = Buffer(self.table, slots, runtime)
            if found is None:  # not before everything else is there
                self._path.unlink(missing_ok=True)
                self.table.clear()
        except BaseException:
            self.table.close()
            raise
        self._degrees = buckets.array(runtime, "degrees") if config.by_degree else None
        self._edges = buckets.array(runtime, "edges")
        self.counts: dict[tuple[int, int], int] = {}

    # Checkpoints

    def _identity(self) -> dict[str, Any]:
        config = {k: v for k, v in asdict(self.config).items() if k not in _FREE_FIELDS}
        return {**config, "buckets digest": self.buckets.manifest.digest()}

    def _read(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        tensors, meta = checkpoints.read_tensors(self._path, FORMAT, VERSION)
        checkpoints.require_equal(self._path, meta.get("identity", {}), self._identity())
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
        """What is on disk from now on is the state before ``unit`` of ``epoch``."""
        with self.runtime.trace.span("embed.checkpoint", epoch=epoch, unit=unit):
            self.buffer.flush()
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
            checkpoints.write_tensors(self._path, FORMAT, VERSION, tensors, json.loads(json.dumps(meta)))
            self.table.keep()
        self._saved = time.monotonic()

    # Training

    def run(self) -> FitResult:
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
        return FitResult(self.records, self.buffer.holds_all, self.resumed, self.counts)

    def _one_epoch(self, epoch: int) -> None:
        runtime, buffer = self.runtime, self.buffer
        skip, loss = (self._unit, self._loss) if epoch == self._epoch else (0, 0.0)
        begin, before, swaps = time.perf_counter(), runtime.io.counters, len(buffer.swaps)
        spans: list[tuple[float, float, int, int]] = []
        units = [unit for unit in self.schedule.units(epoch) if unit.number >= skip]
        edges_before = self.schedule.num_edges - sum(unit.stop - unit.first for unit in units)
        runtime.progress.advance("embed", edges_before)
        if units:
            buffer.enter(units[0].state)
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
            swap = unit.swap or swap
            if unit.swap and not unit.bare and self._prefetch:
                buffer.begin_swap(*unit.swap)
                swap = None
            if pool is None or pool[0] != unit.pool:
                pool = (unit.pool, self._pool(unit.pool))
            started = time.perf_counter()
            loss = self._train(epoch, unit, pool[1], loss, done)
            spans.append((started - begin, time.perf_counter() - begin, unit.source, unit.target))
            done += unit.stop - unit.first
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

    def _write_timeline(
        self, epoch: int, spans: list[tuple[float, float, int, int]], swaps: list[SwapRecord], begin: float
    ) -> None:
        """What the report draws, of the epoch that ended last. Seconds since it began."""
        what = {
            "epoch": epoch,
            "trained": spans[:_MOST_SPANS],
            "swaps": [
                {**asdict(s), "begin": s.begin - begin, "moved": s.moved - begin} for s in swaps[:_MOST_SPANS]
            ],
        }
        write_atomic(self.folder / TIMELINE, json.dumps(what).encode())

    def _pool(self, partitions: tuple[int, ...]) -> Pool:
        degrees = None
        if self._degrees is not None:
            starts = self.buckets.division.starts
            degrees = [
                self._degrees.read("degrees", int(starts[part]), int(starts[part + 1])) for part in partitions
            ]
        return Pool(partitions, self.buckets.division, degrees)

    def _train(self, epoch: int, unit: Unit, pool: Pool, loss: float, done: int) -> float:
        """One unit. ``loss``: the sum over the ``done`` edges of this epoch so far; with those of this unit."""
        config, buffer, seed = self.config, self.buffer, self.config.seed
        bucket = (unit.source, unit.target)
        self.counts[bucket] = self.counts.get(bucket, 0) + unit.stop - unit.first
        if unit.first == unit.stop:
            return loss
        edges = self._edges.read("edges", unit.first, unit.stop)
        if edges[:, 0].max() >= self.buckets.division.size(unit.source) or edges[
            :, -1
        ].max() >= self.buckets.division.size(unit.target):
            raise FormatError(
                f"{self.buckets.path}: an edge of bucket {bucket} leads out of it: prepare it again"
            )
        if edges.shape[1] == 3 and edges[:, 1].max() >= self.buckets.num_relations:
            raise FormatError(
                f"{self.buckets.path}: an edge of bucket {bucket} has no such relation: prepare it again"
            )
        held = self.runtime.budget.reserve("edges", 16 * len(edges))
        random = np.random.Generator(np.random.Philox(key=key_pair(seed, 4, epoch, unit.first)))
        order = random.permutation(len(edges))
        buffer.touch(*unit.pool)  # negatives are in all of them
        for number, at in enumerate(range(0, len(edges), config.batch)):
            batch = edges[order[at : at + config.batch]]
            negatives = []
            for chunk in range(-(-len(batch) // config.chunk)):
                key = key_pair(seed, 5, epoch, unit.first, number, chunk)
                part, row = pool.draw(config.negatives, (int(key[0]), int(key[1])), config.by_degree)
                negatives.append(buffer.base[part] + row)
            self._step += 1
            value = self._stepper.run(
                buffer.rows,
                buffer.base[unit.source] + batch[:, 0].astype(np.int64),
                batch[:, 1]
                if batch.shape[1] == 3
                else (np.zeros(len(batch), np.int64) if self.relations else None),
                buffer.base[unit.target] + batch[:, -1].astype(np.int64),
                negatives,
                self._step,
            )
            if not math.isfinite(value):
                raise NumericError(
                    f"epoch {epoch}, bucket {bucket}: the loss is {value}; lower the learning rate ({config.rate})"
                )
            loss += value
            buffer.look()
            done += len(batch)
            self.runtime.progress.note("embed", f"epoch {epoch}, loss {loss / (2 * done):.4f}{self._waits()}")
            self.runtime.progress.advance("embed", len(batch))
        held.release()
        return loss

    def _waits(self) -> str:
        buffer = self.buffer
        return "" if buffer.holds_all else f", waited {buffer.waited:.1f} s for {len(buffer.swaps)} swaps"

    def close(self) -> None:
        self.buffer.close()
        self.table.close()
        self._edges.close()
        if self._degrees is not None:
            self._degrees.close()
