"""The cost model: how long a mini-batch takes, what bounds it, and what a unit of money buys.

Source: Hyperion III-C (equations 3 and 4) and VI (equation 5). A batch takes the longest of what overlaps: the disks,
the bus to the GPU, the CPU that loads, and computing. Extended for what the paper's machines hide: requests of several
sizes cost what they were measured to cost, and on few cores loading takes time of the cores that compute. Pure
functions over frozen dataclasses: nothing is measured and nothing is read here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from outcrop.errors import ArgumentError

BOUNDS = ("disk", "bus", "host", "compute")
"""What a batch can wait for; ``host``: the CPU that samples and loads."""


@dataclass(frozen=True)
class Disk:
    """One disk.

    Attributes:
        reads: (bytes of a request, requests per second with many in flight), ascending by bytes.
        latency_s: From a request to its answer with nothing else in flight: alpha of the paper's T_ssd.
    """

    name: str
    reads: tuple[tuple[int, float], ...]
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.reads]
        if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 1 or any(not r > 0 for _, r in self.reads):
            raise ArgumentError(
                f"disk {self.name!r}: reads {self.reads} are not (bytes, requests per second) by rising size, "
                "all positive: measure again, or mend the file"
            )

    def request_seconds(self, size: float) -> float:
        """What one request of ``size`` bytes takes of the disk: linear between the sizes that were measured."""
        first, last = self.reads[0], self.reads[-1]
        if size <= first[0]:
            return 1 / first[1]
        if size >= last[0]:
            return size / last[0] / last[1]
        for (low, slow), (high, fast) in pairwise(self.reads):
            if size <= high:
                share = (size - low) / (high - low)
                return (1 - share) / slow + share / fast
        raise AssertionError(size)

    @property
    def bytes_per_s(self) -> float:
        """In the largest requests that were measured."""
        return self.reads[-1][0] * self.reads[-1][1]


@dataclass(frozen=True)
class HostCosts:
    """What loading takes of the CPU: seconds of one core per unit. None of it where loading has cores of its own.

    Attributes:
        read_byte_s: Per byte read in large requests; request_s: per small request.
        copy_byte_s: Per byte moved in order; gather_byte_s: per byte of rows picked from anywhere in memory.
        structure_byte_s: Per byte of a prepared batch's graph and address table: checked, copied, sorted.
        batch_s: Per batch, whatever its size.
        stall: Seconds by which computing gets longer for each CPU second of a single thread beside it: all threads of a
            product wait for the one that was interrupted. What all cores do together costs each of them its part.
        stretch: How many times as long a batch's loading takes beside computing, for want of a core.
    """

    read_byte_s: float = 0.0
    request_s: float = 0.0
    copy_byte_s: float = 0.0
    gather_byte_s: float = 0.0
    batch_s: float = 0.0
    stall: float = 0.0
    stretch: float = 1.0
    structure_byte_s: float = 0.0


@dataclass(frozen=True)
class Gpu:
    """``flops_per_s`` and ``bytes_per_s``: what products and moves of a training step reach, not the data sheet's."""

    name: str
    flops_per_s: float
    bytes_per_s: float
    memory_bytes: int = 0


@dataclass(frozen=True)
class Hardware:
    """A machine, or ``machines`` of them.

    Attributes:
        bus_bytes_per_s: From disks and host memory to the GPU; infinite where the CPU computes.
        cores: That sample and load.
        most_disks: That have a place.
        disk_limit_bytes_per_s: Of all disks together, as a controller or a cloud's quota sets it.
    """

    name: str
    disk: Disk
    disks: int = 1
    bus_bytes_per_s: float = math.inf
    memory_bytes: int = 0
    gpu: Gpu | None = None
    cores: int = 1
    host: HostCosts = HostCosts()
    most_disks: int = 16
    machines: int = 1
    disk_limit_bytes_per_s: float = math.inf


@dataclass(frozen=True)
class Loading:
    """What the CPU does to load an epoch; ``other_s``: CPU seconds measured as they are, such as drawing batches."""

    read_bytes: float = 0
    requests: float = 0
    copied_bytes: float = 0
    gathered_bytes: float = 0
    other_s: float = 0.0
    structure_bytes: float = 0


@dataclass(frozen=True)
class Workload:
    """One epoch in one mode.

    Attributes:
        batches, samples: Mini-batches and their seeds.
        reads: (bytes, requests) from disk, of one kind each: what is read in a piece, and what page by page.
        memory_bytes: Read from host memory over the bus.
        compute_s: Computing alone, all batches.
        buffers: That batches are loaded into and computed from; 0: as many as are wanted.
        exact: What is read was counted, not estimated.
    """

    name: str
    batches: int
    samples: int
    reads: tuple[tuple[float, float], ...]
    compute_s: float
    memory_bytes: float = 0.0
    loading: Loading = Loading()
    buffers: int = 0
    exact: bool = True

    @property
    def disk_bytes(self) -> float:
        return sum(count for count, _ in self.reads)


