"""advise: what an epoch takes and reads, here and on other machines, before anything is packed.

Batches are sampled ahead (or taken from a run), so that bytes are counted and not estimated: what the plan predicts
for mode ``packed``, what the reader will read for mode ``online``. Computing is timed on a few of these batches; the
rest is the cost model (advisor/cost.py) with the profile of the machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from outcrop import device as devices
from outcrop.advisor import cost, machine, shapes
from outcrop.advisor.cost import Hardware, Loading, Offer, Prices, Workload
from outcrop.advisor.pages import page_runs
from outcrop.advisor.profile import HERE, Profile
from outcrop.api.prepare import prepare
from outcrop.api.run import open_session
from outcrop.config import IoConfig, SampleConfig, Size, format_bytes, parse_size
from outcrop.errors import ArgumentError, BudgetError
from outcrop.rows import DiskRows, RowSource, TieredRows
from outcrop.runtime import Runtime
from outcrop.sampling import BatchSampler
from outcrop.stages.load import LoadSession, RowFeeder
from outcrop.store import run as runs
from outcrop.store.graph import Graph, open_graph
from outcrop.store.placement import open_placement
from outcrop.store.record import PAGE_BYTES
from outcrop.store.samples import SampleSet, open_samples

_LARGE_READ = 1 << 20
_TIMED_BATCHES, _TIMED_S = 3, 1.0
_ONLINE_BUFFERS = 2
_DRAWN_BATCHES = 8


@dataclass(frozen=True)
class Task:
    """What is trained, and under which limits; ``run``: samples and plan that are there already."""

    graph: Graph
    model: str = "sage"
    hidden: int | None = None
    fanouts: tuple[int, ...] = (10, 10)
    batch_size: int = 1024
    sampler: str = "neighbor"
    sample_epochs: int = 1
    seed: int = 0
    memory: int | None = None
    gpu_memory: int = 0
    disk_space: Size | None = None
    device: str = "cpu"
    run: Path | None = None
    topology: str = "automatic"

    @property
    def io(self) -> IoConfig:
        return IoConfig(topology=self.topology)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Counted:
    """What an epoch of a task is made of: ``works`` by mode, and the mean shape of its batches."""

    works: dict[str, Workload]
    shape: shapes.Shape
    network: shapes.Network
    rows_bytes: int
    disk_bytes: int
    compute_s: float
    assumptions: tuple[str, ...]


def online_reads(rows: RowSource, ids: np.ndarray, stride: int) -> tuple[int, int]:
    """(bytes, requests) that reading ``ids`` from ``rows`` takes: bytes exactly.

    Raises:
        ArgumentError: What lies below its cache cannot count.
    """
    if isinstance(rows, TieredRows):
        return online_reads(rows.below, rows.missing(ids), stride)
    if not isinstance(rows, DiskRows):
        raise ArgumentError(f"{type(rows).__name__} reads no pages that could be counted")
    return rows.count_read_bytes(ids), page_runs(ids, rows.row_bytes, stride)


def online_bytes(
    session: LoadSession, graph: Graph, samples: SampleSet, runtime: Runtime, epoch: int = 0
) -> tuple[int, int]:
    """(bytes, requests) of the features that an epoch in mode ``online`` reads through ``session``: bytes exactly.

    The batches are those of ``samples``, which are the ones that the mode draws.
    """
    assert isinstance(session.feeder, RowFeeder)
    buffer = runtime.budget.empty("advise", max(samples.max_nodes * samples.id_bytes, 1))
    stride, total = graph.spec("features").stride_bytes, np.zeros(2, np.int64)
    for batch in samples.group("train").batches(epoch):
        ids = samples.read_node_ids(batch, buffer).astype(np.int64)
        total += online_reads(session.feeder.rows, ids, stride)
    return int(total[0]), int(total[1])


def count(task: Task, profile: Profile | None = None, *, compute_s: float | None = None) -> Counted:
    """Counts what an epoch of ``task`` reads in modes ``packed`` and ``online`` and times what it computes.

    Args:
        profile: Of this machine; None: neither computing nor drawing is timed.
        compute_s: Of an epoch, where it is known already.

    Raises:
        BudgetError: The limits cannot be met.
    """
    with _planned(task) as (folder, predicted), Runtime() as runtime:
        graph, samples = task.graph, open_samples(runtime, folder / "sample")
        group = samples.group("train")
        at = np.array(group.batches(0))
        network = shapes.Network(task.model, graph.feature_dim, _width(task), graph.num_classes)
        if compute_s is None and profile is not None:
            compute_s = compute_seconds(task, samples, runtime)
        compute = compute_s or 0.0
        row_bytes = graph.spec("features").stride_bytes
        rows, seeds = int(samples.num_nodes[at].sum()), int(samples.nodes_per_hop[at, 0].sum())
        works = {
            "packed": _packed_work(samples, at, predicted, folder, row_bytes, seeds, compute, runtime),
        }
        assumptions: list[str] = list(_ASSUMED)
        try:
            works["online"] = _online_work(task, samples, at, row_bytes, seeds, compute, profile, assumptions)
        except BudgetError as error:
            assumptions.append(f"online does not fit: {error}")
        hops = samples.nodes_per_hop[at].mean(axis=0)
        shape = shapes.Shape(tuple(map(float, hops)), _edges_of(samples, at))
        return Counted(
            works, shape, network, rows * row_bytes, int(predicted["disk_bytes"]), compute, tuple(assumptions)
        )


_ASSUMED = (
    "every epoch is as the first one sampled; the first epoch of a process is slower",
    "validation, test and checkpoints are not counted",
    "a described machine reaches the rates that its file states; loading has cores of its own there",
)


@contextmanager
def _planned(task: Task) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder with samples and plan, and what the plan predicts."""
    if task.run is not None:
        with Runtime() as runtime:
            yield task.run, open_placement(runtime, task.run / "plan").predicted
        return
    beside = task.graph.path.parent
    where = beside if os.access(beside, os.W_OK) else None
    with TemporaryDirectory(prefix=".outcrop-advise-", dir=where) as folder:
        out = Path(folder) / "run"
        report = prepare(
            task.graph,
            out,
            fanouts=task.fanouts,
            batch_size=task.batch_size,
            sampler=task.sampler,
            degrees=task.model == "gcn" and task.sampler != "shadow",
            epochs=task.sample_epochs,
            memory=task.memory,
            gpu_memory=task.gpu_memory,
            disk_space=task.disk_space,
            seed=task.seed,
            stop_after="plan",
        )
        yield out, report.predicted


