"""Which memory budgets are enough for a training, and the refusal of one that is not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from outcrop.config import exact_bytes, format_bytes
from outcrop.config.sampling import EXTERNAL
from outcrop.errors import BudgetError
from outcrop.loading.modes import Mode, Online
from outcrop.loading.needs import BatchCounter, other_modes
from outcrop.runtime.progress import Progress
from outcrop.runtime.smallest_budget import naming_smallest
from outcrop.training.fallback import Fallback
from outcrop.training.request import TrainRequest
from outcrop.training.supply import needs


class TrainNeeds:
    """Says what a training needs of the memory, made before anything is prepared.

    Attributes:
        asked: The batches that are asked for, with what learned rows leave of the memory.
        memory: Bytes of all; None: no limit.
        mode: The one that loads them: ``online`` where nothing is left to train, and nodes are only scored.
        fallback: What is done where preparing is refused its memory.
    """

    def __init__(self, request: TrainRequest, progress: Progress):
        limits, self.mode = request.batches.limits, request.mode
        self.memory, self._learned = limits.memory, request.learning.learned_bytes
        asked = replace(request.batch_request, progress=progress, counter=BatchCounter(progress))
        if self.memory is not None and self._learned:
            asked = replace(asked, limits=replace(limits, memory=max(self.memory - self._learned, 1)))
        self.asked = asked
        if asked.next_epoch is None and request.run is None and request.prepares:
            self.mode = Online(**self.mode.common)
        self._needs = partial(
            needs,
            folder=request.run,
            epoch_splits=request.epoch_splits,
            test=request.training.test,
            at_once=request.refresh is None,
        )
        self.fallback = Fallback(request)

    def fits(self, mode: Mode) -> Callable[[int], bool]:
        """Returns what says whether a budget is enough for loading in a mode, beside the rows that are learned."""
        loads = self._needs(self.asked, mode)
        return lambda limit: limit > self._learned and loads(limit - self._learned)

    def naming_smallest(self, mode: Mode) -> AbstractContextManager[None]:
        """Refusals within name the smallest budget that ``mode`` can train with."""
        advice = partial(other_modes, self.memory, mode, self.fits)
        return naming_smallest(self.memory, partial(self.fits, mode), f"train in mode {mode}", advice)

    def naming_smallest_of_all(self) -> AbstractContextManager[None]:
        """Refusals within name the smallest budget that can train in the mode, or else in the one of the fallback."""
        other = self.fallback.drawn
        if other is None:
            refused, what = partial(self.fits, self.mode), f"train in mode {self.mode}"
        else:
            refused, what = partial(self._either, self.mode, other.mode), "train"

        def advice() -> str:
            return self.fallback.kept() + other_modes(self.memory, self.mode, self.fits)

        return naming_smallest(self.memory, refused, what, advice)

    def _either(self, mode: Mode, other: Mode) -> Callable[[int], bool]:
        first, second = self.fits(mode), self.fits(other)
        return lambda limit: first(limit) or second(limit)

    def require_learned(self) -> None:
        """Raises BudgetError where rows that are learned leave nothing of the memory."""
        if self.memory is not None and self.memory <= self._learned:
            raise BudgetError(f"rows that are learned take {format_bytes(self._learned)} alone")

    def require(self) -> TrainRequest | None:
        """Checks that the memory is enough, for which mini-batches are drawn and counted; those of somebody's own
        sampler are not, as they may be given once.

        Returns:
            The training in mode ``online``, where preparing would be refused and that is the fallback; else None.

        Raises:
            BudgetError: It is not; names the smallest that is.
        """
        if self.memory is None or self.asked.sampling.sampler == EXTERNAL:
            return None
        with self.naming_smallest_of_all():
            self.require_learned()
            if self.fits(self.mode)(self.memory):
                return None
            drawn = self.fallback.drawn
            if drawn is None or not self.fits(drawn.mode)(self.memory):
                raise BudgetError(f"a memory budget of {exact_bytes(self.memory)} is too small")
            return drawn
