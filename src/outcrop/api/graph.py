"""Graphs from the outside: import and generate."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from outcrop.api.old_keywords import accepts_old_keywords, merged, named
from outcrop.config import GenerateConfig, ImportConfig, Size
from outcrop.config.declared import checks_arguments
from outcrop.config.places import is_uri
from outcrop.errors import ArgumentError
from outcrop.importing import once, stripe
from outcrop.importing.sources.objects import splits_by_name
from outcrop.importing.staging import made_for
from outcrop.runtime.progress import Progress, SilentProgress, shows_progress
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph, open_graph
from outcrop.store.remote import without_keys
from outcrop.store.stripes import Stripe
from outcrop.store.triples import Triples, open_triples

_OLD_OF_IMPORT = {name: "splits" for name in ("train", "valid", "test")} | {
    name: f"config.{name}"
    for name in (
        "num_nodes", "label_kind", "reverse", "keep_duplicates", "keep_self_loops", "feature_dtype", "bfloat16_bits",
        "allow_nonfinite", "split_protocol", "train_fraction", "valid_fraction", "test_fraction", "split_seed",
        "split_index",
    )
}  # fmt: skip
_OLD_OF_GENERATE = {
    name: f"config.{name}"
    for name in (
        "kind", "nodes", "edges", "features", "classes", "dtype", "train_fraction", "valid_fraction", "test_fraction",
        "homophily", "skew", "a", "b", "c", "signal", "seed",
    )
}  # fmt: skip


def _objects_of_import(old: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Makes the objects that :func:`import_graph` takes now from keywords that it took before."""
    made: dict[str, Any] = {}
    if options := named(_OLD_OF_IMPORT, "config", old):
        made["config"] = merged(ImportConfig, given.get("config"), options)
    old_splits = {name: old[name] for name in ("train", "valid", "test") if old.get(name) is not None}
    if old_splits:
        beside = given.get("splits")
        if not isinstance(beside, Mapping | None):
            raise ArgumentError(f"give {', '.join(old_splits)} or a table of splits, one of them")
        made["splits"] = {**(beside or {}), **old_splits}
    return made