def _width(task: Task) -> int:
    return task.hidden or (128 if task.model == "gat" else 256)


def _edges_of(samples: SampleSet, at: np.ndarray) -> tuple[float, ...]:
    """Mean edges per hop; the total is known, hops share it in proportion to the nodes that they reach."""
    total = float(samples.num_edges[at].mean())
    reached = samples.nodes_per_hop[at][:, 1:].mean(axis=0)
    return tuple(float(total * n / max(reached.sum(), 1)) for n in reached)


def compute_seconds(task: Task, samples: SampleSet, runtime: Runtime) -> float:
    """Of an epoch: a few of its batches timed, the others in proportion to their nodes and edges."""
    from outcrop.advisor import steps

    devices.resolve(task.device)
    every = samples.group("train").batches(0)
    chosen = [every[i] for i in np.unique(np.linspace(0, len(every) - 1, _TIMED_BATCHES).astype(int))]
    buffer = runtime.budget.empty("advise", samples.max_record_bytes)
    batches = [
        steps.batch_of(samples.read(b, buffer), task.graph.feature_dim, task.graph.num_classes)
        for b in chosen
    ]
    seconds = steps.step_seconds(
        batches, task.model, task.hidden, task.graph.num_classes, seconds=_TIMED_S, device=task.device
    )
    size = samples.num_nodes + samples.num_edges
    return sum(seconds) * float(size[np.array(every)].sum() / size[np.array(chosen)].sum())


