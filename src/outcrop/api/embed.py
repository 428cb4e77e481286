"""Graph embeddings: prepare, train, evaluate, export, look up neighbours. What ``outcrop embed`` does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from outcrop.api.old_keywords import accepts_old_keywords, merged, named
from outcrop.config import (
    BucketConfig,
    DeviceConfig,
    EmbedConfig,
    Limits,
    Size,
    SwapConfig,
    format_bytes,
    parse_size,
    with_memory,
)
from outcrop.config.declared import checks_arguments
from outcrop.device import gpu_named
from outcrop.embed import evaluate as evaluation
from outcrop.embed import export as exporting
from outcrop.embed import neighbors as nearest
from outcrop.embed.buckets import Buckets, open_buckets
from outcrop.embed.model import EmbeddingModel, open_model, replaced
from outcrop.embed.needs import EmbeddingNeeds, RankingNeeds
from outcrop.embed.prepare import prepare as prepare_buckets
from outcrop.embed.processes import for_processes, require_same
from outcrop.embed.sizing import fewest_partitions
from outcrop.embed.sources import EdgeSource, open_source
from outcrop.embed.training import EmbeddingTrainer
from outcrop.embed.validation import Validation
from outcrop.errors import ArgumentError, OutcropError
from outcrop.runtime.group import Group, joined
from outcrop.runtime.observer import Observer
from outcrop.runtime.progress import Progress, shows_progress
from outcrop.runtime.runtime import Runtime
from outcrop.runtime.smallest_budget import naming_smallest
from outcrop.store.graph import Graph
from outcrop.store.lock import only_process_in
from outcrop.store.triples import Triples
from outcrop.training.processes import usual_threads


@dataclass
class EmbedReport:
    """Says what a training did.

    Attributes:
        partitions: Partitions of the buckets.
        buffer: Partitions that are in memory at a time, where not all are.
        resident: All partitions were in memory.
        resumed_epoch: The epoch at which a checkpoint was gone on from; None from the start.
        epochs: Fields of :class:`outcrop.embed.training.EpochRecord` of each epoch, and edges a second.
        peak_host_bytes: Bytes that were held on a machine at the most, by all of its processes.
        peak_device_by_tag: Bytes that were held on a GPU at the most, by what they were for.
        rankings: What the validation edges came to, where they were ranked: fields of
            :class:`outcrop.embed.rankings.EpochRanks` of each time, those before the checkpoint included.
        best_epoch: Epoch with the highest mean reciprocal rank; None where none was ranked.
        best_kept: Whether the vectors of that epoch are kept.
        stopped_early: Whether ``patience`` ended the training before its last epoch.
        path: The embedding run.
        ranks: Of several processes: ``world``, ``groups``, and ``peak_host_bytes`` of each.
    """

    partitions: int
    buffer: int
    resident: bool
    resumed_epoch: int | None
    epochs: list[dict[str, Any]] = field(default_factory=list)
    peak_host_bytes: int = 0
    peak_device_by_tag: dict[str, int] = field(default_factory=dict)
    ranks: dict[str, Any] = field(default_factory=dict)
    rankings: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int | None = None
    best_kept: bool = False
    stopped_early: bool = False
    path: Path = Path()

    def __repr__(self) -> str:
        held = "all" if self.resident else f"{self.buffer} of {self.partitions}"
        loss = f", last loss {self.epochs[-1]['loss']:.4f}" if self.epochs else ""
        best = next((r["mrr"] for r in self.rankings if r["epoch"] == self.best_epoch), None)
        ranked = "" if best is None else f", best MRR {best:.4f} after epoch {self.best_epoch}"
        return (
            f"EmbedReport({len(self.epochs)} epochs{loss}{ranked}, partitions in memory: {held}, "
            f"peak memory {format_bytes(self.peak_host_bytes)})"
        )

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path)}


EmbeddingRun = str | Path | Buckets | EmbedReport
"""An embedding run: its folder, or what :func:`embed_prepare` or :func:`embed_train` returned."""


def _folder(run: EmbeddingRun) -> Path:
    if isinstance(run, Buckets):
        return run.path.parent
    return run.path if isinstance(run, EmbedReport) else Path(run)


_OLD_OF_PREPARE = {
    name: f"config.{name}"
    for name in ("partitions", "slices", "numbering", "valid_fraction", "test_fraction", "seed")
}


def _objects_of_prepare(old: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Makes the object that :func:`embed_prepare` takes now from keywords that it took before."""
    return {"config": merged(BucketConfig, given.get("config"), named(_OLD_OF_PREPARE, "config", old))}


