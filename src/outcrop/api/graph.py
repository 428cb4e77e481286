"""Graphs from the outside: import and generate."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from outcrop.config import Size
from outcrop.errors import ArgumentError, OutcropError
from outcrop.importing import generate, stripe, triples
from outcrop.importing import graph as ingest
from outcrop.importing.import_budget import runtime_of_import, runtime_of_triples
from outcrop.importing.sources.base import SplitProtocol
from outcrop.runtime.progress import Progress, SilentProgress, shows_progress
from outcrop.runtime.runtime import Runtime
from outcrop.store import imported
from outcrop.store import manifest as manifests
from outcrop.store.graph import FORMAT as GRAPH
from outcrop.store.graph import VERSION as GRAPH_VERSION
from outcrop.store.graph import Graph, LabelKind, open_graph
from outcrop.store.stripes import Stripe
from outcrop.store.triples import FORMAT as TRIPLES
from outcrop.store.triples import Triples, open_triples


@shows_progress
def import_graph(
    source: Any,
    out: str | Path,
    *,
    features: Any = None,
    labels: Any = None,
    train: Any = None,
    valid: Any = None,
    test: Any = None,
    edge_weight: Any = None,
    nodes: Any = None,
    splits: Any = None,
    num_nodes: int | None = None,
    label_kind: LabelKind | None = None,
    reverse: bool | None = None,
    keep_duplicates: bool = False,
    keep_self_loops: bool | None = None,
    feature_dtype: str | None = None,
    bfloat16_bits: bool = False,
    allow_nonfinite: bool = False,
    split_protocol: SplitProtocol | None = None,
    train_fraction: float | None = None,
    valid_fraction: float | None = None,
    test_fraction: float | None = None,
    split_seed: int = 0,
    split_index: int = 0,
    memory: Size | None = None,
    overwrite: bool = False,
    progress: Progress | bool = True,
) -> Graph:
    """Imports ``source`` as a graph at ``out``.

    Where ``out`` holds the graph that the same unchanged files gave with the same options, it is returned as it is, so
    that a script may be run again. Objects in memory cannot be compared: pass ``overwrite=True``, or open what is there
    with :func:`outcrop.open_graph`.

    Example: ``oc.import_graph({"edges": table, "features": x, "labels": y, "train": mask}, "my.oc", reverse=True)``.

    Args:
        source: Files, as text: ``arrays:DIR``, ``edges:FILE``, ``npz:FILE``, ``scipy:FILE``, ``mat:FILE``,
            ``musae:DIR``. Or a PyG ``Data``, a SciPy sparse matrix, a NetworkX graph, a table of edges (Arrow, Polars,
            pandas, DuckDB), an array ``[E, 2]`` or ``[2, E]`` of edges; or a dict of parts, named as the next
            arguments, with ``edges``.
        out: Folder of the graph to make.
        features: Numbers ``[N, D]``: array, tensor, sparse matrix, or table (with a column ``id`` in any order). For
            NetworkX the name of a node attribute, or a list of names.
        labels: ``[N]`` or ``[N, C]``: array, tensor, sparse matrix, series or table; for NetworkX a node attribute.
        train, valid, test: Node ids, or a mask ``[N]``; for NetworkX a node attribute or a list of nodes.
        edge_weight: float ``[E]``, not negative, beside an array of edges; for NetworkX an edge attribute.
        nodes: A table with a column ``id``: which nodes there are, and in which order.
        splits: A table with columns ``id`` and ``split`` (train, valid, test).
        num_nodes: Number of nodes, where neither features nor labels tell it.
        label_kind: ``class``, ``multilabel`` or ``regression``; None = as the labels look.
        reverse: Store the reverse of every edge too, as message passing on undirected graphs wants it; None = where
            the source is known to list undirected edges once.
        keep_duplicates: Keep edges that are listed more than once.
        keep_self_loops: None = as is usual for the source.
        feature_dtype: ``float16``, ``bfloat16``, ``float32`` or ``float64``; None = as they are.
        bfloat16_bits: uint16 features are the raw bits of bfloat16.
        allow_nonfinite: Accept NaN and infinity in features.
        split_protocol: ``fractions``, ``per-class``, ``planetoid`` or ``none``, where the source has no splits.
        train_fraction, valid_fraction, test_fraction: Shares of the labelled nodes, instead of splits of the source.
        split_seed: Names the division by fractions or per class.
        split_index: Which of several splits of the source.
        memory: Bytes, or text such as ``"4GiB"``, that the import may take; objects that are passed come on top.
        overwrite: Import again, and replace what is finished at ``out``; without it something else there is an error
            that says what it is and in what it differs.
        progress: Whether to show progress (:mod:`outcrop.runtime.progress`), or a receiver of it.

    Returns:
        The graph. Its ``notes`` say what was left out (columns without a meaning here) and what was changed; where
        progress is shown, they are printed to standard error, too.

    Raises:
        ArgumentError: Parts contradict each other or the options; or ``out`` is taken.
        FormatError: A part is torn or not what it should be; names the file or part, and the row.
        BudgetError: The memory is too small; names the smallest with which the import works.
        IoError: The operating system refused to write.
    """
    parts = {
        "features": features,
        "labels": labels,
        "train": train,
        "valid": valid,
        "test": test,
        "edge_weight": edge_weight,
        "nodes": nodes,
        "splits": splits,
    }
    config = ingest.ImportConfig(
        keep_duplicates=keep_duplicates,
        keep_self_loops=keep_self_loops,
        reverse=reverse,
        feature_dtype=feature_dtype,
        bfloat16_bits=bfloat16_bits,
        allow_nonfinite=allow_nonfinite,
        split_protocol=split_protocol,
        train_fraction=train_fraction,
        valid_fraction=valid_fraction,
        test_fraction=test_fraction,
        split_seed=split_seed,
        split_index=split_index,
        label_kind=label_kind,
        num_nodes=num_nodes,
    )
    source = _with_parts(source, parts)
    if is_imported(out, ingest.import_record(source, config), overwrite):
        graph = open_graph(out)
        graph.notes = (kept_note(out),)
    else:
        with runtime_of_import(source, config, memory, progress) as runtime:
            graph = ingest.import_graph(source, out, runtime, config)
    if not isinstance(progress, SilentProgress):
        for note in graph.notes:
            print(f"note: {note}", file=sys.stderr)
    return graph


def _with_parts(source: Any, parts: dict[str, Any]) -> Any:
    """``source`` together with the parts that are given beside it."""
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
        source: Folder with ``train`` and, if there are, ``valid`` and ``test`` as ``.txt``, ``.tsv``, ``.csv`` or
            ``.parquet``: three columns (source, relation, target), or two (source, target) without relations. Text has
            no header.
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
    if is_imported(out, triples.import_record(str(source), unknown), overwrite):
        return open_triples(out)
    with runtime_of_triples(str(source), memory, progress) as runtime:
        return triples.import_triples(str(source), out, runtime, unknown=unknown)


@shows_progress
def generate_graph(
    out: str | Path,
    *,
    kind: Literal["sbm", "rmat"] = "sbm",
    nodes: int = 100_000,
    edges: int = 1_500_000,
    features: int = 128,
    classes: int = 16,
    dtype: str = "float32",
    train_fraction: float = 0.1,
    valid_fraction: float = 0.05,
    test_fraction: float = 0.1,
    homophily: float = 0.6,
    skew: float = 0.67,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    signal: float | None = None,
    seed: int = 0,
    memory: Size | None = None,
    overwrite: bool = False,
    progress: Progress | bool = True,
) -> Graph:
    """Generates a synthetic graph at ``out``, streamed: it may be larger than memory.

    Where ``out`` holds the graph of the same arguments, it is returned as it is.

    Example: ``oc.generate_graph("my.oc", nodes=10_000, edges=150_000, features=64)``.

    Args:
        out: Folder of the graph to make.
        kind: ``sbm``: power-law degrees and planted classes, which a GNN learns; ``rmat``: R-MAT, by default with
            Graph500's quadrants.
        nodes, edges: Exact counts; edges are directed and distinct.
        features: Columns of the features; 0 = none.
        classes: Number of labels, which are equally frequent.
        dtype: Type of the features: ``float32``, ``float16``, ``bfloat16``, or ``int8`` in steps of 2^-5.
        train_fraction, valid_fraction, test_fraction: Shares of the nodes, rounded to whole nodes.
        homophily: Chance that a source is drawn from the class of its target (sbm).
        skew: Exponent: the degree of the k-th hottest node goes with k^-skew (sbm).
        a, b, c: Chances of the quadrants (source bit, target bit) = 00, 01, 10; 11 has the rest (rmat).
        signal: Length of the class means, in units of the noise of one column; None = such that single rows are
            classified right about half the time.
        seed: Number that decides everything: the same seed gives the same graph on every machine.
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
    config = generate.GenerateConfig(
        kind=kind,
        nodes=nodes,
        edges=edges,
        features=features,
        classes=classes,
        dtype=dtype,
        train_fraction=train_fraction,
        valid_fraction=valid_fraction,
        test_fraction=test_fraction,
        homophily=homophily,
        skew=skew,
        a=a,
        b=b,
        c=c,
        signal=signal,
        seed=seed,
    )
    if is_generated(out, config, overwrite):
        return open_graph(out)
    with Runtime(memory, progress=progress) as runtime:
        return generate.generate_graph(out, runtime, config)


