"""What a training has left on disk, opened for reading."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outcrop.config import EmbedConfig, exact_bytes, least_bytes
from outcrop.embed.buckets import Buckets, open_buckets
from outcrop.embed.checkpoint import CHECKPOINT, FOLDER, FORMAT, VERSION, Checkpoint, Position
from outcrop.embed.files import SplitTable, TableState
from outcrop.embed.rankings import FILE, RankList, folder_of_best, read
from outcrop.embed.scores import Score, score_function
from outcrop.embed.training import open_table
from outcrop.errors import ArgumentError, BudgetError, ChecksumError, FormatError, IoError
from outcrop.runtime.runtime import Runtime
from outcrop.store.lock import in_use
from outcrop.store.tensors import read_tensors

EPOCHS = ("best", "last")
_WITHOUT_BEST = "the vectors of the last epoch are another file: take these (--epoch last)"


@dataclass(frozen=True)
class EmbeddingModel:
    """Reads the vectors of a checkpoint.

    Attributes:
        relations: float32 [relations, width], reciprocal ones after the others; None without relations.
        at: How far the training was.
    """

    buckets: Buckets
    config: EmbedConfig
    score: Score
    relations: np.ndarray | None
    at: Position
    records: list[dict[str, Any]]
    table: SplitTable
    runtime: Runtime

    @property
    def num_nodes(self) -> int:
        return self.buckets.num_nodes

    @property
    def epochs(self) -> int:
        """Returns how many epochs were finished."""
        return self.at.epoch

    def slices(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (first row, float32 [rows, dim] vectors) of each slice, the memory used again for the next.

        Raises:
            BudgetError: There is no room for one slice.
            IoError: Another process trains meanwhile, and has replaced what the checkpoint named.
        """
        table, division = self.table, self.buckets.division
        budget = self.runtime.budget
        free = budget.free_bytes
        if table.slab_bytes > free:
            raise BudgetError(
                f"one slice of the table takes {least_bytes(table.slab_bytes)}, {exact_bytes(free)} of the memory "
                f"budget are free: raise --memory to at least "
                f"{least_bytes(budget.limit_bytes - free + table.slab_bytes)}, or prepare with more partitions"
            )
        slab = budget.empty("partitions", table.slab_bytes)
        for part in range(division.parts):
            self._load(part, slab)
            yield int(division.starts[part]), table.rows_of(slab)[: division.size(part), : self.config.dim]

    def _load(self, part: int, slab: np.ndarray) -> None:
        run = self.buckets.path.parent
        try:
            self.table.load(part, slab)
        except ChecksumError as error:
            if self.table.folder.name != FOLDER:
                raise ChecksumError(f"{error}; {_WITHOUT_BEST}") from None
            if not in_use(run):
                raise
            raise replaced(run) from None

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Returns float32 [n, dim] of rows of the whole table, in one pass over it."""
        out = np.empty((len(rows), self.config.dim), np.float32)
        order = np.argsort(rows, kind="stable")
        ranked = rows[order]
        for first, vectors in self.slices():
            begin, end = np.searchsorted(ranked, [first, first + len(vectors)])
            out[order[begin:end]] = vectors[ranked[begin:end] - first]
        return out

    def close(self) -> None:
        self.table.close()


def open_model(run: Path | str, runtime: Runtime, epoch: str = "best") -> EmbeddingModel:
    """Opens what was learned in the embedding run at ``run``.

    Args:
        epoch: ``best``: where the validation edges were ranked while it was trained, and it did not go on without that,
            the vectors that did best; else, and for ``last``, those of the last checkpoint.

    Raises:
        ArgumentError: No such epoch.
        FormatError: There is none yet, or it is damaged or of other buckets.
        IoError: Another process trains, and has replaced what was to be opened.
    """
    if epoch not in EPOCHS:
        raise ArgumentError(f"epoch {epoch!r} is unknown; known: {', '.join(EPOCHS)}")
    run = Path(run)
    path = run / FOLDER / CHECKPOINT
    buckets = open_buckets(run)
    if not path.is_file():
        raise FormatError(f"{run} holds no trained embeddings: run outcrop embed train {run} first")
    last = Checkpoint(*read_tensors(path, FORMAT, VERSION))
    ranked = read(run) if epoch == "best" else None
    if ranked is not None and ranked.counts_at(last.progress[0]):
        return open_best(run, ranked, runtime)
    return _opened(buckets, path, last, runtime)


def open_best(run: Path, ranked: RankList, runtime: Runtime) -> EmbeddingModel:
    """Opens the vectors of the best epoch, which the list of ``run`` names.

    Raises:
        FormatError, ChecksumError: They are missing or damaged, or of another training.
        IoError: Another process trains, and has replaced them.
    """
    assert ranked.best is not None
    path = folder_of_best(run, ranked.best) / CHECKPOINT
    try:
        if not path.is_file():
            raise FormatError(f"{path} is missing, which {run / FILE} names")
        found = Checkpoint(*read_tensors(path, FORMAT, VERSION))
        identity = read_tensors(run / FOLDER / CHECKPOINT, FORMAT, VERSION)[1].get("identity")
        if found.meta.get("identity") != identity or found.progress[0] != ranked.best + 1:
            raise FormatError(f"{path} is of another training than {run / FOLDER}")
        return _opened(open_buckets(run), path, found, runtime)
    except (FormatError, ChecksumError) as error:
        if read(run) != ranked:
            raise replaced(run) from None
        raise type(error)(f"{error}; {_WITHOUT_BEST}") from None


def replaced(run: Path) -> IoError:
    """Returns the error of vectors that another process has replaced while they were read."""
    return IoError(
        errno.EWOULDBLOCK,
        f"{run} is in use: another process trains there and has replaced the vectors that were being read; "
        "run this again, or wait until it has ended",
    )


def _opened(buckets: Buckets, path: Path, found: Checkpoint, runtime: Runtime) -> EmbeddingModel:
    """Opens the checkpoint that was ``found`` at ``path``, with the table beside it."""
    tensors, meta = found.tensors, found.meta
    try:
        identity = dict(meta["identity"])
        if identity.pop("buckets digest") != buckets.manifest.digest():
            raise FormatError(f"{path} was trained on other buckets: train again with --fresh")
        at = Position.of_stored(meta)
        config = EmbedConfig.from_stored(identity | {"epochs": max(at.epoch, 1)})
        score = score_function(config.model, config.dim)
        relations = tensors["relations"].numpy() if "relations" in tensors else None
        if relations is not None:
            relations = np.ascontiguousarray(relations[:, : score.relation_width(config.dim)])
        table = SplitTable(
            path.parent,
            TableState.of_stored(meta["table"]),
            lambda path: open_table(buckets, path, config, runtime, read_only=True),
        )
        return EmbeddingModel(buckets, config, score, relations, at, meta["records"], table, runtime)
    except FormatError:  # says what is wrong itself
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{path} lacks or garbles a field ({error}): train again with --fresh") from None