def _packed_work(
    samples: SampleSet,
    at: np.ndarray,
    predicted: dict[str, Any],
    folder: Path,
    row_bytes: int,
    seeds: int,
    compute_s: float,
    runtime: Runtime,
) -> Workload:
    epoch = predicted["epochs"]["train"][0]
    levels = epoch["rows_by_level"]
    places = open_placement(runtime, folder / "plan")
    number = np.searchsorted(places.packed_batches, at)
    records = np.diff(places.offsets)[number]
    pages = int(places.disk_pages[number].sum())
    large = (int(records.sum()), int((-(-records // _LARGE_READ)).sum()))
    total = int(samples.num_nodes[at].sum())
    return Workload(
        "packed",
        len(at),
        seeds,
        reads=(large, (pages * PAGE_BYTES, pages)) if pages else (large,),
        compute_s=compute_s,
        memory_bytes=max((total - levels["device"]) * row_bytes - epoch["bytes_read"], 0),
        loading=Loading(
            read_bytes=epoch["bytes_read"],
            requests=pages,
            copied_bytes=epoch["bytes_read"],
            gathered_bytes=(levels["host"] + levels["disk_cache"]) * row_bytes,
        ),
        buffers=places.slots,
    )


def _online_work(
    task: Task,
    samples: SampleSet,
    at: np.ndarray,
    row_bytes: int,
    seeds: int,
    compute_s: float,
    profile: Profile | None,
    assumptions: list[str],
) -> Workload:
    graph = task.graph
    run = task.run if task.run is not None and (task.run / "pack" / "manifest.json").is_file() else None
    config = SampleConfig(**{**samples.manifest.config, "fanouts": tuple(samples.manifest.config["fanouts"])})
    with (
        Runtime(task.memory, io=task.io) as runtime,
        open_session(graph, runtime, "online", run_folder=run, config=config) as session,
    ):
        held = Runtime()  # what counting takes is no part of the budget
        read, requests = online_bytes(session, graph, samples, held)
        held.close()
    drawn_s = 0.0
    if profile is not None and config.sampler != "foreign":
        drawn_s, topology = _drawing(task, config)
        if topology:
            assumptions.append(
                f"online reads about {format_bytes(topology * len(at))} of topology an epoch besides, by pages: "
                "measured on a few batches, not counted"
            )
    total = int(samples.num_nodes[at].sum())
    return Workload(
        "online",
        len(at),
        seeds,
        reads=((read, requests),),
        compute_s=compute_s,
        memory_bytes=max(total * row_bytes - read, 0),
        loading=Loading(requests=requests, gathered_bytes=total * row_bytes, other_s=drawn_s * len(at)),
        buffers=_ONLINE_BUFFERS,
    )


def _drawing(task: Task, config: SampleConfig) -> tuple[float, float]:
    """CPU seconds, and bytes read of the topology, that drawing a batch takes."""
    with Runtime(task.memory, io=task.io) as runtime:
        sampler = BatchSampler(task.graph, config, runtime)
        batches, before = sampler.epoch("train", 0), runtime.io.counters.read_bytes
        cpu, drawn = time.process_time(), 0
        for _ in batches:
            drawn += 1
            if drawn == _DRAWN_BATCHES:
                break
        batches.close()  # type: ignore[attr-defined]
        return (time.process_time() - cpu) / drawn, (runtime.io.counters.read_bytes - before) / drawn


def on_machine(counted: Counted, work: Workload, hardware: Hardware, here: Hardware) -> Workload:
    """``work`` as it is on another machine: what computing takes there by its rates, loading with cores of its own."""
    if hardware is here or hardware.name == here.name:
        return work
    if hardware.gpu is not None:
        compute = shapes.step_seconds(hardware.gpu, counted.network, counted.shape) * work.batches
    else:
        compute = work.compute_s * here.cores / max(hardware.cores, 1)
    return replace(work, compute_s=compute)


def advise(
    graph: Graph | str | Path,
    *,
    run: str | Path | None = None,
    model: str = "sage",
    hidden: int | None = None,
    fanouts: Sequence[int] = (10, 10),
    batch_size: int = 1024,
    sampler: str = "neighbor",
    sample_epochs: int = 1,
    memory: Size | None = None,
    gpu_memory: Size = 0,
    disk_space: Size | None = None,
    device: str = "cpu",
    machines: Sequence[Hardware] = (),
    prices: Prices | None = None,
    budget: float | None = None,
    profile: Path | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Predicts epochs of training ``graph``, here and on ``machines``; with ``prices`` what to buy.

    Args:
        run: Made by :func:`outcrop.prepare` (``stop_after="plan"`` is enough): its batches and limits are taken.
        machines: Described in TOML (advisor/hardware.py); this machine comes first always.
        prices: None: nothing is said about cost.
        budget: That a machine with its disks may cost at the most.
        profile: File of ``outcrop doctor --save``; None: the one kept for this machine, measured where there is none.

    Returns:
        ``predictions`` (a row per machine and mode), ``disk_curve`` (TPC by number of disks), ``changes`` (what one
        changed component gains per unit of money), ``assumptions``, and what was asked.

    Raises:
        BudgetError: A limit cannot be met.
    """
    graph = graph if isinstance(graph, Graph) else open_graph(graph)
    task = _task(
        graph, run, model, hidden, fanouts, batch_size, sampler, sample_epochs, memory, gpu_memory, disk_space,
        device, seed,
    )  # fmt: skip
    measured = machine.profile_of(graph.path.resolve().parent, profile)
    counted = count(task, measured)
    here = measured.hardware(gpu=device != "cpu")
    rows, offers = [], {}
    for hardware in (here, *machines):
        for mode, work in counted.works.items():
            there = on_machine(counted, work, hardware, here)
            found = cost.predict(hardware, there)
            price = None if prices is None else _cost(hardware, prices)
            rows.append(_row(found, price))
            if price is not None:
                offers[hardware.name, mode] = Offer(hardware, price, found)
    result: dict[str, Any] = {
        "graph": str(graph.path),
        "model": model,
        "setting": {**{k: v for k, v in asdict(replace(task, graph=None)).items() if k != "graph"},
                    "run": None if task.run is None else str(task.run)},
        "profile": measured.to_json(),
        "run_disk_bytes": counted.disk_bytes,
        "predictions": rows,
        "disk_curve": {},
        "changes": [],
        "assumptions": list(counted.assumptions),
    }  # fmt: skip
    if prices is not None:
        _add_prices(result, task, counted, machines, here, prices, budget, offers)
    return result


def _task(
    graph: Graph,
    run: str | Path | None,
    model: str,
    hidden: int | None,
    fanouts: Sequence[int],
    batch_size: int,
    sampler: str,
    sample_epochs: int,
    memory: Size | None,
    gpu_memory: Size,
    disk_space: Size | None,
    device: str,
    seed: int,
) -> Task:
    limit = None if memory is None else parse_size(memory)
    task = Task(
        graph, model, hidden, tuple(fanouts), batch_size, sampler, sample_epochs, seed, limit,
        parse_size(gpu_memory), disk_space, device,
    )  # fmt: skip
    if run is None:
        return task
    info = runs.read(Path(run))
    return replace(
        task,
        run=Path(run),
        fanouts=info.sample.fanouts,
        batch_size=info.sample.batch_size,
        sampler=info.sample.sampler,
        sample_epochs=info.sample.epochs,
        seed=info.sample.seed,
        memory=info.plan.memory if limit is None else limit,
        gpu_memory=info.plan.gpu_memory,
        disk_space=info.plan.disk_space,
    )


def _cost(hardware: Hardware, prices: Prices) -> float | None:
    """What a machine costs; None for this one, whose disk nobody has named in the prices."""
    if hardware.disk.name not in dict(prices.disks) and hardware.name == HERE:
        return None
    return cost.tco(hardware, prices)


def _row(found: cost.Prediction, price: float | None) -> dict[str, Any]:
    return {
        "hardware": found.hardware,
        "mode": found.name,
        "epoch_seconds": found.epoch_s,
        "bytes_read": int(found.bytes_read),
        "exact": found.exact,
        "bound": found.bound,
        "disk_seconds": found.disk_s,
        "bus_seconds": found.bus_s,
        "host_seconds": found.host_s,
        "compute_seconds": found.compute_s,
        "batch_seconds": found.batch_s,
        "cost": price,
        "samples_per_s_and_unit": None if price is None else cost.tpc(found, price),
    }


def _add_prices(
    result: dict[str, Any],
    task: Task,
    counted: Counted,
    machines: Sequence[Hardware],
    here: Hardware,
    prices: Prices,
    budget: float | None,
    offers: dict[tuple[str, str], Offer],
) -> None:
    """TPC over numbers of disks, and what single changes gain, for every machine that has a price."""
    result["currency"], result["budget"] = prices.currency, budget
    bigger: Counted | None = None
    for hardware in (here, *machines):
        mine = {mode: offer for (name, mode), offer in offers.items() if name == hardware.name}
        now = cost.best(list(mine.values()))
        if now is None or not hardware.disks:
            continue
        mode = now.prediction.name
        work = on_machine(counted, counted.works[mode], hardware, here)
        curve = cost.disk_offers(hardware, work, prices, budget=budget)
        chosen = cost.best(curve)
        result["disk_curve"][hardware.name] = {
            "mode": mode,
            "points": [
                {"disks": o.hardware.disks, "samples_per_s_and_unit": o.tpc, "cost": o.cost,
                 "epoch_seconds": o.prediction.epoch_s, "bound": o.prediction.bound}
                for o in curve
            ],
            "best_disks": None if chosen is None else chosen.hardware.disks,
        }  # fmt: skip
        if bigger is None and task.memory is not None and prices.memory_gib > 0 and task.run is None:
            bigger = count(replace(task, memory=2 * task.memory), None, compute_s=counted.compute_s)
        others = _changes(task, counted, bigger, hardware, machines, here, mode, prices)
        for change in cost.single_changes(now, others):
            if budget is None or change.offer.cost <= budget:
                result["changes"].append(
                    {"hardware": hardware.name, "mode": mode, "change": change.what, "price": change.price,
                     "epoch_seconds": change.offer.prediction.epoch_s, "bound": change.offer.prediction.bound,
                     "epochs_per_hour_more_per_1000": change.gain}
                )  # fmt: skip

    result["changes"].sort(key=lambda change: -change["epochs_per_hour_more_per_1000"])


def _changes(
    task: Task,
    counted: Counted,
    bigger: Counted | None,
    hardware: Hardware,
    machines: Sequence[Hardware],
    here: Hardware,
    mode: str,
    prices: Prices,
) -> list[tuple[str, float, Hardware, Workload]]:
    """One component of ``hardware`` changed: a disk more, twice the memory budget, another priced GPU."""
    work = on_machine(counted, counted.works[mode], hardware, here)
    found: list[tuple[str, float, Hardware, Workload]] = []
    if hardware.disks < hardware.most_disks:
        one = prices.of("disk", hardware.disk.name)
        found.append(("one disk more", one, replace(hardware, disks=hardware.disks + 1), work))
    if bigger is not None and task.memory is not None:
        then = on_machine(bigger, bigger.works[mode], hardware, here)
        price = prices.memory_gib * task.memory / 2**30
        found.append((f"{format_bytes(task.memory)} more memory", price, hardware, then))
    old = prices.of("gpu", hardware.gpu.name) if hardware.gpu else 0.0
    for other in machines:
        if other.gpu is None or other.gpu.name == (hardware.gpu.name if hardware.gpu else ""):
            continue
        bus = hardware.bus_bytes_per_s if hardware.gpu else other.bus_bytes_per_s
        changed = replace(hardware, gpu=other.gpu, bus_bytes_per_s=bus)
        there = on_machine(counted, counted.works[mode], changed, here)
        found.append((f"GPU {other.gpu.name}", prices.of("gpu", other.gpu.name) - old, changed, there))
    return found
