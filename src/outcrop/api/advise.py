"""advise: what an epoch takes and reads, here and on other machines, before anything is packed.

Bytes are counted and not estimated (advisor/counting.py); the rest is the cost model (advisor/cost.py) with the profile
of the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from outcrop.advisor import machine
from outcrop.advisor.cost import Prices
from outcrop.advisor.counting import Task, count
from outcrop.advisor.offers import Comparison, compare, seconds_of_new_batches
from outcrop.config import Size, as_fanouts, parse_size
from outcrop.runtime.hardware import Hardware
from outcrop.store import run as runs
from outcrop.store.graph import Graph, open_graph


def advise(
    graph: Graph | str | Path,
    *,
    run: str | Path | None = None,
    model: str = "sage",
    hidden: int | None = None,
    fanouts: Sequence[int] = (10, 10),
    batch_size: int = 1024,
    sampler: str = "neighbor",
    sample_epochs: int = 1,
    memory: Size | None = None,
    gpu_memory: Size = 0,
    disk_space: Size | None = None,
    device: str = "cpu",
    machines: Sequence[Hardware] = (),
    prices: Prices | None = None,
    budget: float | None = None,
    profile: Path | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Predicts epochs of training ``graph``, here and on ``machines``; with ``prices`` what to buy.

    Args:
        run: Made by :func:`outcrop.prepare` (``stop_after="plan"`` is enough): its batches and limits are taken.
        machines: Described in TOML (advisor/hardware.py); this machine comes first always.
        prices: None: nothing is said about cost.
        budget: That a machine with its disks may cost at the most.
        profile: File of ``outcrop doctor --save``; None: the one kept for this machine, measured where there is none.

    Returns:
        ``predictions`` (a row per machine and mode; ``online`` reads rows as batches are drawn), ``fresh`` (seconds of
        an epoch here whose batches are drawn anew: ``spooled``, of it ``preparing``, with ``epochs`` at a time, and
        ``online``), ``disk_curve`` (TPC by number of disks), ``changes`` (what one changed component
        gains per unit of money), ``assumptions``, and what was asked.

    Raises:
        BudgetError: A limit cannot be met.
    """
    graph = graph if isinstance(graph, Graph) else open_graph(graph)
    task = _task(
        graph, run, model, hidden, fanouts, batch_size, sampler, sample_epochs, memory, gpu_memory, disk_space,
        device, seed,
    )  # fmt: skip
    measured = machine.profile_of(graph.path.resolve().parent, profile)
    counted = count(task, measured)
    here = measured.hardware(gpu=device != "cpu")
    asked = Comparison(task, counted, here, tuple(machines), prices, budget)
    found = compare(asked)
    epoch_s = {row["mode"]: row["epoch_seconds"] for row in found["predictions"][: len(counted.works)]}
    return {
        "graph": str(graph.path),
        "model": model,
        "setting": {**{k: v for k, v in asdict(replace(task, graph=None)).items() if k != "graph"},
                    "run": None if task.run is None else str(task.run)},
        "profile": measured.to_json(),
        "run_disk_bytes": counted.disk_bytes,
        "predictions": found.pop("predictions"),
        "fresh": seconds_of_new_batches(asked, measured, epoch_s),
        "disk_curve": found.pop("disk_curve"),
        "changes": found.pop("changes"),
        "assumptions": list(counted.assumptions),
        **found,
    }  # fmt: skip


def _task(
    graph: Graph,
    run: str | Path | None,
    model: str,
    hidden: int | None,
    fanouts: Sequence[int],
    batch_size: int,
    sampler: str,
    sample_epochs: int,
    memory: Size | None,
    gpu_memory: Size,
    disk_space: Size | None,
    device: str,
    seed: int,
) -> Task:
    limit = None if memory is None else parse_size(memory)
    task = Task(
        graph, model, hidden, as_fanouts(fanouts), batch_size, sampler, sample_epochs, seed, limit,
        parse_size(gpu_memory), disk_space, device,
    )  # fmt: skip
    if run is None:
        return task
    info = runs.read(Path(run))
    return replace(
        task,
        run=Path(run),
        fanouts=info.sample.fanouts,
        batch_size=info.sample.batch_size,
        sampler=info.sample.sampler,
        sample_epochs=info.sample.epochs,
        seed=info.sample.seed,
        memory=info.plan.memory if limit is None else limit,
        gpu_memory=info.plan.gpu_memory,
        disk_space=info.plan.disk_space,
    )
