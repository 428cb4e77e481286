"""What ``--memory auto`` takes: a budget, packed or online, and how much disk; and whether mode ``online`` spools.

Spooling: batches of a few epochs are drawn, their rows written in the order of use, and read back while training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from outcrop.advisor import cost
from outcrop.advisor.cost import LoadingWork, Workload
from outcrop.config import ALLOWANCE_BYTES, exact_bytes, format_bytes
from outcrop.errors import BudgetError
from outcrop.loading.modes import Online, Packed
from outcrop.runtime import memory_tables
from outcrop.runtime.hardware import Hardware

AUTO = "auto"
_MARGIN_SHARE = 8  # of what is available is left to others: an eighth
_LEAST_BYTES = 32 << 20
_DISK_SHARE = 0.9  # of what is free may be taken
_LEAST_DISK = 1.2  # times the rows of an epoch's distinct nodes: below that sharing does not help
_SCAN_SHARE = 4  # reading all features once is a quarter, at the most, of what a spool reads and writes
_MOST_EPOCHS = 16  # at a time: training begins soon, however little is written
_TIMES_TRIED = 16  # of computing, between none and the longest
# Reads of rows may take so many times as long as is predicted: 34 s were predicted where 45 s were measured.
_SLOWER_READS = 4 / 3
_WORTH = 1.25  # times as fast: for less nobody's disk is filled


@dataclass(frozen=True)
class WorkloadFacts:
    """Says what the choice depends on.

    Attributes:
        available_bytes, free_disk_bytes: Memory and disk of the machine now.
        batches, seeds: Numbers of them in one epoch.
        row_bytes, feature_bytes: Sizes of a row and of all features of the graph.
        rows: Rows that an epoch wants, repeats counted.
        missing: Share of them that no cache holds.
        packed_missing: That share where rows are packed, which leaves narrow ones out of caches; None: the same.
        online_bytes, online_requests: What an epoch reads where rows are read as it is drawn, without a cache.
        epochs, pool: Epochs that are trained, and that are sampled ahead.
        evaluated: Seeds of validation, in epochs of training.
        refresh: Every pool is drawn and packed anew, instead of replaying one.
        compute_s, draw_s: Seconds of computing an epoch, and CPU seconds of drawing its batches.
        write_bytes_per_s: Rate at which the disk writes.
        disk_space: A limit that the user set; None: none.
        parts: Parts that an epoch would be prepared in, because not one whole epoch fits the disk; 0: one does, or no
            part can be made.
    """

    available_bytes: int
    free_disk_bytes: int
    batches: int
    seeds: int
    row_bytes: int
    feature_bytes: int
    rows: float
    missing: float
    online_bytes: float
    online_requests: float
    epochs: int = 10
    pool: int = 1
    evaluated: float = 0.0
    refresh: bool = False
    compute_s: float = 0.0
    draw_s: float = 0.0
    write_bytes_per_s: float = 1e9
    disk_space: int | None = None
    parts: int = 0
    packed_missing: float | None = None


@dataclass(frozen=True)
class Choice:
    """Says what was chosen.

    ``why``: one or two lines. ``packed_s``, ``online_s``: what the whole training is predicted to take.
    """

    memory: int
    mode: str
    disk_space: int | None
    why: str
    packed_s: float = 0.0
    online_s: float = 0.0


def memory_within(available_bytes: int) -> int:
    """Returns the budget: what is available less what a training process takes on top, and a margin for others.

    Raises:
        BudgetError: Next to nothing is left.
    """
    left = available_bytes - ALLOWANCE_BYTES - available_bytes // _MARGIN_SHARE
    if left < _LEAST_BYTES:
        raise BudgetError(
            f"{exact_bytes(available_bytes)} of memory are available, of which {exact_bytes(ALLOWANCE_BYTES)} go to "
            f"the process and an eighth stays free: end other programs, or name a budget with --memory"
        )
    return left


@dataclass(frozen=True)
class SpoolDecision:
    """Says how mode ``online`` gets its rows.

    Attributes:
        epochs: Epochs that are spooled at a time; 0: rows are read as batches are drawn.
        disk_space: Bytes that all files may take; None: what they want is there.
        why: A line.
        spooled_s, direct_s: What the whole training is predicted to take in either way; 0: nobody has looked.
        direct_fits: Whether memory has room for batches of which the rows are read as they are drawn.
        parts: Parts that each epoch is spooled in, one at a time; 0: whole epochs are.
        direct_most_s: ``direct_s`` where reads take longer than predicted.
    """

    epochs: int
    disk_space: int | None
    why: str
    spooled_s: float = 0.0
    direct_s: float = 0.0
    direct_fits: bool = True
    parts: int = 0
    direct_most_s: float = 0.0

    @property
    def direct_is_sooner(self) -> bool:
        """Tells whether reading rows as batches are drawn is predicted to end sooner than packing them, also where its
        reads take as much longer as predictions are off, which leave out the processor time of reading.
        """
        return 0 < max(self.direct_s, self.direct_most_s) < self.spooled_s


def choose(facts: WorkloadFacts, hardware: Hardware) -> Choice:
    """Chooses packed or online, whichever trains ``facts.epochs`` epochs sooner, preparing included; and its limits.

    A packed run may take nine tenths of the free disk. Where all its rows do not fit that, batches share rows (a limit
    on disk space makes the plan search a layout); where sharing would not do either, it is online.

    Raises:
        BudgetError: There is too little memory.
    """
    memory = memory_within(facts.available_bytes)
    limit = _space(facts)
    packed, online = _packed(facts, hardware), _direct(facts, hardware)
    packed_bytes = _wanted(facts) * facts.pool
    prepare_s = _preparing(facts, hardware, facts.pool)
    packed_s, online_s = prepare_s + facts.epochs * packed.epoch_s, facts.epochs * online.epoch_s
    shared = packed_bytes > limit
    least = _least_space(facts, packed_bytes)
    budget = f"memory {format_bytes(memory)} of {format_bytes(facts.available_bytes)} available"
    if shared and limit < least:
        why = (
            f"{budget}; online: packing whole epochs takes at least {format_bytes(least)} of disk, there are "
        )
        why += format_bytes(limit)
        return Choice(memory, Online.name, facts.disk_space, why, packed_s, online_s)
    sooner = packed_s <= online_s
    mode = Packed.name if sooner else Online.name
    bound = (packed if sooner else online).bound
    why = (
        f"{budget}; {mode}: {facts.epochs} epochs are predicted to take {packed_s:.3g} s packed (with "
        f"{prepare_s:.3g} s of preparing) and {online_s:.3g} s online; bound by {bound}"
    )
    if shared and sooner:
        why += f"\nbatches share rows on disk: all packed is {format_bytes(packed_bytes)}, {format_bytes(limit)} may be"
    return Choice(memory, mode, limit if shared else facts.disk_space, why, packed_s, online_s)


def choose_spooling(facts: WorkloadFacts, hardware: Hardware) -> SpoolDecision:
    """Tells whether mode ``online`` spools, and how many epochs at a time; ``facts.available_bytes`` does not matter.

    Without ``facts.refresh`` the ``facts.pool`` epochs that are replayed are spooled once. With it as few are at a time
    as make reading all features a small part, so that training begins soon and little disk is taken.
    """
    wanted, limit = _wanted(facts), _space(facts)
    spool = memory_tables.SPOOL_DISK
    space = spool.bytes_of(limit)
    direct_s, direct_most_s = (
        facts.epochs * _direct(facts, hardware, slower).epoch_s for slower in (1.0, _SLOWER_READS)
    )
    many = facts.pool
    if facts.refresh:
        most = max(int(space / wanted) if wanted else facts.epochs, 1)
        spools = -(-facts.epochs // min(epochs_at_a_time(facts.feature_bytes, wanted), most))
        many = -(-facts.epochs // spools)  # equal parts
    spooled_s = _preparing(facts, hardware, many) + facts.epochs * _packed(facts, hardware).epoch_s
    least = _least_space(facts, wanted * many)
    if facts.parts:
        parts_s = part_seconds(facts, hardware)
        if parts_s < shared_seconds(facts, hardware, space) and direct_s >= _WORTH * parts_s:
            many = 1 if facts.refresh else facts.pool
            why = _why_parts(
                facts, parts_s, f"{direct_s:.3g} s if rows are read as batches are drawn (--disk-space 0)"
            )
            return SpoolDecision(
                many, limit, why, parts_s, direct_s, parts=facts.parts, direct_most_s=direct_most_s
            )
        spooled_s = parts_s if space < least else spooled_s
    if space < least:
        needed = format_bytes(spool.fraction.denominator * least)
        why = f"spooling whole epochs takes at least {needed} of disk, there are {format_bytes(limit)}"
    elif direct_s < _WORTH * spooled_s:
        why = f"{facts.epochs} epochs are predicted to take {direct_s:.3g} s so, {spooled_s:.3g} s spooled"
        if spooled_s < direct_s:
            why += f", which is too little less to write {format_bytes(int(wanted * many))} to disk for"
    else:
        why = (
            f"{many} {'epoch is' if many == 1 else 'epochs are'} spooled to disk at a time, about "
            f"{format_bytes(int(wanted * many))}: all {facts.epochs} are predicted to take {spooled_s:.3g} s so, "
            f"{direct_s:.3g} s if rows are read as batches are drawn (--disk-space 0)"
        )
        # Rows that may have to be shared take memory to plan for, which the smallest budgets have not got.
        shared = wanted * max(many, facts.evaluated) > space
        space_taken = limit if shared else facts.disk_space
        return SpoolDecision(many, space_taken, why, spooled_s, direct_s, direct_most_s=direct_most_s)
    why = f"rows are read as batches are drawn: {why}"
    return SpoolDecision(0, facts.disk_space, why, spooled_s, direct_s, direct_most_s=direct_most_s)


def may_be_sooner_direct(
    facts: WorkloadFacts, hardware: Hardware, longest_s: float, worth: tuple[float, float] = (0.0, 1.0)
) -> bool:
    """Tells whether :attr:`SpoolDecision.direct_is_sooner` where an epoch is computed in some time of at most
    ``longest_s`` seconds.

    Args:
        worth: Seconds by which it has to be sooner, and how many times as fast.
    """
    seconds, times_as_fast = worth
    times = [longest_s * step / _TIMES_TRIED for step in range(_TIMES_TRIED + 1)]
    found = (choose_spooling(replace(facts, compute_s=compute_s), hardware) for compute_s in times)
    return any(
        one.direct_is_sooner
        and one.spooled_s >= max(one.direct_s + seconds, one.direct_most_s * times_as_fast)
        for one in found
    )


def choose_parts(facts: WorkloadFacts, hardware: Hardware | None) -> tuple[bool, str]:
    """Tells whether mode ``packed`` is sooner done where it prepares each epoch in ``facts.parts`` parts than where
    batches share rows on disk, and says in a line what parts are, and why.

    Args:
        hardware: None: nobody knows how fast the disk is. Then parts are what is done where sharing does not fit.
    """
    space = _space(facts)
    parts_s = None if hardware is None else part_seconds(facts, hardware)
    if hardware is None or parts_s is None or space < _least_space(facts, _wanted(facts)):
        fits = space >= _least_space(facts, _wanted(facts))
        return not fits, _why_parts(facts, parts_s, "batches cannot share rows in so little")
    shared_s = shared_seconds(facts, hardware, space)
    if _WORTH * parts_s > shared_s:
        return False, _why_parts(facts, parts_s, "batches cannot share rows in so little")
    return True, _why_parts(facts, parts_s, f"{shared_s:.3g} s if batches share rows on disk")


def _why_parts(facts: WorkloadFacts, parts_s: float | None, others: str) -> str:
    so = "" if parts_s is None else f"all {facts.epochs} are predicted to take {parts_s:.3g} s so, "
    return (
        f"an epoch is prepared in {facts.parts} parts, one after another: {format_bytes(int(_wanted(facts)))} of rows, "
        f"{format_bytes(_space(facts))} of disk may be taken (--disk-space); {so}{others}"
    )


def part_seconds(facts: WorkloadFacts, hardware: Hardware) -> float:
    """Returns what training takes where each epoch is prepared in ``facts.parts`` parts, in turn: all features are read
    for each part, and the rows that batches want are written once and read once.
    """
    prepare_s = cost.packing_seconds(
        hardware, facts.parts * facts.feature_bytes, _wanted(facts), facts.write_bytes_per_s, facts.draw_s
    )
    return facts.epochs * (prepare_s + _packed(facts, hardware).epoch_s)


def shared_seconds(facts: WorkloadFacts, hardware: Hardware, space: int) -> float:
    """Returns what training takes where the batches of an epoch share rows within ``space`` bytes of disk, at the most;
    infinity where they cannot.

    What is left beside all features is for rows in the order of use. The others are read as they are read in mode
    ``online``: a layout that is searched for reads less.
    """
    wanted = _wanted(facts)
    if space < _least_space(facts, wanted):
        return math.inf
    in_order = min(max(space - facts.feature_bytes, 0) / wanted, 1.0) if wanted else 1.0
    rest = facts.missing * (1 - in_order)
    read, requests = in_order * wanted + rest * facts.online_bytes, rest * facts.online_requests
    epoch = cost.predict(hardware, Workload(
        Packed.name, facts.batches, facts.seeds,
        ((in_order * wanted, facts.batches), (rest * facts.online_bytes, requests)), facts.compute_s,
        loading=LoadingWork(
            read_bytes=read, copied_bytes=wanted, requests=requests,
            gathered_bytes=facts.rows * facts.row_bytes - wanted,
        ),
    ))  # fmt: skip
    prepared = facts.epochs if facts.refresh else facts.pool
    prepare_s = cost.packing_seconds(
        hardware, facts.feature_bytes, min(wanted, space), facts.write_bytes_per_s, facts.draw_s
    )
    return prepared * prepare_s + facts.epochs * epoch.epoch_s


def whole_epochs(facts: WorkloadFacts) -> int:
    """Returns how many of ``facts.epochs`` fit the disk at a time without sharing rows; at least one."""
    wanted = _wanted(facts)
    return max(min(int(_space(facts) / wanted) if wanted else facts.epochs, facts.epochs), 1)


def epochs_at_a_time(feature_bytes: int, wanted: float) -> int:
    """Gives the fewest epochs of ``wanted`` bytes, written and read, of which reading all features is a small part."""
    return min(max(-(-_SCAN_SHARE * feature_bytes // max(int(2 * wanted), 1)), 1), _MOST_EPOCHS)


def _space(facts: WorkloadFacts) -> int:
    limit = int(facts.free_disk_bytes * _DISK_SHARE)
    return limit if facts.disk_space is None else min(limit, facts.disk_space)


def _wanted(facts: WorkloadFacts) -> float:
    """Returns the bytes of an epoch's rows that no cache holds where rows are packed."""
    missing = facts.missing if facts.packed_missing is None else facts.packed_missing
    return facts.rows * facts.row_bytes * missing


