"""The stages of a prepared run, opened for loading and checked to belong together."""

from __future__ import annotations

from pathlib import Path

from outcrop.config import SampleConfig
from outcrop.errors import FormatError
from outcrop.runtime.runtime import Runtime
from outcrop.store import manifest as manifests
from outcrop.store import packed, run, samples
from outcrop.store.graph import Graph
from outcrop.store.manifest import Manifest
from outcrop.store.placement import Placement, open_placement

_BEFORE = {"dependency": 1}  # of runs from before there was a batch_dependency


def open_recorded(graph: Graph, runtime: Runtime, run_folder: Path) -> tuple[SampleConfig, samples.SampleSet]:
    """Opens the batches of a run, and tells how it was sampled.

    Raises:
        FormatError: The run was made from another graph, or is not finished.
    """
    info = run.read(run_folder)
    if info.graph_digest != graph.digest():
        raise FormatError(
            f"{run_folder} was prepared from another state of the graph than {graph.path} is in now: "
            "run outcrop prepare again"
        )
    sample_set = samples.open_samples(runtime, run_folder / "sample", graph)
    _check_belongs(sample_set.path, sample_set.manifest, {"graph": graph.digest()}, info.sample)
    return info.sample, sample_set


def open_plan(graph: Graph, runtime: Runtime, run_folder: Path, sample_set: samples.SampleSet) -> Placement:
    """Opens the plan of a run: where its rows are."""
    placement = open_placement(runtime, run_folder / "plan")
    _check_belongs(
        placement.path, placement.manifest, {"graph": graph.digest(), "sample": sample_set.manifest.digest()}
    )
    described = [(rows.kind, rows.owner.number, rows.row_bytes) for rows in graph.row_files]
    found = [rows.described for rows in placement.files]
    if found != described or len(placement.buffer_rows_bytes) != len(described):
        raise FormatError(
            f"{placement.path}: it places rows of {found}, the graph has {described}: its manifest was changed by "
            "hand; prepare the run again"
        )
    return placement


def read_pack_manifest(run_folder: Path, placement: Placement) -> Manifest:
    """Reads what a run has packed."""
    manifest = manifests.read(run_folder / "pack", packed.FORMAT, packed.VERSIONS)
    _check_belongs(run_folder / "pack", manifest, {"plan": placement.manifest.digest()})
    return manifest


def memory_of_run(folder: Path, info: run.RunInfo, processes: int) -> int | None:
    """Counts the bytes that ``processes`` of a machine take to load a run in mode ``packed``: its cache once, and
    buffers for each of them; None: it was made for no limit.

    Raises:
        FormatError: The run is not finished.
    """
    memory, planned = info.plan.memory, info.plan.processes or 1
    if memory is None or processes == planned:
        return memory
    arrays = manifests.read(folder / "pack", packed.FORMAT, packed.VERSIONS).arrays
    cached = sum(spec.data_bytes for name, spec in arrays.items() if name.endswith("host_cache"))
    # A part of the cache is in every budget, rounded up.
    return cached + processes * (-(-(memory - cached) // planned) + len(arrays))


def _check_belongs(
    folder: Path, manifest: Manifest, inputs: dict[str, str], config: SampleConfig | None = None
) -> None:
    """Raises FormatError where a stage was made from other inputs, as after a prepare that was interrupted."""
    same = all(manifest.inputs.get(name) == digest for name, digest in inputs.items())
    if not same or (
        config is not None and {**_BEFORE, **manifest.config} != manifests.plain(config.as_stored())
    ):
        raise FormatError(
            f"{folder} does not belong to the rest of its run, as after an interrupted prepare: run outcrop "
            "prepare again with the options that you want"
        )
