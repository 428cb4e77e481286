"""predict: what :func:`outcrop.infer` writes, as an array."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from outcrop.api.infer import OLD, infer, objects
from outcrop.api.old_keywords import accepts_old_keywords
from outcrop.config import InferSampling, Size
from outcrop.config.declared import checks_arguments
from outcrop.runtime.observer import Observer
from outcrop.store.graph import Graph
from outcrop.store.manifest import naming_files


@accepts_old_keywords({name: new for name, new in OLD.items() if name != "checkpoint"}, objects)
@checks_arguments
def predict(
    graph: Graph | str | Path,
    model: nn.Module | str | Path,
    nodes: np.ndarray | Sequence[int] | Sequence[str] | str | Path | tuple[str, Any] = "all",
    *,
    output: str = "logits",
    method: str | None = None,
    sampling: InferSampling | None = None,
    any_graph: bool = False,
    memory: Size | None = None,
    device: str = "cpu",
    folder: str | Path | None = None,
    observer: Observer | None = None,
) -> np.ndarray:
    """Returns the predictions of ``model`` for ``nodes``: ``numpy.load`` of what :func:`outcrop.infer` writes.

    Use :func:`outcrop.infer` where the result does not fit in memory, or must survive being killed.

    Args:
        graph: Graph, or its folder.
        model: A torch module, such as ``outcrop.train(...).model``, or a folder that :func:`outcrop.train` was given
            as ``checkpoint``.
        nodes: Nodes to score, in any order: as of :func:`outcrop.infer`.
        output: ``logits``, ``classes``, ``probabilities``, ``values`` or ``embeddings``.
        method, sampling, any_graph, memory, device, observer: As of :func:`outcrop.infer`.
        folder: Where what layers read of each other, and the result, lie meanwhile; None: the system's folder for
            temporary files (``TMPDIR``). A layer takes ``4 * num_nodes * width`` bytes.

    Returns:
        Row i is of ``nodes[i]``: float32 [len(nodes), columns], or int64 [len(nodes)] of ``classes``, whose names,
        where they have some, are ``graph.class_names``.

    Raises:
        ArgumentError, BudgetError, FormatError, IoError: As of :func:`outcrop.infer`.
    """
    place = Path(tempfile.gettempdir() if folder is None else folder)
    with naming_files(place), tempfile.TemporaryDirectory(prefix="outcrop-predict-", dir=place) as there:
        out = Path(there) / "predictions.npy"
        infer(
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
            observer=observer,
        )
        return np.load(out)
