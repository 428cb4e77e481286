"""What an epoch reads in modes packed and online, counted over its batches, and what it computes, timed on a few.

Batches are sampled ahead, or taken from a run.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from outcrop import device as devices
from outcrop.advisor import shapes
from outcrop.advisor.cost import LoadingWork, Workload
from outcrop.advisor.pages import page_bytes, page_runs
from outcrop.config import ModelConfig, PlanConfig, SampleConfig, format_bytes
from outcrop.config.sampling import EXTERNAL
from outcrop.errors import BudgetError
from outcrop.loading.modes import Online, Packed, mode_with
from outcrop.loading.open import open_session
from outcrop.loading.session import LoadSession
from outcrop.preparation.prepare import PrepareRequest, prepare_within_limits, with_rates
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.sampler import BatchSampler
from outcrop.store.arrays import storage_dtype
from outcrop.store.graph import Graph
from outcrop.store.graph_types import RowFile
from outcrop.store.levels import Level, LevelCounts
from outcrop.store.placement import Placement, align_pages, open_placement
from outcrop.store.profile import Profile
from outcrop.store.samples import SampleSet, open_samples

_LARGE_READ = 1 << 20
_TIMED_BATCHES, _TIMED_S = 3, 1.0
_DRAWN_BATCHES = 8


@dataclass(frozen=True)
class Task:
    """Says what is trained, and under which limits.

    Attributes:
        sampling: How its batches are drawn, and of how many epochs.
        run: Samples and plan that are there already: of ``sampling``, and not within ``limits``.
    """

    graph: Graph
    model: ModelConfig = field(default_factory=ModelConfig)
    sampling: SampleConfig = field(default_factory=SampleConfig)
    limits: PlanConfig = field(default_factory=PlanConfig)
    device: str = "cpu"
    run: Path | None = None
    topology: str = "automatic"

    def __post_init__(self) -> None:
        object.__setattr__(self, "graph", self.graph.with_edge_rows(self.sampling.edge_rows))

    @property
    def network(self) -> shapes.Network:
        return shapes.network_of(self.graph, self.model)


@dataclass(frozen=True)
class FileCount:
    """Counts what an epoch takes of one row file.

    Attributes:
        rows_by_level: Rows that come from each level, as loading counts them.
        bytes_read: Bytes read from disk.
        requests: Reads of these that are not of a record: of pages that are not neighbours.
    """

    rows_by_level: LevelCounts
    bytes_read: int
    requests: int


@dataclass(frozen=True)
class EpochCount:
    """Says what an epoch of a task is made of: ``works`` by mode, and the mean shape of its batches.

    Attributes:
        files: What each mode takes of each row file.
    """

    works: dict[str, Workload]
    shape: shapes.BatchShape
    network: shapes.Network
    rows_bytes: int
    disk_bytes: int
    compute_s: float
    assumptions: tuple[str, ...]
    files: dict[str, tuple[FileCount, ...]] = field(default_factory=dict)


def online_files(
    session: LoadSession, graph: Graph, samples: SampleSet, runtime: Runtime, epoch: int = 0
) -> tuple[FileCount, ...]:
    """Returns what an epoch in mode ``online`` reads of each row file through ``session``: bytes exactly.

    What the cache has not got is asked for hop by hop, and each page of a hop is read once. The batches are those of
    ``samples``, which are the ones that the mode draws.
    """
    return tuple(_online_file(session, rows, samples, runtime, epoch) for rows in graph.row_files)


def _online_file(
    session: LoadSession, rows: RowFile, samples: SampleSet, runtime: Runtime, epoch: int
) -> FileCount:
    section, spec = samples.section(rows), rows.spec
    buffer = runtime.budget.empty("advise", section.buffer_bytes)
    row_bytes = storage_dtype(spec.dtype).itemsize * math.prod(spec.shape[1:])
    read = requests = disk = wanted = 0
    for batch in samples.group("train").batches(epoch):
        ids = section.read_ids(batch, buffer).astype(np.int64)
        external = samples.manifest.config["sampler"] == EXTERNAL
        parts = [ids] if external else np.split(ids, np.cumsum(section.runs[batch])[:-1])
        for part in parts:
            missing = session.missing_rows(part, rows.number)
            read += page_bytes(missing, row_bytes, spec.stride_bytes)
            requests += page_runs(missing, row_bytes, spec.stride_bytes)
            disk += len(missing)
        wanted += len(ids)
    return FileCount({Level.HOST: wanted - disk, Level.DISK: disk}, read, requests)


def count(
    task: Task, profile: Profile | None = None, *, compute_s: float | None = None, online: bool = True
) -> EpochCount:
    """Counts what an epoch of ``task`` reads in modes ``packed`` and ``online`` and times what it computes.

    Args:
        profile: Profile of this machine; None: neither computing nor drawing is timed.
        compute_s: Seconds of computing an epoch, where it is known already.
        online: Count mode ``online``, too.

    Raises:
        BudgetError: The limits cannot be met.
    """
    with _planned(task) as (folder, predicted), Runtime() as runtime:
        graph, samples = task.graph, open_samples(runtime, folder / "sample")
        batches = np.array(samples.group("train").batches(0))
        network = task.network
        if compute_s is None and profile is not None:
            compute_s = compute_seconds(task, samples, runtime)
        compute = compute_s or 0.0
        epoch = _Epoch(samples, batches, _rows_bytes(graph, samples, batches), compute)
        placement = open_placement(runtime, folder / "plan")
        files = {Packed.name: _packed_files(placement, samples, batches)}
        works = {Packed.name: _packed_work(epoch, placement, predicted, files[Packed.name])}
        assumptions: list[str] = list(_ASSUMED)
        try:
            if online:
                works[Online.name], files[Online.name] = _online_work(task, epoch, profile, assumptions)
        except BudgetError as error:
            assumptions.append(f"online does not fit: {error}")
        return EpochCount(
            works,
            _shape(graph, samples, batches),
            network,
            epoch.rows_bytes,
            int(predicted["disk_bytes"]),
            compute,
            tuple(assumptions),
            files,
        )


@dataclass(frozen=True)
class _Epoch:
    """Describes the batches of an epoch.

    Attributes:
        batches: Their numbers, int64.
        rows_bytes: Bytes of the rows that they want, repeats counted.
        compute_s: Seconds of computing with them.
    """

    samples: SampleSet
    batches: np.ndarray
    rows_bytes: int
    compute_s: float

    @property
    def seeds(self) -> int:
        return int(self.samples.num_seeds[self.batches].sum())


def _rows_bytes(graph: Graph, samples: SampleSet, batches: np.ndarray) -> int:
    return sum(
        int(samples.section(rows).num_rows[batches].sum()) * rows.row_bytes for rows in graph.row_files
    )


def _shape(graph: Graph, samples: SampleSet, batches: np.ndarray) -> shapes.BatchShape:
    """Returns the mean shape of the batches."""
    if samples.edges_per_hop is not None:
        return shapes.typed_shape(samples.nodes[batches], samples.edges_per_hop[batches])
    hops = tuple(map(float, samples.nodes_per_hop[batches].mean(axis=0)))
    edges = _edges_of(samples, batches)
    return shapes.TypedShape((hops,), (edges,)) if graph.is_typed else shapes.Shape(hops, edges)


_ASSUMED = (
    "every epoch is as the first one sampled; the first epoch of a process is slower",
    "validation, test and checkpoints are not counted",
    "a described machine reaches the rates that its file states; loading has cores of its own there",
)


@contextmanager
def _planned(task: Task) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields a folder with samples and plan, and what the plan predicts."""
    if task.run is not None:
        with Runtime() as runtime:
            yield task.run, open_placement(runtime, task.run / "plan").predicted
        return
    graph_folder = task.graph.path.parent
    where = graph_folder if os.access(graph_folder, os.W_OK) else None
    with TemporaryDirectory(prefix=".outcrop-advise-", dir=where) as folder:
        out = Path(folder) / "run"
        limits = with_rates(task.limits, task.sampling, task.graph, out)
        request = PrepareRequest(task.graph, out, task.sampling, limits, stop_after="plan")
        yield out, prepare_within_limits(request).predicted


