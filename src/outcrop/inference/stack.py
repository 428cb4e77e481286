"""Recognises models that are a stack of layers Outcrop can compute one after the other, over all nodes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from outcrop.nn.convs import GAT, GCN, GATConv, GCNConv, GraphSAGE, SAGEConv
from outcrop.nn.hgt import Hgt
from outcrop.nn.models import Model
from outcrop.nn.typed import TypedModel
from outcrop.nn.typed_models import Rgat, Rgcn, Rgine, Rsage, Rtransformer

_TYPED_MODELS = (Rsage, Rgcn, Rgat, Hgt, Rtransformer, Rgine)


class Stack(Model):
    """Computes a stack of layers with ``activation`` between them; no dropout."""

    def __init__(self, convs: Sequence[nn.Module], activation: nn.Module):
        super().__init__(convs)
        self.activation = activation

    def activate(self, index: int, out: Tensor) -> Tensor:
        return out if index == self.num_layers - 1 else self.activation(out)


def as_stack(module: nn.Module) -> tuple[Model | TypedModel | None, str]:
    """Returns a copy of ``module`` that can be computed layer by layer, in eval mode, or None and the reason.

    Known are Outcrop's own models and torch_geometric's ``GraphSAGE``, ``GCN`` and ``GAT`` (themselves, no subclass:
    what that computes nobody knows) without normalisation layers and jumping knowledge. The copy equals
    ``module(x, edge_index)`` on the whole graph.
    """
    if type(module) in (Model, *_TYPED_MODELS):
        assert isinstance(module, Model | TypedModel)
        return copy.deepcopy(module).eval(), ""
    if type(module) not in (GraphSAGE, GCN, GAT):
        return (
            None,
            f"{type(module).__name__} is no GraphSAGE, GCN or GAT of torch_geometric, nor a model of Outcrop",
        )
    basic: Any = module
    if basic.jk_mode is not None or basic.norm is not None:
        return None, "it has normalisation layers or jumping knowledge"
    for index, conv in enumerate(basic.convs):
        if problem := _problem(conv):
            return None, f"layer {index}, {type(conv).__name__}, {problem}"
    convs = [_with_bias(copy.deepcopy(conv)) for conv in basic.convs]
    return Stack(convs, copy.deepcopy(basic.act) or nn.Identity()).eval(), ""


def _problem(conv: Any) -> str:
    """Returns what of a layer cannot be computed; empty where all can."""
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in conv.parameters()):
        return "has no parameters yet"
    if any(p.dtype != torch.float32 for p in conv.parameters()):
        return "has parameters that are not float32"
    if type(conv) is SAGEConv:
        plain = conv.aggr == "mean" and conv.root_weight and not conv.normalize and not conv.project
        return "" if plain else "is not the mean of the neighbours beside the node itself"
    if type(conv) is GCNConv:
        plain = conv.normalize and conv.add_self_loops and not conv.improved
        return "" if plain else "is not normalised as GCN by default"
    if type(conv) is GATConv:
        plain = conv.add_self_loops and conv.edge_dim is None and not conv.residual and conv.lin is not None
        return "" if plain else "has edge features, a residual or no loops"
    return "is unknown; known: SAGEConv, GCNConv, GATConv"


def _with_bias(conv: Any) -> nn.Module:  # Any: attributes that type checkers do not know
    """Returns the layer with a bias of zeros where it had none."""
    if isinstance(conv, SAGEConv):
        if conv.lin_l.bias is None:
            conv.lin_l.bias = nn.Parameter(conv.lin_l.weight.new_zeros(conv.out_channels))
    elif conv.bias is None:
        heads = getattr(conv, "heads", 1) if getattr(conv, "concat", False) else 1
        conv.bias = nn.Parameter(conv.lin.weight.new_zeros(heads * conv.out_channels))
    return conv
