"""The history of a run: ``<run>/history/prepare.json`` and ``train-<n>.json``, what happened, for people and reports.

It is no artifact: nothing is computed from it, no manifest knows of it, it holds times and commands, it does not count
towards the run's disk space, and it may be deleted at any time. Bounded: one record of preparing, the last
:data:`KEEP` trainings, each at most some hundred kilobytes. Every file is replaced as a whole. What goes wrong while it
is kept is a warning, never an error.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from outcrop.config import SampleConfig
from outcrop.errors import FormatError, OutcropError, OutcropWarning, naming_files
from outcrop.runtime import machine, system
from outcrop.runtime.parsing import parse_json
from outcrop.runtime.recorder import Recorder, thinned
from outcrop.runtime.runtime import UNLIMITED, Runtime
from outcrop.store import manifest as manifests
from outcrop.store.graph_types import name_of
from outcrop.store.lock import opened, try_lock

if TYPE_CHECKING:
    from outcrop.store.graph import Graph

FOLDER = "history"
FORMAT, VERSION = "outcrop.history", 1
KEEP = 8
_TRAINING = re.compile(r"train-(\d+)\.json")
_MAX_LOSSES = 5000
# The disk is measured after a training for this share of its time, unless that is too short to say anything.
_MEASURING_SHARE, _SHORTEST_SECONDS, _LONGEST_SECONDS = 0.02, 0.05, 0.3

T = TypeVar("T")


def write_preparing(run: Path, content: dict[str, Any]) -> Path:
    return _write(run / FOLDER / "prepare.json", {"kind": "prepare", **content})


def write_training(run: Path, content: dict[str, Any]) -> Path:
    """Adds a training and removes those before the last :data:`KEEP`; of several processes one after the other."""
    with _alone_in(run / FOLDER):
        before = trainings(run)
        number = 1 + max((_number(path) for path in before), default=0)
        path = _write(run / FOLDER / f"train-{number}.json", {"kind": "train", "number": number, **content})
        for old in before[: max(len(before) + 1 - KEEP, 0)]:
            old.unlink(missing_ok=True)
        return path


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Makes ``folder`` and locks it for the block: two trainings that end together would take the same number."""
    with naming_files(folder):
        folder.mkdir(exist_ok=True)
    with opened(folder) as handle:
        try_lock(handle)
        yield


def trainings(run: Path) -> list[Path]:
    """Returns the recorded trainings, the oldest first."""
    folder = run / FOLDER
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if _TRAINING.fullmatch(p.name)), key=_number)


def read_preparing(run: Path) -> dict[str, Any] | None:
    """Reads how a run was prepared; None: nobody has kept it.

    Raises:
        FormatError: As :func:`read`, or it does not say what its stages are.
    """
    path = run / FOLDER / "prepare.json"
    if not path.is_file():
        return None
    record = read(path)
    stages = record.get("stages", {})
    if not (isinstance(stages, dict) and all(isinstance(one, dict) for one in stages.values())):
        raise FormatError(f"{path} does not say what its stages are: delete it, nothing depends on it")
    return record


def read(path: Path) -> dict[str, Any]:
    """Reads a record as it was written.

    Raises:
        FormatError: No record, torn, changed, or of another version.
    """
    try:
        raw = parse_json(path.read_bytes())
    except (ValueError, OSError) as error:
        raise FormatError(f"{path} cannot be read as a record of history ({error}): delete it") from None
    found = (raw.get("format"), raw.get("version")) if isinstance(raw, dict) else (None, None)
    if found != (FORMAT, VERSION):
        raise FormatError(
            f"{path} is {found[0]!r} version {found[1]!r}, not {FORMAT} {VERSION}: delete it, nothing depends on it"
        )
    if not manifests.is_as_written(raw):
        raise FormatError(
            f"{path} says other than was written: it was damaged, or changed by hand: delete it, nothing depends on it"
        )
    return raw


def disk_bytes(run: Path) -> int:
    """Counts the bytes of all files of the run; its history is not counted."""
    return system.bytes_of_files(run, but=run / FOLDER)


def _number(path: Path) -> int:
    match = _TRAINING.fullmatch(path.name)
    return int(match[1]) if match else 0


def _write(path: Path, content: dict[str, Any]) -> Path:
    with naming_files(path):
        path.parent.mkdir(exist_ok=True)
    told = json.loads(json.dumps({"format": FORMAT, "version": VERSION, **content}))
    told[manifests.CHECKSUM] = manifests.checksum_of(told)
    manifests.write_atomic(path, json.dumps(told, separators=(",", ":")).encode() + b"\n")
    return path


