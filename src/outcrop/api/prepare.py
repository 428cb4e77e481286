"""prepare: a graph becomes a run, and open_run opens it. What was not named is chosen here; the work is elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as with_fields
from functools import partial
from pathlib import Path

from outcrop.advisor import auto
from outcrop.advisor import epochs as epoch_choice
from outcrop.api.run import Run
from outcrop.config import IoConfig, PlanConfig, SampleConfig, Size, as_fanouts, parse_size
from outcrop.errors import ArgumentError
from outcrop.preparation.prepare import PrepareReport, PrepareRequest, prepare_within_limits, with_rates
from outcrop.preparation.prepare import prepare as prepare_run
from outcrop.runtime.progress import Progress, shows_progress
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.external import ExternalBatches, Source
from outcrop.store.graph import Graph, open_graph


@shows_progress
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
    progress: Progress | bool = True,
    on_choice: Callable[[str], None] | None = None,
) -> Run:
    """Samples, plans and packs ``graph`` into the run ``out``, all that training from disk needs, and opens it.

    Interrupted at any moment, the same call goes on where it was; stages whose results are there are skipped.

    Args:
        graph: The graph, or its folder.
        out: Folder of the run.
        fanouts: Neighbours per hop, -1 = all.
        batch_size: Seed nodes per mini-batch; positive edges where the task is ``"link"``.
        sampler: ``"neighbor"``, ``"labor"``, ``"shadow"`` or ``"weighted"`` (:class:`outcrop.config.SampleConfig`).
        replace: Draw neighbours with replacement.
        dependency: Of sampler ``"labor"``: batches in a row that want most of the same nodes; 1: independent.
        degrees: Record whole-graph degrees too, which GCN's normalisation uses.
        epochs: Epochs prepared, each with batches of its own; longer training replays them. None: 10, what training
            has by default, or fewer where the disk has no room for them; a run that is there keeps its number; batches
            from elsewhere: 1.
        memory: Budget of training, bytes or text (``"4GiB"``); preparing keeps within it too. ``"auto"`` takes what
            the machine has left, and limits the disk space where the disk does; a run that is there keeps its own.
            None: no limit.
        gpu_memory: Device memory for cached rows and batches, bytes or text; 0: no rows are cached there.
        disk_space: Limit for the files of the run: bytes, text, or ``"3x"`` the feature size. None: none.
        layout: What batches share on disk where packing everything exceeds ``disk_space``: ``"cost"``, ``"heuristic"``,
            ``"packed"`` or ``"S,M"`` (:class:`outcrop.config.PlanConfig`).
        seed: Same seed, same batches.
        task: ``"node"``, or ``"link"``: seeds are the ends of edges to be predicted.
        negatives: Of task ``"link"``: negative edges per positive one.
        filter_negatives: Of task ``"link"``: draw again what is an edge of the graph.
        batches: Mini-batches from elsewhere instead: an iterable, or a function of the epoch that makes one, or
            either of them by split (:mod:`outcrop.sampling.external` says what a batch must have, and how it is
            reordered). Hops are those of the batches; ``fanouts``, ``batch_size``, ``sampler`` and ``seed`` do not
            matter.
        batches_key: Names what ``batches`` gives: while it stays the same, they are not asked for again. Without it
            they are, and what was made of them stays if they are the same.
        topology: Where neighbour lists are read from: ``"automatic"``, ``"memory"``, ``"paged"`` or ``"map"``.
        rates: What the disk reads, which layout ``"cost"`` prices by: bytes per second in order, and random reads of
            4 KiB per second. None: those that the run has, else measured. The same rates give the same files.
        overwrite: Replace a run of other options in ``out``; without it that is an error which names what differs.
        progress: Whether to show progress (:mod:`outcrop.runtime.progress`), or a receiver of it.
        on_choice: Told, before anything is made, what memory ``"auto"`` chose and where fewer epochs are prepared than
            training has by default; and what was replaced, as soon as it is.

    Returns:
        The run; :func:`outcrop.api.prepare.prepare_with_report` returns seconds and bytes instead.

    Raises:
        BudgetError: A limit cannot be met; names the smallest that could.
        ArgumentError: An option is none, or a finished run of other options would be replaced.
        IoError: Another process prepares ``out``, or the system refuses a file.
    """
    prepare_with_report(
        graph,
        out,
        fanouts=fanouts,
        batch_size=batch_size,
        sampler=sampler,
        replace=replace,
        dependency=dependency,
        degrees=degrees,
        epochs=epochs,
        memory=memory,
        gpu_memory=gpu_memory,
        disk_space=disk_space,
        layout=layout,
        seed=seed,
        task=task,
        negatives=negatives,
        filter_negatives=filter_negatives,
        batches=batches,
        batches_key=batches_key,
        topology=topology,
        rates=rates,
        overwrite=overwrite,
        progress=progress,
        on_choice=on_choice,
    )
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


def prepare_with_report(
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
    external = None
    if batches is not None:
        if task != "node":
            raise ArgumentError(f"task {task!r} has no effect on batches from elsewhere: leave it out")
        external = ExternalBatches(batches, graph.num_nodes)
        fanouts, sampler, replace, dependency = (-1,) * external.hops, "foreign", False, 1
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
        splits=external.splits if external else ("train", "valid", "test"),
        degrees=degrees,
        task=task,  # type: ignore[arg-type]
        negatives=negatives,
        filter_negatives=filter_negatives,
    )
    chosen: list[str] = []
    choose_epochs = epochs is None and external is None
    if auto.is_auto(memory):
        least = 1 if choose_epochs else None
        choice = auto.choose_limits(graph, sample_config, out, disk_space=disk_space, least_epochs=least)
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
    plan_config = with_rates(plan_config, sample_config, graph, out, rates)
    request = PrepareRequest(graph, out, sample_config, plan_config, external, batches_key, stop_after)
    replaced = request.replacing(overwrite)
    request = with_fields(request, chosen=(*chosen, *replaced))
    _tell(on_choice, chosen)
    on_replaced = partial(_tell, on_choice, replaced)
    if runtime is not None:
        return prepare_run(request, runtime, on_replaced)
    return prepare_within_limits(request, IoConfig(topology=topology), progress, on_replaced)  # type: ignore[arg-type]


def _tell(on_choice: Callable[[str], None] | None, lines: Sequence[str]) -> None:
    if on_choice is not None:
        for line in lines:
            on_choice(line)
