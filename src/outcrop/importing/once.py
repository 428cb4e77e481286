"""Imports and generates graphs, and keeps what is there already of the same unchanged files and options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outcrop.config import GenerateConfig, ImportConfig, Size
from outcrop.config.places import is_uri, require_path
from outcrop.errors import ArgumentError, OutcropError
from outcrop.importing import generate, graph, triples
from outcrop.importing.import_budget import runtime_of_import, runtime_of_triples
from outcrop.importing.sources.kinds import kind_of_path
from outcrop.importing.staging import StoredSource, stored_source
from outcrop.runtime.progress import Progress
from outcrop.runtime.runtime import Runtime
from outcrop.store import imported
from outcrop.store import manifest as manifests
from outcrop.store.graph import FORMAT as GRAPH
from outcrop.store.graph import VERSIONS as GRAPH_VERSIONS
from outcrop.store.graph import open_graph
from outcrop.store.triples import FORMAT as TRIPLES
from outcrop.store.triples import open_triples


@dataclass(frozen=True)
class ImportReport:
    """Says what an import, or generating, did.

    Attributes:
        peak_host_bytes: Most memory that Outcrop held.
        notes: What was left out or changed, or that what was there is kept.
    """

    bytes_written: int
    peak_host_bytes: int
    notes: tuple[str, ...]


def import_graph(
    source: Any,
    out: str | Path,
    config: ImportConfig,
    memory: Size | None,
    overwrite: bool,
    progress: Progress | bool,
) -> ImportReport:
    """Imports ``source`` at ``out`` (:func:`outcrop.importing.graph.import_graph`), unless that was done.

    Raises:
        ArgumentError: Something else is at ``out``, and ``overwrite`` does not replace it; or as importing does.
        BudgetError: ``memory`` is too small; names the smallest with which the import works.
    """
    stored = stored_source(source)
    if stored is not None:
        return _import_stored(stored, Path(out), config, memory, overwrite, progress)
    record = graph.import_record(source, config)
    if record is None and not overwrite and manifests.exists(Path(out)):
        raise ArgumentError(
            f"{out} holds {_what_is_at(Path(out))}, and objects in memory cannot be compared with it: open it with "
            f"outcrop.open_graph({str(out)!r}), choose another place, or replace it with overwrite=True"
        )
    if _is_imported(out, record, overwrite):
        return _kept(_imported_before(out))
    with runtime_of_import(source, config, memory, progress) as runtime:
        return _made(runtime, graph.import_graph(source, out, runtime, config).notes)


def _import_stored(
    stored: StoredSource,
    out: Path,
    config: ImportConfig,
    memory: Size | None,
    overwrite: bool,
    progress: Progress | bool,
) -> ImportReport:
    """Imports a graph from an object store, likewise."""
    record = stored.record(graph.options_kept(config))
    if _is_imported(out, record, overwrite):
        return _kept(_imported_before(out))
    with stored.staged(out, progress) as copy:
        source = f"{stored.kind or kind_of_path(copy)}:{copy}"
        with runtime_of_import(source, config, memory, progress) as runtime:
            return _made(runtime, graph.import_graph(source, out, runtime, config, made_from=record).notes)


def import_triples(
    source: str,
    out: str | Path,
    unknown: str,
    memory: Size | None,
    overwrite: bool,
    progress: Progress | bool,
) -> ImportReport:
    """Imports the folder ``source`` at ``out`` (:func:`outcrop.importing.triples.import_triples`), likewise."""
    stored = StoredSource("triples", source) if is_uri(source) else None
    record = stored.record({"unknown": unknown}) if stored else triples.import_record(source, unknown)
    if _is_imported(out, record, overwrite):
        return _kept(_imported_before(out))
    if stored is not None:
        with (
            stored.staged(Path(out), progress) as copy,
            runtime_of_triples(str(copy), memory, progress) as runtime,
        ):
            made = triples.import_triples(str(copy), out, runtime, unknown=unknown, made_from=record)
            return _made(runtime, made.notes)
    with runtime_of_triples(source, memory, progress) as runtime:
        return _made(runtime, triples.import_triples(source, out, runtime, unknown=unknown).notes)


def generate_graph(
    out: str | Path, config: GenerateConfig, memory: Size | None, overwrite: bool, progress: Progress | bool
) -> ImportReport:
    """Generates the graph of ``config`` at ``out``, likewise."""
    if _is_generated(out, config, overwrite):
        return _kept(
            f"{out} is kept: it is the graph of these options; --overwrite (overwrite=True) generates it again"
        )
    with Runtime(memory, progress=progress) as runtime:
        generate.generate_graph(out, runtime, config)
        return _made(runtime)


def _made(runtime: Runtime, notes: tuple[str, ...] = ()) -> ImportReport:
    return ImportReport(runtime.io.counters.write_bytes, runtime.budget.peak_bytes, notes)


def _kept(note: str) -> ImportReport:
    with Runtime() as runtime:  # what any work takes
        return _made(runtime, (note,))


def _is_generated(out: str | Path, config: GenerateConfig, overwrite: bool) -> bool:
    """Tells whether ``out`` holds the graph that ``config`` gives. Arguments and errors as :func:`_is_imported`."""
    same = manifests.plain(config.stored())
    if not overwrite and manifests.is_current(Path(out), GRAPH, GRAPH_VERSIONS, same, {}):
        return True
    return _is_imported(out, None, overwrite)


def _is_imported(out: str | Path, record: dict[str, Any] | None, overwrite: bool) -> bool:
    """Tells whether ``out`` holds the result of the import that ``record`` describes, before anything is read.

    Args:
        record: Of :mod:`outcrop.store.imported`; None: of something that cannot be recognised.
        overwrite: Whatever is finished there is replaced: never true then.

    Raises:
        ArgumentError: Something else is there, named with what differs; or it is no artifact.
    """
    require_path(out, "make it in a folder, and outcrop upload FOLDER URI (outcrop.upload) takes it there")
    out = Path(out)
    manifests.check_destination(out)
    if overwrite or not manifests.exists(out):
        return False
    there = imported.read(out)
    differing = None if there is None or record is None else imported.differences(there, record)
    manifests.require_overwrite(out, _what_is_at(out), differing, overwrite)
    return True


def _imported_before(out: str | Path) -> str:
    return (
        f"{out} is kept: it was imported from the same files with the same options; --overwrite (overwrite=True) "
        "imports them again"
    )


def _what_is_at(out: Path) -> str:
    """The artifact at ``out`` as it prints, or what is known of one that cannot be opened."""
    try:
        kind = manifests.kind(out)
        opened = {GRAPH: open_graph, TRIPLES: open_triples}.get(kind)
        return repr(opened(out)) if opened else f"an artifact {kind}"
    except OutcropError:
        return "a damaged artifact"
