"""The cost model: how long a mini-batch takes, what bounds it, and what a unit of money buys.

Source: Hyperion III-C (equations 3 and 4) and VI (equation 5). A batch takes the longest of what overlaps: the disks,
the bus to the GPU, the CPU that loads, and computing. Extended for what the paper's machines hide: requests of several
sizes cost what they were measured to cost, and on few cores loading takes time of the cores that compute. Pure
functions over frozen dataclasses: nothing is measured and nothing is read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outcrop.errors import ArgumentError
from outcrop.runtime.hardware import Hardware, HostCosts

BOUNDS = ("disk", "bus", "host", "compute")
"""What a batch can wait for; ``host``: the CPU that samples and loads."""


@dataclass(frozen=True)
class LoadingWork:
    """Counts what the CPU does to load an epoch; ``other_s``: CPU seconds measured as they are, such as drawing
    batches.
    """

    read_bytes: float = 0
    requests: float = 0
    copied_bytes: float = 0
    gathered_bytes: float = 0
    other_s: float = 0.0
    structure_bytes: float = 0


@dataclass(frozen=True)
class Workload:
    """Describes one epoch in one mode.

    Attributes:
        batches, samples: Mini-batches and their seeds.
        reads: (bytes, requests) from disk, of one kind each: what is read in a piece, and what page by page.
        memory_bytes: Read from host memory over the bus.
        compute_s: Computing alone, all batches.
        buffers: Buffers that batches are loaded into and computed from; 0: as many as are wanted.
        exact: What is read was counted, not estimated.
    """

    name: str
    batches: int
    samples: int
    reads: tuple[tuple[float, float], ...]
    compute_s: float
    memory_bytes: float = 0.0
    loading: LoadingWork = LoadingWork()
    buffers: int = 0
    exact: bool = True

    @property
    def disk_bytes(self) -> float:
        return sum(count for count, _ in self.reads)


@dataclass(frozen=True)
class Prediction:
    """Predicts the seconds of an average batch, by what they are spent on, and of the epoch; ``bound`` is the longest.

    ``buffer_s``: time between batches that the number of buffers allows.
    """

    name: str
    hardware: str
    disk_s: float
    bus_s: float
    host_s: float
    compute_s: float
    epoch_s: float
    bytes_read: float
    samples: int
    batches: int
    buffer_s: float = 0.0
    exact: bool = True

    @property
    def batch_s(self) -> float:
        """Returns what equation 4 says, and no less than buffers allow."""
        return max(self.disk_s, self.bus_s, self.host_s, self.compute_s, self.buffer_s)

    @property
    def bound(self) -> str:
        times = dict(zip(BOUNDS, (self.disk_s, self.bus_s, self.host_s, self.compute_s), strict=True))
        return max(BOUNDS, key=lambda name: times[name])


def disk_seconds(hardware: Hardware, reads: Sequence[tuple[float, float]]) -> float:
    """Gives what the disks take for (bytes, requests) of each kind: N / (Th x Q), and no less than the limit allows."""
    busy = sum(
        max(requests, 1.0) * hardware.disk.request_seconds(count / max(requests, 1.0))
        for count, requests in reads
        if count > 0
    )
    limited = sum(count for count, _ in reads) / hardware.disk_limit_bytes_per_s
    return max(busy / max(hardware.disks, 1), limited)


def host_seconds(costs: HostCosts, loading: LoadingWork, batches: int) -> tuple[float, float]:
    """Gives CPU seconds of loading an epoch: in single threads, and in all of them together (moving rows, drawing)."""
    serial = (
        loading.read_bytes * costs.read_byte_s
        + loading.requests * costs.request_s
        + loading.gathered_bytes * costs.gather_byte_s
        + loading.structure_bytes * costs.structure_byte_s
        + batches * costs.batch_s
    )
    return serial, loading.copied_bytes * costs.copy_byte_s + loading.other_s


def predict(hardware: Hardware, work: Workload) -> Prediction:
    """Returns the time of an epoch of ``work``.

    A pipeline of B batches whose loading takes l and whose computing takes c ends after l + c + (B - 1) max(l, c):
    the first batch has nothing to hide behind, and nothing hides the last one's computing. A batch holds its buffer
    from its first read to the end of its computing, so k buffers let no more than k batches pass in that time. With few
    cores that time is longer than what loading takes of them: what loads waits for those that compute.
    """
    batches = max(work.batches, 1)
    disk = disk_seconds(hardware, work.reads) / batches
    disk += hardware.disk.latency_s if work.disk_bytes else 0.0
    bus = (work.disk_bytes + work.memory_bytes) / hardware.bus_bytes_per_s / batches
    serial, parallel = (s / batches for s in host_seconds(hardware.host, work.loading, batches))
    cores = max(hardware.cores, 1)
    host = (serial + parallel) / cores
    compute = work.compute_s / batches
    if hardware.host.stall:  # computing has no cores of its own
        compute += hardware.host.stall * serial + parallel / cores
    waited = (serial + parallel / cores) * hardware.host.stretch
    held = (disk + bus + waited + compute) / work.buffers if work.buffers else 0.0
    alone = work.compute_s / batches  # nothing is loaded beside the last batch
    longest = max(disk, bus, host, compute, held)
    return Prediction(
        name=work.name,
        hardware=hardware.name,
        disk_s=disk,
        bus_s=bus,
        host_s=host,
        compute_s=compute,
        epoch_s=(batches - 1) * longest + max(disk, host) + bus + alone,
        bytes_read=work.disk_bytes,
        samples=work.samples,
        batches=batches,
        buffer_s=held,
        exact=work.exact,
    )


def packing_seconds(
    hardware: Hardware, feature_bytes: float, packed_bytes: float, write_bytes_per_s: float, draw_s: float
) -> float:
    """Returns what preparing takes: batches are drawn, all features are read once in order, records are written."""
    return feature_bytes / hardware.disk.bytes_per_s + packed_bytes / write_bytes_per_s + draw_s


@dataclass(frozen=True)
class Prices:
    """Lists prices in ``currency``, over the five years of equation 5.

    Attributes:
        machine: One host without disks and GPU.
        electricity: Price of the electricity of one machine, all five years.
        disks, gpus: Prices of one, by name.
        memory_gib: Price of one GiB of host memory more.
    """

    machine: float
    electricity: float = 0.0
    disks: tuple[tuple[str, float], ...] = ()
    gpus: tuple[tuple[str, float], ...] = ()
    memory_gib: float = 0.0
    currency: str = "USD"

    def of(self, kind: str, name: str) -> float:
        """Returns what one ``disk`` or ``gpu`` called ``name`` costs.

        Raises:
            ArgumentError: There is no price for it.
        """
        table = dict(self.disks if kind == "disk" else self.gpus)
        if name not in table:
            raise ArgumentError(
                f"no price for the {kind} {name!r}: add it under [{kind}s] of the prices; there are "
                f"{', '.join(table) or 'none'}"
            )
        return table[name]


def tco(hardware: Hardware, prices: Prices, gpus: int | None = None) -> float:
    """Computes equation 5: ``(machine + gpu * gpus + disk * disks + electricity) * machines``."""
    count = (hardware.gpu is not None) if gpus is None else gpus
    gpu = prices.of("gpu", hardware.gpu.name) * count if hardware.gpu and count else 0.0
    disks = prices.of("disk", hardware.disk.name) * hardware.disks if hardware.disks else 0.0
    return (prices.machine + gpu + disks + prices.electricity) * hardware.machines


def tpc(prediction: Prediction, cost: float) -> float:
    """Computes equation 3: samples per second for every unit of money; seeds of a batch / (T_batch x cost)."""
    return prediction.samples / prediction.batches / (prediction.batch_s * cost)


@dataclass(frozen=True)
class Offer:
    """Holds a machine with its cost and what it does."""

    hardware: Hardware
    cost: float
    prediction: Prediction

    @property
    def tpc(self) -> float:
        return tpc(self.prediction, self.cost)


def offer(hardware: Hardware, work: Workload, prices: Prices) -> Offer:
    return Offer(hardware, tco(hardware, prices), predict(hardware, work))


def disk_offers(
    hardware: Hardware, work: Workload, prices: Prices, *, budget: float | None = None
) -> list[Offer]:
    """Returns the machine with 1 disk, 2 disks and so on to the most that have a place and that the budget pays."""
    made = [
        offer(replace(hardware, disks=count), work, prices) for count in range(1, hardware.most_disks + 1)
    ]
    return [one for one in made if budget is None or one.cost <= budget]


def best(offers: Sequence[Offer]) -> Offer | None:
    """Returns the highest TPC, of equals the cheapest; None without offers."""
    return min(offers, key=lambda one: (-one.tpc, one.cost), default=None)


@dataclass(frozen=True)
class Change:
    """Describes one component changed.

    Attributes:
        price: What it costs more than what was there.
        gain: Epochs per hour more, for each 1000 units of money.
    """

    what: str
    price: float
    offer: Offer
    gain: float


def single_changes(now: Offer, others: Sequence[tuple[str, float, Hardware, Workload]]) -> list[Change]:
    """Returns what each change gains per unit of money, most first; what costs nothing more and gains nothing is left
    out.

    Args:
        others: What is changed, what it costs more, and the machine and the work as they are then.
    """
    changes = []
    for what, price, hardware, work in others:
        then = Offer(hardware, now.cost + price, predict(hardware, work))
        more = 3600 / then.prediction.epoch_s - 3600 / now.prediction.epoch_s
        if price > 0 or more > 0:
            changes.append(Change(what, price, then, 1000 * more / max(price, 1e-9)))
    return sorted(changes, key=lambda change: -change.gain)
