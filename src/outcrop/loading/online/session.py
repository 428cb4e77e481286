"""Mode ``online``: no preparation; what is hot is found by drawing ahead, the rest is read while batches are drawn.

Source: Hyperion, section III.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import outcrop._core as _core
from outcrop.config import DeviceConfig
from outcrop.config.sampling import EXTERNAL
from outcrop.device import resolve
from outcrop.device.budget import DeviceBudget
from outcrop.device.gpu import gpu_of
from outcrop.errors import ArgumentError, BudgetError
from outcrop.loading import session
from outcrop.loading.buffers import BufferPool, HostBuffer, device_batch_bytes
from outcrop.loading.device_rows import ring_pool
from outcrop.loading.feeders import (
    RecordedStructures,
    SampledStructures,
)
from outcrop.loading.online.feeder import HopwiseSampler, LiveSampler, ReplayedSamples
from outcrop.loading.online.hotness import PRESAMPLED_BATCHES, Hotness, rows_and_lists
from outcrop.loading.online.static_cache import DeviceRoom, build_static_caches, index_bytes
from outcrop.rows import DiskStream, RowStream, StaticCache
from outcrop.runtime import memory_tables
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.sampler import BatchSampler, DrawingDevice
from outcrop.sampling.topology import Topology
from outcrop.store.arrays import DiskArray
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.store.stripes import open_stripes
from outcrop.store.targets import target_bytes

if TYPE_CHECKING:
    from outcrop.loading.modes.base import SessionRequest  # whose modes open these sessions

_MARGIN = 16  # part of the largest batch counted that later ones may be larger by


def open_online(
    request: SessionRequest,
    *,
    topology: str = "automatic",
    by_rings: bool = False,
    stripes: Sequence[Path | str] = (),
) -> session.LoadSession:
    """Opens a session: an epoch is drawn ahead and counted, then buffers take their place, the rest is for what is hot.

    Args:
        request: What is loaded. Recorded batches of a run need not be drawn to be counted, and those from elsewhere are
            replayed.
        topology: Where neighbour lists are read from.
        by_rings: Whether kernels ask for rows on disk, through rings, in place of the engine.
        stripes: Folders of copies of feature rows on other disks, which rings read.
    """
    graph, runtime, config, recorded = request.graph, request.runtime, request.config, request.recorded
    device = request.device
    check_cache_strategy(device)
    streams = _open_streams(request, by_rings, stripes)
    pool, known = None, request.max_rows
    device_budget = _device_budget(device)
    if known is not None:  # the size of batches is known: buffers come first
        pool = _make_pool(request, known, device_budget, by_rings)
    # For drawing, of what is free: before the buffers have their place, and after.
    last = float(memory_tables.ONLINE_SAMPLER_LAST.fraction)
    memory_fraction = float(memory_tables.ONLINE_SAMPLER.fraction) if known is None else last
    before = runtime.budget.free_bytes
    sampler, lists, structures = _open_sampler(request, topology, memory_fraction, device_budget)
    split = "train" if "train" in config.splits else config.splits[0]

    def ahead() -> Iterator[BatchGraph]:
        return islice(structures.batches(split, 0), PRESAMPLED_BATCHES if runtime.rehearsal is None else 0)

    counted = rows_and_lists(graph, expand_all=config.sampler == "shadow")
    num_rows, num_lists = [of.count for of in counted[:-1]], counted[-1].count
    hotness = Hotness(counted, ahead, runtime)
    if runtime.rehearsal is None:
        next(hotness.windows(), None)  # counted once, the size of batches is known
    most = known or _most_rows(hotness, runtime)
    batch_bytes = _bytes_of(graph, most)
    if pool is None:
        buffers = memory_tables.BATCH_BUFFERS * _host_bytes_of(request, most)
        if buffers + index_bytes(num_rows, num_lists) > runtime.budget.free_bytes:
            hotness.close()  # buffers need its memory: nothing is cached
        if runtime.budget.free_bytes < buffers < before:  # and drawing has less
            memory_fraction = (1 - buffers / before) * last
            del sampler, lists, structures
            gc.collect()
            sampler, lists, structures = _open_sampler(request, topology, memory_fraction, device_budget)
        pool = _make_pool(request, most, device_budget, by_rings)
    most_records = hotness.most_record_bytes + hotness.most_record_bytes // _MARGIN
    record_bytes = recorded.max_record_bytes if recorded else most_records
    seeds = recorded.max_seeds if recorded else hotness.most_seeds
    targets = target_bytes(graph, seeds)
    device_batch = device_batch_bytes(batch_bytes, record_bytes, targets)
    gpu_ids = any(stream.takes_gpu_ids for stream in streams)
    # On its way a batch that the GPU drew has there what its record has, but places of 8 bytes for ids of 4, and for
    # rings an id and a position of each row.
    drawn_bytes = record_bytes + (16 if gpu_ids else 4) * sum(most)
    one_file = len(graph.row_files) == 1  # rows of several are cached in host memory
    room = _device_room(device_budget, device, lists, device_batch, drawn_bytes) if one_file else None
    caches = build_static_caches(streams, lists, hotness, runtime, num_lists, room)
    if device_budget is not None and device.draws and isinstance(sampler, LiveSampler):
        _cache_where_drawn(sampler, caches[0], gpu_ids)
    # The copy of the targets that may be kept, and the values of rows that are decoded, lie elsewhere.
    block_bytes = device_batch - targets - _decoded_bytes_of(graph, most)
    return session.online_session(
        graph, sampler, caches, streams, pool, runtime, device, block_bytes, device_budget
    )


def _most_rows(hotness: Hotness, runtime: Runtime) -> tuple[int, ...]:
    """Counts the rows of each row file that a batch wants, at most, by the batches that were counted."""
    counted = hotness.most[:-1] if runtime.rehearsal is None else runtime.rehearsal.counted_rows
    return tuple(most + most // _MARGIN for most in counted)


def _bytes_of(graph: Graph, rows: Sequence[int]) -> int:
    """Counts the bytes that so many rows of each row file take in a batch, with their values where it is decoded."""
    return sum(count * file.batch_row_bytes for count, file in zip(rows, graph.row_files, strict=True))


def _decoded_bytes_of(graph: Graph, rows: Sequence[int]) -> int:
    """Counts those of the values alone."""
    return sum(count * file.decoded_bytes for count, file in zip(rows, graph.row_files, strict=True))


def _host_bytes_of(request: SessionRequest, rows: Sequence[int]) -> int:
    """Counts the bytes that they take in a buffer in host memory: a GPU decodes into its own."""
    on_gpu = gpu_of(resolve(request.device.name)) is not None
    return _bytes_of(request.graph, rows) - (_decoded_bytes_of(request.graph, rows) if on_gpu else 0)


def _open_streams(request: SessionRequest, by_rings: bool, stripes: Sequence[Path | str]) -> list[RowStream]:
    """Opens the rows of each row file; streams of the engine divide their scratch memory."""
    graph, runtime = request.graph, request.runtime
    scratch = memory_tables.READ_SCRATCH.bytes_of(runtime.budget.limit_bytes)
    if by_rings:
        features = graph.open_rows(runtime, graph.row_file)
        return [_ring_stream(graph, features, stripes, runtime, request.device, scratch)]
    return [
        DiskStream(graph.open_rows(runtime, file), runtime, scratch_bytes=scratch // len(graph.row_files))
        for file in graph.row_files
    ]


def _ring_stream(
    graph: Graph,
    features: DiskArray,
    stripes: Sequence[Path | str],
    runtime: Runtime,
    device: DeviceConfig,
    staging_bytes: int,
) -> RowStream:
    """Opens rows that kernels ask for, of the graph's features and of their stripes on other disks."""
    from outcrop.rows.rings import GpuDiskRows
    from outcrop.rows.rings.sizing import submitting_block_threads

    copies = open_stripes(graph, stripes)
    disks = {path.stat().st_dev for path in (graph.path, *(stripe.path for stripe in copies))}
    rings = GpuDiskRows(
        features,
        runtime,
        staging_bytes=staging_bytes,
        device=device.name,
        block_threads=submitting_block_threads(graph.path, features.row_bytes, len(disks)),
        stripes=[stripe.array(runtime) for stripe in copies],
    )
    return rings.stream()


