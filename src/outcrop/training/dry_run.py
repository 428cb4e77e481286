"""What a training would do, told before it does anything: ``outcrop train --dry-run``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outcrop.config import hidden_width
from outcrop.runtime.progress import Progress, SilentProgress
from outcrop.training.batch_request import BatchRequest
from outcrop.training.needs import TrainNeeds
from outcrop.training.parts import choose_parts
from outcrop.training.request import TrainRequest
from outcrop.training.stored_checkpoints import place_of
from outcrop.training.supply import choose_epochs, folder_beside


def facts(
    request: TrainRequest, chosen: Sequence[str] = (), progress: Progress | None = None
) -> dict[str, Any]:
    """Lists what is known of a training before anything is prepared, in plain values. Whether a limited memory is
    enough is found out by drawing its mini-batches, of which nothing is kept; not where the disk is too small for all.

    Returns:
        - ``graph``, ``nodes``, ``edges``, ``feature_bytes``; ``mode``; ``chosen``: lines that say what was chosen for
          the user and why; ``model``, ``hidden``, ``layers``, ``device``;
        - ``sampler``, ``fanouts``, ``batch_size``, ``batches_per_epoch`` (None: the mode decides);
        - ``epochs``, ``distinct_epochs``: all that are trained, and how many of them have batches of their own;
        - ``memory``, ``gpu_memory``, ``disk_space``: limits in bytes, None where there is none;
        - ``run``: a prepared run; ``writes``: the folder that is prepared first, ``epochs_at_a_time`` into it, or where
          an epoch is prepared in parts ``batches_at_a_time`` of one, else None;
        - ``checkpoint`` and the ``next_epoch`` to be trained, None where nothing is left.

    Raises:
        ArgumentError: The checkpoint is of another training.
        BudgetError: The memory is too small; names the smallest that is not.
        IoError: Nothing can be prepared beside the graph.
    """
    request.check_folders()
    prepared = _prepared(request, request.batch_request)
    # Where the disk decides how much is prepared at a time, what that takes of the memory depends on it.
    pools = request.refresh is None and prepared[0] == str(folder_beside(request.graph, ".pools"))
    drawn = None if pools else TrainNeeds(request, progress or SilentProgress()).require()
    if drawn is not None:
        request, prepared = drawn, _prepared(drawn, drawn.batch_request)
        chosen = [*chosen, f"mode {drawn.mode}: there is too little memory to prepare a run"]
    graph, batches, asked = request.graph, request.batches, request.batch_request
    model, training, kept = request.model, request.training, request.checkpoints
    sampling, limits = batches.sampling, batches.limits
    writes, at_a_time, part, why = prepared
    return {
        "graph": str(graph.path),
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "feature_bytes": graph.feature_bytes,
        "mode": request.mode.name,
        "chosen": [*chosen, *([why] if why else [])],
        "model": model.name,
        "hidden": hidden_width(model.name, model.hidden, model.heads),
        "layers": model.layers,
        "device": training.device,
        "sampler": sampling.sampler,
        "fanouts": list(sampling.fanouts),
        "batch_size": sampling.batch_size,
        "batches_per_epoch": request.batches_of("train"),
        "epochs": training.epochs,
        "distinct_epochs": training.epochs if batches.new_batches else min(sampling.epochs, training.epochs),
        "memory": limits.memory,
        "gpu_memory": limits.gpu_memory,
        "disk_space": limits.disk_space,
        "run": None if request.run is None or request.refresh is not None else str(request.run),
        "writes": writes,
        "epochs_at_a_time": at_a_time,
        "batches_at_a_time": part,
        "checkpoint": None if kept is None else place_of(kept),
        "next_epoch": asked.next_epoch,
    }


def _prepared(request: TrainRequest, asked: BatchRequest) -> tuple[str | None, int | None, int | None, str]:
    """Returns the folder that is prepared before training begins, how many epochs at a time, or how many batches of
    one, and why so many.
    """
    done = asked.next_epoch is None and request.run is None
    if done or not request.prepares:
        return None, None, None, ""
    parts = choose_parts(asked, request.learning) if request.refresh is None else None
    if parts is not None and parts.sooner:
        return str(folder_beside(request.graph, ".pools")), 1, parts.batches, parts.why
    if not asked.refresh or request.refresh is not None:
        return str(request.place), asked.sampling.epochs, None, ""
    choice, folder = choose_epochs(asked)
    return str(folder), choice.count, None, choice.why
