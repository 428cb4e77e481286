"""Which models there are, and how wide they are unless a width is named. The only place that says so."""

from __future__ import annotations

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
