"""Choices made for the user: looks at the machine and at a few batches, and settles budget, mode and disk space."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.advisor import choose, machine, shapes
from outcrop.advisor.choose import AUTO, Choice, WorkloadFacts
from outcrop.advisor.pages import page_bytes, page_runs
from outcrop.config import ModelConfig, SampleConfig, Size, format_bytes, parse_size
from outcrop.config.sampling import EXTERNAL
from outcrop.loading.modes import Packed
from outcrop.preparation.cached_rows import least_cached_bytes
from outcrop.runtime import memory_tables, system
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.sampler import BatchSampler
from outcrop.sampling.topology import topology_bytes
from outcrop.store import run as runs
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.store.profile import Profile

_LOOKED_AT = 4
_USUAL_ROWS = "random:64"  # of nodes without any, where nobody says


def is_auto(memory: Size | None) -> bool:
    return memory == AUTO


@dataclass(frozen=True)
class TrainingAhead:
    """Says what is known of a training before its limits are chosen.

    Attributes:
        epochs: Epochs that will be trained.
        model: What is trained; None: nobody knows, and it is taken for a usual one.
        disk_space: Limit for the files of the run; None: what is free.
        refresh: Whether batches are drawn anew for every pool.
        least_epochs: Batches are prepared for as many of ``epochs`` as fit the disk, and a run of the same batches that
            has at least so many stays; None: for as many as are sampled, no more and no less.
    """

    epochs: int = 10
    model: ModelConfig | None = None
    disk_space: Size | None = None
    refresh: bool = False
    least_epochs: int | None = None


def choose_limits(
    graph: Graph,
    sampling: SampleConfig,
    out: Path | None,
    ahead: TrainingAhead | None = None,
    *,
    profile: Profile | None = None,
    available_bytes: int | None = None,
) -> Choice:
    """Chooses what to train ``graph`` with.

    A run that is there already, of the same batches, keeps what it was made with.

    Args:
        out: The run that exists or is to be made.
        ahead: What else is known of the training.
        profile: None: the one that is kept, measured where there is none (about 15 s).
        available_bytes: None: asks the system.

    Raises:
        ArgumentError: The model is for other graphs.
        BudgetError: There is too little memory.
    """
    ahead, graph = ahead or TrainingAhead(), graph.with_edge_rows(sampling.edge_rows)
    available = system.available_memory() if available_bytes is None else available_bytes
    if out is not None and (out / runs.RUN_FILE).is_file():
        info = runs.read(out)
        same = sampling
        if ahead.least_epochs is not None and info.sample.epochs >= ahead.least_epochs:
            same = replace(sampling, epochs=info.sample.epochs)
        if info.sample == same and info.graph_digest == graph.digest() and info.plan.memory is not None:
            choose.memory_within(available)
            why = (
                f"memory auto takes {format_bytes(info.plan.memory)}, which {out} was prepared for; "
                "delete that folder to choose anew, or name a budget"
            )
            return Choice(info.plan.memory, Packed.name, info.plan.disk_space, why)
    space = ahead.disk_space
    limit = None if space is None else parse_size(space, feature_bytes=graph.feature_bytes)
    if sampling.sampler == EXTERNAL:  # nobody can look at these batches ahead
        memory = choose.memory_within(available)
        return Choice(
            memory,
            Packed.name,
            limit,
            f"memory {format_bytes(memory)} of {format_bytes(available)} available",
        )
    profile = profile or machine.profile_of(graph.path.resolve().parent)
    folder = graph.path if out is None else next(p for p in (out, *out.resolve().parents) if p.is_dir())
    disk = os.statvfs(folder)
    memory = choose.memory_within(available)
    probe = probe_batches(graph, sampling, memory)
    facts = WorkloadFacts(
        available_bytes=available,
        free_disk_bytes=disk.f_bavail * disk.f_frsize,
        epochs=ahead.epochs,
        pool=sampling.epochs,
        refresh=ahead.refresh,
        compute_s=_step_seconds(graph, probe, profile, ahead.model) * probe.count,
        write_bytes_per_s=profile.write_bytes_per_s,
        disk_space=limit,
        **probe.facts(graph),
    )
    if ahead.least_epochs is not None:
        facts = replace(facts, pool=choose.whole_epochs(facts), refresh=True)
    return choose.choose(facts, profile.hardware())


@dataclass(frozen=True)
class BatchProbe:
    """Holds the first batches of an epoch.

    Attributes:
        count, seeds: Batches and seeds of the whole epoch.
        drawn_s: CPU seconds that drawing one takes, with its share of what an epoch begins with.
        missing: Share of their rows that no cache within the budget would hold; at the most.
        packed_missing: That share where rows are packed.
    """

    batches: list[BatchGraph]
    count: int
    seeds: int
    drawn_s: float
    missing: float
    packed_missing: float

    def most_bytes(self, graph: Graph) -> int:
        """Counts the bytes of the buffers for such batches."""
        return _buffer_bytes(graph, self.batches)

    def facts(self, graph: Graph) -> dict[str, Any]:
        """Returns what :class:`outcrop.advisor.choose.WorkloadFacts` wants to know of an epoch."""
        scale = self.count / max(len(self.batches), 1)
        sections = [
            (b.section(rows).ids, rows.row_bytes, rows.row_bytes)
            for b in self.batches
            for rows in graph.row_files
        ]
        read, requests = (sum(count(*section) for section in sections) for count in (page_bytes, page_runs))
        wanted = sum(len(ids) for ids, *_ in sections)
        return {
            "batches": self.count,
            "seeds": self.seeds,
            "row_bytes": sum(wanted_bytes(graph, b) for b in self.batches) // wanted
            if wanted
            else max((rows.row_bytes for rows in graph.row_files), default=0),
            "feature_bytes": graph.feature_bytes,
            "rows": wanted * scale,
            "missing": self.missing,
            "packed_missing": self.packed_missing,
            "online_bytes": read * scale,
            "online_requests": requests * scale,
            "draw_s": self.drawn_s * self.count,
        }


def probe_batches(graph: Graph, sampling: SampleConfig, memory: int) -> BatchProbe:
    """Draws the first batches of an epoch within ``memory``."""
    with Runtime(memory) as runtime:
        sampler = BatchSampler(graph, sampling, runtime)
        count = sampler.num_batches("train")
        batches, drawn_s = _first_batches(sampler, count)
    seeds = len(sampler.ids["train"]) if sampling.task != "link" else count * sampling.batch_size
    buffers = _buffer_bytes(graph, batches)
    left = memory - buffers - min(topology_bytes(graph), memory_tables.ONLINE_TOPOLOGY.bytes_of(memory))
    missing = missing_share(graph, batches, left)
    least = least_cached_bytes(graph.row_files)
    packed_missing = missing if least == 1 else missing_share(graph, batches, left, least)
    return BatchProbe(batches, count, seeds, drawn_s, missing, packed_missing)


def _first_batches(sampler: BatchSampler, count: int) -> tuple[list[BatchGraph], float]:
    """Draws the first batches of an epoch of ``count``; returns them, and the CPU seconds of a batch with its share of
    what an epoch begins with. Batches are drawn several together.
    """
    begun = time.process_time()
    found = sampler.begin("train", 0)
    drawing = time.process_time()
    batches = list(islice(found, _LOOKED_AT))
    drawn_s = time.process_time() - drawing
    found.close()  # type: ignore[attr-defined]
    drawn = min(-(-_LOOKED_AT // sampler.together) * sampler.together, count)
    return batches, drawn_s / max(drawn, 1) + (drawing - begun) / max(count, 1)


def _buffer_bytes(graph: Graph, batches: Sequence[BatchGraph]) -> int:
    """Counts the bytes of the buffers that hold the rows of batches while they are loaded and learned from."""
    counts = (zip(b.num_rows(graph.row_files), graph.row_files, strict=True) for b in batches)
    sizes = (sum(count * rows.batch_row_bytes for count, rows in of_batch) for of_batch in counts)
    return memory_tables.BATCH_BUFFERS * max(sizes, default=0)


def wanted_bytes(graph: Graph, batch: BatchGraph) -> int:
    """Counts the bytes of the rows that a batch wants."""
    counts = batch.num_rows(graph.row_files)
    return sum(count * rows.row_bytes for count, rows in zip(counts, graph.row_files, strict=True))


def missing_share(
    graph: Graph, batches: Sequence[BatchGraph], cache_bytes: int, least_bytes: int = 1
) -> float:
    """Returns the share of the last batch's rows that a cache of ``cache_bytes`` would not hold; of several row files
    the share of their bytes, of which narrower rows than ``least_bytes`` are in no cache.
    """
    wanted = [[batch.section(rows).ids for batch in batches] for rows in graph.row_files]
    sizes = [(rows.row_bytes, rows.num_rows) for rows in graph.row_files]
    if len(sizes) != 1:
        return missing_bytes(wanted, sizes, cache_bytes, least_bytes)
    ((row_bytes, num_rows),) = sizes
    return missing_rows(wanted[0], cache_bytes // max(row_bytes, 1), num_rows)


def missing_bytes(
    wanted: Sequence[Sequence[np.ndarray]],
    sizes: Sequence[tuple[int, int]],
    cache_bytes: int,
    least_bytes: int = 1,
) -> float:
    """Returns the share of the bytes of the last batch's rows that a cache would not hold which the others have filled:
    rows of all row files, often wanted ones first, as :func:`missing_rows` has it of one.

    Args:
        wanted: Ids of the rows that each batch wants, of each row file.
        sizes: Bytes of a row, and number of rows, of each row file.
        cache_bytes: Bytes that the cache holds.
        least_bytes: Narrower rows are not cached.
    """
    last = [batches[-1] if batches else np.zeros(0, np.int64) for batches in wanted]
    total = sum(len(ids) * width for ids, (width, _) in zip(last, sizes, strict=True))
    wide = [number for number, (width, _) in enumerate(sizes) if width >= least_bytes]
    never = total - sum(len(last[number]) * sizes[number][0] for number in wide)
    all_bytes = sum(sizes[number][0] * sizes[number][1] for number in wide)
    if cache_bytes >= all_bytes or not wide:
        return never / total if total else 0.0
    seen = [
        np.unique(np.concatenate(wanted[number][:-1] or [np.zeros(0, np.int64)]), return_counts=True)
        for number in wide
    ]
    widths = np.array([sizes[number][0] for number in wide], np.int64)
    owner = np.repeat(np.arange(len(wide)), [len(ids) for ids, _ in seen])
    order = np.argsort(-np.concatenate([times for _, times in seen]), kind="stable")
    filled = np.zeros(len(owner), bool)
    filled[order] = np.cumsum(widths[owner[order]]) <= cache_bytes
    seen_bytes = int(widths[owner].sum())
    missed = 0
    for at, number in enumerate(wide):
        held = seen[at][0][filled[owner == at]]
        missed += int((~np.isin(last[number], held)).sum()) * sizes[number][0]
    unseen = max(cache_bytes - seen_bytes, 0) / max(all_bytes - seen_bytes, 1)
    return (never + missed * (1 - unseen)) / total if total else 0.0


def missing_rows(batches: Sequence[np.ndarray], cache_rows: int, num_nodes: int) -> float:
    """Returns the share of the last batch's rows that a cache would not hold which the others have filled: often wanted
    rows first.

    What room they leave is for rows that were not seen, any of them.
    """
    *others, last = batches or [np.zeros(0, np.int64)]
    if not len(last) or cache_rows >= num_nodes:
        return 0.0
    seen, times = np.unique(np.concatenate(others or [last[:0]]), return_counts=True)
    held = seen[np.argsort(-times, kind="stable")[: max(cache_rows, 0)]]
    unseen = max(cache_rows - len(seen), 0) / max(num_nodes - len(seen), 1)
    return float((~np.isin(last, held)).mean() * (1 - unseen))


def _step_seconds(graph: Graph, probe: BatchProbe, profile: Profile, model: ModelConfig | None) -> float:
    """Returns the seconds of a training step on an average one of the batches seen, from the profile's step."""
    if model is None and graph.is_typed:
        if not graph.num_classes:  # nobody learns from it
            return 0.0
        model = ModelConfig("rsage", no_rows=_USUAL_ROWS)
    network = shapes.network_of(graph, model or ModelConfig())
    step = profile.steps.get(shapes.timed_model(network.model), 0.0)
    return shapes.scaled_step(step, network, shapes.shape_of(graph, probe.batches))