def _least_space(facts: WorkloadFacts, packed_bytes: float) -> int:
    return int(min(packed_bytes, facts.feature_bytes * _LEAST_DISK))


def _preparing(facts: WorkloadFacts, hardware: Hardware, pool: int) -> float:
    """Returns seconds of drawing and packing, ``pool`` epochs at a time, all epochs or only the first of them."""
    epochs = facts.epochs if facts.refresh else pool
    # All features are read for each pool, in turn: beside training it is hidden in part.
    features = -(-epochs // pool) * facts.feature_bytes
    return cost.packing_seconds(
        hardware, features, _wanted(facts) * epochs, facts.write_bytes_per_s, facts.draw_s * epochs
    )


def _packed(facts: WorkloadFacts, hardware: Hardware) -> cost.Prediction:
    wanted = _wanted(facts)
    large = max(wanted / (1 << 20), facts.batches if wanted else 0)
    return cost.predict(hardware, Workload(
        Packed.name, facts.batches, facts.seeds, ((wanted, large),), facts.compute_s,
        loading=LoadingWork(
            read_bytes=wanted, copied_bytes=wanted, gathered_bytes=facts.rows * facts.row_bytes - wanted
        ),
    ))  # fmt: skip


def _direct(facts: WorkloadFacts, hardware: Hardware, slower: float = 1.0) -> cost.Prediction:
    """Predicts an epoch whose rows are read as batches are drawn, reads taking ``slower`` times as long."""
    requests = facts.online_requests * facts.missing
    reads = ((slower * facts.online_bytes * facts.missing, slower * requests),)
    return cost.predict(hardware, Workload(
        Online.name, facts.batches, facts.seeds, reads, facts.compute_s,
        loading=LoadingWork(requests=requests, gathered_bytes=facts.rows * facts.row_bytes, other_s=facts.draw_s),
    ))  # fmt: skip