def _objects_of_generate(old: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Makes the object that :func:`generate_graph` takes now from keywords that it took before."""
    return {"config": merged(GenerateConfig, given.get("config"), named(_OLD_OF_GENERATE, "config", old))}


@accepts_old_keywords(_OLD_OF_IMPORT, _objects_of_import)
@checks_arguments
@shows_progress
def import_graph(
    source: Any,
    out: str | Path,
    config: ImportConfig | None = None,
    *,
    features: Any = None,
    labels: Any = None,
    splits: Any = None,
    edge_weight: Any = None,
    nodes: Any = None,
    memory: Size | None = None,
    overwrite: bool = False,
    progress: Progress | bool = True,
) -> Graph:
    """Imports ``source`` as a graph at ``out``.

    Where ``out`` holds the graph that the same unchanged files gave with the same options, it is returned as it is, so
    that a script may be run again. Objects in memory cannot be compared: pass ``overwrite=True``, or open what is there
    with :func:`outcrop.open_graph`.

    Example: ``oc.import_graph({"edges": table, "features": x, "labels": y}, "my.oc", oc.ImportConfig(reverse=True))``.

    Args:
        source: Files, as text: ``arrays:DIR``, ``edges:FILE``, ``npz:FILE``, ``scipy:FILE``, ``mat:FILE``,
            ``musae:DIR``, ``graphbolt:DIR``, ``igb:DIR``, ``mag240m:DIR``, ``ogb:DIR``, ``pyg:FILE``,
            ``dgl:FILE``, ``tables:DIR``, ``ntriples:FILE``. Or a PyG ``Data`` or ``HeteroData``, a SciPy sparse
            matrix, a NetworkX graph, a table of edges (Arrow, Polars, pandas, DuckDB), an array ``[E, 2]`` or
            ``[2, E]`` of edges; or a dict of parts, named as ``features`` to ``nodes`` below, with ``edges``.
        out: Folder of the graph to make, or a URI (s3://BUCKET/FOLDER, gs://, abfs://, hdfs://, file:///FOLDER): it is
            then made in the user's cache folder, uploaded, and removed there.
        config: What becomes of duplicates, loops, types, labels and splits (:class:`outcrop.ImportConfig`).
        features: Numbers ``[N, D]``: array, tensor, sparse matrix, or table (with a column ``id`` in any order). For
            NetworkX the name of a node attribute, or a list of names.
        labels: ``[N]`` or ``[N, C]``: array, tensor, sparse matrix, series or table; for NetworkX a node attribute.
        splits: A dict of ``train``, ``valid`` and ``test``, each node ids, or a mask ``[N]``; for NetworkX a node
            attribute or a list of nodes. Or a table with columns ``id`` and ``split`` (train, valid, test).
        edge_weight: float ``[E]``, not negative, beside an array of edges; for NetworkX an edge attribute.
        nodes: A table with a column ``id``: which nodes there are, and in which order.
        memory: Bytes, or text such as ``"4GiB"``, that the import may take; objects that are passed come on top.
        overwrite: Import again, and replace what is finished at ``out``; without it something else there is an error
            that says what it is and in what it differs.
        progress: Whether to show progress (:mod:`outcrop.runtime.progress`), or a receiver of it.

    Returns:
        The graph; one at a URI has its counts and types, and :func:`outcrop.fetch` brings its arrays. Its ``notes``
        say what was left out (columns without a meaning here) and what was changed; where progress is shown, they are
        printed to standard error, too.

    Raises:
        ArgumentError: Parts contradict each other or the options; or ``out`` is taken.
        FormatError: A part is torn or not what it should be; names the file or part, and the row.
        BudgetError: The memory is too small; names the smallest with which the import works.
        IoError: The operating system refused to write.
    """
    parts = {"features": features, "labels": labels, "edge_weight": edge_weight, "nodes": nodes}
    parts |= splits_by_name(splits) if isinstance(splits, Mapping) else {"splits": splits}
    with ExitStack() as closing:
        folder = closing.enter_context(made_for(str(out), overwrite, progress)) if is_uri(out) else out
        done = once.import_graph(
            _with_parts(source, parts), folder, config or ImportConfig(), memory, overwrite, progress
        )
        graph = open_graph(folder)
    graph.notes = done.notes
    if is_uri(out):
        graph.path = Path(without_keys(str(out)))
    _say(graph.notes, progress)
    return graph


def _say(notes: Sequence[str], progress: Progress | bool) -> None:
    if not isinstance(progress, SilentProgress):
        for note in notes:
            print(f"note: {note}", file=sys.stderr)


def _with_parts(source: Any, parts: dict[str, Any]) -> Any:
    """Puts ``source`` together with the parts that are given beside it."""
    given = {name: value for name, value in parts.items() if value is not None}
    if not given:
        return source
    if isinstance(source, str):
        raise ArgumentError(
            f"{', '.join(given)} cannot be given beside {source!r}: put them into its folder, or pass a dict of parts"
        )
    return {**(source if isinstance(source, Mapping) else {"edges": source}), **given}


@shows_progress
def import_triples(
    source: str | Path,
    out: str | Path,
    *,
    memory: Size | None = None,
    unknown: str = "skip",
    overwrite: bool = False,
    progress: Progress | bool = True,
) -> Triples:
    """Imports a folder of triples as a knowledge graph at ``out``.

    Where ``out`` holds what the same unchanged files gave, it is returned as it is.

    Args:
        source: Folder, as ``DIR`` or ``triples:DIR``, with ``train`` and, if there are, ``valid`` and ``test`` as
            ``.txt``, ``.tsv``, ``.csv`` or ``.parquet``: three columns (source, relation, target), or two (source,
            target) without relations. Where all are called so (also head and tail, subject, predicate and object, and
            the like), in a first line of text or in Parquet, their order does not matter; else it is this one, and text
            has no header.
        out: Folder of the knowledge graph to make.
        memory: Bytes, or text such as ``"4GiB"``, that the import may take.
        unknown: Treatment of triples of entities or relations that the training triples do not have: ``skip`` or
            ``error``.
        overwrite: Import again, and replace what is finished at ``out``; without it something else there is an error
            that says what it is and in what it differs.
        progress: Whether to show progress (:mod:`outcrop.runtime.progress`), or a receiver of it.

    Raises:
        ArgumentError: No training triples; or unknown names, if these are errors; or ``out`` is taken.
        FormatError: A line is malformed; the message names file and row.
        BudgetError: The memory is too small; names the smallest with which the import works.
        IoError: The operating system refused to write.
    """
    done = once.import_triples(
        str(source).removeprefix("triples:"), out, unknown, memory, overwrite, progress
    )
    graph = open_triples(out)
    graph.notes = done.notes
    _say(graph.notes, progress)
    return graph


@accepts_old_keywords(_OLD_OF_GENERATE, _objects_of_generate)
@checks_arguments
@shows_progress
def generate_graph(
    out: str | Path,
    config: GenerateConfig | None = None,
    *,
    memory: Size | None = None,
    overwrite: bool = False,
    progress: Progress | bool = True,
) -> Graph:
    """Generates a synthetic graph at ``out``, streamed: it may be larger than memory.

    Where ``out`` holds the graph of the same options, it is returned as it is.

    Example: ``oc.generate_graph("my.oc", oc.GenerateConfig(nodes=10_000, edges=150_000, features=64))``.

    Args:
        out: Folder of the graph to make.
        config: Which graph (:class:`outcrop.GenerateConfig`).
        memory: Bytes, or text such as ``"4GiB"``, that generating may take.
        overwrite: Generate again, and replace what is finished at ``out``; without it something else there is an error
            that says what it is.
        progress: Whether to show progress (:mod:`outcrop.runtime.progress`), or a receiver of it.

    Raises:
        ArgumentError: An impossible graph: more edges than pairs of nodes, more classes than nodes, ...; or ``out`` is
            taken.
        BudgetError: ``memory`` is too small.
        IoError: The operating system refused to write.
    """
    once.generate_graph(out, config or GenerateConfig(), memory, overwrite, progress)
    return open_graph(out)


@shows_progress
def stripe_features(
    graph: Graph | str | Path,
    folders: Sequence[str | Path],
    *,
    memory: Size | None = None,
    overwrite: bool = False,
    progress: Progress | bool = True,
) -> list[Stripe]:
    """Copies shares of the feature rows of ``graph`` to other disks.

    ``oc.train(..., loading=oc.Online(row_reads="gpu", stripes=folders))`` reads all of them at the same time.

    Folder ``k - 1`` of ``n - 1`` gets rows ``k, k + n, k + 2 n, ...``; rows ``0, n, ...`` are read from the graph,
    which stays as it is.

    Args:
        graph: The graph, or its folder.
        folders: Folders to make, one on each of the other disks.
        memory: Budget of what Outcrop holds meanwhile.
        overwrite: Replace stripes that are there.
        progress: As in :func:`import_graph`.

    Raises:
        ArgumentError: A folder is in the way or named twice, or the graph has no features.
        ChecksumError: The features were damaged.
    """
    with Runtime(memory, progress=progress) as runtime:
        opened = graph if isinstance(graph, Graph) else open_graph(graph)
        return stripe.stripe_features(opened, folders, runtime, overwrite=overwrite)
