"""derive_rows: features for a type of nodes that has none, means of those of their neighbors."""

from __future__ import annotations

from pathlib import Path

from outcrop.config import Size, parse_size
from outcrop.config.declared import checks_arguments
from outcrop.inference.derive import DeriveReport, checked_derivation, derive
from outcrop.inference.division import default_memory
from outcrop.runtime.progress import Progress, shows_progress
from outcrop.runtime.system import available_memory
from outcrop.store.graph import Graph, open_graph


@checks_arguments
@shows_progress
def derive_rows(
    graph: Graph | str | Path,
    node_type: str,
    *,
    mean: str,
    by: str,
    dtype: str | None = None,
    memory: Size | None = None,
    progress: Progress | bool = True,
) -> Graph:
    """Gives the nodes of a type that has no features the mean over those of their neighbors, stored in the graph.

    They are added up in float32, out of core; a node without such neighbors has zeros. Where the same rows are there
    already the graph is returned as it is, so that a script may be run again. What was prepared from the graph before
    is prepared again.

    Example: ``oc.derive_rows("mag.oc", "author", mean="paper", by="rev_writes")``.

    Args:
        graph: The graph, or its folder.
        node_type: Name of the type whose nodes get features.
        mean: Name of the type whose features are averaged.
        by: Relation of the edges that lead from nodes of ``mean`` to those of ``node_type``.
        dtype: ``float32``, ``float16`` or ``bfloat16``; None: that of the features that are averaged, where it is one
            of these, else ``float32``.
        memory: Budget of what Outcrop holds meanwhile; None: half of what the machine has available, rounded down to
            a power of two, 4 GiB at the most.
        progress: As in :func:`outcrop.import_graph`.

    Returns:
        The graph, opened again.

    Raises:
        ArgumentError: The graph has no such types, nothing to average, or ``node_type`` has other features; a mean is
            too large for ``dtype``.
        BudgetError: ``memory`` is too small; names the smallest that is enough.
        IoError: The disk is full or refuses, or another process derives features of this graph.
    """
    derived(graph, (mean, by, node_type), dtype, memory, progress)
    return open_graph(graph.path if isinstance(graph, Graph) else graph)


def derived(
    graph: Graph | str | Path,
    edges: tuple[str, str, str],
    dtype: str | None,
    memory: Size | None,
    progress: Progress | bool,
) -> DeriveReport:
    """Does what :func:`derive_rows` does with edge type ``edges``, and returns what it took."""
    mean, by, node_type = edges
    opened = graph if isinstance(graph, Graph) else open_graph(graph)
    limit = default_memory(available_memory()) if memory is None else parse_size(memory)
    return derive(checked_derivation(opened, node_type, mean, by, dtype), limit, progress)
