"""Mode ``online`` in place of one that prepares, where memory is too small for preparing and no mode was named."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from outcrop.config import format_bytes
from outcrop.errors import BudgetError, OutcropError
from outcrop.loading.modes import Mode
from outcrop.runtime import system
from outcrop.store import manifest as manifests
from outcrop.store import run as runs
from outcrop.store.lock import is_of, opened, try_lock
from outcrop.training.request import TrainRequest
from outcrop.training.supply import folder_beside

# What a preparation leaves that was refused before its end: no packed stage, but of pools those for evaluation.
_BEGUN = re.compile(
    rf"{re.escape(runs.RUN_FILE)}|\.?(sample|plan)(\.partial)?|\.pack\.partial|history|eval|pool-\d+"
)


class Fallback:
    """Says how a training goes on where preparing is refused its memory; made before preparing begins.

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
            BudgetError: ``error``, where it is not about memory, or there is no choice, or too little ``memory`` for
                mode ``online`` either.
        """
        if self.drawn is None or memory is None or error.limit != "memory":
            raise error
        if not fits(self.drawn.mode)(memory):
            raise error
        remove_begun(self._new)
        why = f"mode {self.drawn.mode} instead: there is too little memory to prepare a run ({error})"
        return self.drawn, why


def remove_begun(new: Sequence[Path]) -> None:
    """Removes those of ``new`` that hold nothing but what a preparation has begun, and that nobody else has locked.

    Args:
        new: Folders of runs and pools that were not there before.
    """
    for folder in new:
        with suppress(OSError), ExitStack() as locks:  # there is none
            if not _lock(folder, locks):
                continue
            inner = list(folder.iterdir())
            folders = [path for path in inner if path.is_dir()]
            if all(_BEGUN.fullmatch(path.name) for path in inner) and all(
                _lock(one, locks) for one in folders
            ):
                shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: Path, locks: ExitStack) -> bool:
    """Locks a folder, where locks are known; False: somebody else has it, or has removed it."""
    handle = locks.enter_context(opened(folder))
    return try_lock(handle, wait=False) is not False and is_of(handle, folder)


def _has_same_batches(run: Path, request: TrainRequest) -> bool:
    try:
        info = runs.read(run)
    except OutcropError:
        return False
    wanted = replace(request.batches.sampling, epochs=request.training.epochs)
    return (info.graph_digest, info.sample) == (request.graph.digest(), wanted)
