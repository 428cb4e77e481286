"""What a training is done with where the user left it open: batches, mode, memory and disk space; and who is told."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from outcrop.advisor import auto
from outcrop.config import (
    Checkpoints,
    Limits,
    ModelConfig,
    PlanConfig,
    Refresh,
    Replay,
    SampleConfig,
    TrainConfig,
    check_epochs_unset,
    format_bytes,
)
from outcrop.config.models import wants_degrees, wants_edge_rows
from outcrop.errors import ArgumentError, OutcropWarning
from outcrop.loading.modes import Mode, Packed, mode_named
from outcrop.loading.run_stages import memory_of_run
from outcrop.store import run as runs
from outcrop.store.graph import Graph
from outcrop.training.last_checkpoint import meta_of_last


class Choices:
    """Tells what was chosen for the user when it is, and keeps it for the report.

    Attributes:
        seconds: What choosing mode and limits took, before anything was prepared.
    """

    def __init__(self, on_choice: Callable[[str], None] | None):
        self._on_choice = on_choice
        self._lines: list[str] = []
        self.seconds = 0.0

    @property
    def text(self) -> str:
        return "\n".join(self._lines)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Counts the time within as time of choosing."""
        begun = time.monotonic()
        yield
        self.seconds += time.monotonic() - begun

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
        self.warn(why)

    def warn(self, why: str) -> None:
        """Says it; by a warning where nobody listens."""
        if why and self._on_choice is None:
            warnings.warn(why, OutcropWarning, stacklevel=5)
        self.add(why)


@dataclass(frozen=True)
class TrainOptions:
    """Describes a training as users write it.

    Attributes:
        sampling: How batches are drawn; None: as a run has it, else as usual.
        mode: Where rows come from; None: to be chosen.
        run: Where batches come from: a prepared run, a few epochs that are replayed, or epochs that are prepared while
            others train; None: new batches in every epoch.
        checkpoints: Where checkpoints go; None: nowhere.
    """

    graph: Graph
    model: ModelConfig = field(default_factory=ModelConfig)
    sampling: SampleConfig | None = None
    mode: Mode | None = None
    limits: Limits = field(default_factory=Limits)
    training: TrainConfig = field(default_factory=TrainConfig)
    run: Path | Replay | Refresh | None = None
    checkpoints: Checkpoints | None = None

    def __post_init__(self) -> None:
        if self.sampling is not None:
            check_epochs_unset(
                self.sampling,
                "run=Replay(epochs) to replay the batches of a few epochs, or run=Refresh(epochs) to prepare so many "
                "at a time",
            )

    @property
    def folder(self) -> Path | None:
        """Returns the folder that was named for the run, or for what is prepared while others train."""
        if isinstance(self.run, Refresh):
            return None if self.run.folder is None else Path(self.run.folder)
        return self.run if isinstance(self.run, Path) else None

    @property
    def drawn(self) -> SampleConfig:
        """Says how batches are drawn without a run; ``epochs`` of them at a time, or again and again."""
        sampling = self.sampling or SampleConfig(seed=self.training.seed)
        epochs = self.run.epochs if isinstance(self.run, Replay | Refresh) else 1
        degrees = sampling.degrees or wants_degrees(self.model.name, sampling.sampler)
        edge_rows = sampling.edge_rows or wants_edge_rows(self.model.name, self.graph.has_edge_rows)
        edge_weights = sampling.edge_weights or self.model.edge_weights
        return replace(
            sampling,
            epochs=epochs,
            degrees=degrees,
            node_type=sampling.node_type or self.graph.chosen_seeds,
            edge_rows=edge_rows,
            edge_weights=edge_weights,
        )

    @property
    def goes_on(self) -> Path | None:
        """Returns the folder of the checkpoint that training goes on from, if there is one; None: it starts over."""
        kept = self.checkpoints
        return kept.path if kept is not None and kept.resume else None


@dataclass(frozen=True)
class BatchChoice:
    """Says which batches a training has, by which mode and within which limits, all of it chosen.

    Attributes:
        new_batches: Every epoch has batches of its own.
        gpu_memory: Bytes of the device: those named, or else what a run was planned for.
    """

    mode: Mode
    sampling: SampleConfig
    limits: PlanConfig
    new_batches: bool
    gpu_memory: int


