"""What ``--memory auto`` takes: a budget, packed or online, and how much disk, from the machine and its profile."""

from __future__ import annotations

from dataclasses import dataclass

from outcrop.advisor import cost
from outcrop.advisor.cost import Hardware, Loading, Workload
from outcrop.config import ALLOWANCE_BYTES, format_bytes
from outcrop.errors import BudgetError

AUTO = "auto"
_MARGIN_SHARE = 8  # of what is available is left to others: an eighth
_LEAST_BYTES = 32 << 20
_DISK_SHARE = 0.9  # of what is free may be taken
_LEAST_DISK = 1.2  # times the rows of an epoch's distinct nodes: below that sharing does not help


@dataclass(frozen=True)
class Facts:
    """What the choice depends on.

    Attributes:
        available_bytes, free_disk_bytes: Of the machine now.
        batches, seeds: Of one epoch.
        row_bytes, feature_bytes: Of the graph.
        rows: That an epoch wants, repeats counted.
        online_bytes, online_requests: That an epoch reads in mode online without a cache.
        epochs, pool: Trained, and sampled ahead.
        refresh: Every pool is drawn and packed anew, instead of replaying one.
        compute_s, draw_s: Of an epoch: computing, and CPU seconds of drawing its batches.
        write_bytes_per_s: Of the disk.
        disk_space: A limit that the user set; None: none.
    """

    available_bytes: int
    free_disk_bytes: int
    batches: int
    seeds: int
    row_bytes: int
    feature_bytes: int
    rows: float
    online_bytes: float
    online_requests: float
    epochs: int = 10
    pool: int = 1
    refresh: bool = False
    compute_s: float = 0.0
    draw_s: float = 0.0
    write_bytes_per_s: float = 1e9
    disk_space: int | None = None


@dataclass(frozen=True)
class Choice:
    """``why``: one or two lines. ``packed_s``, ``online_s``: what the whole training is predicted to take."""

    memory: int
    mode: str
    disk_space: int | None
    why: str
    packed_s: float = 0.0
    online_s: float = 0.0


def memory_within(available_bytes: int) -> int:
    """The budget: what is available less what a training process takes on top, and a margin for others.

    Raises:
        BudgetError: Next to nothing is left.
    """
    left = available_bytes - ALLOWANCE_BYTES - available_bytes // _MARGIN_SHARE
    if left < _LEAST_BYTES:
        raise BudgetError(
            f"{format_bytes(available_bytes)} of memory are available, of which {format_bytes(ALLOWANCE_BYTES)} go to "
            f"the process and an eighth stays free: end other programs, or name a budget with --memory"
        )
    return left


def choose(facts: Facts, hardware: Hardware) -> Choice:
    """Packed or online, whichever trains ``facts.epochs`` epochs sooner, preparing included; and its limits.

    A packed run may take nine tenths of the free disk. Where all its rows do not fit that, batches share rows (a limit
    on disk space makes the plan search a layout); where sharing would not do either, it is online.

    Raises:
        BudgetError: There is too little memory.
    """
    memory = memory_within(facts.available_bytes)
    held = min(memory / 2 / max(facts.feature_bytes, 1), 1.0)  # caches get what buffers leave: about half
    wanted = facts.rows * facts.row_bytes * (1 - held)
    limit = int(facts.free_disk_bytes * _DISK_SHARE)
    if facts.disk_space is not None:
        limit = min(limit, facts.disk_space)
    packed_bytes = wanted * facts.pool
    large = max(wanted / (1 << 20), facts.batches if wanted else 0)
    packed = cost.predict(hardware, Workload(
        "packed", facts.batches, facts.seeds, ((wanted, large),), facts.compute_s,
        loading=Loading(read_bytes=wanted, copied_bytes=wanted, gathered_bytes=facts.rows * facts.row_bytes - wanted),
    ))  # fmt: skip
    misses = 1 - held  # at the most: what is hot is held first
    online = cost.predict(hardware, Workload(
        "online", facts.batches, facts.seeds, ((facts.online_bytes * misses, facts.online_requests * misses),),
        facts.compute_s,
        loading=Loading(requests=facts.online_requests * misses, gathered_bytes=facts.rows * facts.row_bytes,
                        other_s=facts.draw_s),
    ))  # fmt: skip
    prepare_s = cost.packing_seconds(
        hardware, facts.feature_bytes, packed_bytes, facts.write_bytes_per_s, facts.draw_s * facts.pool
    )
    if facts.refresh:  # in turn; beside training it is hidden in part
        prepare_s *= -(-facts.epochs // facts.pool)
    packed_s, online_s = prepare_s + facts.epochs * packed.epoch_s, facts.epochs * online.epoch_s
    shared = packed_bytes > limit
    least = min(packed_bytes, facts.feature_bytes * _LEAST_DISK)
    budget = f"memory {format_bytes(memory)} of {format_bytes(facts.available_bytes)} available"
    if shared and limit < least:
        why = f"{budget}; online: packing takes at least {format_bytes(least)} of disk, there are {format_bytes(limit)}"
        return Choice(memory, "online", facts.disk_space, why, packed_s, online_s)
    mode = "packed" if packed_s <= online_s else "online"
    bound = (packed if mode == "packed" else online).bound
    why = (
        f"{budget}; {mode}: {facts.epochs} epochs are predicted to take {packed_s:.3g} s packed (with "
        f"{prepare_s:.3g} s of preparing) and {online_s:.3g} s online; bound by {bound}"
    )
    if shared and mode == "packed":
        why += f"\nbatches share rows on disk: all packed is {format_bytes(packed_bytes)}, {format_bytes(limit)} may be"
    return Choice(memory, mode, limit if shared else facts.disk_space, why, packed_s, online_s)
