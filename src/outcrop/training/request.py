"""A training as it was asked for, and as it will be done: every check and every choice, before anything is prepared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from outcrop import device as devices
from outcrop.advisor.auto import is_auto
from outcrop.advisor.choose import SpoolDecision
from outcrop.advisor.epochs_at_a_time import all_there, most_bytes, num_batches
from outcrop.config import Checkpoints, DeviceConfig, ModelConfig, Refresh, TrainConfig
from outcrop.config.sampling import EXTERNAL
from outcrop.errors import ArgumentError, BudgetError
from outcrop.loading.modes import Mode, Online, Packed
from outcrop.loading.open import check_types
from outcrop.loading.open import check_weights as require_weights_loaded
from outcrop.nn.schema import schema_of
from outcrop.runtime.group import Group
from outcrop.store import identity
from outcrop.store.graph import Graph
from outcrop.training import spool
from outcrop.training.batch_request import BatchRequest
from outcrop.training.checks import (
    check_beside,
    check_checkpoint,
    check_complete,
    check_evaluation,
    check_layers,
    check_steps,
    check_weights,
    edge_width,
    weights_left_out,
)
from outcrop.training.choices import BatchChoice, Choices, TrainOptions, check_task, choose_batches
from outcrop.training.early_stopping import stopped_early
from outcrop.training.last_checkpoint import meta_of_last
from outcrop.training.learning import LearningTask
from outcrop.training.objectives import choose_objective
from outcrop.training.processes import for_processes
from outcrop.training.supply import folder_beside
from outcrop.training.weights import check_class_weights

# Read and written while preparing and training: so much is done when others have looked.
_SMALL_BYTES = 4 << 30


def _choose_batches(asked: TrainOptions, said: Choices, group: Group | None) -> BatchChoice:
    """Chooses what was left open; of several processes the first does for all, where the machine decides."""
    if group is None or group.alone or not is_auto(asked.limits.memory):
        return choose_batches(asked, said)
    with group.together("choosing the memory"):
        chosen = choose_batches(asked, said)
    return group.gather(chosen)[0]


@dataclass(frozen=True)
class TrainRequest:
    """Describes a training, every choice made and every option checked; nothing is prepared yet.

    Attributes:
        batches: Batches, the mode that loads them, and limits.
        learning: What is learned from them.
        device: Where batches go.
        run: A prepared run; with ``refresh`` the folder of sample pools.
        refresh: Epochs are prepared while those before them train; ``rate`` is its limit. None: all before.
        checkpoints: Where checkpoints go; None: nowhere.
        spooling: How mode ``online`` gets its rows, where that was decided with the mode.
        mode_open: Whether no mode was named: what does not fit in one may be done in another.
    """

    graph: Graph
    batches: BatchChoice
    learning: LearningTask
    device: DeviceConfig
    run: Path | None = None
    refresh: Refresh | None = None
    checkpoints: Checkpoints | None = None
    spooling: SpoolDecision | None = None
    mode_open: bool = False

    def __post_init__(self) -> None:
        if not self.mode.prepares and self.batches.new_batches and self.run is not None:
            raise ArgumentError(
                f"mode {self.mode} draws the batches of every epoch itself: leave --run {self.run} out"
            )

    @classmethod
    def resolve(cls, asked: TrainOptions, said: Choices, group: Group | None = None) -> TrainRequest:
        """Checks what was asked for, and chooses what was left open; ``said`` is told what, and why.

        Args:
            group: Processes that train together; None: this one trains alone.

        Raises:
            OutcropError: Training could not be done so; nothing was written.
        """
        asked = for_processes(asked, group or Group())
        graph, training = asked.graph, asked.training
        if asked.mode is None and not graph.row_files:
            asked = replace(asked, mode=Online())
            said.add("the graph has no features to pack: batches are drawn as they are needed (mode online)")
        if asked.mode is None and graph.leaves_rows:
            asked = replace(asked, mode=Packed())  # the only one that can do without them
        mode = asked.mode or Packed()
        check_task(asked.sampling)
        check_evaluation(mode, training.evaluate_every)
        devices.gpu_named(training.device)  # raises where there is none
        mode.check(graph, training.device)
        check_complete(graph)
        objective = choose_objective(graph.label_kind, training.loss, training.metric)
        check_class_weights(graph, training.class_weights)
        with said.timed():
            batches = _choose_batches(asked, said, group)
        if graph.leaves_rows and training.test and batches.mode.prepares:
            training = replace(training, test=False)
            said.add(f"the test nodes are not scored, whose rows are not packed: {graph.what_is_left()}")
        edge_dim = edge_width(graph, asked.model, batches.sampling)
        check_weights(graph, asked.model, batches.sampling)
        require_weights_loaded(batches.sampling, batches.mode, training.device)
        said.add(weights_left_out(graph, asked.model, batches.sampling))
        graph = graph.with_edge_rows(batches.sampling.edge_rows)
        if graph.has_edge_rows:
            check_types(graph, batches.mode, training.device)
        model = asked.model
        check_layers(model, batches.sampling)
        if model.layers is None:
            model = replace(model, layers=len(batches.sampling.fanouts))
        inputs = {
            "graph": graph.digest(),
            "sampling": identity.sampling_fields(batches.sampling, fresh=batches.new_batches),
            **batches.mode.identity(),
        }
        schema = schema_of(graph, model, training.seed)
        learning = LearningTask(
            model, training, graph.feature_dim, graph.num_classes, objective, inputs, schema, edge_dim
        )
        check_steps(learning)
        found = cls(
            graph,
            batches,
            learning,
            batches.mode.device(training.device, batches.gpu_memory),
            run=asked.folder,
            refresh=asked.run if isinstance(asked.run, Refresh) else None,
            checkpoints=asked.checkpoints,
            mode_open=asked.mode is None
            and (group is None or group.alone)
            and not isinstance(asked.run, Path | Refresh),
        )
        if group is not None and not group.alone:
            found.check_divisible()
        elif found.mode_open and not is_auto(asked.limits.memory):
            with said.timed():
                return found._in_fastest_mode(said)
        return found

    def _in_fastest_mode(self, said: Choices) -> TrainRequest:
        """Returns the same training in mode ``online`` where it is predicted to end surely sooner than with preparing,
        and nothing is prepared yet; else this one. Both train on the same batches.
        """
        graph, asked = self.graph, self.batch_request
        most = most_bytes(graph, asked.sampling, asked.limits)
        small = most is not None and graph.feature_bytes + 2 * most.run(asked.epochs) < _SMALL_BYTES
        if (
            self.mode != Packed()
            or small
            or asked.next_epoch is None
            or asked.sampling.sampler == EXTERNAL
            or all_there(graph, asked.sampling, asked.limits, folder_beside(graph, ".run"))
        ):
            return self
        drawn = self.drawn
        if drawn is None:
            return self
        try:
            facts = spool.look(asked, self.learning)
        except BudgetError:  # preparing will say what it needs
            return self
        if isinstance(facts, spool.SpoolingFacts) and not facts.direct_may_be_sooner(graph, self.model):
            return self  # torch is not loaded yet: preparing has its memory for the neighbour lists
        spooling = spool.decide_spooling(asked, self.learning, facts)
        if not (spooling.direct_fits and spooling.direct_is_sooner):
            return self
        said.add(
            f"mode online: {asked.epochs} {'epoch is' if asked.epochs == 1 else 'epochs are'} predicted to take "
            f"{spooling.direct_s:.3g} s so, {spooling.spooled_s:.3g} s packed, preparing included (--mode packed keeps "
            "what it prepares for the next training)"
        )
        return replace(drawn, spooling=replace(spooling, epochs=0, why=""))

    @property
    def drawn(self) -> TrainRequest | None:
        """Returns the same training in mode ``online``, its rows read as batches are drawn; None where a mode was
        named, or that one cannot load such a graph.
        """
        online = Online(**self.mode.common)
        if not self.mode_open or self.mode != Packed():
            return None
        try:
            online.check(self.graph, self.training.device)
        except ArgumentError:
            return None
        batches = replace(self.batches, mode=online)
        device = online.device(self.training.device, batches.gpu_memory)
        spooling = SpoolDecision(0, batches.limits.disk_space, "")
        return replace(self, batches=batches, device=device, spooling=spooling)

    def check_divisible(self) -> None:
        """Raises ArgumentError where several processes cannot have a part each of the batches."""
        if self.batches_of("train") is None:
            raise ArgumentError(
                f"mode {self.mode} goes over whole epochs, which cannot be divided among processes: choose mode "
                "packed, online or memory"
            )

    @property
    def mode(self) -> Mode:
        return self.batches.mode

    @property
    def model(self) -> ModelConfig:
        return self.learning.model

    @property
    def training(self) -> TrainConfig:
        return self.learning.training

    @property
    def batch_request(self) -> BatchRequest:
        """Returns the batches that the training asks for."""
        epoch, batch = self._next_batch()
        return BatchRequest(
            self.graph,
            self.batches.sampling,
            self.batches.limits,
            self.training.epochs,
            next_epoch=epoch,
            next_batch=batch,
            refresh=self.batches.new_batches,
            rate=None if self.refresh is None else self.refresh.bytes_per_second,
            topology=self.mode.topology,
            paranoid=self.mode.paranoid,
        )

    @property
    def prepares(self) -> bool:
        """Tells whether a run, or pools, are made for this training."""
        return self.mode.prepares and (self.run is None or self.refresh is not None)

    @property
    def place(self) -> Path:
        """Returns the folder of the run, or of the pools."""
        return self.run or folder_beside(self.graph, ".pools" if self.batches.new_batches else ".run")

    @property
    def epoch_splits(self) -> tuple[str, ...]:
        """Returns what one epoch goes over."""
        return ("train", "valid") if self.graph.has_nodes_of("valid") else ("train",)

    @property
    def spools(self) -> bool:
        """Tells whether rows may be written in the order of their use first, where that is sooner done; of several
        processes each draws what it trains on."""
        return self.mode.spools and self.run is None and self.batches.limits.processes is None

    def check_folders(self) -> None:
        """Checks that checkpoints, and what is prepared beside the graph, can lie where they would.

        Raises:
            ArgumentError: Checkpoints cannot, or those there are of another training.
            IoError: The folder of the graph is not writable.
        """
        if self.checkpoints is not None:
            check_checkpoint(self.checkpoints, self.learning)
        there = any(folder_beside(self.graph, suffix).exists() for suffix in (".run", ".pools"))
        if self.prepares and self.run is None and not there and self._next_batch()[0] is not None:
            check_beside(self.graph)

    def batches_of(self, split: str) -> int | None:
        """Counts the batches of an epoch of ``split``; None where the mode decides it, or the split has no nodes."""
        sampling = self.batches.sampling
        # Where the mode decides it, loading cannot begin within an epoch either.
        if sampling.sampler == EXTERNAL or not self.mode.starts_within_epoch or not self.graph.has(split):
            return None
        return num_batches(self.graph, sampling, split)

    def _next_batch(self) -> tuple[int | None, int]:
        """Returns the epoch that training begins with, or goes on within, and the number of the batch; no epoch where
        there is nothing left to train.
        """
        kept = self.checkpoints
        meta = meta_of_last(kept.path) if kept is not None and kept.resume else None
        if meta is None:
            return 0, 0
        ended = stopped_early(meta.history, meta.best_epoch, self.training.patience)
        if ended or meta.epochs_done >= self.training.epochs:
            return None, 0
        return meta.epochs_done, int(meta.partial.get("batch", 0))
