"""Mode ``online``: no preparation; what is hot is found by drawing ahead, the rest is read while batches are drawn.

Source: Hyperion, section III.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice

from outcrop import _core
from outcrop.config import DeviceConfig, SampleConfig
from outcrop.device import resolve
from outcrop.device.budget import DeviceBudget
from outcrop.device.gpu import gpu_of
from outcrop.device_rows import ring_pool
from outcrop.errors import ArgumentError
from outcrop.feeders import Drawer, RecordedDrawer, RecordedGraphs, SampledDrawer, SampledGraphs
from outcrop.hotness import PRESAMPLED_BATCHES, Hotness
from outcrop.rows import DiskStream, RowStream, scratch_share
from outcrop.runtime import Runtime
from outcrop.sampling import BatchSampler, Ids
from outcrop.slots import DEVICE_BATCHES, HostSlot, SlotPool, device_batch_bytes
from outcrop.stages import load
from outcrop.static_cache import DeviceRoom, books_bytes, fill
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.store.samples import SampleSet
from outcrop.store.topology import Topology

_SLOTS, _MORE_SLOTS = 2, 3  # one more, where it costs little: one is drawn, one is read, one is computed with
_MARGIN = 16  # part of the largest batch counted that later ones may be larger by
# Of what is left, for drawing: before the buffers have their place, and after.
_DRAWING_SHARE, _DRAWING_SHARE_LAST = 0.4, 0.8


def open_online(
    graph: Graph,
    runtime: Runtime,
    config: SampleConfig,
    to: DeviceConfig,
    recorded: SampleSet | None = None,
    ids: Mapping[str, Ids] | None = None,
) -> load.LoadSession:
    """An epoch is drawn ahead and counted; then batch buffers take their place, and what is left is for what is hot.

    Args:
        recorded: Batches of a run: they need not be drawn to be counted, and those from elsewhere are replayed.
        ids: Nodes of a split in place of those that the graph has.
    """
    check_cache_strategy(to)
    features = graph.array(runtime, "features")
    scratch = scratch_share(runtime.budget.limit_bytes)
    if runtime.initiator == "gpu":
        from outcrop.gpuio import GpuDiskRows

        rings = GpuDiskRows(features, runtime, staging_bytes=scratch, device=to.name)
        stream: RowStream = rings.stream()
    else:
        stream = DiskStream(features, runtime, scratch_bytes=scratch)
    pool = None
    on_device = _device_budget(to)
    if recorded is not None:  # the size of batches is known: buffers come first
        pool = _make_pool(graph, runtime, recorded.max_nodes, to, on_device)
    share = _DRAWING_SHARE if recorded is None else _DRAWING_SHARE_LAST
    before = runtime.budget.free_bytes
    drawer, topology, drawn = _drawing(graph, runtime, config, to, recorded, share, ids, on_device)
    split = "train" if "train" in config.splits else config.splits[0]

    def ahead() -> Iterator[BatchGraph]:
        return islice(drawn.batches(split, 0), PRESAMPLED_BATCHES if runtime.rehearsal is None else 0)

    hotness = Hotness(graph.num_nodes, ahead, runtime, expand_all=config.sampler == "shadow")
    if runtime.rehearsal is None:
        next(hotness.windows(), None)  # counted once, the size of batches is known
    counted = hotness.most_nodes if runtime.rehearsal is None else runtime.rehearsal.counted_nodes
    most = recorded.max_nodes if recorded else counted + counted // _MARGIN
    batch_bytes = most * features.spec.stride_bytes
    if pool is None:
        buffers = _SLOTS * batch_bytes
        if buffers + books_bytes(graph.num_nodes) > runtime.budget.free_bytes:
            hotness.close()  # buffers need its memory: nothing is cached
        if runtime.budget.free_bytes < buffers < before:  # and drawing has less
            share = (1 - buffers / before) * _DRAWING_SHARE_LAST
            del drawer, topology, drawn
            gc.collect()
            drawer, topology, drawn = _drawing(graph, runtime, config, to, recorded, share, ids, on_device)
        pool = _make_pool(graph, runtime, most, to, on_device)
    most_records = hotness.most_record_bytes + hotness.most_record_bytes // _MARGIN
    record_bytes = recorded.max_record_bytes if recorded else most_records
    device_batch = device_batch_bytes(batch_bytes, record_bytes)
    room = None
    if on_device is not None and to.memory_bytes:
        other = DEVICE_BATCHES * device_batch + (
            _MORE_SLOTS * record_bytes if to.draws else 0
        )  # those on their way
        room = _device_room(on_device, to, topology, other)
    hot = fill(stream, topology, hotness, runtime, room)
    if hot.device_lists is not None and len(hot.device_lists):
        assert isinstance(drawer, SampledDrawer)
        drawer.cache_lists(hot.index, hot.device_lists)
    return load.online_session(graph, drawer, hot, stream, pool, runtime, to, device_batch, on_device)


def _device_room(
    on_device: DeviceBudget, to: DeviceConfig, topology: Topology | None, other_bytes: int
) -> DeviceRoom:
    """What caches may take of a GPU, where batches take ``other_bytes``; what sampling holds there is held already."""
    lists = to.draws and topology is not None and topology.placement == "memory"
    if lists:
        assert topology is not None
        other_bytes += _core.HotIndex.bytes(topology.num_nodes)
    left = max(on_device.free_bytes - other_bytes, 0)
    return DeviceRoom(left, partial(on_device.empty, "device-cache"), to.cache_strategy, lists)


def check_cache_strategy(to: DeviceConfig) -> None:
    """Raises ArgumentError where there is nothing that a fixed strategy could fill as its name says."""
    name = to.cache_strategy
    if name == "auto":
        return
    if gpu_of(resolve(to.name)) is None or not to.memory_bytes:
        raise ArgumentError(
            f"cache strategy {name} fills the memory of a GPU: name one (--device), and how much (--gpu-memory)"
        )
    if name in ("GTCF", "CFGT") and not to.draws:
        raise ArgumentError(
            f"cache strategy {name} fills a GPU with neighbor lists, which only sampling there reads: add --sample-on "
            "gpu, or take GFCT, CTGF or hybrid"
        )


def _device_budget(to: DeviceConfig) -> DeviceBudget | None:
    """What is held on a GPU is counted in, by sampling and by loading; None on the CPU."""
    device = resolve(to.name)
    gpu = gpu_of(device)
    return None if gpu is None else DeviceBudget(gpu, device, to.memory_bytes)


def _make_pool(
    graph: Graph, runtime: Runtime, most: int, to: DeviceConfig, on_device: DeviceBudget | None
) -> SlotPool[HostSlot]:
    """Batch buffers; on the GPU where its kernels read the rows, if it has room for these and for batches."""
    batch_bytes = most * graph.spec("features").stride_bytes
    device = resolve(to.name)
    gpu = gpu_of(device)
    if runtime.initiator == "gpu" and gpu is not None and on_device is not None:
        room = on_device.free_bytes // 2
        if (_SLOTS + DEVICE_BATCHES) * batch_bytes <= room:
            return ring_pool(runtime, _SLOTS, load.buffer_bytes(graph, most), gpu, device, on_device)
    slots = _MORE_SLOTS if _MORE_SLOTS * batch_bytes <= runtime.budget.free_bytes // 2 else _SLOTS
    return load.make_pool(graph, runtime, slots=slots, max_nodes=most, to=to)


def _drawing(
    graph: Graph,
    runtime: Runtime,
    config: SampleConfig,
    to: DeviceConfig,
    recorded: SampleSet | None,
    share: float,
    ids: Mapping[str, Ids] | None,
    on_device: DeviceBudget | None,
) -> tuple[Drawer, Topology | None, RecordedGraphs | SampledGraphs]:
    """Who draws the batches, from which topology, and the same batches whole, to be counted."""
    graphs = None if recorded is None else RecordedGraphs(recorded, runtime)
    if config.sampler == "foreign":  # nothing here could draw them again
        assert graphs is not None
        return RecordedDrawer(graphs), None, graphs
    on = resolve(to.name) if to.draws else None
    sampler = BatchSampler(
        graph,
        config,
        runtime,
        share=share,
        at_once=1,
        page_cache=False,
        on=on,
        device_budget=on_device,
        ids=ids,
    )
    return SampledDrawer(sampler), sampler.topology, graphs or SampledGraphs(sampler)
