"""``prepare`` and ``open_run`` as users call them: they return the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outcrop.api.prepare import prepare as prepare_with_report
from outcrop.api.run import Run
from outcrop.config import Size
from outcrop.store.graph import Graph


def prepare(graph: Graph | str | Path, out: str | Path, **options: Any) -> Run:
    """Samples, plans and packs ``graph`` into ``out`` and opens the run; options as in
    :func:`outcrop.api.prepare.prepare`. Stages whose results are there are skipped.
    """
    prepare_with_report(graph, out, **options)
    return Run(out)


def open_run(path: str | Path, *, memory: Size | None = None, graph: str | Path | Graph | None = None) -> Run:
    """Opens the prepared run at ``path``.

    Args:
        memory: Budget of loading; None takes the one the run was planned for.
        graph: Where its graph is now, if one of them was moved.

    Raises:
        FormatError: There is none, it is not finished, or its graph is not there.
    """
    return Run(path, memory=memory, graph=graph)
