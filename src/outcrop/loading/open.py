"""A session of loading in any mode: of a prepared run, or of batches drawn on the fly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from outcrop.config import CPU, DeviceConfig, SampleConfig
from outcrop.device import gpu_named
from outcrop.errors import ArgumentError, BudgetError, FormatError
from outcrop.loading.modes import MODES, Mode, Online, SessionRequest, mode_named, names_of
from outcrop.loading.row_check import RowCheck
from outcrop.loading.run_stages import open_recorded
from outcrop.loading.session import LoadSession
from outcrop.runtime.runtime import Runtime
from outcrop.sampling.seeds import Chosen
from outcrop.sampling.topology import placement_of, topology_bytes
from outcrop.store import run
from outcrop.store.graph import Graph


def open_session(
    graph: Graph,
    runtime: Runtime,
    mode: str | Mode,
    *,
    run_folder: Path | None = None,
    config: SampleConfig | None = None,
    device: DeviceConfig = CPU,
    epoch_splits: tuple[str, ...] = ("train",),
    ids: Mapping[str, Chosen] | None = None,
) -> LoadSession:
    """Opens a session of loading in ``mode``.

    Batches are those recorded where there is a run, else they are drawn on the fly as ``config`` says.

    Modes ``online`` and ``partition`` always draw on the fly, with a run as the run was sampled.

    Args:
        device: Where batches go.
        epoch_splits: What one epoch goes over; mode ``belady`` plans for it.
        ids: Nodes of a split, or edges to be predicted, in place of those that the graph has, for batches drawn on the
            fly.

    Raises:
        ArgumentError: Mode unknown, or ``packed`` or ``belady`` without a run; or the graph has several types, and the
            mode or the device takes graphs with one.
        FormatError: The run was made from another graph, or is not finished.
        BudgetError: The mode does not fit, for example ``memory`` in less than the features.
    """
    mode = mode_named(mode)
    config = config or SampleConfig()
    if run_folder is not None:
        config = run.read(run_folder).sample
    if config.is_part and (run_folder is None or mode.redraws):
        raise ArgumentError(
            f"mode {mode} draws whole epochs, not a part of each: load the part in mode packed"
        )
    graph = graph.with_edge_rows(config.edge_rows)
    if not graph.row_files and device.name != CPU.name:
        raise FormatError(
            f"{graph.path} holds no features: import them with the graph, or load its batches for the CPU, without "
            f"device {device.name}"
        )
    check_types(graph, mode, device.name)
    check_weights(config, mode, device.name)
    request = SessionRequest(graph, runtime, config, device, epoch_splits, ids)
    if run_folder is not None:
        sampled, recorded = open_recorded(graph, runtime, run_folder)
        request = replace(request, config=sampled, ids=None, run=run_folder, recorded=recorded)
    elif mode.needs_run:
        raise ArgumentError(f"mode {mode} needs a run: make one with outcrop prepare, or choose another mode")
    check = RowCheck(graph, runtime, device) if mode.paranoid else None
    session = _open(mode, request)
    if check is not None:
        session.compare_rows(check)
    return session


def _open(mode: Mode, request: SessionRequest) -> LoadSession:
    try:
        return mode.open(request)
    except BudgetError:
        if not _may_hold_topology(mode, request):
            raise
    # Neighbour lists that fit their share of the budget may leave too little for the rest: then they stay on disk.
    on_disk = placement_of("automatic", topology_bytes(request.graph), available_bytes=0)
    return replace(mode, topology=on_disk).open(request)


def check_types(graph: Graph, mode: Mode, device: str) -> None:
    """Refuses several types, or rows of edges, where only the nodes of graphs without types can be loaded."""
    if not graph.is_typed and not graph.has_edge_rows:
        return
    having, what = (
        f"features of the edges of {graph.path} are asked for (--edge-rows)",
        "those of nodes alone",
    )
    if graph.is_typed:
        what = "graphs with one type"
        having = (
            f"{graph.path} has {len(graph.node_types)} types of nodes, {len(graph.edge_types)} of edges, and features "
            f"of {len(graph.row_files)} of them"
        )
    if not mode.loads_types:
        others = names_of(tuple(other for other in MODES if other.loads_types))
        raise ArgumentError(f"{having}; mode {mode} loads {what}: choose mode {others}")
    if gpu_named(device) is None:
        return
    if not graph.is_typed:
        raise ArgumentError(f"{having}: it is loaded for the CPU only, not for {device}; leave out --device")
    if isinstance(mode, Online) and "gpu" in (mode.sample_on, mode.row_reads):
        raise ArgumentError(
            f"{having}: its batches are drawn and read by the CPU; leave out --sample-on gpu and --io gpu"
        )


def check_weights(config: SampleConfig, mode: Mode, device: str) -> None:
    """Refuses batches with weights of edges where the mode or the device has none of them."""
    if not config.edge_weights:
        return
    asked = "weights of edges are asked for (--edge-weights)"
    if not mode.loads_types:
        others = names_of(tuple(other for other in MODES if other.loads_types))
        raise ArgumentError(f"{asked}; mode {mode} loads edges alone: choose mode {others}")
    if gpu_named(device) is not None:
        raise ArgumentError(
            f"{asked}: they are loaded for the CPU only, not for {device}; leave out --device"
        )


def _may_hold_topology(mode: Mode, request: SessionRequest) -> bool:
    """Tells whether neighbour lists may have been held because they fitted, and need not be."""
    draws = request.recorded is None or mode.redraws
    fits = topology_bytes(request.graph) <= request.runtime.budget.limit_bytes
    return mode.topology == "automatic" and draws and fits and not request.device.draws