def largest_file(run: Path, graph: Graph) -> Path:
    """Returns the file that the disk under a run is measured by: reading what is there needs no room of its own."""
    found = [*(run / "pack").glob("*.bin"), graph.measured_file]
    return max((path for path in found if path.is_file()), key=lambda path: path.stat().st_size)


@contextmanager
def recording_training(
    run: Path | None,
    graph: Graph,
    sampling: SampleConfig,
    settings: dict[str, Any],
    mode: str,
    runtime: Runtime,
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Records a training in ``run``'s history; the block hands the dict of its report to what is yielded.

    Left by an error, the epochs until then are recorded with it. Without a run nothing is.
    """
    if run is None:
        yield lambda report: None
        return
    about = {
        **_about(graph, runtime),
        "mode": mode,
        "sampling": sampling.as_stored(),
        "training": settings,
        "plan": _digest(run / "plan"),
    }
    recorder = Recorder(runtime)

    def write(report: dict[str, Any], epochs: list[dict[str, Any]], **more: Any) -> None:
        losses = thinned(report.pop("batch_losses", []), _MAX_LOSSES)
        kept = {**about, **more, "report": report, "batch_losses": losses, "epochs": thinned(epochs)}
        _safely(lambda: write_training(run, {**kept, **recorder.as_dict()}))

    def finish(report: dict[str, Any]) -> None:
        result = dict(report)
        seen = {record["epoch"]: record["stage_seconds"] for record in recorder.epochs}
        # Epochs without stage_seconds come from a checkpoint: they ran in another process.
        epochs = [{**record, "stage_seconds": seen.get(record["epoch"])} for record in result.pop("epochs")]
        write(result, epochs, disk=_safely(lambda: _disk_rates(run, graph, result["seconds"])))

    try:
        with recorder.watching():
            yield finish
    except BaseException as error:
        if recorder.epochs:
            write({}, recorder.epochs, ended=f"{type(error).__name__}: {error}")
        raise


@contextmanager
def recording_preparing(
    run: Path, graph: Graph, runtime: Runtime
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Records in ``run``'s history how it was prepared; the block hands the dict of its report to what is yielded.

    Stages that were skipped keep what was known of them.
    """
    recorder = Recorder(runtime)
    about = _about(graph, runtime)

    def finish(report: dict[str, Any]) -> None:
        known = (_safely(lambda: read_preparing(run)) or {}).get("stages", {})
        result = dict(report)
        stages = result.pop("stages")
        merged = {
            name: {**stages[name], "finished_at": _now(), "command": about["command"]}
            if name in stages
            else known[name]
            for name in ("sample", "plan", "pack")
            if name in stages or name in known
        }
        content = {**about, "report": result, "stages": merged, **recorder.as_dict()}
        _safely(lambda: write_preparing(run, content))

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
            "feature_dtype": ", ".join(dict.fromkeys(rows.stored_as for rows in graph.row_files)) or None,
            "feature_bytes": graph.feature_bytes,
            **({"row_files": _row_files(graph)} if len(graph.row_files) > 1 else {}),
        },
    }


def _row_files(graph: Graph) -> list[dict[str, Any]]:
    """Describes the row files, in the order of ``rows_by_file`` of an epoch."""
    return [
        {"of": name_of(rows), "rows": rows.num_rows, "row_bytes": rows.row_bytes} for rows in graph.row_files
    ]


def _command() -> str:
    """Returns what the user typed, as far as it can be told."""
    name = Path(sys.argv[0]).name if sys.argv else ""
    return shlex.join(["outcrop" if name == "__main__.py" else name or "python", *sys.argv[1:]])


def _disk_rates(run: Path, graph: Graph, trained_seconds: float) -> dict[str, Any] | None:
    seconds = min(_MEASURING_SHARE * trained_seconds, _LONGEST_SECONDS)
    if seconds < _SHORTEST_SECONDS:
        return None
    return machine.read_rates(largest_file(run, graph), seconds=seconds / 2)


def _digest(folder: Path) -> str | None:
    try:
        return manifests.read_any(folder).digest()
    except OutcropError:
        return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _safely(step: Callable[[], T]) -> T | None:
    """Returns the step's result, or None and a warning: history is worth less than what it is about."""
    try:
        return step()
    except (OutcropError, OSError, ValueError, TypeError) as error:
        warnings.warn(f"the run's history was not kept: {error}", OutcropWarning, stacklevel=2)
        return None
