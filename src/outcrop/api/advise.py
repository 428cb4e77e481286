"""advise: what an epoch takes and reads, here and on other machines, before anything is packed.

Bytes are counted and not estimated (api/counting.py); the rest is the cost model (advisor/cost.py) with the profile of
the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from outcrop.advisor import choose, cost, machine, shapes
from outcrop.advisor.cost import Hardware, Offer, Prices, Workload
from outcrop.advisor.profile import HERE, Profile
from outcrop.api.counting import Counted, Task, count
from outcrop.config import Size, as_fanouts, format_bytes, parse_size
from outcrop.store import run as runs
from outcrop.store.graph import Graph, open_graph


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
        ``predictions`` (a row per machine and mode; ``online`` reads rows as batches are drawn), ``fresh`` (seconds of
        an epoch here whose batches are drawn anew: ``spooled``, of it ``preparing``, with ``epochs`` at a time, and
        ``online``), ``disk_curve`` (TPC by number of disks), ``changes`` (what one changed component
        gains per unit of money), ``assumptions``, and what was asked.

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
    epoch_s = {row["mode"]: row["epoch_seconds"] for row in rows[: len(counted.works)]}
    result: dict[str, Any] = {
        "graph": str(graph.path),
        "model": model,
        "setting": {**{k: v for k, v in asdict(replace(task, graph=None)).items() if k != "graph"},
                    "run": None if task.run is None else str(task.run)},
        "profile": measured.to_json(),
        "run_disk_bytes": counted.disk_bytes,
        "predictions": rows,
        "fresh": _fresh(task, counted, here, measured, epoch_s),
        "disk_curve": {},
        "changes": [],
        "assumptions": list(counted.assumptions),
    }  # fmt: skip
    if prices is not None:
        _add_prices(result, task, counted, machines, here, prices, budget, offers)
    return result


def _fresh(
    task: Task, counted: Counted, here: Hardware, measured: Profile, epoch_s: dict[str, float]
) -> dict[str, float]:
    """Seconds of an epoch of new batches: read as they are drawn, or spooled in turn with training."""
    packed, online = counted.works["packed"], counted.works.get("online")
    drawn = online.loading.other_s if online else 0.0
    epochs = max(task.sample_epochs, choose.epochs_at_a_time(task.graph.feature_bytes, packed.disk_bytes))
    features = task.graph.feature_bytes / epochs  # read once for all of them
    preparing = cost.packing_seconds(here, features, packed.disk_bytes, measured.write_bytes_per_s, drawn)
    found = {"spooled": epoch_s["packed"] + preparing, "preparing": preparing, "epochs": epochs}
    return found | ({"online": epoch_s["online"]} if online else {})


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
        graph, model, hidden, as_fanouts(fanouts), batch_size, sampler, sample_epochs, seed, limit,
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
