"""Prepares a run: sample, plan and pack, each stage skipped where its result is there already.

A :class:`PrepareRequest` says what, in numbers: what is ``"auto"`` was chosen before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from dataclasses import replace as with_fields
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from outcrop.config import (
    PlanConfig,
    SampleConfig,
    check_topology,
    exact_bytes,
    format_bytes,
)
from outcrop.config.places import require_path
from outcrop.config.sampling import EXTERNAL
from outcrop.errors import BudgetError, FormatError
from outcrop.loading.needs import BatchCounter
from outcrop.preparation import pack as packing
from outcrop.preparation import plan as planning
from outcrop.preparation import plan_memory
from outcrop.preparation import sample as sampling
from outcrop.preparation.needs import RunNeeds
from outcrop.runtime import system
from outcrop.runtime.machine import read_rates
from outcrop.runtime.progress import Progress
from outcrop.runtime.runtime import UNLIMITED, Runtime
from outcrop.runtime.smallest_budget import naming_smallest
from outcrop.sampling.external import ExternalBatches
from outcrop.store import manifest as manifests
from outcrop.store import packed, run, samples
from outcrop.store import placement as plan_artifact
from outcrop.store.graph import Graph, open_graph
from outcrop.store.history import disk_bytes, recording_preparing
from outcrop.store.lock import only_process_in
from outcrop.store.manifest import Manifest
from outcrop.store.placement import open_placement


@dataclass
class PrepareReport:
    """Says what preparing did.

    Attributes:
        stages: ``seconds``, ``bytes_read`` and ``bytes_written`` of each stage of this call.
        skipped: Stages whose results were there.
        bytes_read, bytes_written: Bytes that this call read and wrote.
        predicted: What the plan promises: bytes and rows per level and epoch, exactly.
        memory: What each part of loading has of the budget (:meth:`outcrop.runtime.memory_plan.MemoryPlan.as_dict`);
            None where there is no limit, or no plan yet.
        epochs: Epochs that the run has.
        passes: Passes over the features that packing made: more than one where the memory holds too little; 0: none.
        cluster: Of packing on a cluster, its ``machines``, ``rows_bytes_sent`` and ``ids_bytes_sent`` between them, and
            ``spilled_bytes`` of its object stores (:class:`outcrop.preparation.pack.MovedBytes`); else None.
        machines: Where machines keep parts on disks of their own: ``parts`` of each, by its address, in the order of
            the ranks that train with them, and ``files_bytes_sent`` beside rows and ids; else None.
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
    memory: dict[str, Any] | None = None
    epochs: int = 0
    passes: int = 0
    cluster: dict[str, Any] | None = None
    machines: dict[str, Any] | None = None
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


class RunDisks(packing.RowFiller, AbstractContextManager[Any], Protocol):
    """Keeps parts of a run on the disks of several machines, which it is in touch with for a block.

    Attributes:
        sent_bytes: Bytes of files that were sent to them, beside rows.
    """

    @property
    def sent_bytes(self) -> int: ...

    def lost_parts(self) -> list[int]:
        """Returns the parts of the run, which is prepared, that no machine has."""
        ...

    def hand_out(self) -> dict[str, list[int]]:
        """Makes the run on each machine that is to train with a part of it; returns the parts of each."""
        ...


@dataclass(frozen=True)
class PrepareRequest:
    """Says what is to be prepared, all of it in numbers.

    Attributes:
        sampling, limits: Its options; ``limits`` has the rates of the disk where they matter (:func:`with_rates`).
        external: Batches from elsewhere, in place of those that ``sampling`` draws.
        batches_key: Names what ``external`` gives: while it stays the same, its batches are not asked for again.
        topology: Where neighbour lists are read from.
        stop_after: ``"sample"`` or ``"plan"``: leave the later stages for another call.
        chosen: What was chosen for the user, and why: lines, for the report.
        fill: What writes the rows.
        disks: Where parts of the run lie on disks of several machines: what keeps them.
    """

    graph: Graph
    out: Path
    sampling: SampleConfig
    limits: PlanConfig
    external: ExternalBatches | None = None
    batches_key: str | None = None
    stop_after: str | None = None
    chosen: tuple[str, ...] = ()
    topology: str = "automatic"
    fill: packing.RowFiller = packing.fill_in_passes
    disks: RunDisks | None = None

    def __post_init__(self) -> None:
        require_path(
            self.out, "prepare in a folder, and outcrop upload FOLDER URI (outcrop.upload) takes it there"
        )
        object.__setattr__(self, "graph", self.graph.with_edge_rows(self.sampling.edge_rows))
        check_topology(self.topology)

    @property
    def parts(self) -> int:
        """Counts the files that records lie in."""
        return self.limits.parts or 1

    @property
    def info(self) -> run.RunInfo:
        """Returns what ``run.json`` says."""
        graph = os.path.relpath(self.graph.path.resolve(), self.out.resolve())
        return run.RunInfo(graph, self.graph.digest(), self.sampling, self.limits)

    def replacing(self, overwrite: bool) -> tuple[str, ...]:
        """Tells what to say about a run of other options that is in the way.

        Raises:
            ArgumentError: It may not be replaced.
        """
        differing = run.differences(self.out, self.info)
        manifests.require_overwrite(self.out, "a run", differing, overwrite)
        return (f"{self.out} is replaced: it differs in {', '.join(differing)}",) if differing else ()

    def needs(self, progress: Progress | bool | None) -> Callable[[int], bool]:
        """Tells which budgets would do."""
        drawn, wanted = None, sampling.expected(self.graph, self.sampling, self.batches_key, self.parts)
        if manifests.is_current(self.out / "sample", samples.FORMAT, samples.VERSIONS, *wanted):
            drawn = samples.open_samples(Runtime(), self.out / "sample")
        elif self.sampling.sampler == EXTERNAL:  # nobody knows how large they are
            return lambda limit: True
        return RunNeeds(
            self.graph, self.sampling, self.limits, self.topology, drawn, BatchCounter(progress)
        ).fits


