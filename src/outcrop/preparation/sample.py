"""Sample: draw the mini-batches of several epochs, and of the evaluation splits, ahead of training.

Source: DiskGNN section 3 (offline sampling). The sampler is a black box: batches may come from elsewhere too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.config import SampleConfig
from outcrop.errors import ArgumentError
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.external import ExternalBatches
from outcrop.sampling.sampler import BatchSampler, wants_weight_sums
from outcrop.sampling.seeds import seed_labels
from outcrop.sampling.topology import Topology, load_topology
from outcrop.sampling.typed import wants_distinct_edges
from outcrop.store import manifest as manifests
from outcrop.store import record
from outcrop.store.arrays import ArrayWriter, write_buffer_bytes
from outcrop.store.batches import BatchGraph
from outcrop.store.graph import Graph
from outcrop.store.manifest import Manifest
from outcrop.store.parts import attributes_of, names_of
from outcrop.store.samples import FORMAT, version_of
from outcrop.store.seed_nodes import require_training_nodes

_AT_ONCE = 1024  # nobody waits for the first batch
Draw = Callable[[str, int], Iterator[BatchGraph]]


@dataclass(frozen=True)
class BatchOrigin:
    """Says where the batches that are written come from.

    Attributes:
        topology: Where neighbour lists are read from, for batches that are drawn.
        external: Batches from elsewhere, in place of those; the sampler is called ``foreign`` then.
        key: Name of what ``external`` gives; None: nobody can tell whether it gives the same again.
    """

    topology: str = "automatic"
    external: ExternalBatches | None = None
    key: str | None = None


def expected(
    graph: Graph, config: SampleConfig, batches_key: str | None = None, parts: int = 1
) -> tuple[dict, dict[str, str]]:
    """Returns config and inputs of the artifact that :func:`sample` would write: equal means nothing to do."""
    inputs = {"graph": graph.digest()}
    if batches_key is not None:
        inputs["batches"] = batches_key
    if parts > 1:
        inputs["parts"] = str(parts)
    return manifests.plain(config.as_stored()), inputs


def sample(
    graph: Graph,
    config: SampleConfig,
    out: Path,
    runtime: Runtime,
    origin: BatchOrigin = BatchOrigin(),
    parts: int = 1,
) -> Manifest:
    """Writes the batches of ``config.epochs`` training epochs, or of a part of each, and of the evaluation splits to
    ``out``.

    Args:
        origin: What draws the batches, or has them.
        parts: Files that they lie in (store/parts.py).

    Raises:
        ArgumentError: The graph has no training nodes or edges, an epoch has not the part of it that ``config`` names,
            or a batch from elsewhere is none.
        BudgetError: One batch does not fit in its share of the budget.
    """
    external, graph = origin.external, graph.with_edge_rows(config.edge_rows)
    if external is None:
        sampler = BatchSampler(graph, config, runtime, topology=origin.topology, at_once=_AT_ONCE)
        counts = {split: sampler.num_batches(split) for split in config.splits}
        if "train" in counts and not counts["train"]:
            if config.task == "node":
                require_training_nodes(graph)
            raise ArgumentError(
                f"{graph.path} has no edges to train on: import it again with a train split, or "
                "with --train-fraction 0.6 --overwrite (ImportConfig(train_fraction=0.6), overwrite=True)"
            )
        splits = [s for s in config.splits if counts[s]]
        numbers = {split: config.batches_of(split, counts[split]) for split in splits}
        draw = _numbered(sampler, numbers)
        total = sum(len(numbers[s]) * (config.epochs if s == "train" else 1) for s in splits)
    else:
        topology = load_topology(graph, runtime, placement=origin.topology) if config.degrees else None
        draw, splits, total = _with_labels(graph, external, topology, runtime), list(external.splits), 0
    runtime.progress.start("sample", total, "batches")
    with manifests.publishing(out) as folder:
        distinct = wants_distinct_edges(config, graph)
        writer = _Writer(graph, runtime, folder, len(config.fanouts), parts, config.edge_ids, distinct)
        groups = {s: writer.split(s, config.epochs if s == "train" else 1, draw) for s in splits}
        attributes = {
            "groups": groups,
            "id_bytes": writer.id_bytes,
            "hops": len(config.fanouts),
            "degrees": config.degrees,
            **_of_weights(config),
            **writer.types(),
            **attributes_of(parts),
        }
        manifest = Manifest(
            FORMAT,
            version_of(writer.is_typed, parts, distinct),
            writer.finish(),
            attributes,
            *expected(graph, config, origin.key, parts),
        )
        graph.require_unchanged()
        manifests.write(folder, manifest)
    runtime.progress.finish("sample")
    return manifest


def _of_weights(config: SampleConfig) -> dict[str, bool]:
    """Returns the attributes that say what records have of weights of edges; none where they have nothing."""
    if not config.edge_weights:
        return {}
    return {"edge_weights": True, "weight_sums": wants_weight_sums(config)}


def rehearse(
    graph: Graph, config: SampleConfig, runtime: Runtime, topology: str = "automatic", parts: int = 1
) -> None:
    """Takes the memory that :func:`sample` takes, in a rehearsal.

    Raises:
        BudgetError: It is more than there is.
    """
    sampler = BatchSampler(graph, config, runtime, topology=topology, at_once=_AT_ONCE)
    with runtime.budget.reserve("write-buffer", parts * _buffer_bytes(runtime, parts)):
        del sampler


def _buffer_bytes(runtime: Runtime, parts: int) -> int:
    """Counts the bytes that each of ``parts`` files that are written at a time has for what is written next."""
    return max(write_buffer_bytes(runtime.budget.limit_bytes) // parts // PAGE_BYTES, 1) * PAGE_BYTES


def _numbered(sampler: BatchSampler, numbers: Mapping[str, range]) -> Draw:
    """Returns epochs of the pool, by their number in the training: the batches ``numbers`` of each split."""
    config = sampler.config
    return lambda split, at: sampler.epoch(
        split, config.epoch_number(split, config.first_epoch + at), numbers[split]
    )


def _with_labels(
    graph: Graph, external: ExternalBatches, topology: Topology | None, runtime: Runtime
) -> Draw:
    """Returns batches from elsewhere with what they lack: labels of the graph, and degrees where they are asked for."""
    labels = graph.array(runtime, "labels").memmap(check=True) if graph.has("labels") else None

    def draw(split: str, epoch: int) -> Iterator[BatchGraph]:
        for batch in external.epoch(split, epoch):
            added: dict[str, Any] = {}
            if len(batch.labels) != batch.num_seeds:
                added["labels"] = seed_labels(graph, labels, batch.seeds)
            if topology is not None:
                added["degree"] = topology.degrees(batch.n_id)
            yield replace(batch, **added)

    return draw


@dataclass
class _Writer:
    """Holds the arrays of the artifact while they are written."""

    graph: Graph
    runtime: Runtime
    folder: Path
    hops: int
    parts: int
    positions: bool  # whether those of edges are recorded of a graph without types, too
    distinct: bool  # whether records say which row each edge has
    offsets: list[int] = field(default_factory=lambda: [0])
    shape: list[list[int]] = field(default_factory=list)
    label_edges: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        graph, counts = self.graph, [nodes.num_nodes for nodes in self.graph.node_types]
        self.id_bytes = record.id_bytes_for(max(counts))
        several = max(len(counts), len(graph.edge_types)) > 1
        self.is_typed = several or graph.has_edge_rows or self.positions
        self._positions, self._seed_type = [False] * len(graph.edge_types), 0
        size = _buffer_bytes(self.runtime, self.parts)
        self._records = {
            name: ArrayWriter(self.runtime, self.folder, name, "uint8", buffer_bytes=size)
            for name in names_of("batches", self.parts)
        }
        self._in_turn = list(self._records.values())

    def split(self, split: str, epochs: int, draw: Draw) -> dict[str, int]:
        """Writes all epochs of one split; returns its group.

        Raises:
            ArgumentError: Epochs differ in their number of batches.
        """
        first, per_epoch = len(self.shape), 0
        for epoch in range(epochs):
            before = len(self.shape)
            with self.runtime.trace.span("sample-epoch", split=split, epoch=epoch):
                for number, batch in enumerate(draw(split, epoch)):
                    self._add(batch, self._in_turn[number % self.parts])
            found = len(self.shape) - before
            per_epoch = per_epoch or found
            if found != per_epoch or not found:
                raise ArgumentError(
                    f"epoch {epoch} of split {split!r} has {found} batches, the first has {per_epoch}: every epoch "
                    "needs as many. A generator gives its batches once: pass a function of the epoch that makes one"
                )
        return {"first": first, "epochs": epochs, "per_epoch": per_epoch}

    def _add(self, batch: BatchGraph, records: ArrayWriter) -> None:
        blob = record.encode(batch, (), self.id_bytes)
        records.append(blob)
        self.offsets.append(self.offsets[-1] + len(blob))
        assert self.is_typed or batch.edges[0].positions is None, "this version has no place for positions"
        shape = [count for nodes in batch.nodes for count in nodes.per_hop]
        shape += [edges.num_rows for edges in batch.edges] + [len(edges.col) for edges in batch.edges]
        if self.is_typed:
            shape += [count for edges in batch.edges for count in edges.per_hop]
            if self.distinct:
                of_rows = [
                    edges.per_hop if edges.distinct is None else edges.distinct.per_hop
                    for edges in batch.edges
                ]
                shape += [count for per_hop in of_rows for count in per_hop]
            there = [edges.positions is not None for edges in batch.edges]
            self._positions = [a or b for a, b in zip(self._positions, there, strict=True)]
            self._seed_type = batch.seed_type
        self.shape.append(shape)
        self.label_edges.append(batch.num_label_edges)
        self.runtime.progress.advance("sample", 1)

    def types(self) -> dict[str, Any]:
        """Returns the attributes that say what types the batches have."""
        counts = [nodes.num_nodes for nodes in self.graph.node_types]
        if not self.is_typed:
            return {"num_nodes": counts[0]}
        edge_types = [
            {
                "source": edges.source.number,
                "target": edges.target.number,
                "num_edges": edges.num_edges,
                "positions": positions,
            }
            for edges, positions in zip(self.graph.edge_types, self._positions, strict=True)
        ]
        return {"num_nodes": counts, "edge_types": edge_types, "seed_type": self._seed_type}

    def finish(self) -> dict[str, Any]:
        arrays = {name: records.finish() for name, records in self._records.items()}
        tables: dict[str, list] = {"offsets": self.offsets, "shape": self.shape}
        if any(self.label_edges):
            tables["label_edges"] = self.label_edges
        for name, values in tables.items():
            table = ArrayWriter(self.runtime, self.folder, name, "int64", np.shape(values)[1:])
            table.append(np.asarray(values, "<i8"))
            arrays[name] = table.finish()
        return arrays
