"""infer: the predictions of a trained model, for all nodes or some, out of core."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from outcrop.api.old_keywords import accepts_old_keywords, merged, named
from outcrop.config import InferSampling, SampleConfig, Size, parse_size
from outcrop.config.declared import checks_arguments
from outcrop.errors import ArgumentError
from outcrop.inference.division import default_memory
from outcrop.inference.predicted import facts
from outcrop.inference.run import InferReport, naming_what_is_enough, run
from outcrop.inference.scored import what_is_scored
from outcrop.inference.task import InferTask, checked_task, sampling_of
from outcrop.runtime import system
from outcrop.runtime.observer import Observer
from outcrop.store.graph import Graph, open_graph
from outcrop.training.split_metrics import SplitMetrics

OLD = {
    "fanouts": "sampling.fanouts",
    "batch_size": "sampling.batch_size",
    "seed": "sampling.seed",
    "checkpoint": "model",
    "trace_path": "observer.trace",
    "progress": "observer.progress",
}


def objects(old: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Makes the objects that :func:`infer` takes now from keywords that it took before."""
    made: dict[str, Any] = {}
    if old.get("checkpoint") is not None:
        if given.get("model") is not None:
            raise ArgumentError("give a checkpoint folder or a model of your own, one of them")
        made["model"] = old["checkpoint"]
    if options := named(OLD, "observer", old):
        made["observer"] = merged(Observer, given.get("observer"), options)
    if options := named(OLD, "sampling", old):
        made["sampling"] = merged(InferSampling, given.get("sampling"), options)
    return made


@accepts_old_keywords(OLD, objects)
@checks_arguments
def infer(
    graph: Graph | str | Path,
    *,
    model: nn.Module | str | Path | None = None,
    out: str | Path,
    nodes: np.ndarray | Sequence[int] | Sequence[str] | str | Path | tuple[str, Any] = "all",
    method: str | None = None,
    output: str = "logits",
    sampling: InferSampling | None = None,
    any_graph: bool = False,
    memory: Size | None = None,
    device: str = "cpu",
    observer: Observer | None = None,
) -> InferReport:
    """Writes the predictions of ``model`` to ``out``.

    Killed at any moment, the same call goes on with the first layer that was not finished, and gives the same bytes;
    with a model of one's own it starts over.

    Args:
        graph: Graph, or its folder.
        model: Folder that :func:`outcrop.train` was given as ``checkpoint``, whose best model is taken; or a module. A
            stack of known layers (:func:`outcrop.inference.stack.as_stack`) is scored layer by layer, any other module
            in sampled batches: ``model(x, edge_index)`` is called with features [num_nodes, D] in the dtype of its
            parameters and int64 [2, num_edges], local (source, target); its first rows are those of the seeds. It is
            called in eval mode, on the device of its parameters.
        out: ``.npy`` (the values, in the order of ``nodes``) or ``.parquet``: with a column ``node``; with ``name``,
            the ids of the source (:meth:`outcrop.Graph.node_names`), where they are others; and of classes with
            ``class_name``, where they have names and the model learned them on this graph.
        nodes: Nodes to score, each once, in any order: int64 [n]; text [n], which are names
            (:meth:`outcrop.Graph.node_ids`); a mask [num_nodes] of bool; a ``.npy`` file of these; a table
            (``.parquet``, ``.csv``, ``.tsv``, ``.txt``) whose column ``id`` has names; ``"train"``, ``"valid"`` or
            ``"test"``; ``"all"``. In a graph with types they are of the type whose labels the model predicts; or
            (name of a node type, any of these), which other types give for ``embeddings`` alone.
        method: ``layerwise``: with all neighbours, exactly, every layer for all nodes (the last for ``nodes`` only).
            ``sampled``: in batches with sampled neighbours, as in training; for few nodes of a large graph. None:
            ``layerwise`` where the model allows it.
        output: ``logits``; ``classes`` of class labels; ``probabilities`` of classes (softmax) or multi-label columns
            (sigmoid); ``values`` of regression, which are its logits; or ``embeddings``: what the last layer reads, of
            ``hgt`` its last linear map.
        sampling: How the batches of ``sampled`` are drawn, and, of either method, whether rows are compared with their
            checksums (:class:`outcrop.InferSampling`).
        any_graph: Score another graph than the model was trained on; its features must mean the same.
        memory: Budget for everything Outcrop holds; the interpreter, torch and the model come on top. None: half of
            what the machine has available, rounded down to a power of two, 4 GiB at the most. The order of additions,
            and so the last bits of the result, depend on the budget: name one where they matter.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        observer: Progress and traces (:class:`outcrop.Observer`).

    Raises:
        ArgumentError: Values out of range, or a checkpoint of another graph or width.
        BudgetError: The budget cannot hold one part of a layer; names the smallest that can.
        CorruptionError: With ``InferSampling(paranoid=True)``: a row is not what the graph has.
        FormatError: No checkpoint there, or it cannot be read.
        IoError: The disk is full or refuses, or another process writes to ``out``.
    """
    started, watched = time.monotonic(), observer or Observer()
    task, config, limit = _asked(
        graph,
        model=model,
        out=out,
        nodes=nodes,
        method=method,
        output=output,
        sampling=sampling,
        any_graph=any_graph,
        memory=memory,
        device=device,
    )
    metrics = None
    if output != "embeddings" and not task.scored.any_graph:
        sizes = task.out_dim, task.num_rows
        metrics = SplitMetrics(task.graph, task.node_type, task.scored.kind, *sizes)
    with watched.watching() as progress:
        report = run(
            *(task, config, limit),
            seen=None if metrics is None else metrics.add,
            trace_path=watched.trace,
            progress=progress,
        )
    report.metrics = {} if metrics is None else metrics.values()
    report.seconds = time.monotonic() - started
    return report


