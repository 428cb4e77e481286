"""The checkpoint that a training goes on from: reading it brings torch, that there is none is known without."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from outcrop.errors import ArgumentError
from outcrop.nn.checkpoint_meta import LAST, Meta
from outcrop.training.learning import LearningTask

if TYPE_CHECKING:
    from outcrop.nn.checkpoint import Checkpoint


def meta_of_last(folder: Path | None) -> Meta | None:
    """Returns what ``last.safetensors`` in ``folder`` says about itself; None: it is not there, or no folder is.

    Raises:
        FormatError: It cannot be read.
    """
    if folder is None or not (folder / LAST).exists():
        return None
    from outcrop.nn import checkpoint as checkpoints  # brings torch

    return checkpoints.read(folder / LAST).meta


def read_last(folder: Path, learning: LearningTask) -> Checkpoint:
    """Reads ``last.safetensors`` in ``folder``, to go on from it.

    Raises:
        ArgumentError: It is of another training, or has more epochs behind it than are asked for; says what differs.
        FormatError: It cannot be read.
    """
    from outcrop.nn import checkpoint as checkpoints  # brings torch

    path = folder / LAST
    found = checkpoints.read(path, "last")
    checkpoints.require_same(path, found.meta, learning.identity, learning.inputs)
    epochs = learning.training.epochs
    if found.meta.epochs_begun > epochs:
        raise ArgumentError(
            f"{path} has {found.meta.epochs_begun} epochs behind it, {epochs} were "
            "asked for: ask for at least as many, or choose another checkpoint folder"
        )
    return found
