"""advise: what an epoch takes and reads, here and on other machines, before anything is packed.

Bytes are counted and not estimated (advisor/counting.py); the rest is the cost model (advisor/cost.py) with the profile
of the machine.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from outcrop.advisor import cluster_cost, machine
from outcrop.advisor.auto import is_auto
from outcrop.advisor.cost import tco
from outcrop.advisor.counting import EpochCount, Task, count
from outcrop.advisor.market import Market
from outcrop.advisor.offers import Comparison, compare, on_machine, seconds_of_new_batches
from outcrop.advisor.shapes import network_of
from outcrop.api.old_keywords import accepts_old_keywords, merged, named
from outcrop.config import (
    ClusterConfig,
    Limits,
    ModelConfig,
    Replay,
    SampleConfig,
    Size,
    as_fanouts,
    check_epochs_unset,
    parse_size,
    with_memory,
)
from outcrop.config.cluster import parse_rate
from outcrop.config.declared import checks_arguments
from outcrop.config.models import wants_degrees, wants_edge_rows
from outcrop.errors import ArgumentError
from outcrop.loading.modes import Online, Packed
from outcrop.store import run as runs
from outcrop.store.graph import Graph, open_graph
from outcrop.store.graph_types import name_of
from outcrop.store.profile import Profile
from outcrop.training.choices import with_seeds_of

_OLD = {
    "hidden": "model.hidden",
    "fanouts": "sampling.fanouts",
    "batch_size": "sampling.batch_size",
    "sampler": "sampling.sampler",
    "seed": "sampling.seed",
    "sample_epochs": "run",
    "gpu_memory": "limits.gpu_memory",
    "disk_space": "limits.disk_space",
    "machines": "market.machines",
    "prices": "market.prices",
    "budget": "market.budget",
}


def _objects(old: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Makes the objects that :func:`advise` takes now from keywords that it took before."""
    made: dict[str, Any] = {}
    if "hidden" in old:
        model = given.get("model", ModelConfig())
        made["model"] = replace(ModelConfig(model) if isinstance(model, str) else model, hidden=old["hidden"])
    if given.get("run") is None:  # which overruled these
        if "sample_epochs" in old:
            made["run"] = Replay(old["sample_epochs"])
        if sampling := named(_OLD, "sampling", old):
            if "fanouts" in sampling:
                sampling["fanouts"] = as_fanouts(sampling["fanouts"])
            made["sampling"] = merged(SampleConfig, given.get("sampling"), sampling)
    for parameter, kind in (("limits", Limits), ("market", Market)):
        if options := named(_OLD, parameter, old):
            made[parameter] = merged(kind, given.get(parameter), options)
    return made


@accepts_old_keywords(_OLD, _objects)
@checks_arguments
def advise(
    graph: Graph | str | Path,
    *,
    model: str | ModelConfig = "sage",
    sampling: SampleConfig | None = None,
    limits: Limits | None = None,
    run: str | Path | Replay | None = None,
    market: Market | None = None,
    device: str = "cpu",
    profile: str | Path | None = None,
    cluster: ClusterConfig | None = None,
    memory: Size | None = None,
) -> dict[str, Any]:
    """Predicts epochs of training ``graph``, here and on other machines; with prices what to buy.

    Args:
        graph: Graph, or its folder.
        model: ``sage``, ``gat`` or ``gcn``, of graphs with types ``rgcn``, ``rsage``, ``rgat`` or ``hgt``; or
            :class:`outcrop.ModelConfig` with its size, and what nodes have whose type has no features.
        sampling: How batches are drawn (:class:`outcrop.SampleConfig`); a run has its own.
        limits: Memory, device memory and disk space (:class:`outcrop.Limits`); of a run only its memory can be another.
        run: Where batches come from. A run made by :func:`outcrop.prepare` (planned is enough): its batches and limits
            are taken. :class:`outcrop.Replay`: those of a few epochs, again and again. None: of one epoch.
        market: Machines to compare with, and what they cost (:class:`outcrop.Market`).
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        profile: File of ``outcrop doctor --save``; None: the one kept for this machine, measured where there is none.
        cluster: Machines that are to train together (:class:`outcrop.ClusterConfig`): of the kind of the only one that
            ``market`` names, else of this.
        memory: Short for ``limits=Limits(memory=...)``.

    Returns:
        ``predictions`` (a row per machine and mode; ``online`` reads rows as batches are drawn), ``fresh`` (seconds of
        an epoch here whose batches are drawn anew: ``spooled``, of it ``preparing``, with ``epochs`` at a time, and
        ``online``), ``disk_curve`` (TPC by number of disks), ``changes`` (what one changed component
        gains per unit of money), ``assumptions``, and what was asked. Of a graph with types also ``row_files`` (whose
        rows they are, and how large) and ``by_file``: for each mode, of each row file, ``rows_by_level``, as epochs of
        a training have them, and ``bytes_read``.

    Raises:
        ArgumentError: The model is for other graphs, a file of a machine or of prices is not what it should be, or
            options contradict each other.
        BudgetError: A limit cannot be met.
    """
    graph = graph if isinstance(graph, Graph) else open_graph(graph)
    graph = with_seeds_of(graph, sampling, Path(run) if isinstance(run, str) else run)
    model = ModelConfig(model) if isinstance(model, str) else model
    network_of(graph, model)  # refuses models of other graphs
    limits, market = with_memory(limits, memory), market or Market()
    if is_auto(limits.memory):
        raise ArgumentError(
            "memory 'auto' is chosen where training begins: name a budget to predict for, such as 4GiB"
        )
    machines, prices = market.read_machines(), market.read_prices()
    if isinstance(run, str | Path):
        if sampling is not None:
            raise ArgumentError(
                f"{run} has its own sampling (fanouts and batch size, sampler): leave it out, or advise on the graph"
            )
        task = _task_of_run(graph, model, limits, Path(run), device)
    else:
        drawn = _sampling(sampling or SampleConfig(), model, 1 if run is None else run.epochs, graph)
        graph = graph.with_edge_rows(drawn.edge_rows)
        task = Task(graph, model, drawn, limits.in_bytes(graph.feature_bytes), device)
    graph = task.graph
    measured = machine.profile_of(graph.path.resolve().parent, None if profile is None else Path(profile))
    counted = count(task, measured)
    here = measured.hardware(gpu=device != "cpu")
    asked = Comparison(task, counted, here, machines, prices, market.budget)
    found = compare(asked)
    epoch_s = {row["mode"]: row["epoch_seconds"] for row in found["predictions"][: len(counted.works)]}
    return {
        "graph": str(graph.path),
        "model": model.name,
        "setting": _setting(task, task.limits.disk_space if task.run is not None else limits.disk_space),
        "profile": measured.to_json(),
        "run_disk_bytes": counted.disk_bytes,
        "predictions": found.pop("predictions"),
        "fresh": seconds_of_new_batches(asked, measured, epoch_s),
        "disk_curve": found.pop("disk_curve"),
        "changes": found.pop("changes"),
        "assumptions": list(counted.assumptions),
        **({} if cluster is None else {"cluster": _of_cluster(asked, measured, cluster)}),
        **found,
        **(_by_file(graph, counted) if graph.is_typed else {}),
    }


