"""The static cache of mode ``online``: the hottest features and the hottest neighbour lists under one budget.

Source: Hyperion, section III-B2. Which is better is decided by what it saves (cache_plan.py beside this file); both are
found by one lookup (core/cache/hot_index.h). Nothing is replaced while training, so that looking up never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """Counts the bytes of rows, of each row file, and of neighbour lists that are cached, in host memory and on a
    device.
    """

    row_bytes: tuple[int, ...]
    list_bytes: int
    device_row_bytes: tuple[int, ...]
    device_list_bytes: int


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


@dataclass(frozen=True)
class _Rows:
    """Describes the rows of a row file.

    Attributes:
        row_bytes: Bytes of a row.
        taken_bytes: Bytes that a row takes of what caches divide.
    """

    row_bytes: int
    taken_bytes: int

    def count(self, wanted: np.ndarray) -> cache_plan.Levels:
        """Counts levels of rows that are wanted so often."""
        levels = cache_plan.Levels.count(wanted, self.row_bytes, _LEVELS)
        return replace(levels, sizes=levels.sizes // self.row_bytes * self.taken_bytes)


NO_LEVELS = cache_plan.Levels(*([np.zeros(_LEVELS, np.int64)] * 3))


def _levels(
    hotness: Hotness, files: Sequence[_Rows], topology: Topology | None, on_device: bool = False
) -> tuple[list[cache_plan.Levels], cache_plan.Levels]:
    """Counts levels of rows, of each row file, and of lists; of no lists where the topology is in memory anyway.

    Args:
        on_device: Lists may be cached on a device; the others are read from host memory, not from disk.
    """
    rows, lists = [NO_LEVELS] * len(files), NO_LEVELS
    for w in hotness.windows():
        if w.kind < len(files):
            rows[w.kind] += files[w.kind].count(w.wanted)
        elif topology is not None and (on_device or topology.placement == "paged"):
            lists += cache_plan.Levels.count(w.wanted, topology.list_bytes(w.first, len(w.wanted)), _LEVELS)
    return rows, replace(lists, disk=lists.host) if on_device else lists


def share_out(
    rows: Sequence[cache_plan.Levels],
    lists: cache_plan.Levels,
    host_bytes: int,
    device_bytes: int = 0,
    *,
    lists_in: tuple[int, ...] = (cache_plan.HOST,),
    strategy: str = "auto",
) -> CacheShares:
    """Divides memory of the host and of a device among rows of row files and lists.

    Of each kind the device has the hottest, then the host.

    Args:
        rows: Of each row file; of one alone where there is a device.
        lists_in: Where lists may be: whoever samples has to reach them.
        strategy: One of :data:`outcrop.config.CACHE_STRATEGIES`.
    """
    unit = (
        cache_plan.unit_of_two(device_bytes, host_bytes) if device_bytes else cache_plan.unit_of(host_bytes)
    )
    most = host_bytes // unit + device_bytes // unit
    count, rows = len(rows), rows or [NO_LEVELS]  # a graph may have no rows at all
    kinds = [levels.chunks(unit, most) for levels in rows]
    chunks = (_joined(kinds), lists.chunks(unit, most))
    room = (device_bytes, host_bytes, unit, lists_in)
    plan = (
        cache_plan.place(*chunks, *room)
        if strategy == "auto"
        else cache_plan.place_fixed(strategy, *chunks, *room)
    )
    tiers = np.split(plan.rows, np.cumsum([len(kind) for kind in kinds])[:-1])
    in_tier = [
        tuple(int(kind.sizes[where == tier].sum()) for kind, where in zip(kinds, tiers, strict=True))
        for tier in (cache_plan.HOST, cache_plan.DEVICE)
    ]
    host_lists, device_lists = (
        plan.bytes_in(chunks, tier)[1] for tier in (cache_plan.HOST, cache_plan.DEVICE)
    )
    if (
        device_bytes and strategy == "auto"
    ):  # units of the larger are large parts of the smaller: rows take the rest
        in_tier = [(host_bytes - host_lists,), (device_bytes - device_lists,)]
    return CacheShares(in_tier[0][:count], host_lists, in_tier[1][:count], device_lists)


def _joined(kinds: Sequence[cache_plan.Chunks]) -> cache_plan.Chunks:
    """Returns the chunks of several kinds, one kind after the other."""
    return cache_plan.Chunks(
        *(np.concatenate([getattr(kind, name) for kind in kinds]) for name in ("sizes", "host", "disk"))
    )


def index_bytes(counts: Sequence[int], num_lists: int) -> int:
    """Counts what caches take besides what they hold.

    Args:
        counts: Rows of each row file.
        num_lists: Neighbour lists of the graph.
    """
    indexes = counts if _share_index(counts, num_lists) else (*counts, num_lists)
    return sum(map(_core.HotIndex.bytes, indexes)) + memory_tables.CACHE_MARGIN.least * len(counts)


def _share_index(counts: Sequence[int], num_lists: int) -> bool:
    """Tells whether one index has rows and lists: those of a graph without types are numbered alike."""
    return len(counts) == 1 and counts[0] == num_lists


def build_static_caches(
    streams: Sequence[RowStream],
    topology: Topology | None,
    hotness: Hotness,
    runtime: Runtime,
    num_lists: int,
    device: DeviceRoom | None = None,
) -> list[StaticCache]:
    """Reads what is worth caching, within the budget that is left: rows, tag ``row-cache``, and lists.

    Args:
        streams: Reads the rows of each row file.
        topology: The topology whose lists may be cached; None: none.
        hotness: Counts the rows of each row file, then the lists. It is used up: its counters are given back before
            caches are read.
        num_lists: Neighbour lists of the graph.
        device: For the hottest rows, which pass through host memory a part at a time; of one row file.

    Returns:
        What is cached of each row file.
    """
    counts = [stream.num_rows for stream in streams]
    room = max(runtime.budget.free_bytes + hotness.held_bytes - index_bytes(counts, num_lists), 0)
    # Ids of rows are in host memory while they are read, those of rows on the device too.
    device_bytes = 0
    if len(streams) == 1:
        files = [_Rows(streams[0].row_bytes, streams[0].row_bytes)]
        device_bytes, capacity = _rooms(room, streams[0], device)
    else:
        files = [_Rows(stream.row_bytes, stream.row_bytes + _ID_BYTES) for stream in streams]
        capacity = room
    none = np.zeros(0, np.int64)
    chosen = _Chosen([none] * len(streams), none, np.zeros(0, bool))
    if hotness.held_bytes and capacity >= min((file.taken_bytes for file in files), default=0):
        chosen = _choose(hotness, topology, files, capacity, device_bytes, device)
    hotness.close()
    lists, lists_there = chosen.lists, device is not None and device.lists
    shared = _share_index(counts, num_lists)
    indexes = [
        _core.HotIndex(runtime.budget, count, ids, lists if shared else none)
        for count, ids in zip(counts, chosen.rows, strict=True)
    ]
    if topology is not None and len(lists) and not lists_there:
        index = indexes[0] if shared else _core.HotIndex(runtime.budget, num_lists, none, lists)
        topology.cache_lists(index, lists, runtime)
    if device is not None:
        return [_read_both(streams[0], indexes[0], chosen, runtime, device)]
    return [
        StaticCache(index, _read(stream, ids, runtime))
        for stream, index, ids in zip(streams, indexes, chosen.rows, strict=True)
    ]


def _rooms(room: int, stream: RowStream, device: DeviceRoom | None) -> tuple[int, int]:
    """Divides ``room`` where there is one row file: bytes of rows on the device, and of rows and lists in host memory,
    beside the ids of both.
    """
    row_bytes, device_bytes = stream.row_bytes, 0
    if device is not None:
        there = device.row_bytes_within(row_bytes, min(room // row_bytes, stream.num_rows))
        device_bytes = min(there, memory_tables.DEVICE_CACHE_IDS.bytes_of(room) // _ID_BYTES * row_bytes)
    left = max(room - device_bytes // row_bytes * _ID_BYTES, 0)
    return device_bytes, left * row_bytes // (row_bytes + _ID_BYTES)


def _read_both(
    stream: RowStream, index: Any, chosen: _Chosen, runtime: Runtime, device: DeviceRoom
) -> StaticCache:
    """Reads the rows of the only row file to the device and to host memory."""
    (rows,), on_device = chosen.rows, chosen.on_device
    device_lists = chosen.lists if device.lists else None
    there = _read_to_device(stream, rows[on_device], runtime, device) if on_device.any() else None
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


@dataclass(frozen=True)
class _Chosen:
    """Names what is cached.

    Attributes:
        rows: int64, ascending, of each row file.
        lists: int64, ascending.
        on_device: Which rows of the only row file are for the device.
    """

    rows: list[np.ndarray]
    lists: np.ndarray
    on_device: np.ndarray


def _choose(
    hotness: Hotness,
    topology: Topology | None,
    files: Sequence[_Rows],
    capacity: int,
    device_bytes: int = 0,
    device: DeviceRoom | None = None,
) -> _Chosen:
    """Chooses the rows and the lists to cache."""
    lists_there = device is not None and device.lists
    of_rows, of_lists = _levels(hotness, files, topology, lists_there)
    shares = share_out(
        of_rows,
        of_lists,
        capacity,
        device_bytes,
        lists_in=(cache_plan.DEVICE,) if lists_there else (cache_plan.HOST,),
        strategy="auto" if device is None else device.strategy,
    )
    both = [a + b for a, b in zip(shares.device_row_bytes, shares.row_bytes, strict=True)]
    limits = [cache_plan.Threshold.of(levels, share) for levels, share in zip(of_rows, both, strict=True)]
    device_limits = [
        cache_plan.Threshold.of(levels, share)
        for levels, share in zip(of_rows, shares.device_row_bytes, strict=True)
    ]
    list_bytes = shares.list_bytes + shares.device_list_bytes
    list_limit = cache_plan.Threshold.of(of_lists, list_bytes)
    nothing = np.zeros(0, np.int64)
    rows, lists, on_device = [[nothing] for _ in files], [nothing], [np.zeros(0, bool)]
    for w in hotness.windows():
        if w.kind < len(files):
            size = files[w.kind].taken_bytes
            picked, limits[w.kind] = limits[w.kind].pick(w.wanted, size, _LEVELS)
            rows[w.kind].append(picked + w.first)
            if device is not None:
                hottest, device_limits[w.kind] = device_limits[w.kind].pick(w.wanted, size, _LEVELS)
                on_device.append(np.isin(picked, hottest))
        elif topology is not None and list_bytes:
            sizes = topology.list_bytes(w.first, len(w.wanted))
            picked, list_limit = list_limit.pick(w.wanted, sizes, _LEVELS)
            lists.append(picked + w.first)
    return _Chosen(
        [np.concatenate(parts) for parts in rows], np.concatenate(lists), np.concatenate(on_device)
    )
