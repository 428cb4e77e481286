"""prepare: sample, plan and pack, each stage skipped where its result is there already."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from dataclasses import replace as with_fields
from functools import partial
from pathlib import Path
from typing import Any

from outcrop import system
from outcrop.advisor.machine import read_rates
from outcrop.api import auto, budgets, history
from outcrop.api import epochs as epoch_choice
from outcrop.config import (
    IoConfig,
    PlanConfig,
    SampleConfig,
    Size,
    as_fanouts,
    exact_bytes,
    format_bytes,
    parse_size,
)
from outcrop.errors import ArgumentError, BudgetError, FormatError
from outcrop.foreign import ForeignBatches, Source
from outcrop.progress import Progress
from outcrop.runtime import UNLIMITED, Runtime
from outcrop.stages import pack as packing
from outcrop.stages import plan as planning
from outcrop.stages import sample as sampling
from outcrop.store import manifest as manifests
from outcrop.store import packed, placement, run, samples
from outcrop.store.graph import Graph, open_graph
from outcrop.store.history import disk_bytes
from outcrop.store.lock import only_process_in
from outcrop.store.manifest import Manifest


@dataclass
class PrepareReport:
    """What preparing did.

    Attributes:
        stages: ``seconds``, ``bytes_read`` and ``bytes_written`` of each stage of this call.
        skipped: Stages whose results were there.
        bytes_read, bytes_written: Of this call.
        predicted: What the plan promises: bytes and rows per level and epoch, exactly.
        epochs: That the run has.
        disk_rates: ``sequential_bytes_per_s`` and ``random_reads_per_s`` (of 4 KiB) that the layout was chosen for,
            measured or given; None where no layout had to be. The same rates give the same files.
        chosen: What was chosen for the user, and why: lines.
    """

    seconds: float = 0.0
    stage_seconds: dict[str, float] = field(default_factory=dict)
    stages: dict[str, dict[str, float]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    bytes_read: int = 0
    bytes_written: int = 0
    disk_bytes: int = 0
    predicted: dict[str, Any] = field(default_factory=dict)
    epochs: int = 0
    disk_rates: dict[str, float] | None = None
    chosen: str = ""

    def __repr__(self) -> str:
        done = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.stage_seconds.items())
        there = f"; already there: {', '.join(self.skipped)}" if self.skipped else ""
        return (
            f"PrepareReport({done or 'nothing to do'}{there}; read {format_bytes(self.bytes_read)}, "
            f"written {format_bytes(self.bytes_written)}, run on disk {format_bytes(self.disk_bytes)})"
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def prepare(
    graph: Graph | str | Path,
    out: str | Path,
    *,
    fanouts: Sequence[int] = (10, 10),
    batch_size: int = 1024,
    sampler: str = "neighbor",
    replace: bool = False,
    dependency: int = 1,
    degrees: bool = False,
    epochs: int | None = None,
    memory: Size | None = None,
    gpu_memory: Size = 0,
    disk_space: Size | None = None,
    layout: str = "cost",
    seed: int = 0,
    task: str = "node",
    negatives: float = 1.0,
    filter_negatives: bool = False,
    batches: Source | Mapping[str, Source] | None = None,
    batches_key: str | None = None,
    topology: str = "automatic",
    rates: tuple[float, float] | None = None,
    overwrite: bool = False,
    runtime: Runtime | None = None,
    stop_after: str | None = None,
    progress: Progress | bool | None = None,
    on_choice: Callable[[str], None] | None = None,
) -> PrepareReport:
    """Makes the run ``out`` as :func:`outcrop.prepare` does, and returns what was done.

    Args:
        runtime: None makes one with ``memory`` as its budget, ``topology`` and ``progress``; one that is given has its
            own of these.
        stop_after: ``"sample"`` or ``"plan"``: leave the later stages for another call.

    Raises:
        BudgetError: A limit cannot be met; names the smallest that could.
        ArgumentError: An option is none, or a finished run of other options would be replaced.
        IoError: Another process prepares ``out``, or the system refuses a file.
    """
    graph = graph if isinstance(graph, Graph) else open_graph(graph)
    out = Path(out)
    foreign = None
    if batches is not None:
        if task != "node":
            raise ArgumentError(f"task {task!r} has no effect on batches from elsewhere: leave it out")
        foreign = ForeignBatches(batches, graph.num_nodes)
        fanouts, sampler, replace, dependency = (-1,) * foreign.hops, "foreign", False, 1
    elif sampler == "foreign":
        raise ArgumentError("sampler 'foreign' needs batches")
    sample_config = SampleConfig(
        fanouts=as_fanouts(fanouts),
        batch_size=batch_size,
        epochs=1 if epochs is None else epochs,
        replace=replace,
        seed=seed,
        sampler=sampler,  # type: ignore[arg-type]
        dependency=dependency,
        splits=foreign.splits if foreign else ("train", "valid", "test"),
        degrees=degrees,
        task=task,  # type: ignore[arg-type]
        negatives=negatives,
        filter_negatives=filter_negatives,
    )
    chosen: list[str] = []
    choose_epochs = epochs is None and foreign is None
    if auto.is_auto(memory):
        least = 1 if choose_epochs else None
        choice = auto.settle(graph, sample_config, out, disk_space=disk_space, least_epochs=least)
        memory, disk_space = choice.memory, choice.disk_space
        chosen.append(choice.why)
    plan_config = PlanConfig(
        memory=None if memory is None else parse_size(memory),
        gpu_memory=parse_size(gpu_memory),
        disk_space=None if disk_space is None else parse_size(disk_space, feature_bytes=graph.feature_bytes),
        layout=layout,
    )
    if choose_epochs:
        found = epoch_choice.for_run(graph, sample_config, plan_config, out)
        sample_config = with_fields(sample_config, epochs=found.count)
        chosen += [found.why] if found.why else []
    plan_config = _with_rates(plan_config, rates, sample_config, graph, out)
    chosen += _replaced(run.differences(out, _info(graph, out, sample_config, plan_config)), out, overwrite)
    _tell(on_choice, chosen)
    with ExitStack() as closing:
        if runtime is None:
            io = IoConfig(topology=topology)  # type: ignore[arg-type]
            needs = partial(_needs, graph, out, sample_config, plan_config, io, batches_key, progress)
            what = "prepare this run and load its mini-batches"
            closing.enter_context(budgets.naming_smallest(plan_config.memory, needs, what))
            runtime = closing.enter_context(Runtime(plan_config.memory, io=io, progress=progress))
        closing.enter_context(only_process_in(out))
        finish = closing.enter_context(history.preparing(out, graph, runtime))
        report = _prepare(graph, out, sample_config, plan_config, runtime, stop_after, foreign, batches_key)
        report.chosen = "\n".join(chosen)
        return finish(report)


def _needs(
    graph: Graph,
    out: Path,
    config: SampleConfig,
    plan_config: PlanConfig,
    io: IoConfig,
    batches_key: str | None,
    progress: Progress | bool | None,
) -> Callable[[int], bool]:
    """Which budgets would do."""
    drawn, wanted = None, sampling.expected(graph, config, batches_key)
    if manifests.is_current(out / "sample", samples.FORMAT, samples.VERSION, *wanted):
        drawn = samples.open_samples(Runtime(), out / "sample")
    elif config.sampler == "foreign":  # nobody knows how large they are
        return lambda limit: True
    return budgets.RunNeeds(graph, config, plan_config, io, drawn, progress).fits


def _limit_of(runtime: Runtime) -> int | None:
    return None if runtime.budget.limit_bytes == UNLIMITED else runtime.budget.limit_bytes


def _info(graph: Graph, out: Path, sampling: SampleConfig, plan: PlanConfig) -> run.RunInfo:
    return run.RunInfo(os.path.relpath(graph.path.resolve(), out.resolve()), graph.digest(), sampling, plan)


def _replaced(differing: list[str], out: Path, overwrite: bool) -> list[str]:
    """What to say about a run of other options in ``out``; raises ArgumentError where it may not be replaced."""
    manifests.require_overwrite(out, "a run", differing, overwrite)
    return [f"{out} is replaced: it differs in {', '.join(differing)}"] if differing else []


def _tell(on_choice: Callable[[str], None] | None, lines: list[str]) -> None:
    if on_choice is not None:
        for line in lines:
            on_choice(line)


def _with_rates(
    config: PlanConfig, rates: tuple[float, float] | None, sampling: SampleConfig, graph: Graph, out: Path
) -> PlanConfig:
    """``config`` with what the disk reads: ``rates``, or where it matters the same again when the call is repeated."""
    if rates is not None:
        return with_fields(config, sequential_rate=round(rates[0]), random_rate=round(rates[1]))
    if config.disk_space is None or config.layout != "cost":
        return config
    if (out / run.RUN_FILE).is_file():
        before = run.read(out)
        same = with_fields(
            config, sequential_rate=before.plan.sequential_rate, random_rate=before.plan.random_rate
        )
        if before.sample == sampling and before.plan == same:
            return before.plan
    measured = read_rates(graph.path / graph.spec("features").file)
    if measured is None:  # too small to measure: then nothing depends on it
        return config
    sequential, random = (round(measured[k]) for k in ("sequential_bytes_per_s", "random_ops_per_s"))
    return with_fields(config, sequential_rate=sequential, random_rate=random)


def prepare_described(out: Path, runtime: Runtime) -> PrepareReport:
    """Makes what ``out``'s ``run.json`` describes, within the budget of ``runtime``, which may be smaller than that of
    the plan; goes on where an earlier call was interrupted.

    Raises:
        FormatError: ``out`` is no run, or the graph is in another state than it says.
    """
    info = run.read(out)
    graph = open_graph(info.graph_path(out))
    if graph.digest() != info.graph_digest:
        raise FormatError(
            f"{out} was begun with another state of the graph than {graph.path} is in now: start again"
        )
    with only_process_in(out):
        return _prepare(graph, out, info.sample, info.plan, runtime, None)


def _remove_headless(folder: Path) -> None:
    """Removes a stage folder of a run whose manifest is gone: it is worth nothing, and would be in the way."""
    if folder.is_dir() and not manifests.exists(folder) and all(f.suffix == ".bin" for f in folder.iterdir()):
        shutil.rmtree(folder)


def _prepare(
    graph: Graph,
    out: Path,
    sample_config: SampleConfig,
    plan_config: PlanConfig,
    runtime: Runtime,
    stop_after: str | None,
    foreign: ForeignBatches | None = None,
    batches_key: str | None = None,
) -> PrepareReport:
    report = PrepareReport(epochs=sample_config.epochs)
    started, before = time.monotonic(), runtime.io.counters
    if plan_config.disk_space is not None and plan_config.layout == "cost":
        rates = plan_config.sequential_rate, plan_config.random_rate
        report.disk_rates = dict(zip(("sequential_bytes_per_s", "random_reads_per_s"), rates, strict=True))
    run.write(out, _info(graph, out, sample_config, plan_config))

    def stage(
        name: str,
        format: str,
        version: int,
        wanted: tuple[dict, dict[str, str]],
        make: Callable[[], Manifest],
        always: bool = False,
    ) -> None:
        if not always and manifests.is_current(out / name, format, version, *wanted):
            manifests.remove_leftovers(out / name)
            report.skipped.append(name)
            return
        _remove_headless(out / name)
        begin, start = time.monotonic(), runtime.io.counters
        with runtime.trace.span(name):
            make()
        system.return_freed_memory()
        end = runtime.io.counters
        report.stage_seconds[name] = time.monotonic() - begin
        report.stages[name] = {
            "seconds": report.stage_seconds[name],
            "bytes_read": end.read_bytes - start.read_bytes,
            "bytes_written": end.write_bytes - start.write_bytes,
        }

    def finish() -> PrepareReport:
        after = runtime.io.counters
        report.seconds = time.monotonic() - started
        report.bytes_read = after.read_bytes - before.read_bytes
        report.bytes_written = after.write_bytes - before.write_bytes
        report.disk_bytes = disk_bytes(out)
        return report

    stage(
        "sample",
        samples.FORMAT,
        samples.VERSION,
        sampling.expected(graph, sample_config, batches_key),
        lambda: sampling.sample(graph, sample_config, out / "sample", runtime, foreign, batches_key),
        always=foreign is not None and batches_key is None,
    )
    if stop_after == "sample":
        return finish()
    sample_set = samples.open_samples(runtime, out / "sample")
    if plan_config.memory is None and runtime.budget.limit_bytes != UNLIMITED:
        plan_config = PlanConfig(**{**asdict(plan_config), "memory": runtime.budget.limit_bytes})
    stage(
        "plan",
        placement.FORMAT,
        placement.VERSION,
        planning.expected(graph, sample_set, plan_config),
        lambda: planning.plan(graph, sample_set, plan_config, out / "plan", runtime),
    )
    places = placement.open_placement(runtime, out / "plan")
    report.predicted = places.predicted

    def pack() -> Manifest:
        needs = budgets.RunNeeds(graph, sample_config, plan_config, drawn=sample_set)
        limit = _limit_of(runtime)
        if limit is not None and not needs.packs(limit, plan_config.memory):
            raise BudgetError(f"packing does not fit a memory budget of {exact_bytes(limit)}")
        return packing.pack(graph, sample_set, places, out / "pack", runtime)

    if stop_after != "plan":
        stage(
            "pack",
            packed.FORMAT,
            packed.VERSION,
            packing.expected(graph, sample_set, places),
            pack,
        )
    return finish()
