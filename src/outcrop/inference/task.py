"""What is to be computed: checked before any work starts."""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.config import SampleConfig
from outcrop.config.sampling import SPLITS
from outcrop.errors import ArgumentError, IoError
from outcrop.inference import export as exporting
from outcrop.inference import layer_sums
from outcrop.inference.scored import ScoringRequest
from outcrop.inference.whole import WholeModel
from outcrop.loading.input_ids import checked_ids
from outcrop.nn import checkpoint as checkpoints
from outcrop.nn.models import Model
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph, split_name

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
        depth: Layers to compute.
        resumable: The weights say what the model computes, so that layers an interrupted call has left are its own.
    """

    graph: Graph
    scored: ScoringRequest
    output: str
    digest: str
    out: Path
    nodes: np.ndarray | None
    wanted: np.ndarray | None
    depth: int
    resumable: bool

    @property
    def model(self) -> Model | WholeModel:
        return self.scored.model

    @property
    def id_bytes(self) -> int:
        """Returns the memory for the nodes that were asked for."""
        return 0 if self.nodes is None else 24 * len(self.nodes)

    @property
    def name_bytes(self) -> int:
        """Returns what names add to a row of the output, on average."""
        named = self.out.suffix == ".parquet" and self.graph.has_names
        return 4 + -(-self.graph.spec("names").data_bytes // max(self.graph.num_nodes, 1)) if named else 0

    @property
    def stack(self) -> Model:
        assert isinstance(self.model, Model)
        return self.model

    @property
    def num_rows(self) -> int:
        return self.graph.num_nodes if self.nodes is None else len(self.nodes)

    @property
    def out_dim(self) -> int:
        if isinstance(self.model, WholeModel):
            return self.model.out_dim
        return layer_sums.widths(self.model.convs[self.depth - 1])[1]

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
    model, depth = scored.model, 1
    if isinstance(model, Model):
        depth = model.num_layers - (output == "embeddings")
    elif output == "embeddings":
        raise ArgumentError("what the last layer of a model of your own reads is not known: ask for logits")
    if depth == 0:
        raise ArgumentError("a model of one layer has no hidden layer: ask for logits or classes")
    ids = _node_ids(graph, nodes)
    wanted = None if ids is None else np.sort(ids)
    state = checkpoints.digest(model.state_dict())
    return InferTask(graph, scored, output, state, out, ids, wanted, depth, resumable)


def _node_ids(graph: Graph, nodes: Any) -> np.ndarray | None:
    """Returns int64 ids; None = all."""
    if isinstance(nodes, str) and nodes == "all":
        return None
    if isinstance(nodes, str) and graph.has(split_name(nodes)) and split_name(nodes) in SPLITS:
        with Runtime() as runtime:
            return graph.split(runtime, nodes)
    if isinstance(nodes, str | Path):
        from outcrop.importing.sources.node_list import read_ids  # loads pyarrow

        return checked_ids(read_ids(Path(nodes), graph), graph, str(nodes))
    return checked_ids(nodes, graph, "the given node ids")


def sampling_of(task: InferTask, batch_size: int, seed: int) -> SampleConfig | None:
    """Tells how the mini-batches of method ``sampled`` are drawn; None where layers are computed one by one."""
    if task.scored.method != "sampled":
        return None
    return SampleConfig(
        fanouts=_fanouts(task, task.scored.fanouts),
        batch_size=batch_size,
        seed=seed,
        degrees=task.model.uses_degrees,
        splits=("infer",),
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