@dataclass(frozen=True)
class Prediction:
    """Seconds of an average batch, by what they are spent on, and of the epoch; ``bound`` is the longest.

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
        """Equation 4, and no less than buffers allow."""
        return max(self.disk_s, self.bus_s, self.host_s, self.compute_s, self.buffer_s)

    @property
    def bound(self) -> str:
        times = dict(zip(BOUNDS, (self.disk_s, self.bus_s, self.host_s, self.compute_s), strict=True))
        return max(BOUNDS, key=lambda name: times[name])


def disk_seconds(hardware: Hardware, reads: Sequence[tuple[float, float]]) -> float:
    """What the disks take for (bytes, requests) of each kind: N / (Th x Q), and no less than the limit allows."""
    busy = sum(
        max(requests, 1.0) * hardware.disk.request_seconds(count / max(requests, 1.0))
        for count, requests in reads
        if count > 0
    )
    limited = sum(count for count, _ in reads) / hardware.disk_limit_bytes_per_s
    return max(busy / max(hardware.disks, 1), limited)


def host_seconds(costs: HostCosts, loading: Loading, batches: int) -> tuple[float, float]:
    """CPU seconds of loading an epoch: in single threads, and in all of them together (moving rows, drawing)."""
    serial = (
        loading.read_bytes * costs.read_byte_s
        + loading.requests * costs.request_s
        + loading.gathered_bytes * costs.gather_byte_s
        + loading.structure_bytes * costs.structure_byte_s
        + batches * costs.batch_s
    )
    return serial, loading.copied_bytes * costs.copy_byte_s + loading.other_s


def predict(hardware: Hardware, work: Workload) -> Prediction:
    """The time of an epoch of ``work``.

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
    """What preparing takes: batches are drawn, all features are read once in order, records are written."""
    return feature_bytes / hardware.disk.bytes_per_s + packed_bytes / write_bytes_per_s + draw_s


@dataclass(frozen=True)
class Prices:
    """In ``currency``, over the five years of equation 5.

    Attributes:
        machine: One host without disks and GPU.
        electricity: Of one machine, all five years.
        disks, gpus: Of one, by name.
        memory_gib: Of one GiB of host memory more.
    """

    machine: float
    electricity: float = 0.0
    disks: tuple[tuple[str, float], ...] = ()
    gpus: tuple[tuple[str, float], ...] = ()
    memory_gib: float = 0.0
    currency: str = "USD"

    def of(self, kind: str, name: str) -> float:
        """What one ``disk`` or ``gpu`` called ``name`` costs.

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
    """Equation 5: ``(machine + gpu * gpus + disk * disks + electricity) * machines``."""
    count = (hardware.gpu is not None) if gpus is None else gpus
    gpu = prices.of("gpu", hardware.gpu.name) * count if hardware.gpu and count else 0.0
    disks = prices.of("disk", hardware.disk.name) * hardware.disks if hardware.disks else 0.0
    return (prices.machine + gpu + disks + prices.electricity) * hardware.machines


def tpc(prediction: Prediction, cost: float) -> float:
    """Equation 3: samples per second for every unit of money; seeds of a batch / (T_batch x cost)."""
    return prediction.samples / prediction.batches / (prediction.batch_s * cost)


@dataclass(frozen=True)
class Offer:
    """A machine with its cost and what it does."""

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
    """The machine with 1 disk, 2 disks and so on to the most that have a place and that the budget pays."""
    made = [
        offer(replace(hardware, disks=count), work, prices) for count in range(1, hardware.most_disks + 1)
    ]
    return [one for one in made if budget is None or one.cost <= budget]


def best(offers: Sequence[Offer]) -> Offer | None:
    """The highest TPC, of equals the cheapest; None without offers."""
    return min(offers, key=lambda one: (-one.tpc, one.cost), default=None)


@dataclass(frozen=True)
class Change:
    """One component changed.

    Attributes:
        price: What it costs more than what was there.
        gain: Epochs per hour more, for each 1000 units of money.
    """

    what: str
    price: float
    offer: Offer
    gain: float


def single_changes(now: Offer, others: Sequence[tuple[str, float, Hardware, Workload]]) -> list[Change]:
    """What each change gains per unit of money, most first; what costs nothing more and gains nothing is left out.

    Args:
        others: What is changed, what it costs more, and the machine and the work as they are then.
    """
    found = []
    for what, price, hardware, work in others:
        then = Offer(hardware, now.cost + price, predict(hardware, work))
        more = 3600 / then.prediction.epoch_s - 3600 / now.prediction.epoch_s
        if price > 0 or more > 0:
            found.append(Change(what, price, then, 1000 * more / max(price, 1e-9)))
    return sorted(found, key=lambda change: -change.gain)