def dry_run(graph: Graph | str | Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Tells what ``infer(graph, **options)`` would do, after all of its checks; computes and writes nothing.

    Returns:
        What :func:`outcrop.inference.predicted.facts` lists, as plain values.

    Raises:
        OutcropError: As :func:`infer` does before it computes anything.
    """
    task, config, limit = _asked(graph, **options)
    with naming_what_is_enough(task, config, limit):
        return facts(task, None if config is None else config.batch_size, limit)


@checks_arguments
def _asked(
    graph: Graph | str | Path,
    *,
    model: nn.Module | str | Path | None = None,
    out: str | Path,
    nodes: np.ndarray | Sequence[int] | Sequence[str] | str | Path | tuple[str, Any] = "all",
    method: str | None = None,
    output: str = "logits",
    sampling: InferSampling | None = None,
    any_graph: bool = False,
    memory: Size | None = None,
    device: str = "cpu",
) -> tuple[InferTask, SampleConfig | None, int]:
    """Returns what :func:`infer` was asked for, checked: the task, how batches are drawn, and the budget."""
    graph = graph if isinstance(graph, Graph) else open_graph(graph)
    drawn, stored = sampling or InferSampling(), isinstance(model, str | Path)
    scored = what_is_scored(
        graph,
        model if isinstance(model, str | Path) else None,
        None if isinstance(model, str | Path) else model,
        method,
        drawn.fanouts,
        any_graph,
        device,
    )
    if graph.is_typed:  # of which several types may have labels
        graph = graph.with_seeds(scored.seed_type(graph).name)
    # Weights do not say what a model of one's own computes: layers that were left may be of another.
    task = checked_task(graph, scored, Path(out), nodes, output, resumable=stored)
    task = replace(task, paranoid=drawn.paranoid)
    limit = default_memory(system.available_memory()) if memory is None else parse_size(memory)
    return task, sampling_of(task, drawn.batch_size, drawn.seed), limit