def prepare(
    request: PrepareRequest, runtime: Runtime, on_replaced: Callable[[], None] = lambda: None
) -> PrepareReport:
    """Makes what is not there yet, within the budget of ``runtime``, and records it in the history of the run.

    Args:
        on_replaced: Called as soon as a stage of a run that was there is replaced.

    Raises:
        BudgetError: A limit cannot be met.
        IoError: Another process prepares the run, or the system refuses a file.
    """
    with ExitStack() as closing:
        closing.enter_context(only_process_in(request.out))
        if request.disks is not None:
            closing.enter_context(request.disks)
        finish = closing.enter_context(recording_preparing(request.out, request.graph, runtime))
        report = _make(request, runtime, closing.enter_context(_described(request, on_replaced)))
        finish(report.as_dict())
        return report


def prepare_within_limits(
    request: PrepareRequest,
    progress: Progress | bool | None = None,
    on_replaced: Callable[[], None] = lambda: None,
) -> PrepareReport:
    """Does what :func:`prepare` does, in a runtime of its own, which has the memory that the run is loaded with.

    Raises:
        BudgetError: Names the smallest memory budget that would do, where that was too small.
    """
    memory, needs = request.limits.memory, partial(request.needs, progress)
    with (
        naming_smallest(memory, needs, "prepare this run and load its mini-batches"),
        Runtime(memory, progress=progress) as runtime,
    ):
        return prepare(request, runtime, on_replaced)


def with_rates(
    config: PlanConfig,
    sampling: SampleConfig,
    graph: Graph,
    out: Path,
    rates: tuple[float, float] | None = None,
) -> PlanConfig:
    """Returns ``config`` with what the disk reads: ``rates``, or where it matters the same again when the call is
    repeated.
    """
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
    measured = read_rates(graph.measured_file)
    if measured is None:  # too small to measure: then nothing depends on it
        return config
    sequential, random = (round(measured[k]) for k in ("sequential_bytes_per_s", "random_ops_per_s"))
    return with_fields(config, sequential_rate=sequential, random_rate=random)


def prepare_described(out: Path, runtime: Runtime, topology: str = "automatic") -> PrepareReport:
    """Makes what ``out``'s ``run.json`` describes, within the budget of ``runtime``, which may be smaller than that of
    the plan; goes on where an earlier call was interrupted.

    Args:
        topology: Where neighbour lists are read from.

    Raises:
        FormatError: ``out`` is no run, or the graph is in another state than it says.
    """
    info = run.read(out)
    graph = open_graph(info.graph_path(out)).with_seeds(info.sample.node_type)
    if graph.digest() != info.graph_digest:
        raise FormatError(
            f"{out} was begun with another state of the graph than {graph.path} is in now: start again"
        )
    with only_process_in(out):
        request = PrepareRequest(graph, out, info.sample, info.plan, topology=topology)
        run.write(out, request.info)
        return _make(request, runtime)


