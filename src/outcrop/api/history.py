"""Keeps the history of a run while it is prepared and trained. What goes wrong here is a warning, never an error."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from outcrop.advisor import machine
from outcrop.config import SampleConfig, TrainConfig
from outcrop.errors import OutcropError, OutcropWarning
from outcrop.metrics import Recorder, thinned
from outcrop.runtime import UNLIMITED, Runtime
from outcrop.store import history
from outcrop.store import manifest as manifests
from outcrop.store.graph import Graph

if TYPE_CHECKING:
    from outcrop.api.prepare import PrepareReport
    from outcrop.api.results import TrainReport

T = TypeVar("T")
_MAX_LOSSES = 5000
# The disk is measured after a training for this share of its time, unless that is too short to say anything.
_MEASURING_SHARE, _SHORTEST_SECONDS, _LONGEST_SECONDS = 0.02, 0.05, 0.3


@contextmanager
def training(
    run: Path | None, graph: Graph, sampling: SampleConfig, config: TrainConfig, mode: str, runtime: Runtime
) -> Iterator[Callable[[TrainReport], TrainReport]]:
    """Records a training in ``run``'s history; the block passes its report through what is yielded.

    Left by an error, the epochs until then are recorded with it. Without a run nothing is.
    """
    if run is None:
        yield lambda report: report
        return
    about = {
        **_about(graph, runtime),
        "mode": mode,
        "sampling": asdict(sampling),
        "training": asdict(config),
        "plan": _digest(run / "plan"),
    }
    recorder = Recorder(runtime)

    def write(report: dict[str, Any], epochs: list[dict[str, Any]], **more: Any) -> None:
        losses = thinned(report.pop("batch_losses", []), _MAX_LOSSES)
        kept = {**about, **more, "report": report, "batch_losses": losses, "epochs": thinned(epochs)}
        _safely(lambda: history.write_training(run, {**kept, **recorder.as_dict()}))

    def finish(report: TrainReport) -> TrainReport:
        result = report.as_dict()
        seen = {record["epoch"]: record["stage_seconds"] for record in recorder.epochs}
        # Epochs without stage_seconds come from a checkpoint: they ran in another process.
        epochs = [{**record, "stage_seconds": seen.get(record["epoch"])} for record in result.pop("epochs")]
        write(result, epochs, disk=_safely(lambda: _disk_rates(run, graph, result["seconds"])))
        return report

    try:
        with recorder.watching():
            yield finish
    except BaseException as error:
        if recorder.epochs:
            write({}, recorder.epochs, ended=f"{type(error).__name__}: {error}")
        raise


@contextmanager
def preparing(
    run: Path, graph: Graph, runtime: Runtime
) -> Iterator[Callable[[PrepareReport], PrepareReport]]:
    """Records in ``run``'s history how it was prepared; stages that were skipped keep what was known of them."""
    recorder = Recorder(runtime)
    about = _about(graph, runtime)

    def finish(report: PrepareReport) -> PrepareReport:
        known = (_safely(lambda: history.read_preparing(run)) or {}).get("stages", {})
        result = report.as_dict()
        stages = result.pop("stages")
        merged = {
            name: {**stages[name], "finished_at": _now(), "command": about["command"]}
            if name in stages
            else known[name]
            for name in ("sample", "plan", "pack")
            if name in stages or name in known
        }
        content = {**about, "report": result, "stages": merged, **recorder.as_dict()}
        _safely(lambda: history.write_preparing(run, content))
        return report

    with recorder.watching():
        yield finish


def _about(graph: Graph, runtime: Runtime) -> dict[str, Any]:
    limit = runtime.budget.limit_bytes
    return {
        "started_at": _now(),
        "command": _command(),
        "machine": {**machine.describe(probe=False), "io_backend": runtime.io.backend_name},
        "budget_bytes": None if limit == UNLIMITED else limit,
        "graph": {
            "path": str(graph.path),
            "nodes": graph.num_nodes,
            "edges": graph.num_edges,
            "classes": graph.num_classes,
            "feature_dim": graph.feature_dim,
            "feature_dtype": graph.spec("features").dtype if graph.has("features") else None,
            "feature_bytes": graph.feature_bytes,
        },
    }


def _command() -> str:
    """What the user typed, as far as it can be told."""
    name = Path(sys.argv[0]).name if sys.argv else ""
    return shlex.join(["outcrop" if name == "__main__.py" else name or "python", *sys.argv[1:]])


def _disk_rates(run: Path, graph: Graph, trained_seconds: float) -> dict[str, Any] | None:
    seconds = min(_MEASURING_SHARE * trained_seconds, _LONGEST_SECONDS)
    if seconds < _SHORTEST_SECONDS:
        return None
    return machine.read_rates(machine.largest_file(run, graph), seconds=seconds / 2)


def _digest(folder: Path) -> str | None:
    try:
        return manifests.read_any(folder).digest()
    except OutcropError:
        return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _safely(step: Callable[[], T]) -> T | None:
    """The step's result, or None and a warning: history is worth less than what it is about."""
    try:
        return step()
    except (OutcropError, OSError, ValueError, TypeError) as error:
        warnings.warn(f"the run's history was not kept: {error}", OutcropWarning, stacklevel=2)
        return None
