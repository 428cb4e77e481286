"""Prepares runs as tests want them: every option by its name, and what was done in return."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from outcrop.api.prepare import PrepareOptions, prepare_with_report
from outcrop.config import Limits, PackConfig, SampleConfig
from outcrop.preparation.prepare import PrepareReport
from outcrop.runtime.observer import Observer
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph


def prepare(
    graph: Graph | str | Path,
    out: str | Path,
    *,
    runtime: Runtime | None = None,
    stop_after: str | None = None,
    **options: Any,
) -> PrepareReport:
    """Makes the run ``out``. ``options``: fields of PrepareOptions, of the objects in it, and of Observer."""

    def of(kind: type, **usual: Any) -> dict[str, Any]:
        return usual | {f.name: options.pop(f.name) for f in fields(kind) if f.name in options}

    asked, observed = of(PrepareOptions), of(Observer, progress=False)
    for name, kind in (("limits", Limits), ("packing", PackConfig)):
        asked.setdefault(name, kind(**of(kind)))
    asked.setdefault("sampling", SampleConfig(**options))
    return prepare_with_report(
        PrepareOptions(graph, out, **asked),
        observer=Observer(**observed),
        runtime=runtime,
        stop_after=stop_after,
    )