def _cache_where_drawn(sampler: LiveSampler, cache: StaticCache, by_rings: bool) -> None:
    """Gives the GPU that draws its neighbour lists, and the index of cached rows if it has room for that.

    Args:
        by_rings: Its kernels ask for the other rows: their ids stay there too.
    """
    if cache.device_lists is not None and len(cache.device_lists):
        sampler.cache_lists(cache.index, cache.device_lists)
    with suppress(BudgetError):  # else the CPU looks them up
        sampler.look_up_rows(cache.index, cache.tiers, by_rings)


def _device_room(
    device_budget: DeviceBudget | None,
    device: DeviceConfig,
    topology: Topology | None,
    batch_bytes: int,
    drawn_bytes: int,
) -> DeviceRoom | None:
    """Counts what caches may take of a GPU; None where that is not limited. What sampling holds is held already.

    Args:
        batch_bytes: Bytes of a batch that is there.
        drawn_bytes: Bytes of a batch that the GPU has drawn, until it is there.
    """
    if device_budget is None or not device.memory_bytes:
        return None
    sampled = memory_tables.ONLINE_BATCH_BUFFERS * drawn_bytes if device.draws else 0
    other_bytes = memory_tables.DEVICE_BATCHES * batch_bytes + sampled
    lists = looks_up = False
    if device.draws and topology is not None:
        looks_up, lists = True, topology.placement == "memory"
        other_bytes += _core.HotIndex.bytes(topology.num_nodes)
    left = max(device_budget.free_bytes - other_bytes, 0)
    return DeviceRoom(
        left, partial(device_budget.empty, "device-cache"), device.cache_strategy, lists, looks_up
    )


