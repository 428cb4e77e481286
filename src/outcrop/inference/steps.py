"""The steps of inference layer by layer: each computes one layer for the nodes of one type.

A graph without types has a step for each layer. Of one with types, each layer has a step for each node type whose rows
later layers need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from outcrop.inference.inputs import InputShape, shape_of
from outcrop.inference.target_layer import ConvLayer, TargetLayer
from outcrop.inference.typed_sums import typed_layer
from outcrop.nn.models import Model
from outcrop.nn.typed import TypedModel
from outcrop.store.graph import Graph
from outcrop.store.graph_types import ListsTo, NodeType
from outcrop.store.record import align_page


@dataclass(frozen=True, eq=False)
class Step:
    """Says what is computed for the nodes of one type, from which lists and which rows.

    Attributes:
        index: Number of the layer.
        to: The nodes, and the lists that lead to them.
        layer: What is computed.
        inputs: Rows that are read, by the number of their node type.
        wanted: Nodes that are computed, int64, ascending; None: all.
        scores: Whether the output is what the model gives at last.
        classes: Whether of each row only the column with the highest score is kept.
    """

    graph: Graph
    index: int
    to: ListsTo
    layer: TargetLayer
    inputs: Mapping[int, InputShape]
    wanted: np.ndarray | None = None
    scores: bool = False
    classes: bool = False

    @property
    def name(self) -> str:
        """Returns what the artifact of the output is called."""
        return f"layer-{self.index}" + (f".n{self.to.target.number}" if self.graph.is_typed else "")

    @property
    def what(self) -> str | dict[str, Any]:
        """Returns what the artifact says that it holds."""
        kept = {"classes": True} if self.classes else {}
        if not self.graph.is_typed:
            return {"layer": self.index, **kept} if kept else f"layer {self.index}"
        return {"layer": self.index, "node_type": self.to.target.name, "scores": self.scores, **kept}

    @property
    def num_rows(self) -> int:
        """Counts the rows of the output."""
        return self.to.target.num_nodes if self.wanted is None else len(self.wanted)

    @cached_property
    def num_edges(self) -> tuple[int, ...]:
        """Counts the edges of each edge type."""
        return tuple(one.num_edges for one in self.to.edge_types)

    @property
    def output(self) -> InputShape:
        """Returns the size of the output, which is read by the next layer."""
        if self.classes:
            return InputShape(self.num_rows, 8, 1, "int64")
        width = self.layer.out_dim
        return InputShape(self.num_rows, 4 * width, width, "float32")

    @property
    def output_bytes(self) -> int:
        """Counts the bytes of the file of the output."""
        return align_page(self.num_rows * self.output.row_bytes)


Steps = tuple[tuple[Step, ...], ...]  # of each layer, first layer first


@dataclass(frozen=True)
class OutputRequest:
    """Says whose output is wanted: nodes ``ids`` (None: all) of a type, after ``depth`` layers.

    Attributes:
        scores: Whether scores are wanted, not embeddings.
        classes: Whether of these only the highest of each row is wanted.
    """

    node_type: NodeType
    depth: int
    scores: bool
    ids: np.ndarray | None = None
    classes: bool = False


@torch.no_grad()
def steps_of(graph: Graph, model: Model | TypedModel, wanted: OutputRequest) -> Steps:
    """Returns what is computed, layer by layer: only node types that a later layer needs."""
    needed: list[tuple[NodeType, ...]] = [(wanted.node_type,)]
    for _ in range(wanted.depth):
        needed.append(_with_sources(graph, needed[-1]))
    needed.reverse()
    shapes = {one.number: _shape_of_rows(graph, model, one) for one in needed[0]}
    found = []
    for index, targets in enumerate(needed[1:]):
        last = index == wanted.depth - 1
        steps = []
        for target in targets:
            to = graph.lists_to(target)
            read = {target.number, *(one.source.number for one in to.edge_types)}
            layer = (
                ConvLayer(model, index)
                if isinstance(model, Model)
                else typed_layer(model, index, target.number, wanted.scores)
            )
            inputs = {number: shapes[number] for number in sorted(read)}
            ids = wanted.ids if last else None
            ends = last and wanted.scores, last and wanted.classes
            steps.append(Step(graph, index, to, layer, inputs, ids, *ends))
        shapes = {step.to.target.number: step.output for step in steps}
        found.append(tuple(steps))
    return tuple(found)


def _with_sources(graph: Graph, targets: tuple[NodeType, ...]) -> tuple[NodeType, ...]:
    sources = {one.source.number for one in graph.edge_types if one.target in targets}
    return tuple(one for one in graph.node_types if one in targets or one.number in sources)


def _shape_of_rows(graph: Graph, model: Model | TypedModel, node_type: NodeType) -> InputShape:
    if isinstance(model, TypedModel):
        node = model.schema.node_types[node_type.number]
        if node.made:
            return InputShape(node_type.num_nodes, 4 * node.width, node.width, "float32", stored=False)
    (rows,) = (one for one in graph.row_files if one.owner == node_type)
    return shape_of(rows)
