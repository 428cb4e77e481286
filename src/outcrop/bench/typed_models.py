"""Benchmark ``typed-models``: models of graphs with types against torch_geometric's modules on the same batches.

Forward and backward of both take turns on the very same mini-batches, in memory, in float32. What torch_geometric's
side gets is what its users have: ``HeteroConv`` (or ``HGTConv``) over ``HeteroData``, with ``trim_to_layer``. Scores
are compared first: what computes something else is not timed.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outcrop.bench.compute import bare_typed_products, compare
from outcrop.bench.epoch import Log, Setting, ensure_graph, ensure_run, plain
from outcrop.loading.hetero import to_hetero
from outcrop.loading.open import open_session
from outcrop.nn.hgt import Hgt
from outcrop.nn.models import build_model
from outcrop.nn.schema import GraphSchema
from outcrop.nn.sparse import as_input
from outcrop.nn.typed import TypedModel
from outcrop.nn.typed_models import MeanModel, Rgat, Rgcn
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph, open_graph
from outcrop.store.minibatch import MiniBatch

MODELS = ("rgcn", "rsage", "rgat", "hgt")
_BATCHES, _ROUNDS = 2, 5
_TOLERANCE = 1e-3  # of scores in float32, relative to the largest


def run(folder: Path, setting: Setting, log: Log, models: Sequence[str] = MODELS) -> dict[str, Any]:
    """Times a training step of each model on a few batches of the graph of ``setting``; both sides in turn."""
    path = ensure_graph(folder, setting.shape, log)
    run_folder, _ = ensure_run(folder, path, setting, log)
    graph, found = open_graph(path), {}
    schema = GraphSchema.of(graph, no_rows=setting.no_rows)
    layers = len(setting.fanouts.split(","))
    with Runtime() as runtime, open_session(graph, runtime, "memory", run_folder=run_folder) as session:
        for name in models:
            log(f"timing {name}")
            torch.manual_seed(0)
            model: Any = build_model(name, schema, setting.hidden, graph.seed_type.num_classes, layers)
            times = []
            for number, batch in enumerate(session.batches("train", 0)):
                if number == _BATCHES:
                    break
                times.append(_timed(model, batch, graph))
                del batch
            found[name] = {key: median(one[key] for one in times) for key in times[0]}
    return {
        "experiment": "typed-models",
        "setting": plain(setting),
        "threads": torch.get_num_threads(),
        "models": found,
        "columns": ["model", "torch_geometric", "Outcrop", "times as fast", "to bare products"],
        "rows": [
            [
                name,
                f"{one['pyg_seconds'] * 1e3:.0f} ms",
                f"{one['seconds'] * 1e3:.0f} ms",
                f"{one['times_as_fast']:.2f}",
                f"{one['against_bare']:.2f}x" if "against_bare" in one else "-",
            ]
            for name, one in found.items()
        ],
    }


def _timed(model: TypedModel, batch: MiniBatch, graph: Graph) -> dict[str, float]:
    """Returns seconds of a step of both sides, and of the bare products where these are known."""
    theirs = PygModel(model, batch, graph)
    with torch.no_grad():
        ours, want = model(batch), theirs()
    far = (ours - want).abs().max() / want.abs().max()
    if far > _TOLERANCE:
        raise AssertionError(f"{type(model).__name__} differs from torch_geometric's modules by {far:.2g}")
    both = compare(_step(theirs, batch.y), _step(lambda: model(batch), batch.y), _ROUNDS)
    found = {
        "pyg_seconds": both["first_seconds"],
        "seconds": both["second_seconds"],
        "times_as_fast": both["ratio"],
    }
    if isinstance(model, MeanModel):
        bare = compare(_step(lambda: model(batch), batch.y), bare_typed_products(batch, model), _ROUNDS)
        found |= {"bare_seconds": bare["second_seconds"], "against_bare": bare["ratio"]}
    return found


def _step(scores: Callable[[], Tensor], labels: Tensor) -> Callable[[], None]:
    def step() -> None:
        F.cross_entropy(scores(), labels).backward()

    return step


class PygModel:
    """Computes the scores of a batch as a script on torch_geometric would, with the parameters of ``model``."""

    def __init__(self, model: TypedModel, batch: MiniBatch, graph: Graph):
        from torch_geometric.nn import HeteroConv
        from torch_geometric.utils import trim_to_layer

        self._trim, self._model, self._own = trim_to_layer, model, copy.deepcopy(model)
        own: Any = self._own
        data = to_hetero(batch, graph)
        self._x = {
            node.name: as_input(rows)
            for node, rows in zip(model.schema.node_types, model._rows_of(batch), strict=True)
        }
        self._edges = {key: data[key].edge_index for key in model.schema.edge_types}
        self._per_hop = (
            {node.name: data[node.name].num_sampled_nodes for node in graph.node_types},
            {key: data[key].num_sampled_edges for key in model.schema.edge_types},
        )
        self._num_seeds = batch.graph.num_seeds
        if isinstance(model, Hgt):
            self._convs = list(own.convs)
            return
        with warnings.catch_warnings():  # of types that no edge leads to
            warnings.simplefilter("ignore")
            self._convs: list[nn.Module] = [
                HeteroConv(
                    {key: own.conv(index, key) for _, key, _, _ in model.edges_to(model.targets(index))}
                )
                for index in range(model.num_layers)
            ]

    def __call__(self) -> Tensor:
        """Returns the scores of the seeds, [num_seeds, num_classes]."""
        own: Any = self._own
        x, edges = self._x, self._edges
        if isinstance(own, Hgt):
            x = {name: own.lin_dict[name](rows).relu() for name, rows in x.items()}
        for index, conv in enumerate(self._convs):
            x, edges, _ = self._trim(index, *self._per_hop, x, edges)
            x = self._layer(index, conv, x, edges)
            if index < len(self._convs) - 1 and not isinstance(own, Hgt):
                x = {name: F.elu(out) if isinstance(own, Rgat) else out.relu() for name, out in x.items()}
        scores = x[own.schema.seed_type][: self._num_seeds]
        return own.lin(scores) if isinstance(own, Hgt) else scores

    def _layer(self, index: int, conv: nn.Module, x: dict[str, Tensor], edges: Any) -> dict[str, Tensor]:
        own: Any = self._own
        out = conv(x, {key: ends for key, ends in edges.items() if key[0] in x and key[2] in x})
        if isinstance(own, Rgcn):
            lins: Any = own.roots[index]
            out = {name: lins[name](x[name]) + found for name, found in out.items()}
        return out