def _of_cluster(asked: Comparison, measured: Profile, cluster: ClusterConfig) -> dict[str, Any]:
    """Returns what training and preparing take on several machines, in mode packed."""
    from outcrop.advisor.steps import gradient_bytes  # brings torch

    if len(asked.machines) > 1:
        raise ArgumentError("machines that train together are of one kind: name one (--machine), or none")
    task, counted, hardware = asked.task, asked.counted, asked.hardware[-1]
    packed, online = counted.works[Packed.name], counted.works.get(Online.name)
    epochs = task.sampling.epochs
    gradients = gradient_bytes(task.network, len(task.sampling.fanouts))
    preparing = cluster_cost.PreparingWork(
        task.graph.feature_bytes,
        packed.disk_bytes * epochs,
        online.loading.other_s * epochs if online else 0.0,
        hardware.disk.write_bytes_per_s or measured.write_bytes_per_s,
    )
    prices = None if hardware is asked.here else asked.prices
    price = None if prices is None else tco(hardware, prices, cluster.processes)
    return {
        "hardware": hardware.name,
        "network_bytes_per_s": parse_rate(cluster.network),
        "gradient_bytes": gradients,
        "packed_epochs": epochs,
        "rows": cluster_cost.rows_of(
            hardware,
            cluster,
            on_machine(counted, packed, hardware, asked.here),
            gradients,
            preparing,
            price,
        ),
    }


def _by_file(graph: Graph, counted: EpochCount) -> dict[str, Any]:
    """Returns what is said of each row file of a graph with types."""
    return {
        "row_files": [
            {"of": name_of(rows), "rows": rows.num_rows, "row_bytes": rows.row_bytes}
            for rows in graph.row_files
        ],
        "by_file": {
            mode: [{"rows_by_level": of.rows_by_level, "bytes_read": of.bytes_read} for of in files]
            for mode, files in counted.files.items()
        },
    }


def _sampling(asked: SampleConfig, model: ModelConfig, epochs: int, graph: Graph) -> SampleConfig:
    """Says how the batches of an epoch are drawn for ``model``."""
    check_epochs_unset(asked, "run=Replay(4)")
    if asked.task != "node":
        raise ArgumentError(f"task {asked.task!r} cannot be predicted: advise counts batches of nodes")
    degrees = asked.degrees or wants_degrees(model.name, asked.sampler)
    edge_rows = asked.edge_rows or wants_edge_rows(model.name, graph.has_edge_rows)
    edge_weights = asked.edge_weights or model.edge_weights
    graph.require_edge_rows(edge_rows)
    graph.require_edge_weights(edge_weights)
    return replace(
        asked,
        degrees=degrees,
        epochs=epochs,
        node_type=asked.node_type or graph.chosen_seeds,
        edge_rows=edge_rows,
        edge_weights=edge_weights,
    )


def _task_of_run(graph: Graph, model: ModelConfig, limits: Limits, run: Path, device: str) -> Task:
    """Describes what is counted of a run that is there: with its batches, and its limits but for the memory that was
    named.
    """
    info = runs.read(run)
    memory = info.plan.memory if limits.memory is None else parse_size(limits.memory)
    return Task(graph, model, info.sample, replace(info.plan, memory=memory), device, run)


def _setting(task: Task, disk_space: Size | None) -> dict[str, Any]:
    """Returns what was asked, for the result."""
    return {
        "model": task.model.name,
        "hidden": task.model.hidden,
        "fanouts": task.sampling.fanouts,
        "batch_size": task.sampling.batch_size,
        "sampler": task.sampling.sampler,
        "sample_epochs": task.sampling.epochs,
        "seed": task.sampling.seed,
        "memory": task.limits.memory,
        "gpu_memory": task.limits.gpu_memory,
        "disk_space": disk_space,
        "device": task.device,
        "run": None if task.run is None else str(task.run),
        "topology": task.topology,
        **({"fanouts_by_type": dict(task.sampling.fanouts_by_type)} if task.graph.is_typed else {}),
    }
