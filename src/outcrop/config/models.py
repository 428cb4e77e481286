"""What is trained: which models there are, and how large they are. The only place that says so."""

from __future__ import annotations

from dataclasses import dataclass

from outcrop.config.declared import check_types
from outcrop.config.sizes import out_of_range
from outcrop.errors import ArgumentError

MODELS = ("sage", "gat", "gcn")
HEADS = 4  # attention heads of every layer of gat but the last, unless another number is named
_WIDTH, _HEAD_WIDTH = 256, 32  # between layers: of a model; of a head of gat


def hidden_width(model: str, hidden: int | None = None, heads: int = HEADS) -> int:
    """Returns the width between the layers of ``model``: ``hidden``, or where that is None what the model has then.

    Args:
        model: One of :data:`MODELS`.
        hidden: Width that the user named, for ``gat`` of all heads together.
        heads: Attention heads, which only ``gat`` has.
    """
    if hidden is not None:
        return hidden
    return _HEAD_WIDTH * heads if model == "gat" else _WIDTH


def wants_degrees(model: str, sampler: str = "neighbor") -> bool:
    """Tells whether batches for ``model`` record degrees within the whole graph, by which GCN normalises.

    Args:
        model: One of :data:`MODELS`.
        sampler: What draws them. GCN takes ShaDow's subgraphs for graphs of their own, with degrees of their own.
    """
    return model == "gcn" and sampler != "shadow"


@dataclass(frozen=True)
class ModelConfig:
    """Describes a graph neural network.

    Attributes:
        name: ``sage``, ``gat`` or ``gcn``.
        hidden: Width between layers, of gat all heads together; None: 256, and 128 of gat.
        layers: Layers; None: as many as the batches have hops, the only number that sampled batches allow. ShaDow's
            take any number.
        heads: Attention heads of gat.
        dropout: Share of hidden values that are zeroed between layers, from 0 to below 1.
    """

    name: str = "sage"
    hidden: int | None = None
    layers: int | None = None
    heads: int = HEADS
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        problems = []
        if self.name not in MODELS:
            problems.append(f"model {self.name!r} is unknown; known: {', '.join(MODELS)}")
        problems += out_of_range(hidden=self.hidden, layers=self.layers, heads=self.heads)
        if self.name == "gat" and self.hidden is not None and self.heads >= 1 and self.hidden % self.heads:
            problems.append(f"hidden {self.hidden} is no multiple of heads {self.heads}")
        if not 0.0 <= self.dropout < 1.0:
            problems.append(f"dropout {self.dropout} is not in [0, 1)")
        if problems:
            raise ArgumentError("; ".join(problems))
