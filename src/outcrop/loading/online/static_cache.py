"""The static cache of mode ``online``: the hottest features and the hottest neighbour lists under one budget.

Source: Hyperion, section III-B2. Which is better is decided by what it saves (cache_plan.py beside this file); both are
found by one lookup (core/cache/hot_index.h). Nothing is replaced while training, so that looking up never waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import outcrop._core as _core
from outcrop.loading.online import cache_plan
from outcrop.loading.online.hotness import Hotness
from outcrop.rows import RowStream, StaticCache
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.topology import Topology

if TYPE_CHECKING:
    import torch

_LEVELS = 1 << 16
_ID_BYTES = 24  # for each row that is cached, while it is read
_TIER_BYTES = 4  # for each row that is cached, on a device that looks rows up
_READ_ROWS = 1 << 18  # at a time


@dataclass(frozen=True)
class CacheShares:
    """Counts the bytes of rows and of neighbour lists that are cached, in host memory and on a device."""

    row_bytes: int
    list_bytes: int
    device_row_bytes: int = 0
    device_list_bytes: int = 0


@dataclass(frozen=True)
class DeviceRoom:
    """Says what a static cache may take of a device.

    Attributes:
        num_bytes: Bytes of its memory that may be taken.
        empty: Makes uint8 [n] there, under a reservation.
        strategy: One of :data:`outcrop.config.CACHE_STRATEGIES`.
        lists: Whether it samples, from a topology in host memory: lists may be there too.
        looks_up: Whether it looks rows up: the tier of each that is cached is there too.
    """

    num_bytes: int
    empty: Callable[[int], tuple[torch.Tensor, Any]]
    strategy: str = "auto"
    lists: bool = False
    looks_up: bool = False

    def row_bytes_within(self, row_bytes: int, host_rows: int) -> int:
        """Counts bytes for rows, beside the tiers of these and of as many in host memory as ``host_rows``."""
        if not self.looks_up:
            return self.num_bytes
        left = max(self.num_bytes - _TIER_BYTES * host_rows, 0)
        return left // (row_bytes + _TIER_BYTES) * row_bytes


def _levels(
    hotness: Hotness, row_bytes: int, topology: Topology | None, on_device: bool = False
) -> tuple[cache_plan.Levels, cache_plan.Levels]:
    """Counts levels of rows and of lists, in one pass; of no lists where the topology is in memory anyway.

    Args:
        on_device: Lists may be cached on a device; the others are read from host memory, not from disk.
    """
    nothing = np.zeros(_LEVELS, np.int64)
    rows = lists = cache_plan.Levels(nothing, nothing, nothing)
    for w in hotness.windows():
        rows += cache_plan.Levels.count(w.rows, row_bytes, _LEVELS)
        if topology is not None and (on_device or topology.placement == "paged"):
            lists += cache_plan.Levels.count(w.lists, topology.list_bytes(w.first, len(w.lists)), _LEVELS)
    return rows, replace(lists, disk=lists.host) if on_device else lists


def share_out(
    rows: cache_plan.Levels,
    lists: cache_plan.Levels,
    host_bytes: int,
    device_bytes: int = 0,
    *,
    lists_in: tuple[int, ...] = (cache_plan.HOST,),
    strategy: str = "auto",
) -> CacheShares:
    """Divides memory of the host and of a device between rows and lists.

    Of each kind the device has the hottest, then the host.

    Args:
        lists_in: Where lists may be: whoever samples has to reach them.
        strategy: One of :data:`outcrop.config.CACHE_STRATEGIES`.
    """
    unit = (
        cache_plan.unit_of_two(device_bytes, host_bytes) if device_bytes else cache_plan.unit_of(host_bytes)
    )
    most = host_bytes // unit + device_bytes // unit
    chunks = (rows.chunks(unit, most), lists.chunks(unit, most))
    room = (device_bytes, host_bytes, unit, lists_in)
    plan = (
        cache_plan.place(*chunks, *room)
        if strategy == "auto"
        else cache_plan.place_fixed(strategy, *chunks, *room)
    )
    on_device, in_host = plan.bytes_in(chunks, cache_plan.DEVICE), plan.bytes_in(chunks, cache_plan.HOST)
    if (
        device_bytes and strategy == "auto"
    ):  # units of the larger are large parts of the smaller: rows take the rest
        on_device = (device_bytes - on_device[1], on_device[1])
        in_host = (host_bytes - in_host[1], in_host[1])
    return CacheShares(*in_host, *on_device)


def index_bytes(num_nodes: int) -> int:
    """Counts what a cache takes besides what it holds."""
    return _core.HotIndex.bytes(num_nodes) + memory_tables.CACHE_MARGIN.least


def build_static_cache(
    stream: RowStream,
    topology: Topology | None,
    hotness: Hotness,
    runtime: Runtime,
    device: DeviceRoom | None = None,
) -> StaticCache:
    """Reads what is worth caching, within the budget that is left: rows, tag ``row-cache``, and lists.

    Args:
        stream: Reads the rows.
        topology: The topology whose lists may be cached; None: none.
        hotness: Is used up: its counters are given back before the cache is read.
        device: For the hottest rows, which pass through host memory a part at a time.
    """
    num_nodes, row_bytes = stream.num_rows, stream.row_bytes
    room = max(runtime.budget.free_bytes + hotness.held_bytes - index_bytes(num_nodes), 0)
    # Ids of rows are in host memory while they are read, those of rows on the device too.
    device_bytes = 0
    if device is not None:
        there = device.row_bytes_within(row_bytes, min(room // row_bytes, num_nodes))
        device_bytes = min(there, memory_tables.DEVICE_CACHE_IDS.bytes_of(room) // _ID_BYTES * row_bytes)
    capacity = max(room - device_bytes // row_bytes * _ID_BYTES, 0) * row_bytes // (row_bytes + _ID_BYTES)
    rows, lists, on_device = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, bool)
    if hotness.held_bytes and capacity >= row_bytes:
        rows, lists, on_device = _choose(hotness, topology, row_bytes, capacity, device_bytes, device)
    hotness.close()
    index = _core.HotIndex(runtime.budget, num_nodes, rows, lists)
    lists_there = device is not None and device.lists
    if topology is not None and len(lists) and not lists_there:
        topology.cache_lists(index, lists, runtime)
    device_lists = lists if lists_there else None
    there = None
    if device is not None and on_device.any():
        there = _read_to_device(stream, rows[on_device], runtime, device)
    in_host = _read(stream, rows[~on_device], runtime)
    if there is None:
        return StaticCache(index, in_host, device_lists=device_lists)
    number = np.where(on_device, -np.cumsum(on_device), np.cumsum(~on_device) - 1).astype(np.int32)
    return StaticCache(index, in_host, there, number, device_lists)


def _read(stream: RowStream, ids: np.ndarray, runtime: Runtime) -> np.ndarray:
    """Reads rows ``ids``, ascending, uint8, flat."""
    row_bytes = stream.row_bytes
    held = runtime.budget.empty("row-cache", len(ids) * row_bytes)
    for first in range(0, len(ids), _READ_ROWS):
        part = ids[first : first + _READ_ROWS]
        out = held[first * row_bytes :][: len(part) * row_bytes].reshape(len(part), row_bytes)
        stream.submit(part, None, out).wait()
    return held


def _read_to_device(
    stream: RowStream, ids: np.ndarray, runtime: Runtime, device: DeviceRoom
) -> tuple[torch.Tensor, Any]:
    """Reads rows ``ids``, ascending, to the device: uint8, flat, and its reservation."""
    import torch

    row_bytes = stream.row_bytes
    there, held = device.empty(len(ids) * row_bytes)
    room = memory_tables.DEVICE_CACHE_CHUNK.bytes_of(runtime.budget.free_bytes)
    count = max(min(_READ_ROWS, len(ids), room // row_bytes), 1)
    for first in range(0, len(ids), count):
        part = _read(stream, ids[first : first + count], runtime)
        there[first * row_bytes :][: len(part)].copy_(torch.from_numpy(part))
        del part  # its memory is wanted for the next one
    return there, held


def _choose(
    hotness: Hotness,
    topology: Topology | None,
    row_bytes: int,
    capacity: int,
    device_bytes: int = 0,
    device: DeviceRoom | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Chooses ids, ascending, of the rows and of the lists to cache, and which of the rows are for the device."""
    lists_there = device is not None and device.lists
    of_rows, of_lists = _levels(hotness, row_bytes, topology, lists_there)
    shares = share_out(
        of_rows,
        of_lists,
        capacity,
        device_bytes,
        lists_in=(cache_plan.DEVICE,) if lists_there else (cache_plan.HOST,),
        strategy="auto" if device is None else device.strategy,
    )
    row_limit = cache_plan.Threshold.of(of_rows, shares.device_row_bytes + shares.row_bytes)
    device_limit = cache_plan.Threshold.of(of_rows, shares.device_row_bytes)
    list_limit = cache_plan.Threshold.of(of_lists, shares.list_bytes + shares.device_list_bytes)
    rows, lists, on_device = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, bool)]
    for w in hotness.windows():
        picked, row_limit = row_limit.pick(w.rows, row_bytes, _LEVELS)
        rows.append(picked + w.first)
        hottest, device_limit = device_limit.pick(w.rows, row_bytes, _LEVELS)
        on_device.append(np.isin(picked, hottest))
        if topology is not None and shares.list_bytes + shares.device_list_bytes:
            sizes = topology.list_bytes(w.first, len(w.lists))
            picked, list_limit = list_limit.pick(w.lists, sizes, _LEVELS)
            lists.append(picked + w.first)
    return np.concatenate(rows), np.concatenate(lists), np.concatenate(on_device)
