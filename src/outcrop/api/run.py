"""A prepared run, opened: its batches in every mode, and as torch_geometric data."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from numpy.typing import ArrayLike

from outcrop.api.online import open_online
from outcrop.config import CPU, BaselineConfig, DeviceConfig, SampleConfig, Size, format_bytes, parse_size
from outcrop.device import gpu_named
from outcrop.errors import ArgumentError, FormatError
from outcrop.feeders import RecordedGraphs, SampledGraphs
from outcrop.loading.edges import EdgeLookup
from outcrop.loading.input_ids import InputIds, checked_ids
from outcrop.loading.ranks import process_ranks
from outcrop.loading.run_loader import RunLoader, Source
from outcrop.loading.sessions import Sessions
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
from outcrop.sampling import BatchSampler, Ids
from outcrop.slots import HostSlot, SlotPool
from outcrop.stages import load
from outcrop.store import manifest as manifests
from outcrop.store import packed, placement, run, samples
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import SPLITS, Graph, open_graph
from outcrop.store.manifest import Manifest

_ROW_SLOTS = 2
_COUNTED_EPOCHS = 3  # of those without end, to find the smallest budget that works
_BEFORE = {"dependency": 1}  # of runs from before there was a choice
EVERY_EPOCH = (1 << 31) - 1  # as many as can be: epochs are drawn by their own numbers
_MARGIN_BYTES = 64 << 10  # for the small tables that come later


def open_session(
    graph: Graph,
    runtime: Runtime,
    mode: str,
    *,
    run_folder: Path | None = None,
    config: SampleConfig | None = None,
    to: DeviceConfig = CPU,
    baseline: BaselineConfig | None = None,
    ids: Mapping[str, Ids] | None = None,
) -> load.LoadSession:
    """Loading in ``mode``: recorded batches where there is a run, else batches drawn on the fly as ``config`` says.

    Modes ``online`` and ``partition`` always draw on the fly, with a run as the run was sampled.

    Args:
        baseline: Options of modes ``dynamic``, ``belady`` and ``partition``.
        ids: Of batches drawn on the fly: nodes of a split, in place of those that the graph has.

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
        return _open_on_the_fly(graph, runtime, mode, config or SampleConfig(), to, baseline, ids)
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
    ids: Mapping[str, Ids] | None,
) -> load.LoadSession:
    """Loading without a run. A good part of the budget is left for the buffers, which grow to the size of batches."""
    if mode == "online":
        return open_online(graph, runtime, config, to, ids=ids)
    pool = load.make_pool(graph, runtime, slots=_ROW_SLOTS, max_nodes=0, to=to)
    rows = _open_rows(graph, runtime, mode, to)
    if mode == "partition":
        return _partition_session(graph, runtime, config, rows, pool, to, baseline, buffers_grow=True)
    graphs = SampledGraphs(BatchSampler(graph, config, runtime, share=0.25, ids=ids))
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
    """Opens a prepared run on disk.

    Args:
        path: Folder made by :func:`outcrop.prepare`.
        memory: Budget of loading; None takes the one the run was planned for (mode ``memory``: none).
        graph: Where the graph is now; None: where it was, seen from the run, when the run was prepared.

    Raises:
        FormatError: There is no finished run, its graph is not there, or ``graph`` is another one.
    """

    def __init__(
        self, path: str | Path, *, memory: Size | None = None, graph: str | Path | Graph | None = None
    ):
        self.path = Path(path)
        self.info = run.read(self.path)
        self.graph = _graph_of(self.path, self.info, graph)
        self.memory = self.info.plan.memory if memory is None else memory
        self._whole = (
            memory is None
        )  # mode ``memory`` has all features in memory, whatever the run was made for
        self._shared: weakref.ref[Sessions] | None = None

    def __repr__(self) -> str:
        sample = self.info.sample
        memory = "no limit" if self.memory is None else format_bytes(parse_size(self.memory))
        return (
            f"Run(path={str(self.path)!r}, graph={str(self.graph.path)!r}, fanouts={list(sample.fanouts)}, "
            f"batch_size={sample.batch_size}, epochs={sample.epochs}, memory={memory})"
        )

    def loader(
        self,
        what: int | str | ArrayLike | None = None,
        /,
        *,
        split: str | ArrayLike = "train",
        epoch: int | None = None,
        shuffle: bool | None = None,
        rank: int | None = None,
        world: int | None = None,
        accumulate: int | None = None,
        uneven: str = "wrap",
        edge_ids: bool = False,
        mode: str = "packed",
        device: str = "cpu",
    ) -> RunLoader:
        """The run's mini-batches, to iterate over once an epoch (:class:`outcrop.loading.run_loader.RunLoader`).

        ``for batch in run.loader(): ...`` trains for an epoch; keep the loader for many.

        Args:
            what: A split, or an epoch, without its name.
            split: ``train``, ``valid`` or ``test``; ``all`` nodes of the graph; or node ids int64 [n], or a mask
                [num_nodes] of bool. Batches of the last two are drawn as they are needed, with the run's fanouts
                and batch size, the same ones every time.
            epoch: Which epoch every iteration is; None: each is the next one.
            shuffle: None: ``train`` is shuffled, nothing else. Otherwise batches are drawn as they are needed.
            rank, world: Of the process; None: of the process group of torch.distributed, if there is one.
            accumulate: Batches of a step, of all processes together: batch n belongs to rank
                ``n % accumulate % world``. None: ``world``.
            uneven: Where batches do not divide evenly: ``wrap`` gives the first ones once more, ``drop`` leaves the
                last ones out, ``short`` gives some ranks fewer.
            edge_ids: Batches get ``e_id``, positions of their edges in ``run.graph.edge_index()``.
            mode: Where rows come from (:data:`outcrop.stages.load.MODES`). Batches that are drawn come from ``online``
                where it says ``packed``.
            device: ``cpu``, ``cuda`` or ``cuda:N``.

        Raises:
            ArgumentError: Values out of range; a split that the run has no batches of; batches that would have to be
                drawn where they came from elsewhere, or for edges.
        """
        if isinstance(what, int):
            epoch = what
        elif what is not None:
            split = what
        ranks = process_ranks(rank, world, accumulate, uneven)
        to = DeviceConfig(device, self.info.plan.gpu_memory)
        drawn = not isinstance(split, str) or split == "all"
        if drawn or (shuffle is not None and shuffle != (split == "train")):
            source = self._drawn_source(split, bool(shuffle), mode, to, edge_ids)
        else:
            source = self._recorded_source(str(split), mode, to, edge_ids)
        return RunLoader(source, self._sessions(), ranks, epoch)

    def _sessions(self) -> Sessions:
        """What the loaders of this run share as long as there are any."""
        shared = self._shared() if self._shared is not None else None
        if shared is None:
            shared = Sessions()
            self._shared = weakref.ref(shared)
        return shared

    def _memory_of(self, mode: str) -> Size | None:
        return None if mode == "memory" and self._whole else self.memory

    def _recorded_source(self, split: str, mode: str, to: DeviceConfig, edge_ids: bool) -> Source:
        with manifests.opening(self.path / "sample", samples.FORMAT, samples.VERSION) as manifest:
            groups = samples.groups_of(manifest)
        if split not in groups:
            raise ArgumentError(
                f"{self.path} holds no batches of split {split!r}, only of {', '.join(sorted(groups))}; 'all' and "
                "node ids are drawn as they are needed"
            )
        group, graph, path, sample = groups[split], self.graph, self.path, self.info.sample
        memory = self._memory_of(mode)
        limit = None if memory is None else parse_size(memory)

        def open_it() -> tuple[Runtime, load.LoadSession]:
            runtime = Runtime(memory)
            return runtime, open_session(graph, runtime, mode, run_folder=path, to=to)

        def refusing() -> AbstractContextManager[None]:
            from outcrop.api import budgets  # which opens sessions as this does

            epochs = range(group.first_epoch, group.first_epoch + group.epochs)
            passes = [(split, epoch) for epoch in epochs]
            needs = partial(budgets.SessionNeeds, graph, mode, sample, passes, run=path)
            return budgets.naming_smallest(limit, lambda: needs().fits, f"load mini-batches in mode {mode}")

        by_node = sample.task == "node" and sample.sampler != "foreign"
        return Source(
            name=split,
            split=split,
            count=None if mode == "partition" and split == "train" else group.per_epoch,
            distinct=range(group.first_epoch, group.first_epoch + group.epochs if split == "train" else 0),
            key=("recorded", mode, to),
            open=open_it,
            input_ids=(lambda runtime: split_positions(graph, runtime, split)) if by_node else None,
            complete=edge_lookup(graph, edge_ids, sample),
            identity={"run": manifest.digest()},
            home=str(self.path),
            refusing=refusing,
        )

    def _drawn_source(
        self, split: str | ArrayLike, shuffle: bool, mode: str, to: DeviceConfig, edge_ids: bool
    ) -> Source:
        """Batches around nodes that the run has none of, drawn with its options."""
        sample = self.info.sample
        if sample.task == "link":
            raise ArgumentError(
                f"{self.path} was prepared for edges: only its splits train, valid and test have batches"
            )
        config = replace(
            sample,
            splits=("train" if shuffle else "infer",),
            epochs=EVERY_EPOCH if shuffle else 1,
            first_epoch=0,
            task="node",
        )
        mode = "online" if mode == "packed" else mode
        return drawn_source(
            self.graph, split, config, mode, self._memory_of(mode), to, edge_ids=edge_ids, home=str(self.path)
        )


