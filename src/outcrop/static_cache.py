"""The static cache of mode ``online``: the hottest features and the hottest neighbour lists under one budget.

Source: Hyperion, section III-B2. Which is better is decided by what it saves (outcrop.tiers); both are found by one
lookup (core/cache/hot_index.h). Nothing is replaced while training, so that looking up never waits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outcrop import _core, tiers
from outcrop.hotness import Hotness
from outcrop.rows import HotSet, RowStream
from outcrop.runtime import Runtime
from outcrop.store.topology import Topology

_LEVELS = 1 << 16
_ID_BYTES = 24  # for each row that is cached, while it is read
_MARGIN_BYTES = 64 << 10  # for the small tables that come later
_READ_ROWS = 1 << 18  # at a time


@dataclass(frozen=True)
class CacheShares:
    """Bytes of rows and of neighbour lists in the cache."""

    row_bytes: int
    list_bytes: int


def _levels(hotness: Hotness, row_bytes: int, topology: Topology | None) -> tuple[tiers.Levels, tiers.Levels]:
    """Of rows and of lists, in one pass; of no lists where the topology is in memory anyway."""
    nothing = np.zeros(_LEVELS, np.int64)
    rows = lists = tiers.Levels(nothing, nothing, nothing)
    for w in hotness.windows():
        rows += tiers.Levels.count(w.rows, row_bytes, _LEVELS)
        if topology is not None and topology.placement == "paged":
            lists += tiers.Levels.count(w.lists, topology.list_bytes(w.first, len(w.lists)), _LEVELS)
    return rows, lists


def share_out(rows: tiers.Levels, lists: tiers.Levels, capacity: int, on_device: int = 0) -> CacheShares:
    """How ``capacity`` bytes of host memory are divided between rows and lists.

    Args:
        on_device: Bytes of the hottest rows that a device has. (The CPU wants lists: none are there.)
    """
    unit = tiers.unit_of(capacity)
    most = capacity // unit
    of_rows, of_lists = rows.chunks(unit, most, on_device), lists.chunks(unit, most)
    plan = tiers.place(of_rows, of_lists, 0, capacity, unit)
    return CacheShares(*plan.bytes_in((of_rows, of_lists), tiers.HOST))


def books_bytes(num_nodes: int) -> int:
    """What a cache takes besides what it holds."""
    return _core.HotIndex.bytes(num_nodes) + _MARGIN_BYTES


def fill(
    stream: RowStream,
    topology: Topology | None,
    hotness: Hotness,
    runtime: Runtime,
    device_bytes: int = 0,
) -> HotSet:
    """Reads what is worth caching, within the budget that is left: rows, tag ``row-cache``, and lists.

    Args:
        stream: Reads the rows.
        topology: Of which lists may be cached; None: none.
        hotness: Is used up: its counters are given back before the cache is read.
        device_bytes: For rows on a device. They pass through host memory, so that no more of them are read than fit
            half of what is left of it.
    """
    num_nodes, row_bytes = stream.num_rows, stream.row_bytes
    books = books_bytes(num_nodes)
    room = max(runtime.budget.free_bytes + hotness.held_bytes - books, 0)
    capacity = room * row_bytes // (row_bytes + _ID_BYTES)
    device_bytes = min(device_bytes, capacity // 2)
    rows, lists, on_device = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, bool)
    if hotness.held_bytes and capacity >= row_bytes:
        rows, lists, on_device = _choose(hotness, topology, row_bytes, capacity - device_bytes, device_bytes)
    hotness.close()
    index = _core.HotIndex(runtime.budget, num_nodes, rows, lists)
    if topology is not None and len(lists):
        topology.cache_lists(index, lists, runtime)
    in_host = _read(stream, rows[~on_device], runtime)
    if not on_device.any():
        return HotSet(index, in_host)
    number = np.where(on_device, -np.cumsum(on_device), np.cumsum(~on_device) - 1).astype(np.int32)
    return HotSet(index, in_host, _read(stream, rows[on_device], runtime), number)


def _read(stream: RowStream, ids: np.ndarray, runtime: Runtime) -> np.ndarray:
    """uint8, flat: rows ``ids``, ascending."""
    row_bytes = stream.row_bytes
    held = runtime.budget.empty("row-cache", len(ids) * row_bytes)
    for first in range(0, len(ids), _READ_ROWS):
        part = ids[first : first + _READ_ROWS]
        out = held[first * row_bytes :][: len(part) * row_bytes].reshape(len(part), row_bytes)
        stream.submit(part, None, out).wait()
    return held


def _choose(
    hotness: Hotness, topology: Topology | None, row_bytes: int, capacity: int, device_bytes: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, ascending, of the rows and of the lists to cache, and which of the rows are for the device."""
    of_rows, of_lists = _levels(hotness, row_bytes, topology)
    shares = share_out(of_rows, of_lists, capacity, device_bytes)
    row_limit = tiers.Threshold.of(of_rows, device_bytes + shares.row_bytes)
    device_limit = tiers.Threshold.of(of_rows, device_bytes)
    list_limit = tiers.Threshold.of(of_lists, shares.list_bytes)
    rows, lists, on_device = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, bool)]
    for w in hotness.windows():
        picked, row_limit = row_limit.pick(w.rows, row_bytes, _LEVELS)
        rows.append(picked + w.first)
        hottest, device_limit = device_limit.pick(w.rows, row_bytes, _LEVELS)
        on_device.append(np.isin(picked, hottest))
        if topology is not None and shares.list_bytes:
            sizes = topology.list_bytes(w.first, len(w.lists))
            picked, list_limit = list_limit.pick(w.lists, sizes, _LEVELS)
            lists.append(picked + w.first)
    return np.concatenate(rows), np.concatenate(lists), np.concatenate(on_device)
