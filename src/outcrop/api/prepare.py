"""prepare: a graph becomes a run, and open_run opens it. What was not named is chosen here; the work is elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from outcrop.advisor import auto
from outcrop.advisor import epochs_at_a_time as epoch_choice
from outcrop.api.old_keywords import accepts_old_keywords, merged, named
from outcrop.api.run import Run
from outcrop.config import (
    Limits,
    PackConfig,
    SampleConfig,
    Size,
    check_epochs_unset,
    with_memory,
)
from outcrop.config.declared import check_types, checks_arguments
from outcrop.config.sampling import EXTERNAL
from outcrop.errors import ArgumentError
from outcrop.preparation.cluster.local import LocalWorkers
from outcrop.preparation.pack import RowFiller, fill_in_passes
from outcrop.preparation.prepare import (
    PrepareReport,
    PrepareRequest,
    RunDisks,
    prepare_within_limits,
    with_rates,
)
from outcrop.preparation.prepare import prepare as prepare_run
from outcrop.runtime.observer import Observer
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.external import ExternalBatches, Source
from outcrop.sampling.typed import check_served
from outcrop.store.graph import Graph, open_graph

_OLD = {
    **{
        name: f"sampling.{name}"
        for name in (
            "fanouts", "batch_size", "sampler", "replace", "degrees", "seed", "task", "negatives",
            "filter_negatives",
        )
    },
    "dependency": "sampling.batch_dependency",
    "gpu_memory": "limits.gpu_memory",
    "disk_space": "limits.disk_space",
    "layout": "packing.layout",
    "rates": "packing.rates",
    "progress": "observer.progress",
    "on_choice": "observer.on_choice",
}  # fmt: skip
_KINDS = {"sampling": SampleConfig, "limits": Limits, "packing": PackConfig, "observer": Observer}


def _objects(old: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Makes the objects that :func:`prepare` takes now from keywords that it took before."""
    fields = {parameter: named(_OLD, parameter, old) for parameter in _KINDS}
    return {p: merged(kind, given.get(p), fields[p]) for p, kind in _KINDS.items() if fields[p]}


@accepts_old_keywords(_OLD, _objects)
@checks_arguments
def prepare(
    graph: Graph | str | Path,
    out: str | Path,
    *,
    sampling: SampleConfig | None = None,
    limits: Limits | None = None,
    packing: PackConfig | None = None,
    batches: Source | Mapping[str, Source] | None = None,
    batches_key: str | None = None,
    topology: str = "automatic",
    overwrite: bool = False,
    observer: Observer | None = None,
    memory: Size | None = None,
    epochs: int | None = None,
) -> Run:
    """Samples, plans and packs ``graph`` into the run ``out``, all that training from disk needs, and opens it.

    Interrupted at any moment, the same call goes on where it was; stages whose results are there are skipped.

    Args:
        graph: The graph, or its folder.
        out: Folder of the run.
        sampling: How batches are drawn (:class:`outcrop.SampleConfig`). None: fanouts 10,10, batches of 1024 seeds.
        limits: Budgets of training (:class:`outcrop.Limits`); preparing keeps within them, too. Memory ``"auto"`` takes
            what the machine has left, and limits the disk space where the disk does; a run that is there keeps its own.
        packing: What batches share on disk where packing all of them exceeds the disk space, in how many files they
            lie, and who writes them (:class:`outcrop.PackConfig`).
        batches: Mini-batches from elsewhere instead: an iterable, or a function of the epoch that makes one, or
            either of them by split (:mod:`outcrop.sampling.external` says what a batch must have, and how it is
            reordered); ``HeteroData`` where the graph has types. Hops are those of the batches; of ``sampling`` only
            ``batch_size`` and ``degrees`` matter.
        batches_key: Names what ``batches`` gives: while it stays the same, they are not asked for again. Without it
            they are, and what was made of them stays if they are the same.
        topology: Where neighbour lists are read from: ``"automatic"``, ``"memory"``, ``"paged"`` or ``"map"``.
        overwrite: Replace a run of other options in ``out``; without it that is an error which names what differs.
        observer: Progress, and what was chosen (:class:`outcrop.Observer`).
        memory: Short for ``limits=Limits(memory=...)``.
        epochs: Epochs prepared, each with batches of its own; longer training replays them. None: 10, what training
            has by default, or fewer where the disk has no room for them; a run that is there keeps its number; batches
            from elsewhere: 1.

    Returns:
        The run; :func:`outcrop.api.prepare.prepare_with_report` returns seconds and bytes instead.

    Raises:
        BudgetError: A limit cannot be met; names the smallest that could.
        ArgumentError: An option is none, or a finished run of other options would be replaced.
        IoError: Another process prepares ``out``, or the system refuses a file.
    """
    asked = PrepareOptions(
        graph,
        out,
        sampling=sampling or SampleConfig(),
        limits=with_memory(limits, memory),
        packing=packing or PackConfig(),
        batches=batches,
        batches_key=batches_key,
        topology=topology,
        overwrite=overwrite,
        epochs=epochs,
    )
    prepare_with_report(asked, observer=observer or Observer())
    return Run(out)


