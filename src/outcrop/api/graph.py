"""Graphs from the outside: import and generate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outcrop.config import Size
from outcrop.runtime import Runtime
from outcrop.stages import generate, ingest, ingest_triples
from outcrop.store.graph import Graph
from outcrop.store.triples import Triples


def import_graph(source: str, out: str | Path, *, memory: Size | None = None, **options: Any) -> Graph:
    """Imports ``source`` (``arrays:DIR``, ``edges:FILE``, ``npz:FILE``, ``musae:DIR``) as a graph at ``out``.

    Options are those of :class:`outcrop.stages.ingest.ImportConfig`.
    """
    with Runtime(memory) as runtime:
        return ingest.import_graph(source, out, runtime, **options)


def import_triples(
    source: str | Path, out: str | Path, *, memory: Size | None = None, unknown: str = "skip"
) -> Triples:
    """Imports a folder of triples as a knowledge graph (:func:`outcrop.stages.ingest_triples.import_triples`)."""
    with Runtime(memory) as runtime:
        return ingest_triples.import_triples(str(source), out, runtime, unknown=unknown)


def generate_graph(out: str | Path, *, memory: Size | None = None, **options: Any) -> Graph:
    """Generates a graph at ``out``; options are those of :class:`outcrop.stages.generate.GenerateConfig`."""
    with Runtime(memory) as runtime:
        return generate.generate_graph(out, runtime, **options)
