"""Which epochs have batches of their own, and when these are prepared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outcrop.config.declared import check_types
from outcrop.config.sizes import Size, out_of_range, parse_size
from outcrop.errors import ArgumentError


@dataclass(frozen=True)
class Replay:
    """Asks a training to replay the batches of a few epochs instead of having new ones in every epoch.

    Attributes:
        epochs: Epochs with batches of their own.
    """

    epochs: int

    def __post_init__(self) -> None:
        check_types(self)
        _check_epochs(self.epochs)


@dataclass(frozen=True)
class Refresh:
    """Asks mode ``packed`` to prepare the next epochs while these train, not all at once before.

    Where the budget is too small for both at once they take turns (:mod:`outcrop.training.pools`). Modes that draw
    batches on the fly prepare nothing, with or without it.

    Attributes:
        epochs: Epochs that are prepared at a time.
        rate: Bytes per second that preparing beside training reads and writes at the most, such as ``"200MiB"``; None:
            no limit.
        folder: Folder of what is prepared; None: ``<graph>.pools``.
    """

    epochs: int = 1
    rate: Size | None = None
    folder: str | Path | None = None

    def __post_init__(self) -> None:
        check_types(self)
        _check_epochs(self.epochs)
        _ = self.bytes_per_second

    @property
    def bytes_per_second(self) -> int | None:
        """Returns ``rate`` in bytes."""
        return None if self.rate is None else parse_size(self.rate)


def _check_epochs(epochs: int) -> None:
    if problems := out_of_range(epochs=epochs):
        raise ArgumentError("; ".join(problems))
