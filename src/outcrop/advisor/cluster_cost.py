"""The cost model of several machines: what an epoch and preparing take on each number of them, and what bounds it.

Loading and computing are those of one machine (advisor/cost.py) with its share of the batches. Gradients are exchanged
after each step, while nothing else is done: every process sends a part of the gradient of each of its batches to every
other, and its part of the sum (runtime/ordered.py). Pure functions: nothing is measured here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from outcrop.advisor import cost
from outcrop.advisor.cost import LoadingWork, Workload
from outcrop.config.cluster import ClusterConfig, parse_rate
from outcrop.runtime.hardware import Hardware

_LIFE_SECONDS = 5 * 365 * 86400  # of equation 5


@dataclass(frozen=True)
class Cluster:
    """Describes machines that train together.

    Attributes:
        hardware: One of them.
        machines, processes: Machines, and processes of each.
        accumulate: Batches of a step, at least one for each process.
        bytes_per_s: What a machine sends.
        latency_s: Seconds from sending to receiving.
        shared_bytes_per_s: Rate of a file system that all share.
    """

    hardware: Hardware
    machines: int
    processes: int
    accumulate: int
    bytes_per_s: float
    latency_s: float
    shared_bytes_per_s: float = math.inf

    @property
    def world(self) -> int:
        """Counts all processes."""
        return self.machines * self.processes

    def most_batches(self, batches: int) -> int:
        """Counts the batches, of an epoch of ``batches``, of the process that has most: the first of each step."""
        whole, rest = divmod(batches, self.accumulate)
        return whole * -(-self.accumulate // self.world) + -(-rest // self.world)


def clusters(hardware: Hardware, asked: ClusterConfig) -> list[Cluster]:
    """Returns 1, 2, 4, ... machines, and as many as are asked about; those whose step is too small are left out."""
    counts = sorted(
        {2**power for power in range(17) if 2**power < asked.most_machines} | {asked.most_machines}
    )
    shared = math.inf if asked.shared_rate is None else parse_rate(asked.shared_rate)
    found = [
        Cluster(
            hardware,
            machines,
            asked.processes,
            asked.accumulate or machines * asked.processes,
            parse_rate(asked.network),
            asked.latency,
            shared,
        )
        for machines in counts
    ]
    return [one for one in found if one.accumulate >= one.world]


def exchanged_bytes(cluster: Cluster, gradient_bytes: float) -> float:
    """Counts the bytes that a machine sends to others in a whole step, when its processes have the most batches."""
    others = cluster.world - cluster.processes
    own = -(-cluster.accumulate // cluster.world)
    return cluster.processes * gradient_bytes * others / cluster.world * (own + 1)


@dataclass(frozen=True)
class ClusterPrediction:
    """Predicts an epoch on a cluster.

    Attributes:
        loading_s: Loading and computing of the machine with most batches; ``exchange_s``: gradients, beside that.
        bytes_sent: Of a machine, in an epoch.
        bound: What takes longest: ``exchange``, or as :class:`outcrop.advisor.cost.Prediction` has it.
    """

    cluster: Cluster
    loading_s: float
    exchange_s: float
    bytes_sent: float
    bound: str

    @property
    def epoch_s(self) -> float:
        return self.loading_s + self.exchange_s


def predict(cluster: Cluster, work: Workload, gradient_bytes: float) -> ClusterPrediction:
    """Returns what an epoch of ``work`` takes when the machines divide its batches.

    The processes of a machine share its disks and cores; each has a GPU, where there are any.
    """
    most = cluster.most_batches(work.batches)
    of_machine = min(most * cluster.processes, work.batches)
    part = scaled(work, of_machine)
    if cluster.hardware.gpu is not None:
        part = replace(part, compute_s=work.compute_s * most / max(work.batches, 1))
    found = cost.predict(cluster.hardware, part)
    steps = -(-work.batches // cluster.accumulate)
    sent = steps * exchanged_bytes(cluster, gradient_bytes)
    messages = 2 * steps * cluster.latency_s if cluster.world > 1 else 0.0
    exchange = sent / cluster.bytes_per_s + messages
    bound = "exchange" if exchange > found.epoch_s else found.bound
    return ClusterPrediction(cluster, found.epoch_s, exchange, sent, bound)


def scaled(work: Workload, batches: int) -> Workload:
    """Returns the work of ``batches`` average batches of an epoch."""
    share = batches / max(work.batches, 1)
    loading = LoadingWork(**{name: value * share for name, value in vars(work.loading).items()})
    return replace(
        work,
        batches=batches,
        samples=round(work.samples * share),
        reads=tuple((count * share, requests * share) for count, requests in work.reads),
        compute_s=work.compute_s * share,
        memory_bytes=work.memory_bytes * share,
        loading=loading,
    )


@dataclass(frozen=True)
class PreparingWork:
    """Says what preparing takes: bytes of features and of packed rows, seconds of drawing on one machine, and the rate
    at which a machine's disk writes.
    """

    feature_bytes: float
    packed_bytes: float
    draw_s: float
    write_bytes_per_s: float


@dataclass(frozen=True)
class PreparedShare:
    """Says what one machine reads of the features, writes, and sends to others of rows."""

    read_bytes: float
    written_bytes: float
    sent_bytes: float


def even_share(machines: int, work: PreparingWork) -> PreparedShare:
    """Returns what each machine does where all do the same, and each wants as much of every chunk."""
    written = work.packed_bytes / machines
    return PreparedShare(work.feature_bytes / machines, written, written * (1 - 1 / machines))


def preparing_seconds(cluster: Cluster, work: PreparingWork, most: PreparedShare | None = None) -> float:
    """Returns what ``outcrop prepare --ray`` takes: one machine draws, then all read, send and write their shares.

    Args:
        most: What the machine does that does most, where it was counted.
    """
    share = most or even_share(cluster.machines, work)
    disk = share.read_bytes / cluster.hardware.disk.bytes_per_s + share.written_bytes / work.write_bytes_per_s
    network = share.sent_bytes / cluster.bytes_per_s
    shared = (work.feature_bytes + work.packed_bytes) / cluster.shared_bytes_per_s
    return work.draw_s + max(disk, network, shared)


def rows_of(
    hardware: Hardware,
    asked: ClusterConfig,
    work: Workload,
    gradient_bytes: float,
    preparing: PreparingWork,
    price: float | None,
) -> list[dict[str, Any]]:
    """Returns a row for each number of machines, as people read it; ``price``: of one machine, for five years."""
    found = []
    for cluster in clusters(hardware, asked):
        epoch = predict(cluster, work, gradient_bytes)
        found.append(
            {
                "machines": cluster.machines,
                "processes": cluster.world,
                "accumulate": cluster.accumulate,
                "epoch_seconds": epoch.epoch_s,
                "loading_seconds": epoch.loading_s,
                "exchange_seconds": epoch.exchange_s,
                "bytes_sent": int(epoch.bytes_sent),
                "bound": epoch.bound,
                "prepare_seconds": preparing_seconds(cluster, preparing),
                "cost_of_an_epoch": None
                if price is None
                else price * cluster.machines * epoch.epoch_s / _LIFE_SECONDS,
            }
        )
    return found
