"""What lies where: rows and neighbour lists among device memory, host memory and disk.

Source: Hyperion, section III-B2. Features and lists are sorted, each by how often they are wanted, and cut into chunks;
the chunks that save the most transactions on the bus are cached. What is wanted H times of D bytes costs ``ceil(H D /
line)`` transactions where it is read from host memory, ``H ceil(D / sector) sector / line`` where from disk, and none
where the device has it. (The paper has ``ceil(H D / sector)`` there, as if several reads could share a sector: rows of
whole sectors would then gain nothing from host memory.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outcrop.runtime.pages import PAGE_BYTES

LINE_BYTES = 128  # of a transaction on the bus
SECTOR_BYTES = PAGE_BYTES
DEVICE, HOST, DISK = 0, 1, 2
_UNITS = 256  # parts of a capacity that are decided about
_UNITS_OF_TWO = 96  # of the larger one, where two are decided about together
# The fixed strategies of section III-B2, to compare with: what is filled with what first (tier, 0 rows or 1 lists, to
# which part of the tier). G and C: device and host; T and F: lists and rows. The parts of ``hybrid`` are those of its
# figure 7, 15 of 20 GB and 35 of 40 GB for rows.
STRATEGIES: dict[str, tuple[tuple[int, int, float], ...]] = {
    "GTCF": ((DEVICE, 1, 1), (DEVICE, 0, 1), (HOST, 0, 1), (HOST, 1, 1)),
    "GFCT": ((DEVICE, 0, 1), (DEVICE, 1, 1), (HOST, 1, 1), (HOST, 0, 1)),
    "CTGF": ((HOST, 1, 1), (HOST, 0, 1), (DEVICE, 0, 1), (DEVICE, 1, 1)),
    "CFGT": ((HOST, 0, 1), (HOST, 1, 1), (DEVICE, 1, 1), (DEVICE, 0, 1)),
    "hybrid": ((DEVICE, 0, 3 / 4), (DEVICE, 1, 1), (HOST, 0, 7 / 8), (HOST, 1, 1)),
}


def host_cost(wanted: np.ndarray, sizes: np.ndarray | int, line: int = LINE_BYTES) -> np.ndarray:
    """Counts transactions, int64: ``ceil(wanted * sizes / line)``."""
    return -(-wanted.astype(np.int64) * sizes // line)


def disk_cost(
    wanted: np.ndarray, sizes: np.ndarray | int, line: int = LINE_BYTES, sector: int = SECTOR_BYTES
) -> np.ndarray:
    """Counts transactions, int64: ``wanted * ceil(sizes / sector) * sector / line``."""
    return wanted.astype(np.int64) * -(-sizes // sector) * (sector // line)


@dataclass(frozen=True)
class Chunks:
    """Chunks of one kind, the hottest first.

    Attributes:
        sizes: int64, bytes.
        host, disk: int64, transactions where the chunk is read from there.
    """

    sizes: np.ndarray
    host: np.ndarray
    disk: np.ndarray

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True)
class TierPlan:
    """Says where chunks lie. ``rows``, ``lists``: uint8, DEVICE, HOST or DISK of each chunk; ``transactions`` that are
    left.
    """

    rows: np.ndarray
    lists: np.ndarray
    transactions: int

    def bytes_in(self, chunks: tuple[Chunks, Chunks], tier: int) -> tuple[int, int]:
        """Counts bytes of rows and of lists in ``tier``."""
        rows, lists = chunks
        return int(rows.sizes[self.rows == tier].sum()), int(lists.sizes[self.lists == tier].sum())


def transactions(chunks: Chunks, tiers: np.ndarray) -> int:
    """Counts the transactions of one kind, with each chunk in its tier."""
    return int(np.where(tiers == HOST, chunks.host, np.where(tiers == DISK, chunks.disk, 0)).sum())


def unit_of(capacity: int) -> int:
    """Returns the bytes of a chunk: what placement decides about at a time."""
    return max(-(-capacity // _UNITS), 1)


def unit_of_two(device_bytes: int, host_bytes: int) -> int:
    """Returns the bytes of a chunk where two capacities are decided about together."""
    return max(-(-max(device_bytes, host_bytes) // _UNITS_OF_TWO), 1)


def place(
    rows: Chunks,
    lists: Chunks,
    device_bytes: int,
    host_bytes: int,
    unit: int,
    lists_in: tuple[int, ...] = (DEVICE, HOST),
) -> TierPlan:
    """Finds the placement with the fewest transactions, by dynamic programming over both capacities.

    Chunks may differ in size; each takes whole units of ``unit`` bytes. Equals trying every placement of every chunk.

    Args:
        lists_in: Tiers that lists may be cached in.
    """
    sizes = -(-np.concatenate([rows.sizes, lists.sizes]) // unit)
    host, disk = np.concatenate([rows.host, lists.host]), np.concatenate([rows.disk, lists.disk])
    room = (device_bytes // unit, host_bytes // unit)
    saved = np.zeros((room[0] + 1, room[1] + 1), np.int64)  # with so many units of either tier
    chosen = np.full((len(sizes), *saved.shape), DISK, np.uint8)
    for i, size in enumerate(sizes.tolist()):
        best = saved.copy()
        for tier, gain in ((HOST, int(disk[i] - host[i])), (DEVICE, int(disk[i]))):
            if gain <= 0 or size > room[tier] or (i >= len(rows) and tier not in lists_in):
                continue
            to = (slice(size, None), slice(None)) if tier == DEVICE else (slice(None), slice(size, None))
            before = (
                (slice(None, -size), slice(None)) if tier == DEVICE else (slice(None), slice(None, -size))
            )
            if size == 0:
                before = (slice(None), slice(None))
            better = saved[before] + gain > best[to]
            best[to][better] = (saved[before] + gain)[better]
            chosen[i][to][better] = tier
        saved = best
    tiers = np.full(len(sizes), DISK, np.uint8)
    left = [room[0], room[1]]
    for i in reversed(range(len(sizes))):
        tiers[i] = chosen[i, left[0], left[1]]
        if tiers[i] != DISK:
            left[tiers[i]] -= int(sizes[i])
    return _plan(rows, lists, tiers)


def place_fixed(
    strategy: str,
    rows: Chunks,
    lists: Chunks,
    device_bytes: int,
    host_bytes: int,
    unit: int,
    lists_in: tuple[int, ...] = (DEVICE, HOST),
) -> TierPlan:
    """Does as :func:`place`, by one of :data:`STRATEGIES`: the hottest that fits comes first."""
    sizes = (-(-rows.sizes // unit), -(-lists.sizes // unit))
    tiers = (np.full(len(rows), DISK, np.uint8), np.full(len(lists), DISK, np.uint8))
    room, used = (device_bytes // unit, host_bytes // unit), [0, 0]
    for tier, kind, share in STRATEGIES[strategy]:
        if kind == 1 and tier not in lists_in:
            continue
        most = int(room[tier] * share)
        for i in np.flatnonzero(tiers[kind] == DISK).tolist():
            if used[tier] + int(sizes[kind][i]) > most:
                break
            tiers[kind][i] = tier
            used[tier] += int(sizes[kind][i])
    return _plan(rows, lists, np.concatenate(tiers))


def _plan(rows: Chunks, lists: Chunks, tiers: np.ndarray) -> TierPlan:
    of_rows, of_lists = tiers[: len(rows)], tiers[len(rows) :]
    return TierPlan(of_rows, of_lists, transactions(rows, of_rows) + transactions(lists, of_lists))


@dataclass(frozen=True)
class Levels:
    """Takes together what is wanted equally often; element h of each: of all that is wanted h times.

    Attributes:
        sizes: int64, bytes.
        host, disk: int64, transactions.
    """

    sizes: np.ndarray
    host: np.ndarray
    disk: np.ndarray

    @classmethod
    def count(cls, wanted: np.ndarray, sizes: np.ndarray | int, levels: int) -> Levels:
        """Counts levels of nodes wanted so often (at most ``levels - 1`` is told apart), ``sizes`` bytes each."""
        level = np.minimum(wanted, levels - 1)
        each = np.broadcast_to(np.asarray(sizes, np.int64), wanted.shape)

        def sums(values: np.ndarray) -> np.ndarray:
            return np.bincount(level, values.astype(np.float64), levels).round().astype(np.int64)

        return cls(sums(each), sums(host_cost(wanted, each)), sums(disk_cost(wanted, each)))

    def __add__(self, other: Levels) -> Levels:
        return Levels(self.sizes + other.sizes, self.host + other.host, self.disk + other.disk)

    def chunks(self, unit: int, most: int, after: int = 0) -> Chunks:
        """Cuts ``most`` chunks of ``unit`` bytes, the hottest first; within a level all bytes count alike.

        What is never wanted is in none.

        Args:
            after: Bytes of the hottest that are left out: they are somewhere already.
        """
        ends = np.cumsum(self.sizes[:0:-1])
        total = int(ends[-1]) if len(ends) else 0
        after = min(after, total)
        count = min(most, -(-(total - after) // unit))
        cuts = np.minimum(after + np.arange(count + 1, dtype=np.int64) * unit, total)

        def upto(values: np.ndarray) -> np.ndarray:
            sums = np.concatenate([[0], np.cumsum(values[:0:-1])]).astype(np.float64)
            return np.interp(cuts, np.concatenate([[0], ends]), sums).round().astype(np.int64)

        return Chunks(np.diff(cuts), np.diff(upto(self.host)), np.diff(upto(self.disk)))


@dataclass(frozen=True)
class Threshold:
    """Separates the hottest of a kind that fit some bytes.

    Those wanted more than ``level`` times, and of those wanted just so often the first nodes, in ``rest`` bytes.
    """

    level: int
    rest: int

    @classmethod
    def of(cls, levels: Levels, budget: int) -> Threshold:
        ends = np.cumsum(levels.sizes[:0:-1])
        full = int(np.searchsorted(ends, budget, "right"))  # levels that fit whole
        level = len(levels.sizes) - 1 - full
        return cls(level, budget - (int(ends[full - 1]) if full else 0) if level else 0)

    def pick(self, wanted: np.ndarray, sizes: np.ndarray | int, levels: int) -> tuple[np.ndarray, Threshold]:
        """Picks nodes of one window, ascending; returns them and what is left for the next one."""
        level = np.minimum(wanted, levels - 1)
        each = np.broadcast_to(np.asarray(sizes, np.int64), wanted.shape)
        hot = level > self.level
        some = np.flatnonzero(level == self.level) if self.level else np.zeros(0, np.int64)
        ends = np.cumsum(each[some])
        fit = int(np.searchsorted(ends, self.rest, "right"))
        hot[some[:fit]] = True
        return np.flatnonzero(hot), Threshold(self.level, self.rest - (int(ends[fit - 1]) if fit else 0))
