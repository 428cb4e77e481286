"""Plans of graphs that one does not have yet: batches of a smaller graph of the same shape are counted and scaled.

Everything is divided by the same number: nodes, edges, training nodes, the seeds of a batch, memory and disk. The share
of the nodes that a batch wants then stays, and so does the share of the rows that a cache of the hottest holds: where n
nodes are wanted by d draws with probabilities that depend on rank / n alone, the expected number of distinct ones is n
times a function of d / n. So what is counted is divided by the same share again; of a batch of full size drawn from the
smaller graph that would be wrong, for its draws would meet the same nodes far more often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from outcrop.advisor import cost, shapes
from outcrop.advisor.cost import LoadingWork, Workload
from outcrop.advisor.counting import EpochCount, FileCount, Task, count, drawing
from outcrop.advisor.described import Description
from outcrop.advisor.shapes import Network, TypedShape
from outcrop.config import ModelConfig, PlanConfig, SampleConfig, format_bytes, hidden_width
from outcrop.config.described import DescribedGraph
from outcrop.errors import BudgetError
from outcrop.loading.modes import InMemory, Online, Packed
from outcrop.nn.schema import GraphSchema, NodeSchema
from outcrop.preparation.prepare import PrepareRequest, prepare_within_limits
from outcrop.runtime import memory_tables
from outcrop.runtime.hardware import Hardware, HostCosts
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.store.levels import Level
from outcrop.store.profile import Profile

_GENERATING_BYTES = 512 << 20  # budget of making the smaller graph
_FIXED_BYTES = 2 << 20  # that preparing and loading take whatever the size of batches
_LAYOUT = "heuristic"  # of what batches share: weighing many takes longer than all else
Generate = Callable[[Path, DescribedGraph, Runtime], Graph]
_MADE = "random:64"  # rows of types without any, in the model


@dataclass(frozen=True)
class Place:
    """Says where a described graph would be trained.

    Attributes:
        memory: Bytes that a training may hold.
        disk_bytes: Bytes that the disks hold; None: nobody knows.
        write_bytes_per_s: Rate at which they write.
        profile: Profile of this machine, where that is the place.
    """

    hardware: Hardware
    memory: int
    disk_bytes: int | None
    write_bytes_per_s: float
    profile: Profile | None = None


@dataclass(frozen=True)
class _Counts:
    """Holds what was counted on the smaller graph, not scaled.

    Attributes:
        share: Of the described graph.
        shared: The same where packed batches share rows so that they fit the disk; None: they need not, or cannot.
        least_disk: What is said where they cannot.
        draw_s: CPU seconds of drawing a batch.
        draw_bytes: Bytes of neighbor lists read from disk for a batch, where memory does not hold them.
    """

    share: float
    epoch: EpochCount
    shared: EpochCount | None
    least_disk: str
    draw_s: float
    draw_bytes: float


def estimate(
    description: Description,
    place: Place,
    model: ModelConfig,
    generate: Generate,
    *,
    scale: float,
    folder: Path,
) -> dict[str, Any]:
    """Estimates what training a described graph takes, for each way to do it.

    Args:
        generate: Makes a graph with the sizes that it is given, in a folder.
        scale: Share of the graph that is generated to count on.
        folder: Where it lies meanwhile.

    Returns:
        ``batch`` (rows of each type, bytes), ``ways`` (a row for each), ``assumptions``, and what was asked.

    Raises:
        BudgetError: The memory does not hold two batches; sizes are those of the smaller graph.
    """
    model = replace(model, no_rows=model.no_rows or _MADE)
    share = max(round(description.sampling.batch_size * scale), 1) / description.sampling.batch_size
    share = min(share, 1.0)
    task = _Small(description, place, model, share)
    counted = _count(task, generate, folder)
    epoch = counted.epoch
    batches = epoch.works[Packed.name].batches
    levels = [sum(of.rows_by_level.values()) for of in epoch.files[Packed.name]]
    rowed = [of for of in description.graph.nodes if of.width]
    rows = [round(wanted / batches / share) for wanted in levels]
    network, shape = _network(description, model), _scaled_shape(epoch.shape, share)
    compute_s, how = _compute_seconds(place, network, shape, batches)
    return {
        "described": description.graph.name,
        "setting": {
            "model": model.name,
            "fanouts": description.sampling.fanouts,
            "batch_size": description.sampling.batch_size,
            "memory": place.memory,
            "disk_bytes": place.disk_bytes,
            "hardware": place.hardware.name,
            "share": share,
        },
        "graph": {
            "nodes": description.graph.num_nodes,
            "edges": description.graph.num_edges,
            "feature_bytes": description.graph.feature_bytes,
            "topology_bytes": description.graph.topology_bytes,
        },
        "batches": batches,
        "batch": {
            "nodes": round(shape.num_nodes),
            "rows": {of.name: wanted for of, wanted in zip(rowed, rows, strict=True)},
            "bytes": sum(of.row_bytes * wanted for of, wanted in zip(rowed, rows, strict=True)),
        },
        "ways": _ways(description, place, counted, compute_s),
        "assumptions": [
            *_assumed(description, share),
            *_of_lists(description.graph.topology_bytes, place, counted.draw_bytes * batches / share),
            *how,
            *_of_host(place.hardware),
        ],
    }


@dataclass(frozen=True)
class _Small:
    """Says what is counted: ``share`` of the described graph, as it is trained."""

    description: Description
    place: Place
    model: ModelConfig
    share: float

    @property
    def sampling(self) -> SampleConfig:
        asked = self.description.sampling
        return replace(asked, batch_size=round(asked.batch_size * self.share))

    @property
    def limits(self) -> PlanConfig:
        disk, share = self.place.hardware.disk, self.share
        return PlanConfig(
            memory=int(self.place.memory * share + _FIXED_BYTES * (1 - share)),
            sequential_rate=round(disk.bytes_per_s),
            random_rate=round(disk.reads[0][1]),
        )


def _count(small: _Small, generate: Generate, folder: Path) -> _Counts:
    share, described = small.share, small.description.graph
    with TemporaryDirectory(prefix=".outcrop-describe-", dir=folder) as made:
        with Runtime(max(_GENERATING_BYTES, int(small.place.memory * share))) as runtime:
            graph = generate(Path(made) / "graph.oc", described.scaled(share), runtime)
        task = Task(graph, small.model, small.sampling, small.limits, run=Path(made) / "run")
        epoch, least, shared = _planned(task), "", None
        space = _disk_left(described, small.place)
        if space is not None and epoch.disk_bytes / share > space:
            limits = replace(task.limits, disk_space=max(int(space * share), 1), layout=_LAYOUT)
            try:
                shared = _planned(replace(task, limits=limits), online=False)
            except BudgetError:
                least = f"its files do not fit {format_bytes(space)}, whatever batches share"
        return _Counts(share, epoch, shared, least, *drawing(task, small.sampling))


def _planned(task: Task, *, online: bool = True) -> EpochCount:
    """Plans the run of a task, whose batches are drawn once, and counts an epoch of it."""
    assert task.run is not None
    request = PrepareRequest(task.graph, task.run, task.sampling, task.limits, stop_after="plan")
    prepare_within_limits(request)
    return count(task, compute_s=0.0, online=online)


def _disk_left(graph: DescribedGraph, place: Place) -> int | None:
    """Returns the bytes that the graph leaves of the disks."""
    return None if place.disk_bytes is None else max(place.disk_bytes - _graph_bytes(graph), 0)


def _graph_bytes(graph: DescribedGraph) -> int:
    return graph.feature_bytes + graph.topology_bytes


def _network(description: Description, model: ModelConfig) -> Network:
    graph = description.graph
    nodes = tuple(
        NodeSchema(of.name, of.width, of.dtype) if of.width else NodeSchema(of.name, 64, made=_MADE)
        for of in graph.nodes
    )
    keys = [of.key for of in graph.edges]
    keys += [(of.target, f"rev_{of.relation}", of.source) for of in graph.edges if of.reverse]
    seeds = next(of.name for of in graph.nodes if of.train)
    schema = GraphSchema(nodes, tuple(keys), seeds, description.classes)
    width = hidden_width(model.name, model.hidden, model.heads)
    return Network(model.name, 0, width, description.classes, model.heads, schema)


def _scaled_shape(shape: shapes.BatchShape, share: float) -> TypedShape:
    assert isinstance(shape, TypedShape)
    nodes, edges = (
        tuple(tuple(one / share for one in of) for of in table) for table in (shape.nodes, shape.edges)
    )
    return TypedShape(nodes, edges)


def _compute_seconds(
    place: Place, network: Network, shape: TypedShape, batches: int
) -> tuple[float, list[str]]:
    """Returns the seconds of computing an epoch, and what that assumes."""
    gpu, profile = place.hardware.gpu, place.profile
    if gpu is not None:
        how = f"computing runs on the GPU {gpu.name} at the rates that its file states"
        return shapes.step_seconds(gpu, network, shape) * batches, [how]
    timed = shapes.timed_model(network.model)
    if profile is not None and timed in profile.steps:
        how = f"a training step takes what the profile's step of {timed} takes, scaled by operations and bytes moved"
        return shapes.scaled_step(profile.steps[timed], network, shape) * batches, [how]
    return 0.0, [f"computing takes no time: nothing says how fast {place.hardware.name} computes"]


def _ways(description: Description, place: Place, counted: _Counts, compute_s: float) -> list[dict[str, Any]]:
    graph, share = description.graph, counted.share
    whole = counted.epoch
    drawn_s = counted.draw_s * whole.works[Packed.name].batches / share
    room = _disk_left(graph, place)
    ways = [_in_memory(description, place, counted, compute_s)]
    chosen = counted.shared or whole
    disk = round(chosen.disk_bytes / share)
    packed = _scaled(chosen.works[Packed.name], share, compute_s, 0.0)
    found = _row(description, place, packed, chosen.files[Packed.name], share, disk)
    found["prepare_seconds"] = cost.packing_seconds(
        place.hardware,
        graph.feature_bytes,
        disk,
        place.write_bytes_per_s,
        drawn_s / place.hardware.cores,
    )
    found["fits"] = room is None or disk <= room
    found["why"] = (
        f"{counted.least_disk}; train prepares each epoch in parts where the disk has room for one"
        if counted.least_disk
        else "batches share rows on disk"
        if counted.shared is not None
        else ""
    )
    ways.append(found)
    if Online.name in whole.works:
        online = _scaled(whole.works[Online.name], share, compute_s, drawn_s)
        ways.append(_row(description, place, online, whole.files[Online.name], share, 0))
        ways[-1]["fits"] = place.disk_bytes is None or place.disk_bytes >= _graph_bytes(graph)
    return ways


def _in_memory(description: Description, place: Place, counted: _Counts, compute_s: float) -> dict[str, Any]:
    """Describes the way in which all rows and neighbor lists are read into memory first."""
    graph, share = description.graph, counted.share
    work = _scaled(counted.epoch.works[Packed.name], share, compute_s, 0.0)
    rows = counted.epoch.rows_bytes / share
    needs = round(_graph_bytes(graph) + memory_tables.BATCH_BUFFERS * rows / max(work.batches, 1))
    loading = LoadingWork(gathered_bytes=rows)
    work = replace(work, name=InMemory.name, reads=(), memory_bytes=rows, loading=loading)
    found = _row(description, place, work, (), share, 0)
    found["prepare_seconds"] = _graph_bytes(graph) / place.hardware.disk.bytes_per_s
    found["memory"], found["fits"] = needs, needs <= place.memory
    found["why"] = "" if found["fits"] else f"needs {format_bytes(needs)} of memory"
    return found


def _row(
    description: Description,
    place: Place,
    work: Workload,
    files: Sequence[FileCount],
    share: float,
    run_bytes: int,
) -> dict[str, Any]:
    """Describes one way; ``run_bytes`` are on disk beside the graph."""
    found = cost.predict(place.hardware, work)
    rowed = [of for of in description.graph.nodes if of.width]
    rows = sum(sum(of.rows_by_level.values()) for of in files)
    cached = sum(of.rows_by_level.get(level, 0) for of in files for level in (Level.HOST, Level.DEVICE))
    return {
        "mode": work.name,
        "fits": True,
        "why": "",
        "memory": place.memory,
        "disk_bytes": _graph_bytes(description.graph) + run_bytes,
        "run_bytes": run_bytes,
        "epoch_seconds": found.epoch_s,
        "bound": found.bound,
        "bytes_read": round(work.disk_bytes),
        "cached_share": cached / rows if rows else 1.0,
        "rows_by_level": {
            of.name: {level.value: round(count / share) for level, count in counts.rows_by_level.items()}
            for of, counts in zip(rowed, files, strict=bool(files))
        },
        "prepare_seconds": 0.0,
    }


def _scaled(work: Workload, share: float, compute_s: float, drawn_s: float) -> Workload:
    """Returns ``work`` of the smaller graph as it is on the described one: the same number of larger batches."""
    loading = work.loading
    return replace(
        work,
        samples=round(work.samples / share),
        reads=tuple((size / share, requests / share) for size, requests in work.reads),
        compute_s=compute_s,
        memory_bytes=work.memory_bytes / share,
        loading=LoadingWork(
            loading.read_bytes / share,
            loading.requests / share,
            loading.copied_bytes / share,
            loading.gathered_bytes / share,
            drawn_s,
            loading.structure_bytes / share,
        ),
        exact=False,
    )


def _of_lists(lists_bytes: int, place: Place, read_bytes: float) -> list[str]:
    """Says what is left out where memory does not hold the neighbor lists."""
    if lists_bytes <= place.memory:
        return []
    about = f", about {format_bytes(round(read_bytes))} an epoch by pages" if read_bytes else ""
    return [
        f"memory does not hold the neighbor lists of {format_bytes(lists_bytes)}: what is read of them to draw batches"
        f"{about} is not counted"
    ]


def _of_host(hardware: Hardware) -> list[str]:
    """Says what is left out of a machine that does not say what loading takes of its processor."""
    if hardware.host != HostCosts():
        return []
    return [
        f"loading takes no time of the processor of {hardware.name}, but for drawing batches of mode online"
    ]


def _assumed(description: Description, share: float) -> list[str]:
    skews = {of.name: of.skew for of in description.graph.nodes}
    uneven = ", ".join(f"{name} {skew:g}" for name, skew in skews.items())
    near = description.graph.near
    where = (
        "training nodes lie anywhere: where they are close together, batches are smaller and caches serve more"
        if near == 1
        else f"{near:.0%} of the nodes and edges are near training nodes, and no edge leads from them to the others"
    )
    seeds = round(description.sampling.batch_size * share)
    return [
        "a graph of the same size was generated, and batches drawn from it"
        if share == 1
        else f"a graph of 1/{1 / share:.4g} of the size was generated, and batches of {seeds} seeds drawn from it: "
        "nodes, edges, training nodes, seeds, memory and disk are divided by the same number, and what was counted is "
        "multiplied by it",
        f"the nodes of a type stand at the ends of edges with a density that falls with their rank to the power of the "
        f"skew ({uneven}), alike in all edge types; where a few nodes have more of the edges than that, batches are "
        "smaller and caches serve more",
        where,
        "the number of a node says nothing of its neighbors: pages are seldom shared by rows of a batch",
        "the ends of an edge are independent of each other: real graphs have communities, so that batches are smaller",
        "every edge type is drawn with the fanouts, reverses too",
        "preparing is for the batches of one epoch, which later epochs replay; importing the graph is not counted, nor "
        "are validation, test and checkpoints",
    ]
