"""What is to be computed: checked before any work starts."""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from outcrop.config import SampleConfig
from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError, IoError
from outcrop.inference import export as exporting
from outcrop.inference import layer_sums
from outcrop.inference.scored import ScoringRequest
from outcrop.inference.steps import OutputRequest, Steps, steps_of
from outcrop.inference.whole import WholeModel
from outcrop.loading.input_ids import checked_ids
from outcrop.nn import checkpoint as checkpoints
from outcrop.nn.hgt import Hgt
from outcrop.nn.models import Model
from outcrop.nn.typed import TypedModel
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph, split_name
from outcrop.store.graph_types import NodeType
from outcrop.store.names import NAME_ARRAYS

OUTPUTS = {
    "class": ("logits", "classes", "probabilities", "embeddings"),
    "multilabel": ("logits", "probabilities", "embeddings"),
    "regression": ("values", "logits", "embeddings"),
}


@dataclass(frozen=True)
class InferTask:
    """Says what is to be computed, checked.

    Attributes:
        digest: Digest of the model's weights.
        nodes, wanted: Nodes asked for, in this order, and ascending; None: all.
        node_type: The type of the nodes whose output is written.
        depth: Layers to compute.
        resumable: The weights say what the model computes, so that layers an interrupted call has left are its own.
        paranoid: Whether the rows of the graph are compared with their checksums before they are computed with.
    """

    graph: Graph
    scored: ScoringRequest
    output: str
    digest: str
    out: Path
    nodes: np.ndarray | None
    wanted: np.ndarray | None
    node_type: NodeType
    depth: int
    resumable: bool
    paranoid: bool = False

    @property
    def model(self) -> Model | TypedModel | WholeModel:
        return self.scored.model

    @cached_property
    def steps(self) -> Steps:
        """Returns what is computed layer by layer."""
        assert not isinstance(self.model, WholeModel)
        scores, classes = self.output != "embeddings", self.output == "classes"
        wanted = OutputRequest(self.node_type, self.depth, scores, self.wanted, classes)
        return steps_of(self.graph, self.model, wanted)

    @property
    def id_bytes(self) -> int:
        """Returns the memory for the nodes that were asked for."""
        return 0 if self.nodes is None else 24 * len(self.nodes)

    @property
    def name_bytes(self) -> int:
        """Returns what names add to a row of the output, on average."""
        if self.out.suffix != ".parquet" or not self.graph.has_names_of(self.node_type):
            return 0
        text = self.graph.manifest.arrays[self.node_type.array(NAME_ARRAYS[0])]
        return 4 + -(-text.data_bytes // max(self.node_type.num_nodes, 1))

    @property
    def num_rows(self) -> int:
        return self.node_type.num_nodes if self.nodes is None else len(self.nodes)

    @property
    def out_dim(self) -> int:
        if isinstance(self.model, WholeModel):
            return self.model.out_dim
        if not self.scored.adds_up:
            return layer_sums.out_width(self._last_conv(self.model))
        return self.steps[-1][-1].layer.out_dim

    def _last_conv(self, model: Model | TypedModel) -> nn.Module:
        """Returns a layer that gives what is wanted."""
        if isinstance(model, Model):
            return model.convs[self.depth - 1]
        _, key, _, _ = model.edges_to((self.node_type.number,))[0]
        return model.conv(self.depth - 1, key)

    def targets(self) -> str:
        return "all" if self.wanted is None else hashlib.sha256(self.wanted.tobytes()).hexdigest()

    def row_numbers(self, rows: int) -> np.ndarray | None:
        """Returns the row of the result that is each row of the output; None = all in order."""
        if self.nodes is None or self.wanted is None or np.array_equal(self.nodes, self.wanted):
            return None
        return np.searchsorted(self.wanted, self.nodes).astype(np.int64)


def checked_task(
    graph: Graph, scored: ScoringRequest, out: Path, nodes: Any, output: str, *, resumable: bool
) -> InferTask:
    """Checks what is asked for, before any work starts.

    Raises:
        ArgumentError: An unknown output or nodes, or no place for a file.
        IoError: The folder of ``out`` cannot be written to.
    """
    if output not in (known := OUTPUTS[scored.kind]):
        raise ArgumentError(
            f"output {output!r} is unknown for labels of kind {scored.kind}; known: {', '.join(known)}"
        )
    exporting.check_suffix(out)
    if out.is_dir() or not out.parent.is_dir():
        raise ArgumentError(
            f"{out} cannot be written: " + ("it is a folder" if out.is_dir() else "no such folder")
        )
    if not os.access(out.parent, os.W_OK):
        raise IoError(
            errno.EACCES, f"{out.parent} is not writable, so {out} cannot be made: choose another place"
        )
    graph = graph.with_edge_rows(scored.takes_edge_rows)
    node_type, nodes = _chosen_type(graph, scored, nodes)
    _require_weights(graph, scored)
    depth = _depth(scored, output)
    if node_type != (seeds := scored.seed_type(graph)):
        _check_other_type(graph, scored, output, node_type, seeds)
    ids = _node_ids(graph, node_type, nodes)
    wanted = None if ids is None else np.sort(ids)
    state = checkpoints.digest(scored.model.state_dict())
    return InferTask(graph, scored, output, state, out, ids, wanted, node_type, depth, resumable)


def _require_weights(graph: Graph, scored: ScoringRequest) -> None:
    """Raises ArgumentError where the model takes weights of edges, and they are not there, or not added up yet."""
    if not isinstance(scored.model, Model) or not scored.model.edge_weights:
        return
    graph.require_edge_weights(True)
    if scored.method != "sampled":
        layers = ",".join(["-1"] * scored.model.num_layers)
        raise ArgumentError(
            "the model takes weights of edges, which infer does not add up layer by layer yet: ask for --method "
            f"sampled (method='sampled'), which is exact with --fanouts {layers}"
        )


def _depth(scored: ScoringRequest, output: str) -> int:
    """Returns how many layers are computed for an output."""
    model = scored.model
    if isinstance(model, WholeModel):
        if output == "embeddings":
            raise ArgumentError(
                "what the last layer of a model of your own reads is not known: ask for logits"
            )
        return 1
    # The last layer of hgt is the linear map that follows its graph layers.
    depth = model.num_layers - (output == "embeddings" and not isinstance(model, Hgt))
    if depth == 0:
        raise ArgumentError("a model of one layer has no hidden layer: ask for logits or classes")
    return depth


def _chosen_type(graph: Graph, scored: ScoringRequest, nodes: Any) -> tuple[NodeType, Any]:
    """Takes apart what says which nodes are scored, and of which type."""
    pair = isinstance(nodes, tuple) and len(nodes) == 2 and isinstance(nodes[0], str)
    if not pair or not graph.is_typed:
        return scored.seed_type(graph), nodes
    name, chosen = nodes
    return graph.node_type(name), "all" if chosen is None else chosen


def _check_other_type(
    graph: Graph, scored: ScoringRequest, output: str, node_type: NodeType, seeds: NodeType
) -> None:
    """Raises ArgumentError where a model gives nothing for nodes of another type than that of the seeds."""
    if output != "embeddings":
        raise ArgumentError(
            f"the model was trained to predict labels of node type {seeds.name!r}: of {node_type.name!r} ask for "
            "output embeddings"
        )
    if scored.method == "sampled":
        raise ArgumentError(
            f"sampled batches begin with nodes of type {seeds.name!r}: ask for those of {node_type.name!r} with method "
            "layerwise"
        )
    model = scored.model
    assert isinstance(model, TypedModel)
    computed = model.targets(_depth(scored, output) - 1)
    if node_type.number not in computed:
        names = ", ".join(graph.node_types[number].name for number in computed)
        raise ArgumentError(
            f"the model computes no embeddings of node type {node_type.name!r} there, only of {names}: ask for one of "
            "these"
        )


def _node_ids(graph: Graph, node_type: NodeType, nodes: Any) -> np.ndarray | None:
    """Returns int64 ids within the type; None = all."""
    if isinstance(nodes, str) and nodes == "all":
        return None
    if isinstance(nodes, str) and split_name(nodes) in SPLITS:
        name = node_type.array(split_name(nodes))
        if name in graph.manifest.arrays:
            with Runtime() as runtime:
                return graph.array(runtime, name).read(f"split-{split_name(nodes)}")
    if isinstance(nodes, str | Path):
        from outcrop.importing.sources.node_list import read_ids  # loads pyarrow

        return checked_ids(read_ids(Path(nodes), graph, node_type), graph, str(nodes), node_type)
    return checked_ids(nodes, graph, "the given node ids", node_type)


def sampling_of(task: InferTask, batch_size: int, seed: int) -> SampleConfig | None:
    """Tells how the mini-batches of method ``sampled`` are drawn; None where layers are computed one by one."""
    if task.scored.method != "sampled":
        return None
    return SampleConfig(
        fanouts=_fanouts(task, task.scored.fanouts),
        fanouts_by_type=tuple(
            (name, _fanouts(task, fanouts)) for name, fanouts in task.scored.fanouts_by_type.items()
        ),
        batch_size=batch_size,
        seed=seed,
        degrees=not isinstance(task.model, TypedModel) and task.model.uses_degrees,
        edge_weights=isinstance(task.model, Model) and task.model.edge_weights,
        splits=("infer",),
        edge_rows=task.scored.takes_edge_rows,
    )


def _fanouts(task: InferTask, fanouts: tuple[int, ...] | None) -> tuple[int, ...]:
    """Returns the fanouts of the layers that are computed."""
    if fanouts is None:
        raise ArgumentError("the checkpoint does not say with which fanouts it was trained: give fanouts")
    if isinstance(task.model, WholeModel):
        return fanouts
    layers = task.model.num_layers
    if len(fanouts) != layers:
        raise ArgumentError(
            f"{len(fanouts)} fanouts given for a model of {layers} layers: give one per layer"
        )
    return fanouts[: task.depth]