def drawn_source(
    graph: Graph,
    split: str | ArrayLike,
    config: SampleConfig,
    mode: str,
    memory: Size | None,
    to: DeviceConfig,
    *,
    edge_ids: bool = False,
    drop_last: bool = False,
    home: str,
) -> Source:
    """Batches of ``config`` around any nodes, drawn as they are needed: shuffled in every epoch if the only split of
    ``config`` is ``train``, in the order given if it is ``infer``; ``config.epochs`` different epochs.

    Raises:
        ArgumentError: Bad node ids, a split that the graph has not, or a mode that needs recorded batches.
    """
    if mode in ("packed", "belady", "partition"):
        raise ArgumentError(
            f"mode {mode} has no batches of its own choice of nodes: use online, memory, memmap, ondisk"
        )
    if config.sampler == "foreign":
        raise ArgumentError(f"{home}: its batches came from elsewhere: none can be drawn around other nodes")
    ids, name, of = _chosen_ids(graph, split, home)
    (drawn_split,) = config.splits
    nodes, limit = {drawn_split: ids}, None if memory is None else parse_size(memory)

    def open_it() -> tuple[Runtime, load.LoadSession]:
        runtime = Runtime(memory)
        return runtime, open_session(graph, runtime, mode, config=config, to=to, ids=nodes)

    def refusing() -> AbstractContextManager[None]:
        from outcrop.api import budgets  # which opens sessions as this does

        epochs = range(min(config.epochs, _COUNTED_EPOCHS))
        passes = [(drawn_split, epoch) for epoch in epochs]
        needs = partial(budgets.SessionNeeds, graph, mode, config, passes, ids=nodes)
        return budgets.naming_smallest(limit, lambda: needs().fits, f"load mini-batches in mode {mode}")

    positions = InputIds(ids)
    identity = {"graph": graph.digest(), "nodes": of, "sampling": manifests.plain(asdict(config))}
    return Source(
        name=name,
        split=drawn_split,
        count=len(ids) // config.batch_size if drop_last else -(-len(ids) // config.batch_size),
        all_batches=not drop_last,
        distinct=range(0),
        key=object(),
        open=open_it,
        input_ids=lambda runtime: positions,
        complete=edge_lookup(graph, edge_ids, config),
        identity=identity,
        home=home,
        refusing=refusing,
    )


