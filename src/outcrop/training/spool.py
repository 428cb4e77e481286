"""Spooling: mode ``online`` draws a few epochs ahead, writes their rows in the order of use, and reads them back.

Where the budget caches little, reading each row where it lies is a random read; reading all features once in order and
writing what batches want is several times faster, whatever the number of epochs. The batches are the same. What is
spooled is a run (:mod:`outcrop.preparation.prepare`), or sample pools (:mod:`outcrop.training.pools`), in a folder
beside the graph that is gone when training ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from outcrop.advisor import auto, choose, epochs_at_a_time, machine, shapes
from outcrop.advisor.choose import SpoolDecision, WorkloadFacts
from outcrop.config import MODELS, ModelConfig
from outcrop.device import gpu_named
from outcrop.errors import BudgetError
from outcrop.loading.modes import Online
from outcrop.runtime import system
from outcrop.runtime.hardware import Hardware
from outcrop.runtime.progress import Progress
from outcrop.store.graph import Graph
from outcrop.store.lock import opened, try_lock
from outcrop.training.batch_request import BatchRequest
from outcrop.training.learning import LearningTask
from outcrop.training.supply import BatchSupply, prepare_supply

LEAST_BYTES = 64 << 20  # of features: less is read in a second
# Seconds, and times as fast: for less no step is measured, which takes torch, that is loaded beside preparing else.
WORTH_MEASURING = 2.0, 1.05
_STEP_S = 0.03
_DIRECT_SHARE = 2  # of the memory, batches that are read as they are drawn take half at the most
_ROWS = "rows"


def supply(
    request: BatchRequest, learning: LearningTask, closing: ExitStack, spooling: SpoolDecision | None = None
) -> tuple[BatchSupply, str]:
    """Supplies what mode ``online`` trains from, and says why where there was a choice.

    Args:
        closing: Stack that removes what is spooled when training ends.
        spooling: What was decided; None: it is decided now.
    """
    spooling = spooling or decide_spooling(request, learning)
    direct = BatchSupply(request, Online(topology=request.topology, paranoid=request.paranoid))
    if not spooling.epochs:
        return direct, spooling.why
    spooled = replace(
        request,
        sampling=replace(request.sampling, epochs=spooling.epochs),
        limits=replace(request.limits, disk_space=spooling.disk_space),
        concurrent=_prepares_beside(learning),
        pool_batches=part_batches(request, spooling.parts),
    )
    with ExitStack() as trying:
        try:
            made = prepare_supply(spooled, trying.enter_context(folder(request.graph)) / _ROWS)
        except BudgetError as error:
            return direct, f"rows are read as batches are drawn: spooling does not fit: {error}"
        closing.push(trying.pop_all())
    return replace(made, spooled_epochs=spooling.epochs), spooling.why


@dataclass(frozen=True)
class SpoolingFacts:
    """Holds what a few batches say of a training, before anybody knows what a step takes.

    Attributes:
        workload: What choices depend on, with steps that take no time.
        seen: The batches.
        hardware: The disk, as it was just measured, and the cores.
    """

    workload: WorkloadFacts
    seen: auto.BatchProbe
    hardware: Hardware

    def direct_may_be_sooner(self, graph: Graph, model: ModelConfig) -> bool:
        """Tells whether reading rows as batches are drawn is predicted to be sooner done than spooling them, by enough
        to look, for any time that a step of ``model`` may take on this machine.
        """
        batches, known = self.seen.batches, not graph.is_typed and model.name in MODELS
        if not known or any(batch.untrimmed for batch in batches):
            return True  # such steps are not counted, or with torch
        step_s = shapes.longest_step(
            shapes.network_of(graph, model), shapes.shape_of(graph, batches), machine.numpy_rates()
        )
        return choose.may_be_sooner_direct(
            self.workload, self.hardware, step_s * self.seen.count, WORTH_MEASURING
        )


def look(request: BatchRequest, learning: LearningTask) -> SpoolingFacts | SpoolDecision:
    """Looks at the rates of the disk and at a few batches; returns the decision where it does not depend on them."""
    graph, limits = request.graph, request.limits
    direct = SpoolDecision(0, limits.disk_space, "")
    if (
        limits.memory is None  # everything is cached
        or limits.disk_space == 0
        or not epochs_left(request)
        or graph.feature_bytes < LEAST_BYTES
    ):
        return direct
    parent = graph.path.resolve().parent
    if not os.access(parent, os.W_OK | os.X_OK):
        why = f"rows are read as batches are drawn: nothing may be written to {parent}, where they would be spooled"
        return replace(direct, why=why)
    rough = machine.rough_hardware(graph.measured_file)
    if rough is None:
        return direct
    with _looking(request.progress):
        work, seen = _facts(request, rough.disk.bytes_per_s)
        limit = epochs_at_a_time.disk_limit(parent, limits.disk_space)
        parts = epochs_at_a_time.parts_of_epoch(
            graph, request.sampling, limits, limit, _prepares_beside(learning)
        )
    system.return_freed_memory()
    return SpoolingFacts(replace(work, parts=parts), seen, rough)


def decide_spooling(
    request: BatchRequest, learning: LearningTask, facts: SpoolingFacts | SpoolDecision | None = None
) -> SpoolDecision:
    """Decides whether and how to spool, by the rates of the disk, a few batches, and a training step.

    It takes less than a second, and what loading torch takes where it is not loaded.

    Args:
        facts: What :func:`look` gave; None: it is called.
    """
    facts = facts or look(request, learning)
    if isinstance(facts, SpoolDecision):
        return facts
    graph, limits, seen = request.graph, request.limits, facts.seen
    assert limits.memory is not None
    with _looking(request.progress):
        work = _with_steps(facts.workload, seen, graph, learning)
    found = choose.choose_spooling(work, facts.hardware)
    return replace(found, direct_fits=seen.most_bytes(graph) <= limits.memory // _DIRECT_SHARE)


def workload(request: BatchRequest, learning: LearningTask, write_bytes_per_s: float) -> WorkloadFacts:
    """Looks at a few batches and a training step, within the memory budget, which is limited; returns what choices
    depend on.
    """
    facts, seen = _facts(request, write_bytes_per_s)
    return _with_steps(facts, seen, request.graph, learning)


def _facts(request: BatchRequest, write_bytes_per_s: float) -> tuple[WorkloadFacts, auto.BatchProbe]:
    """Looks at a few batches, within the memory budget; returns what choices depend on, with steps that take no time,
    and the batches.
    """
    graph, limits = request.graph, request.limits
    assert limits.memory is not None
    seen = auto.probe_batches(graph, request.sampling, limits.memory)
    disk = os.statvfs(graph.path.resolve().parent)
    facts = WorkloadFacts(
        available_bytes=limits.memory,
        free_disk_bytes=disk.f_bavail * disk.f_frsize,
        epochs=epochs_left(request),
        pool=request.sampling.epochs,
        evaluated=graph.spec("valid").shape[0] / max(seen.seeds, 1) if graph.has("valid") else 0.0,
        refresh=request.refresh,
        write_bytes_per_s=write_bytes_per_s,
        disk_space=limits.disk_space,
        **seen.facts(graph),
    )
    return facts, seen


def _with_steps(
    facts: WorkloadFacts, seen: auto.BatchProbe, graph: Graph, learning: LearningTask
) -> WorkloadFacts:
    """Measures a training step, for which torch is loaded."""
    step_s = _step_seconds(graph, seen, learning)
    system.return_freed_memory()
    return replace(facts, compute_s=step_s * seen.count)


def epochs_left(request: BatchRequest) -> int:
    """Counts the epochs that are still to be trained."""
    return 0 if request.next_epoch is None else request.epochs - request.next_epoch


def part_batches(request: BatchRequest, parts: int) -> int | None:
    """Returns the batches of a pool where an epoch is prepared in ``parts`` equal ones; None where ``parts`` is 0."""
    batches = epochs_at_a_time.num_batches(request.graph, request.sampling, "train")
    return -(-batches // parts) if parts else None


def _prepares_beside(learning: LearningTask) -> bool:
    """Tells whether rows are spooled beside training: where the CPU trains it has nothing left for preparing."""
    return gpu_named(learning.training.device) is not None


@contextmanager
def _looking(progress: Progress | None) -> Iterator[None]:
    task = "look at a few batches"
    if progress is not None:
        progress.start(task, 1, "steps")
    yield
    if progress is not None:
        progress.finish(task)


def _step_seconds(graph: Graph, seen: auto.BatchProbe, learning: LearningTask) -> float:
    from outcrop.advisor import steps

    batch = steps.batch_of(seen.batches[-1], graph)
    network = shapes.network_of(graph, learning.model)
    if not graph.is_typed and network.model not in MODELS:  # it may want rows of edges
        network = replace(network, model=shapes.timed_model(network.model))
    return steps.step_seconds([batch], network, seconds=_STEP_S, device=learning.training.device)[0]


@contextmanager
def folder(graph: Graph) -> Iterator[Path]:
    """Makes a folder beside ``graph`` that is gone at the end; first removes those that killed trainings have left."""
    path = graph.path.resolve()
    prefix = f"{path.name}.spool-"
    with ExitStack() as held:
        # One at a time, so that nobody takes a folder for one left that is just being made.
        with opened(path) as handle:
            if try_lock(handle):
                _remove_left(path.parent, prefix)
            made = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
            held.callback(shutil.rmtree, made, ignore_errors=True)
            try_lock(held.enter_context(opened(made)))  # for as long as training runs
        yield made


def _remove_left(where: Path, prefix: str) -> None:
    for left in where.glob(f"{prefix}*"):
        with suppress(OSError), opened(left) as handle:
            ours = all(found.name == _ROWS for found in left.iterdir())
            if ours and try_lock(handle, wait=False):
                shutil.rmtree(left)
