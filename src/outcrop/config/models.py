"""What is trained: which models there are, and how large they are. The only place that says so."""

from __future__ import annotations

from dataclasses import dataclass

from outcrop.config.declared import check_types
from outcrop.config.sizes import out_of_range
from outcrop.errors import ArgumentError

MODELS = ("sage", "gat", "gcn")
EDGE_ROW_MODELS = ("transformer", "gine")  # likewise of graphs without types; they take features of edges
# Of graphs with node types and edge types.
TYPED_MODELS = ("rgcn", "rsage", "rgat", "hgt", "rtransformer", "rgine")
HEADS = 4  # attention heads, unless another number is named; the last layer of gat and rgat has one
_WITH_HEADS = ("gat", "transformer", "rgat", "hgt", "rtransformer")
_WITH_EDGE_ROWS = (
    "gat",
    *EDGE_ROW_MODELS,
    "rgat",
    "rtransformer",
    "rgine",
)  # models that take features of edges, where there are any
_WITH_EDGE_WEIGHTS = ("gcn",)  # models that take weights of edges, where they are asked for
_EDGE_ROWS_NEEDED = ("gine",)  # and those that cannot do without
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


def edge_rows_problem(model: str, given: bool) -> str | None:
    """Says why ``model`` cannot do with features of edges, or without these; None: it can."""
    if given and model not in _WITH_EDGE_ROWS:
        return f"model {model!r} takes no features of edges: choose {', '.join(_WITH_EDGE_ROWS)}"
    if not given and model in _EDGE_ROWS_NEEDED:
        return f"model {model!r} needs features of edges, and there are none: choose sage, gat, gcn or transformer"
    return None


def wants_edge_rows(model: str, there: bool) -> bool:
    """Tells whether batches for ``model`` have features of their edges.

    Args:
        there: Whether edges of the graph have features.
    """
    return there and model in _WITH_EDGE_ROWS


def edge_weights_problem(model: str, given: bool) -> str | None:
    """Says why ``model`` cannot do with weights of edges; None: it can, or there are none."""
    if given and model not in _WITH_EDGE_WEIGHTS:
        return (
            f"model {model!r} takes no edge weights (--edge-weights): choose {', '.join(_WITH_EDGE_WEIGHTS)}"
        )
    return None


def unknown_model(model: str) -> str:
    """Says that there is no ``model``, and which there are."""
    return (
        f"model {model!r} is unknown; known: {', '.join((*MODELS, *EDGE_ROW_MODELS))}; of graphs with node and edge "
        f"types: {', '.join(TYPED_MODELS)}"
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
        name: ``sage``, ``gat``, ``gcn``, ``transformer`` or ``gine``; of graphs with node and edge types ``rgcn``,
            ``rsage``, ``rgat``, ``hgt``, ``rtransformer`` or ``rgine``.
        hidden: Width between layers, of all heads together; None: 256, and 32 per head of models that have heads.
        layers: Layers; None: as many as the batches have hops, the only number that sampled batches allow. ShaDow's
            take any number.
        heads: Attention heads of gat, transformer, rgat, hgt and rtransformer.
        dropout: Share of hidden values that are zeroed between layers, from 0 to below 1.
        no_rows: What nodes have whose type has no features: ``random:64``, 64 random values that follow from the node
            alone and are stored nowhere; ``learned:64``, 64 values that are learned, at first the same, which take 768
            bytes of memory for each node. None: such types are refused.
        edge_weights: Edges count by the weights that the graph has of them, as in ``GCNConv(x, edge_index,
            edge_weight)``; of gcn. Without it, gcn counts all edges alike, whatever they weigh.
    """

    name: str = "sage"
    hidden: int | None = None
    layers: int | None = None
    heads: int = HEADS
    dropout: float = 0.0
    no_rows: str | None = None
    edge_weights: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        problems = []
        if self.name not in (*MODELS, *EDGE_ROW_MODELS, *TYPED_MODELS):
            problems.append(unknown_model(self.name))
        problems += out_of_range(hidden=self.hidden, layers=self.layers, heads=self.heads)
        if problem := heads_problem(self.name, self.hidden, self.heads):
            problems.append(problem)
        if problem := edge_weights_problem(self.name, self.edge_weights):
            problems.append(problem)
        if not 0.0 <= self.dropout < 1.0:
            problems.append(f"dropout {self.dropout} is not in [0, 1)")
        if problems:
            raise ArgumentError("; ".join(problems))
