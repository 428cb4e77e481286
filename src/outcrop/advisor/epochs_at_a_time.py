"""How many epochs with batches of their own are prepared at a time: all that are trained, where the disk has room."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from outcrop.advisor import auto
from outcrop.config import PlanConfig, SampleConfig, TrainConfig, format_bytes
from outcrop.config.sampling import EXTERNAL
from outcrop.errors import BudgetError, FormatError
from outcrop.preparation.cached_rows import least_cached_bytes
from outcrop.preparation.plan import packs_test
from outcrop.runtime import memory_tables
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.store import record
from outcrop.store import run as runs
from outcrop.store.graph import Graph

DEFAULT = TrainConfig().epochs
_DISK_SHARE = 0.9  # of what is free may be taken
_UNEVEN_SHARE = 16  # of the disk for a part: so much more than others may the largest part be
_BUFFERS = 4  # batches in memory, at the most: what they leave is for caches
_NO_LIMIT = 1 << 62
_TABLE_BYTES = 8  # per row: where it comes from


@dataclass(frozen=True)
class EpochBytes:
    """Counts bytes on disk.

    Attributes:
        epoch: Bytes of a training epoch's batches with the rows that no cache holds.
        evaluation: Bytes of the batches of the evaluation splits, likewise.
        rows: Bytes of all rows that an epoch wants, repeats counted.
        most_cached: Bytes of all caches at the most.
        test: Bytes of the rows of the test batches that no cache holds, which are packed if there are few of them.
        test_batches, train_batches: Numbers of batches, of the training split those of an epoch.
        drawn: Bytes of a training epoch's batches without rows, as they are drawn and once more with what is packed.
    """

    epoch: int
    evaluation: int
    rows: int
    most_cached: int
    test: int = 0
    test_batches: int = 0
    train_batches: int = 0
    drawn: int = 0

    def cached(self, epochs: int) -> int:
        return min(self.most_cached, (epochs + 1) * self.rows)

    def fitting(self, space: int) -> int:
        """Returns the most epochs whose batches and caches fit ``space`` bytes; 0: none does."""
        with_caches = (space - self.rows) // max(self.epoch + self.rows, 1)  # caches that still grow
        return max((space - self.most_cached) // max(self.epoch, 1), with_caches, 0)

    def part_fitting(self, space: int) -> int:
        """Returns the most batches of an epoch whose records and caches fit ``space`` bytes; 0: not one does."""
        with_all_caches = self.train_batches * max(space - self.most_cached, 0) // max(self.epoch, 1)
        with_own_rows = self.train_batches * space // max(self.epoch + self.rows, 1)
        return min(max(with_all_caches, with_own_rows), self.train_batches)

    def fitting_with_test(self, space: int) -> int:
        """Does as :meth:`fitting`, of a run that has the test batches too."""
        with_test = self.fitting(space - self.test)
        if self._packs_test(with_test):
            return with_test
        without = self.fitting(space)
        while without > with_test and self._packs_test(without):
            without -= 1
        return without

    def run(self, epochs: int) -> int:
        """Returns bytes of a run of ``epochs``, no row of it shared by batches."""
        test = self.test if self._packs_test(epochs) else 0
        return self.cached(epochs) + self.evaluation + test + epochs * self.epoch

    def can_share(self, epochs: int, space: int) -> bool:
        """Tells whether all ``epochs`` may fit ``space`` bytes where batches share rows: what is drawn has to."""
        return epochs * self.drawn <= space

    @property
    def enough(self) -> int:
        """Returns bytes in which one epoch at a time is prepared, between trainings on it; batches that share rows may
        need less.
        """
        cached = min(self.most_cached, self.rows)
        evaluation = self.evaluation + cached
        return max(2 * evaluation, evaluation + self.epoch + cached)

    def _packs_test(self, epochs: int) -> bool:
        return packs_test(self.test_batches, epochs * self.train_batches)


@dataclass(frozen=True)
class EpochChoice:
    """Says how many of the ``wanted`` epochs are prepared at a time.

    Attributes:
        limit: Bytes that all files may take: the user's, or nine tenths of what is free.
        why: A line for the user.
        first: Epoch of the training that those which are prepared at once begin with.
    """

    count: int
    wanted: int
    limit: int
    why: str
    first: int = 0

    @property
    def all_at_once(self) -> bool:
        return self.count >= self.wanted


def for_training(
    graph: Graph, sampling: SampleConfig, limits: PlanConfig, epochs: int, run: Path, *, begin: int = 0
) -> EpochChoice:
    """Chooses all epochs from ``begin`` to ``epochs`` in one run where they fit the disk, or else as many as fit one of
    two sample pools.

    A run in ``run`` that has these batches already, and maybe more, is taken as it is.
    """
    limit, left = disk_limit(run, limits.disk_space), epochs - begin
    there = all_there(graph, sampling, limits, run)
    if there.start <= begin and epochs <= there.stop:
        return EpochChoice(len(there), left, limit, _all(left), there.start)
    fits, size = _fitting(graph, sampling, limits, left, limit)
    if fits >= left:
        return EpochChoice(left, left, limit, _all(left, size), begin)
    assert size is not None
    pool = memory_tables.POOL_DISK.bytes_of(
        max(limit - size.evaluation, memory_tables.EVALUATION_DISK.bytes_of(limit))
    )
    most = size.fitting(pool)
    count = -(-epochs // -(-epochs // max(most, 1)))  # equal parts, the same wherever training goes on
    why = (
        f"new batches in every epoch: {count} of {epochs} epochs are prepared at a time, about "
        f"{format_bytes(size.epoch)} each; {format_bytes(limit)} of disk may be taken (--disk-space)"
    )
    return EpochChoice(count, epochs, limit, why)


def parts_of_epoch(
    graph: Graph, sampling: SampleConfig, limits: PlanConfig, limit: int, concurrent: bool
) -> int:
    """Returns how many parts an epoch is to be prepared in, where not one whole epoch fits ``limit`` bytes of disk
    beside the batches of evaluation; 0 where one does, or not even one batch.

    Args:
        concurrent: Whether a part is prepared while the one before it trains, so that two have to fit.
    """
    most = most_bytes(graph, sampling, limits)
    if sampling.sampler == EXTERNAL or (most is not None and most.run(1) <= limit):
        return 0
    size = measured_bytes(graph, sampling, limits)
    left = max(limit - size.evaluation, memory_tables.EVALUATION_DISK.bytes_of(limit))
    if size.fitting(left):
        return 0
    pool = memory_tables.POOL_DISK.bytes_of(left) if concurrent else left
    most_batches = size.part_fitting(pool - pool // _UNEVEN_SHARE)
    return -(-size.train_batches // most_batches) if most_batches else 0


def for_run(graph: Graph, sampling: SampleConfig, limits: PlanConfig, run: Path) -> EpochChoice:
    """Chooses as many epochs as training has by default, or fewer where they do not fit the disk without sharing rows.

    A run in ``run`` that was begun with the same options keeps its number.
    """
    limit = disk_limit(run, limits.disk_space)
    if prepared := epochs_there(graph, sampling, limits, run):
        why = (
            ""
            if prepared >= DEFAULT
            else f"{run} was begun with {_count(prepared)} and keeps to it: --epochs names another"
        )
        return EpochChoice(prepared, prepared, limit, why)
    fits, size = _fitting(graph, sampling, limits, DEFAULT, limit)
    if size is None or fits >= DEFAULT:
        return EpochChoice(DEFAULT, DEFAULT, limit, "")
    count = max(fits, 1)
    why = (
        f"{_epochs(count)} prepared instead of {DEFAULT}: each takes about {format_bytes(size.epoch)}, "
        f"{format_bytes(limit)} of disk may be taken; longer training replays them (--epochs, --disk-space)"
    )
    return EpochChoice(count, DEFAULT, limit, why)


def disk_limit(folder: Path, disk_space: int | None) -> int:
    """Returns bytes that files in ``folder`` may take: at most nine tenths of what is free there, and what is named."""
    there = next(p for p in (folder, *folder.resolve().parents) if p.is_dir())
    disk = os.statvfs(there)
    limit = int(disk.f_bavail * disk.f_frsize * _DISK_SHARE)
    return limit if disk_space is None else min(limit, disk_space)


def epochs_there(graph: Graph, sampling: SampleConfig, limits: PlanConfig, run: Path) -> int:
    """Returns epochs of the run in ``run``, finished or begun, where all else about it is as asked for; or else 0."""
    there = all_there(graph, sampling, limits, run)
    return len(there) if there.start == sampling.first_epoch else 0


def all_there(graph: Graph, sampling: SampleConfig, limits: PlanConfig, run: Path) -> range:
    """Returns which epochs the run in ``run`` has, likewise, whichever it begins with; none: an empty range."""
    try:
        info = runs.read(run)
    except FormatError:  # none, or none that can be read
        return range(0)
    rates = {"sequential_rate": info.plan.sequential_rate, "random_rate": info.plan.random_rate}
    first, count = info.sample.first_epoch, info.sample.epochs
    same = (
        info.graph_digest == graph.digest()
        and info.sample == replace(sampling, first_epoch=first, epochs=count)
        and info.plan == replace(limits, **rates)
    )
    return range(first, first + count) if same else range(0)


def _fitting(
    graph: Graph, sampling: SampleConfig, limits: PlanConfig, epochs: int, limit: int
) -> tuple[int, EpochBytes | None]:
    """Tells how many of ``epochs`` fit ``limit``, and the bytes that say so; None where nobody needed to look at
    batches.
    """
    most = most_bytes(graph, sampling, limits)
    if most is not None and most.run(epochs) <= limit:
        return epochs, None
    try:
        size = measured_bytes(graph, sampling, limits)
    except BudgetError:  # preparing will say what it needs
        return epochs, None
    return size.fitting_with_test(limit - size.evaluation), size


def most_bytes(graph: Graph, sampling: SampleConfig, limits: PlanConfig) -> EpochBytes | None:
    """Returns bytes that cannot be exceeded, from the fanouts alone; None where these do not bound the batches."""
    bounded = sampling.sampler in ("neighbor", "weighted") and sampling.task == "node"
    if not bounded or -1 in sampling.fanouts or graph.is_typed or graph.has_edge_rows:
        return None
    seeds = [
        sampling.batch_size * math.prod(sampling.fanouts[:hop]) for hop in range(len(sampling.fanouts) + 1)
    ]
    nodes, edges = min(sum(seeds), graph.num_nodes), min(sum(seeds[1:]), len(seeds) * graph.num_edges)
    structure = 16 * nodes + 4 * edges + 2 * PAGE_BYTES
    if sampling.edge_weights:
        structure += 16 * nodes + 4 * edges
    if sampling.edge_ids:
        structure += 8 * edges
    return _of_batches(graph, sampling, limits, structure, nodes * graph.row_file.row_bytes)


def measured_bytes(graph: Graph, sampling: SampleConfig, limits: PlanConfig) -> EpochBytes:
    """Returns bytes as a few batches have them, which are drawn within the memory budget."""
    probe = auto.probe_batches(graph, sampling, _NO_LIMIT if limits.memory is None else limits.memory)
    id_bytes, count = record.id_bytes_for(graph.num_nodes), max(len(probe.batches), 1)
    records = [len(record.encode(b, (), id_bytes)) for b in probe.batches]
    nodes = sum(sum(b.num_rows(graph.row_files)) for b in probe.batches) / count
    wanted = [auto.wanted_bytes(graph, b) for b in probe.batches]
    structure = sum(records) / count + _TABLE_BYTES * nodes
    missing = 0.0
    if limits.memory is not None:
        buffer = max((rows + size for rows, size in zip(wanted, records, strict=True)), default=0)
        cache, least = limits.memory - _BUFFERS * buffer, least_cached_bytes(graph.row_files)
        missing = auto.missing_share(graph, probe.batches, cache, least)
    return _of_batches(graph, sampling, limits, structure, sum(wanted) / count, missing, probe.count)


def num_batches(graph: Graph, sampling: SampleConfig, split: str) -> int:
    """Counts the batches of an epoch of ``split``; 0 where the graph has no such seeds.

    Equals ``-(-len(seeds) // batch_size)``.
    """
    name = f"{split}_edges" if sampling.task == "link" else split
    return -(-graph.spec(name).shape[0] // sampling.batch_size) if graph.has(name) else 0


def _of_batches(
    graph: Graph,
    sampling: SampleConfig,
    limits: PlanConfig,
    structure: float,
    rows: float,
    missing: float = 1.0,
    count: int | None = None,
) -> EpochBytes:
    """Returns bytes of all, from those of a batch: its structure, which is there twice (sampled, packed), and its rows.

    Args:
        missing: Share of the rows that no cache holds.
        count: Batches of an epoch, where it is known.
    """
    batches = partial(num_batches, graph, sampling)
    packed = 2 * structure + rows * missing + 3 * PAGE_BYTES
    train = batches("train") if count is None else count
    evaluation = batches("valid") * packed + batches("test") * structure
    caches = graph.feature_bytes if limits.memory is None else min(limits.memory, graph.feature_bytes)
    return EpochBytes(
        math.ceil(train * packed),
        math.ceil(evaluation),
        math.ceil(train * rows),
        caches,
        # A plan packs them only where no disk space is named.
        0 if limits.disk_space is not None else math.ceil(batches("test") * (packed - structure)),
        batches("test") if limits.disk_space is None else 0,
        train,
        math.ceil(train * 2 * structure),
    )


def _all(epochs: int, size: EpochBytes | None = None) -> str:
    """Says that all are prepared, and what disk that may take where a few batches were looked at."""
    disk = "" if size is None else f", in up to about {format_bytes(size.run(epochs))} on disk"
    return f"new batches in every epoch: {_epochs(epochs)} prepared at once{disk}"


def _count(epochs: int) -> str:
    return "1 epoch" if epochs == 1 else f"{epochs} epochs"


def _epochs(count: int) -> str:
    return _count(count) + (" is" if count == 1 else " are")
