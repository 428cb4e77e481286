"""What a training is done with where the user left it open: batches, mode, memory and disk space; and who is told."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from outcrop.advisor import auto
from outcrop.config import PlanConfig, SampleConfig, Size, parse_size
from outcrop.errors import ArgumentError, OutcropWarning
from outcrop.loading.modes import Mode, Packed, mode_named
from outcrop.nn import checkpoint as checkpoints
from outcrop.store import run as runs
from outcrop.store.graph import Graph


class Choices:
    """What was chosen for the user: told when it is, and kept for the report."""

    def __init__(self, on_choice: Callable[[str], None] | None):
        self._on_choice = on_choice
        self._lines: list[str] = []

    @property
    def text(self) -> str:
        return "\n".join(self._lines)

    def add(self, why: str) -> None:
        if not why:
            return
        self._lines.append(why)
        if self._on_choice is not None:
            self._on_choice(why)

    def replay(self, distinct: int, epochs: int, run: Path | None) -> None:
        """Says it where epochs are replayed; a warning where nobody asked for that and nobody listens."""
        if distinct >= epochs:
            return
        have = "1 epoch" if distinct == 1 else f"{distinct} epochs"
        if run is None:
            self.add(f"the batches of {have} are replayed in all {epochs}, as asked for (sample epochs)")
            return
        why = (
            f"{run} has {have} prepared, {epochs} are trained: batches are replayed; outcrop prepare --epochs {epochs} "
            "--overwrite makes new ones for every epoch"
        )
        if self._on_choice is None:
            warnings.warn(why, OutcropWarning, stacklevel=4)
        self.add(why)


@dataclass(frozen=True)
class BatchOptions:
    """Which batches to train on, and under which limits, as users write it.

    Attributes:
        run: A prepared run, or with ``refresh`` the folder of sample pools.
        mode, memory: None and ``"auto"``: to be chosen.
        sampling: Of a training without a run; ``sampling.epochs`` are replayed where ``replays`` says so.
        replays: A number of epochs was named.
        samples: Fanouts or a batch size were named, which a run has of its own.
        goes_on: The checkpoint that training goes on from, if there is one; None: it starts over.
    """

    graph: Graph
    run: Path | None
    mode: Mode | None
    sampling: SampleConfig
    replays: bool
    samples: bool
    epochs: int
    model: str
    hidden: int | None
    memory: Size | None
    gpu_memory: Size
    disk_space: Size | None
    refresh: bool
    goes_on: Path | None


@dataclass(frozen=True)
class BatchChoice:
    """The same, chosen.

    Attributes:
        new_batches: Every epoch has batches of its own.
        gpu_memory: Bytes of the device: those named, or else what a run was planned for.
    """

    mode: Mode
    sampling: SampleConfig
    limits: PlanConfig
    new_batches: bool
    gpu_memory: int


def choose_batches(asked: BatchOptions, said: Choices) -> BatchChoice:
    """Chooses what was left open; ``said`` is told what, and why.

    Raises:
        ArgumentError: A run that was named has other batches than those asked for, or edges to be predicted.
        BudgetError: There is too little memory to choose from.
    """
    new_batches = asked.refresh or (asked.run is None and not asked.replays)
    replayed = _replayed_epochs(asked.goes_on)
    if new_batches and not asked.refresh and replayed:
        new_batches, asked = False, replace(asked, sampling=replace(asked.sampling, epochs=replayed))
        said.add(
            f"{asked.goes_on} was begun replaying batches, and goes on so: --fresh starts over with new ones"
        )
    asked, mode, why = _choose_limits(asked, asked.epochs if new_batches and not asked.refresh else None)
    said.add(why)
    sampling, memory, planned = asked.sampling, asked.memory, 0
    if asked.run is not None and not asked.refresh:
        info = _run_to_train_on(asked.run, asked.samples)
        sampling, planned = info.sample, info.plan.gpu_memory
        memory = _memory_of(info, mode) if memory is None else memory
    space = asked.disk_space
    limits = PlanConfig(
        memory=None if memory is None else parse_size(memory),
        gpu_memory=parse_size(asked.gpu_memory),
        disk_space=None if space is None else parse_size(space, feature_bytes=asked.graph.feature_bytes),
    )
    return BatchChoice(mode, sampling, limits, new_batches, limits.gpu_memory or planned)


def _choose_limits(asked: BatchOptions, least_epochs: int | None) -> tuple[BatchOptions, Mode, str]:
    """What was asked with memory, mode and disk space in place of ``"auto"``, and why; a run that was named has its
    own batches and limits."""
    if not auto.is_auto(asked.memory):
        return asked, asked.mode or Packed(), ""
    graph, folder, sampling = asked.graph, asked.run, asked.sampling
    out = graph.path.with_name(graph.path.name + ".run") if folder is None else folder
    if folder is not None and (folder / runs.RUN_FILE).is_file():
        sampling = runs.read(folder).sample
    choice = auto.choose_limits(
        graph,
        sampling,
        out if asked.mode is None or asked.mode.prepares else None,
        epochs=asked.epochs,
        model=asked.model,
        hidden=asked.hidden,
        disk_space=asked.disk_space,
        refresh=asked.refresh,
        least_epochs=None if folder is not None else least_epochs,
    )
    mode = asked.mode or mode_named(choice.mode)
    space = choice.disk_space if mode.prepares else asked.disk_space
    return replace(asked, memory=choice.memory, disk_space=space), mode, choice.why


def _run_to_train_on(folder: Path, samples: bool) -> runs.RunInfo:
    """The description of a run, which has batches of its own."""
    info = runs.read(folder)
    if samples:
        raise ArgumentError(
            f"{folder} has its own fanouts and batch size: leave them out, or prepare another run"
        )
    if info.sample.task == "link":
        raise ArgumentError(
            f"{folder} holds edges to be predicted: train on Run({str(folder)!r}).loader() with a loop of your own"
        )
    return info


def _replayed_epochs(checkpoint: Path | None) -> int | None:
    """How many epochs ``checkpoint`` has replayed, as was usual before new batches were; None: it has not yet."""
    path = None if checkpoint is None else checkpoint / checkpoints.LAST
    if path is None or not path.exists():
        return None
    meta = checkpoints.read(path).meta
    sampled = meta.inputs.get("sampling", {}).get("epochs")
    return sampled if sampled is not None and sampled < meta.epochs_done else None


def _memory_of(run: runs.RunInfo, mode: Mode) -> int | None:
    """The budget of a run, but of mode ``memory``: it has all features in memory, whatever the run was made for."""
    return run.plan.memory if mode.takes_run_budget else None