def _chosen_ids(graph: Graph, split: str | ArrayLike, home: str) -> tuple[Ids, str, str]:
    """The nodes, what to call them, and what names them: equal for equal nodes."""
    if isinstance(split, str):
        if split == "all":
            return range(graph.num_nodes), "all", "all"
        if split not in SPLITS or not graph.has(split):
            known = ", ".join(["all", *(s for s in SPLITS if graph.has(s))])
            raise ArgumentError(f"{graph.path} has no split {split!r}; it has {known}, or pass node ids")
        with Runtime() as runtime:
            return graph.split(runtime, split), split, split
    ids = checked_ids(split, graph.num_nodes, home)
    return ids, f"{len(ids)} nodes", hashlib.sha256(ids.tobytes()).hexdigest()


def edge_lookup(
    graph: Graph, ids: bool, config: SampleConfig
) -> Callable[[Runtime], Callable[[BatchGraph], BatchGraph]] | None:
    """What adds edge weights, and ids where they are asked for; None where there is nothing to add.

    Raises:
        ArgumentError: Ids of batches from elsewhere, whose edges need not be the graph's.
    """
    if config.sampler == "foreign":
        if ids:
            raise ArgumentError("batches from elsewhere have edges of their own, without ids in the graph")
        return None
    if not ids and not graph.has("edge_weight"):
        return None
    made: list[EdgeLookup] = []  # for all passes: it reads the topology once to check it

    def lookup(runtime: Runtime) -> EdgeLookup:
        if not made:
            made.append(EdgeLookup(graph, runtime, ids=ids))
        return made[0]

    return lookup


def split_positions(graph: Graph, runtime: Runtime, split: str) -> InputIds:
    """Positions in a split of ``graph``, which stays on disk."""
    return InputIds(graph.array(runtime, split).memmap(check=True), ascending=True)


def _graph_of(path: Path, info: run.RunInfo, given: str | Path | Graph | None) -> Graph:
    """The graph of a run.

    Raises:
        FormatError: It is not there, or another one.
    """
    place = info.graph_path(path) if given is None else given
    try:
        graph = place if isinstance(place, Graph) else open_graph(place)
    except FormatError as error:
        if given is not None or manifests.exists(Path(str(place))):
            raise
        raise FormatError(
            f"the graph of run {path} is not at {place}: if it was moved, say where it is now: "
            f"open_run({str(path)!r}, graph=...)"
        ) from error
    if given is not None and graph.digest() != info.graph_digest:
        raise FormatError(f"{graph.path} is not the graph that {path} was prepared from, or in another state")
    return graph