def check_cache_strategy(device: DeviceConfig) -> None:
    """Raises ArgumentError where there is nothing that a fixed strategy could fill as its name says."""
    name = device.cache_strategy
    if name == "auto":
        return
    if gpu_of(resolve(device.name)) is None or not device.memory_bytes:
        raise ArgumentError(
            f"cache strategy {name} fills the memory of a GPU: name one (--device), and how much (--gpu-memory)"
        )
    if name in ("GTCF", "CFGT") and not device.draws:
        raise ArgumentError(
            f"cache strategy {name} fills a GPU with neighbor lists, which only sampling there reads: add --sample-on "
            "gpu, or take GFCT, CTGF or hybrid"
        )


def _device_budget(device: DeviceConfig) -> DeviceBudget | None:
    """Makes the budget in which sampling and loading count what they hold on a GPU; None on the CPU."""
    there = resolve(device.name)
    gpu = gpu_of(there)
    return None if gpu is None else DeviceBudget(gpu, there, device.memory_bytes)


def _make_pool(
    request: SessionRequest, most: Sequence[int], device_budget: DeviceBudget | None, by_rings: bool
) -> BufferPool[HostBuffer]:
    """Makes batch buffers; on the GPU where its kernels read the rows, if it has room for these and for batches.

    Args:
        most: Rows of each row file in any batch, at most.
    """
    graph, runtime, device = request.graph, request.runtime, request.device
    batch_bytes = _bytes_of(graph, most)
    there = resolve(device.name)
    gpu = gpu_of(there)
    if by_rings and gpu is not None and device_budget is not None:
        room = memory_tables.RING_BUFFERS.bytes_of(device_budget.free_bytes)
        buffers = memory_tables.BATCH_BUFFERS
        if (buffers + memory_tables.DEVICE_BATCHES) * batch_bytes <= room:
            return ring_pool(
                runtime, buffers, session.buffer_bytes(graph.row_file, most[0]), gpu, there, device_budget
            )
    buffers = memory_tables.ONLINE_BATCH_BUFFERS
    if buffers * _host_bytes_of(request, most) > memory_tables.THIRD_BUFFER.bytes_of(
        runtime.budget.free_bytes
    ):
        buffers = memory_tables.BATCH_BUFFERS
    return session.make_pool(graph, runtime, buffers=buffers, max_rows=most, device=device)


def _open_sampler(
    request: SessionRequest, topology: str, memory_fraction: float, device_budget: DeviceBudget | None
) -> tuple[HopwiseSampler, Topology | None, RecordedStructures | SampledStructures]:
    """Opens what samples the batches, the topology that it samples from, and their structures, to be counted."""
    runtime, config, device, recorded = request.runtime, request.config, request.device, request.recorded
    structures = None if recorded is None else RecordedStructures(recorded, runtime)
    if config.sampler == EXTERNAL:  # nothing here could draw them again
        assert structures is not None
        return ReplayedSamples(structures, request.graph), None, structures
    on = DrawingDevice(resolve(device.name), device_budget) if device.draws else None
    drawing = BatchSampler(
        request.graph,
        config,
        runtime,
        topology=topology,
        memory_fraction=memory_fraction,
        at_once=1,
        page_cache=False,
        on=on,
        ids=request.ids,
    )
    return LiveSampler(drawing), drawing.topology, structures or SampledStructures(drawing)
