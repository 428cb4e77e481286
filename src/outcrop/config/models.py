"""What is trained: which models there are, and how large they are. The only place that says so."""

from __future__ import annotations

from dataclasses import dataclass

from outcrop.config.declared import check_types
from outcrop.config.sizes import out_of_range
from outcrop.errors import ArgumentError

MODELS = ("sage", "gat", "gcn")
TYPED_MODELS = ("rgcn", "rsage", "rgat", "hgt")  # of graphs with node types and edge types
HEADS = 4  # attention heads, unless another number is named; the last layer of gat and rgat has one
_WITH_HEADS = ("gat", "rgat", "hgt")
_WIDTH, _HEAD_WIDTH = 256, 32  # between layers: of a model; of a head


def hidden_width(model: str, hidden: int | None = None, heads: int = HEADS) -> int:
    """Returns the width between the layers of ``model``: ``hidden``, or where that is None what the model has then.

    Args:
        model: One of :data:`MODELS` or :data:`TYPED_MODELS`.
        hidden: Width that the user named, of all heads together.
        heads: Attention heads, which only ``gat``, ``rgat`` and ``hgt`` have.
    """
    if hidden is not None:
        return hidden
    return _HEAD_WIDTH * heads if model in _WITH_HEADS else _WIDTH


def heads_problem(model: str, hidden: int | None, heads: int) -> str | None:
    """Says why heads cannot share the width between the layers of ``model``; None: they can."""
    if model in _WITH_HEADS and hidden is not None and heads >= 1 and hidden % heads:
        return f"hidden {hidden} is no multiple of heads {heads}"
    return None


def unknown_model(model: str) -> str:
    """Says that there is no ``model``, and which there are."""
    return (
        f"model {model!r} is unknown; known: {', '.join(MODELS)}; of graphs with node and edge types: "
        f"{', '.join(TYPED_MODELS)}"
    )


def require_untyped(model: str, doing: str) -> None:
    """Raises ArgumentError where ``model`` is one of :data:`TYPED_MODELS`.

    Args:
        doing: What does not know graphs with node and edge types, such as ``advise``.
    """
    if model in TYPED_MODELS:
        raise ArgumentError(
            f"model {model!r} computes graphs with node and edge types, which {doing} does not know yet: choose "
            f"{', '.join(MODELS[:-1])} or {MODELS[-1]}"
        )


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
        name: ``sage``, ``gat`` or ``gcn``; of graphs with node and edge types ``rgcn``, ``rsage``, ``rgat`` or ``hgt``.
        hidden: Width between layers, of all heads together; None: 256, and 32 per head of models that have heads.
        layers: Layers; None: as many as the batches have hops, the only number that sampled batches allow. ShaDow's
            take any number.
        heads: Attention heads of gat, rgat and hgt.
        dropout: Share of hidden values that are zeroed between layers, from 0 to below 1.
        no_rows: What nodes have whose type has no features: ``random:64``, 64 random values that follow from the node
            alone and are stored nowhere. None: such types are refused.
    """

    name: str = "sage"
    hidden: int | None = None
    layers: int | None = None
    heads: int = HEADS
    dropout: float = 0.0
    no_rows: str | None = None

    def __post_init__(self) -> None:
        check_types(self)
        problems = []
        if self.name not in (*MODELS, *TYPED_MODELS):
            problems.append(unknown_model(self.name))
        problems += out_of_range(hidden=self.hidden, layers=self.layers, heads=self.heads)
        if problem := heads_problem(self.name, self.hidden, self.heads):
            problems.append(problem)
        if not 0.0 <= self.dropout < 1.0:
            problems.append(f"dropout {self.dropout} is not in [0, 1)")
        if problems:
            raise ArgumentError("; ".join(problems))