def open_run(path: str | Path, *, memory: Size | None = None, graph: str | Path | Graph | None = None) -> Run:
    """Opens the prepared run at ``path``.

    Args:
        path: Folder made by :func:`prepare`.
        memory: Budget of loading; None takes the one the run was planned for.
        graph: Where its graph is now, if one of them was moved.

    Raises:
        FormatError: There is none, it is not finished, or its graph is not there.
    """
    return Run(path, memory=memory, graph=graph)


@dataclass(frozen=True)
class PrepareOptions:
    """Says what is prepared, and how: the arguments of :func:`prepare`, which has what each of them means."""

    graph: Graph | str | Path
    out: str | Path
    sampling: SampleConfig = field(default_factory=SampleConfig)
    limits: Limits = field(default_factory=Limits)
    packing: PackConfig = field(default_factory=PackConfig)
    batches: Source | Mapping[str, Source] | None = None
    batches_key: str | None = None
    topology: str = "automatic"
    overwrite: bool = False
    epochs: int | None = None

    def __post_init__(self) -> None:
        check_types(self)


@checks_arguments
def prepare_with_report(
    asked: PrepareOptions,
    *,
    observer: Observer | None = None,
    runtime: Runtime | None = None,
    stop_after: str | None = None,
) -> PrepareReport:
    """Makes a run as :func:`outcrop.prepare` does, and returns what was done.

    Args:
        asked: What is prepared.
        observer: Progress, and what was chosen; None: silence.
        runtime: None makes one with the memory and the progress that are asked for; one that is given has its own of
            these.
        stop_after: ``"sample"`` or ``"plan"``: leave the later stages for another call.

    Raises:
        BudgetError: A limit cannot be met; names the smallest that could.
        ArgumentError: An option is none, or a finished run of other options would be replaced.
        IoError: Another process prepares ``out``, or the system refuses a file.
    """
    watched = observer or Observer(progress=False)
    request = replace(_request(asked), stop_after=stop_after)
    replaced = request.replacing(asked.overwrite)
    _tell(watched.on_choice, request.chosen)
    request = replace(request, chosen=(*request.chosen, *replaced))
    on_replaced = partial(_tell, watched.on_choice, replaced)
    if runtime is not None:
        return prepare_run(request, runtime, on_replaced)
    with watched.watching() as progress:
        return prepare_within_limits(request, progress, on_replaced)


