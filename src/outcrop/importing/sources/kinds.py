"""Kinds of sources: what may stand before the colon in ``arrays:DIR``, and which file beside this one reads it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from outcrop.config import ImportConfig
from outcrop.errors import ArgumentError
from outcrop.importing.sources.archive import open_archive
from outcrop.importing.sources.base import GraphSource, TypedSource
from outcrop.importing.sources.dgl_file import open_dgl
from outcrop.importing.sources.edge_list import open_edge_list
from outcrop.importing.sources.folder import open_folder
from outcrop.importing.sources.graphbolt import open_graphbolt
from outcrop.importing.sources.igb import open_igb
from outcrop.importing.sources.mag240m import open_mag240m
from outcrop.importing.sources.matlab import open_matlab
from outcrop.importing.sources.musae import open_musae
from outcrop.importing.sources.ntriples import open_ntriples
from outcrop.importing.sources.ogb import open_ogb
from outcrop.importing.sources.pyg_file import open_pyg
from outcrop.importing.sources.sqlite_tables import SQLITE_SUFFIXES
from outcrop.importing.sources.table_files import TABLE_SUFFIXES
from outcrop.importing.sources.tables_folder import open_tables
from outcrop.importing.sources.tables_toml import TABLES_TOML
from outcrop.importing.sources.typed_folder import GRAPH_TOML
from outcrop.runtime.runtime import Runtime
from outcrop.store.manifest import EDGE_ENDINGS

OPENERS: dict[
    str, tuple[str, Callable[[Path, Runtime, ExitStack, ImportConfig], GraphSource | TypedSource]]
] = {
    "arrays": ("DIR", lambda path, runtime, held, config: open_folder(path, runtime, held)),
    "edges": ("FILE", lambda path, runtime, held, config: open_edge_list(path, runtime)),
    "npz": (
        "FILE",
        lambda path, runtime, held, config: open_archive(path, runtime, held, config.split_index),
    ),
    "scipy": (
        "FILE",
        lambda path, runtime, held, config: open_archive(path, runtime, held, config.split_index),
    ),
    "mat": ("FILE", lambda path, runtime, held, config: open_matlab(path, runtime, held)),
    "musae": ("DIR", lambda path, runtime, held, config: open_musae(path, runtime, held)),
    "graphbolt": ("DIR", lambda path, runtime, held, config: open_graphbolt(path, runtime, held, config)),
    "igb": ("DIR", lambda path, runtime, held, config: open_igb(path, runtime, config)),
    "mag240m": (
        "DIR",
        lambda path, runtime, held, config: open_mag240m(path, runtime, held, config),
    ),
    "ogb": ("DIR", lambda path, runtime, held, config: open_ogb(path, runtime, held, config)),
    "pyg": ("FILE", lambda path, runtime, held, config: open_pyg(path, runtime, held, config)),
    "dgl": ("FILE", lambda path, runtime, held, config: open_dgl(path, runtime, held, config)),
    "ntriples": ("FILE", lambda path, runtime, held, config: open_ntriples(path, runtime, config)),
    "tables": ("DIR", lambda path, runtime, held, config: open_tables(path, runtime)),
}
# What only folders of a kind hold.
_MARKS = {
    "graphbolt": ("metadata.yaml",),
    "igb": ("processed/paper__cites__paper",),
    "mag240m": ("processed/paper___cites___paper",),
    "ogb": ("raw/edge.csv.gz", "raw/data.npz", "raw/num-node-dict.csv.gz", "raw/num_nodes_dict.npz"),
    "tables": (TABLES_TOML,),
}
LEAVE_OUT = ("igb", "ntriples")  # kinds of which types="all" imports more
CHOOSE_LABELS = ("igb",)  # kinds with labels of several numbers of classes
SOURCES = ", ".join(f"{kind}:{what}" for kind, (what, _) in OPENERS.items())


def open_source(
    source: str, runtime: Runtime, held: ExitStack, config: ImportConfig
) -> GraphSource | TypedSource:
    """Opens what ``source`` names, such as ``arrays:DIR``; ``held`` closes what it opens.

    Raises:
        ArgumentError: The kind is unknown, or no files are named.
    """
    kind, _, where = source.partition(":")
    if not where:
        kind = kind_of_path(Path(source))
        meant = f"; here perhaps {f'{kind}:{source}'!r}" if kind else ""
        raise ArgumentError(f"source {source!r} names no files; write {SOURCES} or triples:DIR{meant}")
    if kind == "triples":
        raise ArgumentError(
            f"{source} is a knowledge graph, not a graph: import it with outcrop.import_triples({where!r}, OUT)"
        )
    if kind not in OPENERS:
        raise ArgumentError(f"source kind {kind!r} is unknown; known: {', '.join(OPENERS)}, triples")
    return OPENERS[kind][1](Path(where), runtime, held, config)


def kind_of_path(path: Path) -> str:
    """Guesses what a path without a kind is; empty: nothing is there."""
    if path.is_dir():
        marked = (kind for kind, names in _MARKS.items() if any((path / n).exists() for n in names))
        lists_edges = any((path / f"edges{ending}").is_file() for ending in EDGE_ENDINGS)
        has_triples = any((path / f"train{ending}").is_file() for ending in TABLE_SUFFIXES)
        other = (
            "triples" if has_triples and not lists_edges and not (path / GRAPH_TOML).exists() else "arrays"
        )
        return next(marked, other)
    suffixes = {".npz": "npz", ".mat": "mat", ".pt": "pyg", ".bin": "dgl"}
    suffixes |= {".nt": "ntriples", ".gz": "ntriples"}
    suffixes |= dict.fromkeys(SQLITE_SUFFIXES, "tables")
    return suffixes.get(path.suffix, "edges") if path.is_file() else ""
