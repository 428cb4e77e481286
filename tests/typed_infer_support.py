"""What the tests of inference on graphs with types share: models with a checkpoint, and the whole graph in memory."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from infer_support import as_float
from outcrop.nn import checkpoint as checkpoints
from outcrop.nn.checkpoint import Checkpoint, Meta
from outcrop.nn.models import build_model
from outcrop.nn.schema import EdgeKey, GraphSchema
from outcrop.nn.typed import TypedModel
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.store.graph_types import NodeType


def a_typed_model(name: str, schema: GraphSchema, layers: int, hidden: int = 16) -> TypedModel:
    """With biases that are not zero, and products that stay small: large logits would make errors of float32 large."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = build_model(name, schema, hidden, schema.num_classes, layers, heads=2, dropout=0.5)
        for parameter in model.parameters():
            torch.nn.init.normal_(
                parameter, std=0.3 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5 / 2
            )
    return model.eval()


def save_typed(folder: Path, graph: Graph, name: str, model: TypedModel, hidden: int = 16) -> Path:
    """As training would have left it."""
    config = {
        "model": name,
        "schema": asdict(model.schema),
        "hidden": hidden,
        "num_classes": model.schema.num_classes,
        "layers": model.num_layers,
        "heads": 2,
        "dropout": 0.5,
    }
    sampling = {"fanouts": [4] * model.num_layers, "batch_size": 16}
    inputs = {"graph": graph.digest(), "sampling": sampling}
    checkpoints.write(
        folder / checkpoints.BEST, Checkpoint(Meta(1, 0, config, inputs), dict(model.state_dict()))
    )
    return folder


@dataclass
class Whole:
    """Holds a graph in memory as torch_geometric has it, rows in float64."""

    x: dict[str, Tensor]
    edges: dict[EdgeKey, Tensor]


def whole_of(graph: Graph, model: TypedModel) -> Whole:
    x = {}
    for node, of in zip(graph.node_types, model.schema.node_types, strict=True):
        if of.made:
            rows = model.make_rows(node.number, np.arange(node.num_nodes))
        else:
            (file,) = (one for one in graph.row_files if one.owner == node)
            with Runtime() as runtime:
                array = graph.open_rows(runtime, file)
                rows = as_float(np.array(array.memmap()), file.spec.dtype)
                array.close()
        x[node.name] = rows.double()
    edges = {one.key: torch.from_numpy(graph.edge_index(one)) for one in graph.edge_types}
    return Whole(x, edges)


@torch.no_grad()
def expected(model: TypedModel, whole: Whole, of: NodeType | None = None, depth: int | None = None) -> Any:
    """The model applied to the whole graph: scores; or what its first ``depth`` layers give for a node type."""
    model = copy.deepcopy(model).double()
    if of is None:
        return model(whole.x, whole.edges).numpy()
    assert depth is not None
    x, layer = model._whole(whole.x, whole.edges, {})
    return model._compute(x, [layer] * depth)[of.number].numpy()
