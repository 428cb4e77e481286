"""What a model needs to know of a graph with node and edge types: names, widths of rows, and what is predicted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from outcrop.config import ModelConfig
from outcrop.config.models import EDGE_ROW_MODELS, MODELS, TYPED_MODELS, wants_edge_rows
from outcrop.errors import ArgumentError
from outcrop.store.graph import Graph
from outcrop.store.graph_types import NodeType, RowFile

EdgeKey = tuple[str, str, str]  # (source, relation, target), as torch_geometric calls a type of edges
_MADE = re.compile(r"(random|learned):([1-9][0-9]{0,8})")
_HOW = "random:64 for 64 random values, or learned:64 for 64 that are learned"
_COPIES = 3  # of a table of learned rows: rows, means, and the rows of the best model


@dataclass(frozen=True)
class NodeSchema:
    """Describes the rows that a model takes of the nodes of one type.

    Attributes:
        name: What the type is called.
        width: Values of a row.
        dtype: Their type, such as ``float32``.
        made: How rows are made where the graph has none, such as ``random:64``, or ``learned:64``; empty: the graph has
            them.
        num_nodes: Nodes of the type, where their rows are learned; else 0.
    """

    name: str
    width: int
    dtype: str = "float32"
    made: str = ""
    num_nodes: int = 0

    @property
    def is_learned(self) -> bool:
        """Tells whether rows are learned with the model."""
        return self.made.startswith("learned:")


@dataclass(frozen=True)
class GraphSchema:
    """Describes a graph as a model sees it; as plain as that it can lie in a checkpoint.

    Attributes:
        node_types: The types of nodes, by their numbers in the graph.
        edge_types: (source, relation, target) of each type of edges, by their numbers in the graph.
        seed_type: The type of the nodes whose labels are predicted.
        num_classes: Their classes, or columns of their targets.
        row_seed: Seed of rows that are made.
        edge_widths: Values of a row of the edges of each type that a model takes, 0: none; empty: of no type.

    Raises:
        ArgumentError: It describes no graph; the message has all reasons.
    """

    node_types: tuple[NodeSchema, ...]
    edge_types: tuple[EdgeKey, ...]
    seed_type: str
    num_classes: int
    row_seed: int = 0
    edge_widths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        names = [node.name for node in self.node_types]
        problems = [f"node type {name!r} stands twice" for name in sorted(_repeated(names))]
        problems += [
            f"rows of node type {node.name!r} have width {node.width}: below 1"
            for node in self.node_types
            if node.width < 1
        ]
        problems += [
            f"rows of node type {node.name!r} are made as {node.made!r}: write {_HOW}"
            for node in self.node_types
            if node.made and not _MADE.fullmatch(node.made)
        ]
        # By what parameters are called, so that names with underscores cannot meet there either.
        keys = ["___".join(key) for key in self.edge_types]
        problems += [f"edge type {key!r} stands twice" for key in sorted(_repeated(keys))]
        problems += [
            f"edge type {key} is between types that are not there: {', '.join(names)} are"
            for key in self.edge_types
            if key[0] not in names or key[2] not in names
        ]
        if self.seed_type not in names:
            problems.append(f"node type {self.seed_type!r} of the seeds is none of {', '.join(names)}")
        if self.num_classes < 1:
            problems.append(f"num_classes {self.num_classes} is below 1")
        if self.edge_widths and len(self.edge_widths) != len(self.edge_types):
            problems.append(f"{len(self.edge_widths)} widths are given for {len(self.edge_types)} edge types")
        problems += [f"rows of edges have width {width}: below 0" for width in self.edge_widths if width < 0]
        if problems:
            raise ArgumentError("; ".join(problems))

    @classmethod
    def of(
        cls,
        graph: Graph,
        seed_type: str | None = None,
        *,
        no_rows: str | Mapping[str, str] | None = None,
        row_seed: int = 0,
        edge_rows: bool = False,
    ) -> GraphSchema:
        """Describes a graph on disk.

        Args:
            seed_type: Name of the type of the nodes whose labels are predicted; None: the only one with labels.
            no_rows: How rows of types without any are made: ``random:64``, 64 values that follow from ``row_seed``,
                type and number of the node alone and are stored nowhere; ``learned:64``, the same at first, learned
                with the model. One for all such types, or one for each name.
            row_seed: Seed of rows that are made.
            edge_rows: Whether the model takes the rows of edges.

        Raises:
            ArgumentError: A type has no rows and nothing says how to make them, or it is not clear what is predicted.
        """
        stored = {rows.owner.number: rows for rows in graph.row_files if isinstance(rows.owner, NodeType)}
        of_edges = {
            rows.owner.number: rows for rows in graph.row_files if not isinstance(rows.owner, NodeType)
        }
        widths = [of_edges[e.number].width if e.number in of_edges else 0 for e in graph.edge_types]
        seeds = _seeds(graph.node_types, seed_type)
        return cls(
            tuple(_node_schema(node, stored.get(node.number), no_rows) for node in graph.node_types),
            tuple(edge.key for edge in graph.edge_types),
            seeds.name,
            seeds.num_classes,
            row_seed,
            tuple(widths) if edge_rows and any(widths) else (),
        )

    def edge_width(self, number: int) -> int | None:
        """Returns how wide the rows of the edges of a type are; None: the model takes none."""
        return self.edge_widths[number] or None if self.edge_widths else None

    @property
    def edge_row_numbers(self) -> tuple[int | None, ...]:
        """Returns which of the rows of a batch are those of the edges of each type; None: the model takes none."""
        next_one = count(sum(not node.made for node in self.node_types))
        return tuple(next(next_one) if self.edge_width(n) else None for n in range(len(self.edge_types)))

    @property
    def seed_number(self) -> int:
        """Returns the number of the node type of the seeds."""
        return self.number_of(self.seed_type)

    @property
    def ends(self) -> tuple[tuple[int, int], ...]:
        """Returns the numbers of the node types (source, target) of each edge type."""
        return tuple(
            (self.number_of(source), self.number_of(target)) for source, _, target in self.edge_types
        )

    @property
    def row_numbers(self) -> tuple[int | None, ...]:
        """Returns which of the rows of a batch are those of each node type; None: they are made."""
        stored = [number for number, node in enumerate(self.node_types) if not node.made]
        return tuple(
            None if node.made else stored.index(number) for number, node in enumerate(self.node_types)
        )

    def number_of(self, name: str) -> int:
        """Returns the number of the node type called ``name``."""
        return [node.name for node in self.node_types].index(name)

    def as_stored(self) -> dict[str, Any]:
        """Returns it as plain values, for JSON. Equals ``dataclasses.asdict(self)`` but for what is not used."""
        stored = asdict(self)
        if not self.edge_widths:  # as schemas were before models took some
            del stored["edge_widths"]
        for node in stored["node_types"]:
            if not node["num_nodes"]:
                del node["num_nodes"]
        return stored

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> GraphSchema:
        """Reads what :meth:`as_stored` returned and JSON kept.

        Raises:
            KeyError, TypeError, ValueError: It is something else.
        """
        nodes = tuple(NodeSchema(**node) for node in stored["node_types"])
        edges = tuple((source, relation, target) for source, relation, target in stored["edge_types"])
        texts = [text for node in nodes for text in (node.name, node.dtype, node.made)]
        texts += [stored["seed_type"], *(name for key in edges for name in key)]
        edge_widths = tuple(stored.get("edge_widths", ()))
        numbers = [stored["num_classes"], stored["row_seed"], *edge_widths]
        numbers += [number for node in nodes for number in (node.width, node.num_nodes)]
        if not all(isinstance(text, str) for text in texts) or not all(type(n) is int for n in numbers):
            raise TypeError("a name is no text, or a number no integer")
        try:
            return cls(
                nodes, edges, stored["seed_type"], stored["num_classes"], stored["row_seed"], edge_widths
            )
        except ArgumentError as error:
            raise ValueError(str(error)) from None


def schema_of(graph: Graph, model: ModelConfig, seed: int) -> GraphSchema | None:
    """Returns what a model needs to know of a graph with types; None where it has none.

    Raises:
        ArgumentError: The model is for other graphs, or nothing says what nodes of a type without features have.
    """
    if graph.is_typed != (model.name in TYPED_MODELS):
        fitting = TYPED_MODELS if graph.is_typed else (*MODELS, *EDGE_ROW_MODELS)
        has = "types of nodes and edges" if graph.is_typed else "no types of nodes or edges"
        usual = (
            " (it is what is trained unless --model names another)"
            if model.name == ModelConfig().name
            else ""
        )
        raise ArgumentError(
            f"{graph.path} has {has}: for model {model.name!r} choose {', '.join(fitting)}{usual}"
        )
    if not graph.is_typed:
        return None
    edge_rows = wants_edge_rows(model.name, graph.has_edge_rows)
    return GraphSchema.of(
        graph, graph.seed_type.name, no_rows=model.no_rows, row_seed=seed, edge_rows=edge_rows
    )


def learned_bytes(schema: GraphSchema | None) -> int:
    """Counts the bytes that the learned rows of a training take: 12 for each value, and 4 for each row."""
    nodes = () if schema is None else schema.node_types
    return sum(4 * node.num_nodes * (_COPIES * node.width + 1) for node in nodes if node.is_learned)


def _repeated(names: Sequence[str]) -> set[str]:
    return {name for name in names if names.count(name) > 1}


def _seeds(node_types: Sequence[NodeType], name: str | None) -> NodeType:
    names = ", ".join(repr(node.name) for node in node_types)
    if name is None:
        labelled = [node for node in node_types if node.num_classes]
        if len(labelled) != 1:
            raise ArgumentError(f"{len(labelled)} node types of {names} have labels: name the one to predict")
        return labelled[0]
    found = [node for node in node_types if node.name == name]
    if not found:
        raise ArgumentError(f"node type {name!r} of the seeds is none of {names}")
    return found[0]


def _node_schema(node: NodeType, rows: RowFile | None, no_rows: str | Mapping[str, str] | None) -> NodeSchema:
    if rows is not None:
        return NodeSchema(node.name, rows.width, rows.dtype)
    made = no_rows if isinstance(no_rows, str) or no_rows is None else no_rows.get(node.name)
    if made is None:
        raise ArgumentError(
            f"node type {node.name!r} has no rows: import them with the graph, derive them from those of neighbors "
            "(outcrop derive), or say no_rows='random:64' (--no-rows random:64) for rows of 64 random values, which "
            "follow from the number of the node and are stored nowhere, or 'learned:64' for rows that are learned, "
            "which take "
            f"{12 * 64} bytes of memory for each of {node.num_nodes} nodes"
        )
    found = _MADE.fullmatch(made)
    if found is None:
        raise ArgumentError(f"no_rows {made!r} of node type {node.name!r}: write {_HOW}")
    learned = found[1] == "learned"
    return NodeSchema(node.name, int(found[2]), made=made, num_nodes=node.num_nodes if learned else 0)
