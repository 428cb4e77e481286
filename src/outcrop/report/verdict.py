"""What limited a training: one sentence, from its numbers.

The model waits for batches, or it does not. If it hardly waits, compute is the limit and nothing about storage helps.
If it waits, the loading stage that was at work longest holds up the others (they overlap): read means the disk,
assemble and transfer moving bytes in memory, draw sampling; and where none of them was at work for most of the time
while buffers were waited for, there were too few buffers, which is memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from outcrop.report.units import format_value

HARDLY_SHARE = 0.10
BUSY_SHARE = 0.5
LOADING = ("draw", "submit", "read", "assemble", "share", "transfer")


@dataclass(frozen=True)
class Steady:
    """Adds up the steady epochs: those after the first, which warms up, where there are more.

    Attributes:
        busy: Seconds of work by stage; waiting for a buffer (``lease``) is not counted as work.
    """

    epochs: int
    seconds: float
    waiting: float
    bytes_read: int
    bytes_needed: int
    read_ops: int
    rows: dict[str, int]
    busy: dict[str, float]

    @property
    def waiting_share(self) -> float:
        return self.waiting / self.seconds if self.seconds else 0.0

    @property
    def rate(self) -> float:
        return self.bytes_read / self.seconds if self.seconds else 0.0

    @property
    def amplification(self) -> float | None:
        return self.bytes_read / self.bytes_needed if self.bytes_needed else None


@dataclass(frozen=True)
class Verdict:
    """Says what limited a training.

    ``limit``: compute, disk, memory, sampling, copying or unknown. ``advice``: what follows from it.
    """

    limit: str
    sentence: str
    advice: str = ""


def steady(training: dict[str, Any]) -> Steady:
    """Returns sums over the steady epochs of a record."""
    epochs = training["epochs"][1:] or training["epochs"]
    rows: dict[str, int] = {}
    busy: dict[str, float] = {}
    for epoch in epochs:
        for level, count in epoch.get("rows_by_level", {}).items():
            rows[level] = rows.get(level, 0) + count
        for stage, seconds in own_seconds(epoch.get("stage_seconds") or {}).items():
            busy[stage] = busy.get(stage, 0.0) + seconds
    return Steady(
        len(epochs),
        sum(e["seconds"] for e in epochs),
        sum(e["load_seconds"] for e in epochs),
        sum(e.get("bytes_read", 0) for e in epochs),
        sum(e.get("bytes_needed_from_disk", 0) for e in epochs),
        sum(e.get("read_ops", 0) for e in epochs),
        rows,
        busy,
    )


def own_seconds(stages: dict[str, float]) -> dict[str, float]:
    """Returns work of each stage: the wait for a buffer lies within submit's span and is taken out of it."""
    own = dict(stages)
    if "submit" in own:
        own["submit"] = max(own["submit"] - own.get("lease", 0.0), 0.0)
    return own


def judge(training: dict[str, Any] | None, disk: dict[str, float] | None) -> Verdict:
    """Returns the sentence at the top of a report."""
    if training is None:
        return Verdict(
            "unknown",
            "No training of this run is on record yet, so this page shows how it was prepared and planned.",
        )
    if not training["epochs"]:
        return Verdict(
            "unknown", "The training on record finished no epoch, so nothing can be said about its limit."
        )
    facts = steady(training)
    if facts.waiting_share < HARDLY_SHARE:
        return _compute(facts, disk)
    waited = f"the model waited for data {format_value('share', facts.waiting_share)} of the time"
    stage, share = _busiest(facts)
    if share < BUSY_SHARE and facts.busy.get("lease", 0.0) / facts.seconds > share:
        slots = "too few batch buffers fit in the budget for loading to run ahead"
        return Verdict(
            "memory",
            f"Memory limited this training: {slots}; {waited}.",
            "A larger --memory, or smaller batches, would let loading and compute overlap more.",
        )
    return _loading(stage, share, waited, facts, disk)


def _compute(facts: Steady, disk: dict[str, float] | None) -> Verdict:
    asked = ""
    if disk and facts.bytes_read:
        limit = disk["sequential_bytes_per_s"]
        asked = (
            f"; the disk was asked for {format_value('rate', facts.rate)}, "
            f"{format_value('share', facts.rate / limit)} of the "
            f"{format_value('rate', limit)} that it can deliver"
        )
    return Verdict(
        "compute",
        f"Compute limited this training: the model was at work {format_value('share', 1 - facts.waiting_share)} "
        "of the time, "
        f"waiting {format_value('share', facts.waiting_share)} for data{asked}.",
        "Faster storage or more memory would not shorten its epochs; a faster processor or a smaller model would.",
    )


def _busiest(facts: Steady) -> tuple[str, float]:
    shares = {name: facts.busy.get(name, 0.0) / facts.seconds for name in LOADING}
    stage = max(shares, key=lambda name: shares[name])
    return (stage, shares[stage]) if shares[stage] else ("read", 0.0)


def _loading(stage: str, share: float, waited: str, facts: Steady, disk: dict[str, float] | None) -> Verdict:
    working = (
        f"stage {stage} was at work {format_value('share', share)} of it"
        if share
        else "no times of stages are on record"
    )
    if stage == "draw":
        return Verdict(
            "sampling",
            f"Sampling limited this training: {waited}, and drawing batches took {format_value('share', share)} of it.",
            "Batches drawn ahead (outcrop prepare, mode packed) need no sampling while training.",
        )
    from_disk = facts.bytes_read > 0.05 * facts.bytes_needed and facts.bytes_read > 0
    if stage in ("assemble", "transfer") or not from_disk:
        return Verdict(
            "copying",
            f"Moving rows within memory limited this training: {waited}, and {working}, with "
            f"{format_value('rate', facts.rate)} "
            "from disk.",
            "More cores, or a narrower feature dtype, would help; faster storage would not.",
        )
    return _disk(waited, working, facts, disk)


def _disk(waited: str, working: str, facts: Steady, disk: dict[str, float] | None) -> Verdict:
    rate = (
        f"it delivered {format_value('rate', facts.rate)} in "
        f"{format_value('count', facts.read_ops / facts.epochs)} reads an epoch"
    )
    if disk:
        limit = disk["sequential_bytes_per_s"]
        rate += (
            f", {format_value('share', facts.rate / limit)} of the {format_value('rate', limit)} that it "
            "can read in sequence"
        )
    amplification = facts.amplification
    advice = "A faster disk, or more --memory so that more rows are cached, would shorten its epochs."
    if amplification is not None and amplification > 1.3:
        advice = (
            f"Every byte that was needed cost {amplification:.1f} that were read: mode packed reads hardly more than "
            "is needed; more --memory would help too."
        )
    return Verdict("disk", f"The disk limited this training: {waited}, and {working}; {rate}.", advice)


def typical_epoch_seconds(training: dict[str, Any]) -> float | None:
    epochs = training["epochs"][1:] or training["epochs"]
    return median(e["seconds"] for e in epochs) if epochs else None
