"""infer: the predictions of a trained model, for all nodes or some, out of core."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn

from outcrop.config import Size, parse_size
from outcrop.inference.division import default_memory
from outcrop.inference.run import InferReport, run
from outcrop.inference.scored import what_is_scored
from outcrop.inference.task import checked_task, sampling_of
from outcrop.runtime import system
from outcrop.runtime.progress import Progress, shows_progress
from outcrop.store.graph import Graph, open_graph


@shows_progress
def infer(
    graph: Graph | str | Path,
    *,
    checkpoint: str | Path | None = None,
    model: nn.Module | None = None,
    out: str | Path,
    nodes: np.ndarray | Sequence[int] | Sequence[str] | str | Path = "all",
    method: str | None = None,
    output: str = "logits",
    fanouts: Sequence[int] | None = None,
    batch_size: int = 1024,
    seed: int = 0,
    any_graph: bool = False,
    memory: Size | None = None,
    device: str = "cpu",
    trace_path: str | Path | None = None,
    progress: Progress | bool = True,
) -> InferReport:
    """Writes the predictions of the best model in ``checkpoint``, or of ``model``, to ``out``.

    Killed at any moment, the same call goes on with the first layer that was not finished, and gives the same bytes;
    with a model of one's own it starts over.

    Args:
        graph: Graph, or its folder.
        checkpoint: Folder that :func:`outcrop.train` was given.
        model: Instead of a checkpoint. A stack of known layers (:func:`outcrop.inference.stack.as_stack`) is
            scored layer by layer, any other module in sampled batches: ``model(x, edge_index)`` is called with
            features [num_nodes, D] in the dtype of its parameters and int64 [2, num_edges], local (source, target); its
            first rows are those of the seeds. It is called in eval mode, on the device of its parameters.
        out: ``.npy`` (the values, in the order of ``nodes``) or ``.parquet``: with a column ``node``; with ``name``,
            the ids of the source (:meth:`outcrop.Graph.node_names`), where they are others; and of classes with
            ``class_name``, where they have names and the model learned them on this graph.
        nodes: Nodes to score, each once, in any order: int64 [n]; text [n], which are names
            (:meth:`outcrop.Graph.node_ids`); a mask [num_nodes] of bool; a ``.npy`` file of these; a table
            (``.parquet``, ``.csv``, ``.tsv``, ``.txt``) whose column ``id`` has names; ``"train"``, ``"valid"`` or
            ``"test"``; ``"all"``.
        method: ``layerwise``: with all neighbours, exactly, every layer for all nodes (the last for ``nodes`` only).
            ``sampled``: in batches with sampled neighbours, as in training; for few nodes of a large graph. None:
            ``layerwise`` where the model allows it.
        output: ``logits``; ``classes`` of class labels; ``probabilities`` of classes (softmax) or multi-label columns
            (sigmoid); ``values`` of regression, which are its logits; or ``embeddings``: what the last layer reads.
        fanouts, batch_size, seed: Of ``sampled``. Without fanouts those of the training.
        any_graph: Score another graph than the model was trained on; its features must mean the same.
        memory: Budget for everything Outcrop holds; the interpreter, torch and the model come on top. None: half of
            what the machine has available, rounded down to a power of two, 4 GiB at the most. The order of additions,
            and so the last bits of the result, depend on the budget: name one where they matter.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        trace_path: JSONL file for spans of all stages.
        progress: Whether to show progress (:mod:`outcrop.runtime.progress`), or a receiver of it.

    Raises:
        ArgumentError: Values out of range, or a checkpoint of another graph or width.
        BudgetError: The budget cannot hold one part of a layer; names the smallest that can.
        FormatError: No checkpoint there, or it cannot be read.
        IoError: The disk is full or refuses, or another process writes to ``out``.
    """
    started = time.monotonic()
    graph = graph if isinstance(graph, Graph) else open_graph(graph)
    scored = what_is_scored(graph, checkpoint, model, method, fanouts, any_graph, device)
    # Weights do not say what a model of one's own computes: layers that were left may be of another.
    task = checked_task(graph, scored, Path(out), nodes, output, resumable=model is None)
    config = sampling_of(task, batch_size, seed)
    limit = default_memory(system.available_memory()) if memory is None else parse_size(memory)
    report = run(task, config, limit, trace_path=trace_path, progress=progress)
    report.seconds = time.monotonic() - started
    return report
