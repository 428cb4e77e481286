"""A prepared run, opened: its batches in every mode, and as torch_geometric data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from outcrop.api.online import open_online
from outcrop.config import CPU, BaselineConfig, DeviceConfig, SampleConfig, Size, format_bytes, parse_size
from outcrop.device import gpu_named
from outcrop.errors import ArgumentError, FormatError
from outcrop.feeders import RecordedGraphs, SampledGraphs
from outcrop.partition import PartitionGraphs, fitting_partitions
from outcrop.rows import (
    BeladyRows,
    DynamicRows,
    NextUses,
    PartitionRows,
    RowSource,
    open_rows,
    rows_within,
    schedule_of,
)
from outcrop.runtime import Runtime
from outcrop.sampling import BatchSampler
from outcrop.slots import HostSlot, SlotPool
from outcrop.stages import load
from outcrop.store import manifest as manifests
from outcrop.store import packed, placement, run, samples
from outcrop.store.graph import Graph, open_graph
from outcrop.store.manifest import Manifest

_ROW_SLOTS = 2
_BEFORE = {"dependency": 1}  # of runs from before there was a choice
_MARGIN_BYTES = 64 << 10  # for the small tables that come later

if TYPE_CHECKING:
    from torch_geometric.data import Data


def open_session(
    graph: Graph,
    runtime: Runtime,
    mode: str,
    *,
    run_folder: Path | None = None,
    config: SampleConfig | None = None,
    to: DeviceConfig = CPU,
    baseline: BaselineConfig | None = None,
) -> load.LoadSession:
    """Loading in ``mode``: recorded batches where there is a run, else batches drawn on the fly as ``config`` says.

    Modes ``online`` and ``partition`` always draw on the fly, with a run as the run was sampled.

    Args:
        baseline: Options of modes ``dynamic``, ``belady`` and ``partition``.

    Raises:
        ArgumentError: Mode unknown, or ``packed`` or ``belady`` without a run.
        FormatError: The run was made from another graph, or is not finished.
        BudgetError: The mode does not fit, for example ``memory`` in less than the features.
    """
    if mode not in load.MODES:
        raise ArgumentError(f"mode {mode!r} is unknown; known: {', '.join(load.MODES)}")
    baseline = baseline or BaselineConfig()
    if run_folder is None:
        if mode in ("packed", "belady"):
            raise ArgumentError(
                f"mode {mode} needs a run: make one with outcrop prepare, or choose another mode"
            )
        return _open_on_the_fly(graph, runtime, mode, config or SampleConfig(), to, baseline)
    info = run.read(run_folder)
    if info.graph_digest != graph.digest():
        raise FormatError(
            f"{run_folder} was prepared from another state of the graph than {graph.path} is in now: "
            "run outcrop prepare again"
        )
    sample_set = samples.open_samples(runtime, run_folder / "sample", graph)
    _check_belongs(sample_set.path, sample_set.manifest, {"graph": graph.digest()}, info.sample)
    if mode == "packed":
        places = _open_places(graph, runtime, run_folder, sample_set)
        _read_pack_manifest(run_folder, places)
        records = packed.open_packed(runtime, run_folder / "pack", places, sample_set)
        return load.packed_session(
            graph, sample_set, places, records, open_rows(graph, runtime, "online"), runtime, to
        )
    if mode == "online":
        return open_online(graph, runtime, info.sample, to, sample_set)
    # Buffers first: what is left afterwards is for topology and caches.
    pool = load.make_pool(graph, runtime, slots=_ROW_SLOTS, max_nodes=sample_set.max_nodes, to=to)
    rows = _open_rows(graph, runtime, mode, to)
    if mode == "partition":
        return _partition_session(graph, runtime, info.sample, rows, pool, to, baseline, buffers_grow=False)
    graphs = RecordedGraphs(sample_set, runtime)
    if mode == "belady":
        uses = NextUses(sample_set, schedule_of(sample_set, baseline.passes), runtime)
        count = _cache_rows(rows, runtime, "belady", baseline, 1.0, uses.cycle)
        rows = BeladyRows(rows, runtime, uses, rows=count)
        return load.placed_session(graph, graphs, rows, pool, runtime, to)
    if mode == "dynamic":
        rows = _with_dynamic_cache(rows, runtime, baseline, 1.0)
    return load.row_session(graph, graphs, rows, pool, runtime, to)


def _open_on_the_fly(
    graph: Graph,
    runtime: Runtime,
    mode: str,
    config: SampleConfig,
    to: DeviceConfig,
    baseline: BaselineConfig,
) -> load.LoadSession:
    """Loading without a run. A good part of the budget is left for the buffers, which grow to the size of batches."""
    if mode == "online":
        return open_online(graph, runtime, config, to)
    pool = load.make_pool(graph, runtime, slots=_ROW_SLOTS, max_nodes=0, to=to)
    rows = _open_rows(graph, runtime, mode, to)
    if mode == "partition":
        return _partition_session(graph, runtime, config, rows, pool, to, baseline, buffers_grow=True)
    graphs = SampledGraphs(BatchSampler(graph, config, runtime, share=0.25))
    if mode == "dynamic":
        rows = _with_dynamic_cache(rows, runtime, baseline, 0.5)
    return load.row_session(graph, graphs, rows, pool, runtime, to)


def _open_rows(graph: Graph, runtime: Runtime, mode: str, to: DeviceConfig) -> RowSource:
    """In mode ``memory`` a GPU reads the rows where they are."""
    if mode == "memory" and gpu_named(to.name) is not None:
        from outcrop.unified.rows import UnifiedRows  # brings torch

        return UnifiedRows(graph.array(runtime, "features"), runtime)
    return open_rows(graph, runtime, mode)


def _cache_rows(
    rows: RowSource, runtime: Runtime, policy: str, baseline: BaselineConfig, share: float, cycle: int = 1
) -> int:
    """Rows of a cache over ``rows``: as many as were asked for, or as fit ``share`` of what is left of the budget."""
    if baseline.cache_rows is not None:
        return min(baseline.cache_rows, rows.num_rows)
    left = int((runtime.budget.free_bytes - _MARGIN_BYTES) * share)
    return rows_within(policy, left, rows.row_bytes, rows.num_rows, cycle)


def _with_dynamic_cache(
    rows: RowSource, runtime: Runtime, baseline: BaselineConfig, share: float
) -> RowSource:
    policy = baseline.cache_policy
    count = _cache_rows(rows, runtime, policy, baseline, share)
    return DynamicRows(rows, runtime, policy=policy, rows=count)


def _partition_session(
    graph: Graph,
    runtime: Runtime,
    config: SampleConfig,
    below: RowSource,
    pool: SlotPool[HostSlot],
    to: DeviceConfig,
    baseline: BaselineConfig,
    *,
    buffers_grow: bool,
) -> load.LoadSession:
    """Half of what the sampler leaves is for the partitions; drawing, and buffers that grow, have the rest."""
    online = BatchSampler(graph, config, runtime, share=0.25 if buffers_grow else 0.5)
    shape = fitting_partitions(
        graph, baseline.partitions, baseline.resident, runtime.budget.free_bytes // 2, config.seed
    )
    rows = PartitionRows(graph.array(runtime, "features"), below, shape, runtime)
    graphs = PartitionGraphs(graph, config, shape, online, runtime, share=0.25 if buffers_grow else 0.75)
    return load.placed_session(graph, graphs, rows, pool, runtime, to)


def _open_places(
    graph: Graph, runtime: Runtime, run_folder: Path, sample_set: samples.SampleSet
) -> placement.Placement:
    places = placement.open_placement(runtime, run_folder / "plan")
    _check_belongs(
        places.path, places.manifest, {"graph": graph.digest(), "sample": sample_set.manifest.digest()}
    )
    return places


def _read_pack_manifest(run_folder: Path, places: placement.Placement) -> Manifest:
    manifest = manifests.read(run_folder / "pack", packed.FORMAT, packed.VERSION)
    _check_belongs(run_folder / "pack", manifest, {"plan": places.manifest.digest()})
    return manifest


def _check_belongs(
    folder: Path, manifest: Manifest, inputs: dict[str, str], config: SampleConfig | None = None
) -> None:
    """Raises FormatError where a stage was made from other inputs, as after a prepare that was interrupted."""
    same = all(manifest.inputs.get(name) == digest for name, digest in inputs.items())
    if not same or (config is not None and {**_BEFORE, **manifest.config} != manifests.plain(asdict(config))):
        raise FormatError(
            f"{folder} does not belong to the rest of its run, as after an interrupted prepare: run outcrop "
            "prepare again with the options that you want"
        )


class Run:
    """A prepared run on disk.

    Args:
        path: Folder made by :func:`outcrop.prepare`.
        memory: Budget of loading; None takes the one the run was planned for.
    """

    def __init__(self, path: str | Path, *, memory: Size | None = None):
        self.path = Path(path)
        self.info = run.read(self.path)
        self.graph = open_graph(self.info.graph_path(self.path))
        self.memory = self.info.plan.memory if memory is None else memory

    def __repr__(self) -> str:
        sample = self.info.sample
        memory = "no limit" if self.memory is None else format_bytes(parse_size(self.memory))
        return (
            f"Run(path={str(self.path)!r}, graph={str(self.graph.path)!r}, fanouts={list(sample.fanouts)}, "
            f"batch_size={sample.batch_size}, epochs={sample.epochs}, memory={memory})"
        )

    def loader(
        self, epoch: int = 0, *, split: str = "train", mode: str = "packed", device: str = "cpu"
    ) -> Iterator[Data]:
        """The mini-batches of one epoch as ``torch_geometric.data.Data``.

        Each has ``x`` [n, D], ``edge_index`` int64 [2, E], ``y`` (of the seeds), ``n_id``, ``batch_size``,
        ``num_sampled_nodes`` and ``num_sampled_edges``, in NeighborLoader's conventions. ``x`` lies in one of a few
        buffers: do not keep more than one batch without cloning it.
        """
        from outcrop.pyg import to_pyg

        to = DeviceConfig(device, self.info.plan.gpu_memory)
        with (
            Runtime(self.memory) as runtime,
            open_session(self.graph, runtime, mode, run_folder=self.path, to=to) as session,
            closing(session.batches(split, epoch)) as batches,
        ):
            for batch in batches:
                data = to_pyg(batch)
                del batch
                yield data
                del data
