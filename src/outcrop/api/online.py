"""Mode ``online``: no preparation; what is hot is found by drawing ahead, the rest is read while batches are drawn.

Source: Hyperion, section III.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from outcrop.config import DeviceConfig, SampleConfig
from outcrop.device import resolve
from outcrop.feeders import Drawer, RecordedDrawer, RecordedGraphs, SampledDrawer, SampledGraphs
from outcrop.hotness import PRESAMPLED_BATCHES, Hotness
from outcrop.rows import DiskStream, HotRows, RowStream, scratch_share
from outcrop.runtime import Runtime
from outcrop.sampling import BatchSampler
from outcrop.stages import load
from outcrop.static_cache import books_bytes, fill
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.store.samples import SampleSet
from outcrop.store.topology import Topology

_SLOTS, _MORE_SLOTS = 2, 3  # one more, where it costs little: one is drawn, one is read, one is computed with
_MARGIN = 16  # part of the largest batch counted that later ones may be larger by
_DRAWING_SHARE = (
    0.4  # of the budget, for drawing's scratch memory, and of what is left for a topology in memory
)


def open_online(
    graph: Graph,
    runtime: Runtime,
    config: SampleConfig,
    to: DeviceConfig,
    recorded: SampleSet | None = None,
) -> load.LoadSession:
    """An epoch is drawn ahead and counted; then batch buffers take their place, and what is left is for what is hot.

    Args:
        recorded: Batches of a run: they need not be drawn to be counted, and those from elsewhere are replayed.
    """
    features = graph.array(runtime, "features")
    scratch = scratch_share(runtime.budget.limit_bytes)
    if runtime.initiator == "gpu":
        from outcrop.gpuio import GpuDiskRows

        rings = GpuDiskRows(features, runtime, staging_bytes=scratch, device=to.name)
        stream: RowStream = rings.stream()
    else:
        stream = DiskStream(features, runtime, scratch_bytes=scratch)
    drawer, topology, drawn = _drawing(graph, runtime, config, to, recorded)
    split = "train" if "train" in config.splits else config.splits[0]

    def ahead() -> Iterator[BatchGraph]:
        return islice(drawn.batches(split, 0), PRESAMPLED_BATCHES)

    hotness = Hotness(graph.num_nodes, ahead, runtime, expand_all=config.sampler == "shadow")
    next(hotness.windows(), None)  # counted once, the size of batches is known
    most = recorded.max_nodes if recorded else hotness.most_nodes + hotness.most_nodes // _MARGIN
    batch_bytes = most * features.spec.stride_bytes
    slots = _MORE_SLOTS if _MORE_SLOTS * batch_bytes <= runtime.budget.free_bytes // 2 else _SLOTS
    if slots * batch_bytes + books_bytes(graph.num_nodes) > runtime.budget.free_bytes:
        hotness.close()  # buffers need its memory: nothing is cached
    pool = load.make_pool(graph, runtime, slots=slots, max_nodes=most, to=to)
    hot = fill(stream, topology, hotness, runtime)
    return load.online_session(graph, drawer, HotRows(hot, stream, runtime), pool, runtime, to)


def _drawing(
    graph: Graph, runtime: Runtime, config: SampleConfig, to: DeviceConfig, recorded: SampleSet | None
) -> tuple[Drawer, Topology | None, RecordedGraphs | SampledGraphs]:
    """Who draws the batches, from which topology, and the same batches whole, to be counted."""
    graphs = None if recorded is None else RecordedGraphs(recorded, runtime)
    if config.sampler == "foreign":  # nothing here could draw them again
        assert graphs is not None
        return RecordedDrawer(graphs), None, graphs
    on = resolve(to.name) if to.draws else None
    sampler = BatchSampler(graph, config, runtime, share=_DRAWING_SHARE, at_once=1, page_cache=False, on=on)
    return SampledDrawer(sampler), sampler.topology, graphs or SampledGraphs(sampler)
