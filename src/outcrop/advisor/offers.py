"""What machines are worth: what an epoch takes on each, what it costs, and what one changed component gains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from outcrop.advisor import choose, cost, shapes
from outcrop.advisor.cost import Offer, Prices, Workload
from outcrop.advisor.counting import EpochCount, Task, count
from outcrop.config import format_bytes
from outcrop.loading.modes import Online, Packed
from outcrop.runtime.hardware import Hardware
from outcrop.store.profile import HERE, Profile


@dataclass(frozen=True)
class Comparison:
    """Says what is trained, as it was counted, and which machines it might be trained on.

    Attributes:
        here, machines: This machine, and others that were described.
        prices: None: nothing is said about cost.
        budget: Money that a machine with its disks may cost at the most.
    """

    task: Task
    counted: EpochCount
    here: Hardware
    machines: tuple[Hardware, ...] = ()
    prices: Prices | None = None
    budget: float | None = None

    @property
    def hardware(self) -> tuple[Hardware, ...]:
        """Returns the machines, this one first."""
        return self.here, *self.machines


def compare(asked: Comparison) -> dict[str, Any]:
    """Makes predictions for each machine and mode; with prices also what to buy (:func:`outcrop.advise`)."""
    rows, offers = [], {}
    for hardware in asked.hardware:
        for mode, work in asked.counted.works.items():
            found = cost.predict(hardware, on_machine(asked.counted, work, hardware, asked.here))
            price = None if asked.prices is None else _price_of(hardware, asked.prices)
            rows.append(_row(found, price))
            if price is not None:
                offers[hardware.name, mode] = Offer(hardware, price, found)
    result: dict[str, Any] = {"predictions": rows, "disk_curve": {}, "changes": []}
    if asked.prices is not None:
        _add_prices(result, asked, asked.prices, offers)
    return result


def on_machine(counted: EpochCount, work: Workload, hardware: Hardware, here: Hardware) -> Workload:
    """Returns ``work`` as it is on another machine: what computing takes there by its rates, loading with cores of its
    own.
    """
    if hardware is here or hardware.name == here.name:
        return work
    if hardware.gpu is not None:
        compute = shapes.step_seconds(hardware.gpu, counted.network, counted.shape) * work.batches
    else:
        compute = work.compute_s * here.cores / max(hardware.cores, 1)
    return replace(work, compute_s=compute)


def _price_of(hardware: Hardware, prices: Prices) -> float | None:
    """Returns what a machine costs; None for this one, whose disk nobody has named in the prices."""
    if hardware.disk.name not in dict(prices.disks) and hardware.name == HERE:
        return None
    return cost.tco(hardware, prices)


def _row(prediction: cost.Prediction, price: float | None) -> dict[str, Any]:
    """Describes one machine in one mode, as people read it."""
    return {
        "hardware": prediction.hardware,
        "mode": prediction.name,
        "epoch_seconds": prediction.epoch_s,
        "bytes_read": int(prediction.bytes_read),
        "exact": prediction.exact,
        "bound": prediction.bound,
        "disk_seconds": prediction.disk_s,
        "bus_seconds": prediction.bus_s,
        "host_seconds": prediction.host_s,
        "compute_seconds": prediction.compute_s,
        "batch_seconds": prediction.batch_s,
        "cost": price,
        "samples_per_s_and_unit": None if price is None else cost.tpc(prediction, price),
    }


def seconds_of_new_batches(
    asked: Comparison, measured: Profile, epoch_s: dict[str, float]
) -> dict[str, float]:
    """Returns seconds of an epoch of new batches here: read as they are drawn, or spooled in turn with training."""
    task, counted = asked.task, asked.counted
    packed, online = counted.works[Packed.name], counted.works.get(Online.name)
    drawn = online.loading.other_s if online else 0.0
    epochs = max(task.sampling.epochs, choose.epochs_at_a_time(task.graph.feature_bytes, packed.disk_bytes))
    features = task.graph.feature_bytes / epochs  # read once for all of them
    preparing = cost.packing_seconds(
        asked.here, features, packed.disk_bytes, measured.write_bytes_per_s, drawn
    )
    found = {"spooled": epoch_s[Packed.name] + preparing, "preparing": preparing, "epochs": epochs}
    return found | ({"online": epoch_s[Online.name]} if online else {})


def _add_prices(
    result: dict[str, Any], asked: Comparison, prices: Prices, offers: dict[tuple[str, str], Offer]
) -> None:
    """Adds TPC over numbers of disks, and what single changes gain, for every machine that has a price."""
    task, counted, here, budget = asked.task, asked.counted, asked.here, asked.budget
    result["currency"], result["budget"] = prices.currency, budget
    bigger: EpochCount | None = None
    for hardware in asked.hardware:
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
        memory = task.limits.memory
        if bigger is None and memory is not None and prices.memory_gib > 0 and task.run is None:
            twice = replace(task, limits=replace(task.limits, memory=2 * memory))
            bigger = count(twice, None, compute_s=counted.compute_s)
        others = _changes(asked, bigger, hardware, mode, prices)
        for change in cost.single_changes(now, others):
            if budget is None or change.offer.cost <= budget:
                result["changes"].append(
                    {"hardware": hardware.name, "mode": mode, "change": change.what, "price": change.price,
                     "epoch_seconds": change.offer.prediction.epoch_s, "bound": change.offer.prediction.bound,
                     "epochs_per_hour_more_per_1000": change.gain}
                )  # fmt: skip

    result["changes"].sort(key=lambda change: -change["epochs_per_hour_more_per_1000"])


def _changes(
    asked: Comparison, bigger: EpochCount | None, hardware: Hardware, mode: str, prices: Prices
) -> list[tuple[str, float, Hardware, Workload]]:
    """Returns changes of one component of ``hardware``: a disk more, twice the memory budget, another priced GPU."""
    task, counted, here = asked.task, asked.counted, asked.here
    work = on_machine(counted, counted.works[mode], hardware, here)
    changes: list[tuple[str, float, Hardware, Workload]] = []
    if hardware.disks < hardware.most_disks:
        one = prices.of("disk", hardware.disk.name)
        changes.append(("one disk more", one, replace(hardware, disks=hardware.disks + 1), work))
    if bigger is not None and task.limits.memory is not None:
        then = on_machine(bigger, bigger.works[mode], hardware, here)
        price = prices.memory_gib * task.limits.memory / 2**30
        changes.append((f"{format_bytes(task.limits.memory)} more memory", price, hardware, then))
    old = prices.of("gpu", hardware.gpu.name) if hardware.gpu else 0.0
    for other in asked.machines:
        if other.gpu is None or other.gpu.name == (hardware.gpu.name if hardware.gpu else ""):
            continue
        bus = hardware.bus_bytes_per_s if hardware.gpu else other.bus_bytes_per_s
        changed = replace(hardware, gpu=other.gpu, bus_bytes_per_s=bus)
        there = on_machine(counted, counted.works[mode], changed, here)
        changes.append((f"GPU {other.gpu.name}", prices.of("gpu", other.gpu.name) - old, changed, there))
    return changes
