"""Graph embeddings: prepare, train, evaluate, export, look up neighbours. What ``outcrop embed`` does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from outcrop.config import BucketConfig, DeviceConfig, EmbedConfig, Size, format_bytes, parse_size
from outcrop.embed import evaluate as evaluation
from outcrop.embed import export as exporting
from outcrop.embed import neighbours as nearest
from outcrop.embed.buckets import Buckets, open_buckets
from outcrop.embed.fit import Fit
from outcrop.embed.prepare import prepare as prepare_buckets
from outcrop.embed.sizing import fewest_partitions
from outcrop.embed.sources import open_source
from outcrop.embed.trained import Trained, open_trained
from outcrop.runtime import Progress, Runtime
from outcrop.store.lock import only_process_in


@dataclass
class EmbedReport:
    """What a training did.

    Attributes:
        resident: All partitions were in memory.
        resumed_epoch: The epoch at which a checkpoint was gone on from; None from the start.
        waits: Seconds that training waited for each swap, by epoch.
    """

    partitions: int
    buffer: int
    resident: bool
    resumed_epoch: int | None
    epochs: list[dict[str, Any]] = field(default_factory=list)
    peak_host_bytes: int = 0
    peak_device_by_tag: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        held = "all" if self.resident else f"{self.buffer} of {self.partitions}"
        loss = f", last loss {self.epochs[-1]['loss']:.4f}" if self.epochs else ""
        return (
            f"EmbedReport({len(self.epochs)} epochs{loss}, partitions in memory: {held}, "
            f"peak memory {format_bytes(self.peak_host_bytes)})"
        )

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def embed_prepare(
    source: str | Path,
    run: str | Path,
    *,
    partitions: int | None = None,
    slices: int | None = None,
    dim: int = 100,
    numbering: str = "random",
    valid_fraction: float = 0.0,
    test_fraction: float = 0.0,
    seed: int = 0,
    memory: Size | None = None,
    progress: Progress | None = None,
) -> Buckets:
    """Sorts the edges of an imported graph or knowledge graph into buckets (:mod:`outcrop.embed.prepare`).

    Args:
        partitions: None: as few as let vectors of ``dim`` floats be trained in ``memory`` with the defaults of
            :class:`outcrop.config.EmbedConfig`; one without a budget.
        slices: Of each partition; see :class:`outcrop.config.BucketConfig`.
        numbering: How nodes are dealt out to partitions: ``random``, ``id`` or ``degree``.
        valid_fraction, test_fraction: Of the edges, held out where the source has no such splits.

    Raises:
        ArgumentError, BudgetError, FormatError: See the messages.
    """
    with Runtime(memory, progress=progress) as runtime:
        if partitions is None:
            partitions = 1 if memory is None else _partitions(source, dim, runtime)
        config = BucketConfig(partitions, numbering, valid_fraction, test_fraction, seed, slices)  # type: ignore[arg-type]
        return prepare_buckets(source, run, config, runtime)


def _partitions(source: str | Path, dim: int, runtime: Runtime) -> int:
    edges, config = open_source(source), EmbedConfig(dim=dim)
    return fewest_partitions(
        edges.num_nodes, edges.count("train"), edges.num_relations, config, runtime.budget.free_bytes
    )


def embed_train(
    run: str | Path,
    config: EmbedConfig | None = None,
    *,
    memory: Size | None = None,
    resident: bool | None = None,
    fresh: bool = False,
    checkpoint_seconds: float = 300.0,
    prefetch: bool = True,
    device: str = "cpu",
    gpu_memory: Size = 0,
    trace_path: Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> EmbedReport:
    """Trains embeddings on prepared buckets; goes on from the checkpoint of ``run`` where it holds one.

    Args:
        config, options: :class:`outcrop.config.EmbedConfig`, or its fields.
        resident: All partitions in memory, or ``config.buffer`` of them; None: all where ``memory`` has room.
        fresh: Start over.
        prefetch: Swap while training goes on.
        device: Where the partitions in memory lie, and training runs. What a GPU computes is that of the CPU as far as
            rounding goes; either goes on from a checkpoint of the other.
        gpu_memory: Of the device, for partitions and batches; 0: what is free there.

    Raises:
        ArgumentError: The checkpoint is of another configuration.
        IoError: Another process prepares or trains in ``run``, or the system refuses a file.
        BudgetError, NumericError, ChecksumError: See the messages.
    """
    config = EmbedConfig(**options) if config is None else config
    buckets = open_buckets(run)
    with only_process_in(Path(run)), Runtime(memory, trace_path=trace_path, progress=progress) as runtime:
        fit = Fit(
            buckets, Path(run), config, runtime, resident=resident, fresh=fresh, checkpoint_seconds=checkpoint_seconds,
            prefetch=prefetch, to=DeviceConfig(device, parse_size(gpu_memory)),
        )  # fmt: skip
        try:
            result = fit.run()
        finally:
            fit.close()
        return EmbedReport(
            buckets.partitions,
            min(config.buffer, buckets.partitions),
            result.resident,
            result.resumed_epoch,
            [{**asdict(record), "edges_per_s": record.edges_per_s} for record in result.records],
            runtime.budget.peak_bytes,
            dict(runtime.device_peaks),
        )


def embed_eval(
    run: str | Path,
    split: str = "test",
    *,
    filtered: bool = True,
    candidates: int | None = None,
    by_degree: bool = False,
    seed: int = 0,
    memory: Size | None = None,
    progress: Progress | None = None,
) -> evaluation.Metrics:
    """Ranks held-out edges (:func:`outcrop.embed.evaluate.evaluate`)."""
    with _trained(run, memory, progress) as trained:
        return evaluation.evaluate(
            trained, split, filtered=filtered, candidates=candidates, by_degree=by_degree, seed=seed
        )


def embed_export(
    run: str | Path,
    format: str = "npy",
    out: str | Path | None = None,
    *,
    memory: Size | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Writes vectors and names to the folder ``out``, or ``run/export`` (:mod:`outcrop.embed.export`); the files."""
    with _trained(run, memory, progress) as trained:
        return exporting.export(trained, format, Path(run) / "export" if out is None else Path(out))


def embed_neighbours(
    run: str | Path, name: str, *, count: int = 10, metric: str = "cosine", memory: Size | None = None
) -> list[tuple[int, str | None, float]]:
    """(id, name, distance) of the nodes nearest to node ``name`` (:func:`outcrop.embed.neighbours.neighbours`)."""
    with _trained(run, memory, None) as trained:
        return nearest.neighbours(trained, nearest.find_node(trained, name), count, metric)


@contextmanager
def _trained(run: str | Path, memory: Size | None, progress: Progress | None) -> Iterator[Trained]:
    with Runtime(memory, progress=progress) as runtime:
        trained = open_trained(run, runtime)
        try:
            yield trained
        finally:
            trained.close()
