"""What a checkpoint is called, and what it says about itself; :mod:`outcrop.nn.checkpoint` reads and writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LAST, BEST = "last.safetensors", "best.safetensors"


@dataclass(frozen=True)
class Meta:
    """Holds what a checkpoint says about itself.

    Attributes:
        epochs_done: Finished epochs.
        best_epoch: The epoch of the best model, counted from 0.
        config: Fields of the training configuration, with in_dim and num_classes; of a model of a graph with node and
            edge types ``schema`` (:meth:`outcrop.nn.schema.GraphSchema.as_stored`) instead of in_dim; of one that takes
            features of edges ``edge_dim``, of one that takes their weights ``edge_weights``, too.
        inputs: What was trained on: digest of the graph, fields of the sampling (:mod:`outcrop.store.identity`).
        history: One record per finished epoch.
        batch_losses: Loss of every batch, where they were asked for.
        updates: Updates of the parameters, in all epochs and batches until now.
        partial: State of an epoch that was begun: ``batch``, the first that is still to be trained, and sums so far.
            Empty between epochs.
        processors: What computed it last: of each kind of processor and number of threads among the processes a digest
            of the kind and the number. Sums are rounded by these; empty where that is not known.
    """

    epochs_done: int
    best_epoch: int
    config: dict[str, Any]
    inputs: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    batch_losses: list[float] = field(default_factory=list)
    updates: int = 0
    partial: dict[str, Any] = field(default_factory=dict)
    processors: list[list[Any]] = field(default_factory=list)

    @property
    def epochs_begun(self) -> int:
        return self.epochs_done + bool(self.partial)
