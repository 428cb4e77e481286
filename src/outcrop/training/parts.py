"""Epochs that are prepared in parts: where not one whole epoch fits the disk, and batches that share rows on disk are
predicted to take longer, or do not fit either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from outcrop.advisor import choose, epochs_at_a_time, machine
from outcrop.config.sampling import EXTERNAL
from outcrop.errors import BudgetError
from outcrop.training import spool
from outcrop.training.batch_request import BatchRequest
from outcrop.training.begun import giving_up
from outcrop.training.learning import LearningTask
from outcrop.training.supply import BatchSupply, folder_beside, prepare_supply

_WRITE_BYTES_PER_S = 1e9  # where nobody knows the disk: then only what fits decides


@dataclass(frozen=True)
class PartChoice:
    """Says in which parts mode ``packed`` prepares each epoch.

    Attributes:
        batches: Batches of a part.
        limit: Bytes that all files may take: the user's, or nine tenths of what is free.
        why: A line for the user.
        concurrent: Whether a part is prepared while the one before it trains; else they alternate.
        sooner: Whether that is predicted to be sooner done than batches that share rows on disk; else it is what
            remains where these do not fit.
    """

    batches: int
    limit: int
    why: str
    sooner: bool = True
    concurrent: bool = True


def choose_parts(request: BatchRequest, learning: LearningTask) -> PartChoice | None:
    """Chooses in which parts mode ``packed`` prepares each epoch; None: one fits the disk as a whole, or no part does.

    A run beside the graph that has these batches already, and maybe more, is taken as it is.
    """
    graph, sampling, limits = request.graph, request.sampling, request.limits
    run = folder_beside(graph, ".run")
    if limits.memory is None or sampling.sampler == EXTERNAL or not spool.epochs_left(request):
        return None
    limit = epochs_at_a_time.disk_limit(run, limits.disk_space)
    there = epochs_at_a_time.all_there(graph, sampling, limits, run)
    begin, stop = (request.next_epoch or 0, request.epochs) if request.refresh else (0, sampling.epochs)
    if there.start <= begin and stop <= there.stop:
        return None
    try:
        parts, concurrent = 0, request.concurrent
        for concurrent in (True, False) if request.concurrent else (False,):
            parts = epochs_at_a_time.parts_of_epoch(graph, sampling, limits, limit, concurrent)
            if parts:
                break
        if parts < 2:
            return None
        rough = machine.rough_hardware(graph.measured_file)
        rate = _WRITE_BYTES_PER_S if rough is None else rough.disk.bytes_per_s
        facts = spool.workload(request, learning, rate)
    except BudgetError:  # preparing will say what it needs
        return None
    sooner, why = choose.choose_parts(replace(facts, parts=parts, disk_space=limit), rough)
    batches = spool.part_batches(request, parts)
    return None if batches is None else PartChoice(batches, limit, why, sooner, concurrent)


def supply_within_disk(
    request: BatchRequest,
    learning: LearningTask,
    say: Callable[[str], None],
    of_whole_epochs: Callable[[], BatchSupply],
) -> BatchSupply:
    """Supplies batches of whole epochs, or prepares epochs in parts: where that is predicted to be sooner done, or
    nothing else fits the disk.

    Args:
        say: Told what was chosen.
        of_whole_epochs: Prepares whole epochs.

    Raises:
        BudgetError: A limit cannot be met; of whole epochs.
    """
    choice = choose_parts(request, learning)
    if choice is None:
        return of_whole_epochs()
    if choice.sooner:
        try:
            with giving_up(folder_beside(request.graph, ".pools")):
                return _in_parts(request, choice, say)
        except BudgetError as error:
            say(f"whole epochs are prepared instead: {error}")
            return of_whole_epochs()
    try:
        with giving_up(folder_beside(request.graph, ".run")):
            return of_whole_epochs()
    except BudgetError as error:
        if error.limit != "disk":
            raise
        try:
            return _in_parts(request, choice, say)
        except BudgetError:
            raise error from None


def _in_parts(request: BatchRequest, choice: PartChoice, say: Callable[[str], None]) -> BatchSupply:
    say(choice.why)
    in_parts = replace(
        request,
        sampling=replace(request.sampling, epochs=1) if request.refresh else request.sampling,
        limits=replace(request.limits, disk_space=choice.limit),
        pool_batches=choice.batches,
        concurrent=choice.concurrent,
    )
    return prepare_supply(in_parts, folder_beside(request.graph, ".pools"))
