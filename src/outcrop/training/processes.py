"""What several processes make of the options of a training: steps, devices, and a machine's memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from outcrop.errors import ArgumentError
from outcrop.runtime.group import Group
from outcrop.training.choices import TrainOptions
from outcrop.training.last_checkpoint import meta_of_last


def for_processes(asked: TrainOptions, group: Group) -> TrainOptions:
    """Returns ``asked`` as this process of ``group`` does it: with batches of a step, its device, and how many share
    the machine's memory.

    Raises:
        ArgumentError: There are more processes than batches in a step.
    """
    training = replace(asked.training, accumulate=_step_batches(asked, group))
    if training.device == "cuda" and group.local_world > 1:
        training = replace(training, device=f"cuda:{group.local_rank}")
    limits = replace(asked.limits, processes=None if group.local_world == 1 else group.local_world)
    return replace(asked, training=training, limits=limits)


def _step_batches(asked: TrainOptions, group: Group) -> int:
    steps = asked.training.accumulate
    whose = "--accumulate"
    if steps is None and (last := meta_of_last(asked.goes_on)) is not None:
        steps = int(last.config.get("accumulate", 1))
        whose = f"the checkpoint in {asked.goes_on}"
    if steps is None:
        return group.world
    if steps < group.world:
        raise ArgumentError(
            f"{group.world} processes train, and a step has {steps} batches ({whose}), so that some would have "
            f"nothing to do: start at most {steps} processes, or begin anew with --accumulate {group.world} or more"
        )
    return steps


def usual_threads(group: Group) -> int:
    """Returns the threads of a process that shares the machine's cores with others; 0: it has all of them.

    torchrun sets ``OMP_NUM_THREADS`` to 1 where nobody has set it; another number is that of the user.
    """
    if group.local_world == 1:
        return 0
    asked = os.environ.get("OMP_NUM_THREADS", "1")
    if asked.isdigit() and int(asked) > 1:
        return int(asked)
    return max(len(os.sched_getaffinity(0)) // group.local_world, 1)


def processor_kind() -> str:
    """Names the instructions that the processor has: torch computes by those, and rounds by them."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    flags = next(
        (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), []
    )
    return " ".join(sorted(flags))


def name_of_kind(kind: str) -> str:
    """Returns a short name of a kind of processor: checkpoints have it."""
    return hashlib.blake2b(kind.encode(), digest_size=8).hexdigest()


def other_processors(folder: Path, now: Sequence[list[Any]]) -> str:
    """Says how the processors that computed the checkpoint in ``folder`` differ from those of ``now``; empty: they do
    not, or that is not known.
    """
    from outcrop.nn.checkpoint import processors_of  # brings torch

    before = processors_of(folder)
    if not before or before == list(now):
        return ""
    kinds_before, threads_before = zip(*before, strict=True)
    kinds_now, threads_now = zip(*now, strict=True)
    differing = [] if set(kinds_before) == set(kinds_now) else ["on another kind of processor"]
    if set(threads_before) != set(threads_now):
        differing.append(f"with other threads ({_listed(threads_before)}, now {_listed(threads_now)})")
    return (
        f"the checkpoint in {folder} was computed {' and '.join(differing) or 'by other processes'}, so that sums are "
        "rounded otherwise: what is learned is not to the bit what a training learns that was never interrupted. "
        "OMP_NUM_THREADS sets the threads"
    )


def _listed(threads: Iterable[int]) -> str:
    return " and ".join(map(str, sorted(set(threads))))
