"""What a training would do, told before it does anything: ``outcrop train --dry-run``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outcrop.advisor import epochs
from outcrop.config import hidden_width
from outcrop.training.checks import check_checkpoint
from outcrop.training.run import TrainRequest
from outcrop.training.supply import beside


def facts(request: TrainRequest, chosen: Sequence[str] = ()) -> dict[str, Any]:
    """Lists what is known of a training before anything is prepared, in plain values.

    Returns:
        - ``graph``, ``nodes``, ``edges``, ``feature_bytes``; ``mode``; ``chosen``: lines that say what was chosen for
          the user and why; ``model``, ``hidden``, ``layers``, ``device``;
        - ``sampler``, ``fanouts``, ``batch_size``, ``batches_per_epoch`` (None: the mode decides);
        - ``epochs``, ``distinct_epochs``: all that are trained, and how many of them have batches of their own;
        - ``memory``, ``gpu_memory``, ``disk_space``: limits in bytes, None where there is none;
        - ``run``: a prepared run; ``writes``: the folder that is prepared first, ``epochs_at_a_time`` into it;
        - ``checkpoint`` and the ``next_epoch`` to be trained, None where nothing is left.

    Raises:
        ArgumentError: The checkpoint is of another training.
    """
    graph, config, batches, wanted = request.graph, request.config, request.batches, request.wanted
    if request.checkpoint is not None:
        check_checkpoint(request.checkpoint, request.resume, graph, config, request.inputs, request.objective)
    sampling, limits = batches.sampling, batches.limits
    writes, at_a_time, why = _prepared(request)
    return {
        "graph": str(graph.path),
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "feature_bytes": graph.feature_bytes,
        "mode": request.mode.name,
        "chosen": [*chosen, *([why] if why else [])],
        "model": config.model,
        "hidden": hidden_width(config.model, config.hidden, config.heads),
        "layers": config.layers,
        "device": config.device,
        "sampler": sampling.sampler,
        "fanouts": list(sampling.fanouts),
        "batch_size": sampling.batch_size,
        "batches_per_epoch": request.batches_per_epoch,
        "epochs": config.epochs,
        "distinct_epochs": config.epochs if batches.new_batches else min(sampling.epochs, config.epochs),
        "memory": limits.memory,
        "gpu_memory": limits.gpu_memory,
        "disk_space": limits.disk_space,
        "run": None if request.run is None or request.refresh else str(request.run),
        "writes": writes,
        "epochs_at_a_time": at_a_time,
        "checkpoint": None if request.checkpoint is None else str(request.checkpoint),
        "next_epoch": wanted.next_epoch,
    }


def _prepared(request: TrainRequest) -> tuple[str | None, int | None, str]:
    """The folder that is prepared before training begins, how many epochs at a time, and why so many."""
    graph, batches = request.graph, request.batches
    done = request.wanted.next_epoch is None and request.run is None
    if done or not request.mode.prepares or (request.run is not None and not request.refresh):
        return None, None, ""
    run = request.run or beside(graph, ".run")
    if not batches.new_batches:
        return str(run), batches.sampling.epochs, ""
    pools = str(request.run or beside(graph, ".pools"))
    if request.refresh:
        return pools, batches.sampling.epochs, ""
    choice = epochs.for_training(graph, batches.sampling, batches.limits, request.config.epochs, run)
    return str(run) if choice.all_at_once else pools, choice.count, choice.why