def _edges_of(samples: SampleSet, at: np.ndarray) -> tuple[float, ...]:
    """Returns the mean edges per hop; the total is known, hops share it in proportion to the nodes that they reach."""
    total = float(samples.num_edges[at].mean())
    reached = samples.nodes_per_hop[at][:, 1:].mean(axis=0)
    return tuple(float(total * n / max(reached.sum(), 1)) for n in reached)


def compute_seconds(task: Task, samples: SampleSet, runtime: Runtime) -> float:
    """Returns the seconds of computing an epoch: a few of its batches timed, the others in proportion to their nodes
    and edges.
    """
    from outcrop.advisor import steps

    devices.resolve(task.device)
    every = samples.group("train").batches(0)
    chosen = [every[i] for i in np.unique(np.linspace(0, len(every) - 1, _TIMED_BATCHES).astype(int))]
    buffer = runtime.budget.empty("advise", samples.max_record_bytes)
    batches = [steps.batch_of(samples.read(b, buffer), task.graph) for b in chosen]
    network = task.network
    seconds = steps.step_seconds(batches, network, seconds=_TIMED_S, device=task.device)
    size = samples.num_nodes + samples.num_edges
    return sum(seconds) * float(size[np.array(every)].sum() / size[np.array(chosen)].sum())


