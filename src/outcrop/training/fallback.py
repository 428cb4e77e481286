"""Mode ``online`` in place of one that prepares, where no mode was named and memory or disk is too small for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from outcrop.config import format_bytes
from outcrop.errors import BudgetError, OutcropError
from outcrop.loading.modes import Mode
from outcrop.runtime import system
from outcrop.store import manifest as manifests
from outcrop.store import run as runs
from outcrop.training.begun import remove_begun
from outcrop.training.request import TrainRequest
from outcrop.training.supply import folder_beside


class Fallback:
    """Says how a training goes on where preparing is refused its memory or disk; made before preparing begins.

    Attributes:
        drawn: The training in mode ``online``; None where that is no choice: a mode was named, or pools or a run of
            other batches lie beside the graph already, which preparing might replace before it is refused.
    """

    def __init__(self, request: TrainRequest):
        run, pools = (folder_beside(request.graph, suffix) for suffix in (".run", ".pools"))
        self._run, self._new = run, [folder for folder in (run, pools) if not folder.exists()]
        free = pools in self._new and (run in self._new or _has_same_batches(run, request))
        self.drawn: TrainRequest | None = request.drawn if free else None

    def kept(self) -> str:
        """Says what a refusal leaves beside the graph that was not there before; empty: nothing worth a word."""
        sample = self._run / "sample"
        if self._run not in self._new or not manifests.exists(sample):
            return ""
        size = format_bytes(system.bytes_of_files(sample))
        return f"{self._run} keeps the mini-batches that were drawn ({size}) for the next try; "

    def give_up(
        self, error: BudgetError, fits: Callable[[Mode], Callable[[int], bool]], memory: int | None
    ) -> tuple[TrainRequest, str]:
        """Removes what preparing has begun beside the graph; returns the training in mode ``online``, and what to say.

        Args:
            error: What refused preparing.
            fits: Makes what says whether a budget is enough for a mode.

        Raises:
            BudgetError: ``error``, where it is about neither memory nor disk, or there is no choice, or too little
                ``memory`` for mode ``online`` either.
        """
        if self.drawn is None or error.limit not in ("memory", "disk"):
            raise error
        if memory is not None and not fits(self.drawn.mode)(memory):
            raise error
        remove_begun(self._new)
        why = f"mode {self.drawn.mode} instead: there is too little {error.limit} to prepare a run ({error})"
        return self.drawn, why


def _has_same_batches(run: Path, request: TrainRequest) -> bool:
    try:
        info = runs.read(run)
    except OutcropError:
        return False
    wanted = replace(request.batches.sampling, epochs=request.training.epochs)
    return (info.graph_digest, info.sample) == (request.graph.digest(), wanted)
