"""Validation while embeddings are trained: when the validation edges are ranked, and the best vectors kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from outcrop.config import EmbedConfig
from outcrop.device.budget import give_back_cached
from outcrop.embed.checkpoint import CHECKPOINT, FOLDER, Position
from outcrop.embed.evaluate import evaluate, protocol_of
from outcrop.embed.files import SplitTable
from outcrop.embed.model import open_model
from outcrop.embed.rankings import EpochRanks, RankList, folder_of_best, read, write
from outcrop.embed.tables import Table
from outcrop.embed.training import EmbeddingResult, EmbeddingTrainer
from outcrop.errors import ArgumentError, OutcropError, naming_files
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests


class Validation:
    """Decides when the validation edges are ranked, and keeps what came of it.

    Args:
        run: Embedding run.
        config: Of the training.
        runtime: With the processes that train, which all call the same at the same time.
        fresh: Whether training starts over, whatever was ranked before.
    """

    def __init__(self, run: Path, config: EmbedConfig, runtime: Runtime, *, fresh: bool):
        self._run, self._config, self._runtime = run, config, runtime
        self._at = Position()
        group = self._group = runtime.group
        with group.together("reading what was ranked"):
            own = read(run) if group.leads and not fresh else None
        self._stored = group.gather(own)[0] or RankList()

    @property
    def rankings(self) -> list[EpochRanks]:
        return self._stored.rankings

    @property
    def keeps_best(self) -> bool:
        """Tells whether the vectors of the best epoch are kept."""
        return self._stored.best is not None

    @property
    def best(self) -> EpochRanks | None:
        return self._stored.best_ranking

    @property
    def stops(self) -> bool:
        """Tells whether no ranking was better for as long as patience lasts."""
        patience = self._config.patience
        if patience is None or self.best is None:
            return False
        return len(self.rankings) - self.rankings.index(self.best) > patience

    def train(self, make: Callable[[bool], EmbeddingTrainer]) -> EmbeddingResult:
        """Trains, from one ranking of the validation edges to the next.

        Between two of them training is closed and its memory given back, for ranking to have it; it goes on from the
        checkpoint, which makes no difference to what is learned.

        Args:
            make: Makes the training, opened to go on from its checkpoint; its argument: whether it is made first.
        """

        def go_on(first: bool) -> EmbeddingResult:
            with closing(make(first)) as fit:
                if first:
                    self.start(fit.at)
                result = fit.run(self._next_stop(fit.at))
                self._at = fit.at
            return result

        result = go_on(True)
        resumed = result.resumed_epoch
        while self._is_due(self._at):
            give_back_cached()
            self._rank(self._at.epoch - 1)
            if self._next_stop(self._at) <= self._at.epoch:
                break
            result = go_on(False)
        return replace(result, resumed_epoch=resumed)

    def _rank(self, epoch: int) -> None:
        """Ranks the validation edges by the vectors of the last checkpoint, and keeps them where they are the best."""
        with self._group.together("opening the vectors", patient=True):
            model = open_model(self._run, self._runtime, "last")
        with closing(model), self._runtime.trace.span("embed.validation", epoch=epoch):
            found = evaluate(model, "valid", candidates=self._config.candidates)
            hits = {str(k): share for k, share in found.hits.items()}
            self.add(EpochRanks(epoch, found.mrr, found.mean_rank, hits), model.table)

    def start(self, at: Position) -> None:
        """Begins with a training that is as far as ``at``; what is of later epochs, as of one before, goes.

        Raises:
            ArgumentError: Edges were ranked in another way before.
        """
        stored, every = self._stored, self._config.ranked_every
        stored.rankings = [one for one in stored.rankings if one.epoch < at.epoch]
        if stored.best is not None and stored.best >= at.epoch:
            stored.best = None
        protocol = protocol_of(True, self._config.candidates, False)
        if every is not None and self.rankings and stored.protocol != protocol:
            raise ArgumentError(
                f"the validation edges of {self._run} were ranked {stored.protocol} before, and would be {protocol} "
                "now, which does not compare: give --candidates as before, or start over with --fresh"
            )
        stored.protocol = stored.protocol if every is None else protocol
        stored.every = every or 1  # where none is made from now on, the best counts where training is now
        last = self.rankings.pop() if self._could_be_kept(at) else None
        if last is not None and not self._is_due(at):
            self.rankings.append(last)
        self._write()

    def _could_be_kept(self, at: Position) -> bool:
        """Tells whether the best vectors were not to be kept, are to be now, and are those of the last checkpoint."""
        best = self.best
        return (
            self._config.ranked_every is not None
            and self._config.keep_best
            and self._stored.best is None
            and best is not None
            and best.epoch == at.epoch - 1
            and not at.is_within_epoch
        )

    def _next_stop(self, at: Position) -> int:
        """Returns after how many epochs edges are ranked next, or training ends."""
        if self.stops or self._is_due(at):
            return at.epoch
        every = self._config.ranked_every or self._config.epochs
        return min((at.epoch // every + 1) * every, self._config.epochs)

    def _is_due(self, at: Position) -> bool:
        """Tells whether edges are to be ranked by the checkpoint at ``at``, and were not."""
        every = self._config.ranked_every
        if every is None or not at.epoch or at.is_within_epoch or self.stops:
            return False
        if any(one.epoch == at.epoch - 1 for one in self.rankings):
            return False
        return at.epoch % every == 0 or at.epoch == self._config.epochs

    def add(self, ranking: EpochRanks, table: SplitTable) -> None:
        """Takes what an epoch came to, and keeps its vectors where none was better.

        Args:
            table: The vectors that were ranked.

        Raises:
            ChecksumError, IoError: They cannot be read, or written a second time.
        """
        before = self.best
        self.rankings.append(ranking)
        if self.best is not before:
            if self._config.keep_best:
                self._keep(ranking.epoch, table)
            self._stored.best = ranking.epoch if self._config.keep_best else None
        self._write()

    def _write(self) -> None:
        self._group.once_a_machine(lambda: write(self._run, self._stored))

    def _keep(self, epoch: int, table: SplitTable) -> None:
        """Copies the checkpoint, and the slices that it names: those of a file by one process."""
        folder, group = folder_of_best(self._run, epoch), self._group
        try:
            with group.together("keeping the best vectors"):
                if group.leads:
                    shutil.rmtree(folder, ignore_errors=True)
                    with naming_files(folder):
                        folder.mkdir()
                        content = (self._run / FOLDER / CHECKPOINT).read_bytes()
                        manifests.write_atomic(folder / CHECKPOINT, content)
            with group.together("keeping the best vectors", patient=True):
                slab = self._runtime.budget.empty("partitions", table.slab_bytes)
                for number, file in enumerate(table.files):
                    if number % group.world == group.rank:
                        _copy_slices(file, folder / file.path.name, slab)
            with group.together("keeping the best vectors"):
                if group.leads:
                    manifests.sync_folder(folder)
                    manifests.sync_folder(self._run)
        except OutcropError:
            if group.leads:
                shutil.rmtree(folder, ignore_errors=True)
            raise


def _copy_slices(source: Table, out: Path, slab: np.ndarray) -> None:
    """Copies the slices of a table that is in one file, at their places; what lies between them takes no disk.

    Args:
        slab: uint8 [slab_bytes], used for each slice.

    Raises:
        ChecksumError: A slice is not what was written.
        IoError: The disk is full, or failed.
    """
    with naming_files(out), out.open("wb") as file:
        os.ftruncate(file.fileno(), source.path.stat().st_size)
        for part, place in enumerate(source.places):
            if place >= 0:
                source.load(part, slab)
                file.seek(source.stored_at(part).offset)
                file.write(slab.data)
        file.flush()
        os.fsync(file.fileno())
