"""What a training learns: the model, how it is trained, on which features and labels, from which batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from outcrop.config import ModelConfig, TrainConfig
from outcrop.nn.schema import GraphSchema, learned_bytes
from outcrop.store import identity
from outcrop.training.objectives import CLASSES, Objective


@dataclass(frozen=True)
class LearningTask:
    """Says what is learned.

    Attributes:
        in_dim: Width of the features, of a graph without types.
        num_classes: Classes, or columns of targets.
        objective: Loss and metric.
        inputs: What the batches come from, kept in checkpoints and compared when going on
            (:mod:`outcrop.store.identity`).
        schema: What the model needs to know of a graph with types; None: it has none.
        edge_dim: Width of the features of edges, of a graph without types; None: the model takes none.
    """

    model: ModelConfig
    training: TrainConfig
    in_dim: int
    num_classes: int
    objective: Objective = CLASSES
    inputs: dict[str, Any] = field(default_factory=dict)
    schema: GraphSchema | None = None
    edge_dim: int | None = None

    @property
    def model_inputs(self) -> int | tuple[int, int] | GraphSchema:
        """Returns what the model is built for."""
        if self.schema is not None:
            return self.schema
        return self.in_dim if self.edge_dim is None else (self.in_dim, self.edge_dim)

    @property
    def learned_bytes(self) -> int:
        """Counts the bytes of rows of nodes that are learned with the model, beside what loading takes."""
        return learned_bytes(self.schema)

    @property
    def identity(self) -> dict[str, Any]:
        """Returns what the parts of one training have in common, beside their inputs."""
        fields = {
            **({"in_dim": self.in_dim} if self.schema is None else {"schema": self.schema.as_stored()}),
            "num_classes": self.num_classes,
            **identity.training_fields(self.model, self.training),
        }
        if self.edge_dim is not None:
            fields["edge_dim"] = self.edge_dim
        if self.objective.kind != "class":
            fields["label_kind"] = self.objective.kind
        if self.training.schedule == "cosine":  # ends with the training
            fields["epochs"] = self.training.epochs
        return fields
