"""Sources with several types of nodes or edges: what they hold, and the refusal of those that are not read yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

from outcrop.errors import ArgumentError

EdgeTypeName = tuple[str, str, str]  # of the sources, of the relation, of the targets
_SHOWN = 5


@dataclass(frozen=True)
class TypedColumns:
    """Holds the columns of each type of a graph, by what the source calls them: arrays and plain values.

    Attributes:
        name: What messages call the graph.
        nodes: Columns by node type; ``num_nodes`` is a number.
        edges: Columns by edge type; ``edge_index`` is int [2, E], ids from 0 within each type, or ``edges`` is an
            :class:`~outcrop.importing.sources.adjacency.Adjacency`.
        graph: Columns that belong to no type.
    """

    name: str
    nodes: dict[str, dict[str, Any]]
    edges: dict[EdgeTypeName, dict[str, Any]]
    graph: dict[str, Any] = field(default_factory=dict)

    def types(self) -> str:
        """Lists the types, for messages."""
        relations = [" ".join(relation) for relation in self.edges]
        return f"nodes {_listed(list(self.nodes))}; edges {_listed(relations)}"


def refuse_typed(
    name: str, what: str, remedy: str = "import them from arrays (arrays:DIR with a graph.toml)"
) -> NoReturn:
    """Refuses a source with several types of nodes or edges.

    Args:
        name: What messages call the source.
        what: What says that there are several, such as ``a.csv lists 4 types of nodes``.
        remedy: What to do instead.

    Raises:
        ArgumentError: Always.
    """
    raise ArgumentError(
        f"{name} has several types of nodes or edges ({what}), and of such a source one of each is read: {remedy}"
    )


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return f"{shown}, and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown or "none"
