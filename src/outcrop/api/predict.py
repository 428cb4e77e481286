"""predict: what :func:`outcrop.infer` writes, as an array."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from outcrop.api.infer import infer
from outcrop.config import Size
from outcrop.runtime.progress import Progress, shows_progress
from outcrop.store.graph import Graph
from outcrop.store.manifest import naming_files

if TYPE_CHECKING:
    from torch import nn


@shows_progress
def predict(
    graph: Graph | str | Path,
    model: nn.Module | str | Path,
    nodes: np.ndarray | Sequence[int] | Sequence[str] | str | Path = "all",
    *,
    output: str = "logits",
    method: str | None = None,
    fanouts: Sequence[int] | None = None,
    batch_size: int = 1024,
    seed: int = 0,
    any_graph: bool = False,
    memory: Size | None = None,
    device: str = "cpu",
    folder: str | Path | None = None,
    progress: Progress | bool = True,
) -> np.ndarray:
    """Returns the predictions of ``model`` for ``nodes``: ``numpy.load`` of what :func:`outcrop.infer` writes.

    Use :func:`outcrop.infer` where the result does not fit in memory, or must survive being killed.

    Args:
        graph: Graph, or its folder.
        model: A torch module, such as ``outcrop.train(...).model``, or a folder that :func:`outcrop.train` was given
            as ``checkpoint``.
        nodes: Nodes to score, in any order: as of :func:`outcrop.infer`.
        output: ``logits``, ``classes``, ``probabilities``, ``values`` or ``embeddings``.
        method, fanouts, batch_size, seed, any_graph, memory, device, progress: As of :func:`outcrop.infer`.
        folder: Where what layers read of each other, and the result, lie meanwhile; None: the system's folder for
            temporary files (``TMPDIR``). A layer takes ``4 * num_nodes * width`` bytes.

    Returns:
        Row i is of ``nodes[i]``: float32 [len(nodes), columns], or int64 [len(nodes)] of ``classes``, whose names,
        where they have some, are ``graph.class_names``.

    Raises:
        ArgumentError, BudgetError, FormatError, IoError: As of :func:`outcrop.infer`.
    """
    stored = isinstance(model, str | Path)
    place = Path(tempfile.gettempdir() if folder is None else folder)
    with naming_files(place), tempfile.TemporaryDirectory(prefix="outcrop-predict-", dir=place) as there:
        out = Path(there) / "predictions.npy"
        infer(
            graph,
            checkpoint=model if stored else None,
            model=None if stored else model,
            out=out,
            nodes=nodes,
            method=method,
            output=output,
            fanouts=fanouts,
            batch_size=batch_size,
            seed=seed,
            any_graph=any_graph,
            memory=memory,
            device=device,
            progress=progress,
        )
        return np.load(out)
