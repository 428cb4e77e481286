"""What an import looks at beside the bytes: ids that make a graph of nothing but empty nodes, and edges that go one
way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from outcrop.errors import ArgumentError
from outcrop.importing.sources.base import EdgeBlock, EdgeSource, GraphSource, TypedSource
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.store.graph_types import NodeType

# An id may exceed the number of edges by this factor and this many, unless the number of nodes is given.
NODES_PER_EDGE, FREE_NODES = 100, 1_000_000
MAX_FREE_ID = 2**32 - 1  # beyond it the number of nodes has to be given in any case
_EDGES_LOOKED_AT = 1000
_ONE_WAY_SHARE = 0.5
_IDS_AT_A_TIME = 1 << 16
_CLASSES_NAMED = 3
_MOST_CLASSES = 1 << 20  # that are counted
_MOSTLY = 0.9  # names that are numbers, so that those that are not look like mistakes


class LargestId:
    """Finds the largest id of the edges, and where it was. Counts only where ids decide how many nodes there are."""

    def __init__(self, source: GraphSource):
        self._source = source
        self._edges = self._row = 0
        self._id = -1

    def add(self, sources: np.ndarray, targets: np.ndarray) -> None:
        """Takes note of a block of edges.

        Raises:
            ArgumentError: An id is negative, beyond the nodes that there are, or one that no edge list without a number
                of nodes may have.
        """
        if len(sources):
            for ids in (sources, targets):
                self._check_range(ids)
            ends = np.maximum(sources, targets)
            at = int(np.argmax(ends))
            if ends[at] > self._id:
                self._id, self._row = int(ends[at]), self._edges + at
                if self._id > MAX_FREE_ID:
                    self._refuse(self._edges + len(sources))
        self._edges += len(sources)

    def _check_range(self, ids: np.ndarray) -> None:
        limit = self._source.num_nodes
        if ids.min() >= 0 and (limit is None or ids.max() < limit):
            return
        row = int(np.argmax((ids < 0) | (ids >= limit) if limit is not None else ids < 0))
        why = f"but there are {limit} nodes (0 to {limit - 1})" if limit is not None else "and ids begin at 0"
        raise ArgumentError(
            f"{self._source.place_of_edge(self._edges + row)} names node {ids[row]}, {why}: correct it, or leave the "
            "edge out"
        )

    @property
    def num_nodes(self) -> int:
        """Tells how many nodes there are at the least."""
        return self._id + 1

    def check(self) -> None:
        """Raises ArgumentError where the largest id is far above the number of edges: each node costs 8 bytes."""
        if self._id >= NODES_PER_EDGE * self._edges + FREE_NODES:
            self._refuse(self._edges)

    def _refuse(self, edges: int) -> None:
        if self._source.num_nodes is None:
            raise ArgumentError(
                f"{self._source.place_of_edge(self._row)} names node {self._id}, so {edges} edges would make "
                f"{self._id + 1} nodes: is that id a mark for 'none'? Remove the edge, list the nodes (nodes.csv), or "
                f"give their number (--num-nodes {self._id + 1})"
            )


def check_told_nodes(source: GraphSource, file_bytes: int, given: int | None) -> None:
    """Raises ArgumentError where a file tells of far more nodes than it has bytes or edges: each costs 8 bytes.

    Args:
        source: What was read of the file.
        file_bytes: Size of the file.
        given: How many nodes there are by the user, who may mean it.
    """
    told, edges = source.num_nodes or 0, source.num_edges or 0
    if told != given and told > max(file_bytes, NODES_PER_EDGE * edges + FREE_NODES):
        raise ArgumentError(
            f"{source.name} tells of {told} nodes, and has {edges} edges in {file_bytes} bytes: correct the number, or "
            f"say that it is meant (--num-nodes {told})"
        )


def check_told_types(source: TypedSource, file_bytes: int) -> None:
    """Raises ArgumentError where a file tells of far more nodes of a type than it has bytes or edges, likewise."""
    edges = sum(one.num_edges or 0 for one in source.edges)
    for one in source.nodes:
        told = one.num_nodes or 0
        if told > max(file_bytes, NODES_PER_EDGE * edges + FREE_NODES):
            raise ArgumentError(
                f"{source.name} tells of {told} nodes {one.type_name!r}, and has {edges} edges in {file_bytes} bytes: "
                "correct num_nodes of that type"
            )


def check_ends(source: EdgeSource, block: EdgeBlock, first_edge: int, num_nodes: tuple[int, int]) -> None:
    """Raises ArgumentError for an edge that leaves its node types, and says where it is.

    Args:
        source: Source of the edges.
        block: Edges as the source yields them.
        first_edge: Number of the first edge of the block among those that the source yields.
        num_nodes: Nodes of the type of the sources, and of that of the targets.
    """
    for ids, limit, kind in zip(block, num_nodes, (source.key[0], source.key[2]), strict=False):
        if not len(ids) or (ids.min() >= 0 and ids.max() < limit):
            continue
        row = int(np.argmax((ids < 0) | (ids >= limit)))
        there = f"nodes {kind!r} are 0 to {limit - 1}" if limit else f"there are no nodes {kind!r}"
        raise ArgumentError(
            f"{source.place_of_edge(first_edge + row)} names node {ids[row]} of {kind!r}, but {there}: correct it, or "
            "leave the edge out"
        )


def check_weights(
    source: GraphSource | EdgeSource, block: EdgeBlock, first_edge: int, keep_self_loops: bool
) -> None:
    """Raises ArgumentError for a weight that is negative, not finite or no number, and says where it is.

    Args:
        source: Source of the edges, which tells where their weights are.
        block: Edges as the source yields them, with or without weights.
        first_edge: Number of the first edge of the block among those that the source yields.
        keep_self_loops: Whether the weights of edges from a node to itself count.
    """
    if len(block) < 3:
        return
    sources, targets, weights = block
    # Both comparisons fail for NaN, and neither takes memory.
    if weights.min(initial=0) >= 0 and weights.max(initial=0) < np.inf:
        return
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if not keep_self_loops:
        bad &= sources != targets
    if bad.any():
        row = int(np.argmax(bad))
        edge = first_edge + row
        where = source.weight_at(edge) if source.weight_at else f"the weight of {source.place_of_edge(edge)}"
        raise ArgumentError(
            f"{where} is {weights[row]}; weights are finite numbers and not negative: correct it, leave the edge out, "
            "or rename the weights (weight, edge_weight) and they are not imported"
        )


def one_way_note(graph: Graph, runtime: Runtime, reverse: bool | None) -> list[str]:
    """Returns a note where most edges have no edge back and the user has not said whether they should.

    Looks at up to 1000 edges, evenly spread; equals ``mean((v, u) in edges for (u, v) in edges) < 0.5`` up to that.
    """
    if graph.is_typed or reverse is not None or graph.num_edges == 0:
        return []
    if graph.manifest.attributes.get("undirected"):
        return []
    indptr, indices = (graph.array(runtime, name).memmap() for name in ("indptr", "indices"))
    looked = min(graph.num_edges, _EDGES_LOOKED_AT)
    both = 0
    for edge in (np.arange(looked) * graph.num_edges // looked).tolist():
        target, source = int(np.searchsorted(indptr, edge, side="right")) - 1, int(indices[edge])
        back = indices[indptr[source] : indptr[source + 1]]
        at = int(np.searchsorted(back, target))
        both += at < len(back) and int(back[at]) == target
    if both >= _ONE_WAY_SHARE * looked:
        return []
    return [
        f"edges are kept in the direction they have, and {looked - both} of {looked} looked at have none back: "
        "a graph neural network usually wants both directions, which --reverse (ImportConfig(reverse=True)) adds; "
        "--no-reverse says that one is meant"
    ]


def notes_of_missing(graph: Graph) -> list[str]:
    """Notes for what a graph lacks without an error: edges, and nodes to choose the best model by."""
    notes = []
    if graph.num_edges == 0:
        notes.append(
            "the graph has no edges: a graph neural network learns from the features of each node alone"
        )
    arrays = graph.manifest.arrays
    for of in graph.node_types:
        rows = {s: arrays[of.array(s)].shape[0] if of.array(s) in arrays else 0 for s in ("train", "valid")}
        if rows["train"] and not rows["valid"]:
            notes.append(
                f"no nodes{f' {of.name!r}' if of.name else ''} are for validation, so training keeps the model of its "
                "last epoch, not the best one: list some under the split 'valid', or have all nodes divided (--split "
                "fractions, ImportConfig(split_protocol='fractions'))"
            )
    return notes


def notes_of_classes(graph: Graph, runtime: Runtime) -> list[str]:
    """Notes for classes that nodes of validation or test have, and no training node, so that no model learns them; and
    for nodes of splits without a label.
    """
    notes = []
    for of in graph.node_types:
        there = [split for split in ("train", "valid", "test") if graph.has(of.array(split))]
        if of.label_kind != "class" or not graph.has(of.array("labels")) or "train" not in there:
            continue
        if of.num_classes > _MOST_CLASSES:
            continue
        counts = {split: _class_counts(graph, of, split, runtime) for split in there}
        notes += _notes_of_unlabelled(graph, of, counts)
        learned = counts.pop("train") > 0
        others = np.sum([*counts.values(), np.zeros(of.num_classes, np.int64)], axis=0)
        missing = np.flatnonzero(~learned & (others > 0))
        if len(missing):
            shown = [
                of.class_names[i] if of.class_names else str(i) for i in missing[:_CLASSES_NAMED].tolist()
            ]
            more = "" if len(missing) == len(shown) else ", ..."
            notes.append(
                f"{len(missing)} of {of.num_classes} classes{f' of {of.name!r}' if of.name else ''} "
                f"({', '.join(shown)}{more}) are those of {int(others[missing].sum())} nodes of "
                f"{' and '.join(counts)}, and of no training node: a model cannot learn them"
            )
    return notes


def _notes_of_unlabelled(graph: Graph, of: NodeType, counts: dict[str, np.ndarray]) -> list[str]:
    said = []
    for split, labelled in counts.items():
        size = graph.spec(of.array(split)).shape[0]
        if missing := size - int(labelled.sum()):
            said.append(f"{missing:,} of {size:,} nodes of {split}")
    if not said:
        return []
    return [
        f"{', '.join(said)}{f' {of.name!r}' if of.name else ''} have no label: training and scores leave them out, and "
        "loops of your own find y = -1"
    ]


def _class_counts(graph: Graph, of: NodeType, split: str, runtime: Runtime) -> np.ndarray:
    """Returns how many nodes of a split have each class: ``np.bincount(labels[split], minlength=num_classes)``."""
    labels, ids = (graph.array(runtime, of.array(name)).memmap() for name in ("labels", split))
    counts = np.zeros(of.num_classes, np.int64)
    for at in range(0, len(ids), _IDS_AT_A_TIME):
        found = labels[ids[at : at + _IDS_AT_A_TIME]]
        np.add.at(counts, found[found >= 0], 1)
    return counts


class NumbersAmongNames:
    """Passes names on and counts those that are whole numbers: one mistyped cell makes all ids of a column text."""

    def __init__(self, names: Iterator[str]):
        self._names = names
        self._all = self._numbers = 0
        self._first_other = ""

    def __iter__(self) -> Iterator[str]:
        for name in self._names:
            self._all += 1
            if name.isascii() and name.isdigit():
                self._numbers += 1
            elif not self._first_other:
                self._first_other = name
            yield name

    def notes(self, source: str) -> list[str]:
        """Returns a sentence where nearly all names are numbers, and some are not."""
        others = self._all - self._numbers
        if not others or self._numbers < _MOSTLY * self._all:
            return []
        return [
            f"ids of {source} are text, numbered as they appear, because of {others} that are no whole numbers, such "
            f"as {self._first_other!r}; if these are mistakes, correct them and import again"
        ]