@contextmanager
def _described(request: PrepareRequest, on_replaced: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Writes what the run is to be, and yields what is called when one of its stages is made.

    Where a budget is refused before that, the run that was there is left, and described, as it was; where there was
    none and nothing is made, no description stays either.
    """
    path, replaced = request.out / run.RUN_FILE, False
    former = path.read_bytes() if path.is_file() else None
    run.write(request.out, request.info)

    def on_stage() -> None:
        nonlocal replaced
        if not replaced:
            on_replaced()
        replaced = True

    try:
        yield on_stage
    except BaseException as error:
        if former is None:
            _remove_lonely(path)
        elif isinstance(error, BudgetError) and not replaced:
            manifests.write_atomic(path, former)
        raise


def _remove_lonely(path: Path) -> None:
    """Removes a file that nothing else lies beside."""
    with suppress(OSError):
        if list(path.parent.iterdir()) == [path]:
            path.unlink()


def _limit_of(runtime: Runtime) -> int | None:
    return None if runtime.budget.limit_bytes == UNLIMITED else runtime.budget.limit_bytes


def _make(
    request: PrepareRequest, runtime: Runtime, on_stage: Callable[[], None] = lambda: None
) -> PrepareReport:
    """Makes what is not there yet; ``on_stage`` is called after each stage that is made."""
    graph, out = request.graph, request.out
    origin = sampling.BatchOrigin(request.topology, request.external, request.batches_key)
    sample_config, plan_config = request.sampling, request.limits
    report = PrepareReport(epochs=sample_config.epochs, chosen="\n".join(request.chosen))
    manifests.remove_scratch(out)
    started, before = time.monotonic(), runtime.io.counters
    copied = packing.CopiedBytes()  # by other processes, which pack: the last stage
    if plan_config.disk_space is not None and plan_config.layout == "cost":
        rates = plan_config.sequential_rate, plan_config.random_rate
        report.disk_rates = dict(zip(("sequential_bytes_per_s", "random_reads_per_s"), rates, strict=True))

    def stage(
        name: str,
        format: str,
        versions: tuple[int, ...],
        wanted: tuple[dict, dict[str, str]],
        make: Callable[[], Manifest],
        always: bool = False,
    ) -> None:
        if not always and manifests.is_current(out / name, format, versions, *wanted):
            manifests.remove_leftovers(out / name)
            report.skipped.append(name)
            return
        manifests.remove_headless(out / name)
        begin, start = time.monotonic(), runtime.io.counters
        with runtime.trace.span(name):
            make()
        system.return_freed_memory()
        on_stage()
        end = runtime.io.counters
        report.stage_seconds[name] = time.monotonic() - begin
        report.stages[name] = {
            "seconds": report.stage_seconds[name],
            "bytes_read": end.read_bytes - start.read_bytes + copied.bytes_read,
            "bytes_written": end.write_bytes - start.write_bytes + copied.bytes_written,
        }

    def finish() -> PrepareReport:
        after = runtime.io.counters
        report.seconds = time.monotonic() - started
        report.bytes_read = after.read_bytes - before.read_bytes + copied.bytes_read
        report.bytes_written = after.write_bytes - before.write_bytes + copied.bytes_written
        report.disk_bytes = disk_bytes(out)
        return report

    stage(
        "sample",
        samples.FORMAT,
        samples.VERSIONS,
        sampling.expected(graph, sample_config, request.batches_key, request.parts),
        lambda: sampling.sample(graph, sample_config, out / "sample", runtime, origin, request.parts),
        always=request.external is not None and request.batches_key is None,
    )
    if request.stop_after == "sample":
        return finish()
    sample_set = samples.open_samples(runtime, out / "sample")
    if plan_config.memory is None and runtime.budget.limit_bytes != UNLIMITED:
        plan_config = with_fields(plan_config, memory=runtime.budget.limit_bytes)
    stage(
        "plan",
        plan_artifact.FORMAT,
        plan_artifact.VERSIONS,
        planning.expected(graph, sample_set, plan_config),
        lambda: planning.plan(graph, sample_set, plan_config, out / "plan", runtime),
    )
    placement = open_placement(runtime, out / "plan")
    report.predicted = placement.predicted
    divided = plan_memory.memory_plan(placement.manifest)
    report.memory = None if divided is None else divided.as_dict()

    def pack() -> Manifest:
        needs = RunNeeds(graph, sample_config, plan_config, drawn=sample_set)
        limit = _limit_of(runtime)
        if limit is not None and not needs.packs(limit, plan_config.memory):
            raise BudgetError(f"packing does not fit a memory budget of {exact_bytes(limit)}")
        nonlocal copied
        done = packing.pack(graph, sample_set, placement, out / "pack", runtime, request.fill)
        report.passes, copied = done.passes, done.copied
        report.cluster = None if copied.moved is None else asdict(copied.moved)
        return done.manifest

    if request.stop_after != "plan":
        wanted = packing.expected(graph, sample_set, placement)
        stage("pack", packed.FORMAT, packed.VERSIONS, wanted, pack, always=_has_lost_parts(request, wanted))
        report.machines = _handed_out(request)
    return finish()


def _has_lost_parts(request: PrepareRequest, wanted: tuple[dict, dict[str, str]]) -> bool:
    """Tells whether a run that was packed lacks parts that were on the disks of machines."""
    there = manifests.is_current(request.out / "pack", packed.FORMAT, packed.VERSIONS, *wanted)
    return request.disks is not None and there and bool(request.disks.lost_parts())


def _handed_out(request: PrepareRequest) -> dict[str, Any] | None:
    """Makes the run on machines that keep parts of it; says which."""
    if request.disks is None:
        return None
    parts = request.disks.hand_out()
    return {"parts": parts, "files_bytes_sent": request.disks.sent_bytes}