def choose_batches(asked: TrainOptions, said: Choices) -> BatchChoice:
    """Chooses what was left open; ``said`` is told what, and why.

    Raises:
        ArgumentError: A run that was named has other batches than those asked for, or edges to be predicted.
        BudgetError: There is too little memory to choose from.
    """
    replayed = _replayed_epochs(asked.goes_on)
    if asked.run is None and replayed:
        asked = replace(asked, run=Replay(replayed))
        said.add(
            f"{asked.goes_on} was begun replaying batches, and goes on so: --fresh (Checkpoints(..., resume=False)) "
            "starts over with new ones"
        )
    mode, limits, why = _choose_limits(asked)
    said.add(why)
    sampling, planned = asked.drawn, 0
    if isinstance(asked.run, Path):
        info = _run_to_train_on(asked.run, asked.sampling is not None)
        sampling, planned = info.sample, info.plan.gpu_memory
        if limits.memory is None:
            memory, now = _memory_of(info, mode), limits.processes or 1
            before = info.plan.processes or 1
            if memory is not None and now != before:
                memory = memory_of_run(asked.run, info, now)
                said.add(
                    f"{asked.run} was prepared for {before} {'process' if before == 1 else 'processes'} a machine: "
                    f"{now} take {format_bytes(memory or 0)} (--processes of outcrop prepare)"
                )
            limits = replace(limits, memory=memory)
    in_bytes = limits.in_bytes(asked.graph.with_edge_rows(sampling.edge_rows).feature_bytes)
    new_batches = asked.run is None or isinstance(asked.run, Refresh)
    return BatchChoice(mode, sampling, in_bytes, new_batches, in_bytes.gpu_memory or planned)


def _choose_limits(asked: TrainOptions) -> tuple[Mode, Limits, str]:
    """Returns the mode and the limits with memory and disk space in place of ``"auto"``, and why; a run that was named
    has its own batches and limits.
    """
    if not auto.is_auto(asked.limits.memory):
        return asked.mode or Packed(), asked.limits, ""
    graph, folder, sampling = asked.graph, asked.folder, asked.drawn
    refresh, space = isinstance(asked.run, Refresh), asked.limits.disk_space
    out = graph.path.with_name(graph.path.name + ".run") if folder is None else folder
    if folder is not None and (folder / runs.RUN_FILE).is_file():
        sampling = runs.read(folder).sample
    choice = auto.choose_limits(
        graph,
        sampling,
        out if asked.mode is None or asked.mode.prepares else None,
        auto.TrainingAhead(
            epochs=asked.training.epochs,
            model=asked.model,
            disk_space=space,
            refresh=refresh,
            least_epochs=asked.training.epochs if asked.run is None else None,
        ),
    )
    mode = asked.mode or mode_named(choice.mode)
    space = choice.disk_space if mode.prepares else space
    return mode, replace(asked.limits, memory=choice.memory, disk_space=space), choice.why


def _run_to_train_on(folder: Path, samples: bool) -> runs.RunInfo:
    """Returns the description of a run, which has batches of its own."""
    info = runs.read(folder)
    if samples:
        raise ArgumentError(
            f"{folder} has its own sampling (fanouts and batch size, sampler): leave it out, or prepare another run"
        )
    if info.sample.task == "link":
        raise ArgumentError(
            f"{folder} holds edges to be predicted: train on Run({str(folder)!r}).loader() with a loop of your own"
        )
    return info


def with_seeds_of(graph: Graph, sampling: SampleConfig | None, run: Path | Replay | Refresh | None) -> Graph:
    """Returns the graph as it is for the batches: those that are drawn begin with the type that ``sampling`` names, or
    else ``graph``; those of a run that is there are as they are.
    """
    if sampling is None and isinstance(run, Path) and (run / runs.RUN_FILE).is_file():
        return graph.with_seeds(runs.read(run).sample.node_type)
    return graph if sampling is None or sampling.node_type is None else graph.with_seeds(sampling.node_type)


def check_task(sampling: SampleConfig | None) -> None:
    """Refuses batches of edges to be predicted, before any are prepared."""
    if sampling is not None and sampling.task == "link":
        raise ArgumentError(
            "task 'link' makes batches of edges to be predicted, which train does not learn from: prepare a run of "
            "them, and train on its loader() with a loop of your own"
        )


def _replayed_epochs(checkpoint: Path | None) -> int | None:
    """Counts the epochs that ``checkpoint`` has replayed, as was usual before new batches were; None: it has
    not yet.
    """
    meta = meta_of_last(checkpoint)
    if meta is None:
        return None
    sampled = meta.inputs.get("sampling", {}).get("epochs")
    return sampled if sampled is not None and sampled < meta.epochs_done else None


def _memory_of(run: runs.RunInfo, mode: Mode) -> int | None:
    """Returns the budget of a run, but of mode ``memory``: it has all features in memory, whatever the run was made
    for.
    """
    return run.plan.memory if mode.takes_run_budget else None