def is_generated(out: str | Path, config: generate.GenerateConfig, overwrite: bool) -> bool:
    """Tells whether ``out`` holds the graph that ``config`` gives. Arguments and errors as :func:`is_imported`."""
    same = manifests.plain(asdict(config))
    if not overwrite and manifests.is_current(Path(out), GRAPH, GRAPH_VERSION, same, {}):
        return True
    return is_imported(out, None, overwrite)


def is_imported(out: str | Path, record: dict[str, Any] | None, overwrite: bool) -> bool:
    """Tells whether ``out`` holds the result of the import that ``record`` describes, before anything is read.

    Args:
        record: Of :mod:`outcrop.store.imported`; None: of something that cannot be recognised.
        overwrite: Whatever is finished there is replaced: never true then.

    Raises:
        ArgumentError: Something else is there, named with what differs; or it is no artifact.
    """
    out = Path(out)
    manifests.check_destination(out)
    if overwrite or not manifests.exists(out):
        return False
    there = imported.read(out)
    differing = None if there is None or record is None else imported.differences(there, record)
    manifests.require_overwrite(out, _what_is_at(out), differing, overwrite)
    return True


def kept_note(out: str | Path) -> str:
    """Says that nothing was imported, since it has been."""
    return (
        f"{out} is kept: it was imported from the same files with the same options (overwrite imports again)"
    )


def _what_is_at(out: Path) -> str:
    """The artifact at ``out`` as it prints, or what is known of one that cannot be opened."""
    try:
        kind = manifests.kind(out)
        opened = {GRAPH: open_graph, TRIPLES: open_triples}.get(kind)
        return repr(opened(out)) if opened else f"an artifact {kind}"
    except OutcropError:
        return "a damaged artifact"


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
