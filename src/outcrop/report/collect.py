"""What a report is made from: the manifests of a run and its history, or the JSON of a benchmark. Reads files only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outcrop.errors import ArgumentError, FormatError
from outcrop.runtime.parsing import parse_json
from outcrop.store import history, run
from outcrop.store import manifest as manifests
from outcrop.store.manifest import Manifest
from outcrop.store.run import STAGES, RunInfo


@dataclass(frozen=True)
class RunFacts:
    """Describes a run as its files tell it.

    Attributes:
        stages: Manifests of the finished stages.
        preparing: Record of preparing, None where none was kept.
        trainings: Records of the trainings that were kept, the oldest first.
        training: The one that the report is about.
        disk: Read rates of the disk, from the training's record or measured for the report.
        problems: What could not be read.
    """

    path: Path
    info: RunInfo
    stages: dict[str, Manifest]
    preparing: dict[str, Any] | None
    trainings: list[dict[str, Any]]
    training: dict[str, Any] | None
    disk: dict[str, float] | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def predicted(self) -> dict[str, Any]:
        plan = self.stages.get("plan")
        return {} if plan is None else plan.attributes.get("predicted", {})

    def stage_bytes(self, name: str) -> int:
        return sum(spec.file_bytes for spec in self.stages[name].arrays.values())


def collect_run(path: Path, number: int | None = None) -> RunFacts:
    """Reads the run at ``path``; ``number``: of a recorded training, None takes the latest on the run as
    it was prepared last.

    Raises:
        FormatError: No run.
        ArgumentError: No training of that number was kept.
    """
    info = run.read(path)
    problems: list[str] = []
    stages: dict[str, Manifest] = {}
    for name in STAGES:
        if manifests.exists(path / name):
            try:
                stages[name] = manifests.read_any(path / name)
            except FormatError as error:
                problems.append(str(error))
    trainings = [found for file in history.trainings(path) if (found := _read(file, problems)) is not None]
    try:
        preparing = history.read_preparing(path)
    except FormatError as error:
        preparing = None
        problems.append(str(error))
    training = _chosen(path, trainings, number, stages.get("plan"))
    disk = training.get("disk") if training else None
    return RunFacts(path, info, stages, preparing, trainings, training, disk, problems)


def _read(file: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        return history.read(file)
    except FormatError as error:
        problems.append(str(error))
        return None


def _chosen(
    path: Path, trainings: list[dict[str, Any]], number: int | None, plan: Manifest | None
) -> dict[str, Any] | None:
    """Returns the training ``number``; None: the latest on the run as it is, not on one that was there before it."""
    if number is None:
        current = (None, None if plan is None else plan.digest())
        return next((t for t in reversed(trainings) if plan is None or t.get("plan") in current), None)
    for training in trainings:
        if training.get("number") == number:
            return training
    known = ", ".join(str(t.get("number")) for t in trainings) or "none"
    raise ArgumentError(f"{path} has no record of training {number}; recorded: {known}")


def read_bench(path: Path) -> dict[str, Any]:
    """Returns the JSON that ``outcrop bench --json`` wrote.

    Raises:
        FormatError: Not that.
    """
    try:
        raw = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} cannot be read as the JSON of a benchmark: {error}") from None
    if not isinstance(raw, dict) or "experiment" not in raw:
        raise FormatError(
            f"{path} is no result of outcrop bench (it names no experiment): pass the FILE of outcrop bench --json"
        )
    return raw
