"""The checkpoint of a training: what is in its file, and which one several processes go on from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outcrop.errors import OutcropError
from outcrop.runtime.group import Group
from outcrop.store.tensors import read_tensors

FOLDER, CHECKPOINT = "tables", "checkpoint.safetensors"
FORMAT, VERSION = "outcrop.embedding", 2


@dataclass(frozen=True)
class Position:
    """Says how far a training is: what comes next is ``unit`` of ``round`` of ``epoch``.

    Attributes:
        step: Steps of the optimizer that were made, of all groups.
        loss: Sum over the edges of the epoch that were trained.
    """

    epoch: int = 0
    round: int = 0
    unit: int = 0
    step: int = 0
    loss: float = 0.0

    @classmethod
    def of_stored(cls, meta: dict[str, Any]) -> Position:
        return cls(meta["epoch"], meta.get("round", 0), meta["unit"], meta["step"], meta["loss"])

    @property
    def is_within_epoch(self) -> bool:
        """Tells whether a part of ``epoch`` was trained."""
        return self.round > 0 or self.unit > 0

    def stored(self) -> dict[str, Any]:
        """Returns plain values; a round only where there are several."""
        return {name: value for name, value in vars(self).items() if value or name != "round"}


@dataclass(frozen=True)
class Checkpoint:
    """Holds what is in the file. ``meta``: plain values, checked by whoever uses them."""

    tensors: dict[str, torch.Tensor]
    meta: dict[str, Any]

    @property
    def progress(self) -> tuple[int, int]:
        """Returns what is larger the further the training was."""
        epoch, round = self.meta.get("epoch"), self.meta.get("round", 0)
        return (epoch if isinstance(epoch, int) else -1, round if isinstance(round, int) else -1)

    @property
    def groups(self) -> int:
        """Counts the groups of partitions that were trained."""
        identity = self.meta.get("identity")
        found = identity.get("groups") if isinstance(identity, dict) else None
        return found if isinstance(found, int) else 1


def is_there(path: Path, meta: dict[str, Any]) -> bool:
    """Tells whether a checkpoint with this ``meta`` is there, as where another machine that sees it has written it."""
    try:
        return read_tensors(path, FORMAT, VERSION)[1].items() >= meta.items()
    except OutcropError:
        return False


def newest(path: Path, group: Group) -> Checkpoint | None:
    """Returns the checkpoint that is furthest, of those that the processes see; None where there is none.

    Raises:
        FormatError, ChecksumError: One is damaged.
    """
    with group.together(f"reading {path.name}"):
        found = Checkpoint(*read_tensors(path, FORMAT, VERSION)) if path.exists() else None
    if group.alone:
        return found
    order = group.gather(None if found is None else found.progress)
    best = max((progress for progress in order if progress is not None), default=None)
    if best is None:
        return None
    rank = order.index(best)
    return group.gather(found if rank == group.rank else None)[rank]
