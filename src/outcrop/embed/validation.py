"""Validation while embeddings are trained: when the validation edges are ranked, and the best vectors kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import outcrop._core as _core
from outcrop.config import EmbedConfig
from outcrop.embed.checkpoint import CHECKPOINT, FOLDER
from outcrop.embed.evaluate import evaluate, protocol_of
from outcrop.embed.files import SplitTable
from outcrop.embed.model import open_model
from outcrop.embed.rankings import EpochRanks, RankList, folder_of_best, read, write
from outcrop.embed.tables import Table
from outcrop.embed.training import EmbeddingResult, EmbeddingTrainer
from outcrop.errors import ArgumentError, ChecksumError, naming_files
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store.range_copy import as_array


class Validation:
    """Decides when the validation edges are ranked, and keeps what came of it.

    Args:
        run: Embedding run.
        config: Of the training.
        runtime: With the processes that train, which all call the same at the same time.
    """

    def __init__(self, run: Path, config: EmbedConfig, runtime: Runtime):
        self._run, self._config, self._runtime = run, config, runtime
        group = self._group = runtime.group
        with group.together("reading what was ranked"):
            own = read(run) if group.leads else None
        self._stored = group.gather(own)[0] or RankList()

    @property
    def rankings(self) -> list[EpochRanks]:
        return self._stored.rankings

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

        def go_on(first: bool) -> tuple[EmbeddingResult, int]:
            with closing(make(first)) as fit:
                if first:
                    self.start(fit.finished)
                return fit.run(self.next_stop(fit.finished)), fit.finished

        result, finished = go_on(True)
        resumed = result.resumed_epoch
        while self.is_due(finished):
            self._rank(finished)
            if self.next_stop(finished) == finished:
                break
            result, finished = go_on(False)
        return replace(result, resumed_epoch=resumed)

    def _rank(self, finished: int) -> None:
        """Ranks the validation edges by the vectors of the last checkpoint, and keeps them where they are the best."""
        with self._group.together("opening the vectors", patient=True):
            model = open_model(self._run, self._runtime, "last")
        with closing(model), self._runtime.trace.span("embed.validation", epoch=finished - 1):
            found = evaluate(model, "valid", candidates=self._config.candidates)
            hits = {str(k): share for k, share in found.hits.items()}
            self.add(EpochRanks(finished - 1, found.mrr, found.mean_rank, hits), model.table)

    def start(self, finished: int) -> None:
        """Begins with a training that has ``finished`` so many epochs; what is of later ones, as of one before, goes.

        Raises:
            ArgumentError: Edges were ranked in another way before.
        """
        stored = self._stored
        if not finished or any(one.epoch >= finished for one in self.rankings):
            stored.rankings = [one for one in stored.rankings if one.epoch < finished]
            if stored.best is not None and stored.best >= finished:
                stored.best = None
            self._write()
        every = self._config.ranked_every
        if every is None:
            if (
                self.rankings and stored.every != 1
            ):  # from now on none is made: the best counts where training is now
                stored.every = 1
                self._write()
            return
        protocol = protocol_of(True, self._config.candidates, False)
        if self.rankings and stored.protocol != protocol:
            raise ArgumentError(
                f"the validation edges of {self._run} were ranked {stored.protocol} before, and would be {protocol} "
                "now, which does not compare: give --candidates as before, or start over with --fresh"
            )
        stored.protocol, stored.every = protocol, every

    def next_stop(self, finished: int) -> int:
        """Returns after how many epochs edges are ranked next, or training ends, where so many are finished."""
        if self.stops or self.is_due(finished):
            return finished
        every = self._config.ranked_every or self._config.epochs
        return min((finished // every + 1) * every, self._config.epochs)

    def is_due(self, finished: int) -> bool:
        """Tells whether edges are to be ranked after so many epochs, and were not."""
        every = self._config.ranked_every
        if every is None or not finished or self.stops:
            return False
        if any(one.epoch == finished - 1 for one in self.rankings):
            return False
        return finished % every == 0 or finished == self._config.epochs

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
        with group.together("keeping the best vectors"):
            if group.leads:
                shutil.rmtree(folder, ignore_errors=True)
                with naming_files(folder):
                    folder.mkdir()
                    manifests.write_atomic(
                        folder / CHECKPOINT, (self._run / FOLDER / CHECKPOINT).read_bytes()
                    )
        with group.together("keeping the best vectors", patient=True):
            for number, file in enumerate(table.files):
                if number % group.world == group.rank:
                    _copy_slices(file, folder / file.path.name)
        with group.together("keeping the best vectors"):
            if group.leads:
                manifests.sync_folder(folder)
                manifests.sync_folder(self._run)


def _copy_slices(source: Table, out: Path) -> None:
    """Copies the slices of a table that is in one file, at their places; what lies between them takes no disk.

    Raises:
        ChecksumError: A slice is not what was written.
        IoError: The disk is full, or failed.
    """
    with naming_files(out), out.open("wb") as file:
        os.ftruncate(file.fileno(), source.path.stat().st_size)
        for part, place in enumerate(source.places):
            if place >= 0:
                found, crc = source.stored_at(part), 0
                file.seek(found.offset)
                for content in found.chunks():
                    crc = _core.crc32c(as_array(content), crc)
                    file.write(content)
                if crc != source.checksums[part]:
                    raise ChecksumError(
                        f"{source.path}: slice {part} has checksum {crc:08x}, {source.checksums[part]:08x} was "
                        "written: the file was damaged; train again with --fresh"
                    )
        file.flush()
        os.fsync(file.fileno())
