"""What ranking the validation edges came to while embeddings were trained, as it lies on disk.

``RUN/validation.json`` lists epochs and what they came to. The vectors of the best are in ``RUN/best-E``, E the epoch:
a checkpoint like that in ``RUN/tables``, with the slices that it names at the same places of files of the same names.
A folder is whole before the list names its epoch; folders that it does not name go when training begins or ranks next.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from outcrop.config.sizes import LARGEST_COUNT
from outcrop.errors import ChecksumError, FormatError, naming_files
from outcrop.runtime.parsing import parse_json
from outcrop.store import manifest as manifests

FILE = "validation.json"
FORMAT, VERSION = "outcrop.embedding-validation", 1
_HITS = ("1", "3", "10")


@dataclass(frozen=True)
class EpochRanks:
    """Says what the validation edges came to after an epoch.

    Attributes:
        epoch: The last one that was trained, from 0.
        hits: Share of ranks up to ``k``, by ``k`` as text: 1, 3 and 10.
    """

    epoch: int
    mrr: float
    mean_rank: float
    hits: dict[str, float]

    @classmethod
    def of_stored(cls, told: dict[str, Any]) -> EpochRanks:
        hits = {k: _share(told["hits"][k]) for k in _HITS}
        return cls(_count(told["epoch"], 0), _share(told["mrr"]), float(told["mean_rank"]), hits)


@dataclass
class RankList:
    """Holds what the file says.

    Attributes:
        protocol: What the ranks are among.
        every: Epochs between rankings, as they were asked for last.
        best: Epoch whose vectors are kept; None: none are.
    """

    protocol: str = ""
    every: int = 1
    rankings: list[EpochRanks] = field(default_factory=list)
    best: int | None = None

    @property
    def best_ranking(self) -> EpochRanks | None:
        """Returns what the best epoch came to, the first one of equal ones; None where none was ranked."""
        return max(self.rankings, key=lambda one: one.mrr, default=None)

    def counts_at(self, finished: int) -> bool:
        """Tells whether the best vectors are those of a training that has ``finished`` so many epochs: no ranking was
        left out since, as where it went on without them.
        """
        last = self.rankings[-1].epoch + 1 if self.rankings else 0
        return self.best is not None and last <= finished < last + self.every


def folder_of_best(run: Path, epoch: int) -> Path:
    return run / f"best-{epoch}"


def read(run: Path) -> RankList | None:
    """Returns what rankings of the run at ``run`` came to; None: there were none.

    Raises:
        FormatError, ChecksumError: The file is damaged, or of another version.
    """
    path = run / FILE
    if not path.is_file():
        return None
    with naming_files(path):
        content = path.read_bytes()
    remedy = f"remove {path}, and the vectors of the last epoch count"
    try:
        told = parse_json(content)
        if not isinstance(told, dict) or told.get("format") != FORMAT or told.get("version") != VERSION:
            raise FormatError(f"{path} is no list of rankings of this version: {remedy}")
        if manifests.CHECKSUM not in told or not manifests.is_as_written(told):
            raise ChecksumError(f"{path} says other than was written, it was damaged: {remedy}")
        rankings = [EpochRanks.of_stored(one) for one in told["rankings"]]
        best = None if told["best"] is None else _count(told["best"], 0)
        stored = RankList(str(told["protocol"]), _count(told["every"], 1), rankings, best)
        epochs = [one.epoch for one in rankings]
        if epochs != sorted({*epochs}) or (best is not None and best not in epochs):
            raise ValueError(f"epochs {epochs}, best {best}")
        return stored
    except (FormatError, ChecksumError):  # which say what is wrong themselves
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise FormatError(f"{path} lacks or garbles a field ({error}): {remedy}") from None


def _count(told: Any, least: int) -> int:
    if not isinstance(told, int) or not least <= told <= LARGEST_COUNT:
        raise ValueError(f"{told!r} is no number of epochs")
    return told


def _share(told: Any) -> float:
    if not 0.0 <= (share := float(told)) <= 1.0:
        raise ValueError(f"{told!r} is no share")
    return share


def write(run: Path, stored: RankList) -> None:
    """Puts the list on disk, or removes one that has nothing; vectors that it does not name go."""
    told = {"format": FORMAT, "version": VERSION, **asdict(stored)}
    told[manifests.CHECKSUM] = manifests.checksum_of(told)
    path, content = run / FILE, json.dumps(told, indent=1).encode()
    if not stored.rankings and path.exists():
        with naming_files(path):
            path.unlink(missing_ok=True)
        manifests.sync_folder(run)
    elif stored.rankings and not (path.is_file() and path.read_bytes() == content):
        manifests.write_atomic(path, content)
        manifests.sync_folder(run)
    named = None if stored.best is None else folder_of_best(run, stored.best)
    for folder in _folders(run):
        if folder != named:
            shutil.rmtree(folder, ignore_errors=True)


def _folders(run: Path) -> Iterator[Path]:
    """Yields the folders of vectors that were kept, or are half written."""
    for path in run.glob("best-*"):
        if re.fullmatch(r"best-\d+", path.name) and path.is_dir():
            yield path
