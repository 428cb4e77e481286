"""What an epoch reads in modes packed and online, counted over its batches, and what it computes, timed on a few.

Batches are sampled ahead, or taken from a run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
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
from outcrop.store.graph import Graph
from outcrop.store.placement import align_pages, open_placement
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

    @property
    def network(self) -> shapes.Network:
        return shapes.network_of(self.graph, self.model.name, self.model.hidden, self.model.heads)


@dataclass(frozen=True)
class EpochCount:
    """Says what an epoch of a task is made of: ``works`` by mode, and the mean shape of its batches."""

    works: dict[str, Workload]
    shape: shapes.Shape
    network: shapes.Network
    rows_bytes: int
    disk_bytes: int
    compute_s: float
    assumptions: tuple[str, ...]


def online_bytes(
    session: LoadSession, graph: Graph, samples: SampleSet, runtime: Runtime, epoch: int = 0
) -> tuple[int, int]:
    """Returns (bytes, requests) of the features that an epoch in mode ``online`` reads through ``session``: bytes
    exactly.

    What the cache has not got is asked for hop by hop, and each page of a hop is read once. The batches are those of
    ``samples``, which are the ones that the mode draws.
    """
    section = samples.section(graph.row_file)
    buffer = runtime.budget.empty("advise", section.buffer_bytes)
    spec, read, requests = graph.row_file.spec, 0, 0
    for batch in samples.group("train").batches(epoch):
        ids = section.read_ids(batch, buffer).astype(np.int64)
        external = samples.manifest.config["sampler"] == EXTERNAL
        parts = [ids] if external else np.split(ids, np.cumsum(section.runs[batch])[:-1])
        for part in parts:
            missing = session.missing_rows(part)
            read += page_bytes(missing, session.row_bytes, spec.stride_bytes)
            requests += page_runs(missing, session.row_bytes, spec.stride_bytes)
    return read, requests


def count(task: Task, profile: Profile | None = None, *, compute_s: float | None = None) -> EpochCount:
    """Counts what an epoch of ``task`` reads in modes ``packed`` and ``online`` and times what it computes.

    Args:
        profile: Profile of this machine; None: neither computing nor drawing is timed.
        compute_s: Seconds of computing an epoch, where it is known already.

    Raises:
        BudgetError: The limits cannot be met.
    """
    with _planned(task) as (folder, predicted), Runtime() as runtime:
        graph, samples = task.graph, open_samples(runtime, folder / "sample")
        group = samples.group("train")
        batches = np.array(group.batches(0))
        network = task.network
        if compute_s is None and profile is not None:
            compute_s = compute_seconds(task, samples, runtime)
        compute = compute_s or 0.0
        row_bytes = graph.row_file.row_bytes
        rows, seeds = int(samples.num_nodes[batches].sum()), int(samples.num_seeds[batches].sum())
        works = {
            Packed.name: _packed_work(
                samples, batches, predicted, folder, row_bytes, seeds, compute, runtime
            ),
        }
        assumptions: list[str] = list(_ASSUMED)
        try:
            works[Online.name] = _online_work(
                task, samples, batches, row_bytes, seeds, compute, profile, assumptions
            )
        except BudgetError as error:
            assumptions.append(f"online does not fit: {error}")
        hops = samples.nodes_per_hop[batches].mean(axis=0)
        shape = shapes.Shape(tuple(map(float, hops)), _edges_of(samples, batches))
        return EpochCount(
            works, shape, network, rows * row_bytes, int(predicted["disk_bytes"]), compute, tuple(assumptions)
        )


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
    batches = [
        steps.batch_of(samples.read(b, buffer), task.graph.feature_dim, task.graph.num_classes)
        for b in chosen
    ]
    network = task.network
    seconds = steps.step_seconds(batches, network, seconds=_TIMED_S, device=task.device)
    size = samples.num_nodes + samples.num_edges
    return sum(seconds) * float(size[np.array(every)].sum() / size[np.array(chosen)].sum())


def _packed_work(
    samples: SampleSet,
    batches: np.ndarray,
    predicted: dict[str, Any],
    folder: Path,
    row_bytes: int,
    seeds: int,
    compute_s: float,
    runtime: Runtime,
) -> Workload:
    epoch = predicted["epochs"]["train"][0]
    levels = epoch["rows_by_level"]
    placement = open_placement(runtime, folder / "plan")
    number = np.searchsorted(placement.packed_batches, batches)
    records = np.diff(placement.offsets)[number]
    pages = sum(int(rows.disk_pages[number].sum()) for rows in placement.files)
    large = (int(records.sum()), int((-(-records // _LARGE_READ)).sum()))
    total = int(samples.num_nodes[batches].sum())
    return Workload(
        Packed.name,
        len(batches),
        seeds,
        reads=(large, (pages * PAGE_BYTES, pages)) if pages else (large,),
        compute_s=compute_s,
        memory_bytes=max((total - levels["device"]) * row_bytes - epoch["bytes_read"], 0),
        loading=LoadingWork(
            read_bytes=epoch["bytes_read"],
            requests=pages,
            copied_bytes=epoch["bytes_read"],
            gathered_bytes=(levels["host"] + levels["disk_cache"]) * row_bytes,
            structure_bytes=int(align_pages(placement.meta_bytes(samples)[number]).sum()),
        ),
        buffers=placement.buffers,
    )


def _online_work(
    task: Task,
    samples: SampleSet,
    batches: np.ndarray,
    row_bytes: int,
    seeds: int,
    compute_s: float,
    profile: Profile | None,
    assumptions: list[str],
) -> Workload:
    graph = task.graph
    run = task.run if task.run is not None and (task.run / "pack" / "manifest.json").is_file() else None
    config = SampleConfig.from_stored(samples.manifest.config)
    online = mode_with(Online(), {"topology": task.topology})
    with (
        Runtime(task.limits.memory) as runtime,
        open_session(graph, runtime, online, run_folder=run, config=config) as session,
    ):
        buffers = session.buffers
        held = Runtime()  # what counting takes is no part of the budget
        read, requests = online_bytes(session, graph, samples, held)
        held.close()
    drawn_s = 0.0
    if profile is not None and config.sampler != EXTERNAL:
        drawn_s, topology = _drawing(task, config)
        if topology:
            assumptions.append(
                f"online reads about {format_bytes(topology * len(batches))} of topology an epoch besides, by pages: "
                "measured on a few batches, not counted"
            )
    total = int(samples.num_nodes[batches].sum())
    return Workload(
        Online.name,
        len(batches),
        seeds,
        reads=((read, requests),),
        compute_s=compute_s,
        memory_bytes=max(total * row_bytes - read, 0),
        loading=LoadingWork(
            requests=requests, gathered_bytes=total * row_bytes, other_s=drawn_s * len(batches)
        ),
        buffers=buffers,
    )


def _drawing(task: Task, config: SampleConfig) -> tuple[float, float]:
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
