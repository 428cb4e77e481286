"""describe: what training a graph would take that is known by its published sizes alone, or is there with types."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from outcrop.advisor import choose, machine
from outcrop.advisor import hardware as machines
from outcrop.advisor.auto import is_auto
from outcrop.advisor.describe import Place, estimate
from outcrop.advisor.described import Description, description_of, read_description
from outcrop.config import Limits, ModelConfig, parse_size
from outcrop.config.models import TYPED_MODELS
from outcrop.errors import ArgumentError, BudgetError
from outcrop.importing.described import generate_described
from outcrop.runtime import system
from outcrop.runtime.hardware import Hardware
from outcrop.store.graph import Graph
from outcrop.store.graph_types import EdgeType, NodeType
from outcrop.store.profile import Profile

_COUNTED_EDGES = 2_000_000  # of the smaller graph that stands for one that is there: counted in seconds
_DISK_SHARE = 0.9  # of a disk that files may take


def describe(
    description: Description | str | Path,
    *,
    model: str | ModelConfig = "rsage",
    limits: Limits | None = None,
    hardware: Hardware | str | Path | None = None,
    scale: float = 0.01,
    folder: str | Path = ".",
) -> dict[str, Any]:
    """Estimates what training a graph takes of which only the sizes are known, for each way to do it.

    A smaller graph of that shape is generated, and batches of it are counted (:mod:`outcrop.advisor.describe`).

    Args:
        description: TOML file of the sizes, or the name of one that ships (``mag240m``, ``igbh-full``).
        model: ``rgcn``, ``rsage``, ``rgat`` or ``hgt``, or :class:`outcrop.ModelConfig` with its size.
        limits: Memory that a training may hold, and disk that all files may take; by default what the machine has.
        hardware: Machine, as a TOML file or the name of a built-in one; None: this one.
        scale: Share of the graph that is generated: the smaller, the sooner done and the less exact.
        folder: Where that lies meanwhile, and whose disk is measured for this machine.

    Returns:
        ``graph`` (sizes), ``batch`` (rows of each type, bytes), ``batches`` of an epoch, ``ways`` (for each mode
        whether it fits, memory, bytes on disk, bytes read and seconds of an epoch, seconds of preparing),
        ``assumptions``.

    Raises:
        ArgumentError: A file is not what it should be, or an option is not possible.
        BudgetError: The memory does not hold two batches.
    """
    described = description if isinstance(description, Description) else read_description(description)
    model = ModelConfig(model) if isinstance(model, str) else model
    if model.name not in TYPED_MODELS:
        raise ArgumentError(
            f"model {model.name!r} is for graphs without types: choose {', '.join(TYPED_MODELS)}"
        )
    if not 0 < scale <= 1:
        raise ArgumentError(f"scale {scale} is not above 0 and at most 1")
    folder = Path(folder)
    if not folder.is_dir():
        raise ArgumentError(f"{folder} is no folder: name one with room for the smaller graph (--folder)")
    limits = limits or Limits()
    place = _here(folder, machine.profile_of(folder.resolve())) if hardware is None else _described(hardware)
    memory, disk = limits.memory, limits.disk_space
    features = described.graph.feature_bytes
    if memory is not None and not is_auto(memory):
        place = replace(place, memory=parse_size(memory, feature_bytes=features))
    if disk is not None:
        place = replace(place, disk_bytes=parse_size(disk, feature_bytes=features))
    return estimate(described, place, model, generate_described, scale=scale, folder=folder)


def describe_graph(graph: Graph, profile: Profile | None) -> dict[str, Any]:
    """Describes a graph with types: what it holds, whether memory holds it here, and what training it would take.

    Args:
        profile: What was measured of this machine; None: nothing was, and training is not estimated.

    Returns:
        ``node_types``, ``edge_types`` (number of nodes, edges and lists, bytes of their rows), ``feature_bytes``,
        ``topology_bytes``, ``memory`` (bytes that training may hold), ``fits`` (``rows``, ``lists``), ``training`` (as
        of :func:`describe`, of a model ``rsage`` with default sampling; None: not estimated, ``why`` says why).
    """
    rows = {rows.owner: rows for rows in graph.row_files}
    lists = graph.spec("indptr").data_bytes + graph.spec("indices").data_bytes
    try:
        memory = choose.memory_within(system.available_memory())
    except BudgetError:
        memory = 0  # next to nothing is left

    def of_rows(owner: NodeType | EdgeType) -> dict[str, int]:
        file = rows.get(owner)
        return {"row_bytes": file.row_bytes if file else 0, "bytes": file.data_bytes if file else 0}

    found: dict[str, Any] = {
        "path": str(graph.path),
        "node_types": [
            {"name": of.name, "num_nodes": of.num_nodes, **of_rows(of)} for of in graph.node_types
        ],
        "edge_types": [
            {
                "name": " ".join(of.key),
                "num_edges": of.num_edges,
                "num_lists": of.target.num_nodes,
                **of_rows(of),
            }
            for of in graph.edge_types
        ],
        "feature_bytes": graph.feature_bytes,
        "topology_bytes": lists,
        "memory": memory,
        "fits": {"rows": graph.feature_bytes <= memory, "lists": lists <= memory},
        "training": None,
        "why": "",
    }
    try:
        found["training"] = _training(graph, profile, lists)
    except (ArgumentError, BudgetError) as error:
        found["why"] = str(error)
    return found


def _training(graph: Graph, profile: Profile | None, lists_bytes: int) -> dict[str, Any]:
    """Estimates what training a graph with types takes here, whose files are on the disk already.

    Raises:
        ArgumentError: Nothing was measured, or the graph is not one to train on as it is.
        BudgetError: The memory does not hold two batches.
    """
    if profile is None:
        raise ArgumentError("nothing was measured of this machine: leave --no-measure out")
    description = description_of(graph)
    place = _here(graph.path, profile)
    place = replace(place, disk_bytes=(place.disk_bytes or 0) + graph.feature_bytes + lists_bytes)
    scale = min(1.0, _COUNTED_EDGES / max(description.graph.num_edges, 1))
    beside = graph.path.parent
    folder = beside if os.access(beside, os.W_OK) else Path(gettempdir())
    found = estimate(description, place, ModelConfig("rsage"), generate_described, scale=scale, folder=folder)
    if graph.has_edge_rows:
        found["assumptions"].append("features of edges are not read")
    return found


def _here(folder: Path, profile: Profile) -> Place:
    disk = os.statvfs(folder)
    return Place(
        profile.hardware(),
        choose.memory_within(system.available_memory()),
        int(disk.f_bavail * disk.f_frsize * _DISK_SHARE),
        profile.write_bytes_per_s,
        profile=profile,
    )


def _described(hardware: Hardware | str | Path) -> Place:
    there = hardware if isinstance(hardware, Hardware) else machines.read_machine(hardware)
    disk = there.disk
    size = None if disk.size_bytes is None else int(disk.size_bytes * there.disks * _DISK_SHARE)
    memory = choose.memory_within(there.memory_bytes)
    return Place(there, memory, size, disk.write_bytes_per_s or disk.bytes_per_s)