def _request(asked: PrepareOptions) -> PrepareRequest:
    """Describes what is prepared, in numbers: what was left open is chosen here."""
    graph, out = asked.graph if isinstance(asked.graph, Graph) else open_graph(asked.graph), Path(asked.out)
    graph = graph.with_seeds(asked.sampling.node_type or graph.chosen_seeds)
    external = None if asked.batches is None else ExternalBatches(asked.batches, graph)
    config, limits = _sampling(asked.sampling, external, asked.epochs), asked.limits
    config = replace(config, node_type=graph.chosen_seeds)
    check_served(config, graph)
    graph = graph.with_edge_rows(config.edge_rows)
    chosen: list[str] = []
    choose_epochs = asked.epochs is None and external is None
    if auto.is_auto(limits.memory):
        least = 1 if choose_epochs else None
        ahead = auto.TrainingAhead(disk_space=limits.disk_space, least_epochs=least)
        choice = auto.choose_limits(graph, config, out, ahead)
        limits = replace(limits, memory=choice.memory, disk_space=choice.disk_space)
        chosen.append(choice.why)
    plan = limits.in_bytes(graph.feature_bytes, asked.packing)
    if choose_epochs:
        found = epoch_choice.for_run(graph, config, plan, out)
        config = replace(config, epochs=found.count)
        chosen += [found.why] if found.why else []
    plan = with_rates(plan, config, graph, out, asked.packing.rates)
    disks = _disks(asked.packing, graph, out, plan.processes or 1)
    return PrepareRequest(
        graph,
        out,
        config,
        plan,
        external,
        asked.batches_key,
        chosen=tuple(chosen),
        topology=asked.topology,
        fill=_filler(asked.packing) if disks is None else disks,
        disks=disks,
    )


def _filler(packing: PackConfig) -> RowFiller:
    """Returns what packs.

    Raises:
        ArgumentError: Ray is asked for, and not installed.
    """
    if packing.ray is None:
        return LocalWorkers(packing.workers) if packing.workers > 1 else fill_in_passes
    return _on_ray().RayWorkers(packing.ray)


def _disks(packing: PackConfig, graph: Graph, out: Path, processes: int) -> RunDisks | None:
    """Returns what keeps parts of the run on disks of several machines; None: the run lies in one folder.

    Raises:
        ArgumentError: As :func:`_filler`.
    """
    if not packing.own_disks:
        return None
    return _on_ray().RayDisks(packing.ray, (graph.path, graph.digest()), out, packing.parts, processes)


def _on_ray() -> Any:
    """Imports what works on a Ray cluster.

    Raises:
        ArgumentError: Ray is not installed.
    """
    try:
        from outcrop.preparation.cluster import on_ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ArgumentError("packing on a Ray cluster needs Ray: pip install 'outcrop[ray]'") from None
    return on_ray


def _sampling(asked: SampleConfig, external: ExternalBatches | None, epochs: int | None) -> SampleConfig:
    """Says how batches are drawn; those from elsewhere have hops and splits of their own."""
    check_epochs_unset(asked, "epochs=4 beside it")
    if external is None:
        if asked.sampler == EXTERNAL:
            raise ArgumentError("sampler 'foreign' needs batches")
        return replace(asked, epochs=1 if epochs is None else epochs)
    if asked.task != "node":
        raise ArgumentError(f"task {asked.task!r} has no effect on batches from elsewhere: leave it out")
    if asked.edge_rows:
        raise ArgumentError(
            "batches from elsewhere have edges of their own, without features in the graph: leave edge_rows out"
        )
    if asked.edge_weights:
        raise ArgumentError(
            "batches from elsewhere have edges of their own, without weights in the graph: leave edge_weights out"
        )
    if asked.edge_ids:
        raise ArgumentError(
            "batches from elsewhere have edges of their own, without ids in the graph: leave edge_ids out"
        )
    return replace(
        asked,
        fanouts=(-1,) * external.hops,
        sampler=EXTERNAL,
        replace=False,
        batch_dependency=1,
        splits=external.splits,
        epochs=1 if epochs is None else epochs,
    )


def _tell(on_choice: Callable[[str], None] | None, lines: Sequence[str]) -> None:
    if on_choice is not None:
        for line in lines:
            on_choice(line)