def _packed_files(placement: Placement, samples: SampleSet, batches: np.ndarray) -> tuple[FileCount, ...]:
    """Counts what the records of ``batches`` hold of each row file, and what they read of its disk cache."""
    number = placement.numbers_of(batches)
    parts = np.diff(placement.part_starts(samples))[number, 1:].sum(axis=0)
    found = []
    for rows, part in zip(placement.files, parts, strict=True):
        host, device, disk = (int(count) for count in rows.cached_rows[number].sum(axis=0))
        pages = int(rows.disk_pages[number].sum())
        levels: LevelCounts = {
            Level.DEVICE: device,
            Level.HOST: host,
            Level.DISK_CACHE: disk,
            Level.PACKED: int(rows.num_packed[number].sum()),
        }
        found.append(FileCount(levels, int(part) + pages * PAGE_BYTES, pages))
    return tuple(found)


def _packed_work(
    epoch: _Epoch, placement: Placement, predicted: dict[str, Any], files: Sequence[FileCount]
) -> Workload:
    bytes_read = predicted["epochs"]["train"][0]["bytes_read"]
    number = placement.numbers_of(epoch.batches)
    records = np.diff(placement.offsets)[number]
    pages = sum(one.requests for one in files)
    large = (int(records.sum()), int((-(-records // _LARGE_READ)).sum()))

    def rows_bytes(*levels: Level) -> int:
        rows = (sum(one.rows_by_level[level] for level in levels) for one in files)
        return sum(count * width for count, width in zip(rows, placement.row_bytes, strict=True))

    on_device = rows_bytes(Level.DEVICE)
    return Workload(
        Packed.name,
        len(epoch.batches),
        epoch.seeds,
        reads=(large, (pages * PAGE_BYTES, pages)) if pages else (large,),
        compute_s=epoch.compute_s,
        memory_bytes=max(epoch.rows_bytes - on_device - bytes_read, 0),
        loading=LoadingWork(
            read_bytes=bytes_read,
            requests=pages,
            copied_bytes=bytes_read,
            gathered_bytes=rows_bytes(Level.HOST, Level.DISK_CACHE),
            structure_bytes=int(align_pages(placement.meta_bytes(epoch.samples)[number]).sum()),
        ),
        buffers=placement.buffers,
    )


def _online_work(
    task: Task, epoch: _Epoch, profile: Profile | None, assumptions: list[str]
) -> tuple[Workload, tuple[FileCount, ...]]:
    graph, samples = task.graph, epoch.samples
    run = task.run if task.run is not None and (task.run / "pack" / "manifest.json").is_file() else None
    config = SampleConfig.from_stored(samples.manifest.config)
    online = mode_with(Online(), {"topology": task.topology})
    with (
        Runtime(task.limits.memory) as runtime,
        open_session(graph, runtime, online, run_folder=run, config=config) as session,
    ):
        buffers = session.buffers
        held = Runtime()  # what counting takes is no part of the budget
        files = online_files(session, graph, samples, held)
        held.close()
    drawn_s, count = 0.0, len(epoch.batches)
    if profile is not None and config.sampler != EXTERNAL:
        drawn_s, topology = drawing(task, config)
        if topology:
            assumptions.append(
                f"online reads about {format_bytes(topology * count)} of topology an epoch besides, by pages: "
                "measured on a few batches, not counted"
            )
    read, requests = sum(one.bytes_read for one in files), sum(one.requests for one in files)
    work = Workload(
        Online.name,
        count,
        epoch.seeds,
        reads=((read, requests),),
        compute_s=epoch.compute_s,
        memory_bytes=max(epoch.rows_bytes - read, 0),
        loading=LoadingWork(requests=requests, gathered_bytes=epoch.rows_bytes, other_s=drawn_s * count),
        buffers=buffers,
    )
    return work, files


def drawing(task: Task, config: SampleConfig) -> tuple[float, float]:
    """Returns CPU seconds, and bytes read of the topology, that drawing a batch takes."""
    with Runtime(task.limits.memory) as runtime:
        sampler = BatchSampler(task.graph, config, runtime, topology=task.topology)
        batches, before = sampler.epoch("train", 0), runtime.io.counters.read_bytes
        cpu, drawn = time.process_time(), 0
        for _ in batches:
            drawn += 1
            if drawn == _DRAWN_BATCHES:
                break
        batches.close()  # type: ignore[attr-defined]
        return (time.process_time() - cpu) / drawn, (runtime.io.counters.read_bytes - before) / drawn