@accepts_old_keywords(_OLD_OF_PREPARE, _objects_of_prepare)
@checks_arguments
@shows_progress
def embed_prepare(
    source: Graph | Triples | str | Path,
    run: str | Path,
    config: BucketConfig | None = None,
    *,
    dim: int = 100,
    memory: Size | None = None,
    overwrite: bool = False,
    progress: Progress | bool = True,
) -> Buckets:
    """Sorts the edges of an imported graph or knowledge graph into buckets (:mod:`outcrop.embed.prepare`).

    Args:
        source: Graph or knowledge graph, or the folder of one: made by :func:`outcrop.import_graph` or
            :func:`outcrop.import_triples`.
        run: Folder of the embedding run to make.
        config: How many partitions there are, and what is held out (:class:`outcrop.BucketConfig`). A number of
            partitions that is left open becomes the least with which vectors of ``dim`` floats can be trained in
            ``memory``, with the defaults of :func:`embed_train`.
        dim: Floats of a vector, where ``memory`` decides how many partitions there are.
        memory: Bytes, or text such as ``"4GiB"``, that preparing may take, and training is to be done in.
        overwrite: Replace buckets of another source or other options, on which nothing was trained; without it that is
            an error that names what differs.
        progress: Whether to show progress (:mod:`outcrop.runtime.progress`), or a receiver of it.

    Raises:
        ArgumentError, BudgetError, FormatError: See the messages.
    """
    source = source.path if isinstance(source, Graph | Triples) else source
    with Runtime(memory, progress=progress) as runtime:
        config = config or BucketConfig()
        if config.partitions is not None or memory is None:
            return prepare_buckets(source, run, config, runtime, overwrite=overwrite)
        return _fitting_buckets(source, Path(run), config, EmbedConfig(dim=dim), runtime, overwrite)


def _fitting_buckets(
    source: str | Path,
    run: Path,
    config: BucketConfig,
    trained: EmbedConfig,
    runtime: Runtime,
    overwrite: bool,
) -> Buckets:
    """Prepares as few partitions as ``trained`` fits the budget with; those that are there stay where it does."""
    edges = open_source(source)

    def fits(buckets: Buckets) -> bool:
        return EmbeddingNeeds(buckets, trained, None, Group()).fits(runtime.budget.limit_bytes)

    there = _buckets_of(run, edges, config)
    if there is not None and fits(there):
        found = replace(config, partitions=there.partitions)
        return prepare_buckets(source, run, found, runtime, overwrite=overwrite)
    sizes = edges.num_nodes, edges.count("train"), edges.num_relations
    chosen = fewest_partitions(*sizes, trained, runtime.budget.free_bytes)
    found = replace(config, partitions=chosen)
    made = prepare_buckets(source, run, found, runtime, overwrite=overwrite)
    if fits(made):
        return made
    # A few nodes have most of the edges, so that few partitions do.
    more = fewest_partitions(*sizes, trained, runtime.budget.free_bytes, uneven=math.inf)
    mine = there is None or made.partitions != there.partitions  # made by this call, or to be replaced
    more_of_them = replace(config, partitions=more)
    return prepare_buckets(source, run, more_of_them, runtime, overwrite=overwrite or mine)


def _buckets_of(run: Path, edges: EdgeSource, config: BucketConfig) -> Buckets | None:
    """Opens buckets of ``edges`` that have any number of partitions, else as ``config`` says; None: there are none."""
    try:
        buckets = open_buckets(run)
    except OutcropError:
        return None
    wanted = asdict(replace(config, partitions=buckets.partitions))
    same = (
        buckets.manifest.inputs == {"source": edges.manifest.digest()} and buckets.manifest.config == wanted
    )
    return buckets if same else None


