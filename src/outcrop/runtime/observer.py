"""Who is told of long work: progress, what was chosen, and spans of all stages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from outcrop.config.declared import check_types
from outcrop.runtime.progress import Progress, showing


@dataclass(frozen=True)
class Observer:
    """Says who is told of long work.

    Attributes:
        progress: Whether progress is shown (:mod:`outcrop.runtime.progress`), or a receiver of it.
        trace: JSONL file for spans of all stages; None: none is written.
        on_choice: Told, before anything is made, what was chosen and why: by memory ``"auto"``, by mode ``online``, how
            many epochs are prepared or replayed, and what is replaced. None: nobody, but for a warning where epochs are
            replayed though nobody asked for it.
    """

    progress: Progress | bool = True
    trace: str | Path | None = None
    on_choice: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        check_types(self)

    def watching(self) -> AbstractContextManager[Progress]:
        """Gives the receiver of progress, and ends its display."""
        return showing(self.progress)