_OF_CONFIG = {
    name: f"config.{name}"
    for name in (
        "model", "dim", "negatives", "by_degree", "chunk", "batch", "loss", "margin", "optimizer",
        "learning_rate", "relation_learning_rate", "start", "reciprocal", "n3", "l2", "buffer",
        "sweeps", "order", "seed",
    )
}  # fmt: skip
_OLD = {
    **_OF_CONFIG,
    "rate": "config.learning_rate",
    "relation_rate": "config.relation_learning_rate",
    "gpu_memory": "limits.gpu_memory",
    "trace_path": "observer.trace",
    "progress": "observer.progress",
}


def _objects(old: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Makes the objects that :func:`embed_train` takes now from keywords that it took before."""
    made: dict[str, Any] = {}
    for parameter, kind in (("config", EmbedConfig), ("limits", Limits), ("observer", Observer)):
        if fields := named(_OLD, parameter, old):
            if parameter == "config" and given.get("config") is not None:
                raise ArgumentError("give either config or single options of the training")
            made[parameter] = merged(kind, given.get(parameter), fields)
    return made


_FEWER_ROWS = "buckets of more partitions, or more slices, need less for a slice"
_SMALLER = "a lower --batch, --chunk, --negatives, --buffer or --dim, or buckets of more partitions, usually need less"


@accepts_old_keywords(_OLD, _objects)
@checks_arguments
def embed_train(
    run: EmbeddingRun,
    config: EmbedConfig | None = None,
    *,
    limits: Limits | None = None,
    resident: bool | None = None,
    fresh: bool = False,
    checkpoint_seconds: float = 300.0,
    prefetch: bool = True,
    device: str = "cpu",
    io: str = "engine",
    observer: Observer | None = None,
    memory: Size | None = None,
    epochs: int | None = None,
) -> EmbedReport:
    """Trains embeddings on prepared buckets; goes on from the checkpoint of ``run`` where it holds one.

    Started by torchrun, or where there is a process group of torch.distributed, the processes train one table: each
    has groups of partitions of its own (``EmbedConfig.groups``), which move from process to process between rounds. The
    result is, to the bit, that of one process with as many groups on the same kind of CPU. ``memory`` is that of a
    machine; every machine has the buckets in ``run``, of the same path, on a disk of its own or on one that all see; on
    the latter where validation edges are ranked while training.

    Args:
        run: Embedding run, made by :func:`embed_prepare`.
        config: What is trained, and how (:class:`outcrop.EmbedConfig`).
        limits: Memory for all that Outcrop holds, torch comes on top; and device memory for partitions and batches, 0:
            what is free there (:class:`outcrop.Limits`).
        resident: All partitions in memory, or ``config.buffer`` of them; None: all where memory has room. Each of
            several processes has ``config.buffer`` of those of its group.
        fresh: Whether to start over where there is a checkpoint.
        checkpoint_seconds: Time between checkpoints within an epoch; each epoch ends with one.
        prefetch: Whether partitions are swapped while training goes on.
        device: Where the partitions in memory lie, and training runs. What a GPU computes is that of the CPU as far as
            rounding goes; either goes on from a checkpoint of the other.
        io: Who moves partitions between the device and the disk: ``engine``, by slabs in host memory; or ``gpu``, by
            commands that kernels put to rings (:mod:`outcrop.rows.rings`).
        observer: Progress and traces (:class:`outcrop.Observer`).
        memory: Short for ``limits=Limits(memory=...)``.
        epochs: Short for ``config=EmbedConfig(epochs=...)``.

    Raises:
        ArgumentError: The checkpoint is of another configuration, an option is out of range, or there are no validation
            edges to rank.
        BudgetError, NumericError, IoError, ChecksumError: See the messages.
    """
    config = config or EmbedConfig()
    config = config if epochs is None else replace(config, epochs=epochs)
    limits, watched = with_memory(limits, memory), observer or Observer()
    swaps = SwapConfig(prefetch, io)
    on_cpu = gpu_named(device) is None
    if io == "gpu" and on_cpu:
        raise ArgumentError(f"io gpu moves partitions of a GPU, device is {device}: leave io as it is")
    run = _folder(run)
    buckets = open_buckets(run)
    limit = None if limits.memory is None else parse_size(limits.memory)
    with joined(device) as group, watched.watching() as progress, ExitStack() as closing:
        config = for_processes(config, run, fresh, group)
        if not group.alone:
            _begin_together(config, buckets, group, other=resident or io == "gpu")
        with group.together("opening the run"):
            if group.leads:
                closing.enter_context(only_process_in(run))
        ranking = None if config.ranked_every is None else _ranking(run, buckets, config, group)

        def needs() -> Callable[[int], bool]:
            training = EmbeddingNeeds(buckets, config, resident, group)
            return lambda limit: training.fits(limit) and (ranking is None or ranking.fits(limit))

        closing.enter_context(
            naming_smallest(limit if on_cpu else None, needs, "train these embeddings", _SMALLER)
        )
        if ranking is not None:
            with group.together("looking whether ranking fits"):
                ranking.require(limit)
        runtime = closing.enter_context(
            Runtime(
                None if limit is None else limit // group.local_world,
                threads=usual_threads(group),
                trace_path=watched.trace if group.leads else None,
                progress=progress if group.leads else None,
            )
        )
        runtime.group = group
        if device == "cuda" and group.local_world > 1:
            device = f"cuda:{group.local_rank}"

        def make(first: bool) -> EmbeddingTrainer:
            return EmbeddingTrainer(
                buckets, run, config, runtime, resident=resident, fresh=fresh and first,
                checkpoint_seconds=checkpoint_seconds, swaps=swaps,
                device=DeviceConfig(device, parse_size(limits.gpu_memory)),
            )  # fmt: skip

        validated = Validation(run, config, runtime, fresh=fresh)
        result = validated.train(make)
        peak, ranks = runtime.budget.peak_bytes, {}
        if not group.alone:
            ranks = {"world": group.world, "groups": config.groups, "peak_host_bytes": group.gather(peak)}
            peak = max(group.machine_sums(peak))
        return EmbedReport(
            buckets.partitions,
            min(config.buffer, buckets.partitions),
            result.resident,
            result.resumed_epoch,
            [{**asdict(record), "edges_per_s": record.edges_per_s} for record in result.records],
            peak,
            dict(runtime.device_peaks),
            ranks,
            [asdict(ranking) for ranking in validated.rankings],
            None if validated.best is None else validated.best.epoch,
            validated.keeps_best,
            validated.stops and len(result.records) < config.epochs,
            run,
        )


def _begin_together(config: EmbedConfig, buckets: Buckets, group: Group, other: bool) -> None:
    """Begins the training of several processes.

    Raises:
        ArgumentError: They do not train the same, or ``other``: it is one that only a single process can do.
    """
    if other:
        raise ArgumentError(
            "each of several processes holds --buffer partitions of its group, and moves them by the engine: "
            "leave --resident and --io gpu out"
        )
    require_same(config, buckets, group)
    torch.set_num_threads(usual_threads(group) or torch.get_num_threads())


def _ranking(run: Path, buckets: Buckets, config: EmbedConfig, group: Group) -> RankingNeeds:
    """Returns what ranking the validation edges holds; ArgumentError where they cannot be ranked while training."""
    evaluation.held_out(buckets, "valid")
    if not all(group.gather(group.sees_folder_of_first(run))):
        raise ArgumentError(
            f"the machines do not see the same folder {run}, so that none has all vectors to rank edges by: name one "
            "on a file system that they share, or leave --evaluate-every and --patience out"
        )
    return RankingNeeds(buckets, config, group)


@shows_progress
def embed_eval(
    run: EmbeddingRun,
    split: str = "test",
    *,
    filtered: bool = True,
    candidates: int | None = None,
    by_degree: bool = False,
    seed: int = 0,
    epoch: str = "best",
    memory: Size | None = None,
    progress: Progress | bool = True,
) -> evaluation.Metrics:
    """Ranks held-out edges: mean reciprocal rank, mean rank, Hits@1, 3 and 10.

    Processes that torchrun has started each rank a part of the edges, and all of them return the same.

    Args:
        run: Embedding run with a training.
        split: ``valid`` (or ``val``) or ``test``.
        filtered: Whether candidates that make another known edge are left out.
        candidates: Number of nodes to rank among, drawn with replacement, the same for all edges; None: all nodes.
        by_degree: Whether they are drawn in proportion to degree instead of uniformly.
        seed: Number that decides which are drawn.
        epoch: ``best``: the vectors of the epoch whose validation edges ranked best, where they were ranked while
            training, else of the last; or ``last``.
        memory: Bytes, or text such as ``"4GiB"``, that evaluating may take.
        progress: Whether to show progress (:mod:`outcrop.runtime.progress`), or a receiver of it.

    Raises:
        ArgumentError: There are no edges in ``split``, or the run has not been trained.
        BudgetError: ``memory`` is too small.
    """
    run = _folder(run)
    with joined("cpu") as group, ExitStack() as opened:
        limit = None if memory is None else parse_size(memory)

        def needs() -> Callable[[int], bool]:
            with _trained(run, epoch, None, None) as trained:
                return RankingNeeds(
                    trained.buckets, trained.config, group, evaluation.held_out(trained.buckets, split),
                    filtered=filtered, by_degree=by_degree and candidates is not None,
                ).fits  # fmt: skip

        opened.enter_context(naming_smallest(limit, needs, "rank these edges", _FEWER_ROWS))
        own = None if limit is None else limit // group.local_world
        told = progress if group.leads else None
        with group.together("opening the vectors", patient=True):
            trained = opened.enter_context(_trained(run, epoch, own, told, usual_threads(group)))
        if len({*group.gather((trained.table.folder.name, trained.at))}) > 1:
            raise replaced(run)
        trained.runtime.group = group
        return evaluation.evaluate(
            trained, split, filtered=filtered, candidates=candidates, by_degree=by_degree, seed=seed
        )


@shows_progress
def embed_export(
    run: EmbeddingRun,
    format: str = "npy",
    out: str | Path | None = None,
    *,
    epoch: str = "best",
    memory: Size | None = None,
    progress: Progress | bool = True,
) -> list[Path]:
    """Writes vectors, with the names of the source, for other programs (:mod:`outcrop.embed.export`).

    Args:
        run: Embedding run with a training.
        format: ``npy``, ``parquet``, ``safetensors``, or ``features``: a table that an import of the graph takes.
        out: Folder for the files; None: ``run/export``.
        epoch: Whose vectors, ``best`` or ``last``, as in :func:`embed_eval`.
        memory: Bytes, or text such as ``"4GiB"``, that exporting may take.
        progress: Whether to show progress (:mod:`outcrop.runtime.progress`), or a receiver of it.

    Returns:
        Paths of the files.

    Raises:
        ArgumentError, BudgetError, IoError: See the messages.
    """
    run = _folder(run)
    with _trained(run, epoch, memory, progress) as trained:
        return exporting.export(trained, format, run / "export" if out is None else Path(out))


def embed_neighbors(
    run: EmbeddingRun,
    name: str | int,
    *,
    count: int = 10,
    metric: str = "cosine",
    epoch: str = "best",
    memory: Size | None = None,
) -> list[tuple[int, str | None, float]]:
    """Finds the nodes whose vectors are nearest to that of node ``name``: a look at what was learned.

    Args:
        run: Embedding run with a training.
        name: Name of a node, or its id as an integer; as text, too, where nodes have no names.
        count: Number of nodes to find; ``name`` itself is left out.
        metric: ``cosine``, ``dot`` or ``euclidean``.
        epoch: Whose vectors, ``best`` or ``last``, as in :func:`embed_eval`.
        memory: Bytes, or text such as ``"4GiB"``, that looking may take.

    Returns:
        (id, name or None, distance) of each, nearest first: one minus cosine, one minus the product, or the squared
        distance.

    Raises:
        ArgumentError: There is no such node or metric.
    """
    with _trained(_folder(run), epoch, memory, None) as trained:
        return nearest.neighbors(trained, nearest.find_node(trained, name), count, metric)


embed_neighbours = embed_neighbors
"""The same, as it was spelled first."""


@contextmanager
def _trained(
    run: Path, epoch: str, memory: Size | None, progress: Progress | bool | None, threads: int = 0
) -> Iterator[EmbeddingModel]:
    with Runtime(memory, progress=progress, threads=threads) as runtime:
        trained = open_model(run, runtime, epoch)
        try:
            yield trained
        finally:
            trained.close()
